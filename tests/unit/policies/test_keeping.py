"""Rows stay where that pays, by counts or because their partners are still to come; elsewhere none does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from watersmeet.core.arrays import Int64
from watersmeet.kernels.counting import LEVELS, least_count, weigh_entries
from watersmeet.memory import Budget
from watersmeet.policies.keeping import Keeping, Staying

ROWS = 4000
FLUSHES = 6


class Entries(NamedTuple):
    """Hashes as a memtable's index has them: each in the first of two words."""

    words: Int64

    @property
    def rows(self) -> int:
        return len(self.words)

    @property
    def hash_address(self) -> int:
        return int(self.words.ctypes.data)


def entries(keys: Int64) -> Entries:
    words = np.zeros((len(keys), 2), np.int64)
    mixed = keys.astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    words[:, 0] = ((mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)).view(np.int64)
    return Entries(words)


def chosen(keys: list[tuple[Int64, Int64]], keeping: Keeping, most: int = ROWS // 8) -> tuple[Staying | None, Int64]:
    """What stays of the first input at the last of some flushes, each of which empties both memtables."""
    found, left = None, np.empty(0, np.int64)
    for left, right in keys:
        tables = entries(left), entries(right)
        found = keeping.choose(0, tables, most)
        keeping.rows_left(0)
        keeping.rows_left(1)
    return found, left


def zipf(rng: np.random.Generator, exponent: float, domain: int = 10_000) -> Int64:
    weights = np.arange(1, domain + 1) ** -exponent
    return rng.choice(domain, ROWS, p=weights / weights.sum()).astype(np.int64)


@pytest.mark.parametrize("exponent", [0.8, 1.0])
def test_rows_of_frequent_keys_stay(exponent: float) -> None:
    rng = np.random.default_rng(3)
    found, keys = chosen([(zipf(rng, exponent), zipf(rng, exponent)) for _ in range(FLUSHES)], Keeping(1 << 14))
    assert found is not None
    assert 0 < len(found.numbers) <= ROWS // 8
    stayed = keys[found.numbers]
    assert np.median(stayed) < np.median(keys) / 10
    if not found.first:
        assert set(np.delete(keys, found.numbers)).isdisjoint(stayed), "rows of one key stay or leave together"


def test_no_row_stays_where_all_keys_are_alike() -> None:
    rng = np.random.default_rng(4)
    keys = [(rng.integers(0, 3000, ROWS), rng.integers(0, 3000, ROWS)) for _ in range(2 * FLUSHES)]
    keeping = Keeping(1 << 14)
    for number in range(1, len(keys) + 1):
        assert chosen(keys[number - 1 : number], keeping)[0] is None


def test_rows_stay_whose_partner_is_yet_to_come() -> None:
    # Every key comes once on each side, on the right mostly before, by up to two memory-fulls.
    rng = np.random.default_rng(5)
    count = FLUSHES * ROWS
    due = np.arange(count) + rng.integers(-ROWS, ROWS, count)
    right = np.argsort(due, kind="stable")
    keys = [(np.arange(at, at + ROWS) - ROWS // 2, right[at : at + ROWS]) for at in range(0, count, ROWS)]
    found, left = chosen(keys[:-1], Keeping(1 << 16))
    assert found is not None and found.most == 0
    seen = set(right[: count - ROWS].tolist())
    assert not seen & set(left[found.numbers].tolist())
    assert found.numbers.min() > ROWS // 2, "the newest of them"


def test_what_stays_and_what_leaves_are_all_rows() -> None:
    rng = np.random.default_rng(6)
    found, keys = chosen([(zipf(rng, 1.0), zipf(rng, 1.0)) for _ in range(FLUSHES)], Keeping(1 << 10))
    assert found is not None
    hashes = entries(keys).words[:, 0].view(np.uint64)
    assert np.flatnonzero(found.stay(hashes, np.arange(ROWS))).tolist() == found.numbers.tolist()


def test_old_counts_are_forgotten() -> None:
    rng = np.random.default_rng(7)
    early = [(zipf(rng, 1.0), zipf(rng, 1.0)) for _ in range(FLUSHES)]
    late = [(zipf(rng, 1.0) + 50_000, zipf(rng, 1.0) + 50_000) for _ in range(FLUSHES)]
    keeping = Keeping(1 << 14)
    chosen(early, keeping)
    found, keys = chosen(late, keeping)
    assert found is not None and np.median(keys[found.numbers]) < 50_000 + np.median(keys - 50_000) / 10


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 63, 64, 1000, 65535])
def test_a_count_is_on_the_level_of_those_from_its_lowest_on(count: int) -> None:
    known, nothing = np.full(1 << 4, count, np.uint16), np.zeros(1 << 4, np.uint16)
    held, wanted = np.zeros(LEVELS, np.int64), np.zeros(LEVELS, np.int64)
    table = entries(np.arange(1))
    weigh_entries(table.hash_address, 1, 60, known, nothing, held, wanted)
    [level] = np.flatnonzero(held)
    assert least_count(int(level)) <= count < least_count(int(level) + 1)


def test_counters_are_within_the_budget() -> None:
    budget = Budget(64 << 20)
    assert Keeping.within(budget) is not None
    assert 0 < budget.used <= budget.total // 64
    assert Keeping.within(Budget(128 << 10)) is None
