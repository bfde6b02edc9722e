"""Window joins: two streams of 64-byte rows, windows of 2M rows a side; in memory, and in a tenth of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.figures import Figure, Target, exactness
from benchmarks.inputs import BATCH_ROWS
from benchmarks.peer import engine
from benchmarks.resident import Sampler, forget_peak, peak
from benchmarks.rounds import Settings, middle, take_turns
from benchmarks.symmetric_peer import datafusion_pairs
from watersmeet import planner
from watersmeet.core.delays import Delays
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End, Status
from watersmeet.core.spec import parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.spill import FileStore

WINDOW_ROWS = 2_000_000
KEYS = 1_000_000
ROWS = 5_000_000
"""Of each input: two and a half windows."""
ROW_BYTES = 64
FUEL = 1 << 17

_QUERY = """
    SELECT l.*, r.* FROM l JOIN r ON l.key = r.key AND l.ts BETWEEN r.ts - {window} AND r.ts + {window}
"""


@dataclass(frozen=True, slots=True)
class Streams:
    """Both inputs, in batches that arrive in turn; times count the rows of an input."""

    left: list[pa.RecordBatch]
    right: list[pa.RecordBatch]
    window: int

    @classmethod
    def of(cls, rows: int, window: int, keys: int) -> Streams:
        """Made up from seeds."""
        return cls(_batches(0, rows, keys), _batches(1, rows, keys), window)

    @property
    def spec(self) -> WindowJoinSpec:
        """The join of both."""
        schema = self.left[0].schema
        return WindowJoinSpec(schema, schema, parse_on("key"), window=parse_windows(self.window, "ts"))


def _batches(side: int, rows: int, keys: int) -> list[pa.RecordBatch]:
    random = np.random.default_rng([side, 7])
    text = pa.array([bytes([65 + i % 26]) * 32 for i in range(BATCH_ROWS)], pa.binary(32))
    made = []
    for start in range(0, rows, BATCH_ROWS):
        count = min(BATCH_ROWS, rows - start)
        key = random.integers(0, keys, count)
        columns = [key, np.arange(start, start + count), key * 3, key * 0.5]
        names = ["key", "ts", "number", "measure", "text"]
        made.append(pa.record_batch([*map(pa.array, columns), text.slice(0, count)], names))
    return made


@dataclass(frozen=True, slots=True)
class WindowRun:
    """One run."""

    pairs: int
    rate: float
    """Rows a second of both inputs, once the first window is full."""
    by_cpu: float
    """The same, of processor time: what the clock says where nothing else runs."""
    growth: int
    """Bytes by which the process grew."""
    p99: float
    """Seconds after which 99 in 100 results were there, from when the batch of their later row was due; only in
    memory, where rows meet all others as they arrive."""


def run(streams: Streams, memory: int, algorithm: str = "ah_ewj", pace: float | None = None) -> WindowRun:
    """Join as fast as possible, or with `pace` rows a second."""
    store, delays = FileStore(), Delays()
    exact = forget_peak()
    sampler = Sampler()
    idle = sampler.now()
    sampler.start()
    try:
        operator = planner.build_window(streams.spec, memory, store, algorithm)
        began = time.perf_counter()
        full_at, cpu_then, before, pairs, done = began, time.process_time(), 0, 0, 0
        for left, right in zip(streams.left, streams.right, strict=True):
            for side, batch in ((LEFT, left), (RIGHT, right)):
                due = time.perf_counter() if pace is None else began + done / pace
                time.sleep(max(0.0, due - time.perf_counter()))
                operator.receive(Arrive(side, batch))
                pairs += _work_off(operator, delays, due)
                done += batch.num_rows
            if not before and done >= 2 * streams.window:
                full_at, cpu_then, before = time.perf_counter(), time.process_time(), done
        seconds, cpu = time.perf_counter() - full_at, time.process_time() - cpu_then
        p99 = delays.quantile(0.99)
        for side in (LEFT, RIGHT):
            operator.receive(End(side))
        pairs += _work_off(operator, delays, time.perf_counter())
        most = max(sampler.stop(), peak() if exact else 0)
        operator.close()
    finally:
        store.close()
    return WindowRun(pairs, (done - before) / seconds, (done - before) / cpu, most - idle, p99)


def _work_off(operator: planner.Operator, delays: Delays, due: float) -> int:
    pairs = 0
    while True:
        step = operator.poll(time.perf_counter(), FUEL)
        if step.out is not None:
            pairs += step.out.num_rows
            delays.add_same(time.perf_counter() - due, step.out.num_rows)
        if step.status is not Status.HAS_OUTPUT:
            return pairs


def duckdb_pairs(streams: Streams) -> tuple[int, float, float]:
    """All pairs by DuckDB over the same rows, once they are complete, and rows a second, also of processor time."""
    with engine().connect() as connection:
        connection.register("l", pa.Table.from_batches(streams.left))
        connection.register("r", pa.Table.from_batches(streams.right))
        began, cpu = time.perf_counter(), time.process_time()
        reader = connection.sql(_QUERY.format(window=streams.window)).to_arrow_reader(BATCH_ROWS)
        pairs = sum(batch.num_rows for batch in reader)
        rows = sum(batch.num_rows for side in (streams.left, streams.right) for batch in side)
        return pairs, rows / (time.perf_counter() - began), rows / (time.process_time() - cpu)


def window(settings: Settings) -> Iterator[Figure]:
    """5M+5M rows of 64 bytes, keys over 1M, windows of 2M rows; in memory and in a tenth of the windows."""
    size = settings.rows(WINDOW_ROWS)
    streams = Streams.of(settings.rows(ROWS), size, settings.rows(KEYS))
    tenth = max(2 << 20, 2 * size * ROW_BYTES // 10)
    plenty = 2 * size * 4 * ROW_BYTES + (256 << 20)
    run(Streams.of(100_000, 20_000, 10_000), 2 << 20)  # compile
    contestants = {"memory": lambda: run(streams, plenty), "tenth": lambda: run(streams, tenth)}
    runs = take_turns(contestants, settings.repeat)
    peer_pairs, *peer_rates = duckdb_pairs(streams) if settings.peers else (None, None, None)
    rates = {name: middle(each, lambda one: one.rate / 1e6) for name, each in runs.items()}
    by_cpu = {name: middle(each, lambda one: one.by_cpu / 1e6) for name, each in runs.items()}
    peer, peer_by_cpu = (None if rate is None else rate / 1e6 for rate in peer_rates)
    yield Figure("in memory", rates["memory"], "M rows/s", peer, Target(">=", 2.0))
    yield Figure("in memory, by CPU time", by_cpu["memory"], "M rows/s", peer_by_cpu)
    yield Figure("in a tenth of the windows", rates["tenth"], "M rows/s", peer, Target(">=", 0.5))
    yield Figure("in a tenth, by CPU time", by_cpu["tenth"], "M rows/s", peer_by_cpu)
    allowed = Target("<=", 1.15 * tenth / 1e6 + 16)
    yield Figure("growth in a tenth", middle(runs["tenth"], lambda one: one.growth / 1e6), "MB", target=allowed)
    half = (rates["memory"] or 0.0) * 1e6 / 2
    yield Figure("p99 delay, half the rate", 1e3 * run(streams, plenty, pace=half).p99, "ms", target=Target("<=", 200))
    every = {one.pairs for each in runs.values() for one in each}
    if settings.peers:
        symmetric = datafusion_pairs(streams.left, streams.right, streams.window)
        yield Figure("in memory, beside DataFusion", rates["memory"], "M rows/s", symmetric.rate / 1e6)
        yield Figure("the same, which only reads", rates["memory"], "M rows/s", symmetric.reading / 1e6)
        every |= {peer_pairs, symmetric.pairs}
    yield exactness(len(every) - 1, "wrong runs, by number of pairs")
