"""Confluence where runs are read from their files: any size of the buffers that they are read through, and with each
rule of what is in them broken in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from watersmeet.checks import ConformanceError, make_case, run_case
from watersmeet.checks.cases import Case
from watersmeet.joins.confluence import Confluence, workspace
from watersmeet.matching.reading import HashWindow
from watersmeet.policies.settling import Settling
from watersmeet.runs.stretches import GatheringRoom
from watersmeet.spill.file_store import FileStore

WAYS = {
    "usual": Settling(),
    "eager": Settling(least_rows=1, hashes_per_row=1 << 20),
    "late": Settling(passes_saved=0, most_runs=3),
}
CASES = 25
SLICE = 8
"""Rows that settle together: few, so that rows of one hash are in several slices."""


def make_equality(seed: int) -> Case:
    """A case whose keys are equal: with a band, keys are not read through a window."""
    case = make_case(seed, type("Confluence", (Confluence,), {"joins_ranges": False}))
    return replace(case, restores=case.restores or (3, 20, 40))


def run_all(place: Path, settling: Settling, cases: int = CASES) -> int:
    """Cases in stores on disk; returns how many spilled."""
    spilled = 0
    for seed in range(400_000, 400_000 + cases):
        with FileStore(place) as store:
            report = run_case(Confluence, make_equality(seed), store, settling=settling, fan_in=3, most_slice=SLICE)
            spilled += report.spilled > 0
    return spilled


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What windows did."""
    counted: Counter[str] = Counter()
    show = HashWindow.show

    def shown(self: HashWindow, at: int, row: int, stop: int) -> None:
        show(self, at, row, stop)
        counted["shown"] += 1
        counted["more than a run"] += self.stop - at > 1
        counted["part of a run"] += self.rest >= 0

    monkeypatch.setattr(HashWindow, "show", shown)
    return counted


@pytest.mark.parametrize("window", [2, 64, 1 << 15])
@pytest.mark.parametrize("way", WAYS)
def test_every_pair_exactly_once_through_windows_of_any_size(
    way: str, window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Counter[str]
) -> None:
    monkeypatch.setattr(workspace, "_WINDOW", window)
    monkeypatch.setattr(workspace, "_LEAST_SLICE", SLICE)
    monkeypatch.setattr(workspace, "GatheringRoom", lambda strings: GatheringRoom(strings, 1024 * window))
    assert run_all(tmp_path, WAYS[way]) > CASES // 4
    assert seen["shown"] > 50, seen
    assert seen["part of a run"] > 20 or window > 2, seen
    assert seen["more than a run"] > 20 or window < 64, seen


def the_rest_is_forgotten(window: HashWindow, at: int, row: int, stop: int) -> None:
    """A run that is larger than the buffer is taken for read through."""
    SHOW(window, at, row, stop)
    window.rest = -1


def parts_begin_one_later(window: HashWindow, at: int, row: int, stop: int) -> None:
    """One row is lost between two parts of a run."""
    SHOW(window, at, row, stop)
    window.rest += window.rest >= 0


def slices_begin_behind_equal_hashes(window: HashWindow, least: np.uint64, most: np.uint64) -> None:
    """Rows of one hash in two slices: the second does not see the run's."""
    ended = window._between[1] if window.stop else None
    GO_TO(window, least, most)
    if ended is not None and (least, most) != (ended, ended):
        behind = [np.searchsorted(run.hashes(), ended, side="right") for run in window._runs]
        window._cursors[:] = np.maximum(window._cursors, behind)


def the_buffer_is_taken_for_ones_own(window: HashWindow, least: np.uint64, most: np.uint64) -> None:
    """What was there before somebody else used the buffer is not read again."""
    known = window._first, window.stop, window.rest
    GO_TO(window, least, most)
    window._first, window.stop, window.rest = known


SHOW, GO_TO = HashWindow.show, HashWindow.go_to
MUTANTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "the rest is forgotten": ("show", the_rest_is_forgotten),
    "parts begin one later": ("show", parts_begin_one_later),
    "slices begin behind equal hashes": ("go_to", slices_begin_behind_equal_hashes),
    "the buffer is taken for one's own": ("go_to", the_buffer_is_taken_for_ones_own),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, broken = MUTANTS[mutant]
    monkeypatch.setattr(workspace, "_WINDOW", 3)
    monkeypatch.setattr(workspace, "_LEAST_SLICE", SLICE)
    monkeypatch.setattr(HashWindow, rule, broken)
    with pytest.raises((ConformanceError, AssertionError, IndexError)):
        run_ways(tmp_path)


def run_ways(place: Path) -> None:
    for way in WAYS.values():
        run_all(place, way, 4 * CASES)
