"""The right input of an as-of join: its rows in the order of hash and time, in memory and on disk, and look-ups there.

```
memtable   rows as they came ──▶ stretches in the order of hash and time, merged as they become many
runs       the same order on disk; hashes and times apart from the rows
look-up    left rows in the order of hash and time gallop through each of them, and the nearest of all counts
```

Sources stand in the order in which their rows came, and within a source rows of one hash and time do, too. So of rows
of one time the last is the one in the last source that has any, and there the last; that is how ties are decided,
whatever chunks rows come in and whatever memory there is.

**What may be forgotten.** Let `P` be a time such that all left rows that wait or may come ask for partners as of `P`
or later. A right row that has a successor of the same key whose time is not after `P` is the last up to no such time,
and can go; but not at `P` itself if the nearest is wanted: a left row that found nobody near enough before may wait for
the first that comes right then. Looking forward, so can every row before `P`. (`tests/conformance/test_asof_mutants.py`
breaks each of these.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64, Numbers, Uint64
from watersmeet.core.asof import DIRECTIONS, AsofSpec
from watersmeet.kernels.addressed import OTHER, WORDS
from watersmeet.kernels.asof import BACKWARD, FORWARD, NOBODY, WAITS, look_up, merge_two
from watersmeet.kernels.hash_order import ascending
from watersmeet.kernels.radix import sorted_order
from watersmeet.records.addressed import NOWHERE, AddressedRows, Sources, gathered_by_source
from watersmeet.records.asof_times import TIME, AsofCodec, AsofPlan, AsofTiming
from watersmeet.runs.sorted_run import check_forward
from watersmeet.runs.timed_run import TimedRun
from watersmeet.tables.memtable import Memtable

_ONE_BLOCK = 40
"""Of more rows than there ever are."""
_NO_ROWS = np.empty(0, np.int32)
_CHUNK = 256


class Stretch(NamedTuple):
    """Some rows of a memtable in the order of hash and time."""

    hashes: Uint64
    times: Int64
    rows: Int32


class Nulls(AddressedRows):
    """One row in which every value is NULL: what left rows without a partner get."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        super().__init__(types)
        self._nothing = np.zeros(max(16, int(self.widths.max(initial=0)) + 16), np.uint8)
        at = self._nothing.ctypes.data
        words = np.zeros((len(types), WORDS), np.int64)
        for column, width in enumerate(self.widths.tolist()):
            words[column] = (8 * at if width == -1 else at, NOWHERE, 8 * at)
        self._words = words
        self._sources = np.array([[0, words.ctypes.data, _ONE_BLOCK, 0, 0]], np.int64)

    @property
    def sources(self) -> Sources:
        return self._sources

    def may_be_null(self, column: int) -> bool:
        return True

    def other(self, column: int, rows: Numbers) -> pa.Array:
        return pa.nulls(len(rows), self.types[column])

    def other_width(self, column: int, rows: Numbers) -> int:
        return 1


