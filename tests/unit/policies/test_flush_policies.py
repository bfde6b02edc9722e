"""What leaves memory, by numbers alone."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.core.errors import SpecError
from watersmeet.policies.flush import (
    FLUSH_POLICIES,
    FlushAdaptive,
    FlushAll,
    FlushLargest,
    FlushSmallest,
    OptimalFlush,
    Victim,
    flush_policy,
)
from watersmeet.policies.statistics import PartitionStatistics


def test_the_papers_worked_example() -> None:
    rows = np.array([[10, 10], [10, 10]])
    victims = OptimalFlush().plan(rows, np.array([[0.35, 0.25], [0.10, 0.30]]), 15)
    assert [(v.side, v.part, v.rows) for v in victims] == [(0, 0, 10), (1, 1, 5)]


def remaining(rows: Any, victims: list[Victim]) -> Any:
    left = rows.copy()
    for victim in victims:
        left[victim.side, victim.part] -= victim.rows
    return left


def promise(rows: Any, probabilities: Any) -> float:
    """The paper's eta: how much of what is in memory the next arrival is expected to meet."""
    return float((rows * probabilities[::-1]).sum())


partitions = st.integers(1, 3)


@st.composite
def situations(draw: Any) -> tuple[Any, Any, int]:
    count = draw(partitions)
    rows = np.array([[draw(st.integers(0, 4)) for _ in range(count)] for _ in (0, 1)])
    weights = np.array([[draw(st.integers(0, 9)) for _ in range(count)] for _ in (0, 1)], np.float64)
    flushed = draw(st.integers(0, int(rows.sum())))
    return rows, weights / max(1.0, weights.sum()), flushed


@given(situations())
def test_lemma_1_no_other_flush_of_as_many_rows_leaves_more_to_be_met(situation: tuple[Any, Any, int]) -> None:
    rows, probabilities, flushed = situation
    kept = remaining(rows, OptimalFlush().plan(rows, probabilities, flushed))
    assert (kept >= 0).all() and kept.sum() == rows.sum() - flushed
    ranges = [range(int(count) + 1) for count in rows.ravel()]
    others = (np.array(choice).reshape(rows.shape) for choice in product(*ranges) if sum(choice) == kept.sum())
    best = max(promise(other, probabilities) for other in others)
    assert promise(kept, probabilities) == pytest.approx(best)


@given(situations())
def test_every_policy_frees_something(situation: tuple[Any, Any, int]) -> None:
    rows, _, _ = situation
    statistics = PartitionStatistics(rows.shape[1])
    if not rows.any():
        return
    for side in (0, 1):
        statistics.arrived(side, rows[side])
    for policy in FLUSH_POLICIES.values():
        victims = policy().victims(rows, statistics)
        assert victims[0].first and not any(victim.first for victim in victims[1:])
        assert all(0 < victim.rows <= rows[victim.side, victim.part] for victim in victims)


def test_the_choices_differ() -> None:
    rows = np.array([[50, 60, 1], [50, 20, 0]])
    assert FlushLargest().choose(rows) == (0, 1)
    assert FlushSmallest().choose(rows) == (0, 2)
    assert FlushAll().choose(rows) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert FlushAdaptive().choose(rows) == 1, "the left side has more in memory, and this makes it less"


def test_adaptive_prefers_the_larger_of_equally_balanced_pairs() -> None:
    assert FlushAdaptive().choose(np.array([[30, 40, 2], [30, 40, 2]])) == 1


def test_policies_by_name() -> None:
    assert isinstance(flush_policy("adaptive"), FlushAdaptive)
    mine = FlushLargest()
    assert flush_policy(mine) is mine
    with pytest.raises(SpecError, match="no flush policy 'newest'; there are adaptive, all, largest"):
        flush_policy("newest")
    with pytest.raises(SpecError, match="must be above 0"):
        OptimalFlush(share=0)


def test_an_input_that_ended_brings_nothing() -> None:
    statistics = PartitionStatistics(2)
    statistics.arrived(0, np.array([30, 10]))
    statistics.arrived(1, np.array([5, 5]))
    before = statistics.probabilities()
    assert before.sum() == pytest.approx(1) and before[0, 0] == pytest.approx(0.6)
    statistics.ended(0)
    assert statistics.probabilities()[0].tolist() == [0, 0]
    assert statistics.probabilities()[1].tolist() == [0.5, 0.5]
    victims = OptimalFlush().plan(np.array([[30, 10], [5, 5]]), statistics.probabilities(), 10)
    assert {victim.side for victim in victims} == {1}, "nobody will look for the right side's rows any more"
    statistics.ended(1)
    assert not statistics.probabilities().any()


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9])
def test_recent_arrivals_decay(decay: float) -> None:
    statistics = PartitionStatistics(1, decay=decay, unit=10)
    statistics.arrived(0, np.array([10]))
    statistics.arrived(1, np.array([30]))
    # After the first unit all are left's; each of the next three keeps `decay` of that.
    assert statistics.probabilities()[0, 0] == pytest.approx(
        max(decay**3 * 10, 1) / (max(decay**3 * 10, 1) + (1 - decay**3) * 10)
    )


def test_statistics_survive_a_snapshot() -> None:
    statistics = PartitionStatistics(2, unit=7)
    statistics.arrived(0, np.array([5, 6]))
    statistics.arrived(1, np.array([9, 1]))
    statistics.ended(1)
    again = PartitionStatistics(2, unit=7)
    again.load(statistics.to_state())
    for each in (statistics, again):
        each.arrived(0, np.array([3, 3]))
    assert np.array_equal(again.probabilities(), statistics.probabilities())
