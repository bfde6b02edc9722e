"""Places: keys as points on a line, equal for keys that any join could call equal.

A relation is laid out once, and later joined with streams whose keys may have other types: integers with floats or
decimals, dates with timestamps, seconds with nanoseconds. Two values that are equal in *some* common form must lie in
the same partition and have the same hash. So a place is made from a form that is coarser than all of them:

==============================  =====================================================================================
keys                            form
==============================  =====================================================================================
any number                      the nearest double; every NaN is one value, and so are both zeros
dates, timestamps               microseconds, rounded down, within the range of a word; so are times and durations
strings, binaries               their bytes
booleans                        0 or 1
==============================  =====================================================================================

A place is a word and a hash. The word keeps the order of the first key column (of strings: the eight bytes after a
prefix that all share), the hash is of all columns and tells apart what the word cannot. Different keys may share a
place; whoever finds a row by its place compares the real values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.keys import KeyKind, common_key_type, plain_type
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.kernels import hashing, places
from watersmeet.records.keys import KeyCodec
from watersmeet.records.types import stored_type, to_stored

_MICROSECONDS = {"s": 10**6, "ms": 10**3, "us": 1}
_DAY = 86_400 * 10**6
_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Places:
    """A place for each row, and which rows have one: NULL is nowhere (None: all have)."""

    words: Int64
    hashes: Int64
    known: Bool | None

    def __len__(self) -> int:
        return len(self.words)

    def take(self, rows: Any) -> Places:
        """Some of the places."""
        return Places(self.words[rows], self.hashes[rows], None if self.known is None else self.known[rows])

    def order(self) -> NDArray[np.intp]:
        """The rows in the order of their places; rows of one place stay as they are."""
        return np.lexsort((self.hashes, self.words))


class PlaceCodec:
    """Turns key columns into places.

    >>> integers, floats = PlaceCodec([pa.int64()]), PlaceCodec([pa.float32()])
    >>> one, other = integers.places([pa.array([-1, 2])]), floats.places([pa.array([-1.0, 2.0], pa.float32())])
    >>> (one.words == other.words).all() and (one.hashes == other.hashes).all(), bool(one.words[0] < one.words[1])
    (np.True_, True)
    """

    def __init__(self, types: Sequence[pa.DataType], *, hashed: bool = False, prefix: bytes = b"") -> None:
        self.prefix = prefix
        self._hashed = hashed
        self._columns = [_column(stored_type(type_)) for type_ in types]

    def places(self, columns: Sequence[pa.Array]) -> Places:
        """The places of rows with these keys."""
        known: Bool | None = None
        words: Int64 | None = None
        hashes: Int64 | None = None
        for number, (column, array) in enumerate(zip(self._columns, columns, strict=True)):
            plain = to_stored(array)
            prefix = self.prefix if number == 0 and not self._hashed else None
            found = column(plain, prefix)
            known = _both(known, found.known)
            if words is None or hashes is None:
                words, hashes = found.words, found.hashes
            else:
                hashing.combine(hashes.view(np.uint64), found.hashes.view(np.uint64))
        assert words is not None and hashes is not None, "a relation has at least one key"
        return Places(hashes if self._hashed else words, hashes, known)

    def common_prefix(self, columns: Sequence[pa.Array]) -> bytes:
        """What all strings of the first column begin with; nothing for other types."""
        plain = to_stored(columns[0])
        if plain_kind(plain.type) not in (KeyKind.STRING, KeyKind.BINARY) or plain.null_count == len(plain):
            return b""
        texts = plain.drop_null().cast(pa.large_binary())
        first: bytes = texts[0].as_py()
        offsets, data = _strings(texts)
        return first[: _shared(offsets, data, np.frombuffer(first, np.uint8))]


def plain_kind(type_: pa.DataType) -> KeyKind | None:
    """What kind of key a type is compared as; None if it cannot be a key."""
    found = common_key_type(type_, type_)
    return None if found is None else found.kind


_Column: TypeAlias = "Callable[[pa.Array, bytes | None], Places]"
"""From a stored array to places; the words of strings only with a prefix."""


def _column(type_: pa.DataType) -> _Column:
    kind = plain_kind(type_)
    if kind in (KeyKind.NUMBER, KeyKind.FLOAT):
        return _Numbers(type_)
    if kind in (KeyKind.STRING, KeyKind.BINARY):
        return _Texts(type_)
    if kind is KeyKind.BOOL:
        return lambda array, _: _of_words(array.cast(pa.uint8()).fill_null(0).to_numpy().astype(np.int64), array)
    if kind is KeyKind.NOTHING:
        return lambda array, _: _of_words(np.zeros(len(array), np.int64), array)
    assert kind is not None, "the relation has checked its key types"
    return lambda array, _: _of_words(_microseconds(array), array)


class _Numbers:
    def __init__(self, type_: pa.DataType) -> None:
        number, double = pa.schema({"k": type_}), pa.schema({"k": pa.float64()})
        self._codec = KeyCodec(JoinSpec(number, double, parse_on("k")))

    def __call__(self, array: pa.Array, prefix: bytes | None) -> Places:
        hashes, known = self._codec.hash(0, [array])
        words = self._codec.words(0, [array])[0] if prefix is not None else hashes
        return Places(words, hashes, known)


class _Texts:
    def __init__(self, type_: pa.DataType) -> None:
        text = pa.schema({"k": type_})
        self._codec = KeyCodec(JoinSpec(text, text, parse_on("k")))

    def __call__(self, array: pa.Array, prefix: bytes | None) -> Places:
        hashes, known = self._codec.hash(0, [array])
        words = hashes
        if prefix is not None:
            words = np.empty(len(array), np.int64)
            offsets, data = _strings(array)
            places.prefix_words(offsets, data, _frozen(np.frombuffer(prefix, np.uint8)), words)
        return Places(words, hashes, known)


def _of_words(words: Int64, array: pa.Array) -> Places:
    hashes = np.empty(len(words), np.int64)
    hashing.hash_words(_frozen(words), hashes.view(np.uint64))
    return Places(words, hashes, _known(array))


def _microseconds(array: pa.Array) -> Int64:
    """Microseconds since the epoch, midnight or nothing; what is out of range is as far as the range goes."""
    type_ = plain_type(array.type)[0]
    narrow = type_.bit_width == 32
    ticks: Int64 = array.view(pa.int32() if narrow else pa.int64()).fill_null(0).to_numpy().astype(np.int64)
    if pa.types.is_date32(type_):
        factor = _DAY
    elif pa.types.is_date64(type_):
        ticks, factor = ticks // 86_400_000, _DAY
    elif type_.unit == "ns":
        return ticks // 1000
    else:
        factor = _MICROSECONDS[type_.unit]
    least, most = -(-_LEAST // factor), _MOST // factor
    words: Int64 = np.clip(ticks, least, most) * factor
    words[ticks < least] = _LEAST
    words[ticks > most] = _MOST
    return words


def _known(array: pa.Array) -> Bool | None:
    if not array.null_count:
        return None
    known: Bool = array.is_valid().to_numpy(zero_copy_only=False)
    return known


def _both(first: Bool | None, second: Bool | None) -> Bool | None:
    if first is None:
        return second
    return first if second is None else first & second


def _strings(array: pa.Array) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Offsets and bytes of a plain array of strings or binaries."""
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.large_binary())
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    if not len(array):
        return np.zeros(1, np.int64), _frozen(np.empty(0, np.uint8))
    _, offsets, data = array.buffers()
    found = np.frombuffer(offsets, np.int64 if large else np.int32)[array.offset : array.offset + len(array) + 1]
    data_bytes = np.empty(0, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
    return _frozen(found), _frozen(data_bytes)


def _shared(offsets: NDArray[Any], data: NDArray[np.uint8], first: NDArray[np.uint8]) -> int:
    """How many first bytes all strings share with one of them."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    shared = int(min(lengths.min(initial=len(first)), len(first), 255))
    low, high = 0, shared
    while low < high:  # the longest prefix that all have, by halves
        middle = (low + high + 1) // 2
        same = all((data[starts + j] == first[j]).all() for j in range(low, middle))
        low, high = (middle, high) if same else (low, middle - 1)
    return low


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array
