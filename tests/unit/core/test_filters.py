"""Conditions that compare two columns, whatever their types and values."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import watersmeet as wm
from watersmeet.core.filters import bind, holds, parse_filter

MOST = (1 << 63) - 1


@pytest.mark.parametrize(
    ("left", "right", "less", "equal"),
    [
        (pa.array([MOST, 1, None]), pa.array([1.0, 1.0, 1.0]), [False, False, None], [False, True, None]),
        (pa.array([(1 << 24) + 1], pa.int32()), pa.array([1 << 24], pa.float32()), [False], [False]),
        (pa.array([1 << 63, 0], pa.uint64()), pa.array([-1, 0]), [False, False], [False, True]),
        (pa.array([-1, 0]), pa.array([1 << 63, 0], pa.uint64()), [True, False], [False, True]),
        (
            pa.array([Decimal(10) ** 37], pa.decimal128(38, 0)),
            pa.array([Decimal("1.5")], pa.decimal128(38, 20)),
            [False],
            [False],
        ),
        (  # 1,000 billion seconds are no nanoseconds of 64 bits
            pa.array([10**12, -1, -1], pa.timestamp("s")),
            pa.array([1, -(10**9), -(10**9) + 1], pa.timestamp("ns")),
            [False, False, True],
            [False, True, False],
        ),
        (
            pa.array([10**6, 1], pa.int32()).view(pa.date32()),
            pa.array([1, 86_400 * 10**9], pa.timestamp("ns")),
            [False, False],
            [False, True],
        ),
        (pa.array([10**15], pa.duration("s")), pa.array([1], pa.duration("ns")), [False], [False]),
        (pa.array([1.5], pa.float16()), pa.array([1]), [False], [False]),
        (pa.array(["a"], pa.string_view()), pa.array(["b"], pa.large_string()), [True], [False]),
    ],
)
def test_columns_of_two_types_are_compared_by_value(
    left: pa.Array, right: pa.Array, less: list[bool | None], equal: list[bool | None]
) -> None:
    rows = pa.record_batch([left, right], ["a", "b"])
    for condition, expected in (("a < b", less), ("a = b", equal), ("b > a", less)):
        bound = bind(parse_filter(condition), rows.schema, "it", "left")
        assert holds(bound, rows).to_pylist() == expected, condition


def test_columns_without_a_common_order_are_refused() -> None:
    for other in (pa.array(["a"]), pa.array([1], pa.timestamp("s")), pa.array([[1]])):
        schema = pa.record_batch([pa.array([1]), other], ["a", "b"]).schema
        with pytest.raises(wm.SpecError, match=r"cannot compare column 'a' \(int64\) with 'b' .*; cast one of them"):
            bind(parse_filter("a < b"), schema, "it", "left")


def test_a_query_that_compares_columns_of_two_types_takes_any_value() -> None:
    """Arrow alone fails on the first whole number that a double rounds, in the middle of a stream."""
    offers = pa.table({"id": [1, 2], "ts": [0, 0], "bid": [MOST, 3], "ask": [4.0, 4.0]})
    result = wm.window_queries(
        offers, offers, on="id", time="ts", queries=[wm.WindowQuery("below", 5, left="bid < ask")], memory="8 MiB"
    )
    assert result.table()["id"].to_pylist() == [2]


@pytest.mark.parametrize("kind", ["string_view", "runs", "dictionary of views", "views in structs", "views in lists"])
def test_queries_filter_and_divide_columns_of_any_encoding(kind: str) -> None:
    """Arrow takes no rows of views and runs, and compares no views with a list."""
    texts: list[str | None] = ["a", "a", "b", None]
    views = pa.array(texts, pa.string_view())
    column, condition, expected = {
        "string_view": (views, "v in ('b', 'c') or v > 'b' or v = v and k = 1", [1, 3]),
        "runs": (pc.run_end_encode(pa.array(texts)), "v = 'b' or v < 'aa' and not v = k2", [1, 2, 3]),
        "dictionary of views": (pa.DictionaryArray.from_arrays([0, 0, 1, None], views[1:3]), "v != 'a'", [3]),
        "views in structs": (pa.StructArray.from_arrays([views], ["text"]), "v is not null and k < 3", [1, 2]),
        "views in lists": (pa.array([[text] for text in texts], pa.list_(pa.string_view())), "k > 3", [4]),
    }[kind]
    rows = pa.table({"k": [1, 2, 3, 4], "k2": ["c"] * 4, "ts": [0, 0, 0, 0], "v": column})
    result = wm.window_queries(
        rows, rows, on="k", time="ts", queries=[wm.WindowQuery("some", 5, left=condition)], memory="8 MiB"
    )
    found = result.tables()["some"]
    assert sorted(found["k"].to_pylist()) == expected
    assert found["v"].type == column.type
    values = column.to_pylist()
    assert [row["v"] for row in found.to_pylist()] == [values[k - 1] for k in found["k"].to_pylist()]


@pytest.mark.parametrize(
    ("condition", "passing"),
    [
        ("v < 1e400", [1, 2, 3]),
        ("v != -1e400", [1, 2, 3]),
        ("v in (1.00, 1e400)", [1]),
        ("v > 1e300", []),
        ("v > 1e-300 and v < 1.000000000000000000000000000001", [1]),
        ("v = 1.000000000000000000000000000001", []),
        ("v >= 1.994 and v < 1.999", [2]),
        ("v = 90071992547409933.27", [3]),
        ("v != 90071992547409933.27", [1, 2]),
        ("i = 90071992547409933.00", [3]),
        ("i < 90071992547409933.5 and i > 90071992547409932.5", [3]),
        (f"v < {'9' * 90}", [1, 2, 3]),
        (f"v < {'9' * 5000} and i > -{'9' * 5000}", [1, 2, 3]),
        (f"v > 1.{'0' * 5000}1", [2, 3]),
    ],
)
def test_numbers_are_compared_with_decimals_as_they_are_written(condition: str, passing: list[int]) -> None:
    values = [Decimal("1.00"), Decimal("1.995"), Decimal("90071992547409933.27")]
    rows = pa.record_batch(
        [pa.array(values, pa.decimal128(22, 3)), pa.array([1, 2, 90071992547409933])], names=["v", "i"]
    )
    found = holds(bind(parse_filter(condition), rows.schema, "it", "left"), rows).to_pylist()
    assert [number for number, passes in enumerate(found, 1) if passes] == passing
