"""Policies choose by numbers alone."""

from __future__ import annotations

import numpy as np
import pytest

from watersmeet.policies.flush import FLUSH_POLICIES, FlushLargest, FlushSmallest, flush_policy
from watersmeet.policies.statistics import PartitionStatistics


@pytest.mark.parametrize(
    ("rows", "victim"),
    [
        ([[3, 9], [8, 1]], (0, 1)),
        ([[3, 9], [10, 1]], (1, 0)),
        ([[0, 0], [0, 1]], (1, 1)),
        ([[5, 5], [5, 5]], (0, 0)),
        ([[1, 5], [5, 5]], (0, 1)),
        ([[0], [2]], (1, 0)),
    ],
)
def test_the_largest_partition_of_either_side_goes_and_the_first_of_equals(
    rows: list[list[int]], victim: tuple[int, int]
) -> None:
    chosen = FlushLargest().choose(np.array(rows, np.int64))
    assert chosen == victim
    assert all(type(number) is int for number in chosen), "a snapshot carries it as JSON"


def test_the_smallest_is_never_an_empty_one() -> None:
    assert FlushSmallest().choose(np.array([[0, 9], [4, 0]])) == (1, 0)


@pytest.mark.parametrize("name", sorted(FLUSH_POLICIES))
def test_every_policy_names_victims_that_are_there(name: str) -> None:
    policy = flush_policy(name)
    rng = np.random.default_rng(5)
    for _ in range(200):
        rows = rng.integers(0, 5, (2, int(rng.integers(1, 6)))).astype(np.int64)
        rows[tuple(rng.integers(0, size) for size in rows.shape)] += 1  # some have rows
        before = rows.copy()
        statistics = PartitionStatistics(rows.shape[1])
        for side in (0, 1):
            statistics.arrived(side, rng.integers(0, 9, rows.shape[1]))
        victims = policy.victims(rows, statistics)
        assert victims, "something must go"
        assert len({(victim.side, victim.part) for victim in victims}) == len(victims)
        assert all(0 < victim.rows <= rows[victim.side, victim.part] for victim in victims)
        assert [victim.first for victim in victims] == [True] + [False] * (len(victims) - 1)
        assert np.array_equal(rows, before), "a policy looks and does not touch"
