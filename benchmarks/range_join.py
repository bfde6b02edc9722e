"""Rows whose keys are close: speed in memory, and beside DuckDB's range join."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from benchmarks.figures import Figure, Target, exactness
from benchmarks.inputs import table
from benchmarks.ours import Run, arrivals, drive
from benchmarks.peer import duckdb_join
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.core.spec import JoinSpec, band, parse_on
from watersmeet.sources import generators

ROWS, DOMAIN = 200_000, 400_000
WIDTH = 1
BATCH_ROWS = 8192
MEMORY = 256 << 20
LITTLE = 0.1
"""The part of the input that little memory is."""
ALGORITHMS = ("confluence", "diner", "pmj")
BOUNDS = {"confluence": Target("<=", 0.6, of_ratio=True)}
MOST_IN_LITTLE = 3.0
"""Times our own in memory that the same may take in a tenth of it."""
_QUERY = f"""
    SELECT l.key, l.number, l.measure, l.text, r.key AS key_right, r.number AS number_right, r.measure AS measure_right,
    r.text AS text_right FROM l JOIN r ON l.key BETWEEN r.key - {WIDTH} AND r.key + {WIDTH}
"""


def range_join(settings: Settings) -> Iterator[Figure]:
    """200k+200k rows whose keys differ by at most 1; in memory, and in 10% of it."""
    rows, domain = settings.rows(ROWS), settings.rows(DOMAIN)
    left, right = (table(generators.uniform(rows, domain, side), side) for side in (0, 1))
    spec = JoinSpec(left.schema, right.schema, parse_on(band("key", WIDTH)))
    batches = [side.to_batches(max_chunksize=BATCH_ROWS) for side in (left, right)]
    little = max(1 << 20, int(LITTLE * (left.nbytes + right.nbytes)))

    def ours(algorithm: str, memory: int) -> Run:
        return drive(spec, arrivals(*batches), memory, algorithm)

    for algorithm in ALGORITHMS:  # compiles, or loads what was compiled
        ours(algorithm, little)
    contestants = {name: lambda name=name: ours(name, MEMORY) for name in ALGORITHMS}
    contestants |= {f"{name} in 10%": lambda name=name: ours(name, little) for name in ALGORITHMS}
    if settings.peers:
        contestants["duckdb"] = lambda: duckdb_join(left, right, query=_QUERY)
    runs = take_turns(contestants, settings.repeat)
    peer = middle(runs.get("duckdb"), lambda run: run.total)
    peer_first = middle(runs.get("duckdb"), lambda run: 1e3 * run.first)
    speed = middle(runs["confluence"], lambda run: 2 * rows / run.total)
    yield Figure("rows a second, confluence", speed, "rows/s", None, Target(">=", 1e6))
    for name in contestants:
        if name != "duckdb":
            yield Figure(f"total, {name}", middle(runs[name], lambda run: run.total), "s", peer, BOUNDS.get(name))
            yield Figure(f"first result, {name}", middle(runs[name], lambda run: 1e3 * run.first), "ms", peer_first)
    much, in_little = (middle(runs[name], lambda run: run.total) for name in ("confluence", "confluence in 10%"))
    yield Figure("10%, beside all in memory", in_little, "s", much, Target("<=", MOST_IN_LITTLE, of_ratio=True))
    expected = close_pairs(left, right)
    wrong = [run for each in runs.values() for run in each if run.result[0] != expected]
    yield exactness(len(wrong), "wrong runs")


def close_pairs(left: pa.Table, right: pa.Table) -> int:
    """How many pairs of keys are within the width, by counting in the sorted keys."""
    keys = np.sort(right["key"].to_numpy())
    wanted = left["key"].to_numpy()
    above = np.searchsorted(keys, wanted + WIDTH, side="right")
    return int((above - np.searchsorted(keys, wanted - WIDTH, side="left")).sum())
