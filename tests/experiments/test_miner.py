"""MINER's experiments run at a tiny scale, and their totals are those of the joins themselves."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.checks.oracle.nested_loops import reference_combinations
from watersmeet.cli import reproduce
from watersmeet.joins.multiway.flushing import Flushing


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


def test_what_is_possible_is_everything_in_enough_memory_and_less_in_less(modules: Any) -> None:
    streams = modules("miner_streams")
    for inputs in (2, 3, 4):
        tables = streams.chain_tables(0.01, 3, inputs)
        rows = sum(table.num_rows for table in tables.values())
        shares = [streams.possible(tables, part * rows // 20) for part in (1, 2, 4, 10, 40)]
        assert shares == sorted(shares) and shares[0] > 0.05 and shares[-1] == pytest.approx(1)
    # Two values, 6 and 2 times on each side; 3 rows of a side in memory are best all of the first: 1 - (3/6)^2 of 36.
    tables = {name: pa.table({"a2": [0] * 6 + [1] * 2}) for name in ("r2", "r3")}
    assert streams.possible(tables, 6) == pytest.approx(27 / 40)


@pytest.mark.parametrize("inputs", [2, 3, 4])
def test_totals_are_those_of_the_oracle(inputs: int, modules: Any) -> None:
    streams = modules("miner_streams")
    tables = streams.chain_tables(0.0005, 3, inputs)
    assert streams.chain_total(tables) == len(reference_combinations(list(tables.values()), streams.chain_spec(inputs)))
    tables = streams.star_tables(0.0005, 3, inputs)
    assert streams.star_total(tables) == len(reference_combinations(list(tables.values()), streams.star_spec(inputs)))


def test_a_snowflake_has_the_results_of_the_oracle_and_miner_finds_them_all(modules: Any) -> None:
    miner, streams = modules("miner"), modules("miner_streams")
    tables, spec = streams.snowflake_tables(0.0005, 3, 5), streams.snowflake_spec(5)
    assert len(tables["r3"].column_names) == 3 == len(spec.attributes[spec.names.index("r3")])
    assert streams.chain_total(tables) == len(reference_combinations(list(tables.values()), spec))
    whole = miner.snowflake(0.02, 1, join="MINER", inputs=5, memory=0.2, whole=True).values
    assert whole["found"] == 1 and 0 < whole["share"] < 1


@pytest.mark.parametrize("inputs", [2, 3])
def test_our_own_join_holds_as_many_rows_before_each_flush(
    inputs: int, modules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it remembers of runs comes on top, from the first run to the last."""
    miner = modules("miner")
    held: list[int] = []
    flush = Flushing.flush

    def counting(flushing: Any) -> None:
        held.append(sum(table.rows for table in flushing._join.tables))
        flush(flushing)

    monkeypatch.setattr(Flushing, "flush", counting)
    miner.memory_for.cache_clear()
    miner.chain(0.1, 1, inputs=inputs, memory=0.05, join=miner.OURS)
    rows = round(0.05 * (2 + 0.1 * (inputs - 2)) * 10_000)
    asked = next(at for at, each in enumerate(held) if each >= 0.9 * rows)
    in_the_run = held[asked:]
    assert len(in_the_run) > 10 and 0.8 * rows <= min(in_the_run[1:-1]) <= max(in_the_run) <= 1.3 * rows
