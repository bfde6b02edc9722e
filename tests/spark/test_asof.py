"""As-of joins on Spark: tasks batch by batch, killed and repeated, then with Spark itself, streams and batches."""

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
from hypothesis import settings

from spark.frames import rows_in
from spark.pipelines import GROUPS
from spark.pipelines import AsofPipeline as Pipeline
from spark.window_oracle import (
    Killed,
    asof_cases,
    expected_asof,
    far_ahead,
    killed_after,
    micro_batches,
    rows_in_all,
)
from watersmeet.checks.canonical import canonical_rows
from watersmeet.checks.oracle.windows import reference_asof_pairs
from watersmeet.core.asof import AsofSpec, parse_asof
from watersmeet.core.errors import LateRowError, SpecError
from watersmeet.core.spec import parse_on
from watersmeet.spark import asof_join
from watersmeet.spark.task import operator_cache as kept_operators
from watersmeet.spark.task.operator_cache import KeptOperators


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def test_killed_repeated_and_restarted_batches_answer_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = late = found_rows = written = 0
    for case in asof_cases(max(14, settings().max_examples // 8)):
        assert isinstance(case.spec, AsofSpec)
        rng = np.random.default_rng([case.seed, 77])
        pipeline = Pipeline(tmp_path / str(case.seed), case.spec, case.memory * 8 // 5 + 64)
        monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
        found: list[pa.RecordBatch] = []
        batches = micro_batches(case, rng)  # type: ignore[arg-type]
        none = [case.left.slice(0, 0), case.right.slice(0, 0)]
        last = far_ahead(case)
        if last is not None:
            batches += [[none[0], last], none]
        for number, tables in enumerate(batches):
            if rng.random() < 0.3:  # another worker, which has kept nothing
                monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
            if rng.random() < 0.4:
                with killed_after(int(rng.integers(0, 8))):
                    try:
                        pipeline.batch(number, tables)
                    except Killed:
                        monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
            results = pipeline.batch(number, tables)
            while rng.random() < 0.4:  # repeated, by this run or by the next one, in another order
                replayed += 1
                group = None
                if rng.random() < 0.5:
                    pipeline.run = f"run-{number}-{replayed}"
                else:
                    group = int(rng.integers(GROUPS))
                shuffled = [table.take(pa.array(rng.permutation(table.num_rows))) for table in tables]
                again = pipeline.batch(number, shuffled, group)
                own = results if group is None else pipeline.batch(number, tables, group)
                assert rows_in_all(again) == rows_in_all(own), case
            found += results
        if last is not None:
            assert rows_in_all(found) == expected_asof(case.spec, batches), case
        written += sum(figures[9] for figures in pipeline.figures)
        late += sum(figures[2] + figures[3] for figures in pipeline.figures)
        found_rows += sum(batch.num_rows for batch in found)
    assert replayed and late
    assert found_rows > 500


# --- with Spark ---

SCHEMAS = [
    pa.schema({"sym": pa.string(), "ts": pa.timestamp("us", "UTC"), "price": pa.int64()}),
    pa.schema({"sym": pa.string(), "ts": pa.timestamp("us", "UTC"), "bid": pa.int64()}),
]
START = datetime(2026, 3, 29, tzinfo=UTC)
ASKED: dict[str, Any] = {"on": "sym", "time": "ts", "how": "left", "tolerance": "60 s"}


def tables_of(rng: np.random.Generator, number: int, rows: int = 300) -> list[pa.RecordBatch]:
    """A batch of both inputs, with times that tie, NULLs, and rows out of order by less than a minute."""
    found = []
    for side in (0, 1):
        seconds = 100 * number + rng.integers(-20, 100, rows)
        times: list[Any] = [START + timedelta(seconds=int(each)) for each in seconds]
        keys: list[Any] = [f"s{key}" for key in rng.integers(0, 40, rows)]
        times[3], keys[5] = None, None
        columns = [keys, times, (np.arange(rows) + 1000 * number).tolist()]
        found.append(pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMAS[side], strict=True)],
                                     schema=SCHEMAS[side]))  # fmt: skip
    return found


def partners(rows: Counter[Any]) -> Counter[Any]:
    """Left rows with the time of their partner: which of several of one time it is, is a matter of batches."""
    return Counter(row[:4] for row in rows.elements())


