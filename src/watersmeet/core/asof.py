"""As-of joins: for each row of the left input the nearest of the right by time, with every question settled."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from watersmeet.core.bands import BandForm, Width, common_band_form, parse_width, tick_nanoseconds, width_in_words
from watersmeet.core.errors import SpecError
from watersmeet.core.given import plain_number
from watersmeet.core.keys import plain_type, told_type
from watersmeet.core.spec import Band, JoinSpec
from watersmeet.core.windows import LATE, parse_time_columns

DIRECTIONS = ("backward", "forward", "nearest")
KINDS = ("inner", "left")
UNLIMITED = "unlimited"
_SPAN = "a length of time such as '5 s', a timedelta, or a number of units"
Lateness: TypeAlias = "Width | str | None"
"""By how much rows may come late; `"unlimited"` or None: in any order."""


@dataclass(frozen=True, slots=True)
class AsofTimes:
    """What an as-of join is told of time."""

    time: tuple[str, str]
    """The columns that tell it."""
    direction: str = "backward"
    tolerance: Width | None = None
    """A row that is further away is none; None: however far it is."""
    lateness: tuple[Width | None, Width | None] = (None, None)
    """Of each input, by how much a row may be older than the newest before it; None: nothing is known."""
    late: str = "keep"
    """What becomes of left rows that come later still."""


def parse_asof(
    time: str | Sequence[str] | None,
    direction: str = "backward",
    tolerance: Width | str | None = None,
    lateness: Lateness | tuple[Lateness, Lateness] = None,
    late: str = "keep",
) -> AsofTimes:
    """What people write about the time of an as-of join.

    >>> parse_asof("ts", tolerance="5 s", lateness="1 s").tolerance
    datetime.timedelta(seconds=5)
    """
    columns = parse_time_columns(time)
    if columns is None:
        raise SpecError("an as-of join needs time=..., the column that tells it in both inputs")
    if direction not in DIRECTIONS:
        raise SpecError(f"direction={direction!r} is not understood; write 'backward', 'forward' or 'nearest'")
    if late not in LATE:
        raise SpecError(f"late={late!r} is not understood; write 'keep', 'drop' or 'error'")
    pair = lateness if isinstance(lateness, tuple | list) else (lateness, lateness)
    if len(pair) != 2:
        raise SpecError(f"there are two inputs, and lateness has {len(pair)} values; give one for both, or one each")
    spans = tuple(None if span is None or span == UNLIMITED else _span(span, "lateness") for span in pair)
    within = None if tolerance is None else _span(tolerance, "tolerance")
    return AsofTimes(columns, direction, within, (spans[0], spans[1]), late)


def _span(span: object, what: str) -> Width:
    found: Width
    span = plain_number(span)
    if isinstance(span, str):
        if span.strip().startswith("-"):
            raise SpecError(f"{what} must be zero or more, not {span!r}")
        found = parse_width(span, what, _SPAN)
    elif isinstance(span, int | float | Decimal | timedelta) and not isinstance(span, bool):
        found = span
    else:
        raise SpecError(f"{what} {span!r} is not understood; write {_SPAN}")
    if found != found or (found < timedelta() if isinstance(found, timedelta) else found < 0):
        raise SpecError(f"{what} must be zero or more, not {span!r}")
    return found


def zero_of(type_: pa.DataType) -> int | timedelta | None:
    """No time at all, in what goes with a type; None if the type has no order that tells a time."""
    zeros: tuple[int | timedelta, ...] = (0, timedelta())
    return next((zero for zero in zeros if common_band_form(type_, type_, zero) is not None), None)


@dataclass(frozen=True)
class AsofSpec(JoinSpec):
    """An as-of join of two inputs, with every question of names, types and units settled.

    >>> from watersmeet.core.spec import parse_on
    >>> side = pa.schema({"sym": pa.string(), "ts": pa.timestamp("ms")})
    >>> spec = AsofSpec(side, side, parse_on("sym"), times=parse_asof("ts", tolerance="2 s"))
    >>> spec.schema.names, spec.tolerance
    (['sym', 'ts', 'ts_right'], 2000)
    """

    times: AsofTimes = AsofTimes(("", ""))

    def __post_init__(self) -> None:
        if self.how not in KINDS:
            raise SpecError(f"how={self.how!r} is not a kind of as-of join; write 'inner' or 'left'")
        if any(isinstance(condition, Band) for condition in self.on):
            raise SpecError("an as-of join takes no band; tolerance= bounds how far apart the times may be")
        if self.near is not None:
            raise SpecError("an as-of join is on equal values; points that are near each other are joined by wm.join")
        if self.on:
            JoinSpec(self.left, self.right, self.on, suffixes=self.suffixes, names=self.names)
        _ = self.form, self.tolerance, self.latenesses, self.schema

    @cached_property
    def time_types(self) -> tuple[pa.DataType, pa.DataType]:
        """The types of the columns that tell the time."""
        fields = [self._key_field(side, self.times.time[side]) for side in (0, 1)]
        return fields[0].type, fields[1].type

    @cached_property
    def form(self) -> BandForm:
        """In which form the times of both inputs are compared."""
        left, right = self.time_types
        told = f"column {self.times.time[0]!r} of {self.names[0]} ({told_type(left)})"
        other = f"column {self.times.time[1]!r} of {self.names[1]} ({told_type(right)})"
        zeros = [zero_of(type_) for type_ in (left, right)]
        for described, zero in zip((told, other), zeros, strict=True):
            if zero is None:
                raise SpecError(f"{described} has no order that tells a time; take numbers, dates or timestamps")
        found = None if zeros[0] is None else common_band_form(left, right, zeros[0])
        if found is None:
            raise SpecError(f"{told} and {other} tell times that cannot be compared; cast one of them first")
        return found

    def _units(self, span: Width, what: str) -> int | float:
        left, right = self.time_types
        dated = isinstance(zero_of(left), timedelta)
        if dated and not isinstance(span, timedelta) and span == 0:
            span = timedelta()
        form = common_band_form(left, right, span)
        if form is None:
            needed = "a length of time such as '5 s'" if dated else "a number of units"
            raise SpecError(f"{what} {width_in_words(span)} does not go with a time column of {left}; give {needed}")
        return form.width

    @cached_property
    def tolerance(self) -> int | float | None:
        """How far away a row may be, in units; None: however far."""
        return None if self.times.tolerance is None else self._units(self.times.tolerance, "tolerance")

    @cached_property
    def latenesses(self) -> tuple[int | float | None, int | float | None]:
        """By how many units a row of each input may be older than the newest before it; None: nothing is known."""
        left, right = (None if span is None else self._units(span, "lateness") for span in self.times.lateness)
        return left, right

    @cached_property
    def tick(self) -> int | None:
        """Nanoseconds of a unit; None if the time columns hold numbers."""
        types = [plain_type(type_)[0] for type_ in self.time_types]
        dated = isinstance(zero_of(types[0]), timedelta) and not self.form.nothing
        return min(map(tick_nanoseconds, types)) if dated else None

    @cached_property
    def fingerprint(self) -> str:
        """Stable across processes; equal for equal joins."""
        text = f"{super().fingerprint} {self.times!r}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]
