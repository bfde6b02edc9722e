"""Where results and figures go: each to a file of its own, and never into an input."""

from __future__ import annotations

from pathlib import Path

import pytest

from watersmeet.cli.main import run

JOIN = ["join", "l.csv", "r.csv", "--on", "k"]
LOOK_UP = ["lookup-join", "l.csv", "a=r.csv", "b=r.csv", "--on", "a:k", "--on", "b:k"]
MULTI = ["multijoin", "a=l.csv", "b=r.csv", "--on", "a.k = b.k"]
TIMED = ["l.csv", "r.csv", "--on", "k", "--time", "k"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "l.csv").write_text("k,v\n1,2\n")
    (tmp_path / "r.csv").write_text("k,w\n1,3\n")
    (tmp_path / "link.csv").symlink_to("l.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*JOIN, "-o", "l.csv"], "-o l.csv is an input, too, and would replace it; name another file"),
        ([*JOIN, "-o", "./link.csv"], "-o ./link.csv is an input, too"),
        ([*JOIN, "-o", "o.csv", "--json", "r.csv"], "--json r.csv is an input, too"),
        ([*JOIN, "-o", "o.csv", "--json", "o.csv"], "--json o.csv is what -o writes, too"),
        ([*JOIN, "--json", "o.html", "--report", "o.html"], "--report o.html is what --json writes, too"),
        (["join", "*.csv", "r.csv", "--on", "k", "-o", "r.csv"], "-o r.csv is an input, too"),
        ([*LOOK_UP, "-o", "r.csv"], "-o r.csv is an input, too"),
        ([*MULTI, "-o", "r.csv"], "-o r.csv is an input, too"),
        (["asof-join", *TIMED, "-o", "r.csv"], "-o r.csv is an input, too"),
        (["window-join", *TIMED, "--window", "1", "-o", "l.csv"], "-o l.csv is an input, too"),
        (["explain", *JOIN, "--json", "l.csv"], "--json l.csv is an input, too"),
    ],
)
def test_no_file_is_written_over_another(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_text() for path in folder.iterdir()}
    assert run(words) == 2
    assert said in capsys.readouterr().err
    assert {path.name: path.read_text() for path in folder.iterdir()} == before


def test_files_of_their_own_are_written(folder: Path) -> None:
    (folder / "o.csv").write_text("an older result")
    assert run([*MULTI, "-o", "o.csv", "--json", "o.json", "--quiet"]) == 0
    assert (folder / "o.csv").read_text().startswith('"k"') and (folder / "o.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*MULTI, "--how", "left"], "--how left does not say of which input; write --how NAME:left"),
        ([*LOOK_UP, "--how", "c:left"], "--how c:left names 'c', which is no relation; there are a, b"),
    ],
)
def test_kinds_of_joins_are_said_in_the_words_of_the_command_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert said in capsys.readouterr().err
