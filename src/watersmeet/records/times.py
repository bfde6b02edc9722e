"""Rows on their way into a window join: times as words, what is kept of rows, what is proved of a pair, its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.errors import SpecError
from watersmeet.core.keys import plain_type
from watersmeet.core.promises import Range
from watersmeet.core.queries import QueriesSpec
from watersmeet.core.spec import Band, JoinSpec
from watersmeet.core.windows import FAR, Bounds, WindowJoinSpec
from watersmeet.records.bands import BandCodec
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan

TIME, FLOOR = 0, 1
"""The first two columns of every row of a window join."""
FIRST_PAYLOAD = 2
CLASS = 2
"""The next, where a row is of a class of rows that the same queries want."""


NEVER = np.iinfo(np.int64).min
"""Earlier than any time: of an input that has not told any yet."""


def times_for_people(newest: Sequence[int], tick: int | None) -> tuple[float | None, ...]:
    """Newest times as seconds since 1970, if a unit is `tick` nanoseconds, or as integer columns have them.

    >>> times_for_people([1_500, NEVER], 1_000_000), times_for_people([7], None)
    ((1.5, None), (7,))
    """
    return tuple(None if time == NEVER else time if tick is None else time * tick / 10**9 for time in newest)


class WindowCodec(KeyCodec):
    """Hashes of the equalities; a band beside them is checked on the pairs that were found.

    Without equalities all rows have one hash.
    """

    def __init__(self, spec: JoinSpec) -> None:
        super().__init__(spec)
        self.band = None if spec.band is None else BandCodec.of(spec)
        self.verified_keys = 0 if self.exact else len(spec.equalities)
        self.verifies_band = self.band is not None
        self.exact = self.exact and self.band is None

    def hash(self, side: int, columns: Sequence[pa.Array]) -> tuple[Int64, Bool | None]:
        """A hash for each row, and which rows can match anything (None: all can)."""
        return super().hash(side, columns) if self._forms else (np.zeros(len(columns[0]), np.int64), None)

    def equal(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Bool | None:
        """Which pairs of rows that were found truly match; None if all do."""
        keys = self.verified_keys
        equal = super().equal(left[:keys], right[:keys])
        if self.band is None:
            return equal
        close = self.band.close(left[-1], right[-1])
        return close if equal is None else equal & close


class PairProof(Protocol):
    """What is asked of the values of two rows that were found to match."""

    verified_keys: int
    """How many equalities."""
    verifies_band: bool
    """And whether the band."""


class WindowPlan(RowPlan):
    """One input's columns, the time and the floor of each row before them."""

    def __init__(self, spec: JoinSpec, side: int, codec: PairProof) -> None:
        band = [] if spec.band is None or not codec.verifies_band else [spec.band.column(side)]
        super().__init__(spec, side, not codec.verified_keys, band)
        if not self._key_columns:
            # Rows are sorted by what the band asks for, or else by their times.
            sorted_by = spec.band.column(side) if spec.band is not None else _time_column(spec, side)
            self._key_columns = [spec.input(side).get_field_index(sorted_by)]
        words = [pa.int64()] * FIRST_PAYLOAD + [pa.int32()] * isinstance(spec, QueriesSpec)
        self.types = [*words, *self.types]
        self._originals = [*words, *self._originals]
        self._of_any_width = [i + len(words) for i in self._of_any_width]
        self.outputs = [i + len(words) for i in self.outputs]
        self.keys = [i + len(words) for i in self.keys]


