"""Nexmark's queries with a join: 3, 4, 7, 8, 9 and 20, the join of each measured, what comes behind it checked apart.

Queries 4 and 9 have one join, of auctions with the bids that came while they were open. Query 7 joins bids with the
highest price of each ten seconds; these prices are a stream of their own here, so that all contestants have the same.
Aggregates behind a join are Arrow's (`average_winners`, `winners`), over its results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import watersmeet as wm
from benchmarks.suites.model import Inputs, Question, Setting, Suite, write_table
from watersmeet.sources.nexmark import nexmark

EVENTS = 20_000_000
FILES = 20
OPEN = "20 s"
"""The longest that an auction is open."""
SPAN = "10 s"
STATES = ("OR", "ID", "CA")
CATEGORY = 10
MEMORY = 512 << 20
FIRST_DAY = 20_000 * 86_400
"""Seconds since 1970."""


def write(place: Path, scale: float) -> None:
    """The three streams, and the highest price of each ten seconds."""
    made = nexmark(max(5_000, round(EVENTS * scale)))
    for name, table in {"people": made.people, "auctions": made.auctions, "bids": made.bids}.items():
        write_table(place, name, _in_utc(table), FILES)
    write_table(place, "highs", _in_utc(highs(made.bids)), FILES)


def _in_utc(table: pa.Table) -> pa.Table:
    """Times with a zone, from a day on that is not 1970's first: there Spark's watermarks begin, and rows are late."""
    first = pa.scalar(FIRST_DAY, pa.duration("s"))
    columns = {
        name: pc.add(column, first).cast(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(column.type) else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return pa.table(columns)


def highs(bids: pa.Table) -> pa.Table:
    """The highest price of each ten seconds, at their end."""
    span = bids["ts"].cast(pa.int64()).to_numpy() // 10_000
    edges = np.flatnonzero(np.diff(span, prepend=-1))
    high = np.maximum.reduceat(bids["price"].to_numpy(), edges) if len(edges) else edges
    return pa.table({"high": high, "ts": pa.array((span[edges] + 1) * 10_000).cast(pa.timestamp("ms"))})


# -- what ours does ----------------------------------------------------------------------------------------------------


def _of_category(batch: pa.RecordBatch) -> pa.Array:
    return pc.equal(batch["category"], CATEGORY)


def _near(batch: pa.RecordBatch) -> pa.Array:
    return pc.is_in(batch["state"], pa.array(STATES))


def local_items(inputs: Inputs, algorithm: str) -> Iterable[pa.RecordBatch]:
    """Who sells in a category, in three states."""
    auctions = inputs.stream("auctions", ("auction", "seller", "ts"), _of_category)
    people = inputs.stream("people", ("person", "name", "city", "state"), _near)
    return wm.join(auctions, people, on="seller = person", memory=inputs.memory, threads=inputs.threads)


def bids_in_time(inputs: Inputs, algorithm: str) -> Iterator[pa.RecordBatch]:
    """Bids with their auctions, as long as these were open."""
    auctions = inputs.stream("auctions", ("auction", "category", "expires", "ts"))
    bids = inputs.stream("bids", ("auction", "bidder", "price", "ts"))
    window = (OPEN, "0 s")
    for batch in wm.window_join(auctions, bids, on="auction", time="ts", window=window, memory=inputs.memory):
        yield batch.filter(pc.less_equal(batch["ts_right"], batch["expires"]))


def highest_bids(inputs: Inputs, algorithm: str) -> Iterable[pa.RecordBatch]:
    """Bids that have the highest price of ten seconds."""
    bids = inputs.stream("bids", ("auction", "bidder", "price", "ts"))
    tops = inputs.stream("highs", ("high", "ts"))
    return wm.window_join(bids, tops, on="price = high", time="ts", window=(SPAN, "0 s"), memory=inputs.memory)


def new_sellers(inputs: Inputs, algorithm: str) -> Iterable[pa.RecordBatch]:
    """People who came and opened an auction in the same ten seconds."""
    people = inputs.stream("people", ("person", "ts"))
    auctions = inputs.stream("auctions", ("auction", "seller", "ts"))
    window = wm.landmark(SPAN)
    return wm.window_join(people, auctions, on="person = seller", time="ts", window=window, memory=inputs.memory)


def expanded_bids(inputs: Inputs, algorithm: str) -> Iterable[pa.RecordBatch]:
    """Bids with all that is known of their auctions, in one category."""
    bids = inputs.stream("bids", ("auction", "bidder", "price", "ts"))
    auctions = inputs.stream("auctions", ("auction", "seller", "initial", "reserve", "expires", "ts"), _of_category)
    return wm.join(bids, auctions, on="auction", memory=inputs.memory, threads=inputs.threads)


# -- what comes behind a join ------------------------------------------------------------------------------------------


def winners(joined: pa.Table) -> pa.Table:
    """Query 9: the highest bid of each auction; of several the first."""
    order = [("auction", "ascending"), ("price", "descending"), ("ts_right", "ascending"), ("bidder", "ascending")]
    ranked = joined.sort_by(order)
    first = np.flatnonzero(np.diff(ranked["auction"].to_numpy(), prepend=-1))
    return ranked.take(pa.array(first))


def average_winners(joined: pa.Table) -> pa.Table:
    """Query 4: the average of auctions' highest prices, by category."""
    best = joined.group_by(["auction", "category"]).aggregate([("price", "max")])
    return best.group_by("category").aggregate([("price_max", "mean")]).sort_by("category")