def by_oracle(batches: list[list[pa.RecordBatch]], direction: str) -> Counter[Any]:
    times = parse_asof("ts", direction, "60 s")
    spec = AsofSpec(SCHEMAS[0], SCHEMAS[1], parse_on("sym"), "left", times=times)
    left, right = (pa.Table.from_batches([tables[side] for tables in batches]).combine_chunks() for side in (0, 1))
    kept = [canonical_rows(table.to_batches()[0], spec.kept[side]) for side, table in enumerate((left, right))]
    pairs = reference_asof_pairs(left, right, spec)
    return Counter((*kept[0][i], *((None, None) if j is None else kept[1][j])) for i, j in pairs)


@pytest.mark.parametrize("direction", ["backward", "nearest"])
def test_batch_dataframes(spark: Any, tmp_path: Path, direction: str) -> None:
    rng = np.random.default_rng(6)
    batches = [tables_of(rng, number) for number in range(4)]
    frames = []
    for side in (0, 1):
        whole = pa.Table.from_batches([tables[side] for tables in batches]).combine_chunks()
        pq.write_table(whole, tmp_path / "lr"[side], row_group_size=200)
        frames.append(spark.read.parquet(str(tmp_path / "lr"[side])))
    joined = asof_join(*frames, **ASKED, direction=direction, memory="512 KiB", partitions=2)
    assert joined.columns == ["sym", "ts", "price", "ts_right", "bid"]
    found = rows_in(joined.toArrow())
    assert partners(found) == partners(by_oracle(batches, direction))
    assert found.total() == 1200


def test_streams_go_on_from_their_checkpoint(spark: Any, tmp_path: Path) -> None:
    """After a restart, too, every left row that the right input has passed is answered, once, as in one batch."""
    rng = np.random.default_rng(7)
    batches = [tables_of(rng, number) for number in range(6)]
    seen: dict[int, pa.Table] = {}

    def run(upto: int) -> None:
        for number in range(upto):
            for side in (0, 1):
                directory = tmp_path / "lr"[side]
                directory.mkdir(exist_ok=True)
                path = directory / f"{number:04d}.parquet"
                if not path.exists():
                    pq.write_table(pa.Table.from_batches([batches[number][side]]), path)
                    os.utime(path, (1e9 + number,) * 2)
        frames = [
            spark.readStream.schema(spark.read.parquet(str(tmp_path / side)).schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(tmp_path / side))
            for side in "lr"
        ]
        joined = asof_join(*frames, **ASKED, lateness="30 s", memory="512 KiB", state=tmp_path / "state", partitions=2)
        writer = joined.writeStream.foreachBatch(lambda frame, number: seen.update({number: frame.toArrow()}))
        query = writer.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination()

    run(3)
    assert len(seen) == 3
    run(6)
    assert sorted(seen) == list(range(6))
    found = rows_in(pa.concat_tables(seen.values()))
    whole = partners(by_oracle(batches, "backward"))
    assert not partners(found) - whole, "no answer that a later row contradicts"
    assert max(Counter(row[2] for row in found.elements()).values()) == 1, "every left row comes once"
    assert found.total() > 1200, "all but the last batches' rows are answered"


def test_what_cannot_be_is_refused(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, 2.0, "x")], "id long, t double, name string")
    with pytest.raises(SpecError, match="has no order that tells a time"):
        asof_join(frame, frame, on="id", time="name")
    with pytest.raises(SpecError, match="keeps no state"):
        asof_join(frame, frame, on="id", time="t", state=tmp_path)
    rows = asof_join(frame, frame, on="id", time="t", how="left", partitions=1).collect()
    assert [tuple(row) for row in rows] == [(1, 2.0, "x", 2.0, "x")]
    stream = spark.readStream.format("rate").load()
    with pytest.raises(SpecError, match="a stream has no end for a row of any age to wait for"):
        asof_join(stream, stream, time="timestamp", lateness="unlimited", state=tmp_path)


def test_late_rows_may_end_the_query(tmp_path: Path) -> None:
    schema = pa.schema({"k": pa.int64(), "t": pa.int64()})
    spec = AsofSpec(schema, schema, parse_on("k"), times=parse_asof("t", lateness=0, late="error"))
    pipeline = Pipeline(tmp_path, spec, 1 << 20)
    late = pa.record_batch([[1], [3]], schema=schema)
    pipeline.batch(0, [pa.record_batch([[1], [9]], schema=schema), late])
    with pytest.raises(LateRowError, match="batch 1 has a row of left that comes later than lateness=0 allows"):
        pipeline.batch(1, [late, late.slice(0, 0)])
