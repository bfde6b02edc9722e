"""Spark's batch engine over the same tables and words; how much it grows is told of its JVM."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.spark_contestants import session
from benchmarks.spark_query import Watch, memory_now
from benchmarks.suites.check import on_spark
from benchmarks.suites.model import Question


def answer_on_spark(question: Question, place: str, warm: str) -> dict[str, Any]:
    """Rows, their number, seconds, processor time and growth."""
    spark = session("batch")
    idle = memory_now()
    run_query(spark, question, warm)
    watch = Watch()
    watch.start()
    began = time.perf_counter()
    rows, number = run_query(spark, question, place)
    seconds = time.perf_counter() - began
    most, cpu = watch.stop()
    spark.stop()
    return {"rows": rows, "sum": number, "seconds": seconds, "first": seconds, "cpu": cpu, "growth": most - idle}


def run_query(spark: Any, question: Question, place: str) -> tuple[int, int]:
    """Rows of the result, and their number."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as fn

    for table in question.tables:
        spark.read.parquet(f"{place}/{table}").createOrReplaceTempView(table)
    frame = spark.sql(question.sql)
    observation = Observation()
    number = on_spark(question.columns, dict(frame.dtypes)).alias("sum")
    frame.observe(observation, fn.count(fn.lit(1)).alias("rows"), number).write.format("noop").mode("overwrite").save()
    return int(observation.get["rows"]), int(observation.get["sum"])
