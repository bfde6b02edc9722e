"""In which form a column is kept, and how its own form is given back.

Encodings (dictionaries, runs, views, extension types) are undone on the way in and made again on the way out, so that
what is stored is one of few plain layouts, and rows of different batches, with different dictionaries, can stand
together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def stored_type(type_: pa.DataType) -> pa.DataType:
    """The plain form of a type.

    >>> stored_type(pa.dictionary(pa.int8(), pa.string_view()))
    DataType(string)
    """
    if isinstance(type_, pa.BaseExtensionType):
        return stored_type(type_.storage_type)
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return stored_type(type_.value_type)
    if type_ == pa.string_view():
        return pa.string()
    if type_ == pa.binary_view():
        return pa.binary()
    return _nested(type_)


def _nested(type_: pa.DataType) -> pa.DataType:
    """A nested type whose values inside are plain; any other type as it is."""
    if pa.types.is_struct(type_):
        return pa.struct([_plain(type_.field(i)) for i in range(type_.num_fields)])
    if pa.types.is_union(type_):
        fields = [_plain(type_.field(i)) for i in range(type_.num_fields)]
        return pa.union(fields, type_.mode, type_.type_codes)
    if pa.types.is_map(type_):
        return pa.map_(_plain(type_.key_field), _plain(type_.item_field), type_.keys_sorted)
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_plain(type_.value_field), type_.list_size)
    for is_list, make in _LISTS:
        if is_list(type_):
            return make(_plain(type_.value_field))
    return type_


_LISTS = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_large_list, pa.large_list),
    (pa.types.is_list_view, pa.list_view),
    (pa.types.is_large_list_view, pa.large_list_view),
)


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(stored_type(field.type))


def to_stored(array: pa.Array) -> pa.Array:
    """The same values in the plain form."""
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return to_stored(array.storage)
    if pa.types.is_dictionary(type_):
        return _picked(to_stored(array.dictionary), array.indices)
    if pa.types.is_run_end_encoded(type_):
        rows = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), rows, side="right")
        return _picked(to_stored(array.values), pa.array(runs))
    if type_ == pa.string_view():
        return array.cast(pa.string())
    if type_ == pa.binary_view():
        return array.cast(pa.binary())
    plain = _nested(type_)
    return array if plain == type_ else _with_children(array, plain, lambda child, _: to_stored(child))


def _picked(values: pa.Array, places: pa.Array) -> pa.Array:
    # Where nothing is valid there need not be any values, though the places under nulls may say so.
    return values.take(places) if len(values) else pa.nulls(len(places), values.type)


def taken(array: pa.Array, places: pa.Array) -> pa.Array:
    """The values at some places, in the array's own type, whatever that is."""
    try:
        return array.take(places)
    except pa.ArrowNotImplementedError:  # of views and runs, and of what has them inside
        return from_stored(to_stored(array).take(places), array.type)


def from_stored(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """The same values in the form of `type_`; OverflowError if a dictionary's index type cannot number them."""
    if array.type == type_:
        return array
    if isinstance(type_, pa.BaseExtensionType):
        return type_.wrap_array(from_stored(array, type_.storage_type))
    if pa.types.is_dictionary(type_):
        return _encode(array, type_)
    if pa.types.is_run_end_encoded(type_):
        return _run_ends(array, type_)
    if pa.types.is_nested(type_):
        return _with_children(array, type_, from_stored)
    return array.cast(type_)


def widened(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """The same values in a type that was chosen to hold them; pa.ArrowInvalid if one does not fit nevertheless.

    Nothing but the last digits of doubles may go. A finer unit of time does not reach as far as a coarser one, and
    Arrow would wrap around: in nanoseconds, the end of 9999 is a day of 1816.
    """
    options = pc.CastOptions(stored_type(type_), allow_float_truncate=True)
    return from_stored(to_stored(array).cast(options=options), type_)


def _with_children(
    array: pa.Array, type_: pa.DataType, change: Callable[[pa.Array, pa.DataType], pa.Array]
) -> pa.Array:
    """A nested array as the nested type `type_`, which differs in the types inside only; Arrow's cast knows few of
    them.
    """
    if pa.types.is_struct(type_):
        children = [change(array.field(i), type_.field(i).type) for i in range(type_.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=array.is_null())
    offset, buffers = array.offset, array.buffers()
    if pa.types.is_union(type_):
        children = [change(array.field(i), type_.field(i).type) for i in range(type_.num_fields)]
        own = [None, buffers[1].slice(offset)]
        if type_.mode == "dense":
            own.append(buffers[2].slice(4 * offset))
        return pa.Array.from_buffers(type_, len(array), own, children=children)
    if pa.types.is_map(type_):
        fields = [type_.key_field, type_.item_field]
        pair = [change(array.keys, type_.key_type), change(array.items, type_.item_type)]
        children = [pa.StructArray.from_arrays(pair, fields=fields)]
    else:
        children = [change(array.values, type_.value_type)]
    views = pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_)
    count = 1 if pa.types.is_fixed_size_list(type_) else 3 if views else 2
    return pa.Array.from_buffers(type_, len(array), buffers[:count], offset=offset, children=children)


def put_together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Batches of one schema as one; None if that cannot be: their dictionaries together outgrow the index type."""
    if len(batches) == 1:
        return batches[0]
    schema = batches[0].schema
    try:
        if not any(_has_half_dictionary(type_) for type_ in schema.types):
            return pa.concat_batches(batches)
        columns = [_concat([batch.column(i) for batch in batches], field.type) for i, field in enumerate(schema)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError):
        return None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _concat(arrays: list[pa.Array], type_: pa.DataType) -> pa.Array:
    if not _has_half_dictionary(type_):
        return pa.concat_arrays(arrays)
    return from_stored(pa.concat_arrays([to_stored(array) for array in arrays]), type_)


def _has_half_dictionary(type_: pa.DataType) -> bool:
    """PyArrow (26, for one) garbles dictionaries of half floats when it joins arrays that have different ones."""
    if pa.types.is_dictionary(type_):
        return bool(pa.types.is_float16(type_.value_type))
    return any(_has_half_dictionary(type_.field(i).type) for i in range(type_.num_fields))


def _encode(array: pa.Array, type_: pa.DictionaryType) -> pa.Array:
    try:
        encoded = array.dictionary_encode()
        indices, values = encoded.indices, encoded.dictionary
    except pa.ArrowNotImplementedError:  # nested values cannot be told apart: each is an entry of its own
        indices, values = pa.array(np.arange(len(array))), array
    try:
        indices = indices.cast(type_.index_type)
    except pa.ArrowInvalid:
        raise OverflowError(f"{len(values)} values cannot be numbered by {type_.index_type}") from None
    return pa.DictionaryArray.from_arrays(indices, from_stored(values, type_.value_type), ordered=type_.ordered)


def _run_ends(array: pa.Array, type_: pa.RunEndEncodedType) -> pa.Array:
    try:
        if array.type == type_.value_type:
            return pc.run_end_encode(array, run_end_type=type_.run_end_type)
    except pa.ArrowNotImplementedError:
        pass
    # Values that Arrow cannot compare are runs of one.
    ends = pa.array(np.arange(1, len(array) + 1)).cast(type_.run_end_type)
    return pa.RunEndEncodedArray.from_arrays(ends, from_stored(array, type_.value_type))
