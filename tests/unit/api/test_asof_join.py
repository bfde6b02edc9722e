"""`wm.asof_join` on in-process data: against DuckDB and pandas, types of time, and what is refused."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import watersmeet as wm
from watersmeet.records.asof_times import disorder


def inputs(seed: int, rows: int = 400, nulls: float = 0.0, ties: int = 3) -> tuple[pa.Table, pa.Table]:
    """Two tables in no order, with times that repeat and keys of which some have no partner."""
    rng = np.random.default_rng(seed)

    def side(name: str) -> pa.Table:
        gone = [rng.random(rows) < nulls for _ in range(2)]
        return pa.table({
            "k": pa.array(rng.integers(0, 12, rows), mask=gone[0]),
            "t": pa.array(rng.integers(0, rows // ties, rows), mask=gone[1]),
            name: np.arange(rows),
        })  # fmt: skip

    return side("a"), side("b").slice(0, rows // 2)


def pairs(table: pa.Table) -> list[tuple[int, int | None]]:
    return sorted(zip(table.column("a").to_pylist(), table.column("b").to_pylist(), strict=True), key=str)


def by_pandas(left: pa.Table, right: pa.Table, direction: str, tolerance: int | None, how: str) -> Any:
    """The partner of each left row; pandas wants both sorted by time, and keeps the order of rows of one time."""
    frames = [
        table.to_pandas(types_mapper=pd.ArrowDtype).astype({"k": "int64", "t": "int64"}).sort_values("t", kind="stable")
        for table in (left, right)
    ]
    found = pd.merge_asof(*frames, on="t", by="k", direction=direction, tolerance=tolerance)
    rows = [(int(a), None if pd.isna(b) else int(b)) for a, b in zip(found["a"], found["b"], strict=True)]
    return sorted((row for row in rows if how == "left" or row[1] is not None), key=str)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
def test_every_row_as_pandas_has_it(direction: str, how: str, seed: int) -> None:
    """Ties, too: the last of right rows of one time, looking forward the first, and the earlier of two as near."""
    left, right = inputs(seed)
    tolerance = [None, 0, 2, 7][seed % 4]
    found = wm.asof_join(left, right, on="k", time="t", direction=direction, tolerance=tolerance, how=how).table()
    assert pairs(found) == by_pandas(left, right, direction, tolerance, how)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize(("direction", "sign"), [("backward", ">="), ("forward", "<=")])
def test_every_row_as_duckdb_has_it(direction: str, sign: str, how: str, seed: int) -> None:
    """NULL times and NULL keys have no partner. Of right rows of one time DuckDB takes any: times are compared."""
    left, right = inputs(seed, nulls=0.1)
    kind = "LEFT" if how == "left" else ""
    query = f"SELECT a, r.t FROM the_left l ASOF {kind} JOIN the_right r ON l.k = r.k AND l.t {sign} r.t"
    expected = connected(left, right).sql(query).fetchall()
    found = wm.asof_join(left, right, on="k", time="t", direction=direction, how=how).table()
    assert sorted(zip(found["a"].to_pylist(), found["t_right"].to_pylist(), strict=True), key=str) == sorted(
        expected, key=str
    )


def connected(left: pa.Table, right: pa.Table) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.register("the_left", left)
    connection.register("the_right", right)
    return connection


def test_files_in_no_order_are_sorted_within_the_memory(tmp_path: Path) -> None:
    left, right = inputs(3, rows=60_000, ties=2)
    for name, table in (("left", left), ("right", right)):
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=5_000)
    result = wm.asof_join(
        tmp_path / "left.parquet", tmp_path / "right.parquet", on="k", time="t", how="left", memory="2 MiB"
    )
    assert pairs(result.table()) == by_pandas(left, right, "backward", None, "left")
    assert result.progress.spilled > 0


def test_several_keys_names_and_no_key() -> None:
    trades = pa.table({"sym": ["a", "a", "b"], "venue": [1, 2, 1], "at": [5, 5, 5]})
    quotes = pa.table({"symbol": ["a", "a", "b"], "venue": [1, 2, 2], "ts": [1, 2, 3], "bid": [10, 20, 30]})
    found = wm.asof_join(trades, quotes, on=["sym = symbol", "venue"], time="at = ts").table()
    assert found.column_names == ["sym", "venue", "at", "symbol", "ts", "bid"]
    assert sorted(found["bid"].to_pylist()) == [10, 20]
    found = wm.asof_join(trades, quotes, time="at = ts").table()
    assert found["bid"].to_pylist() == [30, 30, 30]


TIMES: dict[str, tuple[list[Any], list[Any], pa.DataType, pa.DataType, Any]] = {
    "dates": ([date(2024, 1, 5)], [date(2024, 1, 1), date(2024, 1, 9)], pa.date32(), pa.date64(), timedelta(days=4)),
    "units": (
        [datetime(2024, 1, 5)], [datetime(2024, 1, 4, 23, 59, 59, 5000), datetime(2024, 1, 5, 0, 0, 0, 999_999)],
        pa.timestamp("s"), pa.timestamp("us"), "1 s",
    ),
    "zones": (
        [datetime(2024, 1, 5)], [datetime(2024, 1, 4), datetime(2024, 1, 6)],
        pa.timestamp("ms", "UTC"), pa.timestamp("ns", "Europe/Berlin"), "1 day",
    ),
    "floats": ([0.5], [0.25, 0.75], pa.float64(), pa.float32(), 0.25),
    "decimals": ([Decimal("0.5")], [Decimal("0.25"), Decimal("0.75")], pa.decimal128(5, 1), pa.decimal128(6, 2), 0.25),
    "integers": ([7], [6, 8], pa.int8(), pa.uint16(), 1),
    "unsigned": ([2**63 + 7], [2**63 + 6, 2**63 + 8], pa.uint64(), pa.uint64(), 1),
}  # fmt: skip


@pytest.mark.parametrize("kind", TIMES)
def test_types_of_time(kind: str) -> None:
    own, others, left_type, right_type, tolerance = TIMES[kind]
    left, right = pa.table({"t": pa.array(own, left_type)}), pa.table({"u": pa.array(others, right_type)})
    for direction, place in (("backward", 0), ("forward", 1), ("nearest", 0)):
        found = wm.asof_join(left, right, time="t = u", direction=direction, tolerance=tolerance, how="left").table()
        assert found["u"].combine_chunks().equals(right["u"].combine_chunks()[place : place + 1]), direction


def test_times_that_are_not_numbers_have_no_partner() -> None:
    left = pa.table({"t": [1.0, float("nan"), None, float("inf")]})
    right = pa.table({"t": [float("nan"), 0.5, None, float("-inf")]})
    found = wm.asof_join(left, right, time="t", how="left").table()
    partners = dict(zip(map(str, found["t"].to_pylist()), found["t_right"].to_pylist(), strict=True))
    assert partners == {"1.0": 0.5, "nan": None, "None": None, "inf": 0.5}


def test_tables_in_memory_are_measured_and_answered_before_the_end() -> None:
    """What is out of order by little need not wait for the end of the right input."""
    rng = np.random.default_rng(1)
    times = np.arange(200_000) + rng.integers(0, 50, 200_000)
    left, right = pa.table({"k": times % 7, "t": times}), pa.table({"k": times % 5, "t": times})
    result = wm.asof_join(left, right, on="k", time="t", memory="8 MiB")
    assert pairs_of_times(result.table()) == pairs_of_times(
        wm.asof_join(left, right, on="k", time="t", lateness="unlimited").table()
    )
    assert result.progress.late == (0, 0)


def pairs_of_times(table: pa.Table) -> list[tuple[int, int]]:
    return sorted(zip(table["t"].to_pylist(), table["t_right"].to_pylist(), strict=True))


def test_how_far_times_are_out_of_order() -> None:
    def measured(values: list[Any], type_: pa.DataType) -> Any:
        return disorder(pa.chunked_array([pa.array(values[:2], type_), pa.array(values[2:], type_)]))

    assert measured([3, 1, None, 7, 2], pa.int16()) == 5
    assert measured([3, 1, None, 7, 2], pa.timestamp("ms")) == timedelta(milliseconds=5)
    assert measured([0, 1, 1, 1001], pa.timestamp("ns")) == timedelta()
    assert measured([7, 0, 1, 2], pa.timestamp("ns")) == timedelta(microseconds=1), "rounded up"
    assert measured([0.5, 0.5, None, float("nan"), 1.5], pa.float64()) == 0
    assert measured([0.5, 0.75, 0.6], pa.float64()) is None, "fractions are rounded"
    assert measured([-(2**62), 2**62], pa.int64()) is None
    assert measured([], pa.int64()) == 0


@pytest.mark.parametrize("late", ["keep", "drop"])
def test_rows_that_come_late(late: str) -> None:
    """A left row that comes late has its partner if nothing newer has passed since; a right row has none."""
    left = pa.table({"k": [1, 1, 1, 1], "t": [10, 20, 15, 5], "a": [0, 1, 2, 3]})
    right = pa.table({"k": [1, 1, 1], "t": [8, 30, 9], "b": [0, 1, 2]})
    result = wm.asof_join(left, right, on="k", time="t", how="left", lateness=0, late=late)
    kept = [(2, 0), (3, None)] if late == "keep" else []
    assert pairs(result.table()) == [(0, 0), (1, 0), *kept]
    assert result.progress.late == (2, 1)


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
@pytest.mark.parametrize("tolerance", [None, 0.0, 1.5])
@pytest.mark.parametrize("swept", [False, True])
def test_equal_times_are_partners_at_the_ends_of_time_too(direction: str, tolerance: float | None, swept: bool) -> None:
    ends = [-np.inf, 2.0, np.inf]
    times = ends if swept else ends[::-1]  # rows in order are looked up in one pass over both inputs
    left, right = (pa.table({"k": [1] * 3, "t": times, name: times}) for name in "ab")
    result = wm.asof_join(left, right, on="k", time="t", direction=direction, tolerance=tolerance, how="left")
    assert sorted(pairs(result.table())) == [(end, end) for end in ends]


def test_late_rows_may_end_the_join() -> None:
    left, right = pa.table({"t": [10, 5]}), pa.table({"t": [1]})
    with pytest.raises(wm.LateRowError, match=r"row 2 of left comes later than lateness=0 allows"):
        wm.asof_join(left, right, time="t", lateness=0, late="error").table()


GOOD = {"on": "k", "time": "t"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"time": "name"}, "column 'name' of left (string) has no order that tells a time; take numbers, dates or"),
    ({"time": "t = d"}, "tell times that cannot be compared; cast one of them first"),
    ({"time": "nothing"}, "join column 'nothing' is not in left; it has k, t, name"),
    ({"on": "other"}, "join column 'other' is not in left"),
    ({"time": None}, "an as-of join needs time=..., the column that tells it in both inputs"),
    ({"direction": "sideways"}, "direction='sideways' is not understood; write 'backward', 'forward' or 'nearest'"),
    ({"tolerance": -1}, "tolerance must be zero or more, not -1"),
    ({"tolerance": "-5 s"}, "tolerance must be zero or more, not '-5 s'"),
    ({"tolerance": "5 s"}, "does not go with a time column of int64; give a number of units"),
    ({"time": "d", "tolerance": 5}, "does not go with a time column of date32[day]; give a length of time such as"),
    ({"tolerance": []}, "tolerance [] is not understood; write a length of time such as '5 s'"),
    ({"lateness": timedelta(seconds=-1)}, "lateness must be zero or more"),
    ({"lateness": (1, 2, 3)}, "there are two inputs, and lateness has 3 values"),
    ({"late": "never"}, "late='never' is not understood; write 'keep', 'drop' or 'error'"),
    ({"how": "full"}, "how='full' is not a kind of as-of join; write 'inner' or 'left'"),
    ({"on": wm.band("k", 1)}, "an as-of join takes no band; tolerance= bounds how far apart the times may be"),
    ({"size": 1}, "has no option 'size'"),
]


@pytest.mark.parametrize(("asked", "sentence"), BAD, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_refused_with_a_sentence(asked: dict[str, Any], sentence: str) -> None:
    table = pa.table({"k": [1], "t": [1], "name": ["x"], "d": pa.array([1], pa.int32()).cast(pa.date32())})
    left = table if "d" in str(asked.get("time")) else table.drop_columns("d")
    with pytest.raises(wm.SpecError) as error:
        wm.asof_join(left, table, **{**GOOD, **asked})
    assert sentence in str(error.value)


def test_it_explains_itself() -> None:
    table = pa.table({"k": [1], "t": [1]})
    told = str(wm.asof_join(table, table, on="k", time="t", tolerance=3, how="left").explain())
    assert "asof_join, left" in told and "backward by t within 3" in told and "by       asof" in told
