"""Window joins of streams in which one key has 30% of all rows: with work that moves between slots, and without.

The results, nearly all of which are of that key, are written to Parquet files, as a pipeline's would be: what becomes
of a task's results is part of what the task has to do, and moves with them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, Target, exactness
from benchmarks.rounds import Settings, middle, take_turns
from benchmarks.spark_inputs import pairs_within, write_by_time
from benchmarks.spark_query import Account, Step, measure
from benchmarks.spark_verbs import SKEWED_MS
from benchmarks.spark_warm import WARM_UP

ROWS = 1_000_000
FILES = 20
SECONDS = 1_000
"""From the first row to the last."""
HOT = 0.3
FILES_PER_BATCH = 2
SKIPPED = 4
"""Batches that are left out: in them, the key is found and split."""
MOST_REPEATS = 3


def spark_skew(settings: Settings) -> Iterator[Figure]:
    """1M+1M rows on Spark, local[2], by windows, one key with 30% of them: two slots, work that moves or does not."""
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place = Path(directory)
        ids = _keys(settings.rows(ROWS))
        at = write_by_time(place / "all", ids, max(1, round(SECONDS * settings.scale)), FILES)
        expected = pairs_within(ids, at, SKEWED_MS * 1_000)
        contestants = {name: partial(_measure, name, place) for name in ("skew parallel", "skew static")}
        runs = take_turns(contestants, min(MOST_REPEATS, settings.repeat))
    rates = {name: middle(each, lambda run: run.rate(skipped=SKIPPED)) for name, each in runs.items()}
    times = {name: middle(each, lambda run: 1e6 * run.cpu / sum(run.rows)) for name, each in runs.items()}
    target = Target(">=", 1.5, of_ratio=True)
    yield Figure("rows a second, against static", rates["skew parallel"], "/s", rates["skew static"], target)
    yield Figure("CPU a row, against static", times["skew parallel"], "us", times["skew static"])
    yield exactness(sum(run.results != expected for each in runs.values() for run in each), "wrong runs, by row count")


def _keys(rows: int) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    rng = np.random.default_rng(1)
    sides = []
    for _ in range(2):
        ids = rng.integers(1, rows, rows)
        ids[rng.random(rows) < HOT] = 0
        sides.append(ids)
    return sides


def _measure(contestant: str, place: Path) -> Account:
    """One query over all rows."""
    with tempfile.TemporaryDirectory(dir=place) as directory:
        step = Step(str(place / "all"), f"{directory}/measured", FILES_PER_BATCH, written=True)
        return measure(contestant, step, warm_up=WARM_UP)[0]
