"""When has a row met a block? By the ticks at which the block came and went."""

from __future__ import annotations

import numpy as np
import pytest

from watersmeet.matching.ledger import Encounters
from watersmeet.memory import Budget
from watersmeet.runs.presence import FOREVER


def encounters() -> Encounters:
    return Encounters(Budget(1 << 16).reservation("encounters"))


def fresh(known: Encounters, block: int, left: int, arrived: int) -> bool:
    return bool(known.fresh(np.array([block]), np.array([left]), np.array([arrived]))[0])


def test_a_row_meets_a_block_that_has_not_left_when_it_arrives() -> None:
    known = encounters()
    assert not fresh(known, 7, left=20, arrived=10)
    assert not fresh(known, 7, left=FOREVER, arrived=10)
    assert fresh(known, 7, left=20, arrived=30)


@pytest.mark.parametrize("arrived, met", [(10, True), (25, False), (35, True), (45, False), (55, True), (65, False)])
def test_a_block_may_be_frequent_more_than_once(arrived: int, met: bool) -> None:
    known = encounters()
    for came, went in ((30, 40), (50, 60)):
        assert known.try_come(7, came)
        known.go(7, went)
    assert known.try_come(8, 20)
    assert fresh(known, 7, left=20, arrived=arrived) is not met


def test_another_block_is_another_block() -> None:
    known = encounters()
    assert known.try_come(8, 20)
    assert fresh(known, 7, left=5, arrived=30)
    assert not fresh(known, 8, left=5, arrived=30)


def test_what_says_nothing_any_more_is_forgotten() -> None:
    claim = Budget(1 << 16).reservation("encounters")
    known = Encounters(claim)
    for block in range(10):
        assert known.try_come(block, 10 * block + 5)
    held = claim.held
    for block in range(5):
        known.go(block, 100 + block)
    known.forget(102)
    assert claim.held < held and len(known.to_state()) == 7
    known.check(200)
    again = encounters()
    again.load(known.to_state())
    assert not fresh(again, 9, left=1, arrived=150) and not fresh(again, 4, left=1, arrived=103)


def test_without_memory_nothing_becomes_frequent() -> None:
    known = Encounters(Budget(30).reservation("encounters"))
    assert known.try_come(1, 5) and not known.try_come(2, 6)
