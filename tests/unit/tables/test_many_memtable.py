"""Rows that are found by any of several attributes, and walked through in the order of each."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from watersmeet.memory import Budget
from watersmeet.runs.flush import write_run
from watersmeet.runs.run_set import RunSet, RunSets, SetMerge
from watersmeet.spill.store import MemoryStore
from watersmeet.tables.hash_table import Layout
from watersmeet.tables.memtables import ManyMemtable, hash_columns


def filled(rows: int, seed: int, budget: Budget) -> tuple[ManyMemtable, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    hashes = [rng.integers(-(2**63), 2**63 - 1, rows), rng.integers(0, 9, rows) << 60]
    table = ManyMemtable([pa.int64()], 2, budget, Layout(0, 16, 256), "r")
    for start in range(0, rows, 37):
        some = [each[start : start + 37] for each in hashes]
        columns = [pa.array(np.arange(start, start + len(some[0]))), *hash_columns(some)]
        parts = np.zeros(len(some[0]), np.int32)
        assert table.reserve(parts, columns)
        table.append(some[0], parts, columns, np.arange(start, start + len(some[0])))
        table.check()
    return table, hashes


def test_rows_are_found_by_each_attribute_also_when_the_index_has_grown_since() -> None:
    table, hashes = filled(500, 1, Budget(1 << 22))
    for attribute in (0, 1):
        wanted = hashes[attribute][:50]
        probe = table.seek(attribute, wanted)
        probe.parts, probe.bits = np.zeros(50, np.int32), 0  # as of an index with one bucket
        out_probe, out_row = np.empty(50_000, np.int32), np.empty(50_000, np.int64)
        found, _ = table.look_up(attribute, probe, out_probe, out_row)
        pairs = set(zip(out_probe[:found].tolist(), out_row[:found].tolist(), strict=True))
        assert len(pairs) == found
        assert pairs == {(i, j) for i in range(50) for j in np.flatnonzero(hashes[attribute] == wanted[i]).tolist()}
        rows = np.array([3, 499], np.int32)
        assert table.attribute_hashes(attribute, rows).tolist() == hashes[attribute][rows].tolist()


def test_a_claim_that_fails_half_way_leaves_nothing_claimed() -> None:
    budget = Budget(1 << 22)
    table, _ = filled(100, 2, budget)
    used = budget.used
    blocker = budget.reservation("somebody else")
    columns = [pa.array(np.arange(64)), *hash_columns([np.arange(64), np.arange(64)])]
    parts = np.zeros(64, np.int32)
    assert table.reserve(parts, columns)
    need = budget.used - used
    table.trim(0)
    blocker.grow(budget.free - need + 8)  # what is left is enough for the rows, and not for their second index
    assert not table.reserve(parts, columns)
    assert budget.used == used + blocker.held
    table.clear()
    assert table.rows == 0 and all(order.rows == 0 for order in table.orders)


def test_runs_of_every_attribute_hold_the_same_rows_before_and_after_a_merge() -> None:
    store, sets, expected = MemoryStore(), [], []
    for number in range(3):
        table, hashes = filled(200 + number, number, Budget(1 << 22))
        buffers = np.empty(64, np.uint64), np.empty(64, np.int64)
        runs = [
            write_run(store, f"run-{number}-{k}", table, *buffers, 1 << 12, order)
            for k, order in enumerate(table.orders)
        ]
        sets.append(RunSet(tuple(runs), epoch=0))
        expected += list(zip(range(200 + number), *(each.tolist() for each in hashes), strict=True))
    disk = RunSets(store, sets[0].runs[0].types)
    disk.sets = sets
    merge = SetMerge(store, ["merged-0", "merged-1"], disk.to_merge(3), 1 << 12)
    while merge.merged is None:
        merge.work()
    disk.replace(merge.sets, merge.merged)
    disk.check()
    assert [each.level for each in disk.sets] == [1]
    for attribute, run in enumerate(disk.sets[0].runs):
        assert (np.diff(run.hashes().astype(object)) >= 0).all()
        columns = [array.to_pylist() for array in run.gather_all((0, 1, 2), np.arange(run.rows))]
        assert sorted(zip(*columns, strict=True)) == sorted(expected)
        assert run.hashes().view(np.int64).tolist() == columns[1 + attribute]


def test_a_merge_that_is_given_up_leaves_nothing() -> None:
    store = MemoryStore()
    table, _ = filled(100, 5, Budget(1 << 22))
    buffers = np.empty(64, np.uint64), np.empty(64, np.int64)
    runs = [write_run(store, f"run-{k}", table, *buffers, 1 << 12, order) for k, order in enumerate(table.orders)]
    before = store.names()
    merge = SetMerge(store, ["merged-0", "merged-1"], [RunSet(tuple(runs), 0), RunSet(tuple(runs), 0)], 1 << 12)
    while "merged-0" not in store.names():
        merge.work()
    merge.work()
    merge.abort()
    assert store.names() == before