def _time_column(spec: JoinSpec, side: int) -> str:
    """The column that tells the time; where rows count, any."""
    assert isinstance(spec, WindowJoinSpec)
    return spec.input(side).names[0] if spec.window.time is None else spec.window.time[side]


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of a batch of rows."""

    times: Int64
    floors: Int64
    known: Bool | None
    """Which rows have a time; None: all."""
    late: Bool | None
    """Which rows came too late; None: none."""
    newest: Int64
    """The newest time of the input up to and with each row."""
    before: int
    """The newest time of the input before all of them."""


def by_time(spec: WindowJoinSpec) -> JoinSpec:
    """The join of rows of one time: what sorting and comparing by time is told from."""
    assert spec.window.time is not None
    zero = 0 if pa.types.is_integer(spec.time_types[0]) else timedelta()
    return JoinSpec(spec.left, spec.right, (Band(*spec.window.time, zero),))


class Timing:
    """Turns the times of both inputs into words of one unit, and tells which rows are late.

    With windows that count rows, a row's number stands for its time.
    """

    def __init__(self, spec: WindowJoinSpec) -> None:
        self.bounds = spec.bounds
        self.counted = spec.counted
        self._lateness = spec.lateness
        self._names = spec.names
        if not self.counted:
            assert spec.window.time is not None
            self._columns = [spec.input(side).get_field_index(spec.window.time[side]) for side in (0, 1)]
            self._told = [spec.input(side).field(column) for side, column in enumerate(self._columns)]
            self._tick = spec.tick
            self._codec = BandCodec.of(by_time(spec))

    def read(self, side: int, batch: pa.RecordBatch, numbers: Int64, newest: int, others: int) -> Timed:
        """The times of the next rows of an input, which has told `newest` as its newest time so far.

        `others` is how many rows of the other input came before them.
        """
        window = self.bounds[1 - side]
        if self.counted:
            numbers = np.where(numbers < 0, ~numbers, numbers)  # of rows that have come out, and meet nobody
            floors = np.full(len(numbers), others - window.span)
            return Timed(numbers, floors, None, None, numbers, newest)
        times, known = self.times(side, batch)
        told = times if known is None else np.where(known, times, NEVER)
        if len(told) and (told.max() >= FAR or (told if known is None else told[known]).min(initial=0) <= -FAR):
            raise SpecError(f"a time of {self._names[side]} is too far from now to be joined by windows; leave it out")
        reached = np.maximum.accumulate(np.concatenate([[newest], told]))
        before, after = reached[:-1], reached[1:]
        floors = self.first_met(side, times)
        marks = np.where(before == NEVER, NEVER, before - self._lateness)
        is_late = told < marks
        if known is not None:
            is_late &= known
        late = None
        if is_late.any():
            late = is_late
            floors = np.where(is_late, np.maximum(floors, np.minimum(window.lower(marks), marks)), floors)
        return Timed(np.ascontiguousarray(times), floors, known, late, after, newest)

    def times(self, side: int, batch: pa.RecordBatch) -> tuple[Int64, Bool | None]:
        """The times of an input's rows in units, and which rows have one (None: all)."""
        return self.read_times(side, batch.column(self._columns[side]))

    def read_times(self, side: int, column: pa.Array) -> tuple[Int64, Bool | None]:
        """The same of a column of such times."""
        times, known = self._codec.words(side, column)
        return times, None if known is not None and known.all() else known

    def told_by(self, side: int, pattern: Mapping[str, object]) -> int | None:
        """As how new a row a promise counts that none up to a time follows; None if it is not about times alone."""
        if self.counted or set(pattern) != {self._told[side].name}:
            return None
        bound = pattern[self._told[side].name]
        if not isinstance(bound, Range) or bound.low is not None:
            return None
        try:
            value = pa.array([bound.high], plain_type(self._told[side].type)[0])
        except (pa.ArrowException, TypeError, ValueError):
            raise SpecError(
                f"a punctuation of {self._names[side]} says {bound.high!r} of {self._told[side].name!r}, which is no "
                f"{self._told[side].type}; correct the source"
            ) from None
        words, _ = self._codec.words(side, value)
        first = int(words[0]) + (not bound.high_open)
        if abs(first) >= FAR:
            raise SpecError(f"a time of {self._names[side]} is too far from now to be joined by windows; leave it out")
        return first + self._lateness

    def reached(self, newest: Sequence[int]) -> tuple[float | None, ...] | None:
        """Newest times for people; None where rows count."""
        return None if self.counted else times_for_people(newest, self._tick)

    def late_before(self, newest: int) -> int:
        """Rows before this time are late, if their input has told `newest` as its newest time."""
        return newest if newest == NEVER else newest - self._lateness

    def meets(self, side: int, times: Int64) -> Int64:
        """The last time of the other input's rows that rows of these times meet."""
        if self.counted:
            return np.full(len(times), np.iinfo(np.int64).max)
        last = self.bounds[side].upper(times)
        if self.bounds[side].since is None:
            return last
        # Before the landmark a row is in no window, but may still meet rows of its own time and older ones.
        meets_older = self.bounds[1 - side].lower(times) <= times
        return np.where(last < times, np.where(meets_older, times, times - 1), last)

    def first_met(self, side: int, times: Int64) -> Int64:
        """The first time of the other input's rows that rows of these times meet."""
        first = self.bounds[1 - side].lower(times)
        if self.bounds[1 - side].since is None:
            return first
        meets_younger = self.bounds[side].upper(times) >= times
        return np.where(first > times, np.where(meets_younger, times, times + 1), first)

    def expired_before(self, side: int, newest: int, count: int) -> int:
        """Rows of `side` before this time meet nothing that is still to come.

        `newest` is the other input's newest time so far, `count` how many rows of `side` have come.
        """
        window = self.bounds[side]
        if self.counted:
            return count - window.span
        if newest == NEVER:
            return NEVER
        mark = newest - self._lateness
        return min(window.lower(mark), mark)

    def passed(self, side: int, newest: Sequence[int]) -> int:
        """Rows of `side` before this time meet nothing that is still to come, if the inputs have come so far."""
        return self.expired_before(side, newest[1 - side], 0)

    def kept_from(self, side: int, newest: int) -> int:
        """Rows of `side` before this time meet none of the other input, if that has come so far."""
        return self.expired_before(side, newest, 0)

    def length(self, side: int) -> int:
        """For how long rows of `side` are remembered, if both inputs keep pace."""
        window = self.bounds[side]
        return 2 * FAR if window.since is not None else window.span + window.step - 1 + self._lateness

    def least_ages(self, side: int) -> tuple[int, int]:
        """A row of `side` meets no row that is younger than so much before it, or after it."""
        return self.bounds[1 - side].least, self.bounds[side].least

    def words(self, side: int) -> Int64:
        """The window of `side` for the kernel that looks up rows which left memory."""
        window: Bounds = self.bounds[side]
        behind, ahead = self.least_ages(side)
        return np.array(
            [self.counted, window.span, window.step, window.since or 0, window.since is not None, behind, ahead],
            np.int64,
        )


