"""To which group Spark sends a row: the same arithmetic as in `plan.grouping`, without Spark.

Keys are brought to one type per condition, as there, and hashed as Spark hashes them (`kernels.hashing`). A join keeps
no key whose value its hash tells; such keys are told back from the hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.keys import KeyKind, KeyType, common_key_type
from watersmeet.core.spec import JoinSpec
from watersmeet.kernels import hashing

_CANONICAL_NAN = float("nan")
_MOST_COMPACT = 18
"""Digits of decimals that Spark hashes as 64-bit integers."""


class Placement:
    """Which group of so many the rows of a join belong to.

    :param by_id: whether Spark was given the number of the group; else it hashed the key's hash once more.

    >>> from watersmeet.core.spec import parse_on
    >>> schema = pa.schema({"id": pa.int64()})
    >>> placement = Placement(JoinSpec(schema, schema, parse_on("id")), by_id=True)
    >>> placement.groups([pa.array([0, 1, 2, 3])], 0, 4)
    array([1, 1, 0, 3], dtype=int32)
    """

    def __init__(self, spec: JoinSpec, by_id: bool) -> None:
        self._types: list[tuple[pa.DataType, ...]] = [
            tuple(spec.input(side).field(names[side]).type for side in (0, 1))
            for names in zip(spec.keys(0), spec.keys(1), strict=True)
        ]
        self._by_id = by_id

    @classmethod
    def of_types(cls, types: Sequence[pa.DataType], by_id: bool) -> Placement:
        """The same for one value that inputs have in columns of these types."""
        found = cls.__new__(cls)
        found._types, found._by_id = [tuple(types)], by_id
        return found

    def hashes(self, keys: Sequence[pa.Array]) -> Int32:
        """Spark's hash of each row's key."""
        states = np.full(len(keys[0]), hashing.SPARK_SEED, np.uint32)
        for key, types in zip(keys, self._types, strict=True):
            _take_in(key, types, states)
        return states.view(np.int32)

    def groups(self, keys: Sequence[pa.Array], side: int, groups: int) -> Int32:
        """The group of each row, by its key columns in the types of its input."""
        hashes = self.hashes(keys)
        states = hashes.view(np.uint32)
        if not self._by_id:
            states = np.full(len(states), hashing.SPARK_SEED, np.uint32)
            hashing.spark_hash_ints(hashes, np.ones(len(states), np.bool_), states)
        found = np.empty(len(states), np.int32)
        hashing.spark_groups_of(states, groups, found)
        return found


def _take_in(key: pa.Array, types: Sequence[pa.DataType], states: NDArray[Any]) -> None:
    """Let a key column count for the hashes of rows."""
    if any(pa.types.is_null(type_) for type_ in types):
        hashing.spark_hash_ints(np.zeros(len(key), np.int32), np.ones(len(key), np.bool_), states)
        return
    key = _in_common_type(key, types)
    known, type_ = _known(key), key.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        offsets, data = _bytes_of(key)
        hashing.spark_hash_strings(offsets, data, known, states)
    elif pa.types.is_decimal(type_) and type_.precision > _MOST_COMPACT:
        offsets, data = _big_endian(key)
        hashing.spark_hash_strings(offsets, data, known, states)
    elif pa.types.is_boolean(type_) or pa.types.is_date32(type_):
        hashing.spark_hash_ints(_values(key.cast(pa.int32())).astype(np.int32), known, states)
    elif pa.types.is_decimal(type_):
        hashing.spark_hash_longs(_words_of(key)[:, 0].copy(), known, states)
    elif pa.types.is_floating(type_):
        values = _values(key)
        values[values == 0.0] = 0.0
        values[np.isnan(values)] = _CANONICAL_NAN
        hashing.spark_hash_longs(values.view(np.int64), known, states)
    else:
        hashing.spark_hash_longs(_values(key.cast(pa.int64())), known, states)


def _in_common_type(key: pa.Array, types: Sequence[pa.DataType]) -> pa.Array:
    alike = all(type_ == types[0] for type_ in types)
    if all(map(_is_number, types)):
        if all(map(pa.types.is_integer, types)):
            return key.cast(pa.int64())
        if alike and pa.types.is_decimal(types[0]):
            return key
        # By way of digits, which are rounded to the nearest double, as Spark rounds them.
        return (key.cast(pa.string()) if pa.types.is_decimal(key.type) else key).cast(pa.float64(), safe=False)
    if any(map(pa.types.is_date, types)) and any(map(pa.types.is_timestamp, types)):
        return key.cast(pa.timestamp("us"))
    return key


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _known(array: pa.Array) -> Bool:
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    return np.asarray(array.is_valid())


def _values(array: pa.Array) -> NDArray[Any]:
    """Values of their own, zeros for NULLs."""
    return np.array(array.fill_null(0) if array.null_count else array)


def _bytes_of(array: pa.Array) -> tuple[NDArray[Any], NDArray[Any]]:
    _, offsets, data = array.buffers()
    if not len(array):
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    places = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
    return places, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)


def _words_of(array: pa.Array) -> Int64:
    """The two words of each decimal, the lower one first."""
    return np.frombuffer(array.buffers()[1], np.int64, 2 * len(array), array.offset * 16).reshape(-1, 2)


def _big_endian(array: pa.Array) -> tuple[NDArray[Any], NDArray[Any]]:
    """Decimals as Java writes large integers: as few bytes as tell the value with its sign, the highest first."""
    content = np.frombuffer(_words_of(array).tobytes(), np.uint8).reshape(-1, 16)[:, ::-1]
    sign = np.where(content[:, 0] >= 128, 255, 0).astype(np.uint8)
    needed = np.ones(len(content), np.int64)
    for place in range(15):  # the highest byte that is not the sign's, or whose neighbour would pass for another sign
        tells = (content[:, place] != sign) | ((content[:, place + 1] >= 128) != (sign == 255))
        needed = np.where((needed == 1) & tells, 16 - place, needed)
    offsets = np.concatenate([[0], np.cumsum(needed)])
    rows = np.repeat(np.arange(len(content)), needed)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], needed)
    return offsets, np.ascontiguousarray(content[rows, (16 - np.repeat(needed, needed)) + within])


def keys_of_hashes(spec: JoinSpec, side: int, hashes: Int64) -> pa.Array:
    """The keys of rows of a join with one key, in the type of their input, where a hash tells its key.

    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.records.keys import KeyCodec
    >>> spec = JoinSpec(pa.schema({"id": pa.decimal128(9, 2)}), pa.schema({"id": pa.int16()}), parse_on("id"))
    >>> hashes, _ = KeyCodec(spec).hash(1, [pa.array([7, -1], pa.int16())])
    >>> [str(each) for each in keys_of_hashes(spec, 0, hashes)], keys_of_hashes(spec, 1, hashes).to_pylist()
    (['7.00', '-1.00'], [7, -1])
    """
    (equal,) = spec.equalities
    types = [spec.input(each).field(equal.column(each)).type for each in (0, 1)]
    form = common_key_type(*types)
    assert form is not None
    return values_of_hashes(form, types[side], hashes)


def values_of_hashes(form: KeyType, type_: pa.DataType, hashes: Int64) -> pa.Array:
    """The values that hashes were made of, which were compared in this form."""
    assert form.fits_word, "a hash tells its key only where that is a word"
    words = hashing.unmixed(hashes.view(np.uint64)).view(np.int64)
    if form.kind is KeyKind.BOOL:
        return pa.array(words.astype(np.bool_))
    if form.kind is KeyKind.FLOAT:
        return pc.cast(pa.array(words.view(np.float64)), type_, safe=False)
    if form.kind is KeyKind.NUMBER:
        if pa.types.is_integer(type_) and form.scale == 0:
            return pa.array(words).cast(type_)
        wide = np.stack([words, words >> 63], axis=1)
        return _decimals(wide, form.scale).cast(type_)
    if form.kind is KeyKind.DAY:
        return pa.array(words.astype(np.int32)).cast(pa.date32()).cast(type_)
    if form.kind is KeyKind.TIME:
        return pa.array(words).cast(pa.time64(form.unit)).cast(type_)
    if form.kind is KeyKind.DURATION:
        return pa.array(words).cast(pa.duration(form.unit)).cast(type_)
    zone = type_.tz if form.kind is KeyKind.INSTANT else None
    return pa.array(words).cast(pa.timestamp(form.unit, zone)).cast(type_)


def _decimals(words: Int64, scale: int) -> pa.Array:
    return pa.Array.from_buffers(pa.decimal128(38, scale), len(words), [None, pa.py_buffer(words.tobytes())])
