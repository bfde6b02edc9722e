"""What a batch costs a group that has no rows in it, and a worker that has an older version of a group. No Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.asof import AsofSpec, parse_asof
from watersmeet.core.errors import SnapshotError
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.runs.sorted_run import SortedRun
from watersmeet.spark.plan.recipe import AsofFactory, JoinFactory, WindowFactory
from watersmeet.spark.plan.row_layout import RowLayout
from watersmeet.spark.state import open_runs
from watersmeet.spark.state.directory import Batch
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.task import context, operator_task, window_task
from watersmeet.spark.task import operator_cache as kept_operators
from watersmeet.spark.task.figures import COLUMN
from watersmeet.spark.task.operator_cache import KeptOperators
from watersmeet.spark.task.operator_task import OperatorTask
from watersmeet.spark.task.window_task import AsofTask, WindowTask

SCHEMA = pa.schema({"id": pa.int64(), "at": pa.int64()})
MEMORY = 4 << 20
_JOINS = ["join", "progressive", "window_join", "asof_join"]


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def task_of(verb: str, path: Path) -> Any:
    """The task of a join in two groups."""
    on, layout = parse_on("id"), RowLayout.of(["long", "long"], ["long", "long"])
    if verb == "window_join":
        spec = WindowJoinSpec(SCHEMA, SCHEMA, on, window=parse_windows(1_000, "at"))
        return WindowTask(WindowFactory.of(spec, MEMORY, "auto"), layout, MEMORY, 2, str(path), numbered=True)
    if verb == "asof_join":
        times = parse_asof("at", "backward", 1_000, 0, "keep")
        asof = AsofFactory(AsofSpec(SCHEMA, SCHEMA, on, times=times))
        return AsofTask(asof, layout, MEMORY, 2, str(path), numbered=True)
    factory = JoinFactory.of(JoinSpec(SCHEMA, SCHEMA, on), "auto" if verb == "join" else "xjoin")
    return OperatorTask(factory, layout, MEMORY, 2, 10_000, str(path), signed=False)


def run(task: Any, number: int, group: int, *rows: list[tuple[int, int]]) -> list[pa.RecordBatch]:
    """What a group's task gives in a batch; without rows it is one of which Spark gives nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "current_partition", lambda: group)
        patch.setattr(window_task, "current_partition", lambda: group)
        for module in (window_task, operator_task):
            patch.setattr(module, "current_batch", lambda: (Batch(number, "run"), "query"))
        found = list(task(_delivered(task, group, rows)))
    return [out.drop_columns([COLUMN]).filter(out.column(COLUMN).is_null()) for out in found]


def _delivered(task: Any, group: int, inputs: tuple[list[tuple[int, int]], ...]) -> Iterator[pa.RecordBatch]:
    for number, rows in enumerate(inputs):
        tags = pa.array([group * task.layout.kinds + number] * len(rows), pa.int32())
        columns = [pa.array([row[i] for row in rows], pa.int64()) for i in (0, 1)]
        yield pa.RecordBatch.from_arrays([tags, *columns], ["tag", "0", "1"])


def _refused(*_: Any) -> Any:
    raise AssertionError("the state was asked for")


@pytest.mark.parametrize("verb", _JOINS)
def test_a_group_without_rows_touches_no_file(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(verb, tmp_path)
    for group in (0, 1):
        run(task, 0, group, [(1, 10)], [(1, 9)])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with monkeypatch.context() as patch:
        for module in (window_task, operator_task):
            patch.setattr(module, "StateDirectory", _refused)
        assert run(task, 1, 1) == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    # The first group's task notes the batch, without rows, too: so the next one goes on, with the group's old state.
    assert run(task, 1, 0) == []
    assert not list((tmp_path / "group-0000").glob("manifest-000000000001*"))
    found = run(task, 2, 1, [(1, 11)], [(1, 11)])
    assert sum(batch.num_rows for batch in found) >= 1
    with pytest.raises(SnapshotError, match="needs batch 3"):
        run(task, 4, 1, [(1, 12)], [])


@pytest.mark.parametrize("verb", ["window_join", "asof_join", "join"])
def test_a_worker_with_an_older_version_opens_what_is_new(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, opened, rng = task_of(verb, tmp_path), list[str](), np.random.default_rng(8)
    real = SortedRun.__init__

    def noted(run: SortedRun, store: Any, name: str, *rest: Any) -> None:
        opened.append(name)
        real(run, store, name, *rest)

    workers = [OpenRuns(), OpenRuns()]
    kept = [KeptOperators(workers[0]), KeptOperators(workers[1])]

    def batch(number: int, worker: int) -> list[pa.RecordBatch]:
        monkeypatch.setattr(open_runs, "WORKER", workers[worker])
        monkeypatch.setattr(kept_operators, "WORKER", kept[worker])
        keys = rng.integers(0, 20, (2, 50)).tolist()
        return run(task, number, 0, *([(key, 10 * number + i % 10) for i, key in enumerate(own)] for own in keys))

    for number in range(5):
        batch(number, 0)
    monkeypatch.setattr(SortedRun, "__init__", noted)
    batch(5, 1)
    by_a_new_worker = len(opened)
    opened.clear()
    batch(6, 0)
    by_one_that_had_it = len(opened)
    # Both write two runs or so of their own, and merge; the new one has to open all that there is.
    assert by_one_that_had_it < by_a_new_worker
    assert by_a_new_worker >= 6
