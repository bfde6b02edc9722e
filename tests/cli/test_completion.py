"""The words that shells complete: what we answer, and what real shells make of it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from watersmeet.cli.completion import SCRIPTS, fitting
from watersmeet.cli.main import build_parser, run
from watersmeet.planner import ALGORITHMS, LOOKUPS, MULTIWAY, WINDOW_ALGORITHMS


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two inputs, and our command on the path."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    pyarrow.csv.write_csv(pa.table({"item name": ["cup"], "id": [1]}), "a.csv")
    pyarrow.csv.write_csv(pa.table({"id": [1], "paid": [True]}), "b.csv")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "watersmeet"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m watersmeet.cli.main "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    return place


def after(*words: str) -> list[str]:
    line = ["watersmeet", *words]
    return fitting(build_parser(), line, len(line) - 1)


def test_commands() -> None:
    assert {"join", "multijoin", "window-join", "lookup-join", "explain", "demo"} <= set(after(""))
    assert after("multi") == ["multijoin"]
    assert after("explain", "l") == ["lookup-join"]
    assert after("completion", "") == ["bash", "zsh", "fish"]


@pytest.mark.parametrize(
    ("command", "known"),
    [("join", ALGORITHMS), ("multijoin", MULTIWAY), ("window-join", WINDOW_ALGORITHMS), ("lookup-join", LOOKUPS)],
)
def test_algorithms_are_those_of_the_registry(command: str, known: dict[str, object]) -> None:
    assert set(after(command, "--algorithm", "")) == {"auto", *known}
    assert set(after("explain", command, "--algorithm", "")) == {"auto", *known}


def test_options_and_their_values() -> None:
    assert after("join", "a.csv", "--al") == ["--algorithm"]
    assert "-o" in after("join", "-") and "--at" not in after("completion", "--")
    assert after("join", "--engine", "s") == ["spark"]
    assert after("window-join", "--late", "") == ["keep", "drop", "error"]


def test_columns_of_the_files_named_so_far(here: Path) -> None:
    assert after("join", "a.csv", "b.csv", "--on", "") == ["id", "item name", "paid"]
    assert after("join", "gone.csv", "b.csv", "--on", "p") == ["paid"]
    assert after("multijoin", "orders=a.csv", "--time", "it") == ["item name"]


def test_files_are_the_shells_own() -> None:
    assert after("join", "") == after("join", "a.csv", "b") == after("join", "-o", "") == []


def test_the_command_prints(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for shell, script in SCRIPTS.items():
        assert run(["completion", shell]) == 0
        assert capsys.readouterr().out == script
    assert run(["completion", "--at", "1", "--", "watersmeet", "dem"]) == 0
    assert capsys.readouterr().out == "demo\n"
    assert run(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err == ("watersmeet: name the shell whose words are to be completed: bash, zsh, fish\n")


def shell(name: str, script: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    done = subprocess.run([name, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bash(here: Path) -> None:
    script = """
        eval "$(watersmeet completion bash)"
        COMP_WORDS=(watersmeet join a.csv b.csv --on i) COMP_CWORD=5
        _watersmeet
        printf '%s\\n' "${COMPREPLY[@]}"
        complete -p watersmeet
    """
    assert shell("bash", script).splitlines() == [
        "id", "item\\ name", "complete -o bashdefault -o default -F _watersmeet watersmeet",
    ]  # fmt: skip


def test_zsh(here: Path) -> None:
    script = """
        compdef() { print "compdef $@" }
        compadd() { shift; print -l "$@" }
        _files() { print "files" }
        eval "$(watersmeet completion zsh)"
        words=(watersmeet join a.csv b.csv --on i) CURRENT=6
        _watersmeet
        words=(watersmeet join "") CURRENT=3
        _watersmeet
    """
    assert shell("zsh", script).splitlines() == ["compdef _watersmeet watersmeet", "id", "item name", "files"]


def test_fish(here: Path) -> None:
    script = """
        watersmeet completion fish | source
        complete -C 'watersmeet join a.csv b.csv --on i'
        complete -C 'watersmeet explain '
    """
    found = shell("fish", script).splitlines()
    assert {"id", "item name"} <= set(found)
    assert {"join", "multijoin", "window-join", "lookup-join"} <= set(found)
