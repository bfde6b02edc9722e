"""As-of joins: for each of 5M trades the last of 5M quotes of its symbol, beside DuckDB's ASOF JOIN and Polars.

Each run has a process of its own, `python -m benchmarks.asof CONTESTANT ROWS`, which joins twice: by how much it grows
is told of the first time, when nothing has been given back to it, and what it takes of the second.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import pyarrow as pa

import watersmeet as wm
from benchmarks.figures import Figure, Target, exactness
from benchmarks.memory import environment
from benchmarks.peer import engine
from benchmarks.resident import Sampler, forget_peak, peak
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.core.errors import WatersmeetError

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


CONTESTANTS: dict[str, Callable[[pa.Table, pa.Table], int]] = {
    "ours": ours,
    "no order": partial(ours, lateness="unlimited"),
    "duckdb": duckdb_rows,
    "polars": polars_rows,
    "polars, one thread": polars_rows,
}
"""By their names. Ours joins on one thread, beside two that read; the peers have all cores, unless told otherwise."""


def main(contestant: str, rows: int) -> AsofRun:
    """Warm up, join once to see how much memory that takes, and again to see how long."""
    join = CONTESTANTS[contestant]
    left, right = tables(rows)
    join(*tables(20_000))
    gc.collect()
    pa.default_memory_pool().release_unused()
    first = measured(lambda: join(left, right))
    gc.collect()
    second = measured(lambda: join(left, right))
    return AsofRun(second.rows, second.seconds, second.cpu, first.growth)


def in_a_process(contestant: str, rows: int) -> AsofRun:
    """The same in a new process, with as many threads as the contestant is to have."""
    command = [sys.executable, "-m", "benchmarks.asof", contestant, str(rows)]
    told = environment() | ({"POLARS_MAX_THREADS": "1"} if contestant.endswith("one thread") else {})
    done = subprocess.run(command, env=told, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WatersmeetError(f"{' '.join(command[1:])} failed: {done.stderr.strip().splitlines()[-1:]}")
    return AsofRun(**json.loads(done.stdout.splitlines()[-1]))


def asof(settings: Settings) -> Iterator[Figure]:
    """5M trades and 5M quotes of 1,000 symbols, in 64 MiB; the peers have all the memory there is."""
    rows = settings.rows(ROWS)
    names = list(CONTESTANTS) if settings.peers else ["ours", "no order"]
    runs = take_turns({name: partial(in_a_process, name, rows) for name in names}, settings.repeat)
    seconds = {name: middle(each, lambda run: run.seconds) for name, each in runs.items()}
    cpu = {name: middle(each, lambda run: run.cpu) for name, each in runs.items()}
    growth = {name: middle(each, lambda run: run.growth / 1e6) for name, each in runs.items()}
    for peer, most in (("duckdb", 1.5), ("polars", 1.0), ("polars, one thread", 1.0)):
        yield Figure(f"{peer}: time", seconds["ours"], "s", seconds.get(peer), Target("<=", most, of_ratio=True))
        yield Figure(f"{peer}: CPU time", cpu["ours"], "s", cpu.get(peer))
        least = Target("<=", 0.1, of_ratio=True) if peer.startswith("polars") else None
        yield Figure(f"{peer}: growth", growth["ours"], "MB", growth.get(peer), least)
    yield Figure("told of no order, duckdb: time", seconds["no order"], "s", seconds.get("duckdb"))
    every = {run.rows for each in runs.values() for run in each}
    yield exactness(len(every) - 1, "wrong runs, by number of rows")


if __name__ == "__main__":
    print(json.dumps(asdict(main(sys.argv[1], int(sys.argv[2])))))
