"""Two streams joined by windows of time on Spark: ours, and Spark's own join with watermarks and a range of times."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, Target, exactness
from benchmarks.rounds import Settings
from benchmarks.spark_equi import MOST_REPEATS
from benchmarks.spark_inputs import pairs_within, write_by_time
from benchmarks.spark_verbs import WINDOW
from benchmarks.spark_warm import Measured

ROWS = 2_000_000
FILES = 20
FILES_PER_BATCH = 4
SECONDS = 2_000
"""From the first row to the last: a thousand rows a second and input at the usual size."""


def spark_window(settings: Settings) -> Iterator[Figure]:
    """2M+2M rows on Spark, local[2], 800k rows a batch, times at most a tenth of the whole apart."""
    names = ["window ours", *(["window heap", "window rocksdb"] if settings.peers else [])]
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place = Path(directory)
        rows = settings.rows(ROWS)
        rng = np.random.default_rng(1)
        ids = [rng.integers(0, rows, rows) for _ in range(2)]
        at = write_by_time(place / "all", ids, SECONDS, FILES)
        expected = pairs_within(ids, at, WINDOW * 1_000_000)
        measured = Measured.of(names, place, FILES_PER_BATCH, min(MOST_REPEATS, settings.repeat))
    for peer, bound in {"heap": 6.0, "rocksdb": 12.0}.items():
        yield measured.rate(f"window {peer}", peer, Target(">=", bound, of_ratio=True))
        yield measured.cpu(f"window {peer}", peer)
    yield measured.memory("window heap", "heap", Target("<=", 0.5, of_ratio=True))
    yield exactness(measured.wrong(expected), "wrong runs, by row count")
