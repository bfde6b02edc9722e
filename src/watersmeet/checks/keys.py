"""Random key columns: for every pair of comparable types, a domain of values that both sides draw from.

A domain is two arrays of equal length, one for each side, whose i-th values are usually equal under the join (and now
and then just miss). Drawing row keys from positions of the domain sets how often keys repeat and meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Rng: TypeAlias = np.random.Generator
Domain: TypeAlias = "tuple[pa.Array, pa.Array]"

_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_FLOATS = [pa.float16(), pa.float32(), pa.float64(), pa.float64()]
_DECIMALS = [
    pa.decimal128(9, 2),
    pa.decimal128(20, 5),
    pa.decimal128(38, 10),
    pa.decimal256(50, 3),
    pa.decimal128(12, 0),
    pa.decimal32(7, 2),
    pa.decimal64(16, 4),
]
_STRINGS = [pa.string(), pa.large_string(), pa.string_view()]
_BINARIES = [pa.binary(), pa.large_binary(), pa.binary_view()]
_UNITS = ["s", "ms", "us", "ns"]
_ZONES = ["UTC", "Europe/Athens", "America/New_York"]
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400


@dataclass(frozen=True)
class KeyColumns:
    """One key of the join: what each side's column is made from, and the Arrow type it finally has."""

    kind: str
    values: Domain
    types: tuple[pa.DataType, pa.DataType]

    def column(self, side: int, positions: np.ndarray, null: np.ndarray) -> pa.Array:
        """A column of one side, given each row's position in the domain and whether it is NULL."""
        taken = self.values[side].take(pa.array(positions, pa.int64(), mask=null))
        return encoded(taken, self.types[side])