class RightRows(AddressedRows):
    """Rows of a memtable, of runs, and one without values, numbered with their source in the upper half of a word."""

    def __init__(self, table: Memtable, runs: Sequence[TimedRun], nulls: Nulls | None) -> None:
        super().__init__(table.types)
        self._parts: list[Any] = [table, *(run.run for run in runs)]
        self._runs = [run.run for run in runs]
        if nulls is not None:
            self._parts.append(nulls)
        self.nobody = len(self._parts) - 1 << 32
        """The row without values, if there is one."""

    @property
    def sources(self) -> Sources:
        return np.concatenate([part.sources for part in self._parts])

    def may_be_null(self, column: int) -> bool:
        return any(part.may_be_null(column) for part in self._parts)

    def check_rows(self, rows: Numbers) -> None:
        """Make sure that the blocks of rows are what was written."""
        if any(run.blocks_unchecked for run in self._runs):
            check_forward(self._parts, self.sources, rows, None)

    def gather_all(self, columns: tuple[int, ...], rows: Numbers) -> list[pa.Array]:
        self.check_rows(rows)
        return super().gather_all(columns, rows)

    def widen(self, column: int, rows: Numbers, widths: Int64) -> None:
        self.check_rows(rows)
        super().widen(column, rows, widths)

    def other(self, column: int, rows: Numbers) -> pa.Array:
        return gathered_by_source(self._parts.__getitem__, column, rows)

    def other_width(self, column: int, rows: Numbers) -> int:
        return max(int(part.other_width(column, rows[:1] & 0)) for part in self._parts if getattr(part, "rows", 1))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Left rows of one slice: their numbers, hashes, times and floors."""

    numbers: Int32
    hashes: Int64
    times: Int64
    floors: Int64


class Forgetting:
    """Which right rows are still asked for, if all left rows that wait or may come ask as of a time or later."""

    def __init__(self, spec: AsofSpec, timing: AsofTiming, plan: AsofPlan, exact: bool, bound: int) -> None:
        self._direction = DIRECTIONS.index(spec.times.direction)
        self._timing = timing
        self._keys = tuple(plan.keys)
        self._plan = plan
        self._codec = None if exact else AsofCodec.of_right(spec)
        self.exact = exact
        """Whether rows of one hash have one key."""
        self.bound = bound

    def kept(self, hashes: Uint64, times: Int64, rows: Numbers, source: AddressedRows) -> Bool:
        """Of rows in their order, those that are asked for; the last of them is judged for itself."""
        if self._direction == FORWARD:
            return times >= self.bound
        kept = np.ones(len(rows), np.bool_)
        kept[:-1] = (hashes[1:] != hashes[:-1]) | (times[1:] > self.bound)
        if self._direction != BACKWARD:
            # Who waits to be nearest, and has asked before the bound, takes the first row that comes right at it.
            kept |= times >= self.bound
        if self._codec is not None and not kept.all():
            gone = np.flatnonzero(~kept)
            pair = [self._key_arrays(source, rows[at]) for at in (gone, gone + 1)]
            equal = self._codec.equal(*pair)
            if equal is not None:
                kept[gone[~equal]] = True
        return kept & self.near(times)

    def near(self, times: Int64) -> Bool:
        """Which rows are not so long before all who ask that the tolerance leaves them out."""
        old = times < self.bound
        if self._timing.tolerance is None or not old.any():
            return np.ones(len(times), np.bool_)
        away = self._timing.apart(np.full(len(times), self.bound), times)
        return ~(old & self._timing.beyond(away, self._reach))

    def all_gone(self, latest: int) -> bool:
        """Whether rows up to a time are asked for no more."""
        if latest >= self.bound:
            return False
        if self._direction == FORWARD:
            return True
        apart = self._timing.apart(np.array([self.bound]), np.array([latest]))
        return bool(self._timing.beyond(apart, self._reach)[0])

    @property
    def _reach(self) -> int:
        """How many times the tolerance before the bound: a row that waits to be nearest may be before it as well."""
        return 1 if self._direction == BACKWARD else 3

    def _key_arrays(self, source: AddressedRows, rows: Numbers) -> list[pa.Array]:
        arrays = source.gather_all(self._keys, rows)
        return [self._plan.original(column, array) for column, array in zip(self._keys, arrays, strict=True)]


class TimedOrder:
    """A memtable's rows in the order of hash and time, sorted when they are asked for."""

    def __init__(self, table: Memtable, piece: int) -> None:
        self._table = table
        self._piece = piece
        self.stretches: list[Stretch] = []
        self._sorted = 0
        """Rows before this number are in stretches, or are asked for no more."""

    @property
    def live(self) -> int:
        """How many rows may still be asked for."""
        return self._table.rows - self._sorted + sum(len(stretch.rows) for stretch in self.stretches)

    def clear(self) -> None:
        """All rows have left the memtable."""
        self.stretches, self._sorted = [], 0

    def bring_up(self, forgetting: Forgetting | None) -> None:
        """Put rows that came since into their order; leave out what is found to be forgotten on the way."""
        table = self._table
        while self._sorted < table.rows:
            stop = min(table.rows, self._sorted + self._piece)
            self.stretches.append(self._ordered(self._sorted, stop))
            self._sorted = stop
            while len(self.stretches) > 1 and len(self.stretches[-2].rows) <= 2 * len(self.stretches[-1].rows):
                self._merge_last(forgetting)

    def whole(self, forgetting: Forgetting | None) -> Stretch:
        """All rows that are asked for, as one stretch."""
        self.bring_up(None)
        while len(self.stretches) > 1:
            self._merge_last(None)
        if self.stretches and forgetting is not None:
            self.stretches[0] = self._without(self.stretches[0], forgetting)
        return self.stretches[0] if self.stretches else Stretch(np.empty(0, np.uint64), np.empty(0, np.int64), _NO_ROWS)

    def _ordered(self, start: int, stop: int) -> Stretch:
        rows = np.arange(start, stop, dtype=np.int32)
        times = self._table.gather(TIME, rows).to_numpy()
        hashes = self._table.hashes(rows)
        hashes, times, order = in_order(hashes, times)
        return Stretch(hashes.view(np.uint64), times, order + np.int32(start))

    def _merge_last(self, forgetting: Forgetting | None) -> None:
        second, first = self.stretches.pop(), self.stretches.pop()
        count = len(first.rows) + len(second.rows)
        merged = Stretch(np.empty(count, np.uint64), np.empty(count, np.int64), np.empty(count, np.int32))
        merge_two(*first, *second, *merged)
        self.stretches.append(merged if forgetting is None else self._without(merged, forgetting))

    def _without(self, stretch: Stretch, forgetting: Forgetting) -> Stretch:
        kept = forgetting.kept(*stretch, self._table)
        if kept.all():
            return stretch
        return Stretch(stretch.hashes[kept], stretch.times[kept], stretch.rows[kept])

    def check(self) -> None:
        """Assert the invariants."""
        assert self.live <= self._table.rows
        for hashes, times, _ in self.stretches:
            same = hashes[1:] == hashes[:-1]
            assert ((hashes[1:] > hashes[:-1]) | same).all() and (times[1:] >= times[:-1])[same].all()


