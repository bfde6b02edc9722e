"""A window join that runs for long, with windows many times larger than its memory: `python -m benchmarks.soak_window`.

Rows are made as they are asked for, and the pairs they must give are counted beside the join, by other means. Every ten
seconds a line says how many rows came, how large the process is, and how many files it has open; the last line says
whether the number of pairs is right and by how much the process has grown since the windows were full.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pyarrow as pa

from watersmeet import planner
from watersmeet.core.arrays import Int64
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End, Status
from watersmeet.core.spec import Output, parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.memory import format_bytes, parse_memory
from watersmeet.spill import FileStore

BATCH = 8192
ROW_BYTES = 64
EVERY = 10.0


class Expected:
    """How many pairs arrivals must give: a count for each key of the rows in both windows, kept up to date by hand."""

    def __init__(self, window: int, keys: int) -> None:
        self._window = window
        self._rows = [np.zeros(window + 2 * BATCH, np.int64) for _ in (0, 1)]
        self._counts = [np.zeros(keys, np.int64) for _ in (0, 1)]
        self._low, self._high = [0, 0], [0, 0]
        """The counts are of rows with times in [low, high)."""
        self.pairs = 0

    def add(self, side: int, start: int, keys: Int64) -> None:
        """Rows with times from `start` on arrived on one side: which of the other are in reach?"""
        other, last = 1 - side, start + len(keys)
        self._move(other, last - self._window)
        self.pairs += int(self._counts[other][keys].sum())
        edge = np.arange(max(0, start - self._window), max(0, min(last - self._window, self._high[other])))
        self._count_edge(keys, self._at(other, edge), edge + self._window - start)
        self._rows[side][np.arange(start, last) % len(self._rows[side])] = keys
        np.add.at(self._counts[side], keys, 1)
        self._high[side] = last

    def _move(self, side: int, low: int) -> None:
        gone = np.arange(self._low[side], max(self._low[side], low))
        np.subtract.at(self._counts[side], self._at(side, gone), 1)
        self._low[side] = max(self._low[side], low)

    def _at(self, side: int, times: Int64) -> Int64:
        return self._rows[side][times % len(self._rows[side])]

    def _count_edge(self, keys: Int64, old: Int64, reach: Int64) -> None:
        """Old rows meet the first so many of the new ones only."""
        order = np.argsort(keys, kind="stable")
        first, beyond = (np.searchsorted(keys[order], old, side=end) for end in ("left", "right"))
        for i in np.flatnonzero(beyond > first):
            self.pairs += int((order[first[i] : beyond[i]] <= reach[i]).sum())


def batches(side: int, keys: int) -> Iterator[tuple[int, Int64, pa.RecordBatch]]:
    """Rows without an end."""
    random = np.random.default_rng([side, 11])
    text = pa.array([b"x" * 32] * BATCH, pa.binary(32))
    start = 0
    while True:
        key = random.integers(0, keys, BATCH)
        columns = [
            pa.array(key),
            pa.array(np.arange(start, start + BATCH)),
            pa.array(key * 3),
            pa.array(key * 0.5),
            text,
        ]
        yield start, key, pa.record_batch(columns, ["key", "ts", "number", "measure", "text"])
        start += BATCH


def main() -> int:
    """Run until the time is over; 0 if every pair was found once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--memory", default="16 MiB")
    parser.add_argument("--times", type=float, default=20.0, help="how much larger than memory the windows are")
    parser.add_argument("--algorithm", default="ah_ewj")
    chosen = parser.parse_args()
    memory = parse_memory(chosen.memory)
    window = int(chosen.times * memory / 2 / ROW_BYTES)
    keys = max(1, window // 2)
    made = [batches(side, keys) for side in (0, 1)]
    schema = next(batches(0, 1))[2].schema
    spec = WindowJoinSpec(schema, schema, parse_on("key"), output=Output.COUNTS, window=parse_windows(window, "ts"))
    print(f"{chosen.algorithm}, {chosen.memory} of memory, windows of {window:,} rows a side", flush=True)
    expected, process = Expected(window, keys), psutil.Process()
    found = rows = 0
    full: int | None = None
    with FileStore() as store:
        join = planner.build_window(spec, memory, store, chosen.algorithm)
        began = look = time.monotonic()
        while time.monotonic() - began < 60 * chosen.minutes:
            for side in (LEFT, RIGHT):
                start, key, batch = next(made[side])
                expected.add(side, start, key)
                join.receive(Arrive(side, batch))
                found += _work_off(join)
                rows += BATCH
            if full is None and rows > 3 * window:
                full = process.memory_info().rss
            if time.monotonic() >= look:
                look += EVERY
                size = process.memory_info().rss
                print(
                    f"{time.monotonic() - began:7.0f} s  {rows:>13,} rows  {found:>13,} pairs  resident "
                    f"{format_bytes(size)}  open files {process.num_fds()}  on disk {format_bytes(store.bytes_held)} "
                    f"in {len(store.names())} segments  {dict(join.events)}",
                    flush=True,
                )
        seconds = time.monotonic() - began
        grown = process.memory_info().rss - (full or 0)
        for side in (LEFT, RIGHT):
            join.receive(End(side))
        found += _work_off(join)
        left = len(store.names())
        join.close()
    exact = found == expected.pairs
    print(
        f"{rows:,} rows in {seconds:.0f} s ({rows / seconds:,.0f} a second); {found:,} pairs, {expected.pairs:,} "
        f"expected: {'exact' if exact else 'WRONG'}; grown by {format_bytes(grown)} since the windows were full; "
        f"{left} segments left at the end"
    )
    return 0 if exact and not left else 1


def _work_off(join: planner.Operator) -> int:
    results = 0
    while True:
        step = join.poll(time.monotonic(), 1 << 17)
        results += step.cost.results
        if step.status is not Status.HAS_OUTPUT:
            return results


if __name__ == "__main__":
    sys.exit(main())
