"""The rules by which window joins tell new pairs from old ones, each broken in turn: the suite must notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from watersmeet.checks import ConformanceError
from watersmeet.checks.windows import conform_windows
from watersmeet.planner import WINDOW_ALGORITHMS
from watersmeet.state.encounters import FOREVER, Encounters
from watersmeet.state.window_rows import Timing

CASES = 60


def never_in_recent(left: Any, arrived: Any) -> Any:
    """No row has a minBN."""
    return np.zeros(len(left), np.bool_)


def always_in_recent(left: Any, arrived: Any) -> Any:
    """Every row's minBN is the oldest block there ever was."""
    return np.ones(len(left), np.bool_)


def never_in_frequent(stays: Any, blocks: Any, arrived: Any) -> Any:
    """Blocks in the frequent segment are met again on disk."""
    return np.zeros(len(blocks), np.bool_)


def evicted_means_never_there(stays: Any, blocks: Any, arrived: Any) -> Any:
    """There is no evicted list: only blocks that are still frequent count as met."""
    return real_in_frequent(np.ascontiguousarray(stays[:, stays[2] == FOREVER]), blocks, arrived)


def evicted_means_always_there(stays: Any, blocks: Any, arrived: Any) -> Any:
    """The evicted list holds for rows that came after the eviction, too."""
    wider = stays.copy()
    wider[2] = FOREVER
    return real_in_frequent(wider, blocks, arrived)


def expired_a_little_early(self: Timing, side: int, newest: int, count: int) -> int:
    return real_expired_before(self, side, newest, count) + 2


real_in_frequent = Encounters.in_frequent
real_expired_before = Timing.expired_before

MUTANTS: dict[str, tuple[str, type, str, Any]] = {
    "no minBN": ("ah_ewj", Encounters, "in_recent", staticmethod(never_in_recent)),
    "minBN of the first block": ("ah_ewj", Encounters, "in_recent", staticmethod(always_in_recent)),
    "frequent blocks met again": ("ah_ewj", Encounters, "in_frequent", staticmethod(never_in_frequent)),
    "no evicted list": ("ah_ewj", Encounters, "in_frequent", staticmethod(evicted_means_never_there)),
    "evicted for ever": ("ah_ewj", Encounters, "in_frequent", staticmethod(evicted_means_always_there)),
    "expired early": ("symmetric_window", Timing, "expired_before", expired_a_little_early),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, place, rule, broken = MUTANTS[mutant]
    monkeypatch.setattr(place, rule, broken)
    with pytest.raises(ConformanceError, match=r"lost [0-9]+ and invented or repeated [0-9]+|counted [0-9]+ results"):
        conform_windows(WINDOW_ALGORITHMS[name], cases=CASES)


def test_the_rules_they_break_hold() -> None:
    summary = conform_windows(WINDOW_ALGORITHMS["ah_ewj"], cases=CASES // 3)
    assert dict(summary.events)["blocks no longer frequent"] > 0
