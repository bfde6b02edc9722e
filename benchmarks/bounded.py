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
    """3M+3M rows, 96 bytes of payload, uniform keys; 200, 100, 60 MB."""
    rows = settings.rows(ROWS)
    left, right = (pa.Table.from_batches(lazy(side, rows, rows, TEXT_WIDTH)) for side in (0, 1))
    warm_up(left, right, settings)
    with tempfile.TemporaryDirectory() as spill:
        runs = take_turns(_contestants(left, right, settings, Path(spill)), settings.repeat)
    largest = next(iter(budgets(settings)))
    peer = _total(runs.get("duckdb"))
    for name in budgets(settings):
        target = Target("<=", 1.0, of_ratio=True) if name == largest else None
        own = None if name == largest else _total(runs[largest])
        target = target or Target("<=", 1.3, of_ratio=True)
        yield Figure(f"total in {name}", _total(runs[name]), "s", peer if name == largest else own, target)
        yield Figure(f"until all arrived, {name}", middle(_done(runs[name]), lambda run: run.arrived), "s")
        yield Figure(f"first result, {name}", middle(_done(runs[name]), lambda run: 1e3 * run.first), "ms")
        yield Figure(f"spilled, {name}", middle(_done(runs[name]), lambda run: run.spilled / 1e6), "MB")
    yield Figure(f"total in {largest}, wm.join", _total(runs["wm.join"]), "s", peer)
    if settings.peers:
        yield Figure(f"total in {largest}; peer free", _total(runs[largest]), "s", _total(runs["duckdb, all threads"]))
    expected = expected_checksum(left, right)
    ours = [run for name, each in runs.items() if not name.startswith("duckdb") for run in each]
    yield exactness(sum(run is None or run.result != expected for run in ours), "wrong runs, by checksum")


def _contestants(
    left: pa.Table, right: pa.Table, settings: Settings, spill: Path
) -> dict[str, Callable[[], Run | None]]:
    """The operator at every budget, the live driver and the peer at the largest."""
    spec = spec_of(left.schema, right.schema)
    batches = [side.to_batches(max_chunksize=BATCH_ROWS) for side in (left, right)]
    largest, *others = budgets(settings).items()

    def operator(memory: int) -> Callable[[], Run | None]:
        return lambda: drive(spec, arrivals(*batches), memory, count=Checksum())

    def peer(threads: int | None) -> Callable[[], Run | None]:
        def run() -> Run | None:
            with suppress(OutOfMemory):
                return duckdb_join(left, right, Checksum(), threads=threads, memory=largest[1], spill=spill)
            return None

        return run

    contestants = {largest[0]: operator(largest[1])}
    if settings.peers:
        contestants["duckdb"] = peer(1)
    contestants |= {name: operator(memory) for name, memory in others}
    contestants["wm.join"] = lambda: live(left, right, largest[1], count=Checksum())
    if settings.peers:
        contestants["duckdb, all threads"] = peer(None)
    return contestants


def _done(runs: list[Run | None]) -> list[Run]:
    """The runs that came to their end."""
    return [run for run in runs if run is not None]


def _total(runs: list[Run | None] | None) -> float | None:
    return middle(_done(runs or []), lambda run: run.total)
