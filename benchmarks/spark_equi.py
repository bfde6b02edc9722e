"""Two streams joined on Spark, whole state kept: ours, Spark's own join, and what Spark needs to deliver the rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.figures import Figure, Target, exactness
from benchmarks.rounds import Settings
from benchmarks.spark_inputs import Keys, write_files
from benchmarks.spark_warm import Measured

ROWS = 2_000_000
FILES = 20
FILES_PER_BATCH = 4
MOST_REPEATS = 3
"""A run takes minutes."""


def spark_equi(settings: Settings) -> Iterator[Figure]:
    """2M+2M rows on Spark, local[2], 800k rows a batch, keys uniform over 2M."""
    measured, expected = _measured(settings, ["ours", *(["heap", "rocksdb"] if settings.peers else [])])
    for name, bound in {"heap": 6.0, "rocksdb": 12.0}.items():
        yield measured.rate(name, name, Target(">=", bound, of_ratio=True))
        yield measured.cpu(name, name)
    yield measured.memory("heap", "heap", Target("<=", 0.5, of_ratio=True))
    yield exactness(measured.wrong(expected), "wrong runs, by row count")


def spark_drain(settings: Settings) -> Iterator[Figure]:
    """The same rows through the same plan, against an operator that drops everything."""
    measured, expected = _measured(settings, ["ours", "drain"])
    yield measured.rate("drain", "drain", Target(">=", 0.7, of_ratio=True))
    yield measured.cpu("drain", "drain")
    yield exactness(sum(run.results != expected for run in measured.runs["ours"]), "wrong runs, by row count")


def _measured(settings: Settings, names: Sequence[str]) -> tuple[Measured, int]:
    """What each contestant did in each round, and how many results there are."""
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place = Path(directory)
        rows = settings.rows(ROWS)
        expected = write_files(place / "all", Keys(rows), [rows // FILES] * FILES)
        return Measured.of(names, place, FILES_PER_BATCH, min(MOST_REPEATS, settings.repeat)), expected
