"""What settling costs, in pages: by hand, for runs whose pages are known."""

from __future__ import annotations

import numpy as np
import pytest

from watersmeet.core.cost import Meter
from watersmeet.matching.reading import Pages, Reading


def reading(rows: int, at_once: int = 1) -> Reading:
    """Of a run with ten hashes a page and two rows a page."""
    one = Reading(Pages(hashes=10, rows=2, at_once=at_once))
    one.begin_run(rows)
    return one


def test_a_page_of_hashes_is_read_once() -> None:
    meter, one = Meter(), reading(100)
    for low in range(0, 100, 4):
        one.read_hashes(low, low + 4, 4, meter)
    assert (meter.pages_read, meter.seeks) == (10, 1)


def test_few_look_ups_read_a_page_each() -> None:
    meter, one = Meter(), reading(10_000)
    one.read_hashes(0, 9_000, 3, meter)
    assert (meter.pages_read, meter.seeks) == (3, 3)


def test_going_back_to_the_hashes_is_a_seek_and_reading_ahead_saves_some() -> None:
    for at_once, seeks in ((1, 6), (3, 4)):
        meter, one = Meter(), reading(200, at_once)
        for page in range(3):
            one.read_hashes(10 * page, 10 * page + 9, 10, meter)
            one.read_rows(np.array([60 + 60 * page]), meter)
        assert (meter.pages_read, meter.seeks) == (6, seeks)


def test_rows_right_behind_the_hashes_need_no_seek() -> None:
    meter, one = Meter(), reading(10)
    one.read_hashes(0, 9, 10, meter)
    one.read_rows(np.array([0, 1, 1, 0, 9]), meter)
    assert (meter.pages_read, meter.seeks) == (1 + 1 + 4, 1), "the three pages between are read through"


@pytest.mark.parametrize(("rows", "pages", "seeks"), [([4, 5, 4], 1, 1), ([5, 0], 3, 1), ([0, 199], 2, 2)])
def test_pages_of_rows_are_told_apart(rows: list[int], pages: int, seeks: int) -> None:
    meter, one = Meter(), reading(200)
    one.read_rows(np.array(rows), meter)
    assert (meter.pages_read, meter.seeks) == (pages, seeks)
    one.read_rows(np.array(rows[:1] if len(set(rows)) < 3 and pages == 1 else [max(rows)]), meter)
    assert meter.pages_read == pages, "the last page is still at hand"
