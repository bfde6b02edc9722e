"""Conditions on rows: what they mean beside DuckDB's SQL, what cells make of many of them, and what is refused."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.errors import SpecError
from watersmeet.core.filters import bind, holds, parse_filter
from watersmeet.records.cells import Cells

CONDITIONS = (
    "i > 3", "i >= 3.5", "i != 2.5", "i = 2.5", "i < 900000000000000000000", "i = -1", "i in (1, 2, 2.5)",
    "i not in (3, 4)", "u < 200", "u > -1", "f <= 0.5", "f = 0.25", "f in (0.25, 1)", "s = 'it''s'", "s <> 'b'",
    "s in ('a', 'b')", "s < 'b'", "b = true", "b != false", "d >= '2024-01-03'", "ts < '2024-01-02 12:00:00'",
    "m > 1.25", "m = 2", "i is null", "s is not null", "i < u", "f > i and s = 'a'", "not (i > 3 or s = 'a')",
    "i > 1 and i <= 6 and s = 'b' and b = false", "3 < i", '"a column" >= 2', "not not i = 1",
    "(i = 1 or i = 5) and (s = 'a' or s is null)", "i > 2 OR s = 'a' AND b = TRUE",
    "f not in (0.25, 1)", "f > 0 and g < 1", "f > g or i = 1",
    *(f"{negated}{left} {sign} {right}" for negated in ("", "not ") for sign in ("=", "!=", "<", "<=", ">", ">=")
      for left, right in (("f", "1"), ("f", "0"), ("g", "1e999"), ("f", "g"), ("g", "i"), ("f", "m"), ("f", "f"))),
)  # fmt: skip
FLOATS = [-1.5, -0.0, 0.0, 0.25, 0.5, 1.0, 7.0, float("nan"), float("inf"), float("-inf")]


def table(rows: int = 400, nulls: float = 0.15, seed: int = 3) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)

    def column(values: list[Any], type_: pa.DataType) -> pa.Array:
        found = [values[place] for place in rng.integers(0, len(values), rows).tolist()]
        return pa.array([None if rng.random() < nulls else value for value in found], type_)

    strings = column(["a", "b", "c", "it's", ""], pa.string())
    return pa.record_batch({
        "i": column(list(range(-2, 9)), pa.int8()),
        "u": column([0, 5, 200, 255], pa.uint8()),
        "f": column(FLOATS, pa.float64()),
        "g": column(FLOATS, pa.float32()).dictionary_encode(),
        "s": strings.dictionary_encode(),
        "b": column([True, False], pa.bool_()),
        "d": column([date(2024, 1, day) for day in range(1, 6)], pa.date32()),
        "ts": column([datetime(2024, 1, 1) + timedelta(hours=7 * n) for n in range(8)], pa.timestamp("us")),
        "m": column([Decimal("1.00"), Decimal("1.25"), Decimal("2.00")], pa.decimal128(6, 2)),
        "a column": column([1, 2, 3], pa.int64()),
    })  # fmt: skip


def bound(text: str, batch: pa.RecordBatch) -> Any:
    return bind(parse_filter(text), batch.schema, "the filter", "left")


@pytest.mark.parametrize("text", CONDITIONS)
def test_a_condition_means_what_it_means_in_sql(text: str) -> None:
    rows = table()
    with duckdb.connect() as connection:
        connection.register("inputs", pa.Table.from_batches([rows]))
        expected = [value for (value,) in connection.sql(f"SELECT ({text}) FROM inputs").fetchall()]
    assert holds(bound(text, rows), rows).to_pylist() == expected


@pytest.mark.parametrize("most", [4, 4096])
def test_cells_tell_of_many_conditions_what_each_tells_of_itself(most: int) -> None:
    """Batch after batch, with cells that were seen before and cells that were forgotten."""
    first = table()
    conditions = [bound(text, first) for text in CONDITIONS]
    cells = Cells(first.schema, conditions, most)
    known: list[bytes] = []

    def number(sets: Any) -> Any:
        for words in sets:
            if words.tobytes() not in known:
                known.append(words.tobytes())
        return np.array([known.index(words.tobytes()) for words in sets], np.int32)

    for seed in range(4):
        batch = table(seed=seed).slice(seed, 300)
        classes = cells.classes(batch, number)
        passed = np.array([np.unpackbits(np.frombuffer(each, np.uint8), bitorder="little") for each in known])[classes]
        for place, condition in enumerate(conditions):
            expected = [value is True for value in holds(condition, batch).to_pylist()]
            assert passed[:, place].astype(bool).tolist() == expected, CONDITIONS[place]


def test_nan_is_above_infinity_and_equals_itself() -> None:
    batch = pa.record_batch({"f": pa.array([float("nan"), float("inf"), float("-inf"), 1.0, None], pa.float32())})
    texts = ["f > 1e30", "f != 1", "f < 0", "f <= 1", "not f = 1", "f = 0.1"]
    cells = Cells(batch.schema, [bound(text, batch) for text in texts], 16)
    classes = cells.classes(batch, lambda sets: sets[:, 0].astype(np.int32))
    assert [format(passed, "06b") for passed in classes] == ["010011", "010011", "011110", "001000", "000000"]


def test_more_cells_than_words_can_number_are_asked_row_by_row() -> None:
    rng = np.random.default_rng(9)
    batch = pa.record_batch({f"c{n}": pa.array(rng.integers(0, 300, 200)) for n in range(12)})
    texts = [f"c{n % 12} > {n % 290}" for n in range(1200)]
    conditions = [bound(text, batch) for text in texts]
    found: dict[int, bytes] = {}

    def number(sets: Any) -> Any:
        start = len(found)
        found.update({start + place: words.tobytes() for place, words in enumerate(sets)})
        return np.arange(start, len(found), dtype=np.int32)

    classes = Cells(batch.schema, conditions, 64).classes(batch, number)
    for place in range(0, 1200, 97):
        bits = [found[int(each)][place // 8] >> place % 8 & 1 for each in classes]
        assert bits == holds(conditions[place], batch).cast(pa.int8()).to_pylist()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the filter must be a condition such as 'amount > 100', not ''"),
        ("i >", "breaks off; a value or a column should follow"),
        ("i > 1 s = 2", "should end before 's', or go on with and, or"),
        ("i ; 1", "is not understood from '; 1' on"),
        ("i = null", "compares with null, which nothing equals; write is null, or is not null"),
        ("1 = 2", "compares two values, and no column"),
        ("(i = 1", r"lacks a '\)'"),
        ("i in (1, s)", "has a column among the values of in"),
        ("x = 1", "the filter asks for column 'x', which is not in left; it has i, u"),
        ("s = 1", r"compares column 's' \(string\) with 1; write the value as 'text'"),
        ("i = 'a'", r"compares column 'i' \(int8\) with 'a'; write the number without quotes"),
        ("i = true", "true and false go with columns of booleans"),
        ("d > 'soon'", r"compares column 'd' \(date32\[day\]\) with 'soon'; which is no value of this type"),
        ("s < i", r"cannot compare column 's' \(string\) with 'i' \(int8\)"),
        ("(" * 101 + "i = 1" + ")" * 101, "has more than 100 parentheses in each other"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_a_sentence(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        bound(text, table(rows=1))
