"""Runs that are merged from batch to batch: few at any time, none rewritten all at once, and no row lost."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.arrays import Int64
from watersmeet.joins.confluence import upkeep
from watersmeet.joins.confluence.upkeep import Upkeep, size_class
from watersmeet.matching.debts import Debts, RunEntry
from watersmeet.memory import Budget
from watersmeet.runs.flush import write_run
from watersmeet.runs.sorted_run import SortedRun
from watersmeet.spill.store import MemoryStore
from watersmeet.tables.hash_table import Layout
from watersmeet.tables.memtable import Memtable

TYPES = [pa.int64(), pa.string()]
FAN_IN = 4


class Batches:
    """The runs of a side that each batch adds one to."""

    def __init__(self, least_rows: int) -> None:
        self.store = MemoryStore()
        self.rng = np.random.default_rng(3)
        self.table = Memtable(TYPES, Budget(1 << 24), Layout(0, 64, 1024), "rows")
        self.least_rows = least_rows
        self.written = self.clock = 0
        self.hashes: list[Int64] = []
        self.debts, self.upkeep = self.opened()

    def opened(self) -> tuple[Debts, Upkeep]:
        debts = Debts([self.table, self.table])
        upkeep = Upkeep(debts, self.store, self.new_name, 4096, FAN_IN)
        upkeep.least_rows = self.least_rows
        return debts, upkeep

    def new_name(self, side: int) -> str:
        self.written += 1
        return f"run-{side}-{self.written}"

    def batch(self, rows: int) -> int:
        """Write a run of so many rows; returns how many were merged."""
        keys = self.rng.integers(-(2**62), 2**62, rows)
        keys[: rows // 3] = 77  # rows of one hash may be in several pieces
        columns = [pa.array(keys), pa.array([str(key)[:3] for key in keys.tolist()])]
        assert self.table.reserve(np.zeros(rows, np.int32), columns)
        self.table.append(keys, np.zeros(rows, np.int32), columns, np.arange(rows))
        buffers = np.empty(512, np.uint64), np.empty(512, np.int64)
        self.clock += 1
        self.debts.add(0, RunEntry(write_run(self.store, self.new_name(0), self.table, *buffers, 4096), self.clock, 0))
        self.table.clear()
        self.hashes.append(keys)
        before = self.upkeep.rows_merged
        for name in self.upkeep.go_on([rows, 0]):
            self.store.remove(name)
        self.upkeep.check()
        return self.upkeep.rows_merged - before

    def go_on_elsewhere(self) -> None:
        """Another process takes over from what was saved."""
        saved = self.debts.to_state(), self.upkeep.to_state()
        self.debts, self.upkeep = self.opened()

        def open_run(side: int, name: str) -> SortedRun:
            return SortedRun(self.store, name, TYPES)

        self.debts.load(saved[0], open_run)
        self.upkeep.load(saved[1], open_run)

    @property
    def sizes(self) -> list[int]:
        return [entry.run.rows for entry in self.debts.runs[0]]

    def check(self) -> None:
        """No row is lost, none is twice, each is found with its hash, and no file is left over."""
        found: Counter[int] = Counter()
        for entry in self.debts.runs[0]:
            hashes = entry.run.hashes().view(np.int64)
            assert (np.diff(entry.run.hashes().astype(np.float64)) >= 0).all()
            entry.run.check_hashes(0, entry.run.rows)
            keys, texts = entry.run.gather_all((0, 1), np.arange(entry.run.rows, dtype=np.int64))
            assert keys.to_numpy().tolist() == hashes.tolist()
            assert texts.to_pylist() == [str(key)[:3] for key in hashes.tolist()]
            found.update(hashes.tolist())
        assert found == Counter(np.concatenate(self.hashes).tolist())
        names = {entry.run.name for entry in self.debts.runs[0]} | set(self.upkeep.names)
        assert set(self.store.names()) == names


@pytest.mark.parametrize("least_rows", [100, 3_000, 1 << 18])
def test_runs_stay_few_and_every_batch_does_little(least_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_SMALL", min(4096, least_rows // 4))  # small runs are merged whenever they are enough
    batches = Batches(least_rows)
    total = all_merged = 0
    for number in range(150):
        rows = int(batches.rng.choice([1, 40, 700]))
        total += rows
        merged = batches.batch(rows)
        all_merged += merged
        classes = size_class(total, FAN_IN) + 1
        assert merged <= classes * max(least_rows, 2 * rows)
        births = {entry.birth for entry in batches.debts.runs[0]}
        assert len(births) <= 3 * FAN_IN * classes
        if number % 7 == 0:
            batches.go_on_elsewhere()
    batches.check()
    assert all_merged > total
    if least_rows == 1 << 18:  # at once, then: as few as there can be
        assert len(batches.sizes) < FAN_IN * classes


def test_a_long_run_is_merged_in_pieces_over_many_batches() -> None:
    batches = Batches(1_000)
    for _ in range(FAN_IN - 1):
        assert batches.batch(5_000) == 0
    assert batches.batch(5_000) == 10_000, "twice as many as came, of twenty thousand"
    assert batches.sizes == [5_000] * FAN_IN, "what is merged stays until all of it is"
    assert len(batches.upkeep.names) == 1
    pieces = []
    while batches.upkeep.names:
        pieces.append(batches.batch(10))
        batches.go_on_elsewhere()
    assert len(pieces) == 10
    assert all(1_000 <= rows <= 1_000 + 10 * len(pieces) for rows in pieces), "and small runs, which are merged at once"
    assert batches.sizes[:11] == [10_000, *[1_000] * 10]
    assert len({entry.birth for entry in batches.debts.runs[0][:11]}) == 1, "the pieces are one run"
    assert batches.debts.runs[0][11].birth != batches.debts.runs[0][0].birth
    batches.check()


def test_runs_that_nobody_needs_any_more_leave_nothing() -> None:
    batches = Batches(1_000)
    for _ in range(FAN_IN):
        batches.batch(5_000)
    assert batches.upkeep.names
    for name in [*batches.upkeep.forget(0), *batches.debts.forget(0)]:
        batches.store.remove(name)
    assert batches.store.names() == batches.upkeep.names == batches.sizes == []
