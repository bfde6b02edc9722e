"""The experiments with window joins run at a tiny scale, and their claims turn when the numbers do."""

from __future__ import annotations

import importlib
from collections import Counter
from typing import Any

import numpy as np
import pytest

from watersmeet.cli import reproduce

NAMES = [
    "ewj-rate", "ewj-bias", "ahewj-slide", "ahewj-flush", "ahewj-rate", "ahewj-parts", "ahewj-bias", "ahewj-memory",
    "ahewj-block",
]  # fmt: skip


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the experiments."""
    monkeypatch.syspath_prepend(str(reproduce.find_experiments().parent))
    return lambda name: importlib.import_module(f"experiments.{name}")


@pytest.mark.parametrize("join", ["ewj", "ah_ewj", "rpwj"])
def test_a_cell_gives_the_same_numbers_again(join: str, modules: Any) -> None:
    run = modules("window_runs").run
    rate = 200 if join == "ewj" else 1200
    once, again = (run(0.002, 1, join=join, rate=rate).values for _ in range(2))
    assert once == again and all(np.isfinite(value) for value in once.values())
    assert once["cpu"] > 0 and once["disk"] > 0 and once["delay"] > 0 and once["pairs"] > 0


def test_joins_of_the_same_streams_find_the_same(modules: Any) -> None:
    run = modules("window_runs").run
    found = [run(0.002, 1, join=join, rate=1200).values["pairs"] for join in ("ah_ewj", "rpwj")]
    assert found[0] == found[1]


def test_dd_tasks_that_read_all_again_cost_more_and_find_the_same(modules: Any) -> None:
    run = modules("window_runs").run
    unseen, all_of_both = (run(0.005, 1, join="rpwj", rate=1200, reread=reread).values for reread in (False, True))
    assert all_of_both["disk"] > 1.05 * unseen["disk"] and all_of_both["pairs"] == unseen["pairs"]


def test_rows_that_wait_too_long_are_delayed(modules: Any) -> None:
    """EWJ does nothing in silences: where bursts are far apart, rows leave their window before they meet the disk."""
    run = modules("window_runs").run
    even, bursty = (run(0.01, 1, join="ewj", rate=100, bias=bias).values["delayed"] for bias in (0.5, 0.8))
    assert bursty > even and bursty > 0.01


def good_values(name: str, join: str, number: float, at: int) -> dict[str, float]:
    """What would be measured if all claims of an experiment held."""
    up, down = 1.0 + at, 10.0 - at
    values = dict.fromkeys(("delay", "cpu", "disk", "total", "window", "pairs"), 1.0) | {"backlog": 0.0, "delayed": 0.0}
    match name, join:
        case "ewj-rate", _:
            values |= {"disk": 0.1, "backlog": 0.5 * (number >= 300)}
        case "ewj-bias", _:
            values |= {"delay": up, "delayed": up / 100}
        case "ahewj-slide" | "ahewj-memory", "rpwj" | "ah_ewj":
            values |= {"delay": down, "disk": down, "cpu": down, "delayed": down / 100}
        case "ahewj-flush", _:
            values |= {"delay": 1 + abs(number - 0.5)}
        case "ahewj-rate", "rpwj":
            values |= {"backlog": 0.5 * (number >= 1400), "cpu": 2, "disk": 5, "total": 7, "delayed": up / 100}
        case "ahewj-parts", "rpwj":
            values |= {"delay": 1 + (number > 64)}
        case "ahewj-parts", _:
            values |= {"delay": down}
        case "ahewj-bias", "rpwj":
            values |= {"delay": 2 * up, "cpu": down, "disk": down}
        case _, "Confluence":
            values |= {"delay": 0.5, "total": 0.5}
    return values


def bad_values(name: str, join: str, number: float, at: int) -> dict[str, float]:
    """What would be measured if none did."""
    up, down = 1.0 + at, 10.0 - at
    values = dict.fromkeys(("delay", "cpu", "disk", "total", "window", "pairs"), 1.0) | {"backlog": 0.5, "delayed": 0.5}
    match name, join:
        case "ewj-bias", _:
            values |= {"delay": down, "delayed": down / 100}
        case "ahewj-slide" | "ahewj-memory", "rpwj" | "ah_ewj":
            values |= {"delay": up, "disk": up, "cpu": up, "delayed": up / 100}
        case "ahewj-flush" | "ahewj-block", _:
            values |= {"delay": up}
        case "ahewj-rate", "rpwj":
            values |= {"backlog": 0.0, "delayed": down / 100}
        case "ahewj-parts", "rpwj":
            values |= {"delay": down}
        case "ahewj-parts", _:
            values |= {"delay": up}
        case "ahewj-bias", "rpwj":
            values |= {"cpu": up, "disk": up}
        case _, "Confluence":
            values |= {"delay": 20.0, "total": 20.0}
    return values


@pytest.mark.parametrize("name", NAMES)
def test_claims_are_judged_by_what_was_measured(name: str, modules: Any) -> None:
    model = modules("model")
    (experiment,) = modules("catalogue").choose([name])

    def results(make: Any) -> Any:
        measured, seen = {}, Counter()
        for cell in experiment.cells:
            join, number, *variant = cell.split()
            if variant:  # of the same join, and cheaper if all is well
                measured[cell] = [
                    model.Measured(make(name, join, float(number), 0) | {"disk": 4 if make is good_values else 9})
                ]
                continue
            measured[cell] = [model.Measured(make(name, join, float(number), seen[join]))]
            seen[join] += 1
        return model.Results(1.0, [1], measured)

    for claim in experiment.claims:
        assert claim.check(results(good_values)).holds, claim.name
        assert not claim.check(results(bad_values)).holds, claim.name
    assert experiment.panels(results(good_values))
