"""The join questions of the benchmark of database-like operations: N rows with a small, a medium, a big table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import watersmeet as wm
from benchmarks.suites.model import Inputs, Question, Setting, Suite, write_table
from watersmeet.core.arrays import Int64

ROWS = 10_000_000
"""0.5 GB."""
_KEYS = ("id1", "id2", "id3")
_IN_ALL = 0.9
"""Of keys: the rest of each table is in no other."""


def write(place: Path, scale: float) -> None:
    """The four tables: of each key a column of numbers and one of texts."""
    rows = max(1000, round(ROWS * scale))
    rng = np.random.default_rng([rows, 5])
    counts = [max(10, rows // 1_000_000), max(10, rows // 1000), rows]
    own, others = zip(*(_keys(rng, count) for count in counts), strict=True)
    drawn = [rng.choice(keys, rows) for keys in own[:2]] + [rng.permutation(own[2])]
    write_table(place, "x", _table(drawn, {"v1": np.round(rng.random(rows) * 100, 3)}))
    for size, (name, count) in enumerate(zip(("small", "medium", "big"), counts, strict=True)):
        columns = [rng.choice(others[each], count) if each != size else others[each] for each in range(size + 1)]
        values = {"v2": np.round(rng.random(count) * 100, 3)}
        order = pa.array(rng.permutation(count))
        write_table(place, name, _table(columns, values).take(order))


def _keys(rng: np.random.Generator, count: int) -> tuple[Int64, Int64]:
    """The keys of both tables, of which each has a tenth alone."""
    keys = 1 + rng.permutation(count + count // 10)
    shared = int(_IN_ALL * count)
    return keys[:count], np.concatenate([keys[:shared], keys[count : 2 * count - shared]])


def _table(keys: list[Int64], values: Mapping[str, Any]) -> pa.Table:
    columns: dict[str, Any] = {name: pa.array(each) for name, each in zip(_KEYS, keys, strict=False)}
    for place, each in enumerate(keys, 4):
        columns[f"id{place}"] = pc.binary_join_element_wise("id", pa.array(each).cast(pa.string()), "")
    return pa.table({**columns, **values})


_X = ("id1", "id2", "id3", "id4", "id5", "id6", "v1")
_OTHER = {
    "small": ("id1", "id4", "v2"),
    "medium": ("id1", "id2", "id4", "id5", "v2"),
    "big": ("id1", "id2", "id3", "id4", "id5", "id6", "v2"),
}


def _question(number: int, other: str, on: str, how: str = "inner") -> Question:
    right = [name for name in _OTHER[other] if name != on]
    named = {name: f"{name}_right" if name in _X else name for name in right}
    selected = [f"x.{name} AS {name}" for name in _X] + [f"{other}.{name} AS {named[name]}" for name in right]
    word = {"inner": "JOIN", "left": "LEFT JOIN"}[how]
    kind = f"{other} {'outer' if how == 'left' else 'inner'} on {'factor' if on > 'id3' else 'int'}"
    return Question(
        f"q{number}: {kind}",
        ("x", other),
        f"SELECT {', '.join(selected)} FROM x {word} {other} ON x.{on} = {other}.{on}",
        (*_X, *named.values()),
        _ours(other, on, how),
        lambda frames: frames["x"].merge(frames[other], on=on, how=how, suffixes=("", "_right")),
    )


def _ours(other: str, on: str, how: str) -> Callable[[Inputs, str], Iterable[pa.RecordBatch]]:
    def joined(inputs: Inputs, algorithm: str) -> Iterable[pa.RecordBatch]:
        return wm.join(
            inputs.source("x"), inputs.source(other), on=on, how=how, memory=inputs.memory, threads=inputs.threads,
            algorithm=algorithm,
        )  # fmt: skip

    return joined


SUITE = Suite(
    "db-benchmark",
    "The join questions of db-benchmark, 0.5 GB",
    "Taken from the benchmark: N = 10M rows of three keys as numbers and as texts, joined with tables of N / 1M, "
    "N / 1000 and N rows, a tenth of whose keys match nothing; five questions. In memory all tables are Arrow's before "
    "the clock runs; in a tenth they are read from Parquet.",
    write,
    (
        _question(1, "small", "id1"),
        _question(2, "medium", "id2"),
        _question(3, "medium", "id2", "left"),
        _question(4, "medium", "id5"),
        _question(5, "big", "id3"),
    ),
    (
        Setting("in memory", ("ours", "duckdb", "polars", "datafusion", "pandas"), loaded=True, scaled=False),
        Setting("a tenth", ("ours", "duckdb", "polars", "datafusion"), share=0.1),
    ),
)
