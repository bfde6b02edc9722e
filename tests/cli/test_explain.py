"""`watersmeet explain` for every verb, `--json` for every figure, and colours that can be refused."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from watersmeet.cli import colour
from watersmeet.cli.main import build_parser, run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pyarrow.csv.write_csv(pa.table({"id": [1, 2, 3], "at": [0, 5, 9], "item": ["cup", "pot", "pan"]}), "a.csv")
    pyarrow.csv.write_csv(pa.table({"id": [1, 3, 4], "at": [1, 50, 60]}), "b.csv")
    return tmp_path


VERBS = {
    "join": ["a.csv", "b.csv", "--on", "id"],
    "window-join": ["a.csv", "b.csv", "--on", "id", "--time", "at", "--window", "10"],
    "asof-join": ["a.csv", "b.csv", "--on", "id", "--time", "at", "--direction", "forward", "--how", "left"],
    "multijoin": ["a.csv", "b.csv", "--on", "a.id = b.id"],
    "lookup-join": ["a.csv", "b.csv", "--on", "id", "--how", "left"],
}
ROWS_OUT = {"join": 2, "window-join": 1, "asof-join": 3, "multijoin": 2, "lookup-join": 3}


def test_all_verbs_that_join_files_are_explained_and_tell_figures() -> None:
    parsers = next(a for a in build_parser()._actions if a.dest == "command").choices
    assert isinstance(parsers, dict)
    assert set(VERBS) == {name for name in parsers if name.endswith("join")}
    explained = next(a for a in parsers["explain"]._actions if a.dest == "verb").choices
    assert set(explained) == set(VERBS)
    telling = {name for name, parser in parsers.items() if "--json" in parser._option_string_actions}
    assert telling == {*VERBS, "demo", "bench", "reproduce"}


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_explained_is_what_runs(verb: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", verb, *VERBS[verb], "--json", "plan.json"]) == 0
    text = capsys.readouterr().out
    told = json.loads((here / "plan.json").read_text())
    assert run([verb, *VERBS[verb], "--quiet", "--json", "-"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (told["algorithm"], told["reason"]) == (figures["algorithm"], figures["reason"])
    assert f"{told['algorithm']}: {told['reason']}" in text
    assert (told["memory"], figures["rows_out"]) == (figures["budget"], ROWS_OUT[verb])
    assert run([verb, *VERBS[verb], "--quiet", "-o", "out.csv"]) == 0
    assert list(told["output"]) == pyarrow.csv.read_csv("out.csv").schema.names
    if told["least_memory"] is not None:
        assert run([verb, *VERBS[verb], "--quiet", "--memory", str(told["least_memory"])]) == 0
        assert run([verb, *VERBS[verb], "--quiet", "--memory", str(told["least_memory"] * 9 // 10)]) == 2


def test_nothing_is_read_or_written_to_explain(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "late.csv").write_text("id,v\n" + "1,2\n" * 300_000 + "1,2,3\n")  # broken, far behind
    assert run(["explain", "join", "a.csv", "late.csv", "--on", "id", "-o", "out.csv"]) == 0
    assert "confluence" in capsys.readouterr().out
    assert not (here / "out.csv").exists()
    assert run(["join", "a.csv", "late.csv", "--on", "id", "--quiet"]) != 0


def test_rows_decide_between_one_join_and_a_tree(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pyarrow.csv.write_csv(pa.table({"a": [1], "b": [2]}), "r.csv")
    inputs = [f"{name}=r.csv" for name in "rstu"]
    on = [word for pair in ("r.a = s.a", "s.b = t.b", "t.a = u.a") for word in ("--on", pair)]
    assert run(["explain", "multijoin", *inputs, *on]) == 0
    assert "by       tree" not in capsys.readouterr().out
    rows = [word for name in "rstu" for word in ("--rows", f"{name}:1000")]
    assert run(["explain", "multijoin", *inputs, *on, *rows]) == 0
    text = capsys.readouterr().out
    assert "by       tree" in text and "xjoin of 2" in text
    assert run(["multijoin", *inputs, *on, "--rows", "r:many"]) == 2
    assert "--rows 'r:many' is not understood" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explain"], "required: VERB"),
        (["explain", "join", "a.csv", "b.csv", "--on", "none"], "'none'"),
        (["explain", "join", "a.csv", "b.csv", "--on", "id", "--engine", "spark"], "leave --engine spark out"),
        (["join", "a.csv", "b.csv", "--on", "id", "--json", "no/such/place.json"], "is not a directory"),
    ],
)
def test_what_cannot_be_told_is_one_sentence(
    words: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    output = capsys.readouterr()
    assert said in output.err and output.err.count("\n") == 1 and output.out == ""


# -- colours -----------------------------------------------------------------------------------------------------------


def on_a_terminal(words: list[str], **environment: str) -> str:
    """What a process writes to a terminal."""
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "watersmeet.cli.main", *words]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=plain | {"TERM": "xterm"} | environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is gone
            break
        if not part:
            break
        seen += part
    os.close(ours)
    process.wait()
    return seen.decode()


COLOURS = ("\x1b[1;31m", "\x1b[31m", "\x1b[36m", "\x1b[3")


@pytest.mark.parametrize(
    "words",
    [["join", "a.csv", "gone.csv", "--on", "id"], ["join", "a.csv", "b.csv", "--on", "id"]],
    ids=["error", "run"],
)
def test_no_color_is_respected(words: list[str], here: Path) -> None:
    coloured, plain = on_a_terminal(words), on_a_terminal(words, NO_COLOR="1")
    assert any(code in coloured for code in COLOURS)
    assert not any(code in plain for code in COLOURS), repr(plain)


def test_whether_colours_are_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert colour.allowed(Terminal()) and not colour.allowed(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not colour.allowed(Terminal())
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert colour.allowed(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour.allowed(Terminal())
    monkeypatch.setenv("NO_COLOR", "")  # set to nothing is not set
    assert colour.allowed(Terminal())


def test_the_first_join_on_a_machine_says_why_it_takes_long(here: Path) -> None:
    words = ["join", *VERBS["join"]]
    cold = on_a_terminal(words, WATERSMEET_CACHE_DIR=str(here / "kernels"))
    assert "compiles its kernels" in cold
    assert (here / "kernels").is_dir(), "and they are kept"
    assert "compiles its kernels" not in on_a_terminal(words, WATERSMEET_CACHE_DIR=str(here / "kernels"))
