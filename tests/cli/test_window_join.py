"""`watersmeet window-join`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from watersmeet.cli.main import run


def files(folder: Path) -> tuple[str, str]:
    views = pa.table({"ad": [1, 2, 1], "ts": pa.array([0, 5, 100], pa.timestamp("s")), "page": ["a", "b", "c"]})
    clicks = pa.table({"ad": [1, 1, 2], "at": pa.array([8, 90, 104], pa.timestamp("s"))})
    for name, table in (("views", views), ("clicks", clicks)):
        pq.write_table(table, folder / f"{name}.parquet")
    return str(folder / "views.parquet"), str(folder / "clicks.parquet")


def test_files_joined_by_windows(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    windows = ["--time", "ts = at", "--window", "10s", "--window", "1 min"]
    assert run(["window-join", *files(tmp_path), "--on", "ad", *windows, "--quiet", "-o", str(out)]) == 0
    rows = pq.read_table(out).sort_by("page").to_pylist()
    assert [(row["page"], row["ts"].second, row["at"].second) for row in rows] == [("a", 0, 8), ("c", 40, 30)]


def test_files_joined_by_time_alone_and_with_a_band_alone(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    windows = ["--time", "ts = at", "--window", "10s", "--idle", "1 min"]
    assert run(["window-join", *files(tmp_path), *windows, "--quiet", "-o", str(out)]) == 0
    rows = sorted((row["page"], row["at"].second) for row in pq.read_table(out).to_pylist())
    assert rows == [("a", 8), ("b", 8), ("c", 30), ("c", 44)]
    assert run(["window-join", *files(tmp_path), "--band", "ad:0", *windows, "--quiet", "-o", str(out)]) == 0
    rows = sorted((row["page"], row["at"].second) for row in pq.read_table(out).to_pylist())
    assert rows == [("a", 8), ("c", 30)]


def test_rows_without_a_partner(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    words = ["--on", "ad", "--time", "ts = at", "--window", "10s", "--how", "anti", "--quiet", "-o", str(out)]
    assert run(["window-join", *files(tmp_path), *words]) == 0
    assert sorted(pq.read_table(out)["page"].to_pylist()) == ["b"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--time", "ts = at", "--window", "ten"], "window 'ten' is not understood"),
        (["--time", "ts", "--window", "10s"], "join column 'ts' is not in"),
        (["--time", "ts = at", "--window", "1s", "--window", "1s", "--window", "1s"], "two windows at most"),
        (["--window", "1s"], "--time"),
        (["--time", "ts = at", "--window", "1s", "--emit", "final", "--late", "keep"], "say late='drop'"),
        (["--time", "ts = at", "--window", "1s", "--idle", "0"], "idle=0 would take every input for silent"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["window-join", *files(tmp_path), "--on", "ad", *words, "--quiet"]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_many_queries_out_of_a_file(tmp_path: Path) -> None:
    asked = tmp_path / "queries.json"
    asked.write_text(
        '[{"name": "all", "window": ["2 min", "2 min"]}, {"name": "first", "window": "1 min", "left": "ad = 1"}]'
    )
    out = tmp_path / "found.parquet"
    words = ["--on", "ad", "--time", "ts = at", "--queries", str(asked), "--quiet", "-o", str(out)]
    assert run(["window-join", *files(tmp_path), *words]) == 0
    found = {
        (row["page"], row["at"].minute * 60 + row["at"].second): row["queries"]
        for row in pq.read_table(out).to_pylist()
    }
    both = ["all", "first"]
    assert found == {("a", 8): both, ("a", 90): ["all"], ("b", 104): ["all"], ("c", 8): ["all"], ("c", 90): both}


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        (None, [], "cannot be read: No such file"),
        ("[", [], "are no JSON"),
        ('{"name": "a"}', [], "must have a list of queries, each with name and window"),
        ('[{"name": "a", "window": 5, "where": "x"}]', [], "must have a list of queries"),
        ('[{"name": "a", "window": 5, "left": "x ="}]', [], "left of query 'a', 'x =', breaks off"),
        ('[{"name": "a", "window": 5}]', ["--how", "left"], "queries are inner joins by confluence"),
    ],
)
def test_queries_that_are_not_understood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, more: list[str], said: str
) -> None:
    asked = tmp_path / "queries.json"
    if text is not None:
        asked.write_text(text)
    words = ["--on", "ad", "--time", "ts", "--queries", str(asked), *more]
    assert run(["window-join", *files(tmp_path), *words]) != 0
    assert said in capsys.readouterr().err


def test_a_join_by_windows_needs_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["window-join", *files(tmp_path), "--on", "ad", "--time", "ts"]) != 0
    assert "needs --window, such as --window 10min; or --queries FILE" in capsys.readouterr().err
