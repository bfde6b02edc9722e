"""What a window holds: which rows of an endless input a row of the other input meets.

Each input has a window. A row of the left input and a row of the right one meet if their keys match and one of them is
in its window at the time of the other, whichever came first::

    left window of 3, right window of 1        l.t in [r.t - 3, r.t]  or  r.t in [l.t - 1, l.t]

So whether two rows meet depends on their times alone and not on when or in which order they arrive. In units of time
`t`, a window that the other input's row of time `t` looks into begins at `Bounds.lower(t)`:

==============================  ==================================================================================
window                          begins at
==============================  ==================================================================================
time, `"10 min"`                `t - 10 min`; with `slide`, so far before the last multiple of the slide
age, `age("1 min", "10 min")`   the same, and it ends at `t - 1 min`: younger rows are not in it yet
landmark, `landmark("1 d")`     the last multiple of a day
landmark, `landmark(since=x)`   `x`, for ever: nothing expires
`rows(1000)`                    1,000 rows before the row that arrives: order of arrival takes the place of time
==============================  ==================================================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import ClassVar, TypeAlias, overload

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.bands import common_band_form, nanoseconds, parse_width, tick_nanoseconds, width_in_words
from watersmeet.core.errors import SpecError
from watersmeet.core.given import plain_number
from watersmeet.core.keys import plain_type, told_type
from watersmeet.core.spec import JoinSpec, equated

Span: TypeAlias = "str | int | timedelta"

LATE = ("keep", "drop", "error")
EMIT = ("early", "final")
FAR = 1 << 61
"""Times, and the lengths of windows, stay below this many units: then no sum of them overflows."""
_SPAN = "a length of time such as '10 min', a timedelta, or a whole number of units"
_WINDOW = (
    "a length of time such as '10 min', wm.rows(1000), wm.landmark('1 day') or wm.age('1 min', '10 min'), or two of "
    "these, for the left and the right input"
)


def parse_span(span: Span, what: str = "the length of time", needed: str = _SPAN) -> int | timedelta:
    """A length of time from words; a bare number counts the units of an integer time column.

    Errors call it `what`, by the name of the parameter, and say what is `needed`.

    >>> parse_span("10 min"), parse_span("1.5 hours"), parse_span(500)
    (datetime.timedelta(seconds=600), datetime.timedelta(seconds=5400), 500)
    """
    span = plain_number(span)
    if isinstance(span, str):
        width = parse_width(span, what, needed)
        if isinstance(width, int | timedelta):
            return width
    elif isinstance(span, int | timedelta) and not isinstance(span, bool):
        if (span if isinstance(span, int) else span.total_seconds()) < 0:
            raise SpecError(f"{what} must be zero or more, not {span!r}")
        return span
    raise SpecError(f"{what} {span!r} is not understood; write {needed}")


@dataclass(frozen=True, slots=True)
class Rows:
    """The last so many rows of an input, in the order of their arrival."""

    count: int


@dataclass(frozen=True, slots=True)
class Landmark:
    """All rows since a moment: since every multiple of a length of time, or since one moment for ever."""

    every: int | timedelta | None = None
    since: int | date | datetime | None = None


@dataclass(frozen=True, slots=True)
class Age:
    """Rows that are at least and at most so old when the other input's row comes."""

    least: int | timedelta
    most: int | timedelta


Window: TypeAlias = "int | timedelta | Rows | Landmark | Age"


def rows(count: int) -> Rows:
    """A window of the last `count` rows.

    >>> rows(1000)
    Rows(count=1000)
    """
    count = plain_number(count)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SpecError(f"a window holds one row or more, not {count!r}")
    return Rows(count)


def landmark(every: Span | None = None, *, since: int | date | datetime | None = None) -> Landmark:
    """A window that begins anew at every multiple of a length of time, or once, at `since`.

    >>> landmark("1 day")
    Landmark(every=datetime.timedelta(days=1), since=None)
    """
    if (every is None) == (since is None):
        raise SpecError("a landmark is every so often, or since a moment: give one of the two")
    since = plain_number(since)
    if since is not None and (isinstance(since, bool) or not isinstance(since, int | date)):
        raise SpecError(f"since must be a date, a datetime, or a whole number of units, not {since!r}")
    return Landmark(None if every is None else parse_span(every, "landmark"), since)


def age(least: Span, most: Span) -> Age:
    """A window of rows that are at least `least` and at most `most` old.

    >>> age("1 min", "10 min").least
    datetime.timedelta(seconds=60)
    """
    return Age(parse_span(least, "age"), parse_span(most, "age"))


