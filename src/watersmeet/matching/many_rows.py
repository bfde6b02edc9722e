"""Rows of one of several inputs, in its memtable and in its sorted runs: gathered in one pass, looked up by merging.

Rows of runs are found by look-ups, or owe: whoever finds them makes sure that they are what was written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64, Numbers
from watersmeet.core.cost import Meter
from watersmeet.kernels import addressed, combinations, gather
from watersmeet.kernels.merge import probe_sorted
from watersmeet.kernels.sorted_runs import RangeProbe
from watersmeet.matching.found_combinations import BATCH, FIRST_RUN, TABLE, Passing
from watersmeet.records.addressed import AddressedRows, Sources, groups, put_back
from watersmeet.records.attributes import Reach
from watersmeet.runs.run_set import RunSet, RunSets
from watersmeet.runs.sorted_run import SortedRun
from watersmeet.tables.hash_table import Probe
from watersmeet.tables.many_memtable import ManyMemtable, OrderedProbe

_HASH_BYTES = 8
_ENTRY_BYTES = 16
_NO_SOURCE = np.zeros((1, 4), np.int64)


def run_number(number: int, attribute: int, attributes: int) -> int:
    """What stands for a run in the numbers of its rows: the run of an attribute in one of an input's sets."""
    return FIRST_RUN + number * attributes + attribute


