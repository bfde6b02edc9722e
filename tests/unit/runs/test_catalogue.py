"""Spilled runs: ordinals that run through, pages that are read across, a catalogue that survives JSON."""

from __future__ import annotations

import errno
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from simulate.stores import FaultyStore
from watersmeet.core.cost import Meter
from watersmeet.core.errors import SegmentError, SpillError
from watersmeet.memory import Budget
from watersmeet.runs.catalogue import DiskSide
from watersmeet.runs.presence import Stretch
from watersmeet.spill import MemoryStore, Store
from watersmeet.tables.hash_table import Layout, SideTable

TYPES = (pa.int64(), pa.string())
WHOLE = 1 << 30
"""More rows than a partition has: all of them."""


class Spilled:
    """A table, a disk, and what was flushed to it: (value, hash, tick, departure) by partition and ordinal."""

    def __init__(self, store: Store | None = None, memory: int = 1 << 20) -> None:
        self.budget = Budget(memory)
        self.store = store or MemoryStore()
        self.meter = Meter()
        self.table = SideTable(TYPES, self.budget, Layout(1, 16, 1024), "left")
        self.disk = DiskSide(2, self.store, "run-0", self.budget.reservation("catalogue"), self.meter)
        self.tick = 0
        self.on_disk: list[list[tuple[int, int, int, int]]] = [[], []]

    def put(self, count: int, part: int = 0) -> None:
        rng = np.random.default_rng(self.tick)
        hashes = rng.integers(0, 1 << 60, count) | (part << 63 if not part else -(1 << 63))
        ticks = np.arange(self.tick + 1, self.tick + 1 + count)
        columns = [pa.array(ticks * 10), pa.array([f"row {tick}" for tick in ticks])]
        parts = self.table.parts_of(hashes)
        assert (parts == part).all() and self.table.reserve(parts, columns)
        self.table.append(hashes, parts, columns, ticks)
        self.tick += count

    def flush(self, part: int = 0, page_bytes: int = 400, by_hash: bool = False) -> None:
        self.tick += 1
        rows = self.table.rows_of(part)
        values = self.table.gather(0, rows).to_pylist()
        hashes, ticks = self.table.hashes(rows).tolist(), self.table.ticks(rows).tolist()
        order = np.argsort(hashes, kind="stable").tolist() if by_hash else range(len(rows))
        self.disk.flush(self.table, [(part, WHOLE)], self.tick, page_bytes, by_hash)
        self.on_disk[part] += [(values[i], hashes[i], ticks[i], self.tick) for i in order]

    def flush_both(self, page_bytes: int = 400) -> None:
        """Both partitions at once; their rows may share a page."""
        self.tick += 1
        for part in (0, 1):
            rows = self.table.rows_of(part)
            columns = self.table.gather(0, rows).to_pylist(), self.table.hashes(rows), self.table.ticks(rows)
            self.on_disk[part] += [(v, int(h), int(t), self.tick) for v, h, t in zip(*columns, strict=True)]
        self.disk.flush(self.table, [(0, WHOLE), (1, WHOLE)], self.tick, page_bytes)

    def check(self, disk: DiskSide | None = None) -> None:
        """Every row is read at its ordinal, from wherever one begins."""
        disk = disk or self.disk
        disk.check()
        for part, expected in enumerate(self.on_disk):
            assert disk.rows[part] == len(expected)
            found = read_all(disk, part)
            assert [row[:3] for row in found] == [row[:3] for row in expected]
            if expected:
                departed = disk.departures(part, np.arange(len(expected)))
                assert departed.tolist() == [row[3] for row in expected]


def read_all(disk: DiskSide, part: int) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    while len(found) < disk.rows[part]:
        page = disk.read(part, len(found))
        assert len(page) > 0
        assert page.first_ordinal == len(found)
        assert page.ordinals.tolist() == list(range(len(found), len(found) + len(page)))
        assert page.columns[1].to_pylist() == [f"row {tick}" for tick in page.ticks.tolist()]
        values = page.columns[0].to_pylist()
        found += zip(values, page.hashes.tolist(), page.ticks.tolist(), strict=True)
    return found


