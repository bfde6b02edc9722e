"""The experiments with window joins run at a tiny scale, and their claims turn when the numbers do."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from watersmeet import reproduce

NAMES = ["ewj-rate", "ewj-bias", "ahewj-rate", "ahewj-bias", "ahewj-memory"]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the experiments."""
    monkeypatch.syspath_prepend(str(reproduce.find_experiments().parent))
    return lambda name: importlib.import_module(f"experiments.{name}")


@pytest.mark.parametrize("name", ["ewj-rate", "ahewj-memory"])
def test_a_cell_gives_the_same_numbers_again(name: str, modules: Any) -> None:
    (experiment,) = modules("catalogue").choose([name])
    cell = next(iter(experiment.cells.values()))
    once, again = cell.run(0.002, 1).values, cell.run(0.002, 1).values
    assert once == again and all(np.isfinite(value) for value in once.values())
    assert once["cpu"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_claims_are_judged_by_what_was_measured(name: str, modules: Any) -> None:
    model = modules("model")
    (experiment,) = modules("catalogue").choose([name])

    def results(good: bool) -> Any:
        measured = {}
        for number, cell in enumerate(experiment.cells):
            up = 1.0 + number
            falls = name == "ahewj-memory"
            trend = up if good is not falls else 10.0 - up
            values = dict.fromkeys(("delay", "cpu", "scans", "window"), trend)
            values |= {"disk": 0.1 * trend if good or falls else 9 * trend, "backlog": 0.0 if good else 0.5}
            values["delayed"] = 1e-5 * trend if good else 0.5 / up
            measured[cell] = [model.Measured(values)]
        return model.Results(1.0, [1], measured)

    for claim in experiment.claims:
        assert claim.check(results(good=True)).holds, claim.name
        assert not claim.check(results(good=False)).holds, claim.name
