"""Several DataFrames in one join, streams or batch ones: on one value, in a chain, in windows, as Spark joins them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark.frames import rows_in
from watersmeet.core.errors import SpecError
from watersmeet.core.spec import band
from watersmeet.spark import figures, multijoin, register, with_events
from watersmeet.spark.offline.repartition import repartition

ON = ["r.id = s.id", "s.id = t.ref"]
ON_ID = ["r.id = s.id", "s.id = t.id"]
CHAIN = ["r.id = s.id", "s.b = t.b"]


def _write(place: Path) -> None:
    for number, name in enumerate("rst"):
        rows = range(400 + 100 * number)
        key = pa.array([(i * 7 + number) % 130 if i % 41 else None for i in rows], [pa.int32(), pa.int64()][number % 2])
        wide = [f"{i}" * 100 for i in rows]
        columns = {
            "ref" if name == "t" else "id": key,
            "b": [i % 90 for i in rows],
            f"{name}_n": list(rows),
            name: wide,
        }
        pq.write_table(pa.table(columns), place / f"{name}.parquet", row_group_size=100)


def _expected(spark: Any, place: Path, condition: str, columns: str) -> Counter[Any]:
    for name in "rst":
        spark.read.parquet(str(place / f"{name}.parquet")).createOrReplaceTempView(name)
    return rows_in(spark.sql(f"select {columns} from r join s on r.id = s.id join t on {condition}").toArrow())


@pytest.mark.parametrize("algorithm", ["auto", "mjoin"])
def test_streams_that_end_on_one_value(algorithm: str, spark: Any, tmp_path: Path) -> None:
    register(spark)
    _write(tmp_path)
    seen: list[pa.Table] = []
    streams = {
        name: spark.readStream.format("watersmeet").option("events", True).option("rowsPerBatch", 250)
        .load(str(tmp_path / f"{name}.parquet"))
        for name in "rst"
    }  # fmt: skip
    given: dict[str, Any] = {"memory": "320 KiB", "state": tmp_path / "state", "algorithm": algorithm}
    joined = multijoin(streams, on=ON, partitions=2, fuel=2_000, **given)
    writer = joined.writeStream.foreachBatch(lambda frame, _: seen.append(frame.toArrow()))
    query = writer.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination()
    found = rows_in(pa.concat_tables(seen))
    assert found == _expected(spark, tmp_path, "s.id = t.ref", "r.id, r.b, r_n, r.r, s.b, s_n, s.s, ref, t.b, t_n, t.t")
    assert found.total() > 5_000
    told = [figures(progress)["state"] for progress in query.recentProgress]
    assert [sum(each[f"{name}_rows"] for each in told) for name in "rst"] == [390, 487, 585]
    assert sum(each["spilled" if algorithm == "mjoin" else "written"] for each in told) > 0
    assert any(each["work_left"] for each in told) == (algorithm == "mjoin")
    assert told[-1]["state_rows"] == 0


def test_batches_on_one_value_in_a_chain_and_by_a_band(spark: Any, tmp_path: Path) -> None:
    _write(tmp_path)
    frames = {name: spark.read.parquet(str(tmp_path / f"{name}.parquet")) for name in "rst"}
    options: dict[str, Any] = {"memory": "2 MiB", "partitions": 3}
    found = rows_in(multijoin(frames, on=ON, **options).toArrow())
    assert found == _expected(spark, tmp_path, "s.id = t.ref", "r.id, r.b, r_n, r.r, s.b, s_n, s.s, ref, t.b, t_n, t.t")
    # Every row of t is in all three tasks, and every result comes from one of them.
    columns = "r.id, r.b, r_n, r.r, s.b, s_n, s.s, ref, t_n, t.t"
    found = rows_in(multijoin(frames, on=CHAIN, **options).toArrow())
    assert found == _expected(spark, tmp_path, "s.b = t.b", columns)
    assert found.total() > 5_000
    near = [CHAIN[0], band("s.b = t.b", 1)]
    found = rows_in(multijoin(frames, on=near, **options).toArrow())
    columns = "r.id, r.b, r_n, r.r, s.b, s_n, s.s, ref, t.b, t_n, t.t"
    assert found == _expected(spark, tmp_path, "abs(s.b - t.b) <= 1", columns)


def _pour(place: Path, count: int, keys: int = 60) -> None:
    """Files of three inputs, whose times go on from file to file, a little out of order."""
    for number, name in enumerate("rst"):
        (place / name).mkdir()
        for i in range(count):
            rows = range(50)
            columns = {
                "id": [(i * 31 + j * 7 + number) % keys if j % 19 else None for j in rows],
                "b": [(i + j) % 17 for j in rows],
                "at": [i * 100 + (j * 37) % 150 if j % 23 else None for j in rows],
                f"{name}_n": [i * 50 + j for j in rows],
            }
            pq.write_table(pa.table(columns), place / name / f"{i:03d}.parquet")


def _streams(spark: Any, place: Path) -> dict[str, Any]:
    return {
        name: spark.readStream.schema(spark.read.parquet(str(place / name)).schema)
        .option("maxFilesPerTrigger", 1 + number).parquet(str(place / name))
        for number, name in enumerate("rst")
    }  # fmt: skip


def _run_in_two_starts(
    spark: Any, place: Path, divided: int | None = None, **given: Any
) -> tuple[list[pa.Table], list[Any]]:
    """The results of all batches, of a query that is stopped and started again, and what the batches told.

    Meanwhile its state may be divided into another number of groups.
    """
    seen: dict[int, pa.Table] = {}
    told = []
    for start in range(2):
        if start and divided is not None:
            given["partitions"] = repartition(place / "state", divided).after
        joined = multijoin(_streams(spark, place), memory="2 MiB", state=place / "state", **given)
        writer = joined.writeStream.foreachBatch(lambda frame, number: seen.__setitem__(number, frame.toArrow()))
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        if start:
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
        else:
            query = writer.start()
            while len(seen) < 4:
                assert query.isActive, query.exception()
                query.awaitTermination(0.1)
            query.stop()
        told += [figures(progress)["state"] for progress in query.recentProgress if progress.numInputRows]
    return list(seen.values()), told


@pytest.mark.parametrize("on", [ON_ID, ["r.id = s.id", "s.b = t.b"]], ids=["one value", "chain"])
def test_endless_streams_keep_all_rows(on: list[str], spark: Any, tmp_path: Path) -> None:
    _pour(tmp_path, 8)
    seen, told = _run_in_two_starts(spark, tmp_path, divided=2, on=on, partitions=3)
    for name in "rst":
        spark.read.parquet(str(tmp_path / name)).createOrReplaceTempView(name)
    chain = on is not ON_ID
    columns = "r.id, r.b, r.at, r_n, s.b, s.at, s_n, " + ("t.id, t.at, t_n" if chain else "t.b, t.at, t_n")
    condition = "s.b = t.b" if chain else "s.id = t.id"
    expected = spark.sql(f"select {columns} from r join s on r.id = s.id join t on {condition}").toArrow()
    assert rows_in(pa.concat_tables(seen)) == rows_in(expected)
    assert expected.num_rows > 1_000
    assert sum(table.num_rows > 0 for table in seen) > 3
    assert told[-1]["state_rows"] > 0


def test_endless_streams_in_windows(spark: Any, tmp_path: Path) -> None:
    _pour(tmp_path, 12, keys=20)
    windows = {"r": 200, "s": 90, "t": 150}
    seen, told = _run_in_two_starts(
        spark, tmp_path, on=ON_ID, window=windows, time="at", lateness=10_000, partitions=3
    )  # fmt: skip
    for name in "rst":
        spark.read.parquet(str(tmp_path / name)).createOrReplaceTempView(name)
    inside = " and ".join(f"{name}.at >= greatest(r.at, s.at, t.at) - {size}" for name, size in windows.items())
    columns = "r.id, r.b, r.at, r_n, s.b, s.at, s_n, t.b, t.at, t_n"
    expected = spark.sql(
        f"select {columns} from r join s on r.id = s.id join t on s.id = t.id where {inside}"
    ).toArrow()
    assert rows_in(pa.concat_tables(seen)) == rows_in(expected)
    assert expected.num_rows > 300
    assert all(each["r_late"] == 0 for each in told)
    frames = {name: spark.read.parquet(str(tmp_path / name)) for name in "rst"}
    found = multijoin(frames, on=ON_ID, window=windows, time="at", memory="2 MiB", partitions=2)
    assert rows_in(found.toArrow()) == rows_in(expected)


def test_windows_forget_rows_and_drop_late_ones(spark: Any, tmp_path: Path) -> None:
    _pour(tmp_path, 12, keys=20)
    _, told = _run_in_two_starts(spark, tmp_path, on=ON_ID, window=50, time="at", late="drop", partitions=2)
    assert sum(each[f"{name}_late"] for each in told for name in "rst") > 0
    # There were 1,650 rows with a key and a time; r is the slowest, and the others' wait for it.
    assert told[-1]["state_rows"] < 900


class Silent:
    """Three streams of rows (id, at), a batch of each file; those without rows in a batch are silent."""

    def __init__(self, spark: Any, place: Path, **options: Any) -> None:
        self.spark, self.place, self.options = spark, place, options
        self.files = 0
        for name in "rst":
            (place / name).mkdir()

    def batch(self, **rows: list[tuple[int, int]]) -> tuple[list[tuple[int, ...]], dict[str, Any]]:
        """The times of the combinations that these rows lead to, and what the batch did."""
        for name in "rst":
            given = rows.get(name, [])
            columns = {"id": [key for key, _ in given], "at": [at for _, at in given]}
            table = pa.table({column: pa.array(values, pa.int64()) for column, values in columns.items()})
            pq.write_table(table, self.place / name / f"{self.files:03d}.parquet")
        self.files += 1
        streams = {
            name: self.spark.readStream.schema("id long, at long")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.place / name))
            for name in "rst"
        }
        joined = multijoin(
            streams, ON_ID, time="at", memory="2 MiB", state=self.place / "state", partitions=2, **self.options
        )
        seen: list[Any] = []
        writer = joined.writeStream.foreachBatch(lambda frame, _: seen.extend(frame.collect()))
        query = writer.trigger(availableNow=True).option("checkpointLocation", str(self.place / "checkpoint")).start()
        query.awaitTermination()
        return sorted((row.r_at, row.s_at, row.t_at) for row in seen), figures(query.lastProgress)["state"]


def test_a_silent_input_of_windows_is_overtaken_by_the_time_of_batches(spark: Any, tmp_path: Path) -> None:
    streams = Silent(spark, tmp_path, window=10, idle=0.001, late="drop")
    assert streams.batch(r=[(1, 100)], s=[(1, 100)], t=[(1, 100)])[0] == [(100, 100, 100)]
    streams.batch(r=[(1, 5_000)], s=[(1, 4_995)])
    # More than a millisecond later t has been overtaken: it counts as having reached what s has, which is behind r.
    found, told = streams.batch(r=[(1, 5_001)], s=[(1, 4_996)], t=[(1, 4_994), (1, 4_996)])
    assert (told["r_late"], told["s_late"], told["t_late"]) == (0, 0, 1)
    assert found == [(r, s, 4_996) for r in (5_000, 5_001) for s in (4_995, 4_996)]


def test_few_tasks_share_the_rows_where_inputs_are_copied_to_all(spark: Any) -> None:
    frames = {name: spark.createDataFrame([(1, 2)], "id long, b long") for name in "rstu"}

    def tasks(on: list[str], partitions: int | None = None) -> int:
        joined = multijoin(frames, on=on, memory="4 MiB", partitions=partitions)
        return int(joined.rdd.getNumPartitions())

    chain = ["r.b = s.id", "s.b = t.id", "t.b = u.id"]
    assert tasks(["r.id = s.id", "s.id = t.id", "t.id = u.id"]) == 2
    assert tasks(["r.id = s.id", "s.id = t.id", "t.b = u.b"]) == 2
    assert tasks(chain) == 2, "a row is kept one and a half times, on average"
    assert tasks(chain, 3) == 3
    assert tasks(chain, 5) == 4, "two by two: fewer rows in each than if five shared one value"


@pytest.mark.parametrize("partitions", [4, 6])
def test_a_chain_in_a_grid_of_tasks(spark: Any, partitions: int) -> None:
    rng = np.random.default_rng(partitions)
    for name in "rstu":
        rows = [(int(a), int(b), i) for i, (a, b) in enumerate(rng.integers(0, 40, (300, 2)))]
        spark.createDataFrame([*rows, (None, 1, -1)], f"a int, b long, {name} long").createOrReplaceTempView(name)
    frames = {name: spark.table(name) for name in "rstu"}
    found = multijoin(frames, on=["r.b = s.a", "s.b = t.a", "t.b = u.a"], memory="4 MiB", partitions=partitions)
    assert found.rdd.getNumPartitions() == partitions
    columns = "r, s, t, u"
    expected = spark.sql(f"select {columns} from r join s on r.b = s.a join t on s.b = t.a join u on t.b = u.a")
    assert rows_in(found.selectExpr("r", "s", "t", "u").toArrow()) == rows_in(expected.toArrow())
    assert expected.count() > 1_000


def test_words_that_do_not_fit(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, 2)], "id long, b long")
    streams = {name: spark.readStream.format("rate").load().withColumnRenamed("value", "id") for name in "rst"}
    with pytest.raises(SpecError, match="how= would hold back each row of s that is in no result for ever"):
        multijoin(streams, on=ON_ID, how={"s": "left"}, state=tmp_path)
    with pytest.raises(SpecError, match="bands join several inputs that end, and these streams do not say"):
        multijoin(streams, on=["r.id = s.id", band("s.id = t.id", 2)], state=tmp_path)
    with pytest.raises(SpecError, match="algorithm='mjoin' joins inputs that end"):
        multijoin(streams, on=ON_ID, algorithm="mjoin", state=tmp_path)
    with pytest.raises(SpecError, match="time=, lateness= and idle= are for joins by windows"):
        multijoin(streams, on=ON_ID, time="timestamp", state=tmp_path)
    ending = {**streams, "t": with_events(streams["t"], spark.readStream.text(str(tmp_path)))}
    with pytest.raises(SpecError, match="t: says when it ends, in a column 'watersmeet_event', and r, s: does not"):
        multijoin(ending, on=ON_ID, state=tmp_path)
    with pytest.raises(SpecError, match="r: read with readStream, and s: with read"):
        multijoin({"r": streams["r"], "s": frame}, on="r.id = s.id", state=tmp_path)
    with pytest.raises(SpecError, match="bands alone do not say which rows can meet"):
        multijoin({"r": frame, "s": frame}, on=band("r.id = s.id", 2), partitions=3)
