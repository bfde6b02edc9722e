"""`--page` and `--report` of the commands that join."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from waiting import ended, until
from watersmeet.cli import looking
from watersmeet.cli import main as cli
from watersmeet.cli.signals import Stopped


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        pq.write_table(pa.table({"id": range(100), "at": range(100)}), f"{name}.parquet")
    return tmp_path


def recorded(path: Path) -> dict[str, object]:
    """The run that a report holds."""
    found = re.search(r'id="recorded">(.*?)</script>', path.read_text())
    assert found is not None
    [run] = json.loads(found[1])
    return dict(run)


WORDS = {
    "join": ["join", "a.parquet", "b.parquet", "--on", "id"],
    "window-join": ["window-join", "a.parquet", "b.parquet", "--on", "id", "--time", "at", "--window", "5"],
    "lookup-join": ["lookup-join", "a.parquet", "b.parquet", "--on", "id"],
    "multijoin": ["multijoin", "a.parquet", "b.parquet", "--on", "a.id = b.id"],
}


@pytest.mark.parametrize("verb", WORDS)
def test_every_verb_writes_a_report(verb: str, here: Path) -> None:
    assert cli.run([*WORDS[verb], "--quiet", "-o", "out.parquet", "--report", "run.html"]) == 0
    run = recorded(here / "run.html")
    assert run["ended"] and run["now"]["rows_out"] == pq.read_metadata("out.parquet").num_rows == 100  # type: ignore[index]


def test_a_report_is_checked_before_anything_is_joined(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*WORDS["join"], "-o", "out.parquet", "--report", "run.pdf"]) == 2
    assert "name it .html" in capsys.readouterr().err
    assert cli.run([*WORDS["join"], "-o", "out.parquet", "--report", "no/run.html"]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert not (here / "out.parquet").exists()


def test_a_page_is_told_served_and_gone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*WORDS["join"], "--quiet", "-o", "out.parquet", "--page"]) == 0
    assert re.fullmatch(r"Look at it at http://127\.0\.0\.1:\d+/\?token=[\w-]{32}\n", capsys.readouterr().err)
    assert not any(thread.name == "watersmeet-page" for thread in threading.enumerate())


def test_a_page_shows_the_join_while_it_waits_for_rows(here: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "watersmeet.cli.main", "demo", "--engine", "local", "--page", "--out", "out"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        address = process.stderr.readline().split()[-1].replace("/?", "/metrics?")
        found = re.compile(r"watersmeet_rows_out_total\{[^}]*\} [1-9]")
        until(lambda: found.search(urllib.request.urlopen(address).read().decode()), "no result is told")
    finally:
        process.terminate()
        ended(process, "it was asked to end")
    assert process.returncode == 128 + 15


def test_whoever_sits_at_a_terminal_may_look_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until Ctrl-C, which is no failure: all was done."""
    asleep: list[float] = []

    def sleep(seconds: float) -> None:
        asleep.append(seconds)
        raise Stopped(2)

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(looking.time, "sleep", sleep)
    with looking.page_for(argparse.Namespace(page=True, page_address=None)) as page:
        assert page is not None and asleep == []
    assert asleep == [1] and not page.is_open


def test_without_a_page_there_is_none() -> None:
    with looking.page_for(argparse.Namespace(page=False, page_address=None)) as page:
        assert page is None


def test_at_a_port_of_ones_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*WORDS["join"], "--quiet", "-o", "out.parquet", "--page-address", "nowhere"]) == 2
    assert "is not understood; give a port, or HOST:PORT" in capsys.readouterr().err