def test_ordinals_run_through_all_flushes_and_rows_leave_memory() -> None:
    spilled = Spilled()
    for count, part in ((40, 0), (7, 1), (1, 0), (90, 0), (33, 1)):
        spilled.put(count, part)
        spilled.flush(part)
        assert spilled.table.part_rows[part] == 0
        spilled.table.check()
    spilled.check()
    assert spilled.disk.rows == [131, 40] and spilled.disk.total_rows == 171
    assert [run.first_ordinal for run in spilled.disk.runs(0)] == [0, 40, 41]
    assert [run.rows for run in spilled.disk.runs(0)] == [40, 1, 90]
    assert spilled.disk.pages(0) > 5, "a run has several pages"
    assert spilled.store.names() == sorted(spilled.disk.segments()) and len(spilled.store.names()) == 5


def test_a_read_begins_anywhere_and_ends_with_its_page_or_before() -> None:
    spilled = Spilled()
    for count in (30, 25):
        spilled.put(count)
        spilled.flush()
    ends = [run.first_ordinal + end for run in spilled.disk.runs(0) for end in run.page_ends]
    assert ends[-1] == 55 and 30 in ends and len(ends) > 4
    for ordinal in range(55):
        page = spilled.disk.read(0, ordinal)
        end = next(end for end in ends if end > ordinal)
        assert page.first_ordinal == ordinal and len(page) == end - ordinal
        assert page.columns[0].to_pylist() == [row[0] for row in spilled.on_disk[0][ordinal:end]]
        assert page.departed == spilled.on_disk[0][ordinal][3]
        short = spilled.disk.read(0, ordinal, ordinal + 2)
        assert len(short) == min(2, end - ordinal)


def test_pages_are_as_large_as_asked_and_a_wide_row_has_one_of_its_own() -> None:
    spilled = Spilled()
    spilled.put(100)
    spilled.flush(page_bytes=1 << 20)
    spilled.put(100)
    spilled.flush(page_bytes=1)
    whole, single = spilled.disk.runs(0)
    assert whole.page_ends == (100,)
    assert single.page_ends == tuple(range(1, 101))
    spilled.check()


def test_a_run_by_hash_stands_in_the_order_of_hashes_and_arrival() -> None:
    spilled = Spilled()
    spilled.put(60)
    spilled.flush(by_hash=True)
    hashes = [row[1] for row in read_all(spilled.disk, 0)]
    assert hashes == sorted(hashes)
    spilled.check()


def test_stays_tell_arrival_departure_and_ordinal() -> None:
    spilled = Spilled()
    for _ in range(2):
        spilled.put(20)
        spilled.flush()
    page = spilled.disk.read(0, 25)
    rows = np.array([2, 0, 2], np.int32)
    stay = spilled.disk.stay(0, page, rows)
    assert stay.ordinal.tolist() == [27, 25, 27]
    assert stay.arrived.tolist() == [spilled.on_disk[0][i][2] for i in (27, 25, 27)]
    assert stay.departed.tolist() == [42] * 3
    assert stay.hash is not None and stay.hash.tolist() == [spilled.on_disk[0][i][1] for i in (27, 25, 27)]


def test_the_oldest_rows_of_a_partition_leave_in_whole_blocks_and_the_others_stay() -> None:
    spilled = Spilled()
    spilled.put(70)
    values = spilled.table.gather(0, spilled.table.rows_of(0)).to_pylist()
    spilled.tick += 1
    assert spilled.disk.flush(spilled.table, [(0, 20)], spilled.tick, 400) == [32], (
        "two blocks of 16; rows came one by one"
    )
    assert spilled.table.gather(0, spilled.table.rows_of(0)).to_pylist() == values[32:]
    assert spilled.table.gather(1, spilled.table.rows_of(0)).to_pylist() == [
        f"row {value // 10}" for value in values[32:]
    ]
    assert [value for value, _, _ in read_all(spilled.disk, 0)] == values[:32]
    left_at, arrivals = spilled.tick, np.array([1, 32, spilled.tick + 1])
    spilled.put(5)
    spilled.tick += 1
    assert spilled.disk.flush(spilled.table, [(0, 40)], spilled.tick, 400) == [left_at + 5], "the open block goes, too"
    assert not spilled.table.rows and spilled.disk.rows == [75, 0]
    assert spilled.disk.rows_before(0, arrivals).tolist() == [0, 0, 32]
    assert spilled.disk.rows_before(0, np.array([spilled.tick + 1])).tolist() == [75]
    spilled.table.check()
    spilled.disk.check()


def test_a_stretch_across_runs_is_one() -> None:
    spilled = Spilled()
    for count in (10, 10, 10):
        spilled.put(count)
        spilled.flush()
    assert spilled.disk.stretches(0, 3, 25) == [Stretch(3, 25)]
    assert spilled.disk.stretches(0, 0, 30) == [Stretch(0, 30)]
    assert spilled.disk.stretches(0, 5, 5) == []


