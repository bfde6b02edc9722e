"""Streams that end, joined progressively on Spark: the same rows as Spark's batch join, over restarts and failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark.frames import rows_in
from waiting import PATIENCE, until
from watersmeet.core.spec import band
from watersmeet.spark import join, register, with_events


class Ending:
    """Two tables, replayed as streams that end, joined by a query that is started and stopped."""

    def __init__(self, spark: Any, place: Path, **options: Any) -> None:
        self.spark, self.place = spark, place
        register(spark)
        place.mkdir(exist_ok=True)
        for side, (seed, name) in enumerate(((1, "a"), (2, "b"))):
            table = pa.table(
                {
                    "id": pa.array([(i * 7919 * (seed + 2)) % 900 for i in range(3_000)]),
                    name: pa.array(range(3_000)),
                    "at": pa.array([i * 1_000_000 for i in range(3_000)], pa.timestamp("us", "UTC")),
                    "text": pa.array([f"{name}{i}" * (i % 5) for i in range(3_000)]),
                }
            )
            pq.write_table(table, self.path(side), row_group_size=500)
        self.options = {"on": "id", "memory": "224 KiB", "partitions": 2, "state": place / "state", **options}
        self.seen: dict[int, list[pa.Table]] = {}

    def path(self, side: int) -> str:
        return str(self.place / f"{'lr'[side]}.parquet")

    def stream(self, side: int, rows: int) -> Any:
        reader = self.spark.readStream.format("watersmeet").option("events", True)
        return reader.option("rowsPerBatch", rows).load(self.path(side))

    def frames(self) -> list[Any]:
        return [self.spark.read.parquet(self.path(side)) for side in (0, 1)]

    def joined(self, rows: tuple[int, int] = (700, 1_100)) -> Any:
        return join(self.stream(0, rows[0]), self.stream(1, rows[1]), **self.options)

    def see(self, frame: Any, number: int) -> None:
        self.seen.setdefault(number, []).append(frame.toArrow())

    def run(self, frame: Any = None) -> Any:
        """Run the query until it has worked off everything."""
        writer = (self.joined() if frame is None else frame).writeStream.foreachBatch(self.see)
        query = writer.trigger(availableNow=True).option("checkpointLocation", str(self.place / "checkpoint")).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return query

    def found(self) -> Any:
        return rows_in(pa.concat_tables(attempts[-1] for attempts in self.seen.values()))

    def expected(self, condition: str = "l.id = r.id", columns: str = "l.id, a, l.at, l.text, b, r.at, r.text") -> Any:
        left, right = self.frames()
        left.createOrReplaceTempView("l")
        right.createOrReplaceTempView("r")
        found = self.spark.sql(f"select {columns} from l join r on {condition}").toArrow()
        return rows_in(found.rename_columns(range_names(found)))


def range_names(table: pa.Table) -> list[str]:
    return [f"n{i}" for i in range(table.num_columns)]


def _figures(query: Any) -> list[Any]:
    return [progress.observedMetrics["watersmeet state"]["figures"] for progress in query.recentProgress]


def test_rows_spill_and_every_pair_comes_once_by_the_last_end(spark: Any, tmp_path: Path) -> None:
    streams = Ending(spark, tmp_path, time="at", fuel=3_000, algorithm="xjoin")  # whose work in silences takes long
    query = streams.run()
    tables = [attempts[-1] for attempts in streams.seen.values()]
    found = rows_in(pa.concat_tables(tables).rename_columns(range_names(tables[0])))
    assert found == streams.expected()
    figures = _figures(query)
    assert [sum(each[name] for each in figures) for name in ("left_rows", "right_rows", "results")] == [
        3_000, 3_000, found.total(),
    ]  # fmt: skip
    assert sum(each["spilled"] for each in figures) > 0
    assert max(each["work_left"] for each in figures) > 0
    assert 0 < sum(each["reactive"] for each in figures) < found.total()
    assert all(0 < each["memory"] <= each["budget"] == 224 * 1024 for each in figures[:-1])
    assert figures[-1]["state_bytes"] == figures[-1]["state_rows"] == 0 < figures[0]["state_bytes"]
    # The rows' times are of 1970: every delay is of the longest class.
    assert figures[0]["left_delay_p50_ms"] == pytest.approx(2 ** (95 / 4))
    # Results come before the end, and after the last row of the slower stream there is only a rest.
    assert 0 < tables[0].num_rows < found.total() / 2


def test_a_restart_and_a_replay_of_the_last_batch(spark: Any, tmp_path: Path) -> None:
    streams = Ending(spark, tmp_path)
    stopped = threading.Event()

    def see(frame: Any, number: int) -> None:
        streams.see(frame, number)
        if number == 5:  # far enough
            assert stopped.wait(PATIENCE), "the query is not stopped"

    writer = streams.joined((400, 300)).writeStream.foreachBatch(see)
    checkpoint = tmp_path / "checkpoint"
    query = writer.trigger(processingTime="0 seconds").option("checkpointLocation", str(checkpoint)).start()
    until(lambda: not query.isActive or (query.lastProgress or {}).get("batchId", 0) >= 2, "some batches are done")
    assert query.isActive
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    until(lambda: not query.isActive, "the query knows that it is to stop")
    stopped.set()
    stopping.join()
    done = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    assert done < 9
    # The driver fails before it has noted that the batch is done: the batch is run again, with other memory and fuel.
    for name in (str(done), f".{done}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    for path in (checkpoint / "offsets").glob("[0-9]*"):
        if int(path.name) > done:
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    before = streams.seen[done][-1]
    streams.options |= {"memory": "512 KiB", "fuel": 0}
    streams.run()
    assert len(streams.seen[done]) >= 2
    assert rows_in(streams.seen[done][-1]) == rows_in(before)
    tables = [attempts[-1] for attempts in streams.seen.values()]
    assert rows_in(pa.concat_tables(tables).rename_columns(range_names(tables[0]))) == streams.expected()


def test_every_task_fails_after_its_state_was_published(spark: Any, tmp_path: Path) -> None:
    streams = Ending(spark, tmp_path, algorithm="hmj")
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

    joined = streams.joined((1_500, 1_500)).select("a", "b")
    writer = joined.mapInArrow(fail_once, joined.schema).writeStream.format("parquet")
    out = str(tmp_path / "out")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start(out)
    query.awaitTermination()
    assert len(list(failures.iterdir())) >= 2 * 2
    assert rows_in(spark.read.parquet(out).toArrow().rename_columns(["n0", "n1"])) == streams.expected(columns="a, b")


def test_a_band_alone_goes_to_one_task(spark: Any, tmp_path: Path) -> None:
    streams = Ending(spark, tmp_path)
    frames = []
    for side, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        Path(streams.path(side)).rename(tmp_path / name / "rows.parquet")
        rows = spark.readStream.schema(f"{name} long").parquet(str(tmp_path / name))
        _control(tmp_path / f"{name}-control", ["end"])
        frames.append(with_events(rows, spark.readStream.text(str(tmp_path / f"{name}-control"))))
    joined = join(*frames, on=band("a = b", 1), memory="512 KiB", state=tmp_path / "state")
    streams.run(joined)
    assert streams.found() == _close_pairs()
    assert len(list((tmp_path / "state").glob("group-*"))) == 1


def _close_pairs() -> Any:
    pairs = [(i, j) for i in range(3_000) for j in (i - 1, i, i + 1) if 0 <= j < 3_000]
    return rows_in(pa.table({"a": [i for i, _ in pairs], "b": [j for _, j in pairs]}))


def _control(place: Path, words: list[str]) -> None:
    place.mkdir()
    for number, word in enumerate(words):
        (place / f"{number:03d}.txt").write_text(word)


@pytest.mark.parametrize("by_id, elsewhere", [(True, ""), (False, "fetch+file://")])
def test_any_stream_ends_when_a_second_one_says_so(
    spark: Any, tmp_path: Path, by_id: bool, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_id:
        monkeypatch.setattr("watersmeet.spark.plan.tagging.places_by_id", lambda: False)
    frames = []
    for name in ("left", "right"):
        place = tmp_path / name
        place.mkdir()
        for number in range(2):
            table = pa.table({"id": [number, 5, None], name: [10 * number, 1, 2]})
            pq.write_table(table, place / f"{number}.parquet")
        _control(tmp_path / f"{name}-control", ["tick", "tick", "end"])
        rows = spark.readStream.schema(f"id long, {name} long").option("maxFilesPerTrigger", 1).parquet(str(place))
        control = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / f"{name}-control"))
        frames.append(with_events(rows, control))
    streams = Ending(spark, tmp_path / "query")
    joined = join(*frames, on="id", memory="1 MiB", partitions=3, state=f"{elsewhere}{tmp_path}/state")
    query = streams.run(joined)
    assert joined.columns == ["id", "left", "right"]
    expected = pa.table({"id": [0, 1, 5, 5, 5, 5], "left": [0, 10, 1, 1, 1, 1], "right": [0, 10, 1, 1, 1, 1]})
    assert streams.found() == rows_in(expected)
    assert len(list((tmp_path / "state").glob("group-*"))) == 3
    assert _figures(query)[-1]["state_bytes"] == 0


def test_rows_after_the_end_and_unknown_signs_stop_the_query(spark: Any, tmp_path: Path) -> None:
    for number, (word, message) in enumerate((("end", "has ended, but batch 1"), ("stop", "not 'stop'; correct"))):
        place = tmp_path / str(number)
        place.mkdir()
        _control(place / "control", [word])
        rows = place / "rows"
        rows.mkdir()
        for file in range(2):
            pq.write_table(pa.table({"id": [file]}), rows / f"{file}.parquet")
        stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(rows))
        frame = with_events(stream, spark.readStream.text(str(place / "control")))
        streams = Ending(spark, place / "query")
        with pytest.raises(Exception, match=message):
            streams.run(join(frame, frame, on="id", memory="1 MiB", partitions=2, state=place / "state"))
