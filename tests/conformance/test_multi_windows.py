"""Joins of several inputs by windows against nested loops; and each rule is needed.

`HYPOTHESIS_PROFILE=deep` runs 2,000 cases.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from watersmeet.checks import ConformanceError, check_snapshot, run_case
from watersmeet.checks.multi_windows import conform_multi_windows, make_multi_window_case
from watersmeet.joins.window.windowed_mjoin import WindowedMJoin
from watersmeet.matching.multi_windows import WindowClock, WindowFilter

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
CHUNKS = 20 if DEEP else 2
CASES_PER_CHUNK = 100 if DEEP else 60


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_combination_within_the_windows_exactly_once(chunk: int) -> None:
    summary = conform_multi_windows(WindowedMJoin, CASES_PER_CHUNK, chunk * CASES_PER_CHUNK)
    print(summary, summary.kinds)
    assert summary.cases == CASES_PER_CHUNK
    assert summary.spilled > summary.cases / 4, summary
    assert summary.read > summary.cases / 4, summary
    assert summary.restored >= summary.cases // 10, summary
    assert summary.late > summary.cases / 20, summary
    events, kinds = dict(summary.events), dict(summary.kinds)
    assert events["expired rows"] > summary.cases / 4, summary
    assert events["expired runs"] > summary.cases / 10, summary
    assert min(kinds["windows of rows"], kinds["windows of time"]) > summary.cases / 5


@pytest.mark.parametrize("seed", range(60_000, 60_006))
def test_snapshots_everywhere(seed: int) -> None:
    assert check_snapshot(WindowedMJoin, make_multi_window_case(seed, WindowedMJoin), points=25).restored > 0


# --- mutants: each breaks one rule, and some case must notice ---

expired_before, holds, read = WindowClock.expired_before, WindowFilter.holds, WindowClock.read


def forgets_too_soon(clock: WindowClock, number: int, own: Any) -> int:
    return expired_before(clock, number, own) + 10


def ignores_windows(windows: WindowFilter, bound: Any, ids: Any, drivers: Any) -> Any:
    return np.ones(ids.shape[1], np.bool_)


def ignores_late_rows(clock: WindowClock, number: int, batch: Any, numbers: Any, newest: int) -> Any:
    return read(clock, number, batch, numbers, -(1 << 62))


MUTANTS = {
    "forgets too soon": (WindowClock, "expired_before", forgets_too_soon),
    "ignores windows": (WindowFilter, "holds", ignores_windows),
    "ignores late rows": (WindowClock, "read", ignores_late_rows),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken = MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(ConformanceError):
        run_all(80)


def run_all(cases: int) -> None:
    for seed in range(cases):
        run_case(WindowedMJoin, make_multi_window_case(seed, WindowedMJoin))
