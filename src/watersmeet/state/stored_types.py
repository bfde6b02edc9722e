"""In which form a column is kept, and how its own form is given back.

Encodings (dictionaries, runs, views, extension types) are undone on the way in and made again on the way out, so that
what is stored is one of few plain layouts, and rows of different batches, with different dictionaries, can stand
together.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    if pa.types.is_map(type_):
        return pa.map_(_plain(type_.key_field), _plain(type_.item_field), type_.keys_sorted)
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_plain(type_.value_field), type_.list_size)
    if pa.types.is_large_list(type_):
        return pa.large_list(_plain(type_.value_field))
    if pa.types.is_list(type_):
        return pa.list_(_plain(type_.value_field))
    return type_


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(stored_type(field.type))


def to_stored(array: pa.Array) -> pa.Array:
    """The same values in the plain form."""
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return to_stored(array.storage)
    if pa.types.is_dictionary(type_):
        return to_stored(array.dictionary_decode())
    if pa.types.is_run_end_encoded(type_):
        return to_stored(pc.run_end_decode(array))
    if type_ == pa.string_view():
        return array.cast(pa.string())
    if type_ == pa.binary_view():
        return array.cast(pa.binary())
    plain = _nested(type_)
    return array if plain == type_ else array.cast(plain)


def from_stored(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """The same values in the form of `type_`; OverflowError if a dictionary's index type cannot number them."""
    if array.type == type_:
        return array
    if isinstance(type_, pa.BaseExtensionType):
        return type_.wrap_array(from_stored(array, type_.storage_type))
    if pa.types.is_dictionary(type_):
        return _encode(from_stored(array, type_.value_type), type_)
    if pa.types.is_run_end_encoded(type_):
        return pc.run_end_encode(from_stored(array, type_.value_type), run_end_type=type_.run_end_type)
    return array.cast(type_)


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
    plain = to_stored(array)
    encoded = plain.dictionary_encode()
    try:
        indices = encoded.indices.cast(type_.index_type)
    except pa.ArrowInvalid:
        raise OverflowError(f"{len(encoded.dictionary)} values cannot be numbered by {type_.index_type}") from None
    values = from_stored(encoded.dictionary, type_.value_type)
    return pa.DictionaryArray.from_arrays(indices, values, ordered=type_.ordered)