def in_order(hashes: Int64, times: Int64) -> tuple[Int64, Int64, Int32]:
    """Hashes and times in the order of hash (unsigned) and time, and which they were; equal ones stay as they are."""
    if (times[1:] >= times[:-1]).all():
        hashes, order = ascending(hashes)
        return hashes, times[order], order
    by_time = sorted_order(times)
    hashes, order = ascending(hashes[by_time])
    order = by_time[order]
    return hashes, times[order], order


class Nearest:
    """Look-ups of left rows in all that is remembered of the right input."""

    def __init__(self, spec: AsofSpec, timing: AsofTiming, codec: AsofCodec, plans: tuple[AsofPlan, AsofPlan]) -> None:
        self._direction = DIRECTIONS.index(spec.times.direction)
        self._timing = timing
        self._codec = codec
        self._plans = plans

    def find(
        self,
        wanted: Wanted,
        left: AddressedRows,
        right: RightRows,
        sources: Sequence[tuple[Uint64, Int64, Int32, int]],
        mark: int,
        ended: bool,
    ) -> Int64:
        """For each left row the row of the right input that it meets, `NOBODY` if there is none, or `WAITS`.

        `sources` have hashes, times, numbers where these are not places, and codes, in the order in which rows came.
        The right input has passed the time `mark`: it sends no row before it any more; or it has ended.
        """
        hashes, floors, order = in_order(wanted.hashes, wanted.floors)
        count = len(order)
        before, row_before = np.zeros(count, np.int64), np.full(count, NOBODY, np.int64)
        after, row_after = (before, row_before) if self._direction == BACKWARD else (before.copy(), row_before.copy())
        for source_hashes, times, rows, code in sources:
            if len(source_hashes):
                look_up(
                    hashes.view(np.uint64), floors, source_hashes.ctypes.data, times.ctypes.data, len(times), rows,
                    code, self._direction, before, row_before, after, row_after,
                )  # fmt: skip
        numbers = wanted.numbers[order]
        if not self._codec.exact:
            self._prove(left, numbers, hashes, floors, right, sources, before, row_before, True)
            if self._direction != BACKWARD:
                self._prove(left, numbers, hashes, floors, right, sources, after, row_after, False)
        found = np.empty(count, np.int64)
        found[order] = self._decided(wanted.times[order], floors, before, row_before, after, row_after, mark, ended)
        return found

    def _decided(
        self,
        times: Int64,
        floors: Int64,
        before: Int64,
        row_before: Int64,
        after: Int64,
        row_after: Int64,
        mark: int,
        ended: bool,
    ) -> Int64:
        """What each left row meets, as far as that is known.

        Of a row that came late it is known only if the last right row up to its floor is not after it: then nothing
        was forgotten that lies between. It is measured from the floor, so that it does not matter what was.
        """
        timing, late = self._timing, times < floors
        marks = np.full(len(times), mark)
        has_before, has_after = row_before >= 0, row_after >= 0
        passed = marks > floors if not ended else np.ones(len(times), np.bool_)
        near_before = has_before & (before <= times)
        if timing.tolerance is not None:
            near_before &= ~timing.beyond(timing.apart(floors, np.minimum(before, floors)))
        if self._direction == BACKWARD:
            return np.where(passed, np.where(near_before, row_before, NOBODY), WAITS)
        known_after = has_after & ((after <= mark) | ended)
        to_after = timing.apart(np.maximum(after, times), times)
        near_after = known_after & ~timing.beyond(to_after)
        # Whatever comes is not before the mark, and so is at least as far away as that.
        to_mark = timing.apart(np.maximum(marks, times), times)
        no_more = timing.beyond(to_mark) & (marks > times) | ended
        if self._direction == FORWARD:
            known = known_after | no_more
            answer = np.where(near_after, row_after, NOBODY)
            return np.where(late, np.where(passed, NOBODY, WAITS), np.where(known, answer, WAITS))
        to_before = timing.apart(times, np.minimum(before, times))
        known = known_after | no_more | (near_before & (to_mark >= to_before))
        known |= near_before & (before == times)
        lost = late & ~near_before
        closer = near_after & ~(near_before & (to_before <= to_after))
        answer = np.where(closer, row_after, np.where(near_before, row_before, NOBODY))
        answer[lost] = NOBODY
        return np.where(passed & (known | lost), answer, WAITS)

    # --- keys whose hashes agree ---

    def proven(self, left: AddressedRows, numbers: Int32, right: RightRows, rows: Int64) -> bool:
        """Whether each left row has found a row that has truly the same key, or none of its hash."""
        found = np.flatnonzero(rows != NOBODY)
        if not len(found):
            return True
        if int(rows[found].min()) < 0:
            return False  # what a row that came late has found is not known any more
        equal = self._codec.equal(self._keys(left, 0, numbers[found]), self._keys(right, 1, rows[found]))
        return equal is None or bool(equal.all())

    def _prove(
        self,
        left: AddressedRows,
        numbers: Int32,
        hashes: Int64,
        floors: Int64,
        right: RightRows,
        sources: Sequence[tuple[Uint64, Int64, Int32, int]],
        times: Int64,
        rows: Int64,
        backward: bool,
    ) -> None:
        """Keys of equal hashes may differ: then the nearest row that has truly the same key is searched for."""
        found = np.flatnonzero(rows >= 0)
        if not len(found):
            return
        keys = self._keys(left, 0, numbers[found])
        equal = self._codec.equal(keys, self._keys(right, 1, rows[found]))
        if equal is None or equal.all():
            return
        for i in found[~equal].tolist():
            rows[i] = NOBODY
            own = (left, int(numbers[i]))
            for source in sources:
                for row, time in self._candidates(own, right, source, int(hashes[i]), int(floors[i]), backward):
                    if rows[i] < 0 or (time >= times[i] if backward else time < times[i]):
                        rows[i], times[i] = row, time

    def _candidates(
        self,
        own: tuple[AddressedRows, int],
        right: RightRows,
        source: tuple[Uint64, Int64, Int32, int],
        hash_: int,
        floor: int,
        backward: bool,
    ) -> Iterator[tuple[int, int]]:
        """The nearest row of a source with the same key, if it has one."""
        hashes, times, rows, code = source
        start, stop = (
            int(np.searchsorted(hashes, np.int64(hash_).view(np.uint64), side)) for side in ("left", "right")
        )
        own_time = floor - (self._direction == FORWARD)
        place = start + int(np.searchsorted(times[start:stop], own_time, "right"))
        while start < place if backward else place < stop:
            chunk = (
                np.arange(max(start, place - _CHUNK), place)
                if backward
                else np.arange(place, min(stop, place + _CHUNK))
            )
            numbers = code + (rows[chunk].astype(np.int64) if len(rows) else chunk)
            repeated = self._keys(own[0], 0, np.full(len(chunk), own[1], np.int32))
            equal = self._codec.equal(repeated, self._keys(right, 1, numbers))
            where = np.arange(len(chunk)) if equal is None else np.flatnonzero(equal)
            if len(where):
                at = int(where[-1 if backward else 0])
                yield int(numbers[at]), int(times[chunk[at]])
                return
            place = int(chunk[0]) if backward else int(chunk[-1]) + 1

    def _keys(self, source: AddressedRows, side: int, rows: Numbers) -> list[pa.Array]:
        plan = self._plans[side]
        arrays = source.gather_all(tuple(plan.keys), rows)
        return [plan.original(column, array) for column, array in zip(plan.keys, arrays, strict=True)]


assert OTHER == 0, "a column without a plain layout has no width, and `Nulls` gives it none"
