"""Results into a Delta table, each once, also when a batch is written again. Delta's jars are for Spark 4.2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from servers.process import Unavailable, spark_jars

_SCRIPT = """
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from watersmeet import spark as wms

place, SIDES = Path(sys.argv[1]), ("left", "right")
delta = "org.apache.spark.sql.delta"
spark = (
    SparkSession.builder.master("local[2]").config("spark.jars", sys.argv[2])
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", f"{delta}.catalog.DeltaCatalog")
    .config("spark.sql.shuffle.partitions", 2).config("spark.ui.enabled", False).config("spark.log.level", "ERROR")
    .getOrCreate()
)


def add(first, last):
    for side in SIDES:
        rows = spark.range(first, last).selectExpr("id % 50 as id", f"id as {side}")
        rows.coalesce(1).write.mode("append").parquet(str(place / side))


def run():
    left, right = (spark.readStream.schema(f"id long, {side} long").parquet(str(place / side)) for side in SIDES)
    joined = wms.join(left, right, on="id", memory="8 MiB", state=place / "state")
    writer = joined.writeStream.format("delta").option("checkpointLocation", str(place / "checkpoint"))
    writer.trigger(availableNow=True).start(str(place / "table")).awaitTermination()


def check():
    left, right = (spark.read.parquet(str(place / side)) for side in SIDES)
    expected, found = left.join(right, "id"), spark.read.format("delta").load(str(place / "table"))
    assert expected.count() == found.count() > 500, (expected.count(), found.count())
    assert expected.exceptAll(found).count() == 0


add(0, 200)
run()
check()
add(200, 300)
run()
check()
# Spark is made to believe that the last batch was not done: Delta knows that it was.
for path in (place / "checkpoint" / "commits" / "1", place / "checkpoint" / "commits" / ".1.crc"):
    path.unlink(missing_ok=True)
run()
check()
add(300, 400)
run()
check()
print("all of it is in the table, once")
"""


def test_results_into_a_delta_table(java: None, tmp_path: Path) -> None:
    if not pyspark.__version__.startswith("4.2."):
        pytest.skip(f"Delta's jars are for Spark 4.2, and this is {pyspark.__version__}; `make versions` has it")
    try:
        jars = spark_jars("delta")
    except Unavailable as reason:
        pytest.skip(f"no Delta: {reason}")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["SPARK_LOCAL_DIRS"] = str(tmp_path / "local")
    command = [sys.executable, "-W", "ignore", "-c", _SCRIPT, str(tmp_path), jars]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "once" in done.stdout, (done.stdout + done.stderr)[-5000:]
