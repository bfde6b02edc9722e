"""In which form a column is kept, and how its own form is given back.

Encodings (dictionaries, runs, views, extension types) are undone on the way in and made again on the way out, so that
what is stored is one of few plain layouts, and rows of different batches, with different dictionaries, can stand
together.
"""

from __future__ import annotations

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
    return type_


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
    return array


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


def _encode(array: pa.Array, type_: pa.DictionaryType) -> pa.Array:
    plain = to_stored(array)
    encoded = plain.dictionary_encode()
    try:
        indices = encoded.indices.cast(type_.index_type)
    except pa.ArrowInvalid:
        raise OverflowError(f"{len(encoded.dictionary)} values cannot be numbered by {type_.index_type}") from None
    values = from_stored(encoded.dictionary, type_.value_type)
    return pa.DictionaryArray.from_arrays(indices, values, ordered=type_.ordered)
