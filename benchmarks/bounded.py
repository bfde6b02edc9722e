"""Inputs several times larger than memory: is every pair found, and what does spilling cost?"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from benchmarks.figures import Figure, Target, exactness
from benchmarks.in_memory import warm_up
from benchmarks.inputs import BATCH_ROWS, Checksum, expected_checksum, lazy, spec_of
from benchmarks.ours import Run, arrivals, drive, live
from benchmarks.peer import OutOfMemory, duckdb_join
from benchmarks.rounds import Settings, middle, take_turns

ROWS = 3_000_000
TEXT_WIDTH = 80
"""With the integer and the float this makes a payload of 96 bytes."""
BUDGETS = (200_000_000, 100_000_000, 60_000_000)


def budgets(settings: Settings) -> dict[str, int]:
    """Bytes at this scale, under the names they have at the full one."""
    return {f"{full // 10**6} MB": max(4 << 20, settings.rows(full)) for full in BUDGETS}


def bounded(settings: Settings) -> Iterator[Figure]:
    """3M+3M rows of 104 bytes, uniform keys over 3M, in 200, 100 and 60 MB."""
    rows = settings.rows(ROWS)
    left, right = (pa.Table.from_batches(lazy(side, rows, rows, TEXT_WIDTH)) for side in (0, 1))
    warm_up(left, right, settings)
    with tempfile.TemporaryDirectory() as spill:
        runs = take_turns(_contestants(left, right, settings, Path(spill)), settings.repeat)
    largest = next(iter(budgets(settings)))
    peer = middle(_finished(runs.get("duckdb")), lambda run: run.total)
    for name in budgets(settings):
        done = _finished(runs[name])
        target = Target("<=", 1.5, of_ratio=True) if name == largest else None
        yield Figure(f"total in {name}", middle(done, lambda run: run.total), "s", _if(name == largest, peer), target)
        yield Figure(f"  of it until all arrived, {name}", middle(done, lambda run: run.arrived), "s")
        yield Figure(f"  spilled, {name}", middle(done, lambda run: run.spilled / 1e6), "MB")
    yield Figure(f"total in {largest}, wm.join", middle(_finished(runs["wm.join"]), lambda run: run.total), "s", peer)
    if settings.peers:
        free = middle(_finished(runs["duckdb, all threads"]), lambda run: run.total)
        yield Figure(f"total in {largest}, peer's threads", middle(runs[largest], _total), "s", free)
    expected = expected_checksum(left, right)
    ours = [run for name, each in runs.items() if not name.startswith("duckdb") for run in each]
    yield exactness(sum(run is None or run.result != expected for run in ours), "wrong runs, by checksum")
