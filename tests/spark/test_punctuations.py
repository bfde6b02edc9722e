"""Punctuations in DataFrames: state stays small, and every pair comes once, over a restart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from watersmeet.core.errors import SpecError
from watersmeet.spark import figures, join, with_punctuations

BATCHES = 5


def test_what_is_over_is_forgotten(spark: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(10)
    for number in range(BATCHES):
        for name in ("left", "right"):
            # Keys of a stretch that moves on; behind it, all are over.
            ids = rng.integers(number * 50, number * 50 + 100, 300)
            _write(tmp_path / name, number, {"id": ids, name: np.arange(300) + 1_000 * number})
            _write(tmp_path / f"{name} over", number, {"id": np.arange(number * 50, number * 50 + 50)})
    told = []
    for last in (2, BATCHES):
        told += _run(spark, tmp_path, last)
    found = spark.read.parquet(str(tmp_path / "out"))
    left, right = (spark.read.parquet(str(tmp_path / name)) for name in ("left", "right"))
    expected = left.join(right, "id").select("id", "left", "right")
    assert found.exceptAll(expected).count() == expected.exceptAll(found).count() == 0
    assert sum(each["results"] for each in told) == expected.count() > 3_000
    # Half of a batch's keys are over with it, and all that came before.
    assert len(told) == BATCHES
    assert all(0 < each["state_rows"] < 400 for each in told), told


def test_rows_without_a_partner_come_when_their_keys_are_over(spark: Any, tmp_path: Path) -> None:
    """Neither stream ends: what comes alone is what promises have settled, over a restart, and each row once."""
    rng = np.random.default_rng(11)
    for number in range(BATCHES):
        for name in ("left", "right"):
            ids = rng.integers(number * 50, number * 50 + 100, 40)
            _write(tmp_path / name, number, {"id": ids, name: np.arange(40) + 1_000 * number})
            _write(tmp_path / f"{name} over", number, {"id": np.arange(number * 50, number * 50 + 50)})
    told = []
    for last in (2, BATCHES):
        told += _run(spark, tmp_path, last, how="full")
    found = spark.read.parquet(str(tmp_path / "out"))
    left, right = (spark.read.parquet(str(tmp_path / name)) for name in ("left", "right"))
    settled = f"(left is not null and right is not null) or id < {BATCHES * 50}"
    expected = left.join(right, "id", "full").select("id", "left", "right").where(settled)
    assert found.exceptAll(expected).count() == expected.exceptAll(found).count() == 0
    assert expected.where("left is null").count() > 20 < expected.where("right is null").count()
    assert all(0 < each["state_rows"] < 250 for each in told), told


def _write(place: Path, number: int, columns: dict[str, Any]) -> None:
    place.mkdir(exist_ok=True)
    path = place / f"{number}.parquet"
    pq.write_table(pa.table(columns), path)
    os.utime(path, (number, number))


def _run(spark: Any, place: Path, files: int, how: str = "inner") -> list[dict[str, Any]]:
    """Work off so many files of each stream in all; what the batches did."""
    frames = []
    for name in ("left", "right"):
        streams = []
        for directory, schema in ((name, f"id long, {name} long"), (f"{name} over", "id long")):
            for number in range(files):
                (place / "now" / directory).mkdir(parents=True, exist_ok=True)
                file = place / "now" / directory / f"{number}.parquet"
                if not file.exists():
                    os.link(place / directory / file.name, file)
            reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            streams.append(reader.parquet(str(place / "now" / directory)))
        frames.append(with_punctuations(*streams))
    promised = {"punctuated": True}
    joined = join(
        *frames, on="id", how=how, memory="512 KiB", partitions=2, state=place / "state",
        promises={"left": promised, "right": promised},
    )  # fmt: skip
    writer = joined.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(place / "out"))
    query.awaitTermination()
    return [figures(progress)["state"] for progress in query.recentProgress if progress.numInputRows]


def test_words_that_do_not_fit(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, 2)], "id long, v long")
    with pytest.raises(SpecError, match=r"promises are for streams with a column 'watersmeet_event'"):
        join(frame, frame, on="id", promises={"left": {"unique": "id"}})
    with pytest.raises(SpecError, match=r"a punctuation is about column 'w', which the input does not have"):
        with_punctuations(frame, frame.withColumnRenamed("v", "w"))
