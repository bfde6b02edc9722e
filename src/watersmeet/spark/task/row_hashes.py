"""A hash of each whole row, so that rows can be put into an order, and summed up, however they came.

Values that Arrow does not lay out flat count by their number only: rows that differ only inside lists or maps share a
hash. Nothing but an order depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Uint64
from watersmeet.kernels import hashing
from watersmeet.records.types import stored_type, to_stored

_BY_WIDTH = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def row_hashes(batch: pa.RecordBatch) -> Uint64:
    """The hash of each row over all its columns.

    >>> one = row_hashes(pa.record_batch({"id": [1, 2, None], "name": ["a", None, "a"]}))
    >>> other = row_hashes(pa.record_batch({"id": [None, 2, 1], "name": ["a", None, "a"]}))
    >>> (one == other[::-1]).all(), len(set(one.tolist()))
    (np.True_, 3)
    >>> row_hashes(pa.record_batch({"id": [2], "name": pa.array([None], pa.string())}))[0] == one[1]
    np.True_
    """
    hashes = np.zeros(batch.num_rows, np.uint64)
    for column in batch.columns:
        for words in _words(column):
            hashing.combine(hashes, words)
    return hashes


def _words(array: pa.Array) -> Iterator[Uint64]:
    """Uint64 that say what the values are, and which are NULL."""
    plain = stored_type(array.type)
    if plain != array.type:
        array = to_stored(array)
    # Where no value is NULL that counts, too: a row's hash must not depend on the others that it came with.
    nulls = np.asarray(array.is_null().cast(pa.int8())) if array.null_count else np.zeros(len(array), np.int8)
    yield _hashed(nulls)
    type_ = array.type
    if pa.types.is_struct(type_):
        for child in array.flatten():
            yield from _words(child)
    elif pa.types.is_boolean(type_):
        yield _hashed(np.asarray(_without_nulls(array.cast(pa.int8()))))
    elif pa.types.is_string(type_) or pa.types.is_binary(type_):
        yield _bytes(array, np.int32)
    elif pa.types.is_large_string(type_) or pa.types.is_large_binary(type_):
        yield _bytes(array, np.int64)
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_map(type_):
        lengths = np.diff(np.asarray(array.offsets))
        yield _hashed(np.where(np.asarray(array.is_valid()), lengths, 0))
    else:
        yield from _fixed(array)


def _fixed(array: pa.Array) -> Iterator[Uint64]:
    try:
        width = array.type.bit_width
    except ValueError:
        return
    if width in _BY_WIDTH and not pa.types.is_nested(array.type):
        yield _hashed(np.asarray(_without_nulls(array.view(_BY_WIDTH[width]))))
    elif width % 64 == 0 and width and not pa.types.is_nested(array.type):
        # The bytes of a NULL are anything; zeros stand for them.
        words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, width // 64)
        words = words[array.offset : array.offset + len(array)]
        known = np.asarray(array.is_valid()) if array.null_count else True
        for i in range(words.shape[1]):
            yield _hashed(np.where(known, words[:, i], 0))


def _bytes(array: pa.Array, offset_type: type[np.signedinteger]) -> Uint64:
    array = _without_nulls(array)
    hashes = np.empty(len(array), np.uint64)
    _, offsets, data = array.buffers()
    if len(array):
        all_offsets = np.frombuffer(offsets, offset_type)[array.offset : array.offset + len(array) + 1]
        content = np.frombuffer(data, np.uint8) if data is not None else np.frombuffer(b"", np.uint8)
        hashing.hash_bytes(all_offsets, content, hashes)
    return hashes


def _without_nulls(array: pa.Array) -> pa.Array:
    if not array.null_count:
        return array
    of_bytes = pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)
    of_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    return array.fill_null(b"" if of_bytes else "" if of_text else 0)


def _hashed(values: NDArray[np.signedinteger]) -> Uint64:
    words = np.ascontiguousarray(values, dtype=np.int64).view()
    words.flags.writeable = False  # one compiled kernel for all
    hashes = np.empty(len(words), np.uint64)
    hashing.hash_words(words, hashes)
    return hashes
