"""Where several inputs are in time, and which combinations of their rows are in all windows.

Every row has a *moment*: its time in units, or, where windows count rows, its number. Moments are kept as the first
column of each row, in memory and on disk. What the windows say is about the row of a combination that arrives last:

- of time: the stretches `[moment, moment + window]` of all rows share a moment; and if the row that arrives is late,
  the others are not too old for any row of its input that would be in time;
- of rows: each of the others is among the last so many of its input.

Where the last row finds all others as it arrives, that is asked then (`WindowFilter`). Where rows meet later, in any
order, each carries what was known when it arrived, behind its moment, and it is asked of all of them (`SettledFilter`):

- of time, if late rows are kept: the time from which on it would not have been late, if it was; and how many rows of
  all inputs had come before its batch, which says who of rows of several inputs came last;
- of rows: for each other input the first number that was among its last so many then, the *floor*. Nobody needs to know
  who came last: each row must be at or above its floor of every other. For the last row that is what the windows say;
  for any other it follows, because floors rise, and rows that came after it are above its floors anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.bands import tick_nanoseconds
from watersmeet.core.errors import LateRowError, SpecError
from watersmeet.core.keys import plain_type
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.saved import Saved
from watersmeet.core.spec import Band, JoinSpec
from watersmeet.core.windows import FAR
from watersmeet.records.bands import BandCodec
from watersmeet.records.plan import RowPlan
from watersmeet.records.times import NEVER, times_for_people

MOMENT = 0
"""The first column of every row."""
ALWAYS = 4 * FAR - 1
"""Later than any moment."""


class MomentPlan(RowPlan):
    """One input's columns, each row's moments before them: one, unless its rows are results of several inputs."""

    def __init__(self, spec: MultiSpec, number: int, exact_hash: bool, moments: int = 1) -> None:
        super().__init__(spec, number, exact_hash)
        words = [pa.int64()] * moments
        self.types = [*words, *self.types]
        self._originals = [*words, *self._originals]
        self._of_any_width = [i + moments for i in self._of_any_width]
        self.outputs = [i + moments for i in self.outputs]
        self.keys = [i + moments for i in self.keys]


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of a batch of rows."""

    columns: tuple[Int64, ...]
    """One, unless the rows are results of several inputs."""
    taken: Bool | None
    """Which rows count: those that have a time, and are not dropped for being late; None: all."""
    late: Bool | None
    """Which rows came too late; None: none."""
    marks: Int64 | None
    """If late rows are kept: for them the time from which on they would not have been late, for others `NEVER`."""
    newest: Int64
    """The newest moment of the input up to and with each row."""
    before: int
    """The newest moment of the input before all of them."""

    def newest_at(self, row: int) -> int:
        """The newest moment before a row of the batch."""
        return int(self.newest[row - 1]) if row else self.before


@dataclass(frozen=True, slots=True)
class Reached:
    """How far all inputs had come at some time."""

    newest: tuple[int, ...]
    rows: tuple[int, ...]
    closed: tuple[bool, ...]

    def and_also(self, other: Reached) -> Reached:
        """Of two operators of one join, which were given different rows: how far the one had come that was further."""
        closed = tuple(each or also for each, also in zip(self.closed, other.closed, strict=True))
        return Reached(tuple(map(max, self.newest, other.newest)), tuple(map(max, self.rows, other.rows)), closed)

    def to_state(self) -> list[list[Any]]:
        """For a snapshot."""
        return [list(self.newest), list(self.rows), list(self.closed)]

    @classmethod
    def from_state(cls, state: Sequence[Sequence[Any]]) -> Reached:
        """From a snapshot."""
        newest, rows, closed = map(tuple, state)
        return cls(newest, rows, closed)


class ManyTiming:
    """Turns the times of several inputs into words of one unit, and tells what is late and what has expired."""

    def __init__(self, spec: MultiSpec) -> None:
        assert spec.window_units is not None
        self.spans = spec.window_units.spans
        self.lateness = spec.window_units.lateness
        self._codecs = _codecs(spec)

    def times(self, number: int, batch: pa.RecordBatch) -> tuple[Int64, Bool | None]:
        """The times of an input's rows in units, and which rows have one (None: all)."""
        codec, column = self._codecs[number]
        return codec.words(0, batch.column(column))

    def late_before(self, newest: int) -> int:
        """Rows before this time are late, if their input has told `newest` as its newest time."""
        return newest if newest == NEVER else newest - self.lateness

    def kept_from(self, number: int, newest: int) -> int:
        """Rows of an input before this time meet none of another that has come so far."""
        return newest if newest == NEVER else newest - self.lateness - self.spans[number]

    def passed(self, number: int, newest: Sequence[int]) -> int:
        """Rows of an input before this time meet nothing that is still to come, if the inputs have come so far."""
        return self.kept_from(number, min(time for other, time in enumerate(newest) if other != number))


