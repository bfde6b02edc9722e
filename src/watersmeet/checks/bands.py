"""Random bands: columns of comparable types whose values lie in steps, and a width of so many steps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
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
