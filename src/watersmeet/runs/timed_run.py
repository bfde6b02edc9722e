"""Runs in the order of hash and time: the rows are one run, and their times another beside it, without any columns.

So a look-up reads hashes and times alone, where they lie, one after the other; rows are read when they are found. Rows
of one hash and one time are as they came. Runs that become one are merged by hash, time and age, and leave out what
nobody asks for any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64, Numbers, Uint64
from watersmeet.kernels.asof import merge_timed
from watersmeet.records.addressed import AddressedRows, Sources
from watersmeet.runs.sorted_run import MergedRows, OpenRun, RunWriter, SortedRun, block_rows_for, let_go
from watersmeet.spill.store import Store

_ONE_BLOCK = 1 << 40
_MAPPED = 2 << 20
"""Bytes of runs that are mapped at once while they are merged."""

Kept: TypeAlias = Callable[[Uint64, Int64, Numbers, AddressedRows], Bool]
"""Which rows, by hash, time and number in their order, are still asked for; the last of them is judged for itself."""


class _NoColumns(AddressedRows):
    """Rows of which nothing is kept but their times."""

    @property
    def sources(self) -> Sources:
        return np.zeros((1, 5), np.int64)

    def may_be_null(self, column: int) -> bool:
        return False

    def other(self, column: int, rows: Numbers) -> pa.Array:
        raise AssertionError("there are no columns")

    def other_width(self, column: int, rows: Numbers) -> int:
        return 0


class TimedRun:
    """A run of rows, and their times."""

    def __init__(self, rows: SortedRun, times: SortedRun) -> None:
        self.run = rows
        self._times = times
        self.rows = rows.rows
        self.nbytes = rows.nbytes + times.nbytes

    @classmethod
    def open(cls, open_run: OpenRun, name: str, types: Sequence[pa.DataType]) -> TimedRun:
        """The run of a name."""
        return cls(open_run(name, types), open_run(_beside(name), ()))

    @property
    def name(self) -> str:
        """What it is called."""
        return self.run.name

    @property
    def names(self) -> list[str]:
        """Of its segments."""
        return [self.run.name, self._times.name]

    @property
    def both(self) -> list[SortedRun]:
        """The rows and their times."""
        return [self.run, self._times]

    def hashes(self) -> Uint64:
        """All hashes, made sure of."""
        if not self.run.trusted:
            self.run.check_hashes(0, self.rows)
        return self.run.hashes()

    def times(self) -> Int64:
        """All times, made sure of."""
        if not self._times.trusted:
            self._times.check_hashes(0, self.rows)
        return self._times.hashes().view(np.int64)


def _beside(name: str) -> str:
    return f"{name}-times"


class TimedRunWriter:
    """Writes a run and its times: first hashes and times of all rows, then the rows, block by block."""

    def __init__(self, store: Store, name: str, types: Sequence[pa.DataType], block_rows: int, at_once: int) -> None:
        self._rows = RunWriter(store, name, types, 0, block_rows, at_once)
        self._times = RunWriter(store, _beside(name), (), 0, _ONE_BLOCK, 0)
        self.block_rows = block_rows

    def write_order(self, hashes: Uint64, times: Int64) -> None:
        """Hashes and times of the next rows."""
        self._rows.write_hashes(hashes)
        self._times.write_hashes(times.view(np.uint64))
        self._rows.rows += len(hashes)
        self._times.rows += len(hashes)

    def write_rows(self, rows: AddressedRows, numbers: Numbers) -> None:
        """The next rows, from wherever they lie: whole blocks, unless they are the last ones."""
        self._rows.write_rows(rows, numbers)

    def seal(self) -> TimedRun:
        """Publish the run."""
        if self._times.rows:
            self._times.write_rows(_NoColumns(()), np.zeros(1, np.int32))
        times = self._times.seal()
        return TimedRun(self._rows.seal(), times)

    def abort(self) -> None:
        """Leave nothing."""
        self._rows.abort()
        self._times.abort()


def write_timed_run(
    store: Store,
    name: str,
    table: AddressedRows,
    order: tuple[Uint64, Int64, Numbers],
    row_bytes: int,
    block_bytes: int,
) -> TimedRun:
    """Write rows of a table in their order of hash and time; a failure leaves nothing."""
    hashes, times, numbers = order
    writer = TimedRunWriter(store, name, table.types, block_rows_for(row_bytes, 1, block_bytes), block_bytes)
    try:
        writer.write_order(hashes, times)
        writer.write_rows(table, numbers)
        return writer.seal()
    except BaseException:
        writer.abort()
        raise


def write_times(store: Store, name: str, times: Int64) -> str:
    """Write the times beside a run of so many rows that was written by itself; returns what they are called."""
    writer = RunWriter(store, _beside(name), (), len(times), _ONE_BLOCK, 0)
    try:
        writer.write_hashes(times.view(np.uint64))
        writer.write_rows(_NoColumns(()), np.zeros(1, np.int32))
        writer.seal()
    except BaseException:
        writer.abort()
        raise
    return _beside(name)


def write_run_in_order(
    store: Store, name: str, table: AddressedRows, keys: Uint64, numbers: Numbers, row_bytes: int, block_bytes: int
) -> SortedRun:
    """Write rows of a table in the order of their keys, which was found already; a failure leaves nothing."""
    block_rows = block_rows_for(row_bytes, 1, block_bytes)
    writer = RunWriter(store, name, table.types, len(numbers), block_rows, block_bytes)
    try:
        writer.write_hashes(keys)
        writer.write_rows(table, numbers)
        return writer.seal()
    except BaseException:
        writer.abort()
        raise


class TimedMerge:
    """Several runs, the oldest first, on their way to become one that holds only what is still asked for."""

    def __init__(self, store: Store, name: str, runs: Sequence[TimedRun], page_bytes: int, kept: Kept) -> None:
        self.runs = list(runs)
        self._source = MergedRows([run.run for run in self.runs])
        self.rows = self._source.rows
        """How many there are to begin with."""
        self.nbytes = sum(run.nbytes for run in runs)
        self._block_rows = block_rows_for(self.nbytes, self.rows, page_bytes)
        self._room = max(16, page_bytes // 32)
        self._kept = kept
        self._writer = TimedRunWriter(store, name, self._source.types, self._block_rows, page_bytes)
        self._most_mapped = _MAPPED * self.rows // max(1, self.nbytes)
        self._passed = 0
        self._steps = self._work()
        self.merged: TimedRun | None = None

    def work(self) -> int:
        """Merge a little; returns how many rows were passed, 0 when all is done and `merged` is there."""
        return next(self._steps, 0)

    def _work(self) -> Iterator[int]:
        for passed, hashes, times, _ in self._next_rows():
            self._writer.write_order(hashes, times)
            self._let_go(passed // 4)
            yield passed
        waiting = np.empty(0, np.int64)
        for passed, _, _, rows in self._next_rows():
            waiting = np.concatenate([waiting, rows])
            whole = len(waiting) // self._block_rows * self._block_rows
            self._write(waiting[:whole])
            waiting = waiting[whole:]
            self._let_go(passed)
            yield passed
        if len(waiting):
            self._write(waiting)
        self.merged = self._writer.seal()

    def _write(self, rows: Int64) -> None:
        self._source.check_rows(rows)
        self._writer.write_rows(self._source, rows)

    def _next_rows(self) -> Iterator[tuple[int, Uint64, Int64, Int64]]:
        """All rows that are kept, in their order, with how many were passed. The last of some waits for the next."""
        hash_places, time_places = [
            np.array([each(run).ctypes.data for run in self.runs]) for each in (TimedRun.hashes, TimedRun.times)
        ]
        ends = np.array([run.rows for run in self.runs], np.int64)
        places = np.zeros(len(self.runs), np.int64)
        room = self._room
        hashes, times, rows = np.empty(room + 1, np.uint64), np.empty(room + 1, np.int64), np.empty(room + 1, np.int64)
        held = 0
        while True:
            found = int(merge_timed(hash_places, time_places, ends, places, hashes[held:], times[held:], rows[held:]))
            count = held + found
            if not count:
                return
            kept = self._kept(hashes[:count], times[:count], rows[:count], self._source)
            last = not found or bool((places >= ends).all())
            stop = count if last else count - 1
            some = np.flatnonzero(kept[:stop])
            yield max(1, found), hashes[some], times[some], rows[some]
            if last:
                return
            hashes[0], times[0], rows[0] = hashes[count - 1], times[count - 1], rows[count - 1]
            held = 1

    def _let_go(self, passed: int) -> None:
        self._passed += passed
        if self._passed > self._most_mapped:
            self._passed = 0
            let_go([each for run in self.runs for each in run.both])

    def abort(self) -> None:
        """Leave nothing of it."""
        self._writer.abort()
