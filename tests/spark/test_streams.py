"""Streaming DataFrames: batch by batch, over restarts and replays, the same rows as Spark's batch join of all files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as fn

from spark.frames import own_join, random_frames, rows_in, rows_of
from waiting import until
from watersmeet.spark import join


class Streams:
    """Two growing directories of Parquet files, joined by a query that is started and stopped."""

    def __init__(self, spark: Any, place: Path, keys: list[str], **options: Any) -> None:
        self.spark, self.place, self.keys = spark, place, keys
        self.options = {"memory": "1 MiB", "partitions": 2, "state": place / "state", **options}
        self.schemas: list[Any] = [None, None]
        self.seen: dict[int, list[pa.Table]] = {}
        self.written = 0

    def path(self, side: int) -> str:
        return str(self.place / ("left", "right")[side])

    def add(self, *frames: Any) -> None:
        """One more file for each side; None: no file."""
        for side, frame in enumerate(frames):
            if frame is not None:
                self.schemas[side] = frame.schema
                # Named by hand: the file source takes files in the order of their time, to the millisecond.
                target = self.place / "new" / str(self.written)
                frame.coalesce(1).write.parquet(str(target))
                [file] = target.glob("*.parquet")
                Path(self.path(side)).mkdir(exist_ok=True)
                file.rename(Path(self.path(side)) / f"{self.written:04d}.parquet")
                self.written += 1

    def frames(self) -> list[Any]:
        """All files as batch DataFrames."""
        return [self.spark.read.schema(self.schemas[side]).parquet(self.path(side)) for side in (0, 1)]

    def joined(self) -> Any:
        """The joined stream, a file of each side in a batch."""
        left, right = (
            self.spark.readStream.schema(self.schemas[side]).option("maxFilesPerTrigger", 1).parquet(self.path(side))
            for side in (0, 1)
        )
        return join(left, right, on=self.keys, **self.options)

    def _see(self, frame: Any, number: int) -> None:
        self.seen.setdefault(number, []).append(frame.toArrow())

    def run(self, checkpoint: str = "checkpoint") -> None:
        """Start the query, let it work off all files, and stop it; what each batch gave is in `seen`."""
        writer = self.joined().writeStream.foreachBatch(self._see).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.place / checkpoint)).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def found(self) -> Any:
        """The rows that the last attempt at each batch gave."""
        return rows_in(pa.concat_tables(attempts[-1] for attempts in self.seen.values()))

    def expected(self) -> Any:
        """What Spark's batch join of all files gives."""
        return rows_of(own_join(*self.frames(), self.keys))


