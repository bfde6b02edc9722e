"""As-of joins on Spark: tasks batch by batch, killed and repeated, then with Spark itself, streams and batches."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings

from spark.frames import rows_in
from spark.window_oracle import Killed, is_sparks, killed_after, micro_batches, rows_in_all, rows_of
from watersmeet.checks.asof import AsofCase, make_asof_case
from watersmeet.checks.canonical import canonical_rows
from watersmeet.checks.oracle.asof import _times, reference_asof_pairs
from watersmeet.core.asof import AsofSpec, parse_asof
from watersmeet.core.errors import LateRowError, SpecError
from watersmeet.core.spec import parse_on
from watersmeet.joins.asof.join import AsofJoin
from watersmeet.records.asof_times import AsofCodec, AsofPlan, AsofTiming
from watersmeet.spark import asof_join
from watersmeet.spark.plan.recipe import AsofFactory
from watersmeet.spark.plan.row_layout import RowLayout
from watersmeet.spark.state.directory import Batch
from watersmeet.spark.task import operator_cache as kept_operators
from watersmeet.spark.task import window_task
from watersmeet.spark.task.figures import COLUMN
from watersmeet.spark.task.operator_cache import KeptOperators
from watersmeet.spark.task.row_hashes import row_hashes
from watersmeet.spark.task.window_task import AsofTask

GROUPS = 3


def in_order(spec: AsofSpec, batches: list[list[pa.RecordBatch]]) -> list[pa.Table]:
    """Both inputs in the order that the docs tell: batch by batch by time, and within a time by the rows' values.

    Rows without a key or a time go to no task.
    """
    codec = AsofCodec(spec)
    plans = [AsofPlan(spec, side, codec.exact) for side in (0, 1)]
    pieces: list[list[pa.RecordBatch]] = [[], []]
    for tables in batches:
        times = _times(*(pa.Table.from_batches([table]) for table in tables), spec)
        for side, table in enumerate(tables):
            _, valid = codec.hash(side, plans[side].key_arrays(table))
            known = [i for i, time in enumerate(times[side]) if time is not None and (valid is None or valid[i])]
            hashes = row_hashes(table)
            known.sort(key=lambda i: (times[side][i], int(hashes[i])))
            pieces[side].append(table.take(pa.array(known, pa.int64())))
    return [pa.Table.from_batches(pieces[side], spec.input(side)).combine_chunks() for side in (0, 1)]


def expected(spec: AsofSpec, batches: list[list[pa.RecordBatch]]) -> Counter[Any]:
    tables = in_order(spec, batches)
    kept = [rows_of(table, spec.kept[side]) for side, table in enumerate(tables)]
    nulls = pa.record_batch(
        [pa.nulls(1, spec.right.field(i).type) for i in spec.kept[1]], [spec.right.field(i).name for i in spec.kept[1]]
    )
    nobody = canonical_rows(nulls)[0]
    pairs = reference_asof_pairs(tables[0], tables[1], spec)
    return Counter((*kept[0][i], *(nobody if j is None else kept[1][j])) for i, j in pairs)


@dataclass
class Pipeline:
    """The tasks of all groups, as Spark would run them."""

    path: Path
    spec: AsofSpec
    memory: int
    run: str = "run-1"
    figures: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.codec = AsofCodec(self.spec)
        self.plans = [AsofPlan(self.spec, side, self.codec.exact) for side in (0, 1)]
        self.timing = AsofTiming(self.spec)
        layout = RowLayout.of(*([each.type for each in self.spec.input(side)] for side in (0, 1)), wakes=True)
        self.task = AsofTask(AsofFactory(self.spec), layout, self.memory, GROUPS, str(self.path), retain=4)

    def batch(self, number: int, tables: list[pa.RecordBatch], only: int | None = None) -> list[pa.RecordBatch]:
        """What all tasks of a batch give, or one of them."""
        found = []
        for group in range(GROUPS) if only is None else [only]:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(window_task, "current_batch", lambda: (Batch(number, self.run), "query"))
                for out in self.task(self._delivered(group, tables)):
                    told = out.column(COLUMN)
                    self.figures += [each for each in told.to_pylist() if each is not None]
                    found.append(out.drop_columns([COLUMN]).filter(told.is_null()))
        return [batch for batch in found if batch.num_rows]

    def _rows_of(self, group: int, side: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """A group's rows, those left out that the plan leaves out."""
        hashes, valid = self.codec.hash(side, self.plans[side].key_arrays(rows))
        _, known = self.timing.times(side, rows)
        own = hashes.view(np.uint64) % GROUPS == group
        for fit in (valid, known):
            own = own if fit is None else own & fit
        return rows.filter(pa.array(own))

    def _delivered(self, group: int, tables: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layout = self.task.layout
        for side, table in enumerate(tables):
            own = self._rows_of(group, side, table)
            arrays = [pa.array([group * layout.kinds + side] * own.num_rows, pa.int32())]
            for slot in range(layout.count):
                column = layout.column_in(side, slot)
                arrays.append(own.column(column) if column is not None else pa.nulls(own.num_rows))
            yield pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])
        tag = pa.array([group * layout.kinds + 2], pa.int32())
        arrays = [tag, *(pa.nulls(1) for _ in range(layout.count))]
        yield pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])


def spark_cases(count: int) -> Iterator[AsofCase]:
    """Cases that Spark could have: rows without a key or a time are left to the plan, and inputs have an order."""
    seed = 0
    while count:
        case = make_asof_case(seed, AsofJoin)
        seed += 1
        assert isinstance(case.spec, AsofSpec)
        times = case.spec.times
        dated = case.spec.tick is not None or pa.types.is_integer(case.spec.time_types[0])
        if not is_sparks(case.spec) or not case.spec.on or not dated:
            continue
        one: Any = 1 if case.spec.tick is None else timedelta(seconds=1)
        lateness = tuple(3 * one if span is None else span for span in times.lateness)
        tolerance = times.tolerance if times.direction == "backward" or times.tolerance is not None else 5 * one
        late = "drop" if times.late == "error" else times.late
        told = replace(times, lateness=(lateness[0], lateness[1]), tolerance=tolerance, late=late)
        count -= 1
        yield replace(case, spec=replace(case.spec, times=told))


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def far_ahead(case: AsofCase) -> pa.RecordBatch | None:
    """A right row beyond everything, so that whatever waits is passed; None if no row has a key to be routed by."""
    spec = case.spec
    assert isinstance(spec, AsofSpec)
    codec = AsofCodec(spec)
    _, valid = codec.hash(1, AsofPlan(spec, 1, codec.exact).key_arrays(case.right))
    keyed = np.arange(case.right.num_rows) if valid is None else np.flatnonzero(valid)
    if not len(keyed):
        return None
    row = case.right.slice(int(keyed[-1]), 1)
    name, type_ = spec.times.time[1], spec.time_types[1]
    if pa.types.is_timestamp(type_):  # of one moment in any unit, so that it has a place in the finer one of both
        beyond = pa.array([{"s": 10**9, "ms": 10**12, "us": 10**15, "ns": 10**18}[type_.unit]]).view(type_)
    elif pa.types.is_date(type_):
        beyond = pa.array([10**4], pa.int32()).view(type_)
    else:
        beyond = pa.array([10**6], pa.int64())
    return row.set_column(row.schema.get_field_index(name), row.schema.field(name), beyond.cast(type_))


def test_killed_repeated_and_restarted_batches_answer_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = late = found_rows = written = 0
    for case in spark_cases(max(14, settings().max_examples // 8)):
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
            assert rows_in_all(found) == expected(case.spec, batches), case
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
