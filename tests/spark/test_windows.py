"""Window joins of DataFrames: what the oracle gives for the same batches, over a restart, late rows and spilling."""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark.frames import rows_in
from spark.window_oracle import arrival_order
from watersmeet.checks.canonical import canonical_rows
from watersmeet.core.errors import SpecError
from watersmeet.core.spec import parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows, rows
from watersmeet.joins.window_reference import reference_window_pairs
from watersmeet.spark import figures, window_join

START = datetime(2026, 3, 29, tzinfo=UTC)
SCHEMAS = [
    pa.schema({"ad": pa.int32(), "ts": pa.timestamp("us", "UTC"), "page": pa.string()}),
    pa.schema({"user": pa.int64(), "ad": pa.int64(), "at": pa.timestamp("us", "UTC")}),
]
WINDOW: dict[str, Any] = {"time": "ts = at", "window": ("10 minutes", "30 s"), "lateness": "1 min", "late": "keep"}


def _tables(rng: np.random.Generator, number: int, rows: int = 400) -> list[pa.RecordBatch]:
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


def _with_key(table: pa.RecordBatch, key: int, rows: int) -> pa.RecordBatch:
    """The first rows of a table, all of one key."""
    field = table.schema.get_field_index("ad")
    keys = pa.array([key] * rows, table.schema.field(field).type)
    return table.slice(0, rows).set_column(field, table.schema.field(field), keys)


def _expected(batches: list[list[pa.RecordBatch]]) -> Counter[Any]:
    window = parse_windows(WINDOW["window"], WINDOW["time"], None, WINDOW["lateness"], WINDOW["late"])
    spec = WindowJoinSpec(SCHEMAS[0], SCHEMAS[1], parse_on("ad"), window=window)
    tables, order = arrival_order(spec, batches)
    kept = [canonical_rows(table.to_batches()[0], spec.kept[side]) for side, table in enumerate(tables)]
    return Counter((*kept[0][i], *kept[1][j]) for i, j in reference_window_pairs(tables[0], tables[1], spec, order))


class Clicks:
    """Two growing directories of Parquet files, joined by a query that is started and stopped."""

    def __init__(self, spark: Any, place: Path, **options: Any) -> None:
        self.spark, self.place = spark, place
        self.options = {"on": "ad", **WINDOW, "memory": "256 KiB", "partitions": 3, "state": place / "state", **options}
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
        writer = window_join(*frames, **self.options).writeStream.foreachBatch(self._see).trigger(availableNow=True)
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


def test_batches_out_of_order_with_late_rows_and_a_restart(spark: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    clicks = Clicks(spark, tmp_path, delays=True)
    for number in range(4):
        clicks.add(_tables(rng, number))
    first = clicks.run()
    clicks.add(_tables(rng, 4))
    # From here on a single key: the groups of all others are quiet, and their rows go none the less.
    for number in (5, 15, 25, 26):
        clicks.add([_with_key(table, 7, 400 if side == 0 else 5) for side, table in enumerate(_tables(rng, number))])
    second = clicks.run()
    found = clicks.found()
    assert found == _expected(clicks.batches)
    told = first + second
    assert len(told) == len(clicks.batches)
    assert sum(each["results"] for each in told) == found.total() > 3_000
    assert sum(each["left_late"] + each["right_late"] for each in told) > 20
    assert sum(each["spilled"] for each in told) > 0
    assert all(0 < each["memory"] <= each["budget"] == 256 << 10 for each in told)
    assert all(each["left_delay_p50_ms"] for each in first)
    # All of the first five batches has expired; of the last one, two groups hold nothing.
    assert second[-1]["left_rows"] == 399
    manifests = [max((tmp_path / "state").glob(f"group-{group:04d}/manifest-*")) for group in range(3)]
    assert sum('"snapshot":null' in path.read_text() for path in manifests) == 2


def test_batch_dataframes(spark: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    batches = [_tables(rng, number) for number in range(5)]
    whole = [pa.Table.from_batches([tables[side] for tables in batches]).combine_chunks() for side in (0, 1)]
    frames = []
    for side, table in zip("lr", whole, strict=True):
        pq.write_table(table, tmp_path / side, row_group_size=300)
        frames.append(spark.read.parquet(str(tmp_path / side)))
    joined = window_join(*frames, on="ad", **WINDOW, memory="256 KiB", partitions=2)
    found = rows_in(joined.toArrow())
    assert found == _expected([[table.to_batches()[0] for table in whole]])
    assert found.total() > 2_000


def test_words_that_do_not_fit(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, 2)], "id long, t long")
    with pytest.raises(SpecError, match=r"a window of rows counts all rows"):
        window_join(frame, frame, on="id", time=None, window=rows(4))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"keeps no state"):
        window_join(frame, frame, on="id", time="t", window=5, state=tmp_path)
    with pytest.raises(SpecError, match=r"delays are told by timestamps"):
        window_join(frame, frame, on="id", time="t", window=5, delays=True)
