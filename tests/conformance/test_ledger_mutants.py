"""The rules that decide whether a pair was emitted, each broken in turn: the suite must notice every one of them.

That it passes these very cases with the rules unbroken, and goes through the reactive stage in a quarter of them, is
shown by `test_operators.py`, in its first two chunks of XJoin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from watersmeet.checks import ConformanceError, conform
from watersmeet.matching.ledger import Ledger
from watersmeet.planner import ALGORITHMS
from watersmeet.runs.presence import FOREVER, Stay

CASES = 200
XJOIN = ALGORITHMS["xjoin"]


def never_together(left: Stay, right: Stay) -> Any:
    return np.zeros(len(left.arrived), np.bool_)


def together_if_the_left_came_first(left: Stay, right: Stay) -> Any:
    """Half of the overlap of two intervals."""
    return left.arrived < right.departed


def together_if_the_right_came_first(left: Stay, right: Stay) -> Any:
    """The other half."""
    return right.arrived < left.departed


def never_visited(visits: Any, memory: Stay, disk: Stay) -> Any:
    return np.zeros(len(memory.arrived), np.bool_)


def visited_though_it_came_later(visits: Any, memory: Stay, disk: Stay) -> Any:
    """A visit counts for rows that arrived after it."""
    early = Stay(np.zeros_like(memory.arrived), memory.departed, memory.ordinal)
    return real_visited(visits, early, disk)


def visited_though_it_had_left(visits: Any, memory: Stay, disk: Stay) -> Any:
    """A visit counts for rows that had been flushed before it."""
    late = Stay(memory.arrived, np.full_like(memory.departed, FOREVER), memory.ordinal)
    return real_visited(visits, late, disk)


def visited_the_whole_disk(visits: Any, memory: Stay, disk: Stay) -> Any:
    """A visit counts for rows that came to the disk after it."""
    everything = visits.copy()
    everything[1], everything[2] = 0, FOREVER
    return real_visited(everything, memory, disk)


def visited_one_row_too_few(visits: Any, memory: Stay, disk: Stay) -> Any:
    """The last row of a stretch is overlooked."""
    shorter = visits.copy()
    shorter[2] -= 1
    return real_visited(shorter, memory, disk)


def merged_once_both_are_on_disk(stretch: Any, left: Stay, right: Stay) -> Any:
    """Being on disk counts as having been joined there."""
    return (left.ordinal >= 0) & (right.ordinal >= 0)


real_visited = Ledger.visited

MUTANTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "never together": ("together", never_together),
    "together if the left came first": ("together", together_if_the_left_came_first),
    "together if the right came first": ("together", together_if_the_right_came_first),
    "never visited": ("visited", never_visited),
    "visited though it came later": ("visited", visited_though_it_came_later),
    "visited though it had left": ("visited", visited_though_it_had_left),
    "visited the whole disk": ("visited", visited_the_whole_disk),
    "visited one row too few": ("visited", visited_one_row_too_few),
    "merged once both are on disk": ("merged", merged_once_both_are_on_disk),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, broken = MUTANTS[mutant]
    monkeypatch.setattr(Ledger, rule, staticmethod(broken))
    with pytest.raises(ConformanceError, match=r"lost [0-9]+ and invented or repeated [0-9]+|counted [0-9]+ results"):
        conform(XJOIN, cases=CASES)
