"""Batch DataFrames: the same rows as Spark's own join."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.sql import functions as fn

from spark.frames import KEYS, own_join, random_frames, rows_of
from watersmeet.core.errors import BudgetError, SpecError
from watersmeet.core.spec import Band, Near
from watersmeet.planner import ALGORITHMS
from watersmeet.spark import join, with_events


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_meet_as_in_sparks_join(spark: Any, kind: str) -> None:
    rng = np.random.default_rng(list(KEYS).index(kind))
    others = [str(other) for other in rng.choice(list(KEYS), int(rng.integers(0, 2)))]
    left, right = random_frames(spark, rng, [kind, *others], (200, 150))
    keys = [f"k{i}" for i in range(1 + len(others))]
    found = rows_of(join(left, right, on=keys, memory="1 MiB", partitions=3))
    assert found == rows_of(own_join(left, right, keys))
    assert found.total() > 0


@pytest.mark.parametrize("rows", [(0, 0), (0, 20), (20, 0)])
def test_an_empty_side_gives_nothing(spark: Any, rows: tuple[int, int]) -> None:
    left, right = random_frames(spark, np.random.default_rng(3), ["long"], rows)
    assert join(left, right, on="k0").count() == 0


def test_one_key_and_little_memory(spark: Any) -> None:
    left = spark.range(0, 9_000).selectExpr("cast(id % 9 as int) * 0 as k", "id as a", "repeat('x', 100) as text")
    right = spark.range(0, 30).selectExpr("0L as k", "id as b")
    found = join(left, right, on="k", memory="256 KiB", partitions=2)
    total = found.selectExpr("count(*)", "sum(a)", "sum(b)", "sum(length(text))").first()
    assert tuple(total) == (270_000, 30 * sum(range(9_000)), 9_000 * sum(range(30)), 27_000_000)


def test_columns_of_different_names_and_suffixes(spark: Any) -> None:
    left = spark.createDataFrame([(1, "a")], "id int, v string")
    right = spark.createDataFrame([(1, "b")], "number long, v string")
    found = join(left, right, on="id = number", suffixes=("_l", "_r"))
    assert found.columns == ["id", "v_l", "number", "v_r"]
    assert [tuple(row) for row in found.collect()] == [(1, "a", 1, "b")]


def test_a_frame_is_joined_with_itself(spark: Any) -> None:
    frame = spark.range(5).selectExpr("id", "2 * id as double")
    found = join(frame, frame, on="id = double").select("id", "id_right").collect()
    assert sorted(map(tuple, found)) == [(0, 0), (2, 1), (4, 2)]


def test_rows_are_sent_by_their_keys_hash_where_spark_cannot_send_them_by_number(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watersmeet.spark.plan.tagging.places_by_id", lambda: False)
    left, right = random_frames(spark, np.random.default_rng(4), ["int and long", "string"], (200, 200), 12)
    assert rows_of(join(left, right, on=["k0", "k1"], partitions=5)) == rows_of(own_join(left, right, ["k0", "k1"]))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_any_algorithm_joins_batch_frames(spark: Any, name: str) -> None:
    left, right = random_frames(spark, np.random.default_rng(6), ["int and long"], (900, 900), 25)
    memory = "8 MiB" if name == "symmetric_hash" else "192 KiB"
    found = join(left, right, on="k0", algorithm=name, memory=memory, partitions=2)
    assert rows_of(found) == rows_of(own_join(left, right, ["k0"]))


def test_a_band_joins_batch_frames_and_signs_in_them_are_left_out(spark: Any) -> None:
    left = spark.range(0, 500).selectExpr(
        "id % 7 as g", "id / 3 as x", "if(id % 100 = 99, 'tick', null) as watersmeet_event"
    )
    right = spark.range(0, 300).selectExpr("cast(null as string) as watersmeet_event", "id % 7 as g", "id / 2 as y")
    for on, condition in (
        ([Band("x", "y", 0.4)], "abs(x - y) <= 0.4"),
        (["g", Band("x", "y", 2)], "abs(x - y) <= 2 and left.g = right.g"),
    ):
        found = join(left, right, on=on, memory="1 MiB").selectExpr("x", "y")
        plain = left.where("watersmeet_event is null").alias("left")
        expected = plain.join(right.alias("right"), on=fn.expr(condition)).selectExpr("x", "y")
        assert rows_of(found) == rows_of(expected)
        assert rows_of(found).total() > 100


def test_points_that_are_near_join_batch_frames(spark: Any) -> None:
    left = spark.range(0, 400).selectExpr("id % 3 as g", "id % 20 as x", "id / 20 as y")
    right = spark.range(0, 300).selectExpr("id % 3 as g", "id % 17 + 0.25 as u", "cast(id / 17 as decimal(9, 3)) as v")
    apart = "pow(x - cast(u as double), 2) + pow(y - cast(v as double), 2) <= 4.1 * 4.1"
    for on, condition in (
        ([Near(("x", "y"), ("u", "v"), 4.1)], apart),
        (["g", Near(("x", "y"), ("u", "v"), 4.1)], f"{apart} and left.g = right.g"),
    ):
        found = join(left, right, on=on, memory="1 MiB").selectExpr("x", "y", "u", "v")
        expected = left.alias("left").join(right.alias("right"), on=fn.expr(condition)).selectExpr("x", "y", "u", "v")
        assert rows_of(found) == rows_of(expected)
        assert rows_of(found).total() > 100


def test_mistakes_are_told_before_anything_runs(spark: Any) -> None:
    left = spark.createDataFrame([(1, "a")], "id int, v string")
    right = spark.createDataFrame([(1, "b")], "id int, w string collate UNICODE_CI")
    stream = spark.readStream.format("rate").load()
    with pytest.raises(SpecError, match="'nr' is not in the left input; it has id, v"):
        join(left, right, on="nr")
    with pytest.raises(SpecError, match="cannot be compared"):
        join(left, right, on="id = w")
    with pytest.raises(SpecError, match="compared by their bytes"):
        join(left, right, on="v = w")
    with pytest.raises(SpecError, match="say where: state="):
        join(stream, stream, on="value")
    with pytest.raises(SpecError, match="keeps no state"):
        join(left, right, on="id", state="somewhere")
    with pytest.raises(SpecError, match="the right input is a stream and the left one is not"):
        join(left, stream, on="id = value")
    with pytest.raises(SpecError, match="is not reached by PyArrow"):
        join(stream, stream, on="value", state="gopher://host/state")
    with pytest.raises(SpecError, match="partitions must be"):
        join(left, right, on="id", partitions=0)
    with pytest.raises(BudgetError, match="allow at least"):
        join(left, right, on="id", memory="1 KiB")
    with pytest.raises(SpecError, match="column 'x' of the left input is of type variant"):
        join(left.selectExpr("id", "parse_json('1') as x"), right, on="id")
    with pytest.raises(SpecError, match="'xjoin' joins inputs that end, and these streams do not say when they do"):
        join(stream, stream, on="value", state="somewhere", algorithm="xjoin")
    with pytest.raises(SpecError, match="there is no algorithm 'magic'"):
        join(left, right, on="id", algorithm="magic")
    with pytest.raises(SpecError, match="without an equality it is not known which rows can meet"):
        join(left, right, on=Band("id", "id", 1), partitions=2)
    with pytest.raises(SpecError, match="xjoin joins on equal values only"):
        join(left, right, on=Band("id", "id", 1), algorithm="xjoin")
    with pytest.raises(SpecError, match="the left input says when it ends, in its column 'watersmeet_event'"):
        join(left.selectExpr("*", "'' as watersmeet_event"), right, on="id")
    with pytest.raises(SpecError, match="that is not one of strings"):
        join(left.selectExpr("*", "1 as watersmeet_event"), right, on="id")
    with pytest.raises(SpecError, match="'v' is not a timestamp that the left input brings"):
        join(left, right, on="id", time=("v", "w"))
    with pytest.raises(SpecError, match="fuel must be"):
        join(left, right, on="id", algorithm="xjoin", fuel=-1)
    with pytest.raises(SpecError, match="events must have one column of strings"):
        with_events(left, right)
    with pytest.raises(SpecError, match="there is no how='outer'; choose inner, left, right, full, semi or anti"):
        join(left, right, on="id", how="outer")
    with pytest.raises(SpecError, match="xjoin finds pairs, and cannot do how='left'"):
        join(left, right, on="id", how="left", algorithm="xjoin")
