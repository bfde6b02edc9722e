"""The hybrid joins' experiments: the same pairs from all joins, the same numbers from the same seed."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import pytest

from watersmeet.cli import reproduce


@pytest.fixture
def hybrid(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(reproduce.find_experiments().parent))
    return importlib.import_module("experiments.hybrid")


def test_all_joins_find_the_same(hybrid: Any) -> None:
    runs = {join: hybrid.run(0.01, 1, join=join, rate=300).values for join in hybrid.JOINS}
    assert len({values["pairs"] for values in runs.values()}) == 1 and runs["range"]["pairs"] > 10_000
    assert runs["meshjoin"]["delay"] > 3 * runs["range"]["delay"]
    assert runs["range"]["from memory"] > runs["hash"]["from memory"] > 0
    assert hybrid.run(0.01, 1, join="range", rate=300).values == runs["range"]


def test_measuring_begins_after_the_warm_up(hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = hybrid.run(0.01, 1, join="range", rate=300).values
    monkeypatch.setattr(hybrid, "HYBRID", dataclasses.replace(hybrid.HYBRID, warm_up=0.0))
    whole = hybrid.run(0.01, 1, join="range", rate=300).values
    assert whole["pairs"] == usual["pairs"] and whole["processed"] == usual["processed"]
    assert 0.5 * whole["disk"] < usual["disk"] < whole["disk"] and usual["cpu"] < whole["cpu"]
    assert usual["from memory"] > whole["from memory"], "at first nothing is in memory"


def test_equal_runs_are_run_once(hybrid: Any) -> None:
    cells = [cell for experiment in hybrid.EXPERIMENTS for cell in experiment.cells.values()]
    assert len({cell.key for cell in cells}) == len(cells) - 7, (
        "as usual, MESHJOIN is in four experiments, the others in three"
    )


def test_claims_turn_with_the_numbers(hybrid: Any) -> None:
    """With made-up numbers as the thesis would have them, all claims hold; with their opposite, none does."""
    model = importlib.import_module("experiments.model")
    for experiment in hybrid.EXPERIMENTS:
        for claim in experiment.claims:
            assert claim.check(_made_up(model, experiment, True)).holds, claim.name
            assert not claim.check(_made_up(model, experiment, False)).holds, claim.name


def _made_up(model: Any, experiment: Any, as_claimed: bool) -> Any:
    measured = {}
    for name, cell in experiment.cells.items():
        join, rate = cell.arguments["join"], cell.arguments.get("rate", 1000)
        more = cell.arguments.get("memory", 4e7) / 4e7 + cell.arguments.get("bias", 0.6) / 0.6
        mesh, by_hash = join == "meshjoin", join == "hash"
        valley = abs(rate - 1200) / 100 + 100
        delay = valley * more if mesh else (1 if (rate > 1500) == by_hash else 2) / more
        cost = {"meshjoin": 50.0, "range": 1.0, "hash": 10.0}[join] * abs(cell.arguments.get("segment", 1e6) - 1.5e6)
        cost /= 10 ** (8 * (cell.arguments.get("low", 0.7) - 0.7)) if join == "range" else 1
        kept = min(rate, 1400) if mesh else rate
        values = {
            "delay": delay,
            "disk": cost,
            "cpu": cost,
            "system": cost,
            "backlog": 1 - kept / rate,
            "processed": kept,
        }
        if not as_claimed:
            values = {
                "delay": rate / more if mesh else more * (100 if (rate > 1500) == by_hash else 50),
                "disk": 1 / cost, "cpu": 1 / cost, "system": 1 / cost, "backlog": 0.0, "processed": float(rate),
            }  # fmt: skip
        measured[name] = [model.Measured(values)]
    return model.Results(1.0, [1], measured)


def test_what_the_thesis_does_not_give_is_swept(hybrid: Any) -> None:
    """Claims turn with the numbers, and the relation may be drawn like the stream."""
    model, catalogue = (importlib.import_module(f"experiments.{name}") for name in ("model", "catalogue"))
    (processors,), (relations,) = catalogue.choose(["hybrid-cpu"]), catalogue.choose(["hybrid-relation"])

    def judged(experiment: Any, late: str, cheap: str) -> list[bool]:
        measured = {}
        for name in experiment.cells:
            join = name.split()[0]
            behind = 0.5 if join == late and "1200" in name else 0.0
            values = {"backlog": behind, "cpu": 1.0 if join == cheap else 2.0, "disk": 1.0 if join == cheap else 10.0}
            measured[name] = [model.Measured(values)]
        return [claim.check(model.Results(0.1, [1], measured)).holds for claim in experiment.claims]

    assert judged(processors, late="meshjoin", cheap="range") == [True, True]
    assert judged(processors, late="hash", cheap="hash") == [False, False]
    assert judged(relations, late="", cheap="range") == [True]
    assert judged(relations, late="", cheap="hash") == [False]
    all_over, alike = (hybrid.run(0.005, 1, join="range", rate=500, drawn=drawn).values for drawn in (0.0, 0.7))
    assert alike["pairs"] > 1.5 * all_over["pairs"] > 0, "keys that are asked for often are there often, too"
    assert hybrid.run(0.005, 1, join="range", rate=500).values == alike, "unless said otherwise, as in the thesis"
