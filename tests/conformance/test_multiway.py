"""Every operator of several inputs goes through the suite; and the rules that keep duplicates out are all needed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from watersmeet.checks import ConformanceError, check_snapshot, conform, make_multi_case, run_case
from watersmeet.joins.mjoin import MJoin
from watersmeet.planner import MULTIWAY
from watersmeet.spill.file_store import FileStore
from watersmeet.state import visits

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
CHUNKS = 20 if DEEP else 4
CASES_PER_CHUNK = 100
OPERATORS = sorted(MULTIWAY.values(), key=lambda operator_class: str(operator_class.name))


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("operator_class", OPERATORS, ids=lambda each: each.name)
def test_every_combination_exactly_once(operator_class: type[Any], chunk: int) -> None:
    summary = conform(operator_class, CASES_PER_CHUNK, chunk * CASES_PER_CHUNK, make_multi_case)
    print(summary, summary.kinds)
    assert summary.cases == CASES_PER_CHUNK
    # A tree needs more memory to begin with, and so spills less of the same rows.
    often = 1 if operator_class is MJoin else 2
    assert summary.spilled > summary.cases / 2 / often, summary
    assert summary.reactive > summary.cases / 10 / often, summary
    assert summary.cleaned_up > summary.cases / 4 / often, summary
    assert summary.restored >= summary.cases // 10
    shapes = dict(summary.kinds)
    assert all(shapes[shape] > 5 for shape in ("one attribute", "chain", "star", "tree", "cycle"))


@pytest.mark.parametrize("seed", range(60_000, 60_008))
@pytest.mark.parametrize("operator_class", OPERATORS, ids=lambda each: each.name)
def test_snapshots_everywhere(operator_class: type[Any], seed: int) -> None:
    assert check_snapshot(operator_class, make_multi_case(seed, operator_class), points=25).restored > 0


@pytest.mark.parametrize("seed", range(80_000, 80_005))
@pytest.mark.parametrize("operator_class", OPERATORS, ids=lambda each: each.name)
def test_on_a_real_disk(operator_class: type[Any], seed: int, tmp_path: Path) -> None:
    with FileStore(tmp_path) as store:
        case = replace(make_multi_case(seed, operator_class), restores=(3, 20, 40))
        assert run_case(operator_class, case, store).restored > 0


@pytest.mark.parametrize("flush", ["largest", "random"])
def test_any_flush_policy(flush: str) -> None:
    assert conform(MJoin, 40, 7_000, make_multi_case, flush=flush).spilled > 20


def fails_somewhere(**options: Any) -> bool:
    for seed in range(400):
        try:
            run_case(MJoin, make_multi_case(seed, MJoin), **options)
        except ConformanceError:
            return True
    return False


def test_without_the_rule_of_common_ticks_results_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "met_in_memory", lambda arrived, departed, met: None)
    assert fails_somewhere()


def test_without_the_rule_of_visits_results_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "met_on_visit", lambda *arguments: None)
    assert fails_somewhere()


def test_a_visit_that_claims_too_much_loses_results(monkeypatch: pytest.MonkeyPatch) -> None:
    record = visits.VisitLedger.record

    def too_much(ledger: visits.VisitLedger, number: int, tick: int, low: int, high: int) -> None:
        record(ledger, number, tick, low, high + 5)

    monkeypatch.setattr(visits.VisitLedger, "record", too_much)
    monkeypatch.setattr(visits.VisitLedger, "check", lambda *arguments: None)
    assert fails_somewhere()


def test_without_closing_edges_cycles_give_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    from watersmeet.policies.probing import ProbingOrder

    of = ProbingOrder.of
    monkeypatch.setattr(ProbingOrder, "of", lambda order, driver: [replace(s, closing=()) for s in of(order, driver)])
    assert fails_somewhere()


def test_the_cases_have_all_sizes() -> None:
    sizes = {make_multi_case(seed, MJoin).inputs for seed in range(60)}
    assert sizes == {2, 3, 4, 5, 6}
    assert np.mean([len(make_multi_case(seed, MJoin).pairs) > 0 for seed in range(60)]) > 0.5
