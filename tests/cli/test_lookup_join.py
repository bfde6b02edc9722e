"""`watersmeet lookup-join` with several relations."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import watersmeet as wm
from watersmeet.cli.main import run


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Orders, customers as a relation, products as rows in a file."""
    monkeypatch.chdir(tmp_path)
    table = pa.table({"n": [0, 1, 2], "customer": [1, 2, 9], "sku": [7, 8, 7]})
    pq.write_table(table, "orders.parquet")
    customers = pa.table({"id": [1, 2], "name": ["Ada", "Bo"]})
    wm.Relation.build(customers, on="id", path="customers.rel")
    pq.write_table(pa.table({"code": [7], "name": ["cup"]}), "products.parquet")
    return tmp_path


ON = ["--on", "customers:customer=id", "--on", "products:sku=code"]


@pytest.mark.parametrize(
    "how, rows",
    [
        ([], [(0, "Ada", "cup")]),
        (["--how", "left"], [(0, "Ada", "cup"), (1, "Bo", None), (2, None, "cup")]),
        (["--how", "customers:left"], [(0, "Ada", "cup"), (2, None, "cup")]),
        (["--how", "customers:inner", "--how", "left"], [(0, "Ada", "cup"), (1, "Bo", None)]),
    ],
)
def test_one_pass_through_several(orders: Path, how: list[str], rows: list[tuple[int, str, str]]) -> None:
    words = ["lookup-join", "orders.parquet", "customers.rel", "products.parquet", *ON, *how]
    assert run([*words, "--quiet", "-o", "out.parquet"]) == 0
    found = pq.read_table("out.parquet").sort_by("n").to_pylist()
    assert [(row["n"], row["name"], row["name_products"]) for row in found] == rows


def test_relations_can_be_named(orders: Path) -> None:
    words = ["lookup-join", "orders.parquet", "buyers=customers.rel", "goods=products.parquet"]
    on = ["--on", "buyers:customer=id", "--on", "goods:sku=code"]
    assert run([*words, *on, "--quiet", "-o", "out.parquet"]) == 0
    assert pq.read_table("out.parquet").column("name_goods").to_pylist() == ["cup"]


def test_a_path_with_an_equals_sign_is_a_path(orders: Path) -> None:
    Path("products.parquet").rename("day=1.parquet")
    words = ["lookup-join", "orders.parquet", "customers.rel", "day=1.parquet"]
    on = ["--on", "customers:customer=id", "--on", "day=1:sku=code"]
    assert run([*words, *on, "--quiet", "-o", "out.parquet"]) == 0
    assert pq.read_table("out.parquet").num_rows == 1


@pytest.mark.parametrize(
    "words, message",
    [
        (["customers.rel", "products.parquet", "--on", "sku"], "say for which relation"),
        (["customers.rel", "customers.rel", *ON], "two relations are called 'customers'"),
        (["customers.rel", "products.parquet", *ON, "--how", "outer"], "choose inner, left, semi, anti"),
        (["customers.rel", "products.parquet", *ON, "--suffixes", "_a", "_b"], "suffixes are for one relation"),
        (
            ["customers.rel", "products.parquet", ON[0], ON[1]],
            "to join products.parquet on: only a wm.Relation knows its own",
        ),
        (["nope.rel"], "nope.rel is neither a relation nor a file; correct the path"),
        (["customers.rel", "nope.rel"], "nope.rel is neither a relation nor a file; correct the path"),
    ],
)
def test_mistakes_are_one_sentence(
    orders: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lookup-join", "orders.parquet", *words]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
