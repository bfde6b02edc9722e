"""Memory for a tenth, a thirtieth and a hundredth of the input: what does it cost, beside our own time in memory?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from benchmarks.figures import Figure, Target, exactness
from benchmarks.inputs import BATCH_ROWS, TEXT_WIDTH, matches, row_bytes, spec_of, table
from benchmarks.ours import arrivals, drive
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.sources import generators

SHARES = {"10%": 0.1, "3%": 0.03, "1%": 0.01}
AMPLE = 10
"""Times the input."""
WORKLOADS = {
    "uniform": (1_500_000, {"10%": 2.0, "3%": 2.5, "1%": 3.0}),
    "zipf": (200_000, dict.fromkeys(SHARES, 1.2)),
}
"""Rows of each input, and how many times our own time in memory each may take."""
RIVAL = "xjoin"


def short(settings: Settings) -> Iterator[Figure]:
    """1.5M+1.5M uniform and 200k+200k Zipf(0.8); 10%, 3% and 1% of memory."""
    for name, (full, bounds) in WORKLOADS.items():
        rows = settings.rows(full)
        left, right = (_keys(name, rows, settings, side) for side in (0, 1))
        size = left.nbytes + right.nbytes
        contestants: dict[str, Callable[[], tuple[float, int]]] = {
            "in memory": partial(_run, left, right, AMPLE * size)
        }
        contestants |= {share: partial(_run, left, right, _memory(part, size)) for share, part in SHARES.items()}
        if settings.peers:
            contestants[f"{RIVAL} 10%"] = partial(_run, left, right, _memory(SHARES["10%"], size), RIVAL)
        _run(left.slice(0, BATCH_ROWS), right.slice(0, BATCH_ROWS), 1 << 20)
        runs = take_turns(contestants, settings.repeat)
        own = middle(runs["in memory"], lambda run: run[0])
        yield Figure(f"{name}: in memory", own, "s")
        for share in SHARES:
            seconds = middle(runs[share], lambda run: run[0])
            yield Figure(f"{name}: {share}", seconds, "s", own, Target("<=", bounds[share], of_ratio=True))
        if settings.peers:
            yield Figure(f"{name}: 10%, {RIVAL}", middle(runs[f"{RIVAL} 10%"], lambda run: run[0]), "s", own)
        expected = matches(left, right)
        yield exactness(sum(run[1] != expected for each in runs.values() for run in each), f"{name}: wrong runs")


def budgets(rows: int) -> dict[str, int]:
    """Bytes of each share of two inputs of so many rows."""
    return {share: _memory(part, int(2 * rows * row_bytes(TEXT_WIDTH))) for share, part in SHARES.items()}


def _memory(share: float, size: int) -> int:
    """A share of the input, but as much as any join needs where that is scaled down."""
    return max(1 << 17, int(share * size))


def _keys(name: str, rows: int, settings: Settings, side: int) -> pa.Table:
    if name == "uniform":
        return table(generators.uniform(rows, rows, side + 1), side + 1)
    return table(generators.zipf(rows, settings.rows(1_000_000), 0.8, side), side + 9)


def _run(left: pa.Table, right: pa.Table, memory: int, algorithm: str = "confluence") -> tuple[float, int]:
    """Seconds of processor time, which are steadier than the clock's, and the pairs."""
    batches = [side.to_batches(max_chunksize=BATCH_ROWS) for side in (left, right)]
    began = time.process_time()
    run = drive(spec_of(left.schema, right.schema), arrivals(*batches), memory, algorithm)
    return time.process_time() - began, run.result[0]
