"""Rows of one of several inputs, in its memtable and in its sorted runs: gathered in one pass, looked up by merging."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64, Numbers
from watersmeet.core.cost import Meter
from watersmeet.kernels import combinations, gather
from watersmeet.kernels.addressed import OTHER
from watersmeet.kernels.merge import FINER, bounds_in_runs, divide_sorted, probe_sorted, scan_runs
from watersmeet.kernels.sorted_runs import RangeProbe
from watersmeet.matching.found_combinations import BATCH, FIRST_RUN, TABLE, Passing
from watersmeet.matching.reading import Pages, Reading
from watersmeet.records.addressed import AddressedRows, Layout, Picture, Sources, gathered_by_source
from watersmeet.records.attributes import Reach
from watersmeet.runs.run_set import RunSet, RunSets
from watersmeet.runs.sorted_run import SortedRun, check_forward, let_go_of, mapped_places
from watersmeet.runs.stretches import GatheringRoom, Stretches, TakenStrings
from watersmeet.tables.hash_table import Probe
from watersmeet.tables.memtables import ManyMemtable, OrderedProbe

_HASH_BYTES = 8
_ENTRY_BYTES = 16
_NO_SOURCE = np.zeros((1, 5), np.int64)
_LEAP_FROM = 24
"""A run with so many times more hashes than are looked up is not read through."""
_EVERYTHING = 1 << 62
MOST_RESIDENT = 4 << 20
"""Bytes of hashes of all inputs that may be mapped at once."""


def run_number(number: int, attribute: int, sets: int) -> int:
    """What stands for a run in the numbers of its rows: of which of an input's sets, and by which attribute."""
    return FIRST_RUN + attribute * sets + number


