"""Who joins on Spark: ours, Spark's own join with its state here or there, and an operator that drops everything."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.spark_inputs import SCHEMA, SIDES
from benchmarks.spark_topics import JARS, topics
from benchmarks.spark_verbs import MEMORY, PARTITIONS, VERBS

_RESULTS = "id long, at timestamp, number long, at_right timestamp, number_right long"
BUCKET = "WATERSMEET_BENCH_S3_ADDRESS"
"""Where contestants find a bucket: the address of state, with braces for what tells one query's from another's."""
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def session(contestant: str) -> Any:
    """Spark on two cores, each join with two tasks."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = {
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
        # No bound but that on rows: Spark else adds up the bytes of an Arrow batch for every row that it puts into it.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    }
    if contestant.endswith("rocksdb"):
        # What a batch changed is uploaded, and not the whole state each time.
        options["spark.sql.streaming.stateStore.providerClass"] = _ROCKSDB
        options["spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"] = "true"
    if contestant.startswith("kafka"):
        options["spark.jars"] = os.environ[JARS]
    master = "local[2]"
    if contestant.startswith("cluster"):
        # Two executors, each a process with a core, as on two machines.
        master = f"local-cluster[{PARTITIONS},1,1024]"
        options["spark.executorEnv.PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    builder = SparkSession.builder.master(master)
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def streams(spark: Any, contestant: str, place: Path, files: int) -> Any:
    """The joined stream of the files in PLACE/left, PLACE/right and so on, so many of each in a batch."""
    from benchmarks.suites.nexmark_spark import streams as nexmark_streams
    from watersmeet.spark import join

    kind, _, who = contestant.partition(" ")
    if kind == "kafka":
        return topics(spark, who, place, files)
    if kind == "nexmark":
        name, _, query = who.partition(" ")
        return nexmark_streams(spark, query, name, place, files)
    state = os.environ[BUCKET].format(uuid.uuid4().hex) if kind == "s3" else place / "state"
    if kind in VERBS:
        return VERBS[kind](spark, who, place, files)

    left, right = (
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).parquet(str(place / side)) for side in SIDES
    )
    if contestant in ("ours", "s3 join"):
        return join(left, right, on="id", memory=MEMORY, state=state)
    return _drained(left, right) if contestant == "drain" else _own(left, right)


def frames(spark: Any, contestant: str, place: Path) -> Any:
    """The same files joined in one pass."""
    from watersmeet.spark import join

    left, right = (spark.read.schema(SCHEMA).parquet(str(place / side)) for side in SIDES)
    if contestant == "ours":
        return join(left, right, on="id", memory=MEMORY)
    return _drained(left, right) if contestant == "drain" else _own(left, right)


def _own(left: Any, right: Any) -> Any:
    """Spark's join; the hint makes a batch join a shuffled hash join."""
    renamed = right.withColumnsRenamed({"at": "at_right", "number": "number_right"})
    return left.join(renamed.hint("shuffle_hash"), "id")


def _drained(left: Any, right: Any) -> Any:
    """The plan of our join, rows tagged, united and sent to their tasks, which drop them."""
    from pyspark.sql import functions as fn

    group = fn.pmod(fn.hash("id"), fn.lit(PARTITIONS))
    tagged = [each.select((group * 2 + side).cast("int").alias("tag"), "*") for side, each in enumerate((left, right))]
    sent = tagged[0].union(tagged[1]).repartitionById(PARTITIONS, fn.shiftright(fn.col("tag"), 1))
    return sent.mapInArrow(_drop, _RESULTS)


def _drop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())
