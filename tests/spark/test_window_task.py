"""Tasks of a window join, batch by batch: killed, repeated, restored or kept, all groups give what the oracle gives. No
Spark."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings

from spark.pipelines import GROUPS
from spark.pipelines import WindowPipeline as Pipeline
from spark.window_oracle import Killed, expected_pairs, killed_after, micro_batches, rows_in_all, spark_cases
from watersmeet.core.errors import LateRowError, SegmentError, SnapshotError, SpecError
from watersmeet.core.spec import parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows, rows
from watersmeet.engine.sizing import Grain
from watersmeet.records.times import NEVER, Timing
from watersmeet.spark.plan.recipe import WindowFactory
from watersmeet.spark.task import operator_cache as kept_operators
from watersmeet.spark.task.operator_cache import KeptOperators
from watersmeet.spark.task.timed_rows import TimedArrivals
from watersmeet.spill.store import MemoryStore


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize(("window", "pieces"), [(10, 5), (1_500, 4), (5_000, 2)])
def test_about_a_windows_rows_are_handed_on_at_once(window: int, pieces: int) -> None:
    batch = pa.record_batch({"id": np.zeros(5_000, np.int64), "t": np.arange(5_000)})
    spec = WindowJoinSpec(batch.schema, batch.schema, parse_on("id"), window=parse_windows(window, "t"))
    arrivals = TimedArrivals([spec.left, spec.right], Timing(spec), 1 << 20, MemoryStore)
    arrivals.add(0, batch)
    found = [piece for _, piece in arrivals.after([NEVER, NEVER])]
    assert len(found) == pieces
    assert sum(piece.num_rows for piece in found) == 5_000


@pytest.mark.parametrize("name", ["ah_ewj", "confluence", "ewj", "symmetric_window"])
def test_killed_repeated_and_restarted_batches_give_every_pair_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spilled = replayed = late = found_rows = 0
    for case in spark_cases(name, settings().max_examples // 12):
        assert isinstance(case.spec, WindowJoinSpec)
        rng = np.random.default_rng([case.seed, 77])
        pipeline = Pipeline(tmp_path / str(case.seed), case.spec, case.memory * 8 // 5 + 64, name)
        monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
        found: list[pa.RecordBatch] = []
        batches = micro_batches(case, rng)
        for number, tables in enumerate(batches):
            if rng.random() < 0.3:  # another worker, which has kept nothing
                monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
            if rng.random() < 0.4:
                _killed(pipeline, number, tables, rng, monkeypatch)
            pipeline.wakes = rng.random() < 0.7
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
        assert rows_in_all(found) == expected_pairs(case.spec, batches), case
        spilled += sum(figures[9] for figures in pipeline.figures)
        late += sum(figures[2] + figures[3] for figures in pipeline.figures)
        found_rows += sum(batch.num_rows for batch in found)
    assert replayed
    assert found_rows > 250
    assert late
    assert name == "symmetric_window" or spilled


def _killed(
    pipeline: Pipeline,
    number: int,
    tables: list[pa.RecordBatch],
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attempt that ends at some write to the disk, and leaves what it has written."""
    with killed_after(int(rng.integers(0, 8))):
        try:
            pipeline.batch(number, tables)
        except Killed:
            monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())


SCHEMA = pa.schema({"id": pa.int64(), "t": pa.int64(), "v": pa.int64()})


def _spec(**window: Any) -> WindowJoinSpec:
    return WindowJoinSpec(SCHEMA, SCHEMA, parse_on("id"), window=parse_windows(10, "t", **window))


def _table(ids: list[int], times: list[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids), pa.array(times), pa.array(range(len(ids)))], schema=SCHEMA)


NOTHING = _table([], [])


def _pipeline(tmp_path: Path, **window: Any) -> Pipeline:
    return Pipeline(tmp_path / "state", _spec(**window), 1 << 20)


def _quiet_and_loud(pipeline: Pipeline) -> tuple[int, int]:
    """A key of a group, and one of another."""
    groups = [next(g for g in range(GROUPS) if pipeline.rows_of(g, 0, _table([i], [0])).num_rows) for i in range(20)]
    return 0, next(i for i in range(20) if groups[i] != groups[0])


