"""A process that runs one streaming query over two directories of Parquet files and says how fast it was, as JSON.

    python -m benchmarks.spark_query CONTESTANT PLACE

Contestants: `ours`; `drain`, the same plan with an operator that drops everything; `heap` and `rocksdb`, Spark's own
join with its state there. A query over PLACE/warm-up/left and right warms everything up; the one over PLACE/left and
right is measured, without its first batch.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

SCHEMA = "id long, at timestamp, number long"
FILES_PER_BATCH = 4
EVERY = 0.2
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Memory(threading.Thread):
    """The most memory that this process's children, the JVM and its Python workers, had together."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._over = threading.Event()

    def run(self) -> None:
        """Until told to stop."""
        while not self._over.wait(EVERY):
            self.most = max(self.most, sum(map(_own_bytes, psutil.Process().children(recursive=True))))

    def stop(self) -> int:
        """The most that was seen."""
        self._over.set()
        self.join()
        return self.most


def _own_bytes(process: psutil.Process) -> int:
    """Bytes of a process, pages that it shares counted by its share of them."""
    try:
        found = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(found, "pss", found.rss))


def drain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take everything and answer nothing."""
    for _ in batches:
        pass
    return iter(())


def session(contestant: str) -> Any:
    """Spark on two cores."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "4g")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "OFF").config("spark.sql.shuffle.partitions", "2")
    if contestant == "rocksdb":
        builder = builder.config("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    return builder.getOrCreate()


def plan(spark: Any, contestant: str, inputs: Path, state: Path) -> Any:
    """The query."""
    from pyspark.sql import functions as fn

    from watersmeet.spark import join

    streams = [
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(inputs / side))
        for side in ("left", "right")
    ]
    if contestant == "ours":
        return join(*streams, on="id", memory="512 MiB", state=state)
    if contestant == "drain":
        group = fn.pmod(fn.hash("id"), fn.lit(2)).alias("group")
        tagged = [stream.select(group, "*") for stream in streams]
        return tagged[0].union(tagged[1]).repartitionById(2, "group").mapInArrow(drain, SCHEMA)
    return streams[0].join(streams[1].withColumnsRenamed({"at": "at_right", "number": "number_right"}), "id")


def run(spark: Any, contestant: str, inputs: Path, place: Path) -> dict[str, float]:
    """One query from its start to its end."""
    from pyspark.sql import functions as fn

    frame = plan(spark, contestant, inputs, place / "state").observe("all", fn.count(fn.lit(1)).alias("results"))
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    warm = batches[1:] or batches
    return {
        "rate": 1e3 * sum(each.numInputRows for each in warm) / sum(each.batchDuration for each in warm),
        "results": sum(each.observedMetrics["all"]["results"] for each in batches),
    }


def main(contestant: str, place: str) -> None:
    """Warm up, measure, and tell."""
    spark = session(contestant)
    with tempfile.TemporaryDirectory(dir=place) as directory:
        run(spark, contestant, Path(place) / "warm-up", Path(directory) / "first")
        memory = Memory()
        memory.start()
        account = run(spark, contestant, Path(place), Path(directory) / "second")
        print(json.dumps({**account, "memory": memory.stop()}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
