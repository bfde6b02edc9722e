"""Columns that inputs have behind those that the state knows: old rows have NULL there, as if they had come so. No
Spark."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark.window_oracle import Killed, killed_after
from watersmeet.checks.canonical import canonical_rows
from watersmeet.core.asof import AsofSpec, parse_asof
from watersmeet.core.errors import SnapshotError
from watersmeet.core.many_windows import parse_many_windows
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.memory import Budget
from watersmeet.spark.offline.opened import OpenedState, verify
from watersmeet.spark.plan.multi_recipe import MultiFactory
from watersmeet.spark.plan.recipe import AsofFactory, JoinFactory, WindowFactory
from watersmeet.spark.plan.row_layout import RowLayout
from watersmeet.spark.state import open_runs
from watersmeet.spark.state.directory import Batch
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.task import new_columns, operator_task, window_task
from watersmeet.spark.task import operator_cache as kept_operators
from watersmeet.spark.task.figures import COLUMN
from watersmeet.spark.task.operator_cache import KeptOperators
from watersmeet.spark.task.operator_task import OperatorTask
from watersmeet.spark.task.window_task import AsofTask, WindowTask

GROUPS = 2
MEMORY = 8 << 20
NAMES = ("left", "right", "third")
FIELDS = [
    [("id", pa.int64()), ("at", pa.int64()), ("note", pa.string()), ("price", pa.float64()), ("tag", pa.string())],
    [("v", pa.string()), ("id", pa.int64()), ("at", pa.int64()), ("many", pa.list_(pa.int32())), ("flag", pa.bool_())],
    [("at", pa.int64()), ("id", pa.int64()), ("w", pa.int32()), ("x", pa.int32()), ("y", pa.int32())],
]
"""Of each input: two or three columns from the beginning, the others come later."""
VERBS = ["join", "semi", "words", "window_join", "left window_join", "asof_join", "multijoin", "window multijoin"]


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def schemas_of(widths: tuple[int, ...]) -> list[pa.Schema]:
    return [pa.schema(fields[:width]) for fields, width in zip(FIELDS, widths, strict=False)]


def task_of(verb: str, path: Path, schemas: list[pa.Schema], **changed: Any) -> Any:
    """The task of a join of such inputs."""
    if verb == "words":  # a key that is kept, for a hash does not prove it
        on: Any = parse_on(["note = v", "id = id"])
    else:
        on = parse_on("id")
    on = changed.get("on", on)
    layout = RowLayout.of(*([column.type for column in schema] for schema in schemas))
    place = str(path)
    if verb.endswith("window_join"):
        how = "left" if verb.startswith("left") else "inner"
        window = parse_windows(changed.get("window", 500), "at", emit="final" if verb.startswith("final") else "early")
        spec = WindowJoinSpec(*schemas, on, how, window=window)
        return WindowTask(WindowFactory.of(spec, MEMORY, "auto"), layout, MEMORY, GROUPS, place, retain=4)
    if verb == "asof_join":
        asof = AsofSpec(*schemas, on, times=parse_asof("at", "backward", None, 0, "keep"))
        return AsofTask(AsofFactory(asof), layout, MEMORY, GROUPS, place, retain=4)
    if verb.endswith("multijoin"):
        edges = ["left.id = right.id", "right.at = third.at" if "on" in changed else "right.id = third.id"]
        inputs = dict(zip(NAMES, schemas, strict=True))
        if "window" in verb:
            many = MultiSpec.of(inputs, edges, window=parse_many_windows(changed.get("window", 500), NAMES, "at"))
            algorithm = "mjoin" if verb.startswith("mjoin") else "auto"
            return WindowTask(MultiFactory.of(many, algorithm), layout, MEMORY, GROUPS, place, retain=4)
        many = MultiSpec.of(inputs, edges)
        return OperatorTask(MultiFactory.of(many, "auto"), layout, MEMORY, GROUPS, 0, place, 4, signed=False)
    kind = "semi" if verb == "semi" else "inner"
    algorithm = "xjoin" if verb == "progressive" else "auto"
    factory = JoinFactory.of(JoinSpec(*schemas, on, how=kind), algorithm)
    return OperatorTask(factory, layout, MEMORY, GROUPS, 0, place, 4, signed=False)


@dataclass
class Pipeline:
    """A join whose query is started again with other columns."""

    verb: str
    path: Path
    run: str = "run-0"

    def batch(self, number: int, tables: list[pa.RecordBatch], **changed: Any) -> list[pa.RecordBatch]:
        """What all groups give."""
        task, found = task_of(self.verb, self.path, [table.schema for table in tables], **changed), []
        for group in range(GROUPS):
            with pytest.MonkeyPatch.context() as patch:
                for module in (window_task, operator_task):
                    patch.setattr(module, "current_batch", lambda: (Batch(number, self.run), "query"))
                given = list(task(_delivered(task, group, tables)))
            found += [out.drop_columns([COLUMN]).filter(out.column(COLUMN).is_null()) for out in given]
        return [batch for batch in found if batch.num_rows]


def _delivered(task: Any, group: int, tables: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    layout = task.layout
    for number, table in enumerate(tables):
        own = table.filter(pa.array(table.column("id").to_numpy() % GROUPS == group))
        columns = [layout.column_in(number, slot) for slot in range(layout.count)]
        arrays = [pa.nulls(own.num_rows) if each is None else own.column(each) for each in columns]
        tags = pa.array([group * layout.kinds + number] * own.num_rows, pa.int32())
        yield pa.RecordBatch.from_arrays([tags, *arrays], [str(i) for i in range(len(arrays) + 1)])


def made(rng: np.random.Generator, number: int, inputs: int, only: int | None) -> list[pa.RecordBatch]:
    """All columns of a batch's rows; with `only`, those of one group."""
    tables = []
    for fields in FIELDS[:inputs]:
        count = int(rng.integers(0, 25))
        keys = rng.integers(0, 12, count)
        values: dict[str, Any] = {
            "id": keys if only is None else keys // GROUPS * GROUPS + only,
            "at": 100 * number + rng.integers(0, 100, count),
            "note": [f"n{each}" for each in rng.integers(0, 3, count)],
            "v": [f"n{each}" for each in rng.integers(0, 3, count)],
            "many": [list(range(each)) for each in rng.integers(0, 3, count)],
        }
        for name, type_ in fields:
            if name not in values:
                plain = rng.integers(0, 9, count).tolist()
                values[name] = [bool(x) if pa.types.is_boolean(type_) else x for x in plain]
                if pa.types.is_string(type_):
                    values[name] = [f"{x}" * x for x in plain]
        arrays = [pa.array(values[name], type_) for name, type_ in fields]
        tables.append(pa.record_batch(arrays, schema=pa.schema(fields)))
    return tables


