"""DINER's regions: which is flushed, from which end, and how the clock hand turns."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.policies.regions import LOWER, MIDDLE, UPPER, Regions

WORDS = np.arange(100, 120)


def divided(joins: tuple[int, int, int], count: int = 5) -> Regions:
    regions = Regions()
    regions.settle(WORDS, count)
    regions.joins[:] = joins
    return regions


def leaving(regions: Regions, joined: list[int] | None = None, count: int = 5) -> list[int]:
    bits = np.zeros(len(WORDS), np.bool_)
    bits[joined if joined is not None else []] = True
    return WORDS[regions.choose(WORDS, bits, count).leave].tolist()


def test_outer_regions_hold_about_a_block() -> None:
    regions = divided((0, 0, 0))
    assert (regions.lower, regions.upper) == (104, 115)
    values, bounds = regions.benefits(WORDS)
    assert bounds == (5, 15)
    assert values == [0, 0, 0]


def test_benefit_is_counted_by_the_row() -> None:
    values, _ = divided((10, 10, 10)).benefits(WORDS)
    assert values[MIDDLE] < values[LOWER] == values[UPPER] == 2.0


def test_the_region_with_the_least_benefit_is_flushed_from_its_outer_end() -> None:
    assert leaving(divided((9, 90, 8))) == [115, 116, 117, 118, 119]
    assert leaving(divided((8, 90, 9))) == [100, 101, 102, 103, 104]
    assert leaving(divided((8, 90, 9)), count=2) == [100, 101]
    assert leaving(divided((0, 0, 0))) == [115, 116, 117, 118, 119], "in a tie, the upper first"


def test_a_region_with_too_few_rows_is_followed_by_the_next() -> None:
    assert leaving(divided((8, 900, 9)), count=7) == [100, 101, 102, 103, 104, 118, 119]


def test_the_hand_takes_idle_rows_and_clears_the_bits_it_passes() -> None:
    regions = divided((90, 1, 90))
    bits = np.zeros(len(WORDS), np.bool_)
    bits[[10, 12]] = True  # the hand starts in the middle of the middle, at place 10
    choice = regions.choose(WORDS, bits, 3)
    assert choice.leave.tolist() == [11, 13, 14]
    assert choice.cleared.tolist() == [10, 12]
    # the next turn goes on behind 14, which is the end of the middle, and so at its beginning
    assert regions.choose(WORDS, np.zeros(len(WORDS), np.bool_), 2).leave.tolist() == [5, 6]


def test_when_all_have_joined_the_hand_takes_what_it_meets_the_second_time() -> None:
    regions = divided((90, 1, 90))
    choice = regions.choose(WORDS, np.ones(len(WORDS), np.bool_), 3)
    assert choice.leave.tolist() == [10, 11, 12]
    assert choice.cleared.tolist() == [5, 6, 7, 8, 9, 13, 14]


def test_before_the_first_flush_all_is_middle() -> None:
    regions = Regions()
    bits = np.ones(len(WORDS), np.bool_)
    bits[[0, 19]] = False
    assert regions.choose(WORDS, bits, 2).leave.tolist() == [0, 19]


def test_a_flush_begins_to_count_anew() -> None:
    regions = divided((1, 2, 3))
    regions.settle(WORDS, 5)
    assert regions.joins.tolist() == [0, 0, 0]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), min_size=1, max_size=40),
    st.integers(1, 50),
    st.lists(st.integers(0, 9), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_regions_never_overlap_and_enough_leave(
    values: list[int], count: int, joins: list[int], joined: list[bool]
) -> None:
    words = np.sort(np.array(values, np.int64))
    regions = Regions()
    regions.settle(words, count)
    regions.joins[:] = joins
    assert regions.lower < regions.upper
    bits = np.array(joined[: len(words)])
    choice = regions.choose(words, bits, count)
    assert len(choice.leave) == len(set(choice.leave.tolist())) == min(count, len(words))
    assert not set(choice.leave.tolist()) & set(choice.cleared.tolist())
    again = Regions()
    again.load(regions.to_state())
    assert again.to_state() == regions.to_state()


def test_flushes_that_follow_on_each_other_go_by_what_was_counted_before_the_first() -> None:
    """Values rise, so the lower region brings nothing; a second flush with no row in between must not take the upper
    one, which comes first where nothing is known.
    """
    regions, words = Regions(), np.arange(100)
    nobody = np.zeros(100, np.bool_)
    regions.choose(words, nobody, 10)
    regions.settle(words, 10)
    regions.joins[:] = 0, 50, 50
    assert regions.choose(words, nobody, 10).leave.tolist() == list(range(10))
    regions.settle(words[10:], 10)
    again = Regions()
    again.load(regions.to_state())
    for each in (regions, again):
        lowest = each.choose(words[10:], nobody[10:], 10, counted=False).leave
        assert lowest.tolist() == list(range(10)), "the lowest of what is left"
    regions.settle(words[20:], 10)
    assert regions.choose(words[20:], nobody[20:], 10).leave.tolist() == list(range(70, 80)), "rows came and met nobody"
