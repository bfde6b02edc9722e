"""A live page of a real query."""

from __future__ import annotations

import io
import re
import urllib.request
from pathlib import Path

from pyspark.sql import SparkSession

import watersmeet as wm
from watersmeet import spark as wms


def test_a_query_on_a_page_with_its_groups(spark: SparkSession, tmp_path: Path) -> None:
    wms.register(spark)
    streams = [
        spark.readStream.format("watersmeet")
        .option("rowsPerBatch", 1000)
        .options(rows=2000, keys=500, seed=seed, columns=columns)
        .load()
        for seed, columns in ((1, "id, line, amount, note"), (2, "id, parcel, weight, address"))
    ]
    joined = wms.join(*streams, on="id", memory="64 MiB", partitions=3, state=tmp_path / "orders")
    with wm.Page() as page:
        with wms.Watch(spark, io.StringIO(), page=page):
            writer = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
            writer.trigger(availableNow=True).start().awaitTermination()
        text = urllib.request.urlopen(page.address.replace("/?", "/metrics?")).read().decode()
        [run] = page.board.runs
        assert run.title == "orders" and run.history.ended and run.history.error is None
        assert [group["number"] for group in run.extras["groups"]] == [0, 1, 2]
        assert sum(group["load"] for group in run.extras["groups"]) > 0
        last = run.history.last
        assert last is not None and last.rows_in == (2000, 2000) and last.rows_out > 0
        assert last.batch is not None and 0 < last.batch.join_seconds <= last.batch.seconds
        found = re.search(r'watersmeet_rows_out_total\{run="run-1",title="orders"\} (\d+)', text)
        assert found is not None and int(found[1]) == last.rows_out