# -- the questions -----------------------------------------------------------------------------------------------------

SPARK = ("ours on Spark", "Spark, heap", "Spark, RocksDB")

QUESTIONS = (
    Question(
        "q3",
        ("auctions", "people"),
        "SELECT auction, seller, a.ts AS ts, name, city, state FROM auctions a JOIN people p ON seller = person "
        f"WHERE category = {CATEGORY} AND state IN {STATES}",
        ("auction", "seller", "ts"),
        local_items,
    ),
    Question(
        "q4, q9",
        ("auctions", "bids"),
        "SELECT a.auction AS auction, category, expires, a.ts AS ts, bidder, price, b.ts AS ts_right "
        "FROM auctions a JOIN bids b ON a.auction = b.auction AND b.ts BETWEEN a.ts AND a.expires",
        ("auction", "category", "ts", "bidder", "price", "ts_right"),
        bids_in_time,
    ),
    Question(
        "q7",
        ("bids", "highs"),
        "SELECT auction, bidder, price, b.ts AS ts, h.ts AS ts_right FROM bids b JOIN highs h ON price = high "
        "AND b.ts BETWEEN h.ts - INTERVAL 10 SECOND AND h.ts",
        ("auction", "bidder", "price", "ts", "ts_right"),
        highest_bids,
    ),
    Question(
        "q8",
        ("people", "auctions"),
        "SELECT person, p.ts AS ts, auction, a.ts AS ts_right FROM people p JOIN auctions a ON person = seller "
        "AND epoch_us(p.ts) // 10000000 = epoch_us(a.ts) // 10000000",
        ("person", "ts", "auction", "ts_right"),
        new_sellers,
    ),
    Question(
        "q20",
        ("bids", "auctions"),
        "SELECT b.auction AS auction, bidder, price, b.ts AS ts, seller, initial, reserve, expires, a.ts AS ts_right "
        f"FROM bids b JOIN auctions a ON b.auction = a.auction WHERE category = {CATEGORY}",
        ("auction", "bidder", "price", "ts", "seller", "initial", "reserve", "expires", "ts_right"),
        expanded_bids,
    ),
)

SUITE = Suite(
    "nexmark",
    "Nexmark's joins, 20M events",
    "Taken from the benchmark: of 50 events one person, three auctions and 46 bids, in the order of their times, "
    "10,000 a second; half of the bids and auctions go to the newest few auctions and people; the conditions of "
    "queries 3, 4, 7, 8, 9 and 20. Measured is each query's join; the aggregates of 4 and 9 come behind it and are "
    "Arrow's, the highest prices of query 7 are a stream. `ours` and DuckDB run in one process over the same files, "
    "DuckDB once all rows are there. The others are streaming queries on Spark, local[2], a fifth of the rows in a "
    "batch; their memory is all that the JVM and its workers have.",
    write,
    QUESTIONS,
    (Setting("512 MiB", (*SPARK, "ours", "duckdb"), memory=MEMORY, scaled=False),),
    unlimited=SPARK[1:],
    beside=dict.fromkeys(SPARK[1:], SPARK[0]),
)
