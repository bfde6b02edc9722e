"""The rules by which window joins tell new pairs from old ones, each broken in turn: the suite must notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from watersmeet.checks import ConformanceError
from watersmeet.checks.windows import conform_windows
from watersmeet.joins.window.ah_ewj import Shares
from watersmeet.joins.window.dumping import Books
from watersmeet.joins.window.ewj import Thresholds
from watersmeet.matching.ledger import Encounters, Meetings
from watersmeet.planner import WINDOW_ALGORITHMS
from watersmeet.records.times import Timing
from watersmeet.runs.presence import FOREVER

CASES = 120


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


def never_together(left: Any, arrived: Any) -> Any:
    """Rows that were in memory together meet again."""
    return np.zeros(len(left), np.bool_)


def no_md_times(self: Meetings, side: int, part: int, departed: int = FOREVER) -> int:
    """No md-task is remembered."""
    return 0


def no_md_times_of_runs(self: Meetings, side: int, part: int, departed: int = FOREVER) -> int:
    """Only the last md-task is remembered, which is all that another one needs; but dd-tasks need the others."""
    return real_met_disk(self, side, part) if departed == FOREVER else 0


def md_times_for_ever(self: Meetings, side: int, part: int, departed: int = FOREVER) -> int:
    """A run's rows count as met up to the end of their stay, not up to the md-task within it."""
    return real_met_disk(self, side, part) if departed == FOREVER else departed


def no_last_dd(self: Meetings, side: int, part: int, departed: int) -> bool:
    """No dd-task is remembered."""
    return False


def last_dd_of_the_future(self: Meetings, side: int, part: int, departed: int) -> bool:
    """Runs that left memory after the last dd-task count as seen by it."""
    return bool(self._last_dd[side, part])


def expired_a_little_early(self: Timing, side: int, newest: int, count: int) -> int:
    return real_expired_before(self, side, newest, count) + 2


def left_at_any_time(self: Books, side: int) -> int:
    return self._join.clock


def copies_forgotten(self: Books, side: int) -> Any:
    return np.empty(0, np.int64)


real_in_frequent = Encounters.in_frequent
real_expired_before = Timing.expired_before
real_met_disk = Meetings.met_disk

MUTANTS: dict[str, tuple[str, type, str, Any]] = {
    "no minBN": ("ah_ewj", Encounters, "in_recent", staticmethod(never_in_recent)),
    "minBN of the first block": ("ah_ewj", Encounters, "in_recent", staticmethod(always_in_recent)),
    "frequent blocks met again": ("ah_ewj", Encounters, "in_frequent", staticmethod(never_in_frequent)),
    "no evicted list": ("ah_ewj", Encounters, "in_frequent", staticmethod(evicted_means_never_there)),
    "evicted for ever": ("ah_ewj", Encounters, "in_frequent", staticmethod(evicted_means_always_there)),
    "segments become one too soon": ("ah_ewj", Books, "settled", left_at_any_time),
    "segments become one whose blocks were copied": ("ewj", Books, "copied", copies_forgotten),
    "met in memory and again on disk": ("rpwj", Meetings, "together", staticmethod(never_together)),
    "no md times": ("rpwj", Meetings, "met_disk", no_md_times),
    "no md times of runs": ("rpwj", Meetings, "met_disk", no_md_times_of_runs),
    "md times for ever": ("rpwj", Meetings, "met_disk", md_times_for_ever),
    "no lastDD": ("rpwj", Meetings, "merged", no_last_dd),
    "lastDD of the future": ("rpwj", Meetings, "merged", last_dd_of_the_future),
    "expired early": ("symmetric_window", Timing, "expired_before", expired_a_little_early),
}

OFTEN: dict[str, dict[str, Any]] = {
    "ah_ewj": {"shares": Shares(books=0.0)},
    "ewj": {"thresholds": Thresholds(books=0.0)},
}
"""How segments become one whenever they may."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, place, rule, broken = MUTANTS[mutant]
    options = OFTEN[name] if place is Books else {}
    monkeypatch.setattr(place, rule, broken)
    with pytest.raises(ConformanceError, match=r"lost [0-9]+ and invented or repeated [0-9]+|counted [0-9]+ results"):
        conform_windows(WINDOW_ALGORITHMS[name], cases=CASES, **options)


def test_the_rules_they_break_hold() -> None:
    summary = conform_windows(WINDOW_ALGORITHMS["ah_ewj"], cases=CASES // 3)
    assert dict(summary.events)["blocks no longer frequent"] > 0
