"""Batches that are kept as they came: every row is found, gathered and walked through in the order of its hash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.kernels.sorted_runs import RangeProbe
from watersmeet.memory import Budget
from watersmeet.tables.hash_table import Layout, Probe
from watersmeet.tables.memtable import Memtable

BLOCK = 16
COLUMNS = {
    "number": lambda rng, n: pa.array(rng.integers(0, 1000, n)),
    "small": lambda rng, n: pa.array(rng.integers(0, 100, n), pa.int16()),
    "text": lambda rng, n: pa.array([None if x % 7 == 0 else "s" * (x % 40) for x in rng.integers(0, 100, n)]),
    "large": lambda rng, n: pa.array(["t" * (x % 50) for x in rng.integers(0, 100, n)], pa.large_string()),
    "flag": lambda rng, n: pa.array([None if x < 0.1 else x < 0.5 for x in rng.random(n)]),
    "nested": lambda rng, n: pa.array([[int(x)] * (x % 3) for x in rng.integers(0, 9, n)], pa.list_(pa.int64())),
    "wide": lambda rng, n: pa.array([bytes([x]) * 21 for x in rng.integers(0, 255, n)], pa.binary(21)),
    "nothing": lambda rng, n: pa.nulls(n, pa.float64()),
}
EVERYTHING = tuple(range(len(COLUMNS)))


class Filled:
    """A memtable, and beside it what was put in."""

    def __init__(
        self, sizes: list[int], few_hashes: bool = False, memory: int = 1 << 24, slack: int = 3, by_range: bool = False
    ) -> None:
        rng = np.random.default_rng(len(sizes))
        tables = [[make(rng, n + slack) for make in COLUMNS.values()] for n in sizes]
        types = [array.type for array in tables[0]]
        self.table = Memtable(types, Budget(memory), Layout(0, BLOCK, 256), "left", by_range)
        self.columns = [pa.concat_arrays([table[i].slice(slack) for table in tables]) for i in range(len(COLUMNS))]
        self.hashes = rng.integers(-(2**63), 2**63 - 1, sum(sizes))
        if few_hashes:
            self.hashes = rng.integers(0, 4, sum(sizes)) << 61
        start = 0
        for table, n in zip(tables, sizes, strict=True):
            columns = [array.slice(slack) for array in table]  # offsets: nothing begins where its buffer does
            parts = np.zeros(n, np.int32)
            assert self.table.reserve(parts, columns)
            self.table.append(self.hashes[start : start + n], parts, columns, np.arange(start, start + n))
            self.table.check()
            start += n

    def sorted_rows(self, room: int, low: int = 0, high: int | None = None, sorting: bool = False) -> Any:
        walk = self.table.walk(low, self.table.rows if high is None else high)
        walk.sorting = sorting
        walk.cursor[:] = (low if sorting else 0), 0, 0, 0
        hashes, rows = np.empty(room, np.uint64), np.empty(room, np.int64)
        pieces = []
        while not walk.done:
            count = self.table.next_sorted(walk, hashes, rows)
            pieces.append((hashes[:count].copy(), rows[:count].copy()))
        return pieces


SIZES = st.lists(st.integers(1, 70), min_size=1, max_size=8)


@given(SIZES)
def test_whatever_the_batches_rows_come_back_as_they_were(sizes: list[int]) -> None:
    filled = Filled(sizes)
    rows = np.random.default_rng(1).integers(0, filled.table.rows, 100).astype(np.int32)
    for found, expected in zip(filled.table.gather_all(EVERYTHING, rows), filled.columns, strict=True):
        found.validate(full=True)
        assert found.equals(expected.take(pa.array(rows)))


@given(SIZES, st.sampled_from([3, 20, 500]), st.booleans(), st.booleans())
def test_the_index_tells_the_order_of_keys(sizes: list[int], room: int, few_hashes: bool, by_range: bool) -> None:
    filled = Filled(sizes, few_hashes, by_range=by_range)
    pieces = filled.sorted_rows(room)
    hashes, rows = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
    assert (hashes == np.sort(filled.hashes.view(np.uint64))).all()
    assert (filled.hashes.view(np.uint64)[rows] == hashes).all()
    assert sorted(rows) == list(range(filled.table.rows))


@given(SIZES, st.integers(0, 50), st.booleans(), st.booleans())
def test_only_rows_that_are_asked_for_are_walked_through(
    sizes: list[int], low: int, sorting: bool, by_range: bool
) -> None:
    filled = Filled(sizes, few_hashes=True, by_range=by_range)
    high = max(low, filled.table.rows - 5)
    pieces = filled.sorted_rows(7, low, high, sorting) if low < high else []
    assert sorted(row for _, rows in pieces for row in rows) == list(range(low, high))
    assert all((np.diff(hashes.astype(object)) >= 0).all() for hashes, _ in pieces)


@pytest.mark.parametrize("by_range", [False, True])
@pytest.mark.parametrize("few_hashes", [False, True])
def test_a_place_in_the_order_outlives_a_larger_index(by_range: bool, few_hashes: bool) -> None:
    filled = Filled([40], few_hashes, by_range=by_range)
    table, hashes, rows = filled.table, np.empty(7, np.uint64), np.empty(7, np.int64)
    walk = table.walk(0, 40)
    walk.sorting = False
    found = [int(row) for row in rows[: table.next_sorted(walk, hashes, rows)]]
    before, more = table.bits, 1000
    columns = [make(np.random.default_rng(2), more) for make in COLUMNS.values()]
    assert table.reserve(np.zeros(more, np.int32), columns)
    numbers = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, more)
    table.append(numbers, np.zeros(more, np.int32), columns, np.arange(more))
    assert by_range or table.bits > before
    while not walk.done:
        found += [int(row) for row in rows[: table.next_sorted(walk, hashes, rows)]]
    alone = Filled([40], few_hashes, by_range=by_range)
    assert found == [int(row) for _, piece in alone.sorted_rows(500) for row in piece]


@given(SIZES)
def test_look_ups_find_all_rows_of_a_hash(sizes: list[int]) -> None:
    filled = Filled(sizes, few_hashes=True)
    wanted = np.array([0, 1 << 61, 2 << 61, 77])
    probe = Probe(wanted, filled.table.buckets_of(wanted))
    found: set[tuple[int, int]] = set()
    out = np.empty(5, np.int32), np.empty(5, np.int64)
    while not probe.done:
        count, _ = filled.table.probe(probe, len(wanted), *out)
        found |= set(zip(out[0][:count].tolist(), out[1][:count].tolist(), strict=True))
    assert found == {(i, int(row)) for i, h in enumerate(wanted) for row in np.flatnonzero(filled.hashes == h)}


@given(SIZES, st.booleans())
def test_look_ups_find_all_rows_within_a_range(sizes: list[int], few_hashes: bool) -> None:
    filled = Filled(sizes, few_hashes, by_range=True)
    words = filled.hashes ^ np.int64(-(1 << 63))  # keys are unsigned, what is looked up by range is signed
    wanted = np.random.default_rng(5).choice(words, 6)
    low, high = wanted - np.int64(1 << 62) // 4, wanted + np.int64(1 << 62) // 4
    low, high = np.where(low > wanted, wanted, low), np.where(high < wanted, wanted, high)
    probe = RangeProbe(wanted, low, high)
    found: set[tuple[int, int]] = set()
    out = np.empty(5, np.int32), np.empty(5, np.int64)
    while not probe.done:
        count, _ = filled.table.probe(probe, 100, *out)
        found |= set(zip(out[0][:count].tolist(), out[1][:count].tolist(), strict=True))
    inside = [np.flatnonzero((low[i] <= words) & (words <= high[i])) for i in range(len(wanted))]
    assert found == {(i, int(row)) for i, rows in enumerate(inside) for row in rows}


def test_an_index_of_ranges_is_built_anew_as_it_was() -> None:
    filled = Filled([64, 3, 20, 7, 1], by_range=True)
    index = filled.table.index
    built = index.built
    assert len(built) > 1
    filled.table.fit_index()
    assert index.built == [95]
    filled.table.built = built
    filled.table.fit_index()
    assert index.built == built
    filled.table.check()


@pytest.mark.parametrize("by_range", [False, True])
def test_memory_is_claimed_before_rows_come_and_given_back_when_they_go(by_range: bool) -> None:
    filled = Filled([100, 3, 50], by_range=by_range)
    table, budget = filled.table, filled.table._budget
    held = budget.used
    assert held >= sum(column.nbytes for column in filled.columns)
    assert not table.reserve(np.zeros(10, np.int32), [pa.array(["x" * (1 << 21)] * 10)])
    assert budget.used == held
    table.clear()
    table.check()
    assert table.rows == 0 and budget.used < 1000


def test_large_batches_are_not_copied() -> None:
    budget = Budget(1 << 26)
    table = Memtable([pa.int64()], budget, Layout(0, 1024, 256), "left")
    column = pa.array(np.arange(8 * 1024))
    assert table.reserve(np.zeros(len(column), np.int32), [column])
    before = pa.total_allocated_bytes()
    table.append(np.arange(len(column)), np.zeros(len(column), np.int32), [column], np.arange(len(column)))
    assert pa.total_allocated_bytes() == before
    assert table.gather(0, np.array([5, 8000], np.int32)).to_pylist() == [5, 8000]
