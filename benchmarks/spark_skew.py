"""Joins of streams in which one key has 30% of all rows: split or not, and with work that moves between slots.

By windows, the key has 30% on both sides. Where all rows are kept, it has 30% of the left rows, and few of the right
ones, as an order's customer has: else its pairs would be all that there is.

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
FEW = 20
"""Right rows of the key, where all rows are kept."""


def spark_skew(settings: Settings) -> Iterator[Figure]:
    """1M+1M rows on Spark, local[2], one key with 30% of them: by windows and all kept, split, moving, and neither."""
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place = Path(directory)
        ids = _keys(settings.rows(ROWS))
        seconds = max(1, round(SECONDS * settings.scale))
        at = write_by_time(place / "all", ids, seconds, FILES)
        matched = [ids[0], np.where(ids[1] == 0, np.arange(1, len(ids[1]) + 1), ids[1])]
        matched[1][:: max(1, len(ids[1]) // FEW)] = 0
        write_by_time(place / "few", matched, seconds, FILES)
        expected = {"skew": pairs_within(ids, at, SKEWED_MS * 1_000), "hot": _pairs(matched)}
        where = {
            "skew parallel": "all",
            "skew split": "all",
            "skew static": "all",
            "hot split": "few",
            "hot static": "few",
        }
        contestants = {name: partial(_measure, name, place, files) for name, files in where.items()}
        runs = take_turns(contestants, min(MOST_REPEATS, settings.repeat))
    rates = {name: middle(each, lambda run: run.rate(skipped=SKIPPED)) for name, each in runs.items()}
    times = {name: middle(each, lambda run: 1e6 * run.cpu / sum(run.rows)) for name, each in runs.items()}
    target = Target(">=", 1.5, of_ratio=True)
    told = {"skew parallel": "by windows, moving", "skew split": "by windows, split", "hot split": "all kept, split"}
    for name, said in told.items():
        static = f"{name.partition(' ')[0]} static"
        yield Figure(f"rows a second {said}, against neither", rates[name], "/s", rates[static], target)
        yield Figure(f"CPU a row {said}, against neither", times[name], "us", times[static])
    wrong = sum(run.results != expected[name.split()[0]] for name, each in runs.items() for run in each)
    yield exactness(wrong, "wrong runs, by row count")


def _pairs(ids: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> int:
    """How many pairs there are of all rows."""
    counts = [np.bincount(each, minlength=max(int(side.max()) for side in ids) + 1) for each in ids]
    return int((counts[0] * counts[1]).sum())


def _keys(rows: int) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    rng = np.random.default_rng(1)
    sides = []
    for _ in range(2):
        ids = rng.integers(1, rows, rows)
        ids[rng.random(rows) < HOT] = 0
        sides.append(ids)
    return sides


def _measure(contestant: str, place: Path, files: str) -> Account:
    """One query over all rows."""
    with tempfile.TemporaryDirectory(dir=place) as directory:
        step = Step(str(place / files), f"{directory}/measured", FILES_PER_BATCH, written=True)
        return measure(contestant, step, warm_up=WARM_UP)[0]
