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
        (["--time", "ts = at", "--window", "ten"], "width 'ten' is not understood"),
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
