"""Two slow sources that stall: how much has been delivered when their last row arrives, and how soon is the rest?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

import watersmeet as wm
from benchmarks.figures import Figure, Target, exactness
from benchmarks.inputs import matches, spec_of, table
from benchmarks.ours import arrivals, drive
from benchmarks.peer import duckdb_join
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.sources import generators

ROWS, DOMAIN, SKEW = 200_000, 1_000_000, 0.8
BATCH_ROWS = 1024
MEMORY_SHARE = 0.1
BATCH_EVERY = 0.03
"""Seconds between two batches of a source."""
STALLS, STALL = 4, 0.75
"""How often both sources are silent, and for how many seconds."""
ALGORITHMS = ("confluence", "xjoin", "hmj", "rpj", "pmj", "diner")
ARRIVING = {"hmj": 0.7, "rpj": 0.7, "diner": 0.3}
"""What part of XJoin's speed they must reach while rows arrive."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a run delivered, and when; times are in seconds from the arrival of the last row."""

    rows: int
    online: int
    finished: float
    first: float
    """Seconds from the start to the first result."""

    @property
    def share(self) -> float:
        """Of all results, what had been delivered when the last row arrived, in percent."""
        return 100 * self.online / max(1, self.rows)


def online(settings: Settings) -> Iterator[Figure]:
    """200k+200k rows, Zipf(0.8), paced, with stalls; 10% of memory."""
    rows, domain = settings.rows(ROWS), settings.rows(DOMAIN)
    left, right = (table(generators.zipf(rows, domain, SKEW, side), side + 9) for side in (0, 1))
    memory = max(1 << 19, int(MEMORY_SHARE * (left.nbytes + right.nbytes)))
    deliveries = take_turns({name: _delivery(left, right, memory, name) for name in ALGORITHMS}, settings.repeat)
    peers = take_turns({"duckdb": lambda: duckdb_join(left, right)}, settings.repeat if settings.peers else 0)
    peer = middle(peers["duckdb"], lambda run: run.total)
    for name in ALGORITHMS:
        delivered, soon = (Target(">=", 97), Target("<=", 0.3, of_ratio=True)) if name == "confluence" else (None, None)
        share, finished = (middle(deliveries[name], of) for of in (lambda run: run.share, lambda run: run.finished))
        yield Figure(f"delivered by then, {name}", share, "%", None, delivered)
        yield Figure(f"from then to the end, {name}", finished, "s", peer, soon)
        yield Figure(f"first result, {name}", middle(deliveries[name], lambda run: 1e3 * run.first), "ms")
    yield from _arriving(left, right, memory, settings)
    expected = matches(left, right)
    yield exactness(sum(run.rows != expected for runs in deliveries.values() for run in runs), "wrong runs")


def _delivery(left: pa.Table, right: pa.Table, memory: int, algorithm: str) -> Callable[[], Delivery]:
    def run() -> Delivery:
        told: list[float] = []
        sources = [_paced(side, told) for side in (left, right)]
        delivered: list[tuple[float, int]] = []
        started = time.perf_counter()
        with wm.join(*sources, on="key", memory=memory, algorithm=algorithm) as result:
            delivered.extend((time.perf_counter(), batch.num_rows) for batch in result)
        ended, last = time.perf_counter(), max(told)
        by_then = sum(rows for at, rows in delivered if at <= last)
        return Delivery(sum(rows for _, rows in delivered), by_then, ended - last, delivered[0][0] - started)

    return run


def _paced(rows: pa.Table, told: list[float]) -> Iterator[pa.RecordBatch]:
    """Batches at their times, which both sources share; the time of the last one goes to `told`."""
    batches = rows.to_batches(max_chunksize=BATCH_ROWS)
    started = time.perf_counter()
    for number, batch in enumerate(batches):
        due = started + BATCH_EVERY * number + STALL * (STALLS * number // len(batches))
        time.sleep(max(0.0, due - time.perf_counter()))
        if number + 1 == len(batches):
            told.append(time.perf_counter())
        yield batch


def _arriving(left: pa.Table, right: pa.Table, memory: int, settings: Settings) -> Iterator[Figure]:
    """Rows a second while rows arrive one batch after the other, beside XJoin's."""
    spec = spec_of(left.schema, right.schema)
    batches = [side.to_batches(max_chunksize=BATCH_ROWS) for side in (left, right)]
    names = ("xjoin", *ARRIVING)
    contestants = {name: lambda name=name: drive(spec, arrivals(*batches), memory, name) for name in names}
    runs = take_turns(contestants, settings.repeat)
    rates = {name: middle(runs[name], lambda run: (left.num_rows + right.num_rows) / run.arrived) for name in names}
    for name, share in ARRIVING.items():
        target = Target(">=", share, of_ratio=True)
        yield Figure(f"arriving, {name} beside xjoin", rates[name], "rows/s", rates["xjoin"], target)
