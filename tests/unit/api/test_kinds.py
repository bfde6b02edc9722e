"""Every kind of join by `wm.join`: what DuckDB says, whatever the memory and the threads; and when rows come."""

from __future__ import annotations

import datetime as dt
import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.core.errors import SpecError

COLUMNS = "k, a, b"
SQL = {
    "left": f"select {COLUMNS} from l left join r using (k)",
    "right": f"select {COLUMNS} from l right join r using (k)",
    "full": f"select {COLUMNS} from l full join r using (k)",
    "semi": "select * from l semi join r using (k)",
    "anti": "select * from l anti join r using (k)",
}


def keys(kind: str, rng: np.random.Generator, rows: int, side: int) -> pa.Array:
    numbers = rng.integers(0, rows // 2, rows)
    missing = rng.random(rows) < 0.05
    if kind == "integers":
        return pa.array(numbers, pa.int32() if side else pa.int64(), mask=missing)
    if kind == "strings":
        return pa.array([f"key {number}" for number in numbers], mask=missing)
    special = np.array([np.nan, 0.0, -0.0, np.inf, -np.inf])
    return pa.array(np.where(rng.random(rows) < 0.02, rng.choice(special, rows), numbers / 4), mask=missing)


def tables(kind: str, rows: int = 3_000) -> tuple[pa.Table, pa.Table]:
    rng = np.random.default_rng(len(kind))
    l, r = (pa.table({"k": keys(kind, rng, rows, side), "ab"[side]: np.arange(rows)}) for side in (0, 1))
    return l, r


def multiset(table: pa.Table) -> Counter[Any]:
    """Rows, -0.0 and 0.0 being one: which of two equal keys stands in a column is not what this is about."""
    columns = [
        [0.0 if value == 0 else str(value) for value in table.column(i).to_pylist()] for i in range(table.num_columns)
    ]
    return Counter(zip(*columns, strict=True))


@pytest.mark.parametrize("how", SQL)
@pytest.mark.parametrize("kind", ["integers", "strings", "floats"])
@pytest.mark.parametrize("memory", ["64 MiB", "256 KiB"])
def test_every_kind_gives_what_duckdb_gives(how: str, kind: str, memory: str) -> None:
    l, r = tables(kind, 12_000)  # either alone is more than the smaller memory, whichever comes first
    expected = duckdb.sql(SQL[how]).arrow()
    expected = expected if isinstance(expected, pa.Table) else expected.read_all()
    result = wm.join(l, r, on="k", how=how, memory=memory)
    assert multiset(result.table()) == multiset(expected)
    assert (result.progress.spilled > 0) == (memory == "256 KiB")


@pytest.mark.parametrize("how", SQL)
def test_threads_and_bands_give_the_same(how: str) -> None:
    l, r = tables("integers", 20_000)
    one, many = (wm.join(l, r, on="k", how=how, threads=threads).table() for threads in (1, 3))
    assert multiset(one) == multiset(many)
    l, r = l.slice(0, 1_000), r.slice(0, 1_000)
    within = "abs(l.a - r.b) <= 2"
    sql = {"semi": f"exists (from r where {within})", "anti": f"not exists (from r where {within})"}
    query = f"from l where {sql[how]}" if how in sql else f"from l {how} join r on {within}"
    expected = duckdb.sql(query).arrow()
    expected = expected if isinstance(expected, pa.Table) else expected.read_all()
    found = wm.join(l, r, on=wm.band("a = b", 2), how=how, memory="256 KiB").table()
    assert multiset(found) == multiset(expected)


def test_a_row_without_a_partner_comes_as_soon_as_the_other_input_has_ended() -> None:
    """The left input goes on only when its first row has come out."""
    came = threading.Event()

    def left() -> Iterator[dict[str, int]]:
        yield {"k": 1, "a": 1}
        assert came.wait(60)
        yield {"k": 2, "a": 2}

    rows = []
    for batch in wm.join(left(), [{"k": 2, "b": 5}], on="k", how="left", memory="8 MiB"):
        rows += batch.to_pylist()
        came.set()
    assert rows == [{"k": 1, "a": 1, "b": None}, {"k": 2, "a": 2, "b": 5}]


def test_a_row_with_null_comes_at_once() -> None:
    came = threading.Event()

    def right() -> Iterator[dict[str, int]]:
        yield {"k": 1, "b": 1}
        assert came.wait(60)

    rows = []
    for batch in wm.join([{"k": None, "a": 1}, {"k": 3, "a": 2}], right(), on="k", how="anti", memory="8 MiB"):
        rows += batch.to_pylist()
        came.set()
    assert rows == [{"k": None, "a": 1}, {"k": 3, "a": 2}]


MANY = "select o.id, o.buyer, i.part, p.name from o left join (i join p using (part)) on o.id = i.id"


def orders_items_parts(rows: int = 2_000) -> dict[str, pa.Table]:
    rng = np.random.default_rng(5)

    def column(most: int, count: int, kind: pa.DataType | None = None) -> pa.Array:
        return pa.array(rng.integers(0, most, count), kind, mask=rng.random(count) < 0.05)

    return {
        "orders": pa.table({"id": column(rows, rows), "buyer": np.arange(rows)}),
        "items": pa.table({"id": column(rows, rows, pa.int32()), "part": column(rows, rows)}),
        "parts": pa.table({"part": column(rows, rows), "name": [f"part {i}" for i in range(rows)]}),
    }


@pytest.mark.parametrize("memory", ["64 MiB", "512 KiB"])
def test_one_of_several_inputs_is_preserved_as_duckdb_does(memory: str) -> None:
    tables = orders_items_parts(8_000)
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name[0], table)
        expected = connection.sql(MANY).arrow()
        expected = expected if isinstance(expected, pa.Table) else expected.read_all()
    on = ["orders.id = items.id", "items.part = parts.part"]
    result = wm.multijoin(tables, on=on, how={"orders": "left"}, memory=memory)
    found = result.table().select(["id", "buyer", "part", "name"])
    assert multiset(found) == multiset(expected)
    assert found["part"].null_count > 500
    assert (result.progress.spilled > 0) == (memory == "512 KiB")