def test_a_quiet_group_lets_its_rows_go_once_the_others_are_past_its_window(tmp_path: Path) -> None:
    pipeline = _pipeline(tmp_path)
    quiet, loud = _quiet_and_loud(pipeline)
    both = [_table([quiet] * 50, list(range(50)))] * 2
    pipeline.batch(0, both)
    pipeline.batch(1, [_table([loud], [55])] * 2)
    before = pipeline.figures[-1]
    pipeline.figures.clear()
    pipeline.batch(2, [_table([loud], [80])] * 2)  # what came in batch 1 is known now, and is not past the window
    assert [figures[0] for figures in pipeline.figures] == [1]
    pipeline.figures.clear()
    pipeline.batch(3, [_table([loud], [81])] * 2)
    woken = [figures for figures in pipeline.figures if not figures[0]]
    assert [(figures[7], figures[8]) for figures in woken] == [(0, 0)], (before, pipeline.figures)
    for number in range(4, 20):
        pipeline.batch(number, [_table([loud], [81])] * 2)
    assert pipeline.batch(20, [_table([quiet], [85]), NOTHING]) == []
    # Of the quiet group nothing is left on disk but what its last row led to.
    groups = {file.parent.name: file for file in (tmp_path / "state").glob("group-*/operator-*")}
    assert len(groups) == 2


def test_without_a_wake_nothing_is_lost(tmp_path: Path) -> None:
    pipeline = _pipeline(tmp_path)
    pipeline.wakes = False
    quiet, loud = _quiet_and_loud(pipeline)
    pipeline.batch(0, [_table([quiet], [50]), NOTHING])
    for number in range(1, 12):
        pipeline.batch(number, [NOTHING, _table([loud], [49 + number])])
    [batch] = pipeline.batch(12, [NOTHING, _table([quiet], [60])])
    assert batch.num_rows == 1


def test_what_is_late_is_told_by_all_groups_and_the_batches_before(tmp_path: Path) -> None:
    for late, expected in (("keep", 2), ("drop", 1)):
        pipeline = Pipeline(tmp_path / late, _spec(lateness=5, late=late), 1 << 20)
        quiet, loud = _quiet_and_loud(pipeline)
        pipeline.batch(0, [NOTHING, _table([quiet, quiet], [84, 92])])
        pipeline.batch(1, [_table([loud, quiet], [100, 1]), NOTHING])  # 1 is not late: it came with the 100
        assert sum(figures[2] for figures in pipeline.figures) == 0
        pipeline.run = "another run"
        found = pipeline.batch(2, [_table([quiet, quiet], [94, 95]), NOTHING])
        # 94 is late. It meets 92, but no more 84, which rows in time could not meet either.
        assert sum(batch.num_rows for batch in found) == expected
        assert sum(figures[2] for figures in pipeline.figures) == 1
    pipeline = Pipeline(tmp_path / "error", _spec(lateness=5, late="error"), 1 << 20)
    pipeline.batch(0, [_table([loud], [100]), NOTHING])
    pipeline.batch(1, [_table([quiet], [95]), NOTHING])
    with pytest.raises(LateRowError, match=r"batch 2 has a row of left that comes later than lateness=5 allows"):
        pipeline.batch(2, [_table([quiet], [94]), NOTHING])


def test_marks_of_a_batch_that_the_query_went_back_behind_do_not_count(tmp_path: Path) -> None:
    pipeline = _pipeline(tmp_path, lateness=5, late="drop")
    pipeline.batch(0, [_table([1], [50]), NOTHING])
    pipeline.batch(1, [_table([1], [900]), NOTHING])
    pipeline.batch(2, [_table([1], [901]), NOTHING])
    pipeline.run = "from an older checkpoint"
    pipeline.figures.clear()
    pipeline.batch(1, [_table([1], [60]), NOTHING])
    pipeline.batch(2, [_table([1], [56]), NOTHING])
    assert [figures[2] for figures in pipeline.figures] == [0, 0]
    pipeline.batch(3, [_table([1], [54]), NOTHING])
    assert pipeline.figures[-1][2] == 1