_LAST = 4 * FAR - 2
"""The time of rows whose window never closes, which come when all inputs have ended."""


class ResultTimes:
    """Reads the times of results off their columns.

    The time of a pair is that of its later row. A row that comes alone, because it has no partner or because only the
    rows of one input are asked for, has the last time at which it could have met another: then its window has closed.

    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.core.windows import parse_windows
    >>> schema = pa.schema({"id": pa.int64(), "t": pa.int64()})
    >>> spec = WindowJoinSpec(schema, schema, parse_on("id"), window=parse_windows((7, 3), "t"))
    >>> ResultTimes(spec, Timing(spec)).of(pa.record_batch({"id": [1, 2], "t": [20, 30], "t_right": [25, None]}))
    array([25, 37])
    """

    def __init__(self, spec: WindowJoinSpec, timing: Timing) -> None:
        assert spec.window.time is not None
        self._timing = timing
        self._places: list[int | None] = []
        for side, name in enumerate(spec.window.time):
            column = spec.input(side).get_field_index(name)
            place = next((i for i, made_of in enumerate(spec.columns) if made_of[side] == column), None)
            if place is not None and spec.schema.field(place).type != spec.input(side).field(column).type:
                raise SpecError(
                    f"emit='final' cannot tell the time of results: column {name!r} is joined on, too, and has another "
                    f"type in each input; cast one of them first"
                )
            self._places.append(place)
        self._tells_pairs = None not in self._places and self._places[0] != self._places[1]
        """Whether the columns tell which results are pairs; if not, all are taken for rows that come alone."""
        self._one_sided = spec.kind.one_sided

    def of(self, batch: pa.RecordBatch) -> Int64:
        """The time of each result; earlier than any time for a row that has none."""
        found = [self._read(side, batch) for side in (0, 1)]
        times = np.full(batch.num_rows, NEVER)
        for each in found:
            if each is not None:
                for side in (0,) if self._one_sided else (each[0],) if self._tells_pairs else (0, 1):
                    closes = np.minimum(self._timing.meets(side, each[1]), _LAST)
                    times = np.where(each[2], np.maximum(times, closes), times)
        left, right = found
        if not self._tells_pairs or left is None or right is None:
            return times
        pairs: Int64 = np.where(left[2] & right[2], np.maximum(left[1], right[1]), times)
        return pairs

    def _read(self, side: int, batch: pa.RecordBatch) -> tuple[int, Int64, Bool] | None:
        """The times of rows of a side, and which results have one."""
        place = self._places[side]
        if place is None:
            return None
        times, known = self._timing.read_times(side, batch.column(place))
        return side, times, np.ones(len(times), np.bool_) if known is None else known
