"""Window joins of DataFrames: what the oracle gives for the same batches, over a restart, late rows and spilling."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as fn

from spark.clicks import START, WINDOW, Clicks, expected_rows, tables_of, with_key
from spark.frames import rows_in
from watersmeet.core.errors import SpecError
from watersmeet.core.spec import band
from watersmeet.core.windows import rows
from watersmeet.spark import figures, parallel_join, window_join


def test_batches_out_of_order_with_late_rows_and_a_restart(spark: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    clicks = Clicks(spark, tmp_path, window_join, partitions=3, delays=True)
    for number in range(4):
        clicks.add(tables_of(rng, number))
    first = clicks.run()
    clicks.add(tables_of(rng, 4))
    # From here on a single key: the groups of all others are quiet, and their rows go none the less.
    for number in (5, 15, 25, 26):
        clicks.add([with_key(table, 7, 400 if side == 0 else 5) for side, table in enumerate(tables_of(rng, number))])
    second = clicks.run()
    found = clicks.found()
    assert found == expected_rows(clicks.batches)
    told = first + second
    assert len(told) == len(clicks.batches)
    assert sum(each["results"] for each in told) == found.total() > 3_000
    assert sum(each["left_late"] + each["right_late"] for each in told) > 20
    assert all(each["state_bytes"] > 0 for each in first), "rows are in runs when a batch has ended"
    assert all(0 < each["memory"] <= each["budget"] == 256 << 10 for each in told)
    assert all(each["left_delay_p50_ms"] for each in first)
    # All of the first five batches has expired; of the last one, two groups hold nothing.
    assert second[-1]["left_rows"] == 399
    manifests = [max((tmp_path / "state").glob(f"group-{group:04d}/manifest-*")) for group in range(3)]
    assert sum('"snapshot":null' in path.read_text() for path in manifests) == 2


def test_the_plan_is_the_same_for_every_batch_and_collects_figures_once(spark: Any, tmp_path: Path) -> None:
    streams = []
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        streams.append(spark.readStream.schema("id long, at timestamp").parquet(str(tmp_path / side)))
    joined = window_join(*streams, on="id", time="at", window="1 minute", state=tmp_path / "state")
    plan = joined._jdf.queryExecution().logical().toString()
    assert plan.count("collect_list(") == 1, "Spark carries out each aggregate for every result"
    assert "rand(" not in plan, "a new seed for every batch is new code for every batch"


def test_batch_dataframes(spark: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    batches = [tables_of(rng, number) for number in range(5)]
    whole = [pa.Table.from_batches([tables[side] for tables in batches]).combine_chunks() for side in (0, 1)]
    frames = []
    for side, table in zip("lr", whole, strict=True):
        pq.write_table(table, tmp_path / side, row_group_size=300)
        frames.append(spark.read.parquet(str(tmp_path / side)))
    joined = window_join(*frames, on="ad", **WINDOW, memory="256 KiB", partitions=2)
    found = rows_in(joined.toArrow())
    assert found == expected_rows([[table.to_batches()[0] for table in whole]])
    assert found.total() > 2_000


def test_words_that_do_not_fit(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, 2)], "id long, t long")
    with pytest.raises(SpecError, match=r"a window of rows counts all rows"):
        window_join(frame, frame, on="id", time=None, window=rows(4))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"keeps no state"):
        window_join(frame, frame, on="id", time="t", window=5, state=tmp_path)
    with pytest.raises(SpecError, match=r"delays are told by timestamps"):
        window_join(frame, frame, on="id", time="t", window=5, delays=True)
    for word in ({"idle": "1 s"}, {"emit": "final"}):
        with pytest.raises(SpecError, match=r"parallel_join gives results as they are found"):
            parallel_join(frame, frame, on="id", time="t", window=5, **word)
    with pytest.raises(SpecError, match=r"there is no how='outer'"):
        window_join(frame, frame, on="id", time="t", window=5, how="outer")


@pytest.mark.parametrize("on", [None, band("k", 2)], ids=["time", "band"])
def test_without_an_equality_all_rows_are_one_group(spark: Any, tmp_path: Path, on: Any) -> None:
    rng = np.random.default_rng(8)
    frames = []
    for side in "lr":
        rows_of_side = pa.table({"k": rng.integers(0, 20, 900), "t": np.sort(rng.integers(0, 3_000, 900))})
        pq.write_table(rows_of_side.rename_columns([f"{side}k", f"{side}t"]), tmp_path / side, row_group_size=200)
        frames.append(spark.read.parquet(str(tmp_path / side)))
    condition = None if on is None else band("lk = rk", 2)
    joined = window_join(*frames, condition, time="lt = rt", window=(30, 10), memory="1 MiB")
    apart = fn.col("rt") - fn.col("lt")
    near = (apart <= 30) & (apart >= -10)
    expected = frames[0].join(frames[1], near if on is None else near & (fn.abs(fn.col("lk") - fn.col("rk")) <= 2))
    found = rows_in(joined.toArrow())
    assert found == rows_in(expected.toArrow()) and found.total() > 1_000
    with pytest.raises(SpecError, match="without an equality it is not known which rows can meet"):
        window_join(*frames, condition, time="lt = rt", window=5, partitions=2)


def far_ahead(table: pa.RecordBatch, seconds: int) -> pa.RecordBatch:
    """A few rows that meet nothing, and are ahead of all others."""
    some = with_key(table, 1, 3)
    column = next(i for i, field in enumerate(some.schema) if pa.types.is_timestamp(field.type))
    times = pa.array([START + timedelta(seconds=seconds)] * 3, some.schema.field(column).type)
    return some.set_column(column, some.schema.field(column), times)


def test_final_results_come_batch_by_batch_in_the_order_of_time(spark: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    clicks = Clicks(spark, tmp_path, window_join, partitions=3, late="drop", emit="final")
    for number in range(4):
        clicks.add(tables_of(rng, number))
    clicks.run()
    clicks.add(tables_of(rng, 4))
    for ahead in (50_000, 90_000):  # of a single group; the others have results that wait, and no rows
        clicks.add([far_ahead(table, ahead) for table in tables_of(rng, 0)])
    told = clicks.run()
    found = clicks.found()
    assert found == expected_rows(clicks.batches[:-2], late="drop") and found.total() > 2_000
    before = START - timedelta(days=1)
    for number in sorted(clicks.seen):
        results = clicks.seen[number]
        later = [max(pair) for pair in zip(results["ts"].to_pylist(), results["at"].to_pylist(), strict=True)]
        assert not later or min(later) >= before
        before = max([before, *later])
    assert clicks.seen[0].num_rows == 0 and clicks.seen[1].num_rows > 0
    assert told[-1]["state_bytes"] >= 0


class Silent:
    """Two streams with signs of life, of which one falls silent; a batch of each file."""

    def __init__(self, spark: Any, place: Path, **options: Any) -> None:
        self.spark, self.place, self.options = spark, place, options
        self.files = 0
        self.seen: list[Any] = []
        for side in "lr":
            (place / side).mkdir()

    def batch(self, left: list[Any], right: list[Any]) -> dict[str, Any]:
        """Rows (key, time) or signs of life (time); the rows that come of them, and what the batch did."""
        for side, rows_of_side in zip("lr", (left, right), strict=True):
            columns = [row if isinstance(row, tuple) else (None, row, "tick") for row in rows_of_side]
            filled = [(*row, None)[:3] for row in columns]
            table = pa.table(
                {
                    "k": pa.array([row[0] for row in filled], pa.int64()),
                    f"{side}t": pa.array([row[1] for row in filled], pa.int64()),
                    "watersmeet_event": pa.array([row[2] for row in filled], pa.string()),
                }
            )
            pq.write_table(table, self.place / side / f"{self.files:03d}.parquet")
        self.files += 1
        frames = [
            self.spark.readStream.schema(f"k long, {side}t long, watersmeet_event string")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.place / side))
            for side in "lr"
        ]
        joined = window_join(*frames, "k", time="lt = rt", state=self.place / "state", partitions=2, **self.options)
        self.seen = []
        writer = joined.writeStream.foreachBatch(lambda frame, _: self.seen.extend(frame.collect()))
        query = writer.trigger(availableNow=True).option("checkpointLocation", str(self.place / "checkpoint")).start()
        query.awaitTermination()
        return figures(query.lastProgress)["state"]  # type: ignore[no-any-return]


def test_a_silent_input_is_overtaken_by_the_time_of_batches_and_ticks_tell_the_time(spark: Any, tmp_path: Path) -> None:
    streams = Silent(spark, tmp_path, window=10, memory="1 MiB", idle=0.001, late="drop")
    streams.batch([(1, 100)], [(1, 100)])
    assert [(row.lt, row.rt) for row in streams.seen] == [(100, 100)]
    streams.batch([(1, 5_000)], [])
    # More than a millisecond later the right input has been overtaken: it counts as having reached 5,000.
    told = streams.batch([(1, 5_001)], [(1, 4_995), (1, 5_000)])
    assert told["right_late"] == 1
    assert sorted((row.lt, row.rt) for row in streams.seen) == [(5_000, 5_000), (5_001, 5_000)]


def test_a_tick_tells_how_far_an_input_has_come(spark: Any, tmp_path: Path) -> None:
    streams = Silent(spark, tmp_path, window=10, memory="1 MiB", emit="final")
    streams.batch([(1, 100), (2, 90)], [(1, 101)])
    assert streams.seen == []
    streams.batch([None], [None])  # signs of life that tell no time
    assert streams.seen == []
    streams.batch([500], [400])
    streams.batch([None], [])
    assert [(row.k, row.lt, row.rt) for row in streams.seen] == [(1, 100, 101)]
    told = streams.batch([(2, 399)], [(2, 400)])  # the left one said 500: its row is late
    assert (told["left_late"], told["right_late"]) == (1, 0)


@pytest.mark.parametrize("how", ["left", "right", "full", "anti", "semi"])
def test_kinds_are_those_of_sparks_batch_joins_over_a_restart(spark: Any, tmp_path: Path, how: str) -> None:
    check_kind(spark, tmp_path, how, window_join, partitions=3)


def test_kinds_of_parallel_joins_are_the_same(spark: Any, tmp_path: Path) -> None:
    check_kind(spark, tmp_path, "left", parallel_join, slots=(1, 2), groups=3, reorganize="1 ms")


def check_kind(spark: Any, tmp_path: Path, how: str, verb: Any, **words: Any) -> None:
    rng = np.random.default_rng(21)
    clicks = Clicks(spark, tmp_path, verb, lateness="1 day", how=how, **words)
    for number in range(3):
        clicks.add(tables_of(rng, number, rows=150))
    clicks.run()
    early = {number: table.num_rows for number, table in clicks.seen.items()}
    clicks.add(tables_of(rng, 3, rows=150))
    for ahead in (500_000, 900_000):  # of a single group: the others have rows that wait, and get none
        clicks.add([far_ahead(table, ahead) for table in tables_of(rng, 0)])
    clicks.run()
    frames = []
    for side in "lr":
        files = [str(tmp_path / side / f"{number:04d}.parquet") for number in range(4)]
        frames.append(spark.read.parquet(*files))
    left, right = frames[0].alias("l"), frames[1].withColumnRenamed("ad", "ad_right").alias("r")
    apart = fn.unix_seconds("at") - fn.unix_seconds("ts")
    near = (fn.col("l.ad") == fn.col("ad_right")) & (apart >= -30) & (apart <= 600)
    joined = left.join(right, near, f"left{how}" if how in ("semi", "anti") else how)
    if how in ("left", "right", "full"):
        joined = joined.select(fn.coalesce("ad", "ad_right").cast("long").alias("ad"), "ts", "page", "user", "at")
    expected = rows_in(joined.toArrow())
    found = clicks.found()
    far = [table for number, table in clicks.seen.items() if table.num_rows]
    assert far and early[0] >= 0
    names = [name for name in ("ts", "at") if name in far[0].column_names]
    kept = Counter({row: count for row, count in found.items() if not is_far(row, names, far[0])})
    assert {str(row): count for row, count in kept.items()} == {str(row): count for row, count in expected.items()}


def is_far(row: Any, names: list[str], table: pa.Table) -> bool:
    """Whether a result is of the rows that are far ahead of all others."""
    limit = (START + timedelta(seconds=400_000)).timestamp() * 1e6
    times = [row[table.column_names.index(name)] for name in names]
    return any(isinstance(time, int) and time >= limit for time in times)