def _rows(batches: list[pa.RecordBatch], columns: list[str] | None = None) -> Counter[Any]:
    return Counter(row for batch in batches for row in canonical_rows(batch.select(columns or batch.schema.names)))


def _cut(tables: list[pa.RecordBatch], widths: tuple[int, ...]) -> list[pa.RecordBatch]:
    return [table.select(table.schema.names[:width]) for table, width in zip(tables, widths, strict=False)]


def _with_nulls(tables: list[pa.RecordBatch], widths: tuple[int, ...]) -> list[pa.RecordBatch]:
    """All columns, those that are not there yet NULL."""
    found = []
    for table, width in zip(tables, widths, strict=False):
        arrays = [
            table.column(i) if i < width else pa.nulls(table.num_rows, table.schema.field(i).type)
            for i in range(table.num_columns)
        ]
        found.append(pa.RecordBatch.from_arrays(arrays, schema=table.schema))
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_rows_from_before_have_null_in_new_columns(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, seen = (3 if "multijoin" in verb else 2), Counter[str]()
    real = new_columns._widen

    def counted(*given: Any) -> None:
        seen["widened"] += 1
        real(*given)

    monkeypatch.setattr(new_columns, "_widen", counted)
    for seed in range(4):
        rng = np.random.default_rng([seed, 4])
        grown, wide = (Pipeline(verb, tmp_path / f"{name} {seed}") for name in ("grown", "wide"))
        widths: tuple[int, ...] = (3, 3, 3)
        changes = {int(rng.integers(1, 4)): (4, int(rng.integers(3, 5)), 4), int(rng.integers(4, 7)): (5, 5, 5)}
        for number in range(9):
            if rng.random() < 0.4:  # another worker
                monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
                monkeypatch.setattr(open_runs, "WORKER", OpenRuns())
            if number in changes:
                widths, grown.run = changes[number], f"run-{number}"
            # Some groups have no rows for a while, and so a state of any age.
            tables = made(rng, number, inputs, int(rng.integers(GROUPS)) if 2 < number < 8 else None)
            if rng.random() < 0.5:
                with killed_after(int(rng.integers(0, 12))):
                    try:
                        grown.batch(number, _cut(tables, widths))
                    except Killed:
                        seen["killed"] += 1
                        monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
            found = grown.batch(number, _cut(tables, widths))
            expected = wide.batch(number, _with_nulls(tables, widths))
            columns = found[0].schema.names if found else None
            assert _rows(found, columns) == _rows(expected, columns), (seed, number)
            seen["found"] += sum(batch.num_rows for batch in found)
            again = grown.batch(number, _cut(tables, widths))
            assert _rows(again, columns) == _rows(found, columns), (seed, number)
    assert seen["widened"] > 4, seen
    assert seen["killed"] > 0, seen
    assert seen["found"] > 60, seen


def _two_batches(verb: str, path: Path, before: tuple[int, ...], after: tuple[int, ...], **changed: Any) -> None:
    rng, pipeline = np.random.default_rng(2), Pipeline(verb, path)
    inputs = 3 if "multijoin" in verb else 2
    pipeline.batch(0, _cut(made(rng, 0, inputs, None), before))
    pipeline.run = "run-1"
    pipeline.batch(1, _cut(made(rng, 1, inputs, None), after), **changed)


@pytest.mark.parametrize(
    ("verb", "before", "after", "changed", "told"),
    [
        ("join", (5, 5), (4, 5), {}, "column 'tag' of left is gone"),
        ("join", (4, 5), (5, 5), {"on": parse_on("at")}, "column 'tag' of left is new; on= differs"),
        ("window_join", (4, 5), (5, 5), {"window": 7}, "column 'tag' of left is new; the windows differs"),
        ("multijoin", (4, 5, 5), (5, 5, 5), {"on": "another"}, "column 'tag' of left is new; on= differs"),
        ("progressive", (4, 5), (5, 5), {}, "column 'tag' of left is new"),
        ("final window_join", (4, 5), (5, 5), {}, "column 'tag' of left is new"),
        ("mjoin window multijoin", (4, 5, 5), (5, 5, 5), {}, "column 'tag' of left is new"),
        ("window multijoin", (4, 5, 5), (5, 5, 5), {"window": 7}, "column 'tag' of left is new; the windows differs"),
    ],
)
def test_other_changes_are_refused(
    verb: str, before: tuple[int, ...], after: tuple[int, ...], changed: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(SnapshotError, match=rf"belongs to another join: .*\({told}\)"):
        _two_batches(verb, tmp_path, before, after, **changed)


def test_a_query_cannot_go_back_to_fewer_columns(tmp_path: Path) -> None:
    rng, pipeline = np.random.default_rng(2), Pipeline("join", tmp_path)
    for number, width in enumerate([4, 5]):
        pipeline.run = f"run-{number}"
        pipeline.batch(number, _cut(made(rng, number, 2, None), (width, 5)))
    pipeline.run = "run-2"
    with pytest.raises(SnapshotError, match=r"column 'tag' of .* is gone"):
        pipeline.batch(2, _cut(made(rng, 2, 2, None), (4, 5)))


def test_the_state_of_a_group_without_rows_since_is_not_read(tmp_path: Path) -> None:
    rng, pipeline = np.random.default_rng(2), Pipeline("join", tmp_path)
    pipeline.batch(0, _cut(made(rng, 0, 2, None), (4, 5)))
    pipeline.run = "run-1"
    pipeline.batch(1, _cut(made(rng, 1, 2, 0), (5, 5)))
    state = OpenedState(tmp_path)
    opened = {version.group: version for version in state.versions()}
    join = state.open(opened[0])
    assert join is not None
    join.close()
    with pytest.raises(SnapshotError, match="has rows from before the inputs had their last columns"):
        state.open(opened[1])
    assert not verify(state).damaged


@pytest.mark.parametrize("verb", ["join", "window_join", "window multijoin"])
def test_copies_are_made_within_the_memory_of_a_task(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, pipeline, inputs = np.random.default_rng(7), Pipeline(verb, tmp_path), 3 if "multijoin" in verb else 2
    tables = made(rng, 0, inputs, 0)
    rows = pa.table({"note": [f"{i}" * 300 for i in range(6_000)], "price": [0.5] * 6_000, "tag": ["t"] * 6_000})
    rows = rows.append_column("id", pa.array(range(0, 12_000, 2))).append_column("at", pa.array([1] * 6_000))
    tables[0] = rows.select(tables[0].schema.names).combine_chunks().to_batches()[0]
    pipeline.batch(0, _cut(tables, (4, 5, 5)))
    budgets: list[Budget] = []

    def noted(memory: int) -> Budget:
        budgets.append(Budget(memory))
        return budgets[-1]

    monkeypatch.setattr(new_columns, "Budget", noted)
    pipeline.run = "run-1"
    pipeline.batch(1, _cut(made(rng, 1, inputs, 0), (5, 5, 5)))
    largest = max(budgets, key=lambda each: each.peak)
    assert rows.nbytes > 4 * largest.peak, "not the whole run at once"
    assert 0 < largest.peak <= max(largest.total // 8, 1 << 20), (largest.peak, largest.total)
    for budget in budgets:
        budget.check()
        assert budget.total <= MEMORY
