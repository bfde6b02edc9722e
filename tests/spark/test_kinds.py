"""Every kind of join on Spark: the same rows as Spark's own batch joins, for batch DataFrames and for streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark.frames import random_frames, rows_in, rows_of
from spark.random_streams import Replayed, cut, with_ends
from watersmeet.core.errors import SpecError
from watersmeet.spark import join, multijoin
from watersmeet.spark.io.source import END, EVENT

SPARKS = {"left": "left", "right": "right", "full": "full", "semi": "left_semi", "anti": "left_anti"}


@pytest.mark.parametrize("how", SPARKS)
@pytest.mark.parametrize("kind", ["int and long", "string", "floats"])
def test_batch_frames_give_what_sparks_join_gives(spark: Any, how: str, kind: str) -> None:
    rng = np.random.default_rng([len(kind), len(how)])
    left, right = (frame.select("k0", f"{side}_number") for frame, side in zip(
        random_frames(spark, rng, [kind], (150, 120), 60), "lr", strict=True))  # fmt: skip
    found = rows_of(join(left, right, on="k0", how=how, memory="1 MiB", partitions=3))
    assert found == rows_of(left.join(right, on="k0", how=SPARKS[how]))
    assert found.total() > 10


def test_columns_have_names_and_types_as_in_sparks_join(spark: Any) -> None:
    left = spark.createDataFrame([(1, "a")], "id int, v string")
    right = spark.createDataFrame([(2, 0.5)], "id long, w double")
    for how, theirs in SPARKS.items():
        ours, expected = join(left, right, on="id", how=how), left.join(right, on="id", how=theirs)
        assert [(field.name, field.dataType) for field in ours.schema] == [
            (field.name, field.dataType) for field in expected.schema
        ]
    assert [tuple(row) for row in join(left, right, on="id", how="right").collect()] == [(2, None, 0.5)]


def test_rows_of_a_side_without_any_partner_come_out(spark: Any) -> None:
    left, right = spark.range(20).selectExpr("id", "2 * id as twice"), spark.range(0).selectExpr("id", "id as other")
    assert join(left, right, on="id", how="left").where("other is null").count() == 20
    assert join(left, right, on="id", how="anti").count() == 20
    assert join(left, right, on="id", how="semi").count() == join(left, right, on="id", how="right").count() == 0


def _batches(rng: np.random.Generator) -> list[list[pa.RecordBatch]]:
    """Four batches; the right input ends with the third, the left one with the last."""
    batches = []
    for number in range(4):
        tables = []
        for side, name in enumerate("ab"):
            rows = 0 if side and number == 3 else 90
            keys = pa.array(rng.integers(0, 120, rows), mask=rng.random(rows) < 0.1)
            values = pa.array(rng.integers(0, 10**9, rows))
            ends = [END] if number == 3 - side else []
            signs = pa.array([None] * rows + ends, pa.string())
            keys, values = (pa.concat_arrays([each, pa.nulls(len(ends), pa.int64())]) for each in (keys, values))
            tables.append(pa.record_batch({"k": keys, name: values, EVENT: signs}))
        batches.append(tables)
    return batches


@pytest.mark.parametrize("how", SPARKS)
def test_streams_that_end_give_what_sparks_batch_join_gives_whatever_starts_again(
    spark: Any, how: str, tmp_path: Path
) -> None:
    batches = _batches(np.random.default_rng(len(how)))
    state = tmp_path / "state"
    joined = Replayed(spark, tmp_path, lambda frames: join(*frames, on="k", how=how, state=state, partitions=2))
    given = []
    for tables in batches:  # a query of its own for each
        joined.add(tables)
        joined.run()
        given.append(sum(table.num_rows - table["k"].null_count for table in joined.seen))
    plain = [
        spark.createDataFrame(pa.Table.from_batches([tables[side] for tables in batches]))
        .where(f"{EVENT} is null")
        .drop(EVENT)
        for side in (0, 1)
    ]
    expected = plain[0].join(plain[1], on="k", how=SPARKS[how])
    assert rows_in(pa.concat_tables(joined.seen)) == rows_of(expected)
    if how == "anti":
        assert given[0] == given[1] == 0 < given[2] < given[3], "but for NULL, nothing before the end of the right"


def test_endless_streams_have_semi_joins_and_no_rows_that_would_never_settle(spark: Any, tmp_path: Path) -> None:
    tables = [
        pa.record_batch({"k": [1, 2, 2, None, 5], "a": [1, 2, 3, 4, 5]}),
        pa.record_batch({"k": [2, 1, 2, None], "b": [1, 2, 3, 4]}),
    ]
    state = tmp_path / "state"
    joined = Replayed(spark, tmp_path, lambda frames: join(*frames, on="k", how="semi", state=state, partitions=2))
    more = pa.record_batch({"k": [5], "b": [7]})
    for batch in (tables, [tables[0].slice(4), tables[1].slice(0, 1)], [tables[0].slice(0, 0), more]):
        joined.add(batch)
        joined.run()
    assert sorted(rows_in(pa.concat_tables(joined.seen)).elements()) == [(1, 1), (2, 2), (2, 3), (5, 5), (5, 5)]
    stream = spark.readStream.format("rate").load()
    for how in ("left", "right", "full", "anti"):
        with pytest.raises(SpecError, match=f"how='{how}' of streams that do not end would hold back each row"):
            join(stream, stream, on="value", how=how, state=state)


def test_one_of_several_inputs_is_preserved(spark: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)

    def table(rows: int, *columns: str) -> pa.RecordBatch:
        return pa.record_batch(
            {name: pa.array(rng.integers(0, 60, rows), mask=rng.random(rows) < 0.1) for name in columns}
        )

    tables = {"r": table(80, "a", "x"), "s": table(80, "a", "b"), "t": table(80, "b", "y")}
    frames = {name: spark.createDataFrame(pa.Table.from_batches([each])) for name, each in tables.items()}
    on, how = ["r.a = s.a", "s.b = t.b"], {"t": "left"}
    pairs = frames["r"].join(frames["s"], on="a").withColumnRenamed("b", "sb")
    expected = rows_of(
        frames["t"].join(pairs, on=frames["t"]["b"] == pairs["sb"], how="left").select("a", "x", "b", "y")
    )
    found = multijoin(frames, on=on, how=how, memory="1 MiB", partitions=3)
    assert rows_of(found.select("a", "x", "b", "y")) == expected
    assert expected.total() > 80
    streams = with_ends(cut(list(tables.values()), rng), rng)
    state = tmp_path / "state"

    def joined(streams: list[Any]) -> Any:
        named = dict(zip(tables, streams, strict=True))
        return multijoin(named, on=on, how=how, state=state, partitions=2).select("a", "x", "b", "y")

    assert Replayed(spark, tmp_path, joined).run_all(streams, rng) == expected