def test_a_preserved_input_has_its_own_keys_in_the_output() -> None:
    tables = {"a": pa.table({"k": [1]}), "b": pa.table({"k": [2], "v": [7]})}
    assert wm.multijoin(tables, on="a.k = b.k", how={"b": "left"}).table().to_pylist() == [{"k": 2, "v": 7}]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("left", "how='left' does not say of which input; write how={'orders': 'left'}"),
        ({"orders": "left", "items": "left"}, "preserves 2 inputs, and a join of several inputs preserves one"),
        ({"order": "left"}, "names 'order', which is no input; the inputs are orders, items, parts"),
        ({"orders": "anti"}, "can be 'left' or 'inner' for one, not 'anti'"),
    ],
)
def test_what_several_inputs_cannot_be_is_refused(how: Any, sentence: str) -> None:
    on = ["orders.id = items.id", "items.part = parts.part"]
    with pytest.raises(SpecError, match=re.escape(sentence)):
        wm.multijoin(orders_items_parts(10), on=on, how=how)


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ([pa.table({"k": [1]})] * 2, "inputs must be a dict by name, such as {'orders': orders, 'items': items}"),
        ({1: pa.table({"k": [1]}), "b": pa.table({"k": [1]})}, "inputs has the name 1, and a name is a string"),
        ({"": pa.table({"k": [1]}), "b": pa.table({"k": [1]})}, "inputs has the name '', and a name is a string"),
    ],
)
def test_inputs_without_names_are_refused(inputs: Any, sentence: str) -> None:
    with pytest.raises(SpecError, match=re.escape(sentence)):
        wm.multijoin(inputs, on="a.k = b.k")
    with pytest.raises(SpecError, match=re.escape(sentence)):
        wm.explain(inputs, on="a.k = b.k", rows={"b": 1})


def test_other_joins_of_several_inputs_refuse_to_preserve_one() -> None:
    on, how = ["orders.id = items.id", "items.part = parts.part"], {"orders": "left"}
    for algorithm in ("mjoin", "tree", "miner"):
        with pytest.raises(SpecError, match=f"{algorithm} finds pairs, and cannot do how='left'"):
            wm.multijoin(orders_items_parts(10), on=on, how=how, algorithm=algorithm)
    with pytest.raises(SpecError, match="by windows finds results, and cannot preserve orders"):
        wm.multijoin(orders_items_parts(10), on=on, how=how, window=wm.rows(5))