class ManyRows(AddressedRows):
    """All rows of one input that combinations can be made of, each told by its source and its place there."""

    def __init__(self, table: ManyMemtable, disk: RunSets) -> None:
        super().__init__(table.types)
        self.table = table
        self.disk = disk
        self.batch: Passing | None = None
        """Rows that arrive and need not be kept."""
        self.passed = 0
        """Bytes of runs that were gone through since they were let go."""
        self._attributes = len(table.orders)
        self.runs_changed()

    def runs_changed(self) -> None:
        """Runs came or went."""
        self._runs: list[SortedRun] = [run for each in self.disk.sets for run in each.runs]
        self._sources = np.concatenate([self.table.sources, _NO_SOURCE, *(run.sources for run in self._runs)])
        self._nullable = [any(run.may_be_null(column) for run in self._runs) for column in range(len(self.types))]
        # Where each source has the hashes of its order, and how far they are apart.
        places = [(self.table.hash_address, _ENTRY_BYTES), (0, 0)]
        places += [(run.hashes().ctypes.data, _HASH_BYTES) for run in self._runs]
        self._hashes_at = np.array(places, np.int64)

    def release(self) -> None:
        """Let mapped pages of runs leave memory."""
        self.passed = 0
        for run in self._runs:
            run.release()

    # --- what combinations are made of ---

    def attribute_hashes(self, attribute: int, ids: Int64) -> Int64:
        """One attribute's hashes."""
        if not len(ids):
            return np.empty(0, np.int64)
        rows = np.empty(len(ids), np.int32)
        source = combinations.untag(ids, 32, rows)
        if source == TABLE:
            return self.table.attribute_hashes(attribute, rows)
        if source == BATCH:
            assert self.batch is not None
            return self.batch.attribute_hashes(attribute, rows)
        if self._attributes == 1:
            hashes = np.empty(len(ids), np.int64)
            combinations.words_at(self._hashes_at, ids, hashes)
            return hashes
        hashes = np.empty(len(ids), np.int64)
        column = np.array([self.table.first_hashes + attribute], np.int32)
        out = np.array([hashes.ctypes.data, 0, 0], np.int64)
        addressed.gather(self._sources, self.widths, column, ids, out, np.zeros(1, np.int64))
        return hashes

    def gather_columns(self, columns: Sequence[int], ids: Int64) -> list[pa.Array]:
        """The values of some stored columns."""
        if len(ids) and ids[0] >> 32 == BATCH:
            assert self.batch is not None
            rows = (ids & 0xFFFFFFFF).astype(np.int32)
            return [self.batch.gather(column, rows) for column in columns]
        return self.gather_all(tuple(columns), ids) if columns else []

    def widen(self, column: int, rows: Numbers, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in an output batch."""
        if len(rows) and rows[0] >> 32 == BATCH:
            assert self.batch is not None
            self.batch.widen(column, (rows & 0xFFFFFFFF).astype(np.int32), widths)
            return
        super().widen(column, rows, widths)

    # --- where rows are ---

    @property
    def sources(self) -> Sources:
        return self._sources

    def may_be_null(self, column: int) -> bool:
        return self.table.may_be_null(column) or self._nullable[column]

    def other(self, column: int, rows: Numbers) -> pa.Array:
        which = rows >> 32
        order = np.argsort(which, kind="stable")
        taken = [
            self._source(int(which[group[0]])).other(column, (rows[group] & 0xFFFFFFFF).astype(np.int32))
            for group in groups(which[order], order)
        ]
        return put_back(order, taken)

    def other_width(self, column: int, rows: Numbers) -> int:
        return self._source(int(rows[0]) >> 32).other_width(column, rows[:1] & 0xFFFFFFFF)

    def _source(self, number: int) -> AddressedRows:
        return self.table if number == TABLE else self._runs[number - FIRST_RUN]


class SettlingRows:
    """What rows of another input that settle are to meet of this one: the first rows in memory, and the first run sets.

    Rows that come meanwhile have higher numbers, and are none of their concern. All of it is looked up as one source.
    """

    def __init__(self, rows: ManyRows, in_memory: int, sets: Sequence[RunSet], page_bytes: int, meter: Meter) -> None:
        self._rows = rows
        self._in_memory = in_memory
        self._sets = list(sets)
        self._page_hashes = max(1, page_bytes // _HASH_BYTES)
        self._meter = meter

    @property
    def table(self) -> SettlingRows:
        """Where rows are looked up."""
        return self

    @property
    def disk(self) -> None:
        """Nowhere else."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be met."""
        return not (self._in_memory or self._sets)

    def attribute_hashes(self, attribute: int, ids: Int64) -> Int64:
        """One attribute's hashes."""
        return self._rows.attribute_hashes(attribute, ids)

    def seek(self, attribute: int, hashes: Int64, reach: Reach | None = None) -> OrderedProbe:
        """The look-up of some ascending hashes of one attribute."""
        probe = self._rows.table.seek(attribute, hashes, reach)
        if not self._in_memory:
            probe.next_run()
        return probe

    def look_up(self, attribute: int, probe: Probe | RangeProbe, out_probe: Int32, out_row: Numbers) -> tuple[int, int]:
        """Go on with a look-up until the buffers are full; returns pairs found, and entries or rows visited.

        The pairs found are those of rows that count, however many others there are beside them.
        """
        assert isinstance(probe, OrderedProbe)
        found = visited = 0
        table, last = self._rows.table, len(self._sets) - 1
        if probe.run < 0:
            found, visited = table.look_up(attribute, probe, out_probe, out_row)
            if found and self._in_memory < table.rows:
                found = int(gather.keep(out_row[:found] < self._in_memory, out_probe[:found], out_row[:found]))
            if not probe.done or last < 0:
                return found, visited
            probe.next_run()
        while True:
            found, seen = self._merge(attribute, probe, out_probe, out_row, found)
            visited += seen
            if not probe.done or probe.run == last:
                return found, visited
            probe.next_run()

    def _merge(
        self, attribute: int, probe: OrderedProbe, out_probe: Int32, out_row: Numbers, before: int
    ) -> tuple[int, int]:
        """Merge hashes with those of one run until the buffers are full; returns pairs now in them, rows visited."""
        run = self._sets[probe.run].runs[attribute]
        hashes, theirs = probe.hashes.view(np.uint64), run.hashes()
        start, near = probe.next, probe.near
        if near < 0:
            near = int(np.searchsorted(theirs, hashes[start]))
        if not run.trusted:
            run.check_hashes(near, int(np.searchsorted(theirs, hashes[-1], side="right")))
        found, probe.next, probe.link, probe.near, visited = probe_sorted(
            hashes, start, len(hashes), probe.link, theirs, near, out_probe, out_row, before
        )
        gone_through = probe.near - near
        # Dense merges read all pages of hashes that they pass, sparse ones a page for each row.
        self._meter.pages_read += min(max(1, probe.next - start), 1 + gone_through // self._page_hashes)
        self._rows.passed += _HASH_BYTES * gone_through
        if found > before:
            if run.has_unchecked:
                run.check_rows(out_row[before:found])
            number = run_number(probe.run, attribute, len(self._rows.table.orders))
            out_row[before:found] += number << 32
            self._rows.passed += (found - before) * run.nbytes // run.rows
        return found, visited


class Mixed:
    """Which combinations have rows of more than one epoch: all others were found in memory."""

    def __init__(self, inputs: Sequence[ManyRows], epoch: int) -> None:
        sources = [[epoch, epoch] for _ in inputs]
        for known, rows in zip(sources, inputs, strict=True):
            for each in rows.disk.sets:
                known += [each.epoch] * len(each.runs)
        self._epochs = np.zeros((len(inputs), max(map(len, sources))), np.int64)
        for number, known in enumerate(sources):
            self._epochs[number, : len(known)] = known

    def holds(self, bound: Sequence[int], ids: Int64, drivers: Int32) -> Bool | None:
        """Which combinations have; None while they are not whole."""
        if len(ids) < len(bound):
            return None
        mixed = np.empty(ids.shape[1], np.bool_)
        combinations.differ(self._epochs, np.array(bound), ids, mixed)
        return mixed
