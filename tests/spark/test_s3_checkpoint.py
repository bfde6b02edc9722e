"""Checkpoint, sink and state all on an S3 server: Spark's own files by its S3A connector, ours by PyArrow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from servers.process import Unavailable, fetched, spark_jars
from servers.s3proxy import BUCKET, S3Proxy

_SCRIPT = """
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from watersmeet import spark as wms

place, jars, port, state = Path(sys.argv[1]), *sys.argv[2:5]
s3a = "spark.hadoop.fs.s3a"
spark = (
    SparkSession.builder.master("local[2]").config("spark.jars", jars)
    .config(f"{s3a}.endpoint", f"http://127.0.0.1:{port}").config(f"{s3a}.endpoint.region", "us-east-1")
    .config(f"{s3a}.access.key", "me").config(f"{s3a}.secret.key", "secret").config(f"{s3a}.path.style.access", True)
    .config(f"{s3a}.connection.ssl.enabled", False).config(f"{s3a}.change.detection.mode", "none")
    .config("spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager")
    .config("spark.sql.shuffle.partitions", 2).config("spark.ui.enabled", False).config("spark.log.level", "ERROR")
    .getOrCreate()
)
SIDES, S3 = ("left", "right"), "s3a://BUCKET"


def add(first, last):
    for side in SIDES:
        rows = spark.range(first, last).selectExpr("id % 50 as id", f"id as {side}")
        rows.coalesce(1).write.mode("append").parquet(str(place / side))


def run():
    left, right = (spark.readStream.schema(f"id long, {side} long").parquet(str(place / side)) for side in SIDES)
    joined = wms.join(left, right, on="id", memory="8 MiB", state=state)
    writer = joined.writeStream.format("parquet").option("checkpointLocation", f"{S3}/checkpoint")
    writer.trigger(availableNow=True).start(f"{S3}/out").awaitTermination()


def check():
    left, right = (spark.read.parquet(str(place / side)) for side in SIDES)
    expected, found = left.join(right, "id"), spark.read.parquet(f"{S3}/out").select("id", *SIDES)
    assert expected.count() == found.count() > 500, (expected.count(), found.count())
    assert expected.exceptAll(found).count() == 0


add(0, 200)
run()
check()
add(200, 300)
run()
check()
print("batches", len([path for path in (Path(sys.argv[5]) / "checkpoint" / "commits").iterdir()]))
"""


@pytest.mark.skipif(pyspark.__version__ < "4.3", reason="the connector is that of Spark 4.3's Hadoop")
def test_a_query_whose_files_are_all_in_a_bucket_goes_on_from_there(tmp_path: Path) -> None:
    try:
        fetched("s3proxy")
        jars = spark_jars("s3a")
    except Unavailable as reason:
        pytest.skip(str(reason))
    server = S3Proxy(tmp_path / "s3")
    try:
        script = _SCRIPT.replace("BUCKET", BUCKET)
        buckets = tmp_path / "s3" / "buckets" / BUCKET
        told = [str(tmp_path), jars, str(server.port), server.address("state"), str(buckets)]
        done = subprocess.run(
            [sys.executable, "-c", script, *told],
            capture_output=True, text=True, timeout=600, check=False,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )  # fmt: skip
    finally:
        server.close()
    assert done.returncode == 0, done.stderr[-3000:]
    assert "batches 2" in done.stdout