def test_marks_do_not_pile_up(tmp_path: Path) -> None:
    pipeline = _pipeline(tmp_path)
    for number in range(14):
        pipeline.batch(number, [_table(list(range(9)), [number] * 9), NOTHING])
    names = sorted(path.name for path in (tmp_path / "state" / "marks").iterdir())
    assert len(names) <= 2 * GROUPS + 4 + 2, names
    assert not any(name.startswith(".") for name in names)


def test_an_attempt_that_comes_second_leaves_nothing(tmp_path: Path) -> None:
    pipeline = _pipeline(tmp_path)
    tables = [_table(list(range(60)), list(range(60)))] * 2
    first = pipeline.batch(0, tables)
    files = sorted((tmp_path / "state").rglob("*"))
    again = pipeline.batch(0, tables)
    assert rows_in_all(first) == rows_in_all(again)
    assert sorted((tmp_path / "state").rglob("*")) == files
    assert pipeline.batch(1, [NOTHING, _table([59], [65])])[0].num_rows == 1


def test_what_an_algorithm_is_told_counts_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (("grain", Grain(partitions=2, bucket_rows=40)),)
    for case in spark_cases("ah_ewj", 4):
        assert isinstance(case.spec, WindowJoinSpec)
        pipeline = Pipeline(tmp_path / str(case.seed), case.spec, case.memory * 8 // 5 + 64, options=options)
        batches = micro_batches(case, np.random.default_rng([case.seed, 78]))
        found = []
        for number, tables in enumerate(batches):
            monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())  # restored in each batch
            found += pipeline.batch(number, tables)
        assert rows_in_all(found) == expected_pairs(case.spec, batches), case
    tables = [_table([1], [1])] * 2
    Pipeline(tmp_path / "state", _spec(), 1 << 20, options=options).batch(0, tables)
    with pytest.raises(SnapshotError, match="belongs to another join"):
        Pipeline(tmp_path / "state", _spec(), 1 << 20).batch(1, tables)
    told = WindowFactory.of(_spec(), 1 << 20, "ah_ewj", dict(options))
    assert told.build(1 << 20, MemoryStore()).sizing.layout.bucket_rows == 40
    with pytest.raises(SpecError, match=r"algorithm ah_ewj has no option 'grains'; it takes grain, shares"):
        WindowFactory.of(_spec(), 1 << 20, "ah_ewj", {"grains": 1})


def test_a_damaged_segment_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = _pipeline(tmp_path)
    tables = [_table(list(range(60)), list(range(60)))] * 2
    pipeline.batch(0, tables)
    file = max((tmp_path / "state").glob("group-*/operator-*"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
    with pytest.raises(SegmentError, match=r"is damaged and the query cannot go on") as error:
        pipeline.batch(1, tables)
    assert file.name in str(error.value)


def test_what_spark_cannot_do_is_refused(tmp_path: Path) -> None:
    counted = WindowJoinSpec(SCHEMA, SCHEMA, parse_on("id"), window=parse_windows(rows(5)))
    with pytest.raises(SpecError, match="a window of rows counts all rows"):
        WindowFactory.of(counted, 1 << 20, "auto")
    with pytest.raises(
        SpecError, match=r"algorithm='rpwj' does not find .* take ah_ewj, ewj, symmetric_window, confluence"
    ):
        WindowFactory.of(_spec(), 1 << 20, "rpwj")
    _pipeline(tmp_path).batch(0, [_table([1], [1])] * 2)
    with pytest.raises(SnapshotError, match="belongs to another join"):
        Pipeline(tmp_path / "state", _spec(lateness=1), 1 << 20).batch(1, [_table([1], [1])] * 2)


def test_one_pass_over_batch_dataframes(tmp_path: Path) -> None:
    for case in spark_cases("ah_ewj", 6):
        assert isinstance(case.spec, WindowJoinSpec)
        pipeline = Pipeline(tmp_path, case.spec, case.memory * 8 // 5 + 64)
        pipeline.task = replace(pipeline.task, state=None)
        found = []
        for group in range(GROUPS):
            found += list(pipeline.task(pipeline._delivered(group, [case.left, case.right])))
        assert rows_in_all(found) == expected_pairs(case.spec, [[case.left, case.right]]), case
