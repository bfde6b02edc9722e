"""Random bands: columns of comparable types whose values lie in steps, and a width of so many steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.checks.keys import Domain, KeyColumns, key_of_kind, perhaps_wrapped
from watersmeet.core.bands import Width

Rng: TypeAlias = np.random.Generator

_NUMBERS = ("integers", "floats", "integer and float", "decimals", "decimal and integer", "decimal and float")
_TIMES = ("dates", "timestamps", "date and timestamp", "times", "durations")
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_TIMES_IN_A_DAY = 1_400
_ODD = ("far apart", "unsigned", "nothing")
BAND_KINDS = (*_NUMBERS, *_TIMES, *_ODD)
"""The names of all kinds of columns that bands are made of."""


@dataclass(frozen=True)
class BandColumns:
    """The two columns of a band, its width, and how many steps of the values that is."""

    columns: KeyColumns
    width: Width
    steps: int


def random_band(rng: Rng, size: int) -> BandColumns:
    """A band of a random kind, over up to `size` values."""
    kind = BAND_KINDS[int(rng.choice(len(BAND_KINDS), p=_weights()))]
    steps = int(rng.choice([0, 1, 2, 3], p=[0.2, 0.4, 0.2, 0.2]))
    if kind in ("far apart", "unsigned"):
        values, types = _far_apart(rng, size) if kind == "far apart" else _unsigned(rng, size)
        columns = KeyColumns(
            kind, values, (perhaps_wrapped(rng, values[0], types[0]), perhaps_wrapped(rng, values[1], types[1]))
        )
    else:
        columns = key_of_kind(kind, rng, min(size, _TIMES_IN_A_DAY) if kind == "times" else size)
    return BandColumns(columns, _width(rng, kind, columns, steps), steps)


def _weights() -> np.ndarray:
    weights = np.array([0.3 if kind == "nothing" else 2.0 if kind == "floats" else 1.0 for kind in BAND_KINDS])
    shares: np.ndarray = weights / weights.sum()
    return shares


def _width(rng: Rng, kind: str, columns: KeyColumns, steps: int) -> Width:
    """So many steps, or a little more or less, as any of the types that say it."""
    if kind in _TIMES:
        nanoseconds = steps * _time_step(columns)
        return timedelta(microseconds=nanoseconds // 1000 + int(rng.integers(0, 3)))
    step = Fraction(1) if kind in _ODD else _number_step(columns)
    exact = steps * step + (step / 2 if rng.random() < 0.2 else 0)
    if kind in ("floats", "integer and float", "decimal and float"):
        return float(exact) if rng.random() < 0.8 else int(exact)
    if exact.denominator == 1 and rng.random() < 0.5:
        return int(exact)
    if rng.random() < 0.3 and exact < 10**6:
        return float(exact)
    return Decimal(exact.numerator) / Decimal(exact.denominator)


def _number_step(columns: KeyColumns) -> Fraction:
    found = [value for value in columns.values[1].to_pylist()[-2:] if value is not None]
    if len(found) < 2 or not all(-1e300 < value < 1e300 for value in found):
        return Fraction(1)
    return abs(Fraction(found[1]) - Fraction(found[0]))


def _time_step(columns: KeyColumns) -> int:
    values, kind = columns.values[0], columns.values[0].type
    ticks = values.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    if len(ticks) < 2:
        return 10**9
    unit = 86_400 * 10**9 if pa.types.is_date32(kind) else _NANOSECONDS["ms" if pa.types.is_date64(kind) else kind.unit]
    return int(abs(ticks[-1] - ticks[-2]) * unit)


Made: TypeAlias = "tuple[Domain, tuple[pa.DataType, pa.DataType]]"


def _far_apart(rng: Rng, size: int) -> Made:
    """Values beyond 64 bits in common units, in clusters so that some are close all the same."""
    choices: list[tuple[pa.DataType, pa.DataType]] = [
        (pa.decimal128(38, 10), pa.decimal256(50, 3)),
        (pa.decimal128(38, 10), pa.decimal128(38, 0)),
        (pa.decimal128(20, 5), pa.int64()),
        (pa.int64(), pa.uint64()),
    ]
    types = choices[int(rng.integers(len(choices)))]
    top = (1 << 63) - 1 if types[0] == pa.int64() or types[1] == pa.int64() else 10**24
    top = min(top, 10 ** (types[0].precision - types[0].scale) - 1) if pa.types.is_decimal(types[0]) else top
    numbers = [top - size // 2 + i if i % 3 else i for i in range(size)]
    numbers = [min(number, top) for number in numbers]
    made: list[pa.Array] = []
    for type_ in types:
        values: list[Any] = [Decimal(number) for number in numbers] if pa.types.is_decimal(type_) else numbers
        made.append(pa.array(values, type_))
    return (made[0], made[1]), types


def _unsigned(rng: Rng, size: int) -> Made:
    numbers = [(1 << 63) - size // 2 + i for i in range(size)]
    made = pa.array(numbers, pa.uint64())
    return (made, made), (pa.uint64(), pa.uint64())


_FLOATS = [pa.float64(), pa.float64(), pa.float32(), pa.float16()]
_WHOLE = [pa.int64(), pa.int32(), pa.int16(), pa.uint32(), pa.uint64()]
_SCALED = [pa.decimal128(20, 5), pa.decimal128(38, 10), pa.decimal256(50, 3), pa.decimal64(16, 4)]
POINT_KINDS = ("floats", "numbers", "decimals", "whole numbers", "far away", "tiny or huge", "nothing")
"""The names of all kinds of columns that points are made of."""


@dataclass(frozen=True)
class PointColumns:
    """The columns of points, one for each dimension, and how near they must be."""

    columns: tuple[KeyColumns, ...]
    radius: int | float | Decimal


def random_points(rng: Rng, apart: int) -> PointColumns:
    """Points on a grid, of which about one in `apart` is near a given one, or some more."""
    kind = POINT_KINDS[int(rng.choice(len(POINT_KINDS), p=[0.3, 0.2, 0.15, 0.14, 0.1, 0.1, 0.01]))]
    dimensions = 2 if rng.random() < 0.6 else 3
    steps = float(rng.choice([0, 1, 1.5, 2, 3, 5], p=[0.1, 0.2, 0.2, 0.2, 0.2, 0.1]))
    # Squares, or cubes, of the grid that are near; 5 steps are just 3 in one direction and 4 in the other.
    near = max(1.0, [3.2, 4.2][dimensions - 2] * steps**dimensions)
    size = int(max(2, min(400, round((near * apart) ** (1 / dimensions)))))
    step: Any = Fraction(1)
    if kind in ("floats", "numbers"):
        step = Fraction(float(rng.choice([1.0, 0.1, 0.25, 3.0])))
    elif kind == "decimals":
        step = Fraction(1, int(rng.choice([1, 10, 1000])))
    elif kind == "tiny or huge":
        step = Fraction(float(rng.choice([5e-324, 1e-310, 1e-200, 1e200, 1e290])))
    columns = tuple(_coordinates(rng, kind, size, step) for _ in range(dimensions))
    return PointColumns(columns, _radius(rng, kind, Fraction(steps) * step))


def _coordinates(rng: Rng, kind: str, size: int, step: Fraction) -> KeyColumns:
    """One dimension of a grid: for each side a column of its values, and some others where a type has such."""
    choices = {
        "floats": _FLOATS,
        "numbers": [*_FLOATS, *_WHOLE, *_SCALED],
        "decimals": [*_SCALED, *_WHOLE],
        "whole numbers": _WHOLE,
        "far away": [pa.int64(), pa.uint64(), pa.decimal128(38, 10)],
        "tiny or huge": [pa.float64()],
        "nothing": [pa.null(), pa.float64()],
    }[kind]
    types = [choices[int(rng.integers(len(choices)))] for _ in range(2)]
    first = int(rng.choice([0, 0, -size // 2, -3 * size, 10 * size])) if kind != "far away" else _far(rng, types, size)
    if any(pa.types.is_unsigned_integer(each) for each in types):
        first = abs(first)
    numbers = [(first + i) * step for i in range(size)]
    values = [_numbers_of(rng, numbers, each) for each in types]
    wrapped = [perhaps_wrapped(rng, values[side], types[side]) for side in (0, 1)]
    return KeyColumns(kind, (values[0], values[1]), (wrapped[0], wrapped[1]))


def _far(rng: Rng, types: Sequence[pa.DataType], size: int) -> int:
    """Where the last of 64 bits are used, or more than there are."""
    if all(pa.types.is_decimal(each) for each in types):
        return int(rng.choice([10**6, -(10**6)])) * 10**20
    if pa.int64() in types and pa.uint64() not in types:
        return int(rng.choice([-(1 << 63), (1 << 63) - 400]))
    return (1 << 63) - (400 if pa.int64() in types else size // 2)


def _numbers_of(rng: Rng, numbers: Sequence[Fraction], kind: pa.DataType) -> pa.Array:
    """Numbers as a type has them, the nearest that it has."""
    if pa.types.is_null(kind):
        return pa.nulls(len(numbers))
    if pa.types.is_floating(kind):
        found = np.array([float(number) for number in numbers])
        odd = rng.random(len(found)) < (0.04 if rng.random() < 0.5 else 0)
        found[odd] = rng.choice([np.inf, -np.inf, np.nan, -0.0, 60_000.0], int(odd.sum()))
        return pa.array(found.astype(kind.to_pandas_dtype()))
    if pa.types.is_decimal(kind):
        context = Context(prec=80)
        exact = [context.divide(Decimal(number.numerator), Decimal(number.denominator)) for number in numbers]
        return pa.array([context.quantize(each, Decimal(1).scaleb(-kind.scale)) for each in exact], kind)
    low, high = int(np.iinfo(kind.to_pandas_dtype()).min), int(np.iinfo(kind.to_pandas_dtype()).max)
    return pa.array([min(high, max(low, math.floor(number))) for number in numbers], kind)


def _radius(rng: Rng, kind: str, exact: Fraction) -> int | float | Decimal:
    """A radius, or the next double, as any of the types that say it."""
    if kind in ("floats", "numbers", "tiny or huge"):
        radius = float(exact)
        return radius if rng.random() < 0.7 else abs(float(np.nextafter(radius, float(rng.choice([0.0, 1.0])))))
    if exact.denominator == 1 and rng.random() < 0.5:
        return int(exact)
    return float(exact) if rng.random() < 0.5 else Decimal(exact.numerator) / Decimal(exact.denominator)
