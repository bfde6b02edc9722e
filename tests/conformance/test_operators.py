"""Every operator that is listed goes through the whole suite, in chunks that run side by side.

Of twenty cases one is run twice for the same steps, one is changed in ways that must not matter, and three are snapshot
and restored on their way. `make conformance` has thousands of each operator.

`HYPOTHESIS_PROFILE=deep` makes the chunks much longer, and gives every operator all of them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from watersmeet.checks import (
    Summary,
    check_snapshot,
    conform,
    make_case,
    run_case,
)
from watersmeet.planner import ALGORITHMS
from watersmeet.spill.file_store import FileStore

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
MOST_CHUNKS = 20
CASES_PER_CHUNK = 1_000 if DEEP else 40
SUITE_OF_ITS_OWN = "metadata_mjoin"
"""In `test_promises.py`, of cases like these and of others; here it is only in the deep profile."""
OPERATORS = sorted(
    (join for join in ALGORITHMS.values() if DEEP or join.name != SUITE_OF_ITS_OWN), key=lambda join: str(join.name)
)


def spills(operator_class: type[Any]) -> bool:
    return bool(getattr(operator_class, "spills", True))


def name(operator_class: type[Any]) -> str:
    return str(operator_class.name)


def chunks(operator_class: type[Any]) -> int:
    """The simplest, and what users get unless they choose, go through more cases than the others do."""
    often = name(operator_class) in ("symmetric_hash", "confluence")
    return MOST_CHUNKS if DEEP else (5 if often else 1)


@pytest.mark.parametrize(
    ("operator_class", "chunk"),
    [
        pytest.param(operator_class, chunk, id=f"{name(operator_class)}-{chunk}")
        for operator_class in OPERATORS
        for chunk in range(chunks(operator_class))
    ],
)
def test_every_pair_exactly_once(operator_class: type[Any], chunk: int) -> None:
    summary = conform(operator_class, cases=CASES_PER_CHUNK, seed=chunk * CASES_PER_CHUNK)
    print(summary)
    assert summary.cases == CASES_PER_CHUNK
    assert summary.restored >= summary.cases // 10
    assert_paths_taken(operator_class, summary)


def assert_paths_taken(operator_class: type[Any], summary: Summary) -> None:
    """The cases are worth something only if they go where it hurts; each chunk proves that for itself."""
    if spills(operator_class):
        # Confluence needs more memory to begin with, and so spills less of the same rows; and what it settles as rows
        # arrive and in a silence is not left for the end.
        spilled, reactive, cleaned_up = (3, 8, 12) if name(operator_class) == "confluence" else (2, 4, 4)
        assert summary.spilled > summary.cases / spilled, summary
        assert summary.reactive > summary.cases / reactive, summary
        assert summary.cleaned_up > summary.cases / cleaned_up, summary
    else:
        assert summary.spilled == 0, summary


@pytest.mark.parametrize("seed", range(60_000, 60_004))
@pytest.mark.parametrize("operator_class", OPERATORS, ids=name)
def test_snapshots_everywhere(operator_class: type[Any], seed: int) -> None:
    assert check_snapshot(operator_class, make_case(seed, operator_class), points=25).restored > 0


@pytest.mark.parametrize("seed", range(80_000, 80_004))
@pytest.mark.parametrize("operator_class", OPERATORS, ids=name)
def test_on_a_real_disk(operator_class: type[Any], seed: int, tmp_path: Path) -> None:
    with FileStore(tmp_path) as store:
        case = replace(make_case(seed, operator_class), restores=(3, 20, 40))
        assert run_case(operator_class, case, store).restored > 0


def test_whoever_has_yet_to_act_upon_an_end_does_not_ask_for_input() -> None:
    """An input ended while a loop over blocks went on: what that means for rows in memory is done in the next poll."""
    operator_class = ALGORITHMS["diner"]
    assert run_case(operator_class, make_case(500_017_001, operator_class)).spilled
