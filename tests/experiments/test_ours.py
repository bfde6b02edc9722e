"""Our own join in the papers' settings: their pages, their memories, and claims that turn with numbers."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from watersmeet.cli import reproduce

WITH_OURS = ["rpj-8", "rpj-9", "rpj-10", "rpj-11", "rpj-12", "rpj-flush"]
WITH_OURS += ["diner-7/8", "diner-9", "diner-10", "diner-11/12", "diner-13", "diner-14", "diner-15", "diner-16"]
WITH_OURS += [
    "diner-17",
    "diner-18",
    "diner-gap",
    "miner-20",
    "miner-21",
    "miner-22",
    "miner-snowflake",
    "mjoin-11",
    "mjoin-15",
]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the experiments."""
    monkeypatch.syspath_prepend(str(reproduce.find_experiments().parent))
    return lambda name: importlib.import_module(f"experiments.{name}")


def test_hashes_are_charged_beside_the_papers_tuples(modules: Any) -> None:
    ours = modules("ours")
    machines = {
        "rpj": modules("rpj_streams").machine(1.0, "reliable"),
        "diner": modules("diner_streams").machine(10_000, 100.0),
    }
    pages = {paper: dict(ours.contestant(machine).options)["pages"] for paper, machine in machines.items()}
    assert (pages["rpj"].hashes, pages["rpj"].rows) == (1024 // 8, 102)
    assert (pages["diner"].hashes, pages["diner"].rows) == (10 * 1024 // 8, 51)
    for paper, machine in machines.items():
        held = machine.memory_rows / machine.page_rows
        assert held / 20 <= pages[paper].at_once <= held / 16, "a sixteenth of the memory at once"


def test_it_is_given_memory_for_as_many_rows_as_the_others(modules: Any) -> None:
    simulated, streams = modules("simulated"), modules("diner_streams")
    machine = streams.machine(1000, 10.0)
    grain = machine.grain(10_000)
    contestant = modules("ours").contestant(machine)
    memory = simulated.memory_for(contestant, grain, 1000, "key", simulated.pa.int64())
    schema = simulated.pa.schema([("key", simulated.pa.int64())])
    spec = simulated.JoinSpec(schema, schema, simulated.parse_on("key"), output=simulated.Output.COUNTS)
    assert 950 <= simulated._rows_before_spill(contestant, spec, memory, grain, 2000) <= 1150


@pytest.mark.parametrize("skew", [1, 3])
def test_it_finds_every_pair_in_the_end(skew: int, modules: Any) -> None:
    simulated, streams = modules("simulated"), modules("diner_streams")
    schedule = streams.arriving(streams.zipf_keys(2000, skew, 1), seed=1)
    machine = streams.machine(400, schedule.end_time)
    trace = simulated.run(modules("ours").contestant(machine), schedule, machine, online_only=False)
    assert trace.pages_written[-1] > 0 and trace.online < trace.total == simulated.equal_pairs(schedule)


@pytest.mark.parametrize("name", WITH_OURS)
def test_its_claims_turn_with_the_numbers_and_say_whose_they_are(name: str, modules: Any) -> None:
    model, ours = modules("model"), modules("ours")
    (experiment,) = modules("catalogue").choose([name])
    grid = np.linspace(0, 100, 61)

    def results(share: float) -> Any:
        measured = {}
        for cell, each in experiment.cells.items():
            mine = share if ours.OURS in each.arguments.values() else 0.5
            values = {"online": mine, "share": mine, "after": 1 - mine, "buffer": 1.0}
            curves = {"results": (grid, grid * mine), "cost": (grid, 1 / mine + 0 * grid)}
            measured[cell] = [model.Measured(values, curves)]
        return model.Results(0.1, [1], measured)

    claims = [claim for claim in experiment.claims if claim.name.startswith("confluence-")]
    assert claims and all("not the paper's" in claim.paper for claim in claims)
    assert all(claim.check(results(0.97)).holds for claim in claims)
    assert not any(claim.check(results(0.4)).holds for claim in claims)
    panels = experiment.panels(results(0.97))
    assert any(ours.OURS in name for panel in panels for name in (panel.title, *panel.lines))


def test_it_is_told_for_how_long_and_by_how_much_it_is_behind(modules: Any) -> None:
    model, ours = modules("model"), modules("ours")
    grid = np.linspace(0, 100, 201)
    own = np.where((grid >= 10) & (grid < 20), 0.9, 1.1) * grid
    measured = {
        name: [model.Measured({"share": 1.0}, {"results": (grid, found)})]
        for name, found in ((ours.OURS, own), ("XJoin", grid))
    }
    (most, _) = ours.claims({"a case": lambda join: join}, ["XJoin"])
    verdict = most.check(model.Results(1.0, [1], measured))
    assert not verdict.holds
    assert "a case 0.90x at" in verdict.measured and "behind for 10% of it" in verdict.measured
    assert "first from 20% on, 1.10x in the end" in verdict.measured
