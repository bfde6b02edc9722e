"""Nexmark's joins as streaming queries on Spark: ours, and Spark's own with its state on the heap or in RocksDB."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.spark_query import Account, Step, measure
from benchmarks.spark_verbs import MEMORY
from benchmarks.suites.model import Question
from benchmarks.suites.nexmark import CATEGORY, FILES, OPEN, SPAN, STATES

FILES_PER_BATCH = FILES // 5
KINDS = {"ours on Spark": "ours", "Spark, heap": "heap", "Spark, RocksDB": "rocksdb"}
_SCHEMAS = {
    "people": "person long, name string, city string, state string, ts timestamp",
    "auctions": "auction long, seller long, category long, initial long, reserve long, expires timestamp, ts timestamp",
    "bids": "auction long, bidder long, price long, ts timestamp",
    "highs": "high long, ts timestamp",
}
_LATE = "1 second"
_JOINS: dict[str, dict[str, Any]] = {
    "q3": {"left": ("auctions", "auction, seller, ts"), "right": ("people", "person, name, city, state"),
           "on": "seller = person", "window": None},
    "q4, q9": {"left": ("auctions", "auction, category, expires, ts"), "right": ("bids", "auction, bidder, price, ts"),
               "on": "auction = auction", "window": (OPEN, "0 s"), "where": "ts_right <= expires"},
    "q7": {"left": ("bids", "auction, bidder, price, ts"), "right": ("highs", "high, ts"),
           "on": "price = high", "window": (SPAN, "0 s")},
    "q8": {"left": ("people", "person, ts"), "right": ("auctions", "auction, seller, ts"),
           "on": "person = seller", "window": "same"},
    "q20": {"left": ("bids", "auction, bidder, price, ts"),
            "right": ("auctions", "auction, seller, initial, reserve, expires, ts"), "on": "auction = auction",
            "window": None},
}  # fmt: skip
_FILTERS = {
    ("q3", "auctions"): f"category = {CATEGORY}",
    ("q3", "people"): f"state IN {STATES}",
    ("q20", "auctions"): f"category = {CATEGORY}",
}


def asked(question: Question, contestant: str, place: Path, warm: Path, longest: float | None = None) -> Account:
    """A streaming query over all files, after one over few in the same session; an error if both take too long."""
    name = f"nexmark {KINDS[contestant]}"
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        steps = [
            Step(str(inputs), f"{directory}/{number}", FILES_PER_BATCH, query=question.name, sums=question.columns)
            for number, inputs in enumerate((warm, place))
        ]
        return measure(name, *steps, longest=longest)[-1]


def streams(spark: Any, query: str, who: str, place: Path, files: int) -> Any:
    """The joined stream of one of the questions."""
    join = _JOINS[query]
    left, right = (_stream(spark, query, *join[side], place, files) for side in ("left", "right"))
    joined = (_ours if who == "ours" else _own)(left, right, join, place)
    return joined.where(join["where"]) if "where" in join else joined


def _stream(spark: Any, query: str, table: str, columns: str, place: Path, files: int) -> Any:
    reader = spark.readStream.schema(_SCHEMAS[table]).option("maxFilesPerTrigger", files)
    frame = reader.parquet(str(place / table))
    if (query, table) in _FILTERS:
        frame = frame.where(_FILTERS[query, table])
    return frame.select(*columns.split(", "))


def _ours(left: Any, right: Any, join: dict[str, Any], place: Path) -> Any:
    import watersmeet as wm
    from watersmeet.spark import join as plain
    from watersmeet.spark import window_join

    one, other = join["on"].split(" = ")
    given: dict[str, Any] = {"on": one if one == other else join["on"], "memory": MEMORY, "state": place / "state"}
    if join["window"] is None:
        return plain(left, right, **given)
    window = wm.landmark(SPAN) if join["window"] == "same" else join["window"]
    return window_join(left, right, time="ts", window=window, **given)


def _own(left: Any, right: Any, join: dict[str, Any], place: Path) -> Any:
    from pyspark.sql import functions as fn

    one, other = join["on"].split(" = ")
    taken = set(left.columns) & set(right.columns)
    right = right.withColumnsRenamed({name: f"{name}_right" for name in taken})
    other = f"{other}_right" if other in taken else other
    if join["window"] is not None:
        left, right = left.withWatermark("ts", _LATE), right.withWatermark("ts_right", _LATE)
    condition = fn.col(one) == fn.col(other)
    if join["window"] == "same":
        # Spans by number, and a range of times by which Spark knows what it may forget.
        span = f"unix_micros({{}}) div {int(SPAN.split()[0]) * 1_000_000}"
        condition &= fn.expr(f"{span.format('ts')} = {span.format('ts_right')}")
    if join["window"] is not None:
        reach, back = (SPAN, SPAN) if join["window"] == "same" else join["window"]
        words = [f"interval {each.replace('s', 'seconds')}" for each in (reach, back)]
        condition &= fn.expr(f"ts_right >= ts - {words[1]} AND ts_right <= ts + {words[0]}")
    return left.join(right, condition)
