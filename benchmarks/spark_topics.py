"""Who reads topics on Spark: our join of two, and readers that do nothing with what they read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.spark_inputs import SCHEMA, SIDES
from benchmarks.spark_verbs import MEMORY

ADDRESS, JARS, MOST = (f"WATERSMEET_BENCH_KAFKA_{what}" for what in ("ADDRESS", "JARS", "OFFSETS"))
"""Where contestants find the broker, Spark's connector, and how many messages of a topic a batch has."""


def topics(spark: Any, who: str, place: Path, files: int) -> Any:
    """Two topics: joined, or only read, as rows or as they are."""
    from watersmeet.spark import from_kafka, join

    def read(topic: str) -> Any:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", os.environ[ADDRESS])
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        return reader.option("maxOffsetsPerTrigger", os.environ[MOST]).load()

    if who == "messages":
        return read(SIDES[0]).union(read(SIDES[1]))
    left, right = (from_kafka(read(side), side, SCHEMA) for side in SIDES)
    return left.union(right) if who == "rows" else join(left, right, on="id", memory=MEMORY, state=place / "state")
