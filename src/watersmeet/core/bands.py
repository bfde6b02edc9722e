"""In which common form two columns are compared when their values need only be close.

A band asks for `|l - r| <= width`, the width included. NULL and NaN are close to nothing: `NaN - x` is NaN.

==============================================  ==================================================================
columns                                         how the difference is taken
==============================================  ==================================================================
integers, decimals                              exactly, in units of the larger scale
dates, timestamps, times of day, durations      exactly, in ticks of the finer unit; the width is a duration
a float with any number                         both as doubles: `abs(l - r) <= width` in double arithmetic
==============================================  ==================================================================

A width written as a float beside exact numbers means the number as it is written: 0.05 is five hundredths. With doubles
`inf - inf` is NaN, so infinities are not close to each other. Times of day do not wrap around at midnight.

Points are near each other if their distance, the root of the sum of the squares of all differences, is at most the
radius. Integers and decimals are compared exactly, in units of the largest scale of all columns. If one of the columns
has floats, all numbers and the radius are taken as doubles, and of these doubles the distance is exact, too: no
difference, square or sum is rounded. NULL, NaN and infinities are near nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import TypeAlias

import pyarrow as pa
from pyarrow import types

from watersmeet.core.errors import SpecError
from watersmeet.core.keys import alike, plain_type

Width: TypeAlias = "int | float | Decimal | timedelta"

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY = 86_400 * 10**9
_UNITS = {"us": 1, "ms": 10**3, "s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}
"""Microseconds."""
_WORDS = {
    "second": "s", "seconds": "s", "sec": "s", "minute": "min", "minutes": "min", "mins": "min", "m": "min",
    "hour": "h", "hours": "h", "hr": "h", "day": "d", "days": "d",
    "millisecond": "ms", "milliseconds": "ms", "microsecond": "us", "microseconds": "us",
}  # fmt: skip
_WORD = 1 << 63
_MOST_DIGITS = 100
"""Of a width in words."""
_WITHOUT_LIMIT = 1 << 1100
"""Wider than the difference of any two exact numbers."""
_EXACTLY = Context(prec=2000, rounding=ROUND_FLOOR)


@dataclass(frozen=True, slots=True)
class BandForm:
    """The common form of two columns in a band.

    >>> form = common_band_form(pa.decimal128(9, 2), pa.int16(), 0.055)
    >>> form.width, form.factors
    (5, (1, 100))
    """

    width: int | float
    """In units; a double if the difference is taken in doubles."""
    factors: tuple[int, int] = (1, 1)
    """How many units the stored integer of each side counts for."""
    in_doubles: bool = False
    biased: bool = False
    """Both columns are of unsigned words: 2^63 is taken off, so that they fit signed ones."""
    outgrows_word: bool = False
    """Whether a value may need more than 64 bits."""
    nothing: bool = False
    """One of the columns holds nothing but NULL."""


def common_band_form(left: pa.DataType, right: pa.DataType, width: Width) -> BandForm | None:
    """The form in which two columns are compared, or None if they, or the width, do not go together.

    >>> common_band_form(pa.timestamp("s"), pa.timestamp("ms"), timedelta(minutes=1)).width
    60000
    >>> common_band_form(pa.timestamp("s"), pa.timestamp("ms"), 5) is None
    True
    """
    told_alike = alike(left, right)
    (left, _), (right, _) = plain_type(left), plain_type(right)
    if types.is_null(left) or types.is_null(right):
        return BandForm(0, nothing=True)
    if not told_alike:
        return None
    if _is_number(left) and _is_number(right):
        return None if isinstance(width, timedelta) else _numbers(left, right, width)
    kind = _time_kind(left)
    if kind is None or kind != _time_kind(right) or not isinstance(width, timedelta):
        return None
    sizes = tick_nanoseconds(left), tick_nanoseconds(right)
    unit = min(sizes)
    factors = (sizes[0] // unit, sizes[1] // unit)
    outgrows = any(
        (1 << (type_.bit_width - 1)) * factor > _WORD for type_, factor in zip((left, right), factors, strict=True)
    )
    return BandForm(nanoseconds(width) // unit, factors, outgrows_word=outgrows)


@dataclass(frozen=True, slots=True)
class NearForm:
    """The common form of the columns that points are made of.

    >>> form = common_near_form([(pa.int8(), pa.int8()), (pa.decimal128(5, 1), pa.int8())], 0.55)
    >>> form.square, [each.factors for each in form.dimensions]
    (30, [(10, 10), (1, 10)])
    """

    dimensions: tuple[BandForm, ...]
    """Of each dimension: points that are near each other are within this band."""
    square: int = 0
    """Of exact numbers: the largest square of a distance in units that is near."""

    @property
    def radius(self) -> int | float:
        """In units, rounded down; a double where distances are of doubles."""
        return self.dimensions[0].width

    @property
    def in_doubles(self) -> bool:
        """Whether distances are of doubles."""
        return self.dimensions[0].in_doubles


def common_near_form(
    types_: Sequence[tuple[pa.DataType, pa.DataType]], radius: int | float | Decimal
) -> NearForm | None:
    """The form in which points are compared, or None if a column has no numbers."""
    pairs = [(plain_type(left)[0], plain_type(right)[0]) for left, right in types_]
    if not all(_is_number(each) or types.is_null(each) for pair in pairs for each in pair):
        return None
    if any(types.is_null(each) for pair in pairs for each in pair):
        return NearForm((BandForm(0, nothing=True),) * len(pairs))
    if any(types.is_floating(each) for pair in pairs for each in pair):
        return NearForm((BandForm(float(radius), in_doubles=True),) * len(pairs))
    scale = max(_scale(each) for pair in pairs for each in pair)
    written = Fraction(Decimal(repr(radius)) if isinstance(radius, float) else radius)
    square = math.floor((written * Fraction(10) ** scale) ** 2)
    return NearForm(tuple(_exact_form(left, right, scale, math.isqrt(square)) for left, right in pairs), square)


def parse_width(
    text: str, what: str = "width", needed: str = "a number such as 0.05, or a time such as '90 s'"
) -> Width:
    """A width from words: a number, or a number and a unit of time. Errors call it `what`, and say what is `needed`.

    >>> parse_width("0.05"), parse_width("90 s"), parse_width("1.5 hours")
    (Decimal('0.05'), datetime.timedelta(seconds=90), datetime.timedelta(seconds=5400))
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)\s*", text)
    unit = _UNITS.get(_WORDS.get(match[2], match[2])) if match else None
    if match is None or (match[2] and unit is None):
        raise SpecError(f"{what} {text!r} is not understood; write {needed}")
    number = Decimal(match[1])
    if unit is None and len(match[1]) <= _MOST_DIGITS:
        return int(number) if number == number.to_integral_value() else number
    try:
        if unit is not None:
            return timedelta(microseconds=int(number * unit))
    except (ArithmeticError, ValueError):
        pass
    raise SpecError(f"{what} {text[:_MOST_DIGITS]!r} is longer than can be told; write a smaller one")


