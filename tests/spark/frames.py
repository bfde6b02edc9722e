"""Random pairs of DataFrames, and the comparison of what two joins make of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.checks.canonical import canonical_rows

Rng = np.random.Generator
_MIDNIGHT = datetime(2024, 3, 30, 22, tzinfo=UTC)

# For each kind of key: the left and the right column's type, and pairs of values, most of them equal.
KEYS: dict[str, tuple[str, str, Any]] = {
    "long": ("bigint", "bigint", lambda i: (i * 2**40, i * 2**40)),
    "int and long": ("int", "bigint", lambda i: (i - 5, i - 5)),
    "short and decimal": ("smallint", "decimal(12,3)", lambda i: (i, Decimal(i) if i % 5 else Decimal("0.5"))),
    "decimals": ("decimal(9,2)", "decimal(30,6)", lambda i: (Decimal(i) / 4, Decimal(i) / 4)),
    "decimal and double": ("decimal(20,2)", "double", lambda i: (Decimal(i) / 100, i / 100)),
    "int and double": ("int", "double", lambda i: (i, [float(i), -0.0][i == 0])),
    "floats": ("float", "double", lambda i: [(float("nan"), float("nan")), (0.0, -0.0), (i / 4, i / 4)][min(i, 2)]),
    "string": ("string", "string", lambda i: (f"ключ {i}", f"ключ {i}")),
    "binary": ("binary", "binary", lambda i: (bytes([i, 0]), bytes([i, 0]))),
    "boolean": ("boolean", "boolean", lambda i: (i % 2 == 0, i % 2 == 0)),
    "date": ("date", "date", lambda i: (date(2024, 1, 1) + timedelta(i),) * 2),
    "timestamp": ("timestamp", "timestamp", lambda i: (_MIDNIGHT + timedelta(minutes=20 * i),) * 2),
    "date and timestamp": (
        "date",
        "timestamp_ntz",
        lambda i: (date(2024, 1, 1) + timedelta(i), datetime(2024, 1, 1, int(i % 4 == 3)) + timedelta(i)),
    ),
}
_PAYLOAD: list[tuple[str, Sequence[Any]]] = [
    ("string", ["", "a", None, "é" * 40]),
    ("array<string>", [[], None, ["x", None]]),
    ("map<string,int>", [{}, {"a": 1}, None]),
    ("struct<x:int,y:array<double>>", [(1, [0.5]), None, (None, None)]),
    ("decimal(38,10)", [Decimal("1.5"), None, Decimal(10) ** 20]),
    ("timestamp", [_MIDNIGHT, None]),
    ("interval day to second", [timedelta(days=-1), None]),
    ("float", [0.0, -0.0, float("nan"), None]),
    ("binary", [b"", b"\x00", None]),
    ("boolean", [True, False, None]),
    ("tinyint", [1, -1, None]),
    ("void", [None]),
]


def random_frames(spark: Any, rng: Rng, kinds: Sequence[str], rows: tuple[int, int], distinct: int = 30) -> list[Any]:
    """A left and a right DataFrame with keys `k0`, `k1`, ... of these kinds, a column of numbers, and some others."""
    frames = []
    for side in (0, 1):
        columns = [f"k{i} {KEYS[kind][side]}" for i, kind in enumerate(kinds)]
        values = [[KEYS[kind][2](i)[side] for i in range(distinct)] for kind in kinds]
        lists = [[v[i] for i in rng.integers(0, distinct, rows[side])] for v in values]
        for key in lists:
            for i in np.flatnonzero(rng.random(rows[side]) < 0.1):
                key[i] = None
        columns.append(f"{'lr'[side]}_number int")
        lists.append(list(range(rows[side])))
        for n in range(int(rng.integers(0, 4))):
            type_, pool = _PAYLOAD[int(rng.integers(len(_PAYLOAD)))]
            columns.append(f"p{n} {type_}")
            lists.append([pool[i] for i in rng.integers(0, len(pool), rows[side])])
        frames.append(spark.createDataFrame(list(zip(*lists, strict=True)), ", ".join(columns)))
    return frames


def own_join(left: Any, right: Any, keys: Sequence[str]) -> Any:
    """Spark's join of the same, its columns named and ordered as ours."""
    condition = None
    for key in keys:
        each = left[key] == right[key]
        condition = each if condition is None else condition & each
    rest = [name for name in right.columns if name not in keys]
    clash = set(left.columns) & set(rest)
    columns = [left[name] for name in left.columns]
    columns += [right[name].alias(f"{name}_right" if name in clash else name) for name in rest]
    return left.join(right, condition).select(*columns)


def rows_of(frame: Any) -> Counter[Any]:
    """A DataFrame's rows as a multiset."""
    return rows_in(frame.toArrow())


def rows_in(table: pa.Table) -> Counter[Any]:
    """A table's rows as a multiset."""
    return Counter(row for batch in table.to_batches() for row in canonical_rows(batch))
