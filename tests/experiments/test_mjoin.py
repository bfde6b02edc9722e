"""MJoin's experiments run at a tiny scale; what the paper tells exactly is exactly so."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from watersmeet.cli import reproduce


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the experiments."""
    monkeypatch.syspath_prepend(str(reproduce.find_experiments().parent))
    return lambda name: importlib.import_module(f"experiments.{name}")


SCALES = {"mjoin-11": 0.01, "mjoin-12": 0.01, "mjoin-13": 0.001, "mjoin-15": 0.02, "mjoin-17": 0.01}


@pytest.mark.parametrize("name", SCALES)
def test_first_and_last_cells_run_at_a_tiny_scale(name: str, modules: Any) -> None:
    (experiment,) = modules("catalogue").choose([name])
    first, *_, last = experiment.cells.values()
    for cell in (first, last):
        values = cell.run(SCALES[name], 1).values
        assert values and all(np.isfinite(value) for value in values.values())


def test_the_worked_example_gives_exactly_the_outputs_of_the_figures(modules: Any) -> None:
    example = modules("mjoin_example")
    assert example.figures() == example.EXPECTED


def test_hashes_and_moves_are_those_of_the_table(modules: Any) -> None:
    inflating = modules("mjoin").inflating
    for plan, count in (("right", 3_500), ("wrong", 3_500), ("tree", 18_500)):
        values = inflating(0.1, 1, plan).values
        assert values["hashes"] == values["moves"] == count


def test_all_plans_find_the_same(modules: Any) -> None:
    plans, windows = modules("mjoin_plans"), modules("mjoin_windows")
    assert len({plans.six(0.005, 2, plan).values["total"] for plan in plans.PLANS}) == 1
    found = {windows.windowed(0.001, 2, plan, "tenk").values["total"] for plan in ("mjoin", "low")}
    assert len(found) == 1 and min(found) > 100


def test_the_cost_model_picks_the_split_that_stores_least(modules: Any) -> None:
    assert modules("mjoin_plans").picked(1.0) == "((s1 ⋈ s2 ⋈ s3) ⋈ (s4 ⋈ s5 ⋈ s6))"
