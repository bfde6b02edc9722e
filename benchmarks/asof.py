"""As-of joins: for each of 5M trades the last of 5M quotes of its symbol, beside DuckDB's ASOF JOIN and Polars."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import watersmeet as wm
from benchmarks.figures import Figure, Target, exactness
from benchmarks.growth import Sampler, forget_peak, peak
from benchmarks.peer import engine
from benchmarks.rounds import Settings, middle, take_turns

ROWS = 5_000_000
KEYS = 1_000
MEMORY = "64 MiB"
_QUERY = """
    SELECT l.*, r.ts AS ts_right, r.bid FROM l ASOF JOIN r ON l.sym = r.sym AND l.ts >= r.ts
"""


@dataclass(frozen=True, slots=True)
class AsofRun:
    """One run."""

    rows: int
    seconds: float
    cpu: float
    growth: int
    """Bytes by which the process grew, the inputs not counted."""


def tables(rows: int) -> tuple[pa.Table, pa.Table]:
    """Trades and quotes in the order of their times."""

    def side(seed: int, name: str) -> pa.Table:
        rng = np.random.default_rng([seed, 19])
        times = np.sort(rng.integers(0, 10 * rows, rows))
        return pa.table({
            "sym": rng.integers(0, KEYS, rows),
            "ts": pa.array(times).cast(pa.timestamp("us")),
            name: rng.random(rows),
        })  # fmt: skip

    return side(0, "price"), side(1, "bid")


def measured(join: Callable[[], int]) -> AsofRun:
    """What a join takes, and by how much the process grows meanwhile."""
    exact = forget_peak()
    sampler = Sampler()
    idle = sampler.now()
    sampler.start()
    began, cpu = time.perf_counter(), time.process_time()
    try:
        rows = join()
    finally:
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        most = max(sampler.stop(), peak() if exact else 0)
    return AsofRun(rows, seconds, cpu, most - idle)


def ours(left: pa.Table, right: pa.Table, lateness: str | None = None) -> int:
    """Batch by batch."""
    result = wm.asof_join(left, right, on="sym", time="ts", lateness=lateness, memory=MEMORY)
    return sum(batch.num_rows for batch in result)


def duckdb_rows(left: pa.Table, right: pa.Table) -> int:
    """By DuckDB."""
    with engine().connect() as connection:
        connection.register("l", left)
        connection.register("r", right)
        return sum(batch.num_rows for batch in connection.sql(_QUERY).to_arrow_reader(1 << 16))


def polars_rows(left: pa.Table, right: pa.Table) -> int:
    """By Polars, which is told that both are sorted."""
    import polars as pl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it cannot check the order within groups
        trades, quotes = (pl.from_arrow(table).set_sorted("ts") for table in (left, right))
        joined = trades.join_asof(quotes, on="ts", by="sym", coalesce=False)
        return int(joined.height - joined["bid"].null_count())


def asof(settings: Settings) -> Iterator[Figure]:
    """5M trades and 5M quotes of 1,000 symbols, in 64 MiB; the peers have all the memory there is."""
    left, right = tables(settings.rows(ROWS))
    small = tables(20_000)
    ours(*small), ours(*small, lateness="unlimited")  # compile
    contestants: dict[str, Callable[[], AsofRun]] = {
        "ours": lambda: measured(lambda: ours(left, right)),
        "no order": lambda: measured(lambda: ours(left, right, "unlimited")),
    }
    if settings.peers:
        duckdb_rows(*small), polars_rows(*small)
        contestants["duckdb"] = lambda: measured(lambda: duckdb_rows(left, right))
        contestants["polars"] = lambda: measured(lambda: polars_rows(left, right))
    runs = take_turns(contestants, settings.repeat)
    seconds = {name: middle(each, lambda run: run.seconds) for name, each in runs.items()}
    cpu = {name: middle(each, lambda run: run.cpu) for name, each in runs.items()}
    growth = {name: middle(each, lambda run: run.growth / 1e6) for name, each in runs.items()}
    for peer, most in (("duckdb", 1.5), ("polars", 1.0)):
        yield Figure(f"beside {peer}", seconds["ours"], "s", seconds.get(peer), Target("<=", most, of_ratio=True))
        yield Figure(f"beside {peer}, CPU time", cpu["ours"], "s", cpu.get(peer))
        least = Target("<=", 0.1, of_ratio=True) if peer == "polars" else None
        yield Figure(f"growth beside {peer}", growth["ours"], "MB", growth.get(peer), least)
    yield Figure("told of no order, beside duckdb", seconds["no order"], "s", seconds.get("duckdb"))
    every = {run.rows for each in runs.values() for run in each}
    yield exactness(len(every) - 1, "wrong runs, by number of rows")