def test_work_is_counted_by_pages_and_random_accesses() -> None:
    spilled = Spilled()
    spilled.put(80)
    spilled.flush()
    pages = spilled.disk.pages(0)
    assert pages > 3
    assert (spilled.meter.pages_written, spilled.meter.seeks) == (pages, 1)
    read_all(spilled.disk, 0)
    assert (spilled.meter.pages_read, spilled.meter.seeks) == (pages, 2), "one after the other"
    spilled.disk.read(0, 79)
    assert spilled.meter.pages_read == pages, "the last page is at hand"
    spilled.disk.read(0, 0)
    assert (spilled.meter.pages_read, spilled.meter.seeks) == (pages + 1, 3)


def test_the_catalogue_survives_json() -> None:
    spilled = Spilled()
    for count, part in ((40, 0), (7, 1), (20, 0)):
        spilled.put(count, part)
        spilled.flush(part)
    state = json.loads(json.dumps(spilled.disk.to_state()))
    budget = Budget(1 << 20)
    other = DiskSide(2, spilled.store, "run-0", budget.reservation("catalogue"), Meter())
    other.load(state)
    spilled.check(other)
    assert other.segments() == spilled.disk.segments()
    assert budget.used == spilled.budget.breakdown()["catalogue"] > 0
    assert json.loads(json.dumps(other.to_state())) == state


def test_a_dropped_partition_names_its_segments_and_gives_its_memory_back() -> None:
    spilled = Spilled()
    for part in (0, 1, 0):
        spilled.put(30, part)
        spilled.flush(part)
    names = spilled.disk.drop(0)
    assert len(names) == 2 and set(names) < set(spilled.store.names()), "removing them is the caller's"
    spilled.on_disk[0].clear()
    spilled.check()
    spilled.disk.drop(1)
    assert spilled.budget.breakdown()["catalogue"] == 0
    assert spilled.disk.total_rows == 0 and spilled.disk.segments() == []


@pytest.mark.parametrize("operation", ["create", "write", "commit"])
def test_a_full_disk_changes_nothing(operation: str) -> None:
    failures = 0
    for fail_at in range(1, 100):
        store = FaultyStore(MemoryStore(), fail_at, operation, error=errno.ENOSPC)
        spilled = Spilled(store)
        spilled.put(60)
        before: Any = (spilled.budget.breakdown(), spilled.table.rows, spilled.meter.total())
        try:
            spilled.flush()
        except SpillError:
            failures += 1
            assert (spilled.budget.breakdown(), spilled.table.rows, spilled.meter.total()) == before
            assert store.names() == [] and store.bytes_held == 0
            assert spilled.disk.total_rows == 0 and spilled.disk.runs(0) == []
            spilled.table.check()
            spilled.flush()  # the disk has room again
        spilled.check()
        if not store.failures:
            break
    assert failures >= (3 if operation == "write" else 1)


def test_a_segment_that_is_gone_is_named() -> None:
    spilled = Spilled()
    spilled.put(30)
    spilled.flush()
    [name] = spilled.disk.segments()
    spilled.store.remove(name)
    with pytest.raises(SegmentError, match=name):
        spilled.disk.read(0, 0)


def test_many_runs_are_read_in_any_order() -> None:
    spilled = Spilled()
    for _ in range(40):  # more than are kept mapped at once
        spilled.put(3)
        spilled.flush()
    for ordinal in np.random.default_rng(4).integers(0, 120, 200).tolist():
        assert spilled.disk.read(0, ordinal, ordinal + 1).columns[0].to_pylist() == [spilled.on_disk[0][ordinal][0]]
    spilled.disk.release()
    spilled.check()


def test_partitions_that_leave_together_share_a_segment_until_the_last_is_gone() -> None:
    spilled = Spilled()
    for _ in range(3):
        for part in (0, 1):
            spilled.put(20, part)
        spilled.flush_both()
    spilled.check()
    assert len(spilled.store.names()) == 3
    assert sorted(spilled.disk.segments()) == sorted(spilled.store.names())
    assert spilled.disk.drop(0) == [], "the other partition's rows are there"
    spilled.on_disk[0] = []
    spilled.check()
    assert sorted(spilled.disk.drop(1)) == sorted(spilled.store.names())
