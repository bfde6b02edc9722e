"""Who joins what: roles, moves, and how many slots there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.core.errors import SpecError
from watersmeet.policies.balancing import Balancer, Declustering, Thresholds


def level(balancer: Balancer, occupancy: float, busy: float) -> tuple[dict[int, float], dict[int, float]]:
    return dict.fromkeys(balancer.active, occupancy), dict.fromkeys(balancer.active, busy)


def test_a_supplier_gives_one_group_to_a_consumer_and_a_neutral_slot_none() -> None:
    balancer = Balancer(9, (3, 3), one_each=True)
    moves = balancer.reorganize({0: 0.9, 1: 0.2, 2: 0.0}, {0: 1.0, 1: 0.8, 2: 0.1}, np.ones(9))
    assert [(move.giver, move.taker) for move in moves] == [(0, 2)]
    assert balancer.groups_of(0) != [0, 3, 6] and len(balancer.groups_of(2)) == 4 and balancer.groups_of(1) == [1, 4, 7]


def test_the_fullest_meets_the_idlest() -> None:
    balancer = Balancer(8, (4, 4), one_each=True)
    moves = balancer.reorganize({0: 0.6, 1: 0.9, 2: 0.0, 3: 0.0}, {0: 1, 1: 1, 2: 0.5, 3: 0.2}, np.ones(8))
    assert [(move.giver, move.taker) for move in moves] == [(1, 3), (0, 2)]


def test_as_many_groups_move_as_make_two_slots_even() -> None:
    balancer = Balancer(8, (2, 2))
    work = np.array([6.0, 1, 6, 1, 6, 1, 6, 1])
    moves = balancer.reorganize({0: 0.9, 1: 0.0}, {0: 1.0, 1: 0.2}, work)
    loads = [work[balancer.groups_of(slot)].sum() for slot in (0, 1)]
    assert len(moves) == 2 and loads == [12, 16]


def test_a_single_group_stays_where_it_is() -> None:
    balancer = Balancer(2, (2, 2))
    assert balancer.reorganize({0: 0.9, 1: 0.0}, {0: 1.0, 1: 0.0}, np.array([5.0, 0.0])) == []


def test_by_the_rule_of_the_thesis_a_slot_goes_when_none_is_overloaded_and_comes_when_one_is() -> None:
    balancer = Balancer(12, (1, 3), declustering=Declustering(headroom=None), one_each=True)
    moves = balancer.reorganize(*level(balancer, 0.1, 0.95), np.ones(12))
    assert balancer.active == [0, 1] and {move.giver for move in moves} == {2} and len(moves) == 4
    assert [len(balancer.groups_of(slot)) for slot in (0, 1)] == [6, 6]
    moves = balancer.reorganize(*level(balancer, 0.8, 1.0), np.ones(12))
    assert balancer.active == [0, 1, 2] and len(moves) == 1 and moves[0].taker == 2


def test_with_headroom_a_slot_stays_until_the_others_have_room() -> None:
    balancer = Balancer(12, (1, 3))
    assert balancer.reorganize(*level(balancer, 0.1, 0.7), np.ones(12)) == []
    assert len(balancer.active) == 3
    balancer.reorganize(*level(balancer, 0.1, 0.5), np.ones(12))
    assert len(balancer.active) == 2
    # One is overloaded, but the two together are not: work moves, and nobody comes.
    moves = balancer.reorganize({0: 0.9, 1: 0.0}, {0: 1.0, 1: 0.3}, 1.0 + (balancer.owner == 0))
    assert moves and len(balancer.active) == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Thresholds(0.5, 0.5), "0 <= consumer < supplier < 1"),
        (lambda: Declustering(ratio=1.0), "a ratio between 0 and 1"),
        (lambda: Balancer(3, (1, 4)), "not 1, 4, 4 and 3"),
        (lambda: Balancer(8, (2, 4), start=1), "not 2, 1, 4 and 8"),
    ],
)
def test_what_cannot_be_is_said(wrong: object, said: str) -> None:
    assert callable(wrong)
    with pytest.raises(SpecError, match=said):
        wrong()


@given(st.data())
def test_every_group_always_has_an_active_slot(data: st.DataObject) -> None:
    most = data.draw(st.integers(1, 6))
    least = data.draw(st.integers(1, most))
    groups = data.draw(st.integers(most, 30))
    headroom = data.draw(st.sampled_from([None, 0.5, 0.9]))
    rules = Declustering(headroom=headroom)
    balancer = Balancer(groups, (least, most), declustering=rules, one_each=data.draw(st.booleans()))
    share = st.floats(0, 1)
    for _ in range(data.draw(st.integers(1, 8))):
        before = balancer.owner.copy()
        occupancy, busy = ({slot: data.draw(share) for slot in balancer.active} for _ in range(2))
        work = np.array(data.draw(st.lists(st.floats(0, 10), min_size=groups, max_size=groups)))
        moves = balancer.reorganize(occupancy, busy, work)
        assert least <= len(balancer.active) <= most
        assert set(balancer.owner.tolist()) <= set(balancer.active)
        after = before.copy()
        for move in moves:
            assert after[move.group] == move.giver != move.taker
            after[move.group] = move.taker
        assert (after == balancer.owner).all()
        assert len({move.group for move in moves}) == len(moves)
