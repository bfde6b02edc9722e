"""The demo: it shows what it says, its proof catches every kind of wrong result, and it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from waiting import IdleTime, ended, is_in, until
from watersmeet.cli import main as cli
from watersmeet.demo import embedded
from watersmeet.demo.embedded import TIMING, differences
from watersmeet.demo.record import Record, Sample
from watersmeet.demo.report import remark, shortcomings
from watersmeet.demo.scenario import KEY, NAMES, Scenario, at_best, silences
from watersmeet.drivers import inbox, live
from watersmeet.drivers.progress import Progress
from watersmeet.sources import schedules
from watersmeet.sources.schedules import Schedule

SMALL = ["demo", "--engine", "local", "--rows", "6000", "--memory", "512KiB"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def scenario(rows: int, seed: int) -> Schedule:
    return Scenario(TIMING, rows, seed).schedule


def joined(schedule: Schedule) -> pa.Table:
    """The right result, by PyArrow's own join."""
    left, right = schedule.inputs
    return left.join(right, KEY, join_type="inner").combine_chunks()


def rows_of(table: pa.Table) -> Counter[tuple[object, ...]]:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_a_small_demo_spills_reacts_draws_and_is_verified(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with IdleTime() as clock:
        for module in (embedded, live, schedules):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(inbox, "threading", SimpleNamespace(**vars(threading) | {"Condition": clock.condition}))
        assert cli.run([*SMALL, "--out", "deep/er", "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    figures = {cells[1].strip(): cells[2].strip() for line in lines if len(cells := line.split("│")) == 4}
    assert figures["orders"] == "6,000 rows" and figures["shipments"] == "4,800 rows"
    assert figures["verified with DuckDB"] == "yes"
    assert not figures["on disk, at most"].startswith("0 ")
    caught_up, of = figures["all that could be, by the end of"].removesuffix(" silences").split(" of ")
    assert 0 < int(caught_up) <= int(of)
    assert 0 < float(figures["before the last row arrived"].split("%")[0]) <= 100
    assert figures["peak memory"].endswith(" KiB of 512 KiB")

    with pa.memory_map("deep/er/result.arrow") as file:
        found = pa.ipc.open_file(file).read_all()
    assert figures["pairs"] == f"{found.num_rows:,}"
    assert rows_of(found) == rows_of(joined(scenario(6000, seed=3)))
    assert (here / "deep/er/demo.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert sorted(path.name for path in (here / "deep/er").iterdir()) == ["demo.png", "result.arrow"]


def test_a_demo_that_shows_nothing_fails(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["demo", "--engine", "local", "--rows", "300"]) == 1
    assert "Not as it should be: all rows would fit into the memory" in capsys.readouterr().out
    assert (here / "demo-output/demo.png").exists()


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--rows", "0"], "at least one row"),
        (["--memory", "4KiB"], "memory of 4 KiB is too small"),
        (["--memory", "much"], "'much' is not understood"),
    ],
)
def test_what_cannot_be_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert cli.run(["demo", "--engine", "local", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not list(here.iterdir())


STUCK = """
import time
from watersmeet.cli import main as cli
from watersmeet.sources.schedules import Schedule

paced = Schedule.paced

def paced_and_never_at_an_end(self, side, **more):
    yield from paced(self, side, **more)
    time.sleep(3600)

Schedule.paced = paced_and_never_at_an_end
cli.main()
"""


def has_spilled_and_begun(here: Path, spill: Path) -> bool:
    return any(here.glob("out/.*.part")) and is_in(spill, "run-*")


def test_an_interrupt_leaves_no_spill_and_no_half_result(here: Path) -> None:
    spill = here / "spill"
    spill.mkdir()
    command = [sys.executable, "-c", STUCK, *SMALL, "--rows", "20000", "--out", "out"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(spill)}
    )
    try:
        until(
            lambda: process.poll() is not None or has_spilled_and_begun(here, spill), "it spills and begins its output"
        )
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        _, errors = ended(process, "it was interrupted")
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT
    assert errors.endswith("watersmeet: stopped\n")
    assert "Traceback" not in errors
    assert not [path for path in spill.rglob("*") if path.is_file()]
    assert not list((here / "out").iterdir())


# -- the proof ---------------------------------------------------------------------------------------------------------


def test_the_proof_catches_what_counts_and_sets_do_not() -> None:
    schedule = scenario(300, seed=1)
    right = joined(schedule)
    assert differences(schedule, right) is None
    shuffled = right.take(pa.array(np.random.default_rng(0).permutation(right.num_rows)))
    assert differences(schedule, shuffled) is None

    said = "the result is wrong: {} rows are missing and {} are too many"
    doubled = pa.concat_tables([right, right.slice(0, 2)])
    assert differences(schedule, doubled) == said.format(0, 2)
    assert differences(schedule, right.slice(3)) == said.format(3, 0)
    swapped = pa.concat_tables([right.slice(1), right.slice(1, 1)])  # as many rows as there should be
    assert differences(schedule, swapped) == said.format(1, 1)
    amount = pa.array([-1.0, *right["amount"].to_pylist()[1:]])
    altered = right.set_column(right.schema.get_field_index("amount"), "amount", amount)
    assert differences(schedule, altered) == said.format(1, 1)


def test_without_duckdb_there_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    schedule = scenario(10, seed=1)
    said = differences(schedule, joined(schedule))
    assert said is not None and "duckdb is not installed" in said
    record = Record([Sample(1e3, 10**6, 1, 100)])
    progress = Progress(NAMES, (10, 10), 5, peak=1, budget=2)
    assert shortcomings(schedule, record, progress, said) == [said]
    assert shortcomings(schedule, record, progress, None) == []


def test_what_must_be_seen_and_was_not() -> None:
    schedule = scenario(3000, seed=1)
    progress = Progress(NAMES, (10, 10), 5, peak=3, budget=2)
    told = shortcomings(schedule, Record([Sample(0.1, 0, 2, 50)], room=50), progress, None)
    assert len(told) == 3
    assert "all rows would fit into the memory" in told[0]
    assert "in no silence did the join catch up" in told[1]
    assert "more than allowed" in told[2]


def test_a_silence_counts_when_it_was_long_enough() -> None:
    schedule = scenario(TIMING.rows, seed=1)
    (first, until_), second = silences(schedule)[:2]
    best = at_best(schedule)
    possible = int(np.searchsorted(best, first, "right"))
    in_time, behind = (Record([Sample(until_, found, 1, 1)]) for found in (possible, possible - 1))
    assert in_time.caught_up(schedule) == (1, len(silences(schedule)))
    assert behind.caught_up(schedule) == (0, len(silences(schedule)))
    middle = (first + until_) / 2
    in_time.batches = [(first, middle), (middle, until_), (until_, second[1])]
    assert in_time.caught_up(schedule) == (1, 1)
    assert remark(schedule, in_time) is None
    in_time.batches.pop(1)
    assert in_time.caught_up(schedule) == (0, 0)
    assert "too busy" in (remark(schedule, in_time) or "")


# -- the sources and the curve -----------------------------------------------------------------------------------------


def test_both_sources_are_silent_at_the_same_time() -> None:
    schedule = scenario(TIMING.rows, seed=1)
    found = silences(schedule)
    assert len(found) >= len(TIMING.stalls)
    assert 10 < schedule.end_time < 20
    for begin, end in found:
        assert end - begin >= 0.18
        for when in schedule.times:
            assert not ((when > begin) & (when < end)).any()


def test_the_same_seed_gives_the_same_sources() -> None:
    first, again, other = (scenario(500, seed) for seed in (7, 7, 8))
    assert first.inputs == again.inputs
    assert all((a == b).all() for a, b in zip(first.times, again.times, strict=True))
    assert first.inputs[0] != other.inputs[0]


def test_no_pair_can_come_before_both_its_rows() -> None:
    ids = pa.table({"order_id": [1, 2, 1]}), pa.table({"order_id": [1, 3, 2, 1]})
    schedule = Schedule(ids, [np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 4.0, 6.0])])
    assert at_best(schedule).tolist() == [2.0, 4.0, 5.0, 6.0, 6.0]