NEVER = dt.datetime(9999, 12, 31)
FAR = {
    "timestamps": (pa.array([NEVER], pa.timestamp("us")), pa.array([0], pa.timestamp("ns"))),
    "durations": (pa.array([10**11], pa.duration("s")), pa.array([1], pa.duration("ns"))),
    "in dictionaries": (
        pa.array([NEVER], pa.timestamp("us")).dictionary_encode(),
        pa.array([0], pa.timestamp("ns")).dictionary_encode(),
    ),
}


@pytest.mark.parametrize("verb", ["join", "window_join"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", FAR)
def test_a_time_that_the_finer_unit_does_not_reach_is_never_another_time(name: str, swapped: bool, verb: str) -> None:
    far, near = FAR[name]
    inputs = [pa.table({"k": each, "t": [1]}) for each in ((near, far) if swapped else (far, near))]
    how: dict[str, Any] = {"how": "full", "memory": "8 MiB"}
    result = (
        wm.window_join(*inputs, on="k", time="t", window=5, **how)
        if verb != "join"
        else wm.join(*inputs, on="k", **how)
    )
    side = "right" if swapped else "left"
    sentence = f"one column of 'k' of {side} ({far.type})"
    with pytest.raises(
        SpecError, match=f"{re.escape(sentence)}.*a value of {side} is beyond .*; cast both to a coarser unit"
    ):
        result.table()


def test_times_that_the_finer_unit_reaches_are_what_they_were() -> None:
    coarse, fine = (
        pa.table({"k": pa.array([1, 2], pa.timestamp("s"))}),
        pa.table({"k": pa.array([2 * 10**9, 5], pa.timestamp("ns"))}),
    )
    column = wm.join(coarse, fine, on="k", how="full").table().column("k")
    assert column.type == pa.timestamp("ns")
    assert sorted(column.cast(pa.int64()).to_pylist()) == [5, 10**9, 2 * 10**9]


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", "c"]), ["a", "b", "c"]),
        (pa.array(["a", "b"], pa.string_view()).dictionary_encode(), pa.array(["b", "c"]), ["a", "b", "c"]),
        (pa.array([b"a", b"b"], pa.binary_view()), pa.array([b"b", b"c"]), [b"a", b"b", b"c"]),
        (
            pa.array([dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
            pa.array([dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2, 1)], pa.timestamp("us")),
            [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2), dt.datetime(2024, 1, 2, 1)],
        ),
        (
            pa.array([3_600, 7_200], pa.timestamp("s", "UTC")),
            pa.array([7_200_000, 9_000_000], pa.timestamp("ms", "Europe/Berlin")),
            [dt.datetime(1970, 1, 1, *clock, tzinfo=dt.UTC) for clock in ((1, 0), (2, 0), (2, 30))],
        ),
    ],
)
def test_keys_that_are_compared_become_one_column(left: pa.Array, right: pa.Array, found: list[Any]) -> None:
    for inputs in ((left, right), (right, left)):
        result = wm.join(*(pa.table({"k": each}) for each in inputs), on="k", how="full", memory="8 MiB")
        assert sorted(result.table().column("k").to_pylist()) == found


def test_integers_become_doubles_even_if_their_last_digits_go() -> None:
    inputs = pa.table({"k": [(1 << 53) + 1]}), pa.table({"k": [0.5]})
    assert sorted(wm.join(*inputs, on="k", how="full").table().column("k").to_pylist()) == [0.5, float(1 << 53)]


def test_kinds_that_cannot_be_are_refused() -> None:
    l, r = tables("integers", 10)
    with pytest.raises(SpecError, match="there is no how='outer'; choose inner, left, right, full, semi or anti"):
        wm.join(l, r, on="k", how="outer")
    with pytest.raises(
        SpecError, match="rpj finds pairs, and cannot do how='anti'; use algorithm='confluence' or 'auto'"
    ):
        wm.join(l, r, on="k", how="anti", algorithm="rpj")
