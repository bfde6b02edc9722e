"""A live page of real queries.

They read files: for each stream of our own source, Spark starts a Python process on the driver and gives it ten seconds
to answer, which a busy machine does not keep.
"""

from __future__ import annotations

import io
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import watersmeet as wm
from waiting import PATIENCE
from watersmeet import spark as wms
from watersmeet.live.board import ShownRun

FILES = 3
ROWS = 500


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[wm.Page]:
    monkeypatch.setattr("watersmeet.spark.io.watch._PATIENCE", PATIENCE)
    with wm.Page() as made:
        yield made


def stream(spark: SparkSession, place: Path, value: str) -> DataFrame:
    """Some files of rows, read one at a time: keys from 0 to 99, seconds that go on from one file to the next."""
    place.mkdir()
    for number in range(FILES):
        at = range(number * ROWS, (number + 1) * ROWS)
        columns = {"id": [each * 7 % 100 for each in at], "at": pa.array(at, pa.int64()), value: list(at)}
        path = place / f"{number}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (1e9 + number,) * 2)  # in the order of which Spark reads them
    reader = spark.readStream.schema(f"id long, at long, {value} long").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(place))


def run_of(spark: SparkSession, joined: DataFrame, page: wm.Page, checkpoint: Path) -> ShownRun:
    """Let a query run to its end; returns what the page has of it."""
    with wms.Watch(spark, io.StringIO(), page=page):
        writer = joined.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
    [run] = page.board.runs
    assert run.history.ended and run.history.error is None
    return run


def test_a_query_on_a_page_with_its_groups(spark: SparkSession, tmp_path: Path, page: wm.Page) -> None:
    left, right = (stream(spark, tmp_path / name, name) for name in ("amount", "weight"))
    joined = wms.join(left, right.drop("at"), on="id", memory="64 MiB", partitions=3, state=tmp_path / "orders")
    run = run_of(spark, joined, page, tmp_path / "checkpoint")
    text = urllib.request.urlopen(page.address.replace("/?", "/metrics?")).read().decode()
    assert run.title == "orders"
    assert [group["number"] for group in run.extras["groups"]] == [0, 1, 2]
    assert sum(group["load"] for group in run.extras["groups"]) > 0
    last = run.history.last
    assert last is not None and last.rows_in == (FILES * ROWS,) * 2 and last.rows_out == (FILES * ROWS) ** 2 // 100
    assert last.batch is not None and 0 < last.batch.join_seconds <= last.batch.seconds
    assert [each.batch.number for each in run.history.samples() if each.batch][-1] == FILES - 1
    found = re.search(r'watersmeet_rows_out_total\{run="run-1",title="orders"\} (\d+)', text)
    assert found is not None and int(found[1]) == last.rows_out


def test_a_window_join_in_slots(spark: SparkSession, tmp_path: Path, page: wm.Page) -> None:
    left, right = (stream(spark, tmp_path / name, name) for name in ("amount", "weight"))
    options: dict[str, Any] = {"memory": "64 MiB", "slots": (2, 2), "groups": 6, "state": tmp_path / "clicks"}
    joined = wms.parallel_join(left, right, on="id", time="at", window=50, **options)
    run = run_of(spark, joined, page, tmp_path / "checkpoint")
    groups = run.extras["groups"]
    assert [group["number"] for group in groups] == list(range(6)) and {group["slot"] for group in groups} == {0, 1}
    assert run.extras["unit"] == "seconds" and sum(group["load"] for group in groups) > 0
    last = run.history.last
    assert last is not None and last.rows_in == (FILES * ROWS,) * 2 and last.rows_out > 0
    assert last.late == (0, 0) and last.window_rows is not None
    assert last.reached == (FILES * ROWS - 1,) * 2 and not last.dated
