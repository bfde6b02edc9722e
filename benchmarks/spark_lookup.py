"""A stream answered from a table on Spark: our relation on disk, and Spark's join of a stream with a static table."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import watersmeet as wm
from benchmarks.figures import Figure, Target, exactness
from benchmarks.lookup import RELATION_ROWS, RELATION_TEXT, SHARE, STREAM_ROWS
from benchmarks.rounds import Settings
from benchmarks.spark_equi import MOST_REPEATS
from benchmarks.spark_inputs import in_turn
from benchmarks.spark_verbs import PARTITIONS
from benchmarks.spark_warm import Measured
from watersmeet.sources import generators

FILES = 20
FILES_PER_BATCH = 4
SKEW = 0.8
AT_ONCE = 250_000
"""Rows of the table that are made at a time."""


def spark_lookup(settings: Settings) -> Iterator[Figure]:
    """2M stream rows on Spark, local[2], Zipf(0.8), against 5M rows of 128 bytes, with memory for a tenth of them."""
    names = ["lookup ours", *(["lookup spark"] if settings.peers else [])]
    rows, relation_rows = settings.rows(STREAM_ROWS), settings.rows(RELATION_ROWS)
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place = Path(directory)
        _write_table(place / "table", relation_rows)
        _write_stream(place / "all" / "left", generators.zipf(rows, relation_rows, SKEW, 1))
        measured = Measured.of(names, place, FILES_PER_BATCH, min(MOST_REPEATS, settings.repeat))
    yield measured.rate("lookup spark", "stream and table", Target(">=", 2.0, of_ratio=True))
    yield measured.cpu("lookup spark", "stream and table")
    yield measured.memory("lookup spark", "stream and table")
    yield exactness(measured.wrong(rows), "wrong runs, by row count")


def _write_table(place: Path, rows: int) -> None:
    """The table as Parquet and as a relation, and how much memory each of two tasks may have for it."""
    (place / "parquet").mkdir(parents=True)
    for first in range(0, rows, AT_ONCE):
        ids = np.arange(first, min(rows, first + AT_ONCE))
        texts = pa.array([f"{each:0{RELATION_TEXT}d}" for each in ids.tolist()])
        table = pa.table({"id": ids, "amount": ids * 3, "weight": ids / 7, "text": texts})
        pq.write_table(table, place / "parquet" / f"{first:08d}.parquet")
    wm.Relation.build(str(place / "parquet" / "*.parquet"), on="id", path=place / "relation")
    (place / "memory").write_text(str(int(SHARE * rows * (24 + RELATION_TEXT) / PARTITIONS)))


def _write_stream(place: Path, keys: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    place.mkdir(parents=True)
    for number, part in enumerate(np.array_split(np.arange(len(keys)), FILES)):
        path = place / f"{number:06d}.parquet"
        pq.write_table(pa.table({"id": keys[part], "number": part, "measure": part / 3}), path)
        in_turn(path, number)
