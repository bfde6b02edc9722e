"""Several DataFrames in one join, streams that end or batch ones: on one value and in a chain, as Spark joins them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark.frames import rows_in
from watersmeet.core.errors import SpecError
from watersmeet.core.spec import band
from watersmeet.spark import figures, multijoin, register

ON = ["r.id = s.id", "s.id = t.ref"]
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


def test_streams_that_end_on_one_value(spark: Any, tmp_path: Path) -> None:
    register(spark)
    _write(tmp_path)
    seen: list[pa.Table] = []
    streams = {
        name: spark.readStream.format("watersmeet").option("events", True).option("rowsPerBatch", 250)
        .load(str(tmp_path / f"{name}.parquet"))
        for name in "rst"
    }  # fmt: skip
    joined = multijoin(streams, on=ON, memory="320 KiB", partitions=2, state=tmp_path / "state", fuel=2_000)
    writer = joined.writeStream.foreachBatch(lambda frame, _: seen.append(frame.toArrow()))
    query = writer.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination()
    found = rows_in(pa.concat_tables(seen))
    assert found == _expected(spark, tmp_path, "s.id = t.ref", "r.id, r.b, r_n, r.r, s.b, s_n, s.s, ref, t.b, t_n, t.t")
    assert found.total() > 5_000
    told = [figures(progress)["state"] for progress in query.recentProgress]
    assert [sum(each[f"{name}_rows"] for each in told) for name in "rst"] == [390, 487, 585]
    assert sum(each["spilled"] for each in told) > 0
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


def test_few_tasks_share_the_rows_where_inputs_are_copied_to_all(spark: Any) -> None:
    frames = {name: spark.createDataFrame([(1, 2)], "id long, b long") for name in "rstu"}

    def tasks(on: list[str], partitions: int | None = None) -> int:
        joined = multijoin(frames, on=on, memory="4 MiB", partitions=partitions)
        return int(joined.rdd.getNumPartitions())

    chain = ["r.b = s.id", "s.b = t.id", "t.b = u.id"]
    assert tasks(["r.id = s.id", "s.id = t.id", "t.id = u.id"]) == 2
    assert tasks(["r.id = s.id", "s.id = t.id", "t.b = u.b"]) == 2
    assert tasks(chain) == 1
    assert tasks(chain, 3) == 3


def test_words_that_do_not_fit(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, 2)], "id long, b long")
    streams = {name: spark.readStream.format("rate").load().withColumnRenamed("value", "id") for name in "rst"}
    with pytest.raises(SpecError, match=r"r, s, t: say when it ends, .* joined two at a time"):
        multijoin(streams, on=["r.id = s.id", "s.id = t.id"], state=tmp_path)
    with pytest.raises(SpecError, match="r: read with readStream, and s: with read"):
        multijoin({"r": streams["r"], "s": frame}, on="r.id = s.id", state=tmp_path)
    with pytest.raises(SpecError, match="bands alone do not say which rows can meet"):
        multijoin({"r": frame, "s": frame}, on=band("r.id = s.id", 2), partitions=3)
