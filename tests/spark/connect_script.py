"""Joins under Spark Connect, run by a test in a process of its own: a session is either of one kind or of the other."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark.shop import inputs
from spark.test_every_verb import VERBS, Files, check_streamed, counted, expected_of_one_pass
from watersmeet import spark as wms


def main(place: Path) -> None:
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    assert not hasattr(spark, "_sc"), "this is a remote session"
    batch(spark)
    wms.register(spark)
    for side in ("left", "right"):
        rows = spark.range(0, 400).selectExpr("id % 90 as id", f"id as {side}")
        rows.coalesce(1).write.parquet(str(place / side))
    endless(spark, place)
    ending(spark, place)
    every_verb(spark, place / "shop")
    spark.stop()


def batch(spark: Any) -> None:
    left = spark.range(0, 200).selectExpr("id", "id * 2 as double")
    for algorithm in ("auto", "xjoin"):
        found = wms.join(left, left, on="id = double", memory="1 MiB", partitions=2, algorithm=algorithm)
        assert sorted(row["id_right"] for row in found.collect()) == list(range(100))


def start(frame: Any, place: Path, name: str) -> Any:
    out, checkpoint = str(place / f"out-{name}"), str(place / f"checkpoint-{name}")
    writer = frame.writeStream.format("parquet").trigger(availableNow=True)
    return writer.option("checkpointLocation", checkpoint).start(out)


def run(frame: Any, place: Path, name: str) -> Any:
    query = start(frame, place, name)
    query.awaitTermination()
    return query


def expect(spark: Any, place: Path, name: str) -> None:
    left, right = (spark.read.parquet(str(place / side)) for side in ("left", "right"))
    columns = ["left", "right"]
    found = spark.read.parquet(str(place / f"out-{name}")).select(*columns)
    expected = left.join(right, "id").select(*columns)
    assert expected.count() == found.count() > 1000
    assert expected.exceptAll(found).count() == 0


def endless(spark: Any, place: Path) -> None:
    left, right = (
        spark.readStream.schema(f"id long, {side} long").parquet(str(place / side)) for side in ("left", "right")
    )
    joined = wms.join(left, right, on="id", memory="1 MiB", partitions=2, state=place / "state-endless")
    said = io.StringIO()
    with wms.Watch(spark, said):
        query = run(joined, place, "endless")
    expect(spark, place, "endless")
    assert said.getvalue().startswith("state-endless: batch 0, ") and said.getvalue().endswith("ended\n"), (
        said.getvalue()
    )
    found = [wms.figures(progress)["state-endless"] for progress in query.recentProgress]
    assert [sum(each[name] for each in found) for name in ("left_rows", "right_rows")] == [400, 400], found


def ending(spark: Any, place: Path) -> None:
    frames = []
    for side in ("left", "right"):
        (place / f"{side}-control").mkdir()
        (place / f"{side}-control" / "end.txt").write_text("end")
        rows = spark.readStream.schema(f"id long, {side} long").parquet(str(place / side))
        frames.append(wms.with_events(rows, spark.readStream.text(str(place / f"{side}-control"))))
    joined = wms.join(*frames, on="id", memory="256 KiB", partitions=2, state=place / "state-ending")
    run(joined, place, "ending")
    expect(spark, place, "ending")


def every_verb(spark: Any, place: Path) -> None:
    """All of them over the same files, as streams side by side and in one pass."""
    inputs.add(place, end=True)
    files = {table: Files(spark, place, place / f"state-{table}") for table in VERBS}
    queries = {table: start(VERBS[table](files[table]), place, table) for table in VERBS}
    for table, query in queries.items():
        query.awaitTermination()
        check_streamed(counted(spark.read.parquet(str(place / f"out-{table}")), table), table, 1)
    for table in VERBS.keys() - {"matched", "matched_in_slots"}:  # seen already, and for streams alone
        assert counted(VERBS[table](Files(spark, place, None)), table) == expected_of_one_pass(table), table


if __name__ == "__main__":
    main(Path(sys.argv[1]))
