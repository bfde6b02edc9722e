"""MINER's experiments run at a tiny scale, and their totals are those of the joins themselves."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from watersmeet import reproduce
from watersmeet.joins.multi_reference import reference_combinations


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the experiments."""
    monkeypatch.syspath_prepend(str(reproduce.find_experiments().parent))
    return lambda name: importlib.import_module(f"experiments.{name}")


@pytest.mark.parametrize("name", ["miner-20", "miner-21", "miner-22"])
def test_first_and_last_cells_run_at_a_tiny_scale(name: str, modules: Any) -> None:
    (experiment,) = modules("catalogue").choose([name])
    first, *_, last = experiment.cells.values()
    for cell in (first, last):
        values = cell.run(0.005, 1).values
        assert values and all(np.isfinite(value) for value in values.values())
        assert 0 < values["online"] <= values["total"]


@pytest.mark.parametrize("inputs", [2, 3, 4])
def test_totals_are_those_of_the_oracle(inputs: int, modules: Any) -> None:
    miner = modules("miner")
    tables = miner.chain_tables(0.0005, 3, inputs)
    assert miner.chain_total(tables) == len(reference_combinations(list(tables.values()), miner.chain_spec(inputs)))
    tables = miner.star_tables(0.0005, 3, inputs)
    assert miner.star_total(tables) == len(reference_combinations(list(tables.values()), miner.star_spec(inputs)))