class WindowClock(Saved):
    """How far each input has come, in time and in rows."""

    SAVED: ClassVar[tuple[str, ...]] = ("newest", "rows", "closed", "late")

    def __init__(self, spec: MultiSpec) -> None:
        assert spec.window is not None and spec.window_units is not None
        inputs = len(spec.names)
        self.counted = spec.window.counted
        self.spans = spec.window_units.spans
        self.newest = [NEVER] * inputs
        """Each input's newest time so far."""
        self.rows = [0] * inputs
        """How many rows of each input have come."""
        self.closed = [False] * inputs
        self.late = [0] * inputs
        """How many rows of each input came too late."""
        self.tick = spec.window_units.tick
        """Nanoseconds of a unit; None if the time columns hold integers, or rows are counted."""
        self._late = spec.window.late
        self._names = spec.names
        self._timing = None if self.counted else ManyTiming(spec)

    def read(self, number: int, batch: pa.RecordBatch, numbers: Int64, newest: int) -> Moments:
        """The moments of the next rows of an input, which has told `newest` as its newest time so far."""
        if self._timing is None:
            return Moments((numbers,), None, None, None, numbers, newest)
        times, known = self._timing.times(number, batch)
        told = times if known is None else np.where(known, times, NEVER)
        sure = told if known is None else told[known]
        if len(sure) and (sure.max() >= FAR or sure.min() <= -FAR):
            name = self._names[number]
            raise SpecError(f"a time of {name} is too far from now to be joined by windows; leave it out")
        reached = np.maximum.accumulate(np.concatenate([[newest], told]))
        before, after = reached[:-1], reached[1:]
        columns = (np.ascontiguousarray(times),)
        marks = np.where(before == NEVER, NEVER, before - self._timing.lateness)
        late = told < marks
        if known is not None:
            late &= known
        if not late.any():
            return Moments(columns, known, None, None, after, newest)
        if self._late == "drop":
            known = ~late if known is None else known & ~late
        kept = np.where(late, marks, NEVER) if self._late == "keep" else None
        return Moments(columns, known, late, kept, after, newest)

    def count_late(self, number: int, moments: Moments, numbers: Int64) -> None:
        """Note how many rows came too late; an error if none may."""
        if moments.late is None:
            return
        if self._late == "error":
            row = 1 + int(numbers[np.flatnonzero(moments.late)[0]])
            raise LateRowError(
                f"row {row:,} of {self._names[number]} comes later than the lateness allows; allow more, or say "
                f"late='keep' or late='drop'"
            )
        self.late[number] += int(moments.late.sum())

    def reach(self, number: int, newest: int, rows: int) -> None:
        """An input has come so far."""
        self.newest[number] = newest
        self.rows[number] = rows

    def advance(self, newest: Sequence[int]) -> None:
        """The inputs have come so far in rows that others were given."""
        self.newest = [max(pair) for pair in zip(self.newest, newest, strict=True)]

    def reached(self) -> tuple[float | None, ...] | None:
        """Each input's newest time for people; None where rows count."""
        return None if self.counted else times_for_people(self.newest, self.tick)

    def take_over(self, at: Reached, late: Sequence[int]) -> None:
        """Go on where others of this join were, some of whose rows came too late."""
        self.newest, self.rows, self.closed = list(at.newest), list(at.rows), list(at.closed)
        self.late = list(late)

    def close(self, closed: Sequence[bool]) -> None:
        """These inputs have ended, and all their rows were worked off."""
        self.closed = list(closed)

    @property
    def keeps_late(self) -> bool:
        """Whether rows that come too late, which rows that are counted never do, meet what has not expired."""
        return not self.counted and self._late == "keep"

    @property
    def at(self) -> Reached:
        """How far all have come."""
        return Reached(tuple(self.newest), tuple(self.rows), tuple(self.closed))

    def expired_before(self, number: int, own: Sequence[int], at: Reached | None = None) -> int:
        """Rows with an earlier moment of this input meet nothing that is still to come, or that came after a time.

        They belong to an input, or to results of several, whose numbers are `own`: those to come are of the others.
        """
        at = at or self.at
        others = [i for i in range(len(self.spans)) if i not in own and not at.closed[i]]
        if not others:
            return ALWAYS
        if self._timing is None:
            return at.rows[number] - self.spans[number]
        return self._timing.kept_from(number, min(at.newest[i] for i in others))

    def known(self, number: int, moments: Moments) -> list[Int64]:
        """What rows of an input that arrive now carry behind their moments: see `words_known`."""
        count = len(moments.columns[0])
        if self.counted:
            floors = [rows - span for rows, span in zip(self.rows, self.spans, strict=True)]
            return [np.full(count, floor) for other, floor in enumerate(floors) if other != number]
        if not self.keeps_late:
            return []
        return [np.full(count, NEVER) if moments.marks is None else moments.marks, np.full(count, sum(self.rows))]


