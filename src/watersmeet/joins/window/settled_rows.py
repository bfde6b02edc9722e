"""Rows of a window join that have found nobody, on their way out when their window has passed.

**When a row is settled.** A row of one input comes out alone once nothing can lead to a partner for it any more:

- no row that is still to come: the other input has come so far that the row has expired (`expired_before`), or has
  ended; rows that come late look no further back than that;
- no run that it owes: it is older than all rows of its input that owe;
- no row that owes a run in which it is: it is older than all that those look for (their floors).

So there is one time for each input before which all rows are settled (`settled_before`), told by times of rows and by
watermarks. It may fall back when rows come that owe, but what was settled before stays so.

**Each once.** What comes out is marked as a row with a partner is, when all of one pass has come out; so a later pass
does not find it again, wherever the row has gone meanwhile. A snapshot within a pass names its time, and the pass goes
on: nothing else happens before its end.

**None is lost.** Rows leave memory for good only behind the place up to which all have been settled (`_passed_rows`),
and runs only after a pass over all of their span (`_passed_runs`).
(`tests/conformance/test_window_kinds.py` breaks each of these, and is noticed.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.windows import TimeSpan
from watersmeet.engine.tracked_arrival import TrackedArrival
from watersmeet.engine.windows import ALWAYS, TimedArrival, Windows
from watersmeet.joins.confluence.alone import Alone
from watersmeet.matching.unmatched import Scan, Unmatched, UnmatchedTask, all_of, only
from watersmeet.records.addressed import AddressedRows
from watersmeet.records.times import NEVER, TIME
from watersmeet.runs.sorted_run import let_go

if TYPE_CHECKING:
    from watersmeet.engine.shell import Operator
    from watersmeet.joins.window.confluence import WindowConfluence
    from watersmeet.matching.debts import RunEntry


class TrackedTimedArrival(TrackedArrival, TimedArrival):
    """A batch with times on its way into memory, of an input whose rows are marked when they find a partner.

    Rows without a key or without a time can meet nobody, and come out at once; rows that are dropped for being late do
    not come out at all.
    """

    def __init__(
        self,
        join: Operator,
        windows: Windows,
        side: int,
        batch: pa.RecordBatch,
        numbers: Int64,
        newest: int,
        others: int,
    ) -> None:
        self._begin_tracking(join, side)
        TimedArrival.__init__(self, join, windows, side, batch, numbers, newest, others)
        self._begin_stages()

    def leave_out(self, positions: Int64, columns: Sequence[pa.Array]) -> None:
        """Rows that can meet nobody come out, unless they did already or are dropped."""
        if self.dropped is not None:
            positions = positions[~self.dropped[positions]]
        super().leave_out(positions, columns)

    def to_state(self) -> dict[str, Any]:
        """What is at hand, and what was known before it."""
        newest = self.newest_before(self.unfinished().start)
        return {**TrackedArrival.to_state(self), "newest": newest, "others": self._others}


class WindowUnmatchedTask(UnmatchedTask):
    """All rows of a side before a time that have no partner."""

    def __init__(self, join: Any, settled: SettledRows, side: int, before: int) -> None:
        super().__init__(join, side, settled.unmatched(side, before), partial(settled.passed, before=before))
        self._before = before

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        return {**super().to_state(), "before": self._before}


class SettledRows(Alone):
    """Part of an operator for windows: which rows come out alone, and when."""

    _join: WindowConfluence

    def __init__(self, join: WindowConfluence) -> None:
        super().__init__(join)
        self._passed_rows = [0, 0]
        """All rows of each memtable up to this number have come out, have a partner, or will have none asked for."""
        self._last_pass = [(0, NEVER), (0, NEVER)]
        """How many rows each memtable had at the last pass, and before which time rows were settled."""
        self._passed_runs: tuple[dict[str, int], dict[str, int]] = ({}, {})
        """Before which time all rows of a run have come out or have a partner, by its name."""

    def settled_before(self, side: int) -> int:
        """All rows of a side before this time are settled."""
        before = self._expired_by_known(side)
        if self._join.debts.owes(side):
            before = min(before, self._join.debts.span_of_owing(side).earliest)
        if self._join.debts.owes(1 - side):
            before = min(before, self._join.debts.span_of_owing(1 - side).floor)
        return before

    def _expired_by_known(self, side: int) -> int:
        """Before which time rows of a side have expired; where rows come in batches, by what was known before."""
        if self._join.exhausted(1 - side):
            return ALWAYS
        if self._join.passed_by_batches is None or self._join.spec.counted:
            return int(self._join.expired_before(side))
        return int(self._join.timed.timing.expired_before(side, self._join.passed_by_batches[1 - side], 0))

    def has_come(self, side: int) -> bool:
        """Whether there may be rows of a side that are settled and have not come out."""
        if not self._join.spec.kind.preserved[side]:
            return False
        table, before = self._join.tables[side], self.settled_before(side)
        if self._last_pass[side] != (table.rows, before) and table.begun_before(before) > self._passed_rows[side]:
            return True
        return any(self._is_open(side, entry, before) for entry in self._join.debts.runs[side])

    def _is_open(self, side: int, entry: RunEntry, before: int) -> bool:
        """Whether a run may have rows before a time that have not come out."""
        passed = self._passed_runs[side].get(entry.run.name, NEVER)
        return entry.span.earliest < before and passed < min(before, entry.span.latest + 1)

    def task(self, side: int) -> UnmatchedTask | None:
        """Hand out the rows of a side that are settled and have no partner."""
        if not self.has_come(side):
            return None
        self._join.events["rows without a partner settled"] += 1
        return WindowUnmatchedTask(self._join, self, side, self.settled_before(side))

    def resumed(self, state: dict[str, Any]) -> UnmatchedTask:
        """The task that was at hand when a snapshot was taken."""
        task = WindowUnmatchedTask(self._join, self, state["side"], state["before"])
        task.resume(state)
        return task

    def unmatched(self, side: int, before: int) -> list[Unmatched]:
        """The rows of a side before a time that have no partner, wherever they lie."""
        assert self._join.matched is not None
        table, bits = self._join.tables[side], self._join.matched.bits
        parts = [Unmatched(side, table, table.begun_before(before), self._scan_of_memory(side, before))]
        for entry in self._join.debts.runs[side]:
            if self._is_open(side, entry, before):
                run = entry.run
                scan: Scan = partial(bits.unmarked_from, run.name)
                if entry.span.latest >= before:
                    scan = _earlier(run, scan, before)
                parts.append(Unmatched(side, run, run.rows, scan, partial(let_go, [run])))
        return parts

    def _scan_of_memory(self, side: int, before: int) -> Scan:
        table, first = self._join.tables[side], self._passed_rows[side]

        def scan(start: int, most: int) -> tuple[Int64, int]:
            start = max(start, first)
            some = table.marks[start : start + most]
            return np.flatnonzero(some == 0) + start, start + max(1, len(some))

        return _earlier(table, scan, before)

    def passed(self, side: int, before: int) -> None:
        """All rows of a side before a time that had no partner have come out."""
        assert self._join.matched is not None
        table, bits = self._join.tables[side], self._join.matched.bits
        scan = self._scan_of_memory(side, before)
        for found in all_of(scan, table.begun_before(before)):
            table.marks[found] = 1
        self._passed_rows[side] = table.ended_before(before, self._passed_rows[side])
        self._last_pass[side] = table.rows, before
        for entry in self._join.debts.runs[side]:
            if self._is_open(side, entry, before):
                run = entry.run
                scan = partial(bits.unmarked_from, run.name)
                for found in all_of(_earlier(run, scan, before) if entry.span.latest >= before else scan, run.rows):
                    bits.mark([run.name], found)
                let_go([run])
                self._passed_runs[side][run.name] = before
        self._join.expire()

    def earliest(self, side: int) -> int | None:
        """The first time of rows of a side that may come out alone; None if there are none."""
        if not self._join.spec.kind.preserved[side]:
            return None
        spans = [self._join.tables[side].span_from(self._passed_rows[side])]
        spans += [entry.span for entry in self._join.debts.runs[side] if not self.run_may_expire(side, entry)]
        found = TimeSpan.all_of(spans)
        return None if found.is_empty else found.earliest

    # --- snapshots ---

    def to_state(self) -> list[Any]:
        """For a snapshot."""
        return [list(self._passed_rows), [list(each) for each in self._last_pass], list(self._passed_runs)]

    def load(self, state: Sequence[Any]) -> None:
        """Go on where a snapshot was taken."""
        rows, last, runs = state
        self._passed_rows, self._last_pass = list(rows), [(each[0], each[1]) for each in last]
        self._passed_runs = dict(runs[0]), dict(runs[1])

    # --- rows that go ---

    def may_expire(self, side: int, most: int) -> int:
        """How many of the first rows of a memtable, of so many, may be forgotten."""
        return min(most, self._passed_rows[side]) if self._join.spec.kind.preserved[side] else most

    def run_may_expire(self, side: int, entry: RunEntry) -> bool:
        """Whether no row of a run has yet to come out."""
        passed = self._passed_runs[side].get(entry.run.name, NEVER)
        return not self._join.spec.kind.preserved[side] or passed > entry.span.latest

    def rows_dropped(self, side: int, count: int) -> None:
        """The first rows of a memtable are gone, or all."""
        self._passed_rows[side] = max(0, self._passed_rows[side] - count)
        self._last_pass[side] = (0, NEVER)

    def runs_dropped(self, side: int, names: Sequence[str]) -> None:
        """Runs are gone."""
        for name in names:
            self._passed_runs[side].pop(name, None)


def _times(rows: AddressedRows, numbers: Int64) -> Int64:
    times: Int64 = rows.gather_all((TIME,), numbers)[0].to_numpy()
    return times


def _earlier(rows: AddressedRows, scan: Scan, before: int) -> Scan:
    """Of what a scan finds, the rows before a time."""
    return only(scan, lambda found: _times(rows, found) < before)
