"""Window joins of DataFrames: what the oracle gives for the same batches, over a restart, late rows and spilling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as fn

from spark.clicks import WINDOW, Clicks, expected_rows, tables_of, with_key
from spark.frames import rows_in
from watersmeet.core.errors import SpecError
from watersmeet.core.spec import band
from watersmeet.core.windows import rows
from watersmeet.spark import window_join


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
