"""Two streams joined by windows of time on Spark, left outer: ours, and Spark's own join with watermarks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, Target, exactness
from benchmarks.rounds import Settings
from benchmarks.spark_equi import MOST_REPEATS
from benchmarks.spark_inputs import alone_within, pairs_within, write_by_time
from benchmarks.spark_verbs import WINDOW
from benchmarks.spark_warm import Measured
from benchmarks.spark_window import FILES, FILES_PER_BATCH, SECONDS

ROWS = 500_000
"""Of each input: with RocksDB Spark takes half a minute or more for them, to warm up and again to be measured."""
_REACH = WINDOW * 1_000_000


def spark_kinds(settings: Settings) -> Iterator[Figure]:
    """500k+500k rows on Spark, local[2], 200k rows a batch, left outer, times at most a tenth of the whole apart."""
    names = ["outer ours", *(["outer rocksdb"] if settings.peers else [])]
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place = Path(directory)
        rows = settings.rows(ROWS)
        rng = np.random.default_rng(1)
        ids = [rng.integers(0, rows, rows) for _ in range(2)]
        at = write_by_time(place / "all", ids, SECONDS, FILES)
        # A row without partner comes with a batch before which the other input had passed its window.
        known = at[: rows * (FILES - FILES_PER_BATCH) // FILES][-1] - _REACH
        expected = pairs_within(ids, at, _REACH) + int(np.count_nonzero(at[alone_within(ids, at, _REACH)] < known))
        measured = Measured.of(names, place, FILES_PER_BATCH, min(MOST_REPEATS, settings.repeat))
    yield measured.rate("outer rocksdb", "rocksdb", Target(">=", 5.0, of_ratio=True))
    yield measured.cpu("outer rocksdb", "rocksdb")
    yield measured.memory("outer rocksdb", "rocksdb")
    wrong = sum(run.results != expected for run in measured.runs["outer ours"])
    yield exactness(wrong, "wrong runs of ours, by row count")
