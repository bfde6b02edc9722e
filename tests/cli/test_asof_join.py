"""`watersmeet asof-join`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from watersmeet.cli.main import run


def files(folder: Path) -> tuple[str, str]:
    trades = pa.table({"sym": ["a", "b", "a"], "ts": pa.array([9, 5, 3], pa.timestamp("s")), "price": [3, 2, 1]})
    quotes = pa.table({"sym": ["a", "b", "a"], "at": pa.array([8, 4, 1], pa.timestamp("s")), "bid": [30, 20, 10]})
    for name, table in (("trades", trades), ("quotes", quotes)):
        pq.write_table(table, folder / f"{name}.parquet")
    return str(folder / "trades.parquet"), str(folder / "quotes.parquet")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {1: 10, 2: 20, 3: 30}),
        (["--direction", "forward", "--how", "left"], {1: 30, 2: None, 3: None}),
        (["--tolerance", "1s", "--how", "left"], {1: None, 2: 20, 3: 30}),
        (["--lateness", "10s", "--lateness", "unlimited"], {1: 10, 2: 20, 3: 30}),
    ],
)
def test_files_joined_with_the_nearest(words: list[str], expected: dict[int, int | None], tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    told = ["--on", "sym", "--time", "ts = at", *words, "--quiet", "-o", str(out)]
    assert run(["asof-join", *files(tmp_path), *told]) == 0
    rows = pq.read_table(out)
    assert dict(zip(rows["price"].to_pylist(), rows["bid"].to_pylist(), strict=True)) == expected


def test_no_key_and_an_explanation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "asof-join", *files(tmp_path), "--time", "ts = at", "--how", "left"]) == 0
    assert "asof_join, left" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        (["--time", "ts"], "join column 'ts' is not in"),
        (["--time", "ts = sym"], "has no order that tells a time"),
        (["--time", "ts = at", "--tolerance=-1s"], "tolerance must be zero or more, not '-1s'"),
        (["--time", "ts = at", "--direction", "up"], "direction='up' is not understood"),
        (["--time", "ts = at", "--how", "full"], "how='full' is not a kind of as-of join"),
        ([], "--time"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["asof-join", *files(tmp_path), "--on", "sym", *words, "--quiet"]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
