"""Two streams of files, joined by windows on Spark: batches out of order, with rows that are late or meet nothing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark.frames import rows_in
from spark.window_oracle import expected_pairs
from watersmeet.core.spec import parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.spark import figures

START = datetime(2026, 3, 29, tzinfo=UTC)
SCHEMAS = [
    pa.schema({"ad": pa.int32(), "ts": pa.timestamp("us", "UTC"), "page": pa.string()}),
    pa.schema({"user": pa.int64(), "ad": pa.int64(), "at": pa.timestamp("us", "UTC")}),
]
WINDOW: dict[str, Any] = {"time": "ts = at", "window": ("10 minutes", "30 s"), "lateness": "1 min", "late": "keep"}


def tables_of(rng: np.random.Generator, number: int, rows: int = 400) -> list[pa.RecordBatch]:
    """A batch of both inputs: its rows out of order, and some of them very late, without a time or without a key."""
    found = []
    for side in (0, 1):
        seconds = 200 * number + rng.integers(0, 200, rows)
        late = rng.random(rows) < 0.05
        seconds[late] -= rng.integers(0, 1500, int(late.sum()))
        times: list[Any] = [START + timedelta(seconds=int(each)) for each in seconds]
        keys: list[Any] = rng.integers(0, 60, rows).tolist()
        times[3], keys[5] = None, None
        others: dict[str, Any] = {"page": [f"page {i}" * (i % 4) for i in range(rows)], "user": list(range(rows))}
        columns = {"ad": keys, ("ts", "at")[side]: times, **others}
        found.append(pa.record_batch({field.name: columns[field.name] for field in SCHEMAS[side]}, SCHEMAS[side]))
    return found


def with_key(table: pa.RecordBatch, key: int, rows: int) -> pa.RecordBatch:
    """The first rows of a table, all of one key."""
    field = table.schema.get_field_index("ad")
    keys = pa.array([key] * rows, table.schema.field(field).type)
    return table.slice(0, rows).set_column(field, table.schema.field(field), keys)


def expected_rows(batches: list[list[pa.RecordBatch]], late: str = "keep") -> Counter[Any]:
    window = parse_windows(WINDOW["window"], WINDOW["time"], None, WINDOW["lateness"], late)
    spec = WindowJoinSpec(SCHEMAS[0], SCHEMAS[1], parse_on("ad"), window=window)
    return expected_pairs(spec, batches)


class Clicks:
    """Two growing directories of Parquet files, joined by a query that is started and stopped."""

    def __init__(self, spark: Any, place: Path, verb: Callable[..., Any], **options: Any) -> None:
        self.spark, self.place, self.verb = spark, place, verb
        self.options = {"on": "ad", **WINDOW, "memory": "256 KiB", "state": place / "state", **options}
        self.seen: dict[int, pa.Table] = {}
        self.batches: list[list[pa.RecordBatch]] = []

    def add(self, tables: list[pa.RecordBatch]) -> None:
        """A file more for each input, in a batch of their own."""
        for side, table in enumerate(tables):
            directory = self.place / "lr"[side]
            directory.mkdir(exist_ok=True)
            path = directory / f"{len(self.batches):04d}.parquet"
            pq.write_table(pa.Table.from_batches([table]), path)
            os.utime(path, (1e9 + len(self.batches),) * 2)
        self.batches.append(tables)

    def run(self) -> list[dict[str, Any]]:
        """Work off all files; what each batch did."""
        frames = [
            self.spark.readStream.schema(self.spark.read.parquet(str(self.place / side)).schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.place / side))
            for side in "lr"
        ]
        writer = self.verb(*frames, **self.options).writeStream.foreachBatch(self._see).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.place / "checkpoint")).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [figures(progress)["state"] for progress in query.recentProgress if progress.numInputRows]

    def _see(self, frame: Any, number: int) -> None:
        self.seen[number] = frame.toArrow()

    def found(self) -> Counter[Any]:
        return rows_in(pa.concat_tables(self.seen.values()))
