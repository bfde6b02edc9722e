"""The simulated cluster: no row is lost, results are those of the windows, and claims turn with the numbers."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from watersmeet.cli import reproduce


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(reproduce.find_experiments().parent))
    return importlib.import_module("experiments.parallel")


@pytest.fixture
def cluster(parallel: Any) -> Any:
    return importlib.import_module("experiments.cluster")


def test_partners_are_those_of_the_definition(cluster: Any) -> None:
    random = np.random.default_rng(4)
    times = [np.sort(random.uniform(0, 10, rows)) for rows in (80, 60)]
    keys = [random.integers(0, 9, rows) for rows in (80, 60)]
    for side, found in enumerate(cluster.partners(times, keys, 2.0)):
        other = 1 - side
        expected = [
            sum(k == key and t - 2.0 <= u < t for u, k in zip(times[other], keys[other], strict=True))
            for t, key in zip(times[side], keys[side], strict=True)
        ]
        assert found.tolist() == expected


def test_keys_are_skewed_as_asked(cluster: Any) -> None:
    keys = cluster.skewed_keys(50_000, 0.7, 1 << 16, seed=1)
    assert keys.min() >= 0 and keys.max() < 1 << 16
    assert np.mean(keys < 1 << 15) == pytest.approx(0.7, abs=0.01)
    low = keys[keys < 1 << 15]
    assert np.mean(low < 1 << 14) == pytest.approx(0.7, abs=0.01)


def test_fine_tuning_compares_less_and_finds_the_same(parallel: Any) -> None:
    tuned, plain = (parallel.run(0.005, 1, rate=4000, nodes=5, tuned=each).values for each in (True, False))
    # But for rows that are still to be joined when the run is over.
    assert tuned["results"] == pytest.approx(plain["results"], rel=0.002) and tuned["results"] > 1000
    assert tuned["cpu"] < 0.7 * plain["cpu"]
    assert parallel.run(0.005, 1, rate=4000, nodes=5).values == tuned, "the same seed gives the same numbers"


def test_moving_groups_loses_nothing(parallel: Any) -> None:
    still, moved, swinging = (
        parallel.run(0.005, 1, rate=2000, **how).values
        for how in ({"balancing": False}, {"slow": 0.2}, {"adaptive": "thesis"})
    )
    assert still["moves"] == 0 < moved["moves"] and swinging["moves"] > 0
    # All see every row; some results of rows that come last are late, or earlier, at the end of the run.
    assert moved["results"] == pytest.approx(still["results"], rel=0.03)
    assert swinging["nodes"] < 4 == still["nodes"]


def test_the_windows_of_all_nodes_are_the_whole_window(parallel: Any) -> None:
    one, four = (parallel.run(0.005, 1, nodes=nodes).values for nodes in (1, 4))
    assert four["window"] * 4 == pytest.approx(one["window"], rel=0.02)
    assert one["window"] == pytest.approx(2 * 1500 * 600 * 64, rel=0.05)


def test_sub_groups_make_the_masters_buffer_smaller(parallel: Any) -> None:
    whole, halves = (parallel.run(0.005, 1, sub_groups=groups).values["buffered"] for groups in (1, 2))
    assert halves == pytest.approx(0.75 * whole, rel=0.1)


def test_claims_turn_with_the_numbers(parallel: Any) -> None:
    """With made-up numbers as the thesis would have them, all claims hold; with their opposite, none does."""
    model = importlib.import_module("experiments.model")
    for experiment in parallel.EXPERIMENTS:
        for claim in experiment.claims:
            assert claim.check(_made_up(model, experiment, True)).holds, (experiment.id, claim.name)
            assert not claim.check(_made_up(model, experiment, False)).holds, (experiment.id, claim.name)


def _made_up(model: Any, experiment: Any, as_claimed: bool) -> Any:
    measured = {}
    for name, cell in experiment.cells.items():
        given = cell.arguments
        nodes, rate = given.get("nodes", 4), given.get("rate", 1500)
        tuned, thesis = given.get("tuned", True), given.get("adaptive", "") == "thesis"
        epoch, groups = given.get("distribution", 2.0), given.get("sub_groups", 1)
        limit = nodes * (1500 if tuned else 999)
        late = rate > limit
        good = {
            "delay": (100.0 if late else 1.5) * (2 if thesis else 1) * (20 if not given.get("balancing", True) else 1)
            + epoch / 10,
            "cpu": (rate / 1000) ** (1 if tuned else 2) / nodes,
            "communication": 0.01 / epoch,
            "all communication": 0.05 if given.get("adaptive") else 0.02 + 0.02 * nodes,
            "idle": 0.0 if rate >= (6000 if tuned else 4000) else 0.5,
            "waiting": 0.2 if late else 0.0,
            "window": 10.0, "largest window": 10.5, "smallest window": 9.5,
            "nodes": 2.0, "changes": 9.0 if thesis else 0.0, "moves": 3.0,
            "buffered": 2 * 1500 * 2.0 / 2 * (1 + 1 / groups),
        }  # fmt: skip
        bad = {
            "delay": 50.0 - epoch, "cpu": 0.5, "communication": 0.5 * (2 if tuned else 1) + epoch,
            "all communication": float(nodes if given.get("adaptive") else 3), "idle": 0.5,
            "waiting": 0.2 if rate > 4000 else 0.0, "window": 10.0, "largest window": 30.0, "smallest window": 5.0,
            "nodes": 1.0, "changes": 9.0, "moves": 0.0, "buffered": 1.0,
        }  # fmt: skip
        measured[name] = [model.Measured(good if as_claimed else bad)]
    return model.Results(1.0, [1], measured)