def parse_seconds(span: object, what: str) -> float:
    """Seconds from words, from a length of time, or from a number of them.

    >>> parse_seconds("250 ms", "delay"), parse_seconds(2, "delay")
    (0.25, 2.0)
    >>> parse_seconds("soon", "idle")
    Traceback (most recent call last):
    watersmeet.core.errors.SpecError: idle 'soon' is not understood; write a length of time such as '1 s', or seconds
    """
    span = plain_number(span)
    if isinstance(span, int | float) and not isinstance(span, bool):
        if not span >= 0:  # NaN, too
            raise SpecError(f"{what} must be zero or more, not {span!r}")
        return float(span)
    with suppress(SpecError):
        if isinstance(span, str | timedelta):
            parsed = parse_span(span)
            return parsed.total_seconds() if isinstance(parsed, timedelta) else float(parsed)
    raise SpecError(f"{what} {span!r} is not understood; write a length of time such as '1 s', or seconds")


def parse_window(window: object) -> Window:
    """A window from what people write."""
    if isinstance(window, Rows | Landmark | Age):
        return window
    return parse_span(window, "window", _WINDOW)  # type: ignore[arg-type]  # anything else is refused there


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """The windows of both inputs, and what is done about rows that come late."""

    windows: tuple[Window, Window]
    time: tuple[str, str] | None = None
    """The columns that tell the time; None for windows of so many rows."""
    slide: int | timedelta | None = None
    """Windows move by so much at once; None: with every row."""
    lateness: int | timedelta = 0
    """By so much a row may be older than the newest of its input before it."""
    late: str = "keep"
    """What becomes of later rows: they meet what has not expired, are dropped, or end the join with an error."""
    idle: float | None = None
    """Seconds after which an input that says nothing no longer holds back the other (`engine.silence`); None: never."""
    emit: str = "early"
    """When results come: as they are found, or "final", when none of an earlier time can follow, in order of time."""


def parse_windows(
    window: object,
    time: str | Sequence[str] | None = None,
    slide: Span | None = None,
    lateness: Span | None = None,
    late: str | None = None,
    idle: object = None,
    emit: str = "early",
) -> WindowSpec:
    """The windows of a join from what people write.

    >>> parse_windows(("10 min", "5 min"), "ts", lateness="1 s").lateness
    datetime.timedelta(seconds=1)
    """
    pair = tuple(window) if isinstance(window, tuple | list) else (window, window)
    if len(pair) != 2:
        raise SpecError(f"there are two windows, one for each input, not {len(pair)}")
    windows = (parse_window(pair[0]), parse_window(pair[1]))
    if emit not in EMIT:
        raise SpecError(f"emit={emit!r} is not understood; write 'early' or 'final'")
    if late is None:
        late = "keep" if emit == "early" else "drop"
    if emit == "final" and late == "keep":
        raise SpecError(
            "late='keep' lets rows meet others when the time of the pair has passed, and emit='final' hands out none "
            "of a time that has passed; say late='drop' or late='error'"
        )
    if late not in LATE:
        raise SpecError(f"late={late!r} is not understood; write 'keep', 'drop' or 'error'")
    return WindowSpec(
        windows,
        parse_time_columns(time),
        None if slide is None else parse_span(slide, "slide"),
        0 if lateness is None else parse_span(lateness, "lateness"),
        late,
        None if idle is None else parse_idle(idle),
        emit,
    )


def parse_idle(idle: object) -> float:
    """Seconds after which an input that says nothing no longer holds back others."""
    seconds = parse_seconds(idle, "idle")
    if not seconds:
        raise SpecError("idle=0 would take every input for silent; give a length of time such as '30 s'")
    return seconds


def parse_time_columns(time: str | Sequence[str] | None) -> tuple[str, str] | None:
    """The columns that tell the time, of the left and of the right input; None if there are none."""
    if time is None:
        return None
    if isinstance(time, str):
        names = equated(time) if "=" in time else [time, time]
        if len(names) == 2 and all(names):
            return names[0], names[1]
    elif isinstance(time, Sequence) and len(time) == 2 and all(isinstance(name, str) for name in time):
        return time[0], time[1]
    raise SpecError(f"time={time!r} is not understood; write a column of both inputs, or 'left_column = right_column'")


def common_tick(columns: Sequence[tuple[str, pa.DataType]]) -> int | None:
    """Nanoseconds of the finest unit of some columns of times; None if they hold integers.

    >>> common_tick([("a", pa.timestamp("ms")), ("b", pa.timestamp("us"))]), common_tick([("a", pa.int32())])
    (1000, None)
    """
    types = [plain_type(type_)[0] for _, type_ in columns]
    whole = all(pa.types.is_integer(type_) and type_ != pa.uint64() for type_ in types)
    dated = all(pa.types.is_date(type_) or pa.types.is_timestamp(type_) for type_ in types)
    zero = timedelta() if dated else 0
    if not whole and not dated or any(common_band_form(columns[0][1], type_, zero) is None for _, type_ in columns):
        told = [f"{name!r} ({told_type(type_)})" for name, type_ in columns]
        raise SpecError(
            f"columns {', '.join(told[:-1])} and {told[-1]} cannot tell the time of a window join; all must be "
            f"integers, and none uint64, or dates and timestamps, all with a zone or all without; cast them first"
        )
    return min(tick_nanoseconds(type_) for type_ in types) if dated else None


