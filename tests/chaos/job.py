"""The driver: a Spark session with one streaming join from directories of files into the Parquet sink.

    python -m chaos.job '{"place": "...", "master": "local-cluster[2,1,1024]", ...}'

It is told what to do by lines on its input, and answers each by a line of JSON on its output.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from chaos.verbs import VERBS
from chaos.watched import Watched
from chaos.work import SCHEMA
from watersmeet.spark import from_kafka, with_events

ANSWER = "@answer "
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Driver:
    """Carries out what it is told."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._place = Path(settings["place"])
        self._verb = VERBS[settings["verb"]]
        self._spark = _session(settings)
        self._query: Any = None

    def start(self) -> dict[str, Any]:
        """Start the query, from its checkpoint if there is one."""
        settings, verb = self._settings, self._verb
        own = getattr(verb.module, verb.task)
        streams = [self._stream(side) for side in verb.inputs]
        try:
            setattr(verb.module, verb.task, lambda *a, **k: Watched(own(*a, **k), settings["place"], settings["pause"]))
            joined = verb.joined(streams, self._place, settings["groups"])
        finally:
            setattr(verb.module, verb.task, own)
        writer = joined.writeStream.format("parquet").option("checkpointLocation", str(self._place / "checkpoint"))
        self._query = writer.start(str(self._place / "out"))
        return {"run": str(self._query.runId)}

    def _stream(self, side: str) -> Any:
        """An input, one file a batch, or a topic; with a second stream that says when it ends, if it is to be told."""
        if "kafka" in self._settings:
            topic = self._spark.readStream.format("kafka").option("kafka.bootstrap.servers", self._settings["kafka"])
            topic = topic.option("subscribe", side).option("startingOffsets", "earliest")
            return from_kafka(topic.option("maxOffsetsPerTrigger", 1_000).load(), side, SCHEMA).drop("origin")
        reader = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        rows = reader.parquet(str(self._place / side))
        if not self._verb.ends:
            return rows
        return with_events(rows, self._spark.readStream.text(str(self._place / f"{side}-control")))

    def drain(self) -> dict[str, Any]:
        """Wait until the query has taken in all files."""
        try:
            self._query.processAllAvailable()
        except Exception as error:
            self._query.stop()
            return {"error": str(error)}
        return {}

    def read(self) -> dict[str, Any]:
        """Read the sink, as users of it would, and leave it where the test finds it."""
        return self._leave(self._spark.read.parquet(str(self._place / "out")))

    def own(self) -> dict[str, Any]:
        """Spark's own batch join of all files."""
        reader = self._spark.read.schema(SCHEMA)
        return self._leave(self._verb.own(*(reader.parquet(str(self._place / side)) for side in self._verb.inputs)))

    def _leave(self, frame: Any) -> dict[str, Any]:
        path = self._place / "read.arrow"
        table = frame.select(*self._verb.columns).toArrow()
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        return {"path": str(path)}

    def stop(self) -> dict[str, Any]:
        """Stop the query between two batches."""
        self._query.stop()
        return {}

    def quit(self) -> dict[str, Any]:
        """Stop everything."""
        self._query.stop()
        self._spark.stop()
        return {}


def _session(settings: dict[str, Any]) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(settings["master"]).appName("watersmeet chaos")
    given = {
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.local.dir": str(Path(settings["place"]) / "local"),
        "spark.sql.warehouse.dir": str(Path(settings["place"]) / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.sql.streaming.pollingDelay": "50ms",
        # It runs for minutes, not for days: compile little, start fast.
        "spark.driver.extraJavaOptions": _JVM,
        "spark.executor.extraJavaOptions": _JVM,
        # Failures are what this is about: Spark is to go on after any number of them, but not of one task's.
        "spark.task.maxFailures": "8",
        "spark.stage.maxConsecutiveAttempts": "1000",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.executor.maxNumFailures": "1000",
        "spark.excludeOnFailure.enabled": "false",
        **settings.get("conf", {}),
    }
    for name, value in given.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(settings: str) -> None:
    """Obey until told to quit."""
    driver = Driver(json.loads(settings))
    print(ANSWER + "{}", flush=True)
    for line in sys.stdin:
        answer = getattr(driver, line.strip())()
        print(ANSWER + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
