"""The suites' contestants on Spark: they have the results that ours and DuckDB have, by the same sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.suites import nexmark_spark
from benchmarks.suites.catalogue import SUITES
from benchmarks.suites.check import Sum, on_spark
from benchmarks.suites.engines import answers
from benchmarks.suites.model import Inputs, Question
from benchmarks.suites.spark_sql import run_query

pytest.importorskip("duckdb")


def expected(question: Question, place: Path) -> tuple[int, int]:
    total = Sum(question.columns)
    for batch in answers("duckdb", question, Inputs(place, 64 << 20, 1)):
        total.add(batch)
    assert total.rows > 0
    return total.result


def streamed(spark: Any, question: Question, who: str, place: Path, checkpoint: Path) -> tuple[int, int]:
    """Rows and sum of a streaming query, whose batches have a fifth of the files each."""
    from pyspark.sql import functions as fn

    frame = nexmark_spark.streams(spark, question.name, who, place, nexmark_spark.FILES_PER_BATCH)
    number = on_spark(question.columns, dict(frame.dtypes)).alias("sum")
    frame = frame.observe("all", fn.count(fn.lit(1)).alias("rows"), number)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    started = query.start()
    started.awaitTermination()
    told = [each.observedMetrics["all"] for each in started.recentProgress if each.numInputRows]
    assert len(told) > 1
    return sum(each["rows"] for each in told), sum(each["sum"] for each in told)


@pytest.mark.parametrize(("name", "who"), [("q4, q9", "heap"), ("q8", "heap"), ("q8", "ours")])
def test_nexmarks_joins_on_spark_have_the_results_of_all_others(
    spark: Any, tmp_path: Path, name: str, who: str
) -> None:
    suite = SUITES["nexmark"]
    suite.write(tmp_path / "tables", 0.0005)
    question = suite.question(name)
    found = streamed(spark, question, who, tmp_path / "tables", tmp_path / "checkpoint")
    assert found == expected(question, tmp_path / "tables")


def test_tpchs_joins_on_spark_have_the_results_of_all_others(spark: Any, tmp_path: Path) -> None:
    suite = SUITES["tpch"]
    suite.write(tmp_path, 0.002)
    question = suite.question("q3")
    assert run_query(spark, question, str(tmp_path)) == expected(question, tmp_path)