def test_several_batches_a_restart_and_a_replay(spark: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    streams = Streams(spark, tmp_path, ["k0", "k1"])
    frames = random_frames(spark, rng, ["int and long", "string"], (240, 200), 9)
    parts = [frame.randomSplit([1.0] * 6, seed=5) for frame in frames]
    for i in range(4):
        streams.add(parts[0][i], parts[1][i] if i != 2 else None)
    streams.run()
    assert sorted(streams.seen) == [0, 1, 2, 3]
    streams.add(parts[0][4], parts[1][4])
    streams.run()
    assert sorted(streams.seen) == [0, 1, 2, 3, 4]
    assert all(len(attempts) == 1 for attempts in streams.seen.values())
    assert streams.found() == streams.expected()
    # The driver fails before it has noted that batch 4 is done: the batch is run again.
    (tmp_path / "checkpoint" / "commits" / "4").unlink()
    (tmp_path / "checkpoint" / "commits" / ".4.crc").unlink(missing_ok=True)
    streams.add(None, parts[1][5])
    streams.run()
    first, again = streams.seen[4]
    assert first.num_rows > 0
    assert rows_in(first) == rows_in(again)
    assert streams.found() == streams.expected()


def test_a_query_is_started_again_with_new_columns(spark: Any, tmp_path: Path) -> None:
    streams = Streams(spark, tmp_path, ["id"])

    def add(number: int, grown: bool) -> None:
        rows = [(i % 7, 10 * number + i) for i in range(40)]
        left, right = (spark.createDataFrame(rows, f"id long, {side} long") for side in "lr")
        if grown:
            left, right = (
                left.withColumn("word", fn.concat(fn.lit("w"), "l")),
                right.withColumn("half", fn.expr("r / 2")),
            )
        streams.add(left, right)

    add(0, grown=False)
    add(1, grown=False)
    streams.run()
    add(2, grown=True)
    streams.run()
    # What came before the columns did has NULL in them, in results of before and of now.
    now = streams.seen[2][-1]
    assert now.column_names == ["id", "l", "word", "r", "half"]
    assert 0 < now.column("word").null_count < now.num_rows
    before = [attempts[-1].to_pandas().assign(word=None, half=None) for attempts in map(streams.seen.get, (0, 1))]
    widened = [pa.Table.from_pandas(each[now.column_names], schema=now.schema) for each in before]
    assert rows_in(pa.concat_tables([*widened, now])) == streams.expected()


def test_every_task_fails_after_its_state_was_published_and_the_sink_has_every_pair_once(
    spark: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(12)
    streams = Streams(spark, tmp_path, ["k0"], memory="256 KiB")
    for _ in range(3):
        left, right = random_frames(spark, np.random.default_rng(12), ["decimal and double"], (90, 90), 20)
        streams.add(left.sample(0.8, int(rng.integers(99))), right.sample(0.8, int(rng.integers(99))))
    failures = tmp_path / "failures"
    failures.mkdir()

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        mark = failures / f"{context.getLocalProperty('streaming.sql.batchId')}-{context.partitionId()}"
        if not mark.exists():
            mark.touch()
            raise RuntimeError("made to fail")

    joined = streams.joined()
    writer = joined.mapInArrow(fail_once, joined.schema).where("l_number % 2 = 0").writeStream.format("parquet")
    out = str(tmp_path / "out")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start(out)
    query.awaitTermination()
    assert len(list(failures.iterdir())) == 3 * 2
    assert rows_of(spark.read.parquet(out)) == rows_of(own_join(*streams.frames(), ["k0"]).where("l_number % 2 = 0"))
    figures = [progress.observedMetrics["watersmeet state"]["figures"] for progress in query.recentProgress]
    assert [sum(each[name] for each in figures) for name in ("left_rows", "right_rows", "results")] == [
        *(frame.where("k0 is not null").count() for frame in streams.frames()),
        own_join(*streams.frames(), ["k0"]).count(),
    ]
    assert all(0 < each["memory"] <= 256 * 1024 for each in figures)


def test_states_that_do_not_belong_are_refused(spark: Any, tmp_path: Path) -> None:
    streams = Streams(spark, tmp_path, ["k0"])
    streams.add(*random_frames(spark, np.random.default_rng(13), ["long"], (50, 50)))
    streams.run()
    with pytest.raises(Exception, match=r"belongs to query .* choose another state directory"):
        streams.run("new checkpoint")
    streams.add(*random_frames(spark, np.random.default_rng(13), ["long"], (50, 50)))
    # A task of the query that failed may still run, and would begin a state where there is none.
    until(
        lambda: not spark.sparkContext.statusTracker().getActiveStageIds(), "the tasks of the refused query have ended"
    )
    (tmp_path / "state").rename(tmp_path / "moved")
    with pytest.raises(Exception, match=r"there is no state in .* put the state directory back"):
        streams.run()
    shutil.rmtree(tmp_path / "state", ignore_errors=True)
    (tmp_path / "moved").rename(tmp_path / "state")
    segment = min((tmp_path / "state").glob("group-*/operator-0-*"))
    content = segment.read_bytes()
    segment.write_bytes(content[:200] + b"?" + content[201:])
    with pytest.raises(Exception, match=f"is damaged and the query cannot go on.*{segment.name}"):
        streams.run()
    segment.write_bytes(content)
    streams.run()
    assert streams.found() == streams.expected()


def test_a_batch_without_a_single_key_is_a_batch_like_any_other(spark: Any, tmp_path: Path) -> None:
    streams = Streams(spark, tmp_path, ["k0"])
    frames = random_frames(spark, np.random.default_rng(14), ["long"], (60, 60))
    for condition in ("true", "k0 is null", "k0 is null", "true"):
        streams.add(*(frame.where(condition) for frame in frames))
    streams.run()
    assert sorted(streams.seen) == [0, 1, 2, 3]
    assert [streams.seen[number][0].num_rows for number in (1, 2)] == [0, 0]
    assert streams.found() == streams.expected()
