"""`watersmeet reproduce`: it finds its experiments, runs them in processes, and says what holds and what does not."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from waiting import ended, until
from watersmeet.cli import main as cli
from watersmeet.cli import reproduce
from watersmeet.core.errors import SpecError, WatersmeetError

FIELDS = ["id", "claim", "paper", "measured", "holds"]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the experiments."""
    monkeypatch.syspath_prepend(str(reproduce.find_experiments().parent))
    return lambda name: importlib.import_module(f"experiments.{name}")


@pytest.fixture
def coin(modules: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A catalogue with one small experiment: one claim holds, one does not."""
    model = modules("model")

    def measure(scale: float, seed: int, bias: float = 0.0) -> Any:
        heads = np.random.default_rng(seed).random(int(1000 * scale))
        grid = np.linspace(0, 1, 5)
        return model.Measured({"mean": heads.mean() + bias}, {"rise": (grid, grid * seed)})

    def panels(results: Any) -> list[Any]:
        lines = {name: results.curve(name, "rise") for name in ("fair", "loaded")}
        sweep = results.sweep([0, 1], ["fair", "loaded"], "mean", over=["fair", "fair"])
        return [model.Panel("rise", "time", "height", lines), model.Panel("mean", "bias", "mean", {"mean": sweep})]

    def greater(a: str, b: str) -> Any:
        return lambda results: model.Verdict(
            results.median(a, "mean") > results.median(b, "mean"), f"{results.ratio(a, b, 'mean'):.2f}"
        )

    experiment = model.Experiment(
        "coin-1/2", "figures 1, 2", "Coins", "Tossing",
        {"fair": model.Cell(measure), "loaded": model.Cell(measure, bias=1.0), "again": model.Cell(measure)},
        [
            model.Claim("loaded-wins", "The loaded coin wins.", "it does", greater("loaded", "fair")),
            model.Claim("fair-wins", "The fair coin wins.", "it | does", greater("fair", "loaded")),
        ],
        panels,
        key=True,
    )  # fmt: skip
    monkeypatch.setattr(modules("catalogue"), "EXPERIMENTS", (experiment,))
    return experiment


def run(*arguments: str) -> int:
    return cli.run(["reproduce", "--jobs", "1", *arguments])


def test_lists_the_experiments(capsys: pytest.CaptureFixture[str], modules: Any) -> None:
    assert run("--list") == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [each.id for each in modules("catalogue").EXPERIMENTS]
    assert len(set(listed)) == len(listed)


def test_names_what_there_is_instead_of_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("nosuch") == cli.USAGE_ERROR
    assert "there is no experiment 'nosuch'; there are all, " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["coin-1/2", "coin-1", "coin-2", "coin-1-2"])
def test_an_experiment_of_several_figures_answers_to_each(coin: Any, modules: Any, name: str) -> None:
    assert modules("catalogue").choose([name]) == [coin]


@pytest.mark.parametrize("arguments", [["--scale", "0"], ["--scale", "1.5"], ["--scale", "nan"]])
def test_refuses_senseless_scales(arguments: list[str], coin: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("coin-1", *arguments) == cli.USAGE_ERROR
    assert "no part of the papers' data" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--markdown"])
def test_refuses_a_place_it_cannot_write_to_before_it_runs(option: str, tmp_path: Path, coin: Any) -> None:
    assert run("coin-1", option, str(tmp_path / "missing" / "file")) == cli.USAGE_ERROR


def test_says_so_where_there_are_no_experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = reproduce.find_experiments()
    monkeypatch.setattr(reproduce, "__file__", str(tmp_path / "lib" / "site" / "watersmeet" / "reproduce.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WatersmeetError, match=r"the experiments are part of .* run this in a checkout"):
        reproduce.find_experiments()
    shutil.copytree(checkout, tmp_path / "experiments")
    assert reproduce.find_experiments() == tmp_path / "experiments"


def test_a_claim_that_does_not_hold_shows_as_such(
    coin: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("all", "--seeds", "3", "--json", str(tmp_path / "claims.json")) == 0
    records = json.loads((tmp_path / "claims.json").read_text())
    assert [list(record) for record in records] == [FIELDS] * 2
    assert [record["holds"] for record in records] == [True, False]
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 80
    assert "NO" in table and "fair-wins: not explained yet." in table and "1 of 2 claims hold" in table
    assert "at scale 0.1, with 3 seeds" in table
    assert run("all", "--seeds", "1") == 0
    assert "at scale 0.1, with one seed" in capsys.readouterr().out


def test_curves_become_csv_and_pictures(coin: Any, tmp_path: Path) -> None:
    assert run("coin-2", "--seeds", "3", "--out", str(tmp_path / "out")) == 0
    lines = (tmp_path / "out" / "coin-1-2.csv").read_text().splitlines()
    assert lines[0] == "panel,line,x,median,low,high"
    assert lines[5] == "rise,fair,1,2,1,3", "the median of seeds 1, 2 and 3, and their range"
    assert len(lines) == 1 + 5 + 5 + 2
    assert (tmp_path / "out" / "coin-1-2.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_keeps_the_sections_of_other_experiments(
    coin: Any, tmp_path: Path, modules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    report = modules("report")
    monkeypatch.setattr(report, "reasons", lambda: {"coin-1/2": {"fair-wins": "The other one is loaded."}})
    assert run("coin-1", "--seeds", "2", "--markdown", str(page)) == 0
    first = page.read_text()
    assert "| The fair coin wins. | it \\| does |" in first and "| **no** |" in first
    assert "*fair-wins*: The other one is loaded." in first
    assert "![Tossing](images/coin-1-2.png)" in first and (tmp_path / "images" / "coin-1-2.png").is_file()
    other = first.replace("coin-1/2", "coin-0").replace("Tossing", "Another")
    page.write_text(other)
    monkeypatch.setattr(modules("catalogue"), "EXPERIMENTS", (modules("model").Experiment(
        "coin-0", "", "", "Another", {}, [], lambda results: []), coin))  # fmt: skip
    assert run("coin-1", "--seeds", "2", "--markdown", str(page)) == 0
    text = page.read_text()
    assert text.index("## coin-0: Another") < text.index("## coin-1/2: Tossing")
    assert text.count("<!-- end -->") == 2


def test_the_page_tells_by_itself_which_figures_have_other_charges(coin: Any, tmp_path: Path, modules: Any) -> None:
    page, report, charges = tmp_path / "page.md", modules("report"), modules("charges")
    assert run("coin-1", "--seeds", "2", "--markdown", str(page)) == 0
    text = page.read_text()
    assert f"<!-- experiment coin-1/2, charges {charges.NOW} -->" in text and "earlier version" not in text
    order = ["coin-0", "coin-1/2"]
    with pytest.MonkeyPatch.context() as later:
        later.setattr(charges, "CHANGES", (charges.Change(charges.NOW + 1, ("coin-",), "coins were free"),))
        again = report.page(report.sections_of(text), order)
        assert again.count("version, in which coins were free.*\n\n| claim |") == 1
        assert report.page(report.sections_of(again), order) == again, "it is not told twice"
        assert "Not run for this page: coin-0." in again
    assert "earlier version" not in report.page(report.sections_of(again), order), "nor kept"


def test_the_page_in_the_documentation_is_as_it_was_written(modules: Any) -> None:
    """Whoever edits it by hand edits in vain: introduction, marks and the table of our own join are made anew."""
    report = modules("report")
    path = reproduce.find_experiments().parent / "docs" / "reproduction.md"
    order = [each.id for each in modules("catalogue").EXPERIMENTS]
    sections = report.sections_of(path.read_text())
    assert len(sections) > 40 and not set(sections) - set(order)
    assert report.page(sections, order) == path.read_text()


def test_equal_cells_run_once_and_the_same_seed_gives_the_same(modules: Any) -> None:
    model, pool = modules("model"), modules("pool")
    calls: list[tuple[float, int]] = []

    def measure(scale: float, seed: int) -> Any:
        calls.append((scale, seed))
        return model.Measured({"x": float(seed)})

    cells = {"one": model.Cell(measure), "same": model.Cell(measure)}
    both = [model.Experiment(name, "", "", "", cells, [], lambda results: []) for name in ("a", "b")]
    found = list(pool.run_all(both, 0.5, [1, 2], jobs=1))
    assert calls == [(0.5, 1), (0.5, 2)]
    assert all(results.each("same", "x").tolist() == [1.0, 2.0] for _, results in found)


def test_what_fails_in_a_cell_is_named(modules: Any) -> None:
    model, pool = modules("model"), modules("pool")

    def measure(scale: float, seed: int) -> Any:
        raise SpecError("too small")

    experiment = model.Experiment("a", "", "", "", {"one": model.Cell(measure)}, [], lambda results: [])
    with pytest.raises(WatersmeetError, match="a, one, seed 7: too small"):
        list(pool.run_all([experiment], 0.5, [7], jobs=1))


def test_processes_give_what_one_process_gives(modules: Any, tmp_path: Path) -> None:
    for jobs in ("1", "2"):
        arguments = ["reproduce", "diner-13", "--seeds", "2", "--scale", "0.002", "--jobs", jobs]
        assert cli.run([*arguments, "--json", str(tmp_path / f"{jobs}.json")]) == 0
    assert (tmp_path / "1.json").read_text() == (tmp_path / "2.json").read_text()


SLOW = """
import os, time
from pathlib import Path

def measure(scale, seed, folder):
    Path(folder, f"{os.getpid()}.begun").touch()
    until = time.monotonic() + 3600
    while time.monotonic() < until:
        pass
"""
SLOW_RUN = """
import sys
sys.path[:0] = sys.argv[1:3]
import slow
from experiments import catalogue
from experiments.model import Cell, Experiment
from watersmeet.cli import main as cli

cells = {"slow": Cell(slow.measure, folder=sys.argv[2])}
catalogue.EXPERIMENTS = (Experiment("slow-1", "", "", "Busy", cells, [], lambda results: []),)
sys.exit(cli.run(["reproduce", "slow-1", "--seeds", "3", "--jobs", "2"]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_processes_end_with_the_one_that_started_them(number: signal.Signals, code: int, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-c", SLOW_RUN, str(reproduce.find_experiments().parent), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(
            lambda: process.poll() is not None or len(list(tmp_path.glob("*.begun"))) == 2, "two processes have begun"
        )
        assert process.poll() is None, process.communicate()
        process.send_signal(number)
        # All processes have these pipes, so that they are at their end when the last one is.
        output, error = ended(process, f"it was sent {number.name}, and so were those that it started")
    finally:
        process.kill()
        for begun in tmp_path.glob("*.begun"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(begun.stem), signal.SIGKILL)
        process.communicate()
    assert (process.returncode, output) == (code, "")
    assert "Traceback" not in error


def test_what_was_kept_is_not_measured_again(coin: Any, modules: Any, tmp_path: Path) -> None:
    kept = ["--keep", str(tmp_path / "kept")]
    texts = []
    for number, seeds in enumerate(["2", "3", "3"]):
        assert run("coin-1", "--seeds", seeds, *kept, "--json", str(tmp_path / f"{number}.json")) == 0
        texts.append((tmp_path / f"{number}.json").read_text())
    assert len(list((tmp_path / "kept").iterdir())) == 2 * 3, "of two cells, one of which is there twice"
    assert run("coin-1", "--seeds", "3", "--json", str(tmp_path / "anew.json")) == 0
    assert texts[1] == texts[2] == (tmp_path / "anew.json").read_text() != texts[0]
    files = sorted((tmp_path / "kept").iterdir())
    before = [path.stat().st_mtime_ns for path in files]
    assert run("coin-1", "--seeds", "3", *kept) == 0
    assert [path.stat().st_mtime_ns for path in files] == before, "nothing was measured, so nothing was written"


def test_a_process_keeps_what_it_gave_and_a_damaged_file_does_not_count(modules: Any, tmp_path: Path) -> None:
    arguments = ["reproduce", "diner-13", "--scale", "0.002", "--keep", str(tmp_path / "kept")]
    for number, jobs in enumerate("212"):
        assert cli.run([*arguments, "--jobs", jobs, "--json", str(tmp_path / f"{number}.json")]) == 0
        files = sorted((tmp_path / "kept").iterdir())
        files[0].write_text(files[0].read_text()[:-9])
    assert len({(tmp_path / f"{number}.json").read_text() for number in range(3)}) == 1


def test_what_other_code_gave_does_not_count(modules: Any, tmp_path: Path) -> None:
    fingerprint = modules("kept").fingerprint
    (tmp_path / "a.py").write_text("1")
    before = fingerprint([tmp_path])
    (tmp_path / "notes.md").write_text("not code")
    assert fingerprint([tmp_path]) == before
    (tmp_path / "a.py").write_text("2")
    assert fingerprint([tmp_path]) != before


def test_every_reason_is_about_a_claim(modules: Any) -> None:
    claims = {each.id: {claim.name for claim in each.claims} for each in modules("catalogue").EXPERIMENTS}
    for experiment, reasons in modules("report").reasons().items():
        assert set(reasons) <= claims[experiment], experiment


def test_names_of_claims_are_told_apart(modules: Any) -> None:
    for experiment in modules("catalogue").EXPERIMENTS:
        names = [claim.name for claim in experiment.claims]
        assert len(set(names)) == len(names)
        assert all(claim.text and claim.paper for claim in experiment.claims)