class ManyRows(AddressedRows):
    """All rows of one input that combinations can be made of, each told by its source and its place there."""

    def __init__(self, table: ManyMemtable, disk: RunSets) -> None:
        super().__init__(table.types)
        self.table = table
        self.disk = disk
        self.batch: Passing | None = None
        """Rows that arrive and need not be kept."""
        self.resident = Resident(FIRST_RUN)
        """What of the runs may be mapped; nothing of those that are gone."""
        self._attributes = len(table.orders)
        self.runs_changed()

    def runs_changed(self) -> None:
        """Runs came or went."""
        orders = [[each.runs[k] for each in self.disk.sets] for k in range(self._attributes)]
        self._runs: list[SortedRun] = [run for order in orders for run in order]
        self.resident.runs_changed(orders)
        self._unread = sum(run.blocks_unchecked for run in self._runs)
        self._sources = np.concatenate([self.table.sources, _NO_SOURCE, *(run.sources for run in self._runs)])
        self._nullable = [any(run.may_be_null(column) for run in self._runs) for column in range(len(self.types))]
        # Where each source has the hashes of one attribute, and how far they are apart: runs those of their order.
        runs = np.array([(run.hash_address, _HASH_BYTES) for run in self._runs], np.int64).reshape(-1, 2)
        sets = len(self.disk.sets)
        self._hashes_at = []
        for k, order in enumerate(self.table.orders):
            places = np.zeros((FIRST_RUN + len(runs), 2), np.int64)
            places[TABLE] = order.hash_address, _ENTRY_BYTES
            first = run_number(0, k, sets)
            places[first : first + sets] = runs[k * sets : (k + 1) * sets]
            self._hashes_at.append(places)

    @property
    def on_disk(self) -> bool:
        """Whether some rows may be."""
        return bool(self._runs)

    def run_hashes(self, attribute: int, sets: int) -> Int64:
        """Where the hashes of the first so many sets of runs lie."""
        first = run_number(0, attribute, len(self.disk.sets))
        return self._hashes_at[attribute][first : first + sets, 0].copy()

    def check_rows(self, ids: Numbers) -> None:
        """Make sure that the blocks of rows of runs are what was written."""
        if not self._unread:
            return
        runs = [*self._runs[:1] * FIRST_RUN, *self._runs]
        if check_forward(runs, self._sources, ids, self.resident.let_go_of_rows):
            self._unread = sum(run.blocks_unchecked for run in self._runs)
            self._sources[FIRST_RUN:, 4] = [run.sources[0, 4] for run in self._runs]

    # --- what combinations are made of ---

    def attribute_hashes(self, attribute: int, ids: Int64) -> Int64:
        """One attribute's hashes."""
        if not len(ids):
            return np.empty(0, np.int64)
        hashes = np.empty(len(ids), np.int64)
        if combinations.words_at(self._hashes_at[attribute], ids, hashes):
            return hashes
        if ids[0] >> 32 == BATCH:
            assert self.batch is not None
            return self.batch.attribute_hashes(attribute, (ids & 0xFFFFFFFF).astype(np.int32))
        self._check_unless_read(ids)
        column = np.array([self.table.first_hashes + attribute], np.int32)
        out = np.array([hashes.ctypes.data, 0, 0], np.int64)
        none, room = np.empty((0, 0), np.int64), np.empty(0, np.uint8)
        nulls = np.zeros(1, np.int64)
        self.resident.stretches.gather(self, column, ids, out, nulls, none, room)
        return hashes

    def words(self, column: int, ids: Int64) -> Int64:
        """The values of a stored column of 64-bit words without NULL."""
        found: Int64 = self.gather_columns((column,), ids)[0].to_numpy(zero_copy_only=False)
        return found

    def gather_columns(self, columns: Sequence[int], ids: Int64) -> list[pa.Array]:
        """The values of some stored columns."""
        if len(ids) and ids[0] >> 32 == BATCH:
            assert self.batch is not None
            rows = (ids & 0xFFFFFFFF).astype(np.int32)
            return [self.batch.gather(column, rows) for column in columns]
        if not columns:
            return []
        return self.gather_all(tuple(columns), ids)

    def widen(self, column: int, rows: Numbers, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in an output batch."""
        if len(rows) and rows[0] >> 32 == BATCH:
            assert self.batch is not None
            self.batch.widen(column, (rows & 0xFFFFFFFF).astype(np.int32), widths)
            return
        self.check_rows(rows)
        super().widen(column, rows, widths)

    # --- where rows are ---

    @property
    def sources(self) -> Sources:
        return self._sources

    def may_be_null(self, column: int) -> bool:
        return self.table.may_be_null(column) or self._nullable[column]

    def gather_all(self, columns: tuple[int, ...], rows: Numbers) -> list[pa.Array]:
        self._check_unless_read(rows, columns)
        return super().gather_all(columns, rows)

    def _check_unless_read(self, ids: Numbers, columns: tuple[int, ...] = ()) -> None:
        """Rows are about to be gathered; those whose blocks are read for it are checked then."""
        if self.resident.room is None or (self.widths[list(columns)] == OTHER).any():
            self.check_rows(ids)

    def _copy(self, picture: Picture, layout: Layout, places: Numbers) -> pa.Buffer | None:
        resident = self.resident
        if self._runs and resident.room is not None:
            taken = TakenStrings(resident.room, picture, len(places))
            if taken.gather(resident.stretches, self, picture.columns, places, layout):
                return taken.place(layout)
            layout.begin_again()
            self.check_rows(places)
        return super()._copy(picture, layout, places)

    def other(self, column: int, rows: Numbers) -> pa.Array:
        return gathered_by_source(self._source, column, rows)

    def other_width(self, column: int, rows: Numbers) -> int:
        return self._source(int(rows[0]) >> 32).other_width(column, rows[:1] & 0xFFFFFFFF)

    def _source(self, number: int) -> AddressedRows:
        return self.table if number == TABLE else self._runs[number - FIRST_RUN]


class SettlingRows:
    """What rows of another input that settle are to meet of this one: the first rows in memory, and the first run sets.

    Rows that come meanwhile have higher numbers, and are none of their concern. All of it is looked up as one source.
    Runs that are not much larger than what is looked up are read through, and their hashes looked up among the others,
    whatever the number of runs; in larger ones hashes are looked up by leaps.
    """

    def __init__(
        self,
        rows: ManyRows,
        in_memory: int,
        sets: Sequence[RunSet],
        page_bytes: int,
        meter: Meter,
        pages: Pages | None = None,
    ) -> None:
        """With `pages`, each page that is read is counted, and each seek."""
        self._rows = rows
        self._in_memory = in_memory
        self._sets = list(sets)
        self._page_hashes = max(1, page_bytes // _HASH_BYTES)
        self._meter = meter
        self._reading = None if pages is None else Reading(pages, kept=pages.at_once)
        self._counts = np.array([each.rows for each in sets], np.int64)
        self._addresses = [rows.run_hashes(k, len(sets)) for k in range(len(rows.table.orders))]
        self._sorted: _Sorted | None = None

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
            self._turn_to_runs(probe)
        return probe

    def look_up(self, attribute: int, probe: Probe | RangeProbe, out_probe: Int32, out_row: Numbers) -> tuple[int, int]:
        """Go on with a look-up until the buffers are full; returns pairs found, and entries or rows visited.

        The pairs found are those of rows that count, however many others there are beside them.
        """
        assert isinstance(probe, OrderedProbe)
        found = visited = 0
        if probe.run < 0:
            table = self._rows.table
            found, visited = table.look_up(attribute, probe, out_probe, out_row)
            if found and self._in_memory < table.rows:
                found = int(gather.keep(out_row[:found] < self._in_memory, out_probe[:found], out_row[:found]))
            if not probe.done or not self._sets:
                return found, visited
            self._turn_to_runs(probe)
        known, in_memory = self._known_of(attribute, probe), found
        while probe.run < len(self._sets) and found < len(out_row):
            read = self._leap if self._reading is not None or known.leaps[probe.run] else self._scan
            found, passed = read(known, attribute, probe, out_probe, out_row, found)
            visited += passed
        if probe.run == len(self._sets):
            probe.next = len(probe.hashes)
        if found > in_memory:
            out_row[in_memory:found] += run_number(0, attribute, len(self._rows.disk.sets)) << 32
        return found, visited

    @staticmethod
    def _turn_to_runs(probe: OrderedProbe) -> None:
        probe.done_with_memory = probe.next
        probe.run, probe.next, probe.link, probe.near = 0, 0, -1, -1

    def _known_of(self, attribute: int, probe: OrderedProbe) -> _Sorted:
        """What is to be known of ascending hashes before they meet runs; only the last ones are remembered."""
        if self._sorted is None or self._sorted.hashes is not probe.hashes:
            runs = [each.runs[attribute] for each in self._sets]
            self._sorted = _Sorted(probe.hashes, runs, self._addresses[attribute], self._counts)
        return self._sorted

    def _scan(
        self, known: _Sorted, attribute: int, probe: OrderedProbe, out_probe: Int32, out_row: Numbers, before: int
    ) -> tuple[int, int]:
        """Read runs through from the one at hand on; returns pairs now in the buffers, rows passed."""
        run = probe.run
        cursor = np.array([run, max(0, probe.near), probe.link], np.int64)
        hashes = known.hashes.view(np.uint64)
        found, passed = scan_runs(
            hashes, hashes, known.marks, known.buckets, known.marked, known.first, known.shift,
            self._addresses[attribute], known.lows, known.highs, known.thresholds, cursor, known.next_leap(probe.run),
            _EVERYTHING, out_probe, out_row, before,
        )  # fmt: skip
        probe.run, probe.near, probe.link = cursor.tolist()
        self._meter.pages_read += 1 + passed // self._page_hashes
        self._rows.resident.read_hashes(attribute, probe.run - run + 1, _HASH_BYTES * passed)
        return found, passed

    def _leap(
        self, known: _Sorted, attribute: int, probe: OrderedProbe, out_probe: Int32, out_row: Numbers, before: int
    ) -> tuple[int, int]:
        """Look hashes up in the run at hand; returns pairs now in the buffers, rows visited."""
        low, high = int(known.lows[probe.run]), int(known.highs[probe.run])
        theirs = self._sets[probe.run].runs[attribute].hashes()[:high]
        start, near, wanted = probe.next, max(low, probe.near), known.hashes.view(np.uint64)
        if self._reading is not None and probe.near < 0:
            self._reading.begin_run(self._sets[probe.run].rows)
        found, probe.next, probe.link, probe.near, visited = probe_sorted(
            wanted, wanted, start, len(wanted), probe.link, theirs, near, out_probe, out_row, before
        )
        # Dense merges read all pages of hashes that they pass, sparse ones a page for each row.
        read = min(max(1, probe.next - start), 1 + (probe.near - near) // self._page_hashes)
        if self._reading is None:
            self._meter.pages_read += read
        else:
            self._reading.read_hashes(near, probe.near, max(1, probe.next - start), self._meter)
            if found > before:
                self._reading.read_rows(out_row[before:found].astype(np.int64), self._meter)
        self._rows.resident.read_hashes(attribute, 1, _HASH_BYTES * min(high - low, self._page_hashes * read))
        out_row[before:found] += probe.run << 32
        if probe.next == len(known.hashes):
            probe.run, probe.next, probe.link, probe.near = probe.run + 1, 0, -1, -1
        return found, visited


class _Sorted:
    """Ascending hashes that are to meet runs: in buckets, and where in each run what is equal to them can be."""

    def __init__(self, hashes: Int64, runs: Sequence[SortedRun], addresses: Int64, counts: Int64) -> None:
        self.hashes = hashes
        ascending = hashes.view(np.uint64)
        self.first = ascending[0]
        first, last = int(self.first), int(ascending[-1])
        self.lows, self.highs = np.zeros_like(counts), counts.copy()
        if not all(run.trusted for run in runs):
            self.lows[:], self.highs[:] = np.array([run.region(first, last) for run in runs], np.int64).T
        bounds_in_runs(addresses, self.first, ascending[-1], self.lows, self.highs)
        self.leaps: Bool = self.highs - self.lows > _LEAP_FROM * len(hashes)
        """Which runs are so large beside the hashes that these are looked up in them."""
        span = last - first
        self.shift = max(0, span.bit_length() - len(hashes).bit_length())
        self.buckets = np.empty((span >> self.shift) + 2, np.int32)
        self.marked = np.empty((span >> max(0, self.shift - FINER) >> 6) + 1, np.uint64)
        divide_sorted(ascending, ascending, self.first, self.shift, self.buckets, self.marked)
        # Every run is met by every hash: no mark is below any threshold.
        self.marks = np.zeros(len(hashes), np.int64)
        self.thresholds = np.full(len(counts), -1, np.int64)

    def next_leap(self, run: int) -> int:
        """The first run from this one on that is not read through."""
        leaps = np.flatnonzero(self.leaps[run:])
        return run + int(leaps[0]) if len(leaps) else len(self.leaps)


class Mixed:
    """Which combinations have rows of more than one epoch: all others were found in memory."""

    def __init__(self, inputs: Sequence[ManyRows], epoch: int) -> None:
        sources = [[epoch, epoch] for _ in inputs]
        for known, rows in zip(sources, inputs, strict=True):
            for each in rows.disk.sets:
                known.append(each.epoch)
            known += known[2:] * (len(rows.table.orders) - 1)
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


_AROUND = 64 << 10
"""Bytes that the system maps around what is read."""


class Resident:
    """Bytes of an input's runs that may be mapped: hashes, by the order that they are in; rows are not, for long.

    Mapped pages are the system's to take back, but count as the process's own until they are let go. Hashes are gone
    through again and again, and stay for as long as they are few. Rows lie anywhere, and each maps what lies around it,
    so that they are gathered stretch by stretch: those of one are let go before the next ones are read.
    """

    def __init__(self, first: int) -> None:
        """Runs are sources from the number `first` on; those before are in memory, and stay."""
        self._first = first
        self.room: GatheringRoom | None = None
        """For rows that are gathered; without, they are gathered as if they were in memory."""
        self._hashes: list[int] = []
        self.runs_changed(())

    def runs_changed(self, orders: Sequence[Sequence[SortedRun]]) -> None:
        """Runs came or went; nothing of those that are there stays mapped."""
        runs = [run for order in orders for run in order]
        self._places: Int64 = mapped_places(runs)
        self._rows_alone: Int64 = mapped_places(runs, rows_alone=True)
        self._most_hashes = [sum(-(-run.hash_bytes // _AROUND) for run in order) * _AROUND for order in orders]
        self.stretches = Stretches(runs, self.room, self._first)
        """In which rows are gathered."""
        self.let_go()

    @property
    def nbytes(self) -> int:
        """How much may be mapped."""
        return sum(self._hashes)

    def read_hashes(self, order: int, runs: int, nbytes: int) -> None:
        """So many bytes of hashes of an order were gone through, of so many runs."""
        self._hashes[order] = min(self._most_hashes[order], self._hashes[order] + _AROUND * runs + nbytes)

    def let_go(self) -> None:
        """Nothing is mapped any more."""
        self._hashes = [0] * len(self._most_hashes)
        let_go_of(self._places)

    def let_go_of_rows(self) -> None:
        """Nothing but hashes is."""
        let_go_of(self._rows_alone)
