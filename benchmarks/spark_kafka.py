"""Two topics joined on Spark, against the same rows out of files, and what reading the topics takes by itself."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.figures import Figure, Target, exactness
from benchmarks.rounds import Settings
from benchmarks.spark_inputs import SIDES, Keys, write_files
from benchmarks.spark_topics import ADDRESS, JARS, MOST
from benchmarks.spark_warm import Measured
from watersmeet.core.errors import WatersmeetError

ROWS = 2_000_000
FILES = 20
FILES_PER_BATCH = 4
PARTITIONS = 2
MOST_REPEATS = 3


def spark_kafka(settings: Settings) -> Iterator[Figure]:
    """2M+2M rows of JSON out of two topics on Spark, local[2], 800k rows a batch; and out of Parquet files."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from servers.kafka import Broker
    from servers.process import Unavailable, spark_jars

    names = ["kafka join", "ours", "kafka rows", "kafka messages"]
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place, rows = Path(directory), settings.rows(ROWS)
        expected = write_files(place / "all", Keys(rows), [rows // FILES] * FILES)
        (place / "broker").mkdir()
        try:
            jars, broker = spark_jars("connector"), Broker(place / "broker")
        except Unavailable as reason:
            raise WatersmeetError(f"the bench needs a Kafka broker: {reason}") from None
        with broker:
            for side in SIDES:
                broker.make_topic(side, PARTITIONS)
                _fill(broker, side, place / "all" / side)
            os.environ |= {ADDRESS: broker.address, JARS: jars, MOST: str(rows // FILES * FILES_PER_BATCH)}
            measured = Measured.of(names, place, FILES_PER_BATCH, min(MOST_REPEATS, settings.repeat))
    yield measured.rate("ours", "files", Target(">=", 0.9, of_ratio=True))
    yield measured.cpu("ours", "files")
    yield measured.cpu("kafka rows", "reading, parsing")
    yield measured.cpu("kafka messages", "reading alone")
    total = 2 * (rows // FILES) * FILES
    due = {"kafka join": expected, "ours": expected, "kafka rows": total, "kafka messages": total}
    wrong = sum(run.results != due[name] for name, runs in measured.runs.items() for run in runs)
    yield exactness(wrong, "wrong runs, by row count")


def _fill(broker: Any, topic: str, files: Path) -> None:
    """The rows of the files as messages, file by file, so that a batch has the same rows from either."""
    for path in sorted(files.iterdir()):
        table = pq.read_table(path)
        at = (f"{moment.isoformat()}Z" for moment in table["at"].cast("timestamp[us]").to_pylist())
        columns = table["id"].to_pylist(), at, table["number"].to_pylist()
        rows = (b'{"id":%d,"at":"%s","number":%d}' % (i, a.encode(), n) for i, a, n in zip(*columns, strict=True))
        broker.send(topic, rows, range(PARTITIONS))