def units_of(
    span: int | timedelta, tick: int | None, type_: pa.DataType, what: str, whole: bool = False, up: bool = False
) -> int:
    """A length of time in units of so many nanoseconds, or of integers, rounded down, or up.

    `whole` refuses what is finer than a unit.
    """
    if isinstance(span, timedelta) != (tick is not None) and span:
        needed = "a length of time such as '10 min'" if tick is not None else "a whole number of units"
        raise SpecError(f"{what} {width_in_words(span)} does not go with a time column of {type_}; give {needed}")
    units = span if isinstance(span, int) else (nanoseconds(span) + (up * (tick or 1) - up)) // (tick or 1)
    if whole and isinstance(span, timedelta) and units * (tick or 1) != nanoseconds(span):
        raise SpecError(f"{what} {width_in_words(span)} is finer than the time columns; give a multiple of their unit")
    if units >= FAR:
        raise SpecError(f"{what} {width_in_words(span)} is too long to be told in units of the time columns")
    return units


@dataclass(frozen=True, slots=True)
class Bounds:
    """One input's window in units of time (or in rows).

    >>> sliding = Bounds(span=10, step=4)
    >>> sliding.lower(21), sliding.upper(10)
    (10, 23)
    """

    span: int = 0
    step: int = 1
    least: int = 0
    """Rows younger than this are not in it yet."""
    since: int | None = None
    counted: bool = False
    """Whether it counts rows."""

    @overload
    def lower(self, time: int) -> int: ...
    @overload
    def lower(self, time: Int64) -> Int64: ...
    def lower(self, time: int | Int64) -> int | Int64:
        """The first time in the window that a row of this time looks into; it never falls with the time."""
        if self.since is not None:
            return self.since if isinstance(time, int) else np.full(len(time), self.since)
        return time // self.step * self.step - self.span if self.step > 1 else time - self.span

    @overload
    def upper(self, time: int) -> int: ...
    @overload
    def upper(self, time: Int64) -> Int64: ...
    def upper(self, time: int | Int64) -> int | Int64:
        """The last time at which a row of this time is in the window."""
        if self.since is not None:
            if isinstance(time, int):
                return 4 * FAR - 1 if time >= self.since else -4 * FAR
            return np.where(time >= self.since, 4 * FAR - 1, -4 * FAR)
        if self.step == 1:
            return time + self.span
        return ((time + self.span) // self.step + 1) * self.step - 1


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The first and the last time of some rows, and the first that any of them meets among rows which came before.

    >>> TimeSpan.all_of([TimeSpan(3, 5, 1), TimeSpan(4, 9, 2)]), TimeSpan().is_empty
    (TimeSpan(earliest=3, latest=9, floor=1), True)
    """

    earliest: int = 4 * FAR - 1
    latest: int = -4 * FAR
    floor: int = 4 * FAR - 1

    @classmethod
    def of(cls, times: Int64, floors: Int64) -> TimeSpan:
        """Of rows with these times and floors, one or more."""
        return cls(int(times.min()), int(times.max()), int(floors.min()))

    @classmethod
    def all_of(cls, spans: Iterable[TimeSpan]) -> TimeSpan:
        """Of the rows of all of them."""
        earliest, latest, floor = 4 * FAR - 1, -4 * FAR, 4 * FAR - 1
        for each in spans:
            earliest, latest, floor = min(earliest, each.earliest), max(latest, each.latest), min(floor, each.floor)
        return cls(earliest, latest, floor)

    @property
    def is_empty(self) -> bool:
        """Whether it is of no rows."""
        return self.latest < self.earliest

    def to_state(self) -> list[int]:
        """For a snapshot."""
        return [self.earliest, self.latest, self.floor]


NOWHERE = TimeSpan()
"""Of no rows."""


@dataclass(frozen=True)
class WindowJoinSpec(JoinSpec):
    """A join of two endless inputs by windows, with every question of names, types and units settled.

    >>> side = pa.schema({"id": pa.int64(), "ts": pa.timestamp("ms")})
    >>> from watersmeet.core.spec import parse_on
    >>> spec = WindowJoinSpec(side, side, parse_on("id"), window=parse_windows(("1 min", "2 s"), "ts"))
    >>> spec.bounds[0].span, spec.bounds[1].span
    (60000, 2000)
    """

    window: WindowSpec = WindowSpec((0, 0))
    needs_condition: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        counted = [isinstance(window, Rows) for window in self.window.windows]
        if any(counted) and not all(counted):
            raise SpecError("one window counts rows and the other measures time; let both do the same")
        if all(counted):
            extra = [name for name in ("time", "slide", "lateness", "idle") if getattr(self.window, name)]
            if extra:
                raise SpecError(f"a window of rows knows no time, so {extra[0]} has no meaning; leave it out")
            if self.window.emit == "final":
                raise SpecError(
                    "emit='final' waits for a time to pass, and a window of rows knows no time; leave it out"
                )
        elif self.window.time is None:
            raise SpecError("a window of time needs time=..., the column that tells it")
        _ = self.bounds

    @property
    def counted(self) -> bool:
        """Whether the windows count rows."""
        return isinstance(self.window.windows[0], Rows)

    @cached_property
    def bounds(self) -> tuple[Bounds, Bounds]:
        """Both windows in units."""
        step = 1 if self.window.slide is None else self._units(self.window.slide, "slide", whole=True)
        if step < 1:
            raise SpecError("a window slides by more than nothing; leave slide out if it is to follow every row")
        left, right = self.window.windows
        return self.bounds_of(left, step), self.bounds_of(right, step)

    def seconds(self, side: int) -> float | None:
        """The length of a window; None if it has none that seconds can tell."""
        bounds = self.bounds[side]
        if self.counted or bounds.since is not None or self.tick is None:
            return None
        return (bounds.span + bounds.step - 1) * self.tick / 1e9

    @cached_property
    def lateness(self) -> int:
        """By how many units a row may be older than the newest of its input."""
        return self._units(self.window.lateness, "lateness") if self.window.lateness else 0

    @cached_property
    def time_types(self) -> tuple[pa.DataType, pa.DataType]:
        """The types of the times, be they in a dictionary or not, in the columns that tell them."""
        assert self.window.time is not None
        left, right = (plain_type(self._key_field(side, self.window.time[side]).type)[0] for side in (0, 1))
        return left, right

    @cached_property
    def tick(self) -> int | None:
        """Nanoseconds of a unit; None if the time columns hold integers, or rows are counted."""
        if self.counted:
            return None
        names = self.window.time or ("", "")
        return common_tick(list(zip(names, self.time_types, strict=True)))

    def _units(self, span: int | timedelta, what: str, whole: bool = False, up: bool = False) -> int:
        if self.counted:
            assert isinstance(span, int)
            return span
        return units_of(span, self.tick, self.time_types[0], what, whole, up)

    def bounds_of(self, window: Window, step: int) -> Bounds:
        """A window in units of this join, which moves by so many at once."""
        if isinstance(window, Rows):
            return Bounds(window.count, counted=True)
        if isinstance(window, Age):
            # Times are whole units: who is at least half a unit old is a whole one.
            least, most = self._units(window.least, "age", up=True), self._units(window.most, "age")
            if least > most:
                raise SpecError(f"a window of ages from {window.least} to {window.most} holds nothing")
            return Bounds(most, step, least)
        if not isinstance(window, Landmark):
            return Bounds(self._units(window, "window"), step)
        if step > 1:
            raise SpecError("a landmark window does not slide; leave slide out")
        if window.every is not None:
            every = self._units(window.every, "landmark", whole=True)
            if every < 1:
                raise SpecError("a landmark is every so often, which must be more than nothing")
            return Bounds(0, every)
        return Bounds(since=self._moment(window.since))

    def _moment(self, since: int | date | datetime | None) -> int:
        tick, told = self.tick, since
        if isinstance(since, int) != (tick is None) or since is None:
            needed = "a whole number of units" if tick is None else "a date or a datetime"
            raise SpecError(f"since {since!r} does not go with a time column of {self.time_types[0]}; give {needed}")
        if not isinstance(since, int):
            assert tick is not None
            moment = since if isinstance(since, datetime) else datetime(since.year, since.month, since.day)
            kind = next((type_ for type_ in self.time_types if pa.types.is_timestamp(type_)), pa.timestamp("us"))
            since = int(pa.scalar(moment, pa.timestamp("us", kind.tz)).value) * 1000 // tick
        if abs(since) >= FAR:
            raise SpecError(f"since {told!r} is too far from now to be told in units of the time columns")
        return since

    @cached_property
    def fingerprint(self) -> str:
        """Stable across processes; equal for equal joins."""
        told = [f"{each.name}={getattr(self.window, each.name)!r}" for each in fields(self.window)]
        # What was added later and is not asked for leaves a join the one that it was.
        unasked = {f"{name}={getattr(WindowSpec((0, 0)), name)!r}" for name in ("idle", "emit")}
        text = f"{super().fingerprint} WindowSpec({', '.join(each for each in told if each not in unasked)})"
        return hashlib.sha256(text.encode()).hexdigest()[:16]
