"""Every window join that is listed goes through the suite for windows, in chunks that run side by side.

`HYPOTHESIS_PROFILE=deep` gives each of them 2,000 cases.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conformance.ways import WAYS
from watersmeet.checks import check_snapshot, run_case
from watersmeet.checks.oracle.nested_loops import reference_pairs
from watersmeet.checks.windows import KINDS, WindowCase, WindowSummary, conform_windows, make_window_case
from watersmeet.core.spec import Output
from watersmeet.joins.window.ah_ewj import AHEWJ
from watersmeet.joins.window.ewj import EWJ
from watersmeet.joins.window.rpwj import RPWJ
from watersmeet.planner import WINDOW_ALGORITHMS
from watersmeet.spill.file_store import FileStore

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
CHUNKS = 40 if DEEP else 1
CASES = 50 if DEEP else 40
OPERATORS = sorted(WINDOW_ALGORITHMS.values(), key=lambda operator_class: str(operator_class.name))


def name(operator_class: type[Any]) -> str:
    return str(operator_class.name)


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("operator_class", OPERATORS, ids=name)
def test_every_pair_exactly_once(operator_class: type[Any], chunk: int) -> None:
    options = WAYS[name(operator_class), "windows"]["usual"].options
    summary = conform_windows(operator_class, cases=CASES, seed=chunk * CASES, **options)
    print(summary)
    assert summary.cases == CASES
    assert summary.restored >= CASES // 10
    assert summary.results > 20 * CASES
    assert_paths_taken(operator_class, summary)


def assert_paths_taken(operator_class: type[Any], summary: WindowSummary) -> None:
    """The cases are worth something only if they go where it hurts; each chunk proves that for itself."""
    events = dict(summary.events)
    assert events.pop("expired blocks", 0) > CASES / 2, summary
    events.pop("overtaken", 0)  # inputs that fall silent, which is for tests of their own to prove
    if not operator_class.spills:
        assert not summary.spilled and not events
        return
    assert summary.spilled > CASES / 3, summary
    assert summary.reactive > CASES / 20, summary
    assert summary.cleaned_up > CASES / 8, summary
    for path in operator_class.paths:
        assert events.get(path, 0) >= CASES / 10, (path, summary)


@pytest.mark.parametrize("chunk", range(4 if DEEP else 1))
def test_runs_that_are_read_again(chunk: int) -> None:
    """RPWJ as in the thesis: what a dd-task has seen is read by the next, and gives nothing."""
    cases = CASES // 2
    summary = conform_windows(
        RPWJ, cases=cases, seed=30_000 + chunk * cases, **WAYS["rpwj", "windows"]["reading again"].options
    )
    assert dict(summary.events)["dd-tasks"] > cases / 10, summary


@pytest.mark.parametrize("seed", [58, 118, 341])
def test_runs_become_one_rather_than_fill_memory(seed: int) -> None:
    """Long rows in the least memory: pages and runs of one or two rows each."""
    assert dict(conform_windows(RPWJ, cases=1, seed=seed).events)["runs joined"] == 1


@pytest.mark.parametrize("chunk", range(4 if DEEP else 1))
@pytest.mark.parametrize(
    ("operator_class", "joined"),
    [(AHEWJ, "segments joined"), (EWJ, "segments joined"), (RPWJ, "runs joined")],
    ids=["ah_ewj", "ewj", "rpwj"],
)
def test_what_lies_on_disk_becomes_one_all_the_time(operator_class: type[Any], joined: str, chunk: int) -> None:
    """Runs and segments become one when there are too many to remember; here any are."""
    options = WAYS[name(operator_class), "windows"]["joining"].options
    cases = CASES // 2
    summary = conform_windows(operator_class, cases=cases, seed=30_000 + chunk * cases, **options)
    assert dict(summary.events)[joined] > cases / 4, summary


@pytest.mark.parametrize("operator_class", [AHEWJ, EWJ], ids=name)
def test_segments_become_one_rather_than_fill_memory(operator_class: type[Any]) -> None:
    """Long rows in the least memory: pages and segments of one or two rows each."""
    case = make_window_case(1867, operator_class)
    spec = replace(case.spec, output=Output.ROWS)
    least = operator_class.least_memory(spec)
    run_case(operator_class, replace(case, spec=spec, restores=(), memory=least, least=least))


def test_cases_of_all_kinds() -> None:
    operator_class = WINDOW_ALGORITHMS["ah_ewj"]
    cases = [make_window_case(seed, operator_class) for seed in range(150)]
    kinds = {kind for case in cases for kind in case.kinds if kind.startswith("window of")}
    assert kinds == {f"window of {kind}" for kind in KINDS}
    assert {case.spec.window.late for case in cases} == {"keep", "drop", "error"}
    assert sum(case.spec.band is not None for case in cases) > 10
    assert sum(case.spec.bounds[0] != case.spec.bounds[1] for case in cases) > 50
    # Windows that let everything through, or nothing, would prove little.
    shares = [len(case.pairs) / max(1, len(without_windows(case))) for case in cases[:60]]
    assert sum(0.05 < share < 0.95 for share in shares) > 25


def without_windows(case: WindowCase) -> list[tuple[int, int]]:
    return reference_pairs(*(pa.Table.from_batches([case.table(side)]) for side in (0, 1)), case.spec)


@pytest.mark.parametrize("seed", range(60_000, 60_002))
@pytest.mark.parametrize("operator_class", OPERATORS, ids=name)
def test_snapshots_everywhere(operator_class: type[Any], seed: int) -> None:
    assert check_snapshot(operator_class, make_window_case(seed, operator_class), points=25).restored > 0


@pytest.mark.parametrize("seed", range(80_000, 80_002))
@pytest.mark.parametrize("operator_class", OPERATORS, ids=name)
def test_on_a_real_disk(operator_class: type[Any], seed: int, tmp_path: Path) -> None:
    with FileStore(tmp_path) as store:
        case = replace(make_window_case(seed, operator_class), restores=(3, 20, 40))
        assert run_case(operator_class, case, store).restored > 0
