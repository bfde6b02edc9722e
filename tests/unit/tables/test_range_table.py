"""A table from which any rows may leave: what stays keeps its values, order and join bits, within the budget."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.kernels.sorted_runs import RangeProbe
from watersmeet.memory import Budget
from watersmeet.tables.hash_table import Layout
from watersmeet.tables.range_table import SortedSide

TYPES = [pa.int64(), pa.string(), pa.list_(pa.int16())]


def columns(words: list[int]) -> list[pa.Array]:
    texts = [None if word % 7 == 0 else "t" * (word % 400) for word in words]
    lists = [None if word % 5 == 0 else [word % 100] * (word % 4) for word in words]
    return [pa.array(words, pa.int64()), pa.array(texts, pa.string()), pa.array(lists, TYPES[2])]


class Model:
    """The table beside a plain list of (tick, word)."""

    def __init__(self, memory: int, block_rows: int = 8) -> None:
        self.budget = Budget(memory)
        self.table = SortedSide(TYPES, self.budget, Layout(0, block_rows, 256), "side")
        self.rows: list[tuple[int, int]] = []
        self.clock = 0

    def append(self, words: list[int]) -> bool:
        parts = np.zeros(len(words), np.int32)
        if not self.table.reserve(parts, columns(words)):
            return False
        ticks = np.arange(self.clock + 1, self.clock + 1 + len(words))
        self.clock += len(words)
        self.table.append(np.array(words, np.int64), parts, columns(words), ticks)
        self.rows += zip(ticks.tolist(), words, strict=True)
        return True

    def remove(self, ticks: set[int]) -> int:
        rows = self.table.rows_of()
        loose = self.table.remove(rows[np.isin(self.table.ticks(rows), list(ticks))])
        gone = ticks | {int(tick) for each in loose for tick in each.arrived}
        self.rows = [row for row in self.rows if row[0] not in gone]
        return len(loose)

    def check(self) -> None:
        self.table.check()
        self.budget.check()
        rows = self.table.rows_of()
        words = self.table.hashes(rows).tolist()
        assert list(zip(self.table.ticks(rows).tolist(), words, strict=True)) == self.rows
        for column, expected in enumerate(columns(words)):
            assert self.table.gather(column, rows).equals(expected)


@pytest.mark.parametrize("seed", range(6))
def test_rows_come_and_go(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = Model(1 << 20)
    for _ in range(25):
        assert model.append(rng.integers(0, 1000, int(rng.integers(0, 40))).tolist())
        model.check()
        ticks = [tick for tick, _ in model.rows]
        share = float(rng.choice([0.05, 0.3, 0.9, 1.0]))
        assert not model.remove({tick for tick in ticks if rng.random() < share}), "there is room for all that stay"
        model.check()


@pytest.mark.parametrize("seed", range(6))
def test_a_full_budget_is_kept_and_freed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = Model(16 * 1024)
    refused = 0
    for _ in range(60):
        words = rng.integers(0, 1000, 6).tolist()
        while not model.append(words):
            refused += 1
            model.check()
            oldest = [tick for tick, _ in model.rows]
            model.remove(set(oldest[:: int(rng.integers(2, 5))]))
            model.table.trim(model.budget.total)
            model.check()
    assert refused > 3
    model.table.drop()
    model.table.trim(model.budget.total)
    assert model.budget.used == 0


def test_join_bits_move_with_their_rows() -> None:
    model = Model(1 << 20)
    model.append(list(range(30)))
    rows = model.table.rows_of()
    counts = np.zeros(3, np.int64)
    model.table.note_joined(rows[10:20], 12, 18, counts)
    assert counts.tolist() == [3, 5, 2]
    model.remove({1, 2, 3, 30})
    rows = model.table.rows_of()
    assert model.table.hashes(rows[model.table.joined(rows)]).tolist() == list(range(10, 20))
    model.table.clear_joined(rows[:10])
    assert model.table.hashes(rows[model.table.joined(rows)]).tolist() == list(range(13, 20))


def test_ranges_are_found_after_a_move() -> None:
    model = Model(1 << 20)
    model.append([5, 1, 4, 2, 3] * 5)
    model.remove({tick for tick, word in model.rows if word == 3})
    out = np.empty(99, np.int32), np.empty(99, np.int32)
    found, _ = model.table.probe(RangeProbe(np.array([3]), np.array([2]), np.array([4])), 1000, *out)
    assert sorted(model.table.hashes(out[1][:found]).tolist()) == [2] * 5 + [4] * 5


def test_rows_without_an_index_can_be_taken_back() -> None:
    table = SortedSide([pa.int64()], Budget(1 << 16), Layout(0, 4, 256), "side", from_disk=True)
    for start in (0, 6):
        words = np.arange(start, start + 6)
        arrays = [pa.array(words)]
        assert table.reserve(np.zeros(6, np.int32), arrays)
        rows = table.append(words, np.zeros(6, np.int32), arrays, words + 1, grow_index=False)
        table.set_departed(rows, 100 + start)
    table.remove_last(6)
    table.fit_index()
    table.check()
    rows = table.rows_of()
    assert table.hashes(rows).tolist() == list(range(6))
    assert set(table.departed(rows).tolist()) == {100}