class WindowFilter:
    """Which partial combinations of the rows at hand can become results, as far as windows tell."""

    def __init__(
        self, clock: WindowClock, inputs: Sequence[ManyWords], parts: Sequence[Sequence[int]], marks: Int64 | None
    ) -> None:
        """`parts` tells by input of which of the clock's inputs a row has moments; `marks` those of late rows."""
        self._clock = clock
        self._inputs = inputs
        self._parts = parts
        self._marks = marks
        self._floors = [rows - span for rows, span in zip(clock.rows, clock.spans, strict=True)]

    def holds(self, bound: Sequence[int], ids: Int64, drivers: Int32) -> Bool:
        """Of partial combinations of some inputs, the last of which has just been found, those within all windows."""
        if self._clock.counted:
            found = bound[len(ids) - 1]
            inside = np.ones(ids.shape[1], np.bool_)
            for column, number in enumerate(self._parts[found]):
                inside &= self._inputs[found].words(column, ids[-1]) >= self._floors[number]
            return inside
        newest, until, oldest = (np.full(ids.shape[1], start) for start in (NEVER, ALWAYS, ALWAYS))
        for place, found in enumerate(bound[: len(ids)]):
            for column, number in enumerate(self._parts[found]):
                moments = self._inputs[found].words(column, ids[place])
                ends = moments + self._clock.spans[number]
                np.maximum(newest, moments, out=newest)
                np.minimum(until, ends, out=until)
                if place:
                    np.minimum(oldest, ends, out=oldest)
        meet: Bool = newest <= until
        if self._marks is not None:
            meet &= oldest >= self._marks[drivers]
        return meet


def words_known(spec: MultiSpec) -> int:
    """How many words rows carry behind their moments, if they may meet others later than they arrive."""
    assert spec.window is not None
    if spec.window.counted:
        return len(spec.names) - 1
    return 2 if spec.window.late == "keep" else 0


_MARK, _ORDER = 1, 2
"""The columns behind the moment, with windows of time."""


class SettledFilter:
    """Which combinations of rows that meet later than they arrived are in all windows."""

    def __init__(self, clock: WindowClock, inputs: Sequence[ManyWords]) -> None:
        self._clock = clock
        self._inputs = inputs
        self._some_late = clock.keeps_late and any(clock.late)

    def holds(self, bound: Sequence[int], ids: Int64) -> Bool:
        """Of partial combinations of some inputs, the last of which has just been found, those within all windows."""
        if self._clock.counted:
            return self._are_among_the_last(bound, ids)
        spans = self._clock.spans
        moments = [self._inputs[found].words(MOMENT, ids[place]) for place, found in enumerate(bound[: len(ids)])]
        ends = [own + spans[found] for own, found in zip(moments, bound, strict=False)]
        meet: Bool = np.maximum.reduce(moments) <= np.minimum.reduce(ends)
        if self._some_late and len(ids) == len(bound):
            places = np.flatnonzero(meet)
            meet[places] = self._are_in_time(bound, ids[:, places], np.stack(ends)[:, places])
        return meet

    def _are_in_time(self, bound: Sequence[int], ids: Int64, ends: Int64) -> Bool:
        """Whether the row that came last, if it was late, may meet all others."""
        orders = np.stack([self._inputs[found].words(_ORDER, own) for found, own in zip(bound, ids, strict=True)])
        marks = np.stack([self._inputs[found].words(_MARK, own) for found, own in zip(bound, ids, strict=True)])
        last = orders.argmax(axis=0)
        places = np.arange(ids.shape[1])
        ends[last, places] = ALWAYS
        in_time: Bool = ends.min(axis=0, initial=ALWAYS) >= marks[last, places]
        return in_time

    def _are_among_the_last(self, bound: Sequence[int], ids: Int64) -> Bool:
        """Whether the row that was found last, and each other, are above each other's floors."""
        found, own = bound[len(ids) - 1], ids[-1]
        numbers = self._inputs[found].words(MOMENT, own)
        inside = np.ones(len(own), np.bool_)
        for other, theirs in zip(bound, ids[:-1], strict=False):
            inside &= numbers >= self._inputs[other].words(_floor_of(found, other), theirs)
            inside &= self._inputs[other].words(MOMENT, theirs) >= self._inputs[found].words(
                _floor_of(other, found), own
            )
        return inside


class ManyWords(Protocol):
    """Rows of an input, wherever they lie."""

    def words(self, column: int, ids: Int64) -> Int64:
        """The values of a stored column of 64-bit words without NULL."""
        ...


def _floor_of(number: int, rows_of: int) -> int:
    """In which column rows of an input have the floor of another's."""
    return 1 + number - (number > rows_of)


def _codecs(spec: MultiSpec) -> list[tuple[BandCodec, int]]:
    """By input, what turns its times into words of the finest unit of all, and the column they are in."""
    assert spec.window is not None and spec.window.time is not None and spec.window_units is not None
    columns = spec.window.time
    dated = spec.window_units.tick is not None
    zero: int | timedelta = timedelta() if dated else 0
    fields = [pa.schema([spec.key_field(number, column)]) for number, column in enumerate(columns)]
    ticks = [tick_nanoseconds(plain_type(type_)[0]) if dated else 1 for type_ in spec.time_types]
    finest = ticks.index(min(ticks))
    return [
        (
            BandCodec.of(JoinSpec(own, fields[finest], (Band(name, columns[finest], zero),))),
            spec.input(number).get_field_index(name),
        )
        for number, (own, name) in enumerate(zip(fields, columns, strict=True))
    ]