def width_in_words(width: Width) -> str:
    """A width as people write it in calls.

    >>> width_in_words(timedelta(minutes=90)), width_in_words(timedelta(0)), width_in_words(Decimal("0.05"))
    ("'90 min'", "'0 s'", '0.05')
    """
    if not isinstance(width, timedelta):
        return str(width)
    whole, rest = divmod(nanoseconds(width), 1000)
    if rest:
        return f"'{whole}.{rest:03} us'"
    unit = next((unit for unit in ("d", "h", "min", "s", "ms") if whole and whole % _UNITS[unit] == 0), "us")
    return f"'{whole // _UNITS[unit]} {unit}'" if whole else "'0 s'"


def nanoseconds(width: timedelta) -> int:
    """A duration without rounding."""
    whole = (width.days * 86_400 + width.seconds) * 10**6 + width.microseconds
    return whole * 1000 + int(getattr(width, "nanoseconds", 0))  # pandas counts those, too


def _numbers(left: pa.DataType, right: pa.DataType, width: int | float | Decimal) -> BandForm:
    if types.is_floating(left) or types.is_floating(right):
        return BandForm(_as_double(width), in_doubles=True)
    scale = max(_scale(left), _scale(right))
    return _exact_form(left, right, scale, _in_units(width, scale))


def _exact_form(left: pa.DataType, right: pa.DataType, scale: int, units: int) -> BandForm:
    """A band of so many units of 10 to the power of minus `scale`."""
    factors = (10 ** (scale - _scale(left)), 10 ** (scale - _scale(right)))
    if types.is_uint64(left) and types.is_uint64(right) and not scale:
        return BandForm(units, factors, biased=True)
    outgrows = any(_reach(type_) * factor > _WORD for type_, factor in zip((left, right), factors, strict=True))
    return BandForm(units, factors, outgrows_word=outgrows)


def _as_double(width: int | float | Decimal) -> float:
    try:
        return float(width)
    except OverflowError:
        return math.inf


def _in_units(width: int | float | Decimal, scale: int) -> int:
    """The largest number of units of 10 to the power of minus `scale` that is not wider."""
    if isinstance(width, int):
        return int(width * 10**scale) if scale >= 0 else width // int(10**-scale)
    exact = width if isinstance(width, Decimal) else Decimal(repr(float(width)))
    if exact.is_infinite():
        return _WITHOUT_LIMIT
    return int(_EXACTLY.to_integral_value(_EXACTLY.scaleb(exact, scale)))


def _reach(number: pa.DataType) -> int:
    """A bound of a type's absolute values."""
    if types.is_decimal(number):
        return int(10**number.precision)
    return int(1 << (number.bit_width - types.is_signed_integer(number)))


def _scale(number: pa.DataType) -> int:
    return int(number.scale) if types.is_decimal(number) else 0


def _is_number(plain: pa.DataType) -> bool:
    return bool(types.is_integer(plain) or types.is_floating(plain) or types.is_decimal(plain))


def _time_kind(plain: pa.DataType) -> str | None:
    if types.is_date(plain):
        return "naive"
    if types.is_timestamp(plain):
        return "naive" if plain.tz is None else "zoned"
    if types.is_time(plain):
        return "time"
    return "duration" if types.is_duration(plain) else None


def tick_nanoseconds(plain: pa.DataType) -> int:
    """Nanoseconds that the stored integer of a date, timestamp, time of day or duration counts."""
    if types.is_date32(plain):
        return _DAY
    return NANOSECONDS["ms" if types.is_date64(plain) else plain.unit]
