"""What a silence is used for: expectations that equal what has not met, and the task that pays most."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.core.errors import SpecError
from watersmeet.matching.ledger import Ledger
from watersmeet.memory import Budget
from watersmeet.policies.reactive import AccessCosts, BestRate, ExpectedResults
from watersmeet.runs.presence import FOREVER, Stay, Stretch

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 1)),
        st.tuples(st.just("flush"), st.integers(0, 1)),
        st.tuples(st.just("flush_oldest"), st.integers(0, 1)),
        st.tuples(st.just("visit"), st.integers(0, 1)),
        st.tuples(st.just("merge"), st.just(0)),
    ),
    max_size=40,
)


class Partition:
    """One partition's rows as (arrival, departure, ordinal), its ledger, and what is expected of it."""

    def __init__(self) -> None:
        self.clock = 0
        self.memory: list[list[int]] = [[], []]
        self.disk: list[list[tuple[int, int, int]]] = [[], []]
        self.ledger = Ledger(1, Budget(1 << 20).reservation("ledger"))
        self.expected = ExpectedResults(1)
        self.visits: list[list[int]] = [[], []]

    def play(self, events: list[tuple[str, int]]) -> None:
        for kind, side in events:
            self.clock += 1
            getattr(self, kind)(side)

    def arrive(self, side: int) -> None:
        self.memory[side].append(self.clock)
        self.expected.arrived(side, np.array([1]), np.array([len(self.disk[1 - side])]))

    def flush(self, side: int) -> None:
        self.expected.flushed(side, 0)
        self._move(side, len(self.memory[side]))

    def flush_oldest(self, side: int) -> None:
        """The older half of the rows, with their share of what has not met."""
        count = len(self.memory[side]) // 2
        last_visit = max(self.visits[side], default=0)
        before = [sum(left < arrived for _, left, _ in self.disk[1 - side]) for arrived in self.memory[side]]
        unmet = [n * (arrived > last_visit) for n, arrived in zip(before, self.memory[side], strict=True)]
        self.expected.flushed(side, 0, sum(unmet[:count]) / max(1, sum(unmet)))
        self._move(side, count)

    def _move(self, side: int, count: int) -> None:
        first = len(self.disk[side])
        self.disk[side] += [(arrived, self.clock, first + i) for i, arrived in enumerate(self.memory[side][:count])]
        del self.memory[side][:count]

    def visit(self, side: int) -> None:
        """A whole md-task."""
        assert self.ledger.try_reserve(side, 0)
        self.ledger.record_visit(side, 0, self.clock, Stretch(0, len(self.disk[1 - side])))
        self.expected.visited(side, 0, 1.0)
        self.visits[side].append(self.clock)

    def merge(self, side: int) -> None:
        if self.disk[0] and self.disk[1]:
            assert self.ledger.try_reserve_merge()
            self.ledger.record_merge(0, (0, len(self.disk[0])), (0, len(self.disk[1])))
            self.expected.merged(0, 1.0)

    def in_memory(self, side: int) -> list[tuple[int, int, int]]:
        return [(arrived, FOREVER, -1) for arrived in self.memory[side]]

    def fresh(self, left: list[tuple[int, int, int]], right: list[tuple[int, int, int]]) -> int:
        """How many pairs of these rows have not been emitted."""
        pairs = np.array([(*l, *r) for l in left for r in right], np.int64).reshape(-1, 6).T
        return int(self.ledger.fresh(0, Stay(*pairs[:3]), Stay(*pairs[3:])).sum())


@given(EVENTS)
def test_lemma_2_after_a_visit_a_flushed_row_has_met_all_that_is_on_disk(events: list[tuple[str, int]]) -> None:
    partition = Partition()
    partition.play(events)
    for arrived in partition.memory[0]:
        since = [tick for tick in partition.visits[0] if tick > arrived]
        now = (arrived, partition.clock + 1, len(partition.disk[0]))  # about to be flushed
        unmet = partition.fresh([now], partition.disk[1])
        if since:
            assert unmet == 0
        else:
            assert unmet == sum(departed < arrived for _, departed, _ in partition.disk[1]), "what left before it came"


