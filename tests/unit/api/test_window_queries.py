"""`wm.window_queries` on in-process data: queries that come and go while it is read, and what is refused."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import watersmeet as wm
from watersmeet.core.protocol import AddQuery, RemoveQuery
from watersmeet.core.queries import QueriesSpec
from watersmeet.core.spec import parse_on
from watersmeet.core.windows import parse_windows
from watersmeet.joins.window.confluence import WindowConfluence
from watersmeet.sources.schedules import Schedule
from watersmeet.spill.store import MemoryStore

SCHEMA = pa.schema({"id": pa.int64(), "ts": pa.int64()})


def rows(*times: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([1] * len(times)), pa.array(times)], schema=SCHEMA)


class Fed:
    """A stream that says what it is told to, when it is told to."""

    def __init__(self) -> None:
        self.batches: queue.Queue[pa.RecordBatch | None] = queue.Queue()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (batch := self.batches.get()) is not None:
            yield batch


def test_queries_come_and_go_between_two_batches_of_results() -> None:
    left, right = Fed(), Fed()
    result = wm.window_queries(
        pa.RecordBatchReader.from_batches(SCHEMA, iter(left)), pa.RecordBatchReader.from_batches(SCHEMA, iter(right)),
        on="id", time="ts", window=100, queries=[wm.WindowQuery("first", 100)], memory="8 MiB",
    )  # fmt: skip
    with result:
        batches = iter(result)
        left.batches.put(rows(1))
        right.batches.put(rows(1))
        assert next(batches)["queries"].to_pylist() == [["first"]]
        result.add(wm.WindowQuery("second", 100))
        result.remove("first")
        left.batches.put(rows(2))
        right.batches.put(rows(2))
        found = next(batches)
        while found.num_rows < 1:
            found = next(batches)
        assert found.select(["ts", "ts_right", "queries"]).to_pylist() == [
            {"ts": 2, "ts_right": 2, "queries": ["second"]}
        ]
        assert result.queries == ("second",)
        for side in (left, right):
            side.batches.put(None)
        assert list(batches) == []


def test_a_query_comes_while_nobody_says_anything() -> None:
    """The join sleeps; another thread adds a query, and lets rows come."""
    left, right = Fed(), Fed()
    result = wm.window_queries(
        pa.RecordBatchReader.from_batches(SCHEMA, iter(left)), pa.RecordBatchReader.from_batches(SCHEMA, iter(right)),
        on="id", time="ts", window=100, memory="8 MiB",
    )  # fmt: skip

    def feed() -> None:
        result.add(wm.WindowQuery("only", 100))
        for side in (left, right):
            side.batches.put(rows(5))
            side.batches.put(None)

    thread = threading.Thread(target=feed)
    thread.start()
    found = result.table().to_pylist()
    thread.join()
    # The rows came after the query, whenever the join got to know of either.
    assert found == [{"id": 1, "ts": 5, "ts_right": 5, "queries": ["only"]}]


def test_each_query_finds_what_a_window_join_of_its_own_finds(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)

    def stream(seed: int) -> pa.Table:
        rng = np.random.default_rng(seed)
        return pa.table({
            "id": rng.integers(0, 300, 15_000), "ts": np.arange(15_000), "amount": rng.integers(0, 100, 15_000),
            "note": [f"note {n}" * 5 for n in range(15_000)],
        })  # fmt: skip

    left, right = stream(1), stream(2)
    queries = [
        wm.WindowQuery(f"q{n}", int(rng.integers(1, 6_000)), left=f"amount > {n}", right=f"amount <= {100 - n}")
        for n in range(40)
    ]
    result = wm.window_queries(left, right, on="id", time="ts", queries=queries, memory="1 MiB", spill=tmp_path)
    tables = result.tables()
    assert result.progress.spilled > 0
    for n, query in enumerate(queries):
        some = (
            left.filter(pc.greater(left["amount"], n)),
            right.filter(pc.less_equal(right["amount"], 100 - n)),
        )
        alone = wm.window_join(*some, on="id", time="ts", window=query.window, memory="8 MiB").table()
        order = [("ts", "ascending"), ("ts_right", "ascending")]
        assert tables[query.name].sort_by(order).equals(alone.sort_by(order)), query


def test_results_go_to_files_as_lists(tmp_path: Path) -> None:
    seen = pa.table({"id": [1, 2], "ts": [0, 1]})
    result = wm.window_queries(seen, seen, on="id", time="ts", queries=[wm.WindowQuery("all", 5)], memory="8 MiB")
    assert result.write(tmp_path / "found.parquet") == 2
    assert pq.read_table(tmp_path / "found.parquet")["queries"].to_pylist() == [["all"], ["all"]]


def test_what_it_does_is_told() -> None:
    seen = pa.table({"id": [1, 2], "ts": [0, 1]})
    result = wm.window_queries(seen, seen, on="id", time="ts", queries=[wm.WindowQuery("all", 5)], memory="8 MiB")
    told = str(result.explain())
    assert "one join finds the pairs of all queries" in told and "1 queries of up to 5 by ts" in told
    result.close()


def test_queries_come_and_go_in_virtual_time() -> None:
    """At 1.5 s one comes, at 3.5 s another goes: rows that came in between are of both."""
    spec = QueriesSpec(
        SCHEMA, SCHEMA, parse_on("id"), window=parse_windows(100, "ts"), queries=(wm.WindowQuery("old", 100),)
    )
    operator = WindowConfluence(spec, WindowConfluence.least_memory(spec) + (1 << 20), MemoryStore())
    times = [np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.1, 2.1, 3.1, 4.1])]
    tables = [pa.table({"id": [1, 2, 3, 4], "ts": [1, 2, 3, 4]})] * 2
    changes = [(1.5, AddQuery(wm.WindowQuery("new", 100))), (3.5, RemoveQuery("old"))]
    trace = wm.simulate(operator, Schedule(tables, times), punctuations=changes, collect=True, check=True)
    found = {row["id"]: row["queries"] for batch in trace.batches for row in batch.to_pylist()}
    assert found == {1: ["old"], 2: ["new", "old"], 3: ["new", "old"], 4: ["new"]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "there are no queries yet; give window="),
        ({"queries": "soon"}, "queries must be a list of wm.WindowQuery, not 'soon'"),
        ({"queries": [("soon", 5)]}, r"a query is a wm.WindowQuery\('name', window=...\), not \('soon', 5\)"),
        ({"queries": [wm.WindowQuery("a", 5), wm.WindowQuery("a", 6)]}, "two queries are called 'a'"),
        (
            {"queries": [wm.WindowQuery("a", 5), wm.WindowQuery("b", "1 s")]},
            "must all be lengths of time, or all numbers",
        ),
        ({"queries": [wm.WindowQuery("a", wm.rows(5))], "window": 5}, "must be a length of time or an age"),
        ({"window": wm.landmark(5)}, "the largest window of queries is a length of time"),
        ({"window": 5, "queries": [wm.WindowQuery("a", 6)]}, "is longer than the longest, 5"),
        ({"window": 5, "settle": 1}, "algorithm confluence has no option 'settle'; it takes delay"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], said: str) -> None:
    seen = pa.table({"id": [1], "ts": [0]})
    with pytest.raises(wm.SpecError, match=said):
        wm.window_queries(seen, seen, on="id", time="ts", memory="8 MiB", **options)


def test_what_cannot_be_added_or_removed_is_refused() -> None:
    seen = pa.table({"id": [1], "ts": [0]})
    result = wm.window_queries(seen, seen, on="id", time="ts", window=5, memory="8 MiB")
    result.add(wm.WindowQuery("a", 5))
    with pytest.raises(wm.SpecError, match="there is a query called 'a'; remove it first, or choose another name"):
        result.add(wm.WindowQuery("a", 4))
    with pytest.raises(wm.SpecError, match="there is no query called 'b'; there are 'a'"):
        result.remove("b")
    with pytest.raises(wm.SpecError, match="left of query 'c' asks for column 'x', which is not in left"):
        result.add(wm.WindowQuery("c", 5, left="x > 1"))
    with pytest.raises(wm.SpecError, match=r"a query is a wm\.WindowQuery"):
        result.add("c")  # type: ignore[arg-type]
    with pytest.raises(wm.SpecError, match="a query is called by a word, not ''"):
        wm.WindowQuery("", 5)
    with pytest.raises(wm.SpecError, match="left of query 'd', 'amount >', breaks off"):
        wm.WindowQuery("d", 5, left="amount >")
    result.close()


def test_a_column_that_is_called_queries_is_refused() -> None:
    seen = pa.table({"id": [1], "ts": [0], "queries": [1]})
    with pytest.raises(wm.SpecError, match="the output would have two columns named 'queries'"):
        wm.window_queries(seen, seen, on=["id", "queries"], time="ts", window=5, memory="8 MiB")
