"""`watersmeet multijoin`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from watersmeet.cli.main import run


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Orders, their items and the items' parts; and views, clicks and sales with their times."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"id": [1, 2], "buyer": ["Ada", "Bo"]}), "orders.parquet")
    csv.write_csv(pa.table({"order_id": [1, 1, 2], "part": [7, 8, 8]}), "b.csv")
    pq.write_table(pa.table({"part": [8], "name": ["cup"]}), "parts.parquet")
    pq.write_table(pa.table({"ad": [1, 2], "at": [0, 5]}), "views.parquet")
    pq.write_table(pa.table({"ad": [1, 2], "at": [8, 90]}), "clicks.parquet")
    pq.write_table(pa.table({"ad": [1, 2], "at": [9, 91]}), "sales.parquet")
    return tmp_path


ORDERS = ["orders.parquet", "items=b.csv", "parts.parquet"]
ON = ["--on", "orders.id = items.order_id", "--on", "items.part = parts.part"]
ADS = ["views.parquet", "clicks.parquet", "sales.parquet", "--on", "views.ad = clicks.ad", "--on", "clicks.ad=sales.ad"]


@pytest.mark.parametrize("algorithm", ["auto", "confluence", "mjoin", "tree", "miner"])
def test_several_files_are_joined_into_one(files: Path, algorithm: str) -> None:
    words = ["multijoin", *ORDERS, *ON, "--memory", "8MiB", "--algorithm", algorithm]
    assert run([*words, "--quiet", "-o", "out.parquet"]) == 0
    found = pq.read_table("out.parquet").select(["buyer", "name"]).sort_by("buyer").to_pylist()
    assert found == [{"buyer": "Ada", "name": "cup"}, {"buyer": "Bo", "name": "cup"}]


def test_rows_of_one_input_come_out_in_any_case(files: Path) -> None:
    assert run(["multijoin", *ORDERS, *ON, "--how", "items:left", "--quiet", "-o", "out.parquet"]) == 0
    found = pq.read_table("out.parquet").select(["order_id", "part", "name"]).to_pylist()
    assert sorted(map(str, found)) == [
        "{'order_id': 1, 'part': 7, 'name': None}",
        "{'order_id': 1, 'part': 8, 'name': 'cup'}",
        "{'order_id': 2, 'part': 8, 'name': 'cup'}",
    ]


def test_without_output_the_first_rows_are_shown(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["multijoin", *ORDERS, *ON, "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "buyer" in said and "cup" in said and "2 rows" in said


@pytest.mark.parametrize(
    "words, ads",
    [
        (["--window", "10", "--time", "at"], [1]),
        (["--window", "10", "--window", "views:90", "--time", "at"], [1, 2]),
        (["--window", "views:90", "--window", "clicks:1", "--window", "sales:0", "--time", "at"], [1, 2]),
        (["--window", "3 rows"], [1, 2]),
        (["--band", "views.at = sales.at:9", "--algorithm", "miner"], [1]),
    ],
)
def test_windows_and_bands(files: Path, words: list[str], ads: list[int]) -> None:
    """Integers tell the time here; the second ad was clicked 85 and bought 86 units after it was seen."""
    assert run(["multijoin", *ADS, *words, "--quiet", "-o", "out.parquet"]) == 0
    assert sorted(pq.read_table("out.parquet").column("ad").to_pylist()) == ads


@pytest.mark.parametrize(
    "words, message",
    [
        (ORDERS, "the join needs conditions, such as --on 'orders.id = items.id'"),
        ([*ORDERS, *ON[:2]], "nothing joins parts with"),
        (["orders.parquet", "orders.parquet", *ON], "two inputs are called 'orders'"),
        ([*ORDERS, *ON, "--algorithm", "rpj"], "rpj"),
        ([*ORDERS, "--on", "orders.id = items.nowhere"], "join column 'nowhere' is not in items"),
        ([*ORDERS, *ON, "--band", "orders.id"], "--band 'orders.id' is not understood"),
        ([*ADS, "--window", "10", "--window", "20"], "--window 20: say for which input, such as --window views:20"),
        ([*ADS, "--window", "10"], "time"),
        (["orders.parquet", "missing.parquet", "--on", "orders.id = missing.id"], "missing.parquet"),
    ],
)
def test_mistakes_are_one_sentence(
    files: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["multijoin", *words]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
