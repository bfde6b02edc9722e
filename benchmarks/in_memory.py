"""Everything fits: how fast are all pairs found, and how soon the first?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from benchmarks.figures import Figure, Target, exactness
from benchmarks.inputs import BATCH_ROWS, matches, spec_of, table
from benchmarks.ours import Run, arrivals, drive, live
from benchmarks.peer import duckdb_join
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.api.run import cores
from watersmeet.memory import format_bytes
from watersmeet.sources import generators

AMPLE = 2 << 30
SMALL = 64 << 20
ON_ALL, PEER_ON_ALL = "wm.join on all threads", "duckdb on all threads"


def inmemory(settings: Settings) -> Iterator[Figure]:
    """1M+1M rows, uniform keys over 1M, batches of 8,192."""
    rows = settings.rows(1_000_000)
    left, right = (table(generators.uniform(rows, rows, seed), seed) for seed in (1, 2))
    runs = compete(left, right, AMPLE, settings)
    yield from totals(runs, 0.75, on_all=0.75)
    yield from firsts(runs, 0.05)
    yield exact(runs, left, right)


def inmemory_large(settings: Settings) -> Iterator[Figure]:
    """5M+5M rows, unique keys, batches of 8,192."""
    rows = settings.rows(5_000_000)
    left, right = (table(generators.unique(rows, seed), seed) for seed in (1, 2))
    runs = compete(left, right, 2 * AMPLE, settings)
    yield from totals(runs, 0.9)
    yield from firsts(runs, None)
    yield exact(runs, left, right)


def skew(settings: Settings) -> Iterator[Figure]:
    """30k+30k rows, keys by Zipf(1) over 10,000, in 64 MiB."""
    rows, domain = settings.rows(30_000), settings.rows(10_000)
    left, right = (table(generators.zipf(rows, domain, 1.0, seed), seed) for seed in (1, 2))
    runs = compete(left, right, SMALL, settings)
    yield from totals(runs, 0.6, on_all=0.6)
    yield from firsts(runs, None)
    peak = max(run.peak for run in runs["confluence"])
    yield Figure(f"peak memory of {format_bytes(SMALL)}", peak / 1e6, "MB", target=Target("<=", SMALL / 1e6))
    yield exact(runs, left, right)


def compete(left: pa.Table, right: pa.Table, memory: int, settings: Settings) -> dict[str, list[Run]]:
    """Both operators, the live driver, and the peer."""
    spec = spec_of(left.schema, right.schema)
    batches = [side.to_batches(max_chunksize=BATCH_ROWS) for side in (left, right)]
    contestants: dict[str, Callable[[], Run]] = {
        "confluence": lambda: drive(spec, arrivals(*batches), memory, "confluence")
    }
    if settings.peers:
        contestants["duckdb"] = lambda: duckdb_join(left, right)
    contestants["xjoin"] = lambda: drive(spec, arrivals(*batches), memory, "xjoin")
    contestants["symmetric_hash"] = lambda: drive(spec, arrivals(*batches), memory, "symmetric_hash")
    contestants["wm.join"] = lambda: live(left, right, memory)
    if cores() > 1:
        contestants[ON_ALL] = lambda: live(left, right, memory, threads=cores())
        if settings.peers:
            contestants[PEER_ON_ALL] = lambda: duckdb_join(left, right, threads=cores())
    warm_up(left, right, settings)
    return take_turns(contestants, settings.repeat)


def warm_up(left: pa.Table, right: pa.Table, settings: Settings) -> None:
    """A few rows through everything: code is compiled, libraries are loaded."""
    left, right = left.slice(0, BATCH_ROWS), right.slice(0, BATCH_ROWS)
    spec = spec_of(left.schema, right.schema)
    for algorithm in ("confluence", "xjoin", "symmetric_hash"):
        drive(spec, arrivals(left.to_batches(), right.to_batches()), SMALL, algorithm)
    for threads in (1, cores()):
        live(left, right, SMALL, threads=threads)
    if settings.peers:
        duckdb_join(left, right)


def totals(runs: dict[str, list[Run]], bound: float, on_all: float | None = None) -> Iterator[Figure]:
    """Seconds to the last result; the targets are the default algorithm's, on one thread and on all."""
    peer = middle(runs.get("duckdb"), lambda run: run.total)
    for name in ("confluence", "xjoin", "symmetric_hash", "wm.join"):
        target = Target("<=", bound, of_ratio=True) if name == "confluence" else None
        yield Figure(f"total, {name}", middle(runs[name], lambda run: run.total), "s", peer, target)
    if ON_ALL in runs:
        peer = middle(runs.get(PEER_ON_ALL), lambda run: run.total)
        target = None if on_all is None else Target("<=", on_all, of_ratio=True)
        yield Figure(f"total, {ON_ALL}", middle(runs[ON_ALL], lambda run: run.total), "s", peer, target)


def firsts(runs: dict[str, list[Run]], bound: float | None) -> Iterator[Figure]:
    """Milliseconds to the first result."""
    peer = middle(runs.get("duckdb"), lambda run: 1e3 * run.first)
    for name in ("confluence", "wm.join"):
        target = Target("<=", bound, of_ratio=True) if bound is not None and name == "confluence" else None
        yield Figure(f"first result, {name}", middle(runs[name], lambda run: 1e3 * run.first), "ms", peer, target)


def exact(runs: dict[str, list[Run]], left: pa.Table, right: pa.Table) -> Figure:
    """Did every run find as many pairs as there are?"""
    expected = matches(left, right)
    return exactness(max(abs(run.result[0] - expected) for each in runs.values() for run in each))
