"""A process that runs queries on Spark, one after the other, and says how each went.

    python -m benchmarks.spark_query CONTESTANT '[{"inputs": ..., "place": ..., "files": 4}, ...]' SECONDS

Each step lets the files of `inputs` appear in `place` and works them off: as a stream, so many files of each side in a
batch, with state and checkpoint in `place` (where an earlier step has left some, the query goes on from there), or in
one pass where `files` is 0. The answer is a JSON list with an account of each step. Before that, the first step is
carried out elsewhere, over and over until SECONDS are over, so that Java has compiled most of what it is going to.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.memory import environment
from benchmarks.spark_contestants import frames, session, streams
from benchmarks.spark_inputs import add_files
from benchmarks.suites.check import on_spark
from watersmeet.core.errors import WatersmeetError

EVERY = 0.2


@dataclass(frozen=True, slots=True)
class Step:
    """One query."""

    inputs: str
    place: str
    files: int = 1
    """Of each side in a batch; 0: all of them, as a batch query."""
    written: bool = False
    """Of a stream: whether results are written to Parquet files, or only counted."""
    query: str = ""
    """Which one, where a contestant knows several."""
    sums: Sequence[str] = ()
    """Columns of which a number is made that stands for all results."""


@dataclass(frozen=True, slots=True)
class Account:
    """How a query went; of a stream there is a number for every batch that had rows."""

    seconds: list[float]
    rows: list[int]
    results: int
    memory: int
    """The most bytes that the JVM and its Python workers had together."""
    cpu: float
    """Seconds of processor time that they took."""
    state: int = 0
    """Of a stream: the most bytes of state that there were after a batch."""
    longest_tasks: Sequence[float] = ()
    """Of a stream that ours joins: seconds of the longest task of each batch."""
    moved: int = 0
    """Of a parallel join: groups that went from one slot to another."""
    sum: int = 0
    """A number that stands for all results, if it was asked for."""

    def rate(self, skipped: int) -> float:
        """Rows a second, the first batches left out."""
        return sum(self.rows[skipped:]) / sum(self.seconds[skipped:])


def measure(contestant: str, *steps: Step, warm_up: float = 0.0, longest: float | None = None) -> list[Account]:
    """Let a new process run these steps, after so many seconds of warming up; `subprocess.TimeoutExpired` if it takes
    longer than it may.
    """
    told = json.dumps([asdict(step) for step in steps])
    command = [sys.executable, "-m", "benchmarks.spark_query", contestant, told, str(warm_up)]
    # In a session of its own: the JVM and its workers end with the process that started them, or are ended with it.
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, said = process.communicate(timeout=longest)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise WatersmeetError(f"{' '.join(command[1:4])} failed: {said.strip().splitlines()[-1:]}")
    return [Account(**account) for account in json.loads(out.splitlines()[-1])]


class Watch(threading.Thread):
    """Looks at this process's children: the JVM and its Python workers."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._most = 0
        self._over = threading.Event()
        self._before = _cpu_seconds()

    def run(self) -> None:
        """Until told to stop."""
        while not self._over.wait(EVERY):
            self._most = max(self._most, memory_now())

    def stop(self) -> tuple[int, float]:
        """The most memory that was seen, and the processor time since the beginning."""
        cpu = _cpu_seconds() - self._before
        self._over.set()
        self.join()
        return self._most, cpu


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _own_bytes(process: psutil.Process) -> int:
    """Bytes of a process, pages that it shares counted by its share of them."""
    try:
        found = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(found, "pss", found.rss))


def memory_now() -> int:
    """Bytes that the JVM and its Python workers have together."""
    return sum(map(_own_bytes, _children()))


def _cpu_seconds() -> float:
    total = 0.0
    for child in _children():
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def _stream(spark: Any, contestant: str, step: Step) -> dict[str, Any]:
    from pyspark.sql import functions as fn

    from watersmeet.spark import figures

    place = Path(step.place)
    frame = streams(spark, f"{contestant} {step.query}".strip(), place, step.files)
    told = [fn.count(fn.lit(1)).alias("results")]
    if step.sums:
        told.append(on_spark(step.sums, dict(frame.dtypes)).alias("sum"))
    frame = frame.observe("all", *told)
    writer = frame.writeStream.format("noop")
    if step.written:
        writer = frame.writeStream.format("parquet").option("path", str(place / "results"))
    query = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    ours = [figures(each).get("state", {}) for each in batches]
    return {
        "seconds": [each.batchDuration / 1e3 for each in batches],
        "rows": [each.numInputRows for each in batches],
        "results": sum(each.observedMetrics["all"]["results"] for each in batches),
        "sum": sum(each.observedMetrics["all"]["sum"] for each in batches) if step.sums else 0,
        "state": max(map(_state_bytes, batches)),
        "longest_tasks": [(each.get("task_ms") or 0) / 1e3 for each in ours],
        "moved": sum(each.get("moved") or 0 for each in ours),
    }


def _state_bytes(progress: Any) -> int:
    """Bytes of state after a batch: of our joins, and of Spark's own, of whose versions only the newest counts."""
    from watersmeet.spark import figures

    ours = sum(each.get("state_bytes") or 0 for each in figures(progress).values())
    theirs = [each.customMetrics.get("stateOnCurrentVersionSizeBytes", 0) for each in progress.stateOperators]
    return int(ours + sum(theirs))


def _in_one_pass(spark: Any, contestant: str, step: Step) -> dict[str, Any]:
    from pyspark.sql import Observation
    from pyspark.sql import functions as fn

    observation = Observation()
    frame = frames(spark, contestant, Path(step.place)).observe(observation, fn.count(fn.lit(1)).alias("results"))
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return {"seconds": [time.perf_counter() - began], "rows": [0], "results": observation.get["results"]}


def main(contestant: str, steps: Sequence[Step], warm_up: float = 0.0) -> list[Account]:
    """Run the steps in one session."""
    spark = session(contestant)
    began = time.monotonic()
    while time.monotonic() - began < warm_up:
        place = Path(steps[0].place).with_name("warm-up")
        _run(spark, contestant, replace(steps[0], place=str(place)))
        _let_go(spark)
        shutil.rmtree(place)
    accounts = [_run(spark, contestant, step) for step in steps]
    spark.stop()
    return accounts


def _run(spark: Any, contestant: str, step: Step) -> Account:
    add_files(Path(step.place), Path(step.inputs))
    watch = Watch()
    watch.start()
    told = (_stream if step.files else _in_one_pass)(spark, contestant, step)
    memory, cpu = watch.stop()
    return Account(**told, memory=memory, cpu=cpu)


def _let_go(spark: Any) -> None:
    """Let Spark forget the state of queries that are over, which it would otherwise hold for another minute or so."""
    spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
    spark._jvm.System.gc()


if __name__ == "__main__":
    told = main(sys.argv[1], [Step(**step) for step in json.loads(sys.argv[2])], float(sys.argv[3]))
    print(json.dumps([asdict(account) for account in told]))
