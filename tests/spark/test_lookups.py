"""Look-ups of DataFrames in a relation: over a restart and a change of the relation, and in a DataFrame laid out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from watersmeet import Relation
from watersmeet.core.errors import RelationError, SpecError
from watersmeet.spark import figures, lookup_join


def _stream(spark: Any, place: Path, number: int) -> Any:
    place.mkdir(exist_ok=True)
    rows = pa.table({"sku": [f"s{i % 700}" for i in range(1000)], "n": [number * 1000 + i for i in range(1000)]})
    pq.write_table(rows, place / f"{number}.parquet")
    return spark.readStream.schema("sku string, n long").option("maxFilesPerTrigger", 1).parquet(str(place))


def _run(joined: Any, place: Path) -> tuple[list[pa.Table], list[dict[str, Any]]]:
    found = []
    writer = joined.writeStream.foreachBatch(lambda frame, _: found.append(frame.toArrow())).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(place / "checkpoint")).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return found, [figures(progress)["state"] for progress in query.recentProgress if progress.numInputRows]


def _rows(tables: list[pa.Table]) -> Counter[Any]:
    return Counter(tuple(row.values()) for table in tables for row in table.to_pylist())


def test_a_stream_meets_the_relation_as_it_is_when_a_batch_begins(spark: Any, tmp_path: Path) -> None:
    names = ({"sku": f"s{i}", "name": f"name {i}", "weight": i} for i in range(600))
    relation = Relation.build(names, on="sku", path=tmp_path / "names.rel", segment="8 KiB")
    options: dict[str, Any] = {"how": "left", "memory": "160 KiB", "state": tmp_path / "state"}
    first, told = _run(lookup_join(_stream(spark, tmp_path / "in", 0), relation, **options), tmp_path)
    relation.upsert([{"sku": "s5", "name": "another", "weight": None}])
    relation.delete(["s6"])
    second, more = _run(lookup_join(_stream(spark, tmp_path / "in", 1), str(relation.path), **options), tmp_path)
    expected: Counter[Any] = Counter()
    for number in (0, 1):
        for i in range(1000):
            key, known = i % 700, i % 700 < 600
            name, weight = (f"name {key}", key) if known else (None, None)
            if number and key in (5, 6):
                name, weight = ("another", None) if key == 5 else (None, None)
            expected[f"s{key}", number * 1000 + i, name, weight] += 1
    assert _rows(first + second) == expected
    assert [each["stream_rows"] for each in told + more] == [1000, 1000]
    assert [each["misses"] for each in told + more] == [100, 102]
    assert all(0 < each["memory"] <= each["budget"] == 160 << 10 for each in told + more)


def test_a_dataframe_is_laid_out_once_and_batches_are_looked_up(spark: Any, tmp_path: Path) -> None:
    products = spark.range(600).selectExpr("concat('s', id) as sku", "timestamp_seconds(id) as since").repartition(3)
    options: dict[str, Any] = {"on": "sku", "memory": "1 MiB", "state": tmp_path / "state"}
    first, _ = _run(lookup_join(_stream(spark, tmp_path / "in", 0), products, **options), tmp_path)
    assert first[0].num_rows == 900
    assert first[0].schema.names == ["sku", "n", "since"]
    assert [path.name for path in (tmp_path / "state").glob("relation*")] == ["relation"]
    second, _ = _run(lookup_join(_stream(spark, tmp_path / "in", 1), products, **options), tmp_path)
    assert _rows(second) == Counter({(sku, n + 1000, since): 1 for sku, n, since in _rows(first)})
    batch = spark.read.parquet(str(tmp_path / "in"))
    found = lookup_join(batch, tmp_path / "state" / "relation", how="anti", memory="1 MiB").toArrow()
    assert _rows([found]) == Counter((f"s{i % 700}", i + 1000 * k) for k in (0, 1) for i in range(600, 700))
    with pytest.raises(RelationError, match="has other columns or keys than the DataFrame now"):
        lookup_join(_stream(spark, tmp_path / "in", 1), products.drop("since"), **options)
    with pytest.raises(RelationError, match="a DataFrame is laid out in the state directory"):
        lookup_join(batch, products, on="sku")
    with pytest.raises(SpecError, match=r"a dict cannot be looked up in"):
        lookup_join(batch, {}, on="sku")