@given(EVENTS)
def test_what_is_expected_is_what_has_not_met(events: list[tuple[str, int]]) -> None:
    partition = Partition()
    partition.play(events)
    expected = partition.expected
    assert expected.md[0, 0] == pytest.approx(partition.fresh(partition.in_memory(0), partition.disk[1]))
    assert expected.md[1, 0] == pytest.approx(partition.fresh(partition.disk[0], partition.in_memory(1)))
    assert expected.dd[0] == pytest.approx(partition.fresh(partition.disk[0], partition.disk[1]))


def test_a_visit_of_half_the_disk_leaves_half() -> None:
    expected = ExpectedResults(2)
    expected.arrived(1, np.array([3, 1]), np.array([10, 20]))
    expected.visited(1, 0, 0.5)
    assert expected.md.tolist() == [[0, 0], [15, 20]]


def test_costs_are_those_of_random_and_sequential_pages() -> None:
    costs = AccessCosts(random=10, sequential=1)
    assert costs.of_md_task(np.array([[3]]), np.array([[8]])).tolist() == [[35]]
    one_pass = costs.of_dd_task(np.array([[4], [2]]), np.array([[8], [2]]), 4)
    three_passes = costs.of_dd_task(np.array([[5], [2]]), np.array([[8], [2]]), 2)
    assert one_pass.tolist() == [200] and three_passes.tolist() == [600]


def choose(expected: ExpectedResults, reactive: str = "both") -> list[tuple[str, int, int]]:
    runs, pages = np.array([[2, 2], [1, 1]]), np.array([[20, 20], [10, 10]])
    return [(t.kind, t.side, t.part) for t in BestRate(reactive).choose(expected, runs, pages, 2)]


def test_the_best_rate_is_chosen_and_nothing_that_promises_nothing() -> None:
    expected = ExpectedResults(2)
    assert choose(expected) == []
    expected.md[0, 1] = 10.0
    expected.dd[0] = 20.0
    assert choose(expected) == [("md", 0, 1), ("dd", 0, 0)]
    expected.dd[0] = 2000.0
    assert choose(expected) == [("dd", 0, 0), ("md", 0, 1)]
    assert choose(expected, "md") == [("md", 0, 1)]
    assert choose(expected, "dd") == [("dd", 0, 0)]


def test_the_cheaper_scan_wins_among_equal_promises() -> None:
    expected = ExpectedResults(2)
    expected.md[0, 0] = expected.md[1, 0] = 10.0
    assert choose(expected)[0] == ("md", 0, 0), "left memory scans the right disk, which is the smaller one"


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(SpecError, match="reactive='mm' is not understood"):
        BestRate("mm")


def test_expectations_survive_a_snapshot() -> None:
    expected = ExpectedResults(2)
    expected.arrived(0, np.array([1, 2]), np.array([3, 4]))
    expected.flushed(0, 0)
    again = ExpectedResults(2)
    again.load(expected.to_state())
    assert np.array_equal(again.md, expected.md) and np.array_equal(again.dd, expected.dd)


def test_by_the_paper_a_flushed_row_takes_more_from_a_visit_than_it_had_added() -> None:
    """Rows that were flushed after it came have met it in memory: the paper takes them away, too."""
    exact, paper = ExpectedResults(1), ExpectedResults(1)
    for expected, by_paper in ((exact, None), (paper, (20, 2 * 30))):
        expected.arrived(0, np.array([4]), other_disk=np.array([10]))
        # Twenty rows of the other side are flushed now, and then the older half of these four.
        expected.flushed(0, 0, share=0.5, by_paper=by_paper)
    assert exact.md[0, 0] == 20 and exact.dd[0] == 20
    assert paper.md[0, 0] == 0 and paper.dd[0] == 20
