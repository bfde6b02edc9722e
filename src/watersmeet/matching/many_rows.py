"""Rows of one of several inputs, in its memtable and in its sorted runs: gathered in one pass, looked up by merging."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64, Numbers
from watersmeet.core.cost import Meter
from watersmeet.kernels import combinations, gather
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
        self._attributes = len(table.orders)
        self.runs_changed()

    def runs_changed(self) -> None:
        """Runs came or went."""
        self._runs: list[SortedRun] = [run for each in self.disk.sets for run in each.runs]
        self._sources = np.concatenate([self.table.sources, _NO_SOURCE, *(run.sources for run in self._runs)])
        self._has_unchecked = bool(self._runs)
        # Where each source has the hashes of its order, and how far they are apart.
        places = [(self.table.hash_address, _ENTRY_BYTES), (0, 0)]
        places += [(run.hashes().ctypes.data, _HASH_BYTES) for run in self._runs]
        self._hashes_at = np.array(places, np.int64)

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
        return self.gather_all((self.table.first_hashes + attribute,), ids)[0].to_numpy()

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
        self._check_rows(rows)
        super().widen(column, rows, widths)

    # --- where rows are ---

    @property
    def sources(self) -> Sources:
        return self._sources

    def may_be_null(self, column: int) -> bool:
        return self.table.may_be_null(column) or any(run.may_be_null(column) for run in self._runs)

    def gather_all(self, columns: tuple[int, ...], rows: Numbers) -> list[pa.Array]:
        self._check_rows(rows)
        return super().gather_all(columns, rows)

    def _check_rows(self, rows: Numbers) -> None:
        """Make sure that the blocks of rows on disk are what was written."""
        if self._has_unchecked:
            self._has_unchecked = any(run.has_unchecked for run in self._runs)
            which = rows >> 32
            for number, run in enumerate(self._runs, FIRST_RUN):
                if run.has_unchecked:
                    run.check_rows(rows[which == number] & 0xFFFFFFFF)

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
    """What rows of another input that settle are to meet of this one: the first run sets, and the first rows in memory.

    Rows that come meanwhile have higher numbers, and are none of their concern.
    """

    page_rows = 0
    """Fuel for a page: reading it is a part of merging."""

    def __init__(self, rows: ManyRows, sets: Sequence[RunSet], in_memory: int) -> None:
        self._rows = rows
        self._sets = list(sets)
        self._in_memory = in_memory
        self.passed = 0
        """Bytes of runs that were gone through."""

    @property
    def table(self) -> SettlingRows:
        """Where rows in memory are looked up."""
        return self

    @property
    def disk(self) -> SettlingRows:
        """Where runs are looked up."""
        return self

    @property
    def runs(self) -> list[_MergedLookup]:
        """All runs are looked up as one."""
        return [_MergedLookup(self)]

    @property
    def on_disk(self) -> int:
        """How many such sources there are."""
        return int(bool(self._sets))

    def attribute_hashes(self, attribute: int, ids: Int64) -> Int64:
        """One attribute's hashes."""
        return self._rows.attribute_hashes(attribute, ids)

    def seek(self, attribute: int, hashes: Int64, reach: Reach | None = None) -> OrderedProbe:
        """The look-up of some hashes of one attribute."""
        return self._rows.table.seek(attribute, hashes, reach)

    def look_up(self, attribute: int, probe: Probe | RangeProbe, out_probe: Int32, out_row: Numbers) -> tuple[int, int]:
        """Go on with a look-up in memory until the buffers are full; returns pairs found, entries visited."""
        table = self._rows.table
        if not self._in_memory:
            assert isinstance(probe, OrderedProbe)
            probe.next = len(probe.hashes)
            return 0, 0
        found, visited = table.look_up(attribute, probe, out_probe, out_row)
        if found and self._in_memory < table.rows:
            found = int(gather.keep(out_row[:found] < self._in_memory, out_probe[:found], out_row[:found]))
        return found, visited

    def merge(
        self, attribute: int, probe: OrderedProbe, out_probe: Int32, out_row: Numbers, page_bytes: int
    ) -> tuple[int, int, int]:
        """Merge ascending hashes with those of run after run until the buffers are full; returns pairs found, rows
        visited, and pages read.
        """
        hashes = probe.hashes.view(np.uint64)
        count, last, attributes = len(hashes), len(self._sets) - 1, len(self._rows.table.orders)
        found = visited = pages = 0
        while True:
            run = self._sets[probe.run].runs[attribute]
            theirs = run.hashes()
            if probe.near < 0:
                probe.near = int(np.searchsorted(theirs, hashes[probe.next]))
            if not run.trusted:
                run.check_hashes(probe.near, int(np.searchsorted(theirs, hashes[-1], side="right")))
            before, near, start = found, probe.near, probe.next
            found, probe.next, probe.link, probe.near, seen = probe_sorted(
                hashes, start, count, probe.link, theirs, near, out_probe, out_row, found
            )
            out_row[before:found] += run_number(probe.run, attribute, attributes) << 32
            visited += seen
            gone_through = probe.near - near
            # Dense merges read all pages of hashes that they pass, sparse ones a page for each row.
            pages += min(max(1, probe.next - start), 1 + gone_through * _HASH_BYTES // page_bytes)
            self.passed += _HASH_BYTES * gone_through + (found - before) * run.nbytes // max(1, run.rows)
            if probe.next < count or probe.run == last:
                return found, visited, pages
            probe.run += 1
            probe.next, probe.link, probe.near = 0, -1, -1

    def release(self) -> None:
        """Let mapped pages of runs leave memory."""
        for each in self._sets:
            for run in each.runs:
                run.release()


class _MergedLookup:
    """The runs of an input as one source."""

    def __init__(self, rows: SettlingRows) -> None:
        self._rows = rows

    def look_up(
        self, attribute: int, probe: Probe | RangeProbe, out_probe: Int32, out_row: Numbers, meter: Meter
    ) -> tuple[int, int]:
        """Go on with a look-up by one attribute until the buffers are full; returns pairs found, rows visited."""
        assert isinstance(probe, OrderedProbe)
        found, visited, pages = self._rows.merge(attribute, probe, out_probe, out_row, _PAGE_BYTES)
        meter.pages_read += pages
        return found, visited


_PAGE_BYTES = 4096


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