def encoded(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values as another Arrow type that can hold them: a view, a dictionary, or run-end encoded."""
    if values.type == kind:
        return values
    if pa.types.is_dictionary(kind):
        plain = values.dictionary_encode()
        return pa.DictionaryArray.from_arrays(plain.indices.cast(kind.index_type), plain.dictionary)
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_encode(values, run_end_type=kind.run_end_type)
    return values.cast(kind)


def random_key(rng: Rng, size: int) -> KeyColumns:
    """A key of a random kind with up to `size` values."""
    return key_of_kind(_KIND_NAMES[rng.choice(len(_KIND_NAMES), p=_KIND_WEIGHTS)], rng, size)


def key_of_kind(kind: str, rng: Rng, size: int) -> KeyColumns:
    """A key of this kind with up to `size` values."""
    values, types = _KINDS[kind][1](rng, size)
    left, right = (perhaps_wrapped(rng, array, type_) for array, type_ in zip(values, types, strict=True))
    return KeyColumns(kind, values, (left, right))


def perhaps_wrapped(rng: Rng, values: pa.Array, kind: pa.DataType) -> pa.DataType:
    """The type itself, or now and then a dictionary or runs of it."""
    if values.type != kind or rng.random() > 0.12:
        return kind
    index = pa.int16() if rng.random() < 0.5 else pa.int32()
    wrapped = pa.run_end_encoded(index, kind) if rng.random() < 0.3 else pa.dictionary(index, kind)
    try:
        return encoded(values.slice(0, 1), wrapped).type
    except pa.ArrowNotImplementedError:  # Arrow does not encode the smaller decimals
        return kind


Made: TypeAlias = "tuple[Domain, tuple[pa.DataType, pa.DataType]]"


def _pick(rng: Rng, items: Sequence[Any]) -> Any:
    return items[int(rng.integers(len(items)))]


def _made(left: Sequence[Any], right: Sequence[Any], types: tuple[pa.DataType, pa.DataType]) -> Made:
    return (_array(left, types[0]), _array(right, types[1])), types


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(np.array(values, np.float16)) if kind == pa.float16() else pa.array(values, kind)


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    info = np.iinfo(kind.to_pandas_dtype())
    return int(info.min), int(info.max)


def _integers(rng: Rng, size: int) -> Made:
    types = (_pick(rng, _INTEGERS), _pick(rng, _INTEGERS))
    (low, high), (low2, high2) = _bounds(types[0]), _bounds(types[1])
    low, high = max(low, low2), min(high, high2)
    size = min(size, high - low + 1)
    # Next to the ends of the common range, around zero, or spread evenly: each has its own ways to go wrong.
    start = _pick(rng, [low, high - size + 1, max(low, min(-size // 2, high - size + 1))])
    stride = max(1, (high - start) // size) if rng.random() < 0.3 else 1
    values = [start + i * stride for i in range(size)]
    return _made(values, values, types)


def _floating(rng: Rng, size: int) -> Made:
    types = (_pick(rng, _FLOATS), _pick(rng, _FLOATS))
    odd = [float("nan"), 0.0, float("inf"), -float("inf"), 0.1, 6e-8, 1e4]
    values = [*odd[: size // 2], *(i * 0.5 - 7.25 for i in range(size))][: max(size, 1)]
    return _made([-v if v == 0 else v for v in values], values, types)


def _integer_and_float(rng: Rng, size: int) -> Made:
    types = (_pick(rng, [pa.int16(), pa.int32(), pa.int64(), pa.uint64()]), _pick(rng, _FLOATS))
    wide = types[0].bit_width == 64 and types[1] == pa.float64()
    big = [2**53, 2**53 + 1, 2**53 + 2, 2**62 + 1][: size // 2] if wide else []
    small = list(range(size - len(big)))
    return _either_way(rng, [*big, *small], [*map(float, big), *(v + 0.5 * (v % 7 == 6) for v in small)], types)


def _decimals(rng: Rng, size: int) -> Made:
    types = (_pick(rng, _DECIMALS), _pick(rng, _DECIMALS))
    step = Decimal(1).scaleb(-min(types[0].scale, types[1].scale))
    values = [step * (i - size // 2) for i in range(size)]
    return _made(values, values, types)


def _decimal_and_integer(rng: Rng, size: int) -> Made:
    types = (_pick(rng, _DECIMALS), _pick(rng, [pa.int16(), pa.int32(), pa.int64(), pa.uint32()]))
    whole = [Decimal(i) for i in range(size)]
    just_off = Decimal(1).scaleb(-types[0].scale) if types[0].scale else Decimal(0)
    return _either_way(rng, [v + just_off * (v % 5 == 4) for v in whole], list(range(size)), types)


def _decimal_and_float(rng: Rng, size: int) -> Made:
    types = (_pick(rng, [kind for kind in _DECIMALS if kind.scale]), _pick(rng, _FLOATS))
    hundredths = [Decimal(i * 5).scaleb(-2) for i in range(size)]
    return _either_way(rng, hundredths, [float(v) for v in hundredths], types)


def _texts(rng: Rng, size: int) -> list[str]:
    odd = ["", "a", "a\x00", "é", "日本語", "🜄" * 3, "twelve bytes", "thirteen bytes", " a", "A"]
    stem = _pick(rng, ["k", "ключ-", "a rather long key that no view can hold inline ", "x" * 300])
    return [*odd[: size // 2], *(f"{stem}{i}" for i in range(size))][:size]


def _strings(rng: Rng, size: int) -> Made:
    texts = _texts(rng, size)
    types = (_pick(rng, _STRINGS), _pick(rng, _STRINGS))
    return (pa.array(texts, _stored(types[0])), pa.array(texts, _stored(types[1]))), types


def _binaries(rng: Rng, size: int) -> Made:
    values = [text.encode() + b"\xff" for text in _texts(rng, size)]
    types = (_pick(rng, _BINARIES), _pick(rng, _BINARIES))
    return (pa.array(values, _stored(types[0])), pa.array(values, _stored(types[1]))), types


def _fixed_binaries(rng: Rng, size: int) -> Made:
    width = int(rng.integers(1, 20))
    values = [i.to_bytes(2, "big")[-width:].ljust(width, b"\x00") for i in range(min(size, 256))]
    return _made(values, values, (pa.binary(width), _pick(rng, [pa.binary(width), pa.binary()])))


def _nothing(rng: Rng, size: int) -> Made:
    return _either_way(rng, [None], [1], (pa.null(), pa.int32()))


def _times(rng: Rng, size: int) -> Made:
    types = tuple(pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit) for unit in rng.choice(_UNITS, 2))
    return _ticking(rng, np.arange(size, dtype=np.int64) * 61, (types[0], types[1]))


def _durations(rng: Rng, size: int) -> Made:
    types = tuple(pa.duration(unit) for unit in rng.choice(_UNITS, 2))
    return _ticking(rng, np.arange(size, dtype=np.int64) - size // 2, (types[0], types[1]))


def _ticking(rng: Rng, seconds: np.ndarray, types: tuple[pa.DataType, pa.DataType]) -> Made:
    left, right = (_temporal(seconds * _PER_SECOND[t.unit] + _missed(rng, len(seconds), t), t) for t in types)
    return (left, right), types


def _stored(kind: pa.DataType) -> pa.DataType:
    # Arrow cannot take from views, so columns are drawn as their plain counterpart and turned into views at the end.
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def _booleans(rng: Rng, size: int) -> Made:
    return _made([True, False], [True, False], (pa.bool_(), pa.bool_()))


def _dates(rng: Rng, size: int) -> Made:
    types = (_pick(rng, [pa.date32(), pa.date64()]), _pick(rng, [pa.date32(), pa.date64()]))
    days = np.arange(size) - size // 2
    left, right = (_temporal(days * (86_400_000 if t == pa.date64() else 1), t) for t in types)
    return (left, right), types


def _temporal(ticks: np.ndarray, kind: pa.DataType) -> pa.Array:
    return pa.array(ticks.astype(np.int32 if kind.bit_width == 32 else np.int64)).cast(kind)


def _timestamps(rng: Rng, size: int) -> Made:
    zoned = rng.random() < 0.5
    types = tuple(pa.timestamp(_pick(rng, _UNITS), _pick(rng, _ZONES) if zoned else None) for _ in range(2))
    seconds = np.arange(size, dtype=np.int64) * int(_pick(rng, [1, 3600, _DAY])) - 1_000
    return _ticking(rng, seconds, (types[0], types[1]))


def _missed(rng: Rng, size: int, kind: pa.DataType) -> np.ndarray:
    """One tick off, now and then: equal only to a column of the same unit."""
    if kind.unit == "s":
        return np.zeros(size, np.int64)
    return (rng.random(size) < 0.1).astype(np.int64)


def _date_and_timestamp(rng: Rng, size: int) -> Made:
    types = (_pick(rng, [pa.date32(), pa.date64()]), pa.timestamp(_pick(rng, _UNITS)))
    days = np.arange(size, dtype=np.int64) - size // 2
    dates = _temporal(days * (86_400_000 if types[0] == pa.date64() else 1), types[0])
    stamps = _temporal(days * _DAY * _PER_SECOND[types[1].unit] + _missed(rng, size, types[1]), types[1])
    return ((dates, stamps), types) if rng.random() < 0.5 else ((stamps, dates), (types[1], types[0]))


def _either_way(rng: Rng, left: Sequence[Any], right: Sequence[Any], types: tuple[pa.DataType, pa.DataType]) -> Made:
    if rng.random() < 0.5:
        return _made(left, right, types)
    return _made(right, left, (types[1], types[0]))


_KINDS: dict[str, tuple[float, Callable[[Rng, int], Made]]] = {
    "integers": (5, _integers),
    "floats": (2, _floating),
    "integer and float": (2, _integer_and_float),
    "decimals": (2, _decimals),
    "decimal and integer": (1, _decimal_and_integer),
    "decimal and float": (1, _decimal_and_float),
    "strings": (4, _strings),
    "binaries": (2, _binaries),
    "fixed binaries": (1, _fixed_binaries),
    "booleans": (1, _booleans),
    "dates": (1, _dates),
    "timestamps": (2, _timestamps),
    "date and timestamp": (1, _date_and_timestamp),
    "times": (1, _times),
    "durations": (1, _durations),
    "nothing": (0.2, _nothing),
}
KEY_KINDS = tuple(_KINDS)
"""The names of all kinds of keys that cases are made of."""
_KIND_NAMES = list(_KINDS)
_KIND_WEIGHTS = np.array([weight for weight, _ in _KINDS.values()], dtype=float)
_KIND_WEIGHTS /= _KIND_WEIGHTS.sum()
