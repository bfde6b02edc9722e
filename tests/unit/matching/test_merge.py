"""Merging sorted runs: which runs, in which windows, and what is remembered of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.core.cost import Meter
from watersmeet.core.spec import JoinSpec, Output, band, parse_on
from watersmeet.kernels.merge import probe_sorted
from watersmeet.matching.found_pairs import PairBuffer
from watersmeet.matching.ledger import Ledger
from watersmeet.matching.merge import Group, Merge, group_to_merge
from watersmeet.matching.range_lookup import RangeCodec
from watersmeet.matching.sorted_lookup import CloseValues, Meeting, SameHash
from watersmeet.memory import Budget
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan
from watersmeet.runs.catalogue import DiskSide, Run
from watersmeet.runs.page import page_schema
from watersmeet.runs.presence import FOREVER, Stay, Stretch
from watersmeet.runs.sort import MergedRunWriter
from watersmeet.spill.store import MemoryStore
from watersmeet.tables.hash_table import Layout, SideTable

SCHEMA = pa.schema({"k": pa.int64()})
SPEC = JoinSpec(SCHEMA, SCHEMA, parse_on("k"), output=Output.PAIRS)
Meets = tuple[int, bool] | None
"""None: equal hashes. Else the width of a band, and whether tails are kept in memory."""


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)), st.integers(1, 7), st.integers(1, 4))
def test_sorted_probe_finds_every_pair_once_however_it_is_cut(
    left: list[int], right: list[int], capacity: int, step: int
) -> None:
    hashes, rows = ints(*sorted(left)), ints(*sorted(right))
    probes, found_rows = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
    pairs: list[tuple[int, int]] = []
    at, link, near = 0, -1, 0
    while at < len(hashes):
        stop = min(len(hashes), at + step)
        found, at, link, near, _ = probe_sorted(hashes, hashes, at, stop, link, rows, near, probes, found_rows, 0)
        pairs += zip(probes[:found].tolist(), found_rows[:found].tolist(), strict=True)
    expected = [(i, j) for i, h in enumerate(hashes) for j, r in enumerate(rows) if h == r]
    assert pairs == expected


class Bench:
    """Two disks with one partition, whose flushes are given as hashes, or as values that meet those close to them."""

    def __init__(self, flushes: list[tuple[list[int], list[int]]], page_bytes: int = 100, meets: Meets = None) -> None:
        self.store, self.meter, self.budget = MemoryStore(), Meter(), Budget(1 << 24)
        self.width, self.keeps_tails = meets or (0, False)
        spec = SPEC if meets is None else JoinSpec(SCHEMA, SCHEMA, (band("k", meets[0]),), output=Output.PAIRS)
        codec = RangeCodec(spec)
        self.codec: KeyCodec = KeyCodec(spec) if meets is None else codec
        self.meeting: Meeting = SameHash() if meets is None else CloseValues(codec)
        self.plans = (RowPlan(spec, 0, self.codec.exact), RowPlan(spec, 1, self.codec.exact))
        claim = self.budget.reservation("catalogue")
        self.disks = tuple(DiskSide(1, self.store, f"run-{side}", claim, self.meter) for side in (0, 1))
        self.ledger = Ledger(1, self.budget.reservation("ledger"))
        self.pairs = PairBuffer(spec, self.codec, self.plans, 5)
        self.page_bytes = page_bytes
        self.tick = 0
        self.numbers = [0, 0]
        self.hashes: tuple[list[int], list[int]] = ([], [])
        for flush in flushes:
            for side, hashes in enumerate(flush):
                self.flush(side, hashes)

    def flush(self, side: int, hashes: list[int]) -> None:
        """Never in memory together with any other flush: all pairs are new."""
        if not hashes:
            return
        table = SideTable(self.plans[side].types, self.budget, Layout(0, 8, 256), "table")
        numbers = np.arange(self.numbers[side], self.numbers[side] + len(hashes))
        parts, columns = np.zeros(len(hashes), np.int32), [pa.array(numbers)]
        assert table.reserve(parts, columns)
        ticks = np.arange(self.tick + 1, self.tick + 1 + len(hashes))
        table.append(ints(*hashes), parts, columns, ticks)
        self.tick += len(hashes) + 1
        self.numbers[side] += len(hashes)
        self.hashes[side].extend(hashes)
        self.disks[side].flush(table, [(0, table.rows)], self.tick, self.page_bytes, by_hash=True)

    def merge(self, fan_in: int) -> Merge:
        self.tick += 1
        groups = []
        writers: list[MergedRunWriter | None] = []
        for disk, plan in zip(self.disks, self.plans, strict=True):
            first, count = group_to_merge(disk.levels(0), fan_in)
            groups.append(Group(first, tuple(disk.runs(0)[first : first + count])))
            writer = MergedRunWriter(self.store, disk, 0, self.tick, plan.types, self.page_bytes)
            writers.append(writer if count > 1 else None)
        assert self.ledger.try_reserve_merge()
        parts = (groups[0], groups[1]), (writers[0], writers[1])
        return Merge(self.disks, self.ledger, 0, *parts, self.meter, self.page_bytes, self.meeting, self.keeps_tails)

    def finish(self, merge: Merge) -> None:
        merge.seal()
        for disk, group, writer in zip(self.disks, merge.groups, merge.writers, strict=True):
            if writer is not None:
                run = writer.run(group.ordinals[0], group.level)
                assert disk.try_claim(0, group.first, len(group.runs), run)
                for name in disk.replace(0, group.first, len(group.runs), run):
                    self.store.remove(name)
                disk.check()
        self.ledger.record_merge(0, merge.groups[0].ordinals, merge.groups[1].ordinals)

    def take(self, merge: Merge) -> list[tuple[int, int]]:
        assert merge.lookup is not None
        batch, _ = self.pairs.take(merge.lookup.between, 1 << 20)
        return [] if batch is None else list(zip(*(column.to_pylist() for column in batch.columns), strict=True))

    def expected(self) -> Counter[tuple[int, int]]:
        left, right = self.hashes
        return Counter((i, j) for i, l in enumerate(left) for j, r in enumerate(right) if abs(l - r) <= self.width)

    @property
    def complete(self) -> bool:
        return self.ledger.all_merged(0, self.disks[0].rows[0], self.disks[1].rows[0])


flushes = st.lists(
    st.tuples(st.lists(st.integers(-6, 6), max_size=12), st.lists(st.integers(-6, 6), max_size=12)),
    min_size=1,
    max_size=5,
)

meets = st.none() | st.tuples(st.sampled_from([0, 1, 3, 20]), st.booleans())


@settings(max_examples=80)
@given(flushes, st.integers(2, 4), st.integers(30, 300), meets)
def test_merging_to_the_end_finds_every_pair_once(
    flushed: list[tuple[list[int], list[int]]], fan_in: int, page_bytes: int, meeting: Meets
) -> None:
    bench = Bench(flushed, page_bytes, meeting)
    found: Counter[tuple[int, int]] = Counter()
    while not bench.complete:
        merge = bench.merge(fan_in)
        while not merge.done:
            merge.work(bench.pairs, 3)
            if bench.pairs.waiting:
                found.update(bench.take(merge))
        bench.finish(merge)
    assert found == bench.expected()
    for disk, hashes in zip(bench.disks, bench.hashes, strict=True):
        for run in disk.runs(0):
            pages = [disk.read_page(0, run, number) for number in range(len(run.page_ends))]
            order = [(int(h), int(o)) for page in pages for h, o in zip(page.hashes, page.ordinals, strict=True)]
            assert order == sorted(order) and len({o for _, o in order}) == run.rows
        assert disk.rows[0] == len(hashes)


@settings(max_examples=80)
@given(flushes, meets, st.data())
def test_a_merge_goes_on_where_it_was_saved(
    flushed: list[tuple[list[int], list[int]]], meeting: Meets, data: Any
) -> None:
    """Saved and built anew after any step, in the middle of a window, a cell or a buffer of pairs."""
    bench = Bench(flushed, meets=meeting)
    if bench.complete:
        return
    merge = bench.merge(8)
    found: list[tuple[int, int]] = []
    while not merge.done:
        merge.work(bench.pairs, data.draw(st.integers(1, 5)))
        if bench.pairs.waiting and data.draw(st.booleans()):
            found += bench.take(merge)
        if data.draw(st.integers(0, 3)) == 0:
            merge.seal()
            state = merge.to_state(bench.pairs)
            bench.pairs.clear()
            tick = bench.tick
            bench.tick -= 1  # the same names as before
            merge = bench.merge(8)
            assert bench.tick == tick
            merge.go_to(state, bench.pairs)
        while bench.pairs.waiting:
            found += bench.take(merge)
    bench.finish(merge)
    assert Counter(found) == bench.expected()
    assert bench.complete


def test_a_single_hash_may_fill_many_pages() -> None:
    bench = Bench([([7] * 40, [7] * 30), ([7] * 20 + [8], [6, 7, 8])], page_bytes=100)
    merge = bench.merge(2)
    found: Counter[tuple[int, int]] = Counter()
    while not merge.done:
        merge.work(bench.pairs, 1000)
        if bench.pairs.waiting:
            found.update(bench.take(merge))
    assert found == bench.expected() and found.total() == 60 * 31 + 1


@pytest.mark.parametrize(("keeps_tails", "most"), [(True, 1.0), (False, 4.0)])
def test_a_narrow_band_reads_each_page_once_where_tails_are_kept(keeps_tails: bool, most: float) -> None:
    sides = [list(range(side, 3000, 2)) for side in (0, 1)]
    bench = Bench([(sides[0][i::3], sides[1][i::3]) for i in range(3)], page_bytes=1000, meets=(1, keeps_tails))
    pages = sum(disk.pages(0) for disk in bench.disks)
    merge = bench.merge(3)
    found: Counter[tuple[int, int]] = Counter()
    while not merge.done:
        merge.work(bench.pairs, 1000)
        if bench.pairs.waiting:
            found.update(bench.take(merge))
    assert found == bench.expected() and found.total() == 2999
    assert bench.meter.pages_read <= most * pages


@pytest.mark.parametrize("fan_in", [2, 3, 8])
@pytest.mark.parametrize("runs", [1, 2, 5, 17])
def test_groups_come_to_an_end(fan_in: int, runs: int) -> None:
    levels = [0] * runs
    for _ in range(runs):
        if len(levels) == 1:
            break
        first, count = group_to_merge(levels, fan_in)
        assert 2 <= count <= fan_in
        levels[first : first + count] = [1 + max(levels[first : first + count])]
    assert len(levels) == 1
    assert levels[0] <= np.ceil(np.log2(runs)) + 1


def test_rectangles_within_a_later_one_are_forgotten() -> None:
    claim = Budget(1000).reservation("ledger")
    ledger = Ledger(1, claim)
    for left, right in [((0, 4), (0, 3)), ((4, 9), (3, 5)), ((0, 9), (0, 5))]:
        assert ledger.try_reserve_merge()
        ledger.record_merge(0, left, right)
    assert claim.held == 40
    on_disk = Stay(ints(1, 1, 1), ints(2, 2, 2), ints(8, 8, -1)), Stay(ints(3, 3, 3), ints(4, 4, 4), ints(4, 5, 4))
    assert ledger.fresh(0, *on_disk).tolist() == [False, True, True]
    assert ledger.all_merged(0, 9, 5) and not ledger.all_merged(0, 10, 5)


def test_a_visit_that_ended_amid_a_merged_run_covers_what_stood_before() -> None:
    ledger = Ledger(1, Budget(1000).reservation("ledger"))
    assert ledger.try_reserve(0, 0)
    ledger.record_visit(0, 0, 50, Stretch(0, 10, until=(7, 4)))
    hashes, ordinals = ints(6, 7, 7, 8, 6), ints(9, 3, 4, 0, 10)
    memory = Stay(np.full(5, 40), np.full(5, FOREVER), np.full(5, -1))
    disk = Stay(np.full(5, 1), np.full(5, 2), ordinals, hashes)
    assert ledger.fresh(0, memory, disk).tolist() == [False, False, True, True, True]


def test_stretches_of_positions_name_hashes_only_amid_merged_runs() -> None:
    bench = Bench([([5, 1, 3], [1]), ([4, 2], [1]), ([9, 8], [1])])
    merge = bench.merge(2)
    while not merge.done:
        merge.work(bench.pairs, 100)
        bench.pairs.clear()
    bench.finish(merge)
    disk = bench.disks[0]
    assert [run.rows for run in disk.runs(0)] == [5, 2]
    assert disk.stretches(0, 0, 7) == [Stretch(0, 7)]
    assert disk.stretches(0, 0, 6) == [Stretch(0, 6)]
    # By hash, the merged run's rows are 1 2 3 4 5, with ordinals 0 3 1 4 2.
    assert disk.stretches(0, 1, 6) == [Stretch(0, 5, since=(2, 3)), Stretch(5, 6)]
    assert disk.stretches(0, 1, 4) == [Stretch(0, 5, since=(2, 3), until=(5, 2))]


def test_page_schema_of_merged_runs_carries_ordinals() -> None:
    assert page_schema([pa.int8()], merged=True).names == ["hash", "tick", "ordinal", "c0"]
    assert Run((2, 5), 7, 0, (1, 2, 3, 4, 5), level=1).departed == -1
