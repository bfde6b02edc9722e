"""Tasks of a join of several endless inputs, with windows and without, batch by batch: killed, repeated, restored or
kept, all groups give what the oracle gives. No Spark."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings

from spark.window_oracle import Killed, is_plain, killed_after, rows_in_all
from watersmeet.checks.canonical import canonical_rows
from watersmeet.checks.multi_cases import MultiCase, make_multi_case, make_preserving_case
from watersmeet.checks.multi_windows import make_multi_window_case
from watersmeet.checks.oracle.nested_loops import comparable_values
from watersmeet.checks.oracle.windows import reference_window_combinations
from watersmeet.checks.run import expected_rows
from watersmeet.core.errors import BudgetError, LateRowError, SpecError
from watersmeet.core.many_windows import parse_many_windows
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import Output
from watersmeet.core.windows import rows
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.joins.window.many_confluence import ManyWindowConfluence
from watersmeet.joins.window.windowed_mjoin import WindowedMJoin
from watersmeet.spark.io.source import END
from watersmeet.spark.plan.control_rows import SIGN_CODES
from watersmeet.spark.plan.grid import grid_for
from watersmeet.spark.plan.multi_recipe import MultiFactory
from watersmeet.spark.plan.row_layout import RowLayout
from watersmeet.spark.state import open_runs
from watersmeet.spark.state.directory import Batch
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.task import operator_cache as kept_operators
from watersmeet.spark.task import operator_task, window_task
from watersmeet.spark.task.figures import COLUMN, SCALARS
from watersmeet.spark.task.operator_cache import KeptOperators
from watersmeet.spark.task.operator_task import OperatorTask
from watersmeet.spark.task.settled_group import check_memory
from watersmeet.spark.task.window_task import WindowTask

GROUPS = 3
CASES = max(20, settings().max_examples // 8)
_ENDS = SIGN_CODES[END]


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@dataclass
class Pipeline:
    """The tasks of all groups, as Spark would run them."""

    path: Path
    spec: MultiSpec
    memory: int
    run: str = "run-1"
    wakes: bool = True
    ends: bool = False
    most_groups: int = GROUPS
    algorithm: str = "auto"
    figures: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        spec, windowed = self.spec, self.spec.window is not None
        types = [[column.type for column in spec.input(number)] for number in range(len(spec.names))]
        layout = RowLayout.of(*types, wakes=windowed)
        factory = MultiFactory.of(spec, self.algorithm)
        self.grid = grid_for(spec, self.most_groups)
        # Where one value has several types, it is Spark that makes them comparable.
        types_of = [
            {spec.input(i).field(each[0]).type for i, each in enumerate(axis.columns) if each}
            for axis in self.grid.axes
        ]
        if any(len(each) > 1 for each in types_of):
            self.grid = grid_for(spec, 1)
        self.groups = self.grid.groups
        if windowed:
            self.task: Any = WindowTask(factory, layout, self.memory, self.groups, str(self.path), retain=4)
        else:
            self.task = OperatorTask(
                factory, layout, self.memory, self.groups, 0, str(self.path), retain=4, signed=self.ends
            )

    def batch(
        self, number: int, tables: list[pa.RecordBatch], only: int | None = None, ended: tuple[int, ...] = ()
    ) -> list[pa.RecordBatch]:
        """What all tasks of a batch give, or one of them."""
        found = []
        for group in range(self.groups) if only is None else [only]:
            with pytest.MonkeyPatch.context() as patch:
                for module in (window_task, operator_task):
                    patch.setattr(module, "current_batch", lambda: (Batch(number, self.run), "query"))
                for out in self.task(self._delivered(group, tables, ended)):
                    told = out.column(COLUMN)
                    self.figures += [each for each in told.to_pylist() if each is not None]
                    found.append(out.drop_columns([COLUMN]).filter(told.is_null()))
        return [batch for batch in found if batch.num_rows]

    def total(self, name: str) -> int:
        """A figure of all batches."""
        inputs = len(self.spec.names)
        if name == "late":
            return sum(sum(each[inputs : 2 * inputs]) for each in self.figures)
        return sum(each[2 * inputs + SCALARS.index(name)] for each in self.figures)

    def rows_of(self, group: int, number: int, table: pa.RecordBatch) -> pa.RecordBatch:
        """A group's rows: of an input that is not routed all, else those with a value that comes here."""
        grid = self.grid
        own, first = np.ones(table.num_rows, np.bool_), np.zeros(table.num_rows, np.int64)
        for place in grid.known(number):
            axis = grid.axes[place]
            (column,) = axis.columns[number]
            if self.spec.preserved != number:
                own &= table.column(column).is_valid().to_numpy(zero_copy_only=False)
            shares = [hash(value) % axis.shares for value in canonical_rows(table.select([column]))]
            first += grid.strides[place] * np.array(shares, np.int64)
        own &= np.isin(group - first, grid.copies(number))
        if self.spec.window is not None:
            assert self.spec.window.time is not None
            own &= table.column(self.spec.window.time[number]).is_valid().to_numpy(zero_copy_only=False)
        return table.filter(pa.array(own))

    def _delivered(self, group: int, tables: list[pa.RecordBatch], ended: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        layout = self.task.layout
        for number, table in enumerate(tables):
            own = self.rows_of(group, number, table)
            columns: list[Any] = [None] * layout.count
            for slot in range(layout.count):
                column = layout.column_in(number, slot)
                columns[slot] = pa.nulls(own.num_rows) if column is None else own.column(column)
            yield self._tagged(group * layout.kinds + number, columns, 0, own.num_rows)
        for number in ended:
            yield self._tagged(group * layout.kinds + number, [pa.nulls(1)] * layout.count, _ENDS, 1)
        if layout.wakes and self.wakes and sum(table.num_rows for table in tables):
            yield self._tagged(group * layout.kinds + len(tables), [pa.nulls(1)] * layout.count, 0, 1)

    def _tagged(self, tag: int, columns: list[Any], sign: int, count: int) -> pa.RecordBatch:
        signs = [pa.array([sign] * count, pa.int8())] if self.ends else []
        arrays = [pa.array([tag] * count, pa.int32()), *columns, *signs]
        return pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])


def micro_batches(case: MultiCase, rng: np.random.Generator, most: int = 6) -> list[list[pa.RecordBatch]]:
    """A case's rows, cut into batches."""
    count = int(rng.integers(1, most + 1))
    cuts = [[0, *sorted(rng.integers(0, t.num_rows + 1, count - 1)), t.num_rows] for t in case.tables]
    return [
        [table.slice(own[i], own[i + 1] - own[i]) for table, own in zip(case.tables, cuts, strict=True)]
        for i in range(count)
    ]


def is_sparks(spec: MultiSpec) -> bool:
    """Whether Spark could hand such rows to Python."""
    plain = all(is_plain(column.type) for schema in spec.schemas for column in schema)
    return plain and spec.output is Output.ROWS and not spec.has_bands


def _units(span: Any) -> int:
    if isinstance(span, int):
        return span
    return int(((span.days * 86_400 + span.seconds) * 10**6 + span.microseconds) * 1000)


def expected_in_windows(spec: MultiSpec, batches: list[list[pa.RecordBatch]]) -> Counter[Any]:
    """What the oracle gives if rows come as the docs tell: of each batch first what is late, input by input."""
    assert spec.window is not None and spec.window.time is not None
    inputs, lateness = range(len(spec.names)), _units(spec.window.lateness)
    newest: list[int | None] = [None for _ in inputs]
    pieces: list[list[pa.RecordBatch]] = [[] for _ in inputs]
    order: list[int] = []
    finest = spec.time_types[0]
    for tables in batches:
        late_rows, rest = [], []
        for number in inputs:
            times = comparable_values(tables[number].column(spec.window.time[number]), finest)
            known = sorted((i for i, time in enumerate(times) if time is not None), key=lambda i: times[i])
            pieces[number].append(tables[number].take(pa.array(known, pa.int64())))
            mark = newest[number]
            late = 0 if mark is None else sum(times[i] < mark - lateness for i in known)
            late_rows += [number] * late
            rest += [number] * (len(known) - late)
            if known:
                newest[number] = max(times[known[-1]], mark if mark is not None else times[known[-1]])
        order += late_rows + rest
    tables = [pa.Table.from_batches(pieces[number], spec.input(number)).combine_chunks() for number in inputs]
    kept = [
        [row for batch in table.to_batches() for row in canonical_rows(batch, spec.kept[number])]
        for number, table in enumerate(tables)
    ]
    return Counter(
        tuple(value for number, row in enumerate(found) for value in kept[number][row])
        for found in reference_window_combinations(tables, spec, order)
    )


JOINS = {"auto": ManyWindowConfluence, "mjoin": WindowedMJoin}


def _cases(make: Any, count: int, algorithm: str = "auto", first: int = 0) -> Iterator[MultiCase]:
    seed = first
    join = ManyConfluence if make is not make_multi_window_case else JOINS[algorithm]
    while count:
        case = make(seed, join)
        if is_sparks(case.spec) and not (case.spec.window is not None and case.spec.window.counted):
            count -= 1
            yield case
        seed += 1


def _shuffled(tables: list[pa.RecordBatch], rng: np.random.Generator) -> list[pa.RecordBatch]:
    return [table.take(pa.array(rng.permutation(table.num_rows))) for table in tables]


def _another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has kept nothing."""
    monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
    monkeypatch.setattr(open_runs, "WORKER", OpenRuns())


@pytest.mark.parametrize(
    ("make", "algorithm"),
    [
        (make_multi_case, "auto"), (make_preserving_case, "auto"), (make_multi_window_case, "auto"),
        (make_multi_window_case, "mjoin"),
    ],
)  # fmt: skip
def test_killed_repeated_and_restarted_batches_give_every_result_once(
    make: Any, algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[str] = Counter()
    for case in _cases(make, CASES * (1 + (make is make_multi_window_case)), algorithm):
        rng = np.random.default_rng([case.seed, 78])
        windowed, ends = case.spec.window is not None, make is make_preserving_case
        memory = case.memory * 8 // 5 + 64 if windowed else case.memory
        groups = 3 + case.seed % 2
        pipeline = Pipeline(
            tmp_path / str(case.seed), case.spec, memory, ends=ends, algorithm=algorithm, most_groups=groups
        )
        _another_worker(monkeypatch)
        found: list[pa.RecordBatch] = []
        batches = micro_batches(case, rng)
        last = [int(rng.integers(len(batches) - 1, len(batches) + 1)) for _ in case.tables] if ends else []
        for number, tables in enumerate([*batches, *([[t.slice(0, 0) for t in case.tables]] if ends else [])]):
            ended = tuple(i for i, at in enumerate(last) if at == number)
            if rng.random() < 0.3:
                _another_worker(monkeypatch)
            if rng.random() < 0.4:
                with killed_after(int(rng.integers(0, 8))):
                    try:
                        pipeline.batch(number, tables, ended=ended)
                    except Killed:
                        seen["killed"] += 1
                        _another_worker(monkeypatch)
            pipeline.wakes = rng.random() < 0.7
            results = pipeline.batch(number, tables, ended=ended)
            while rng.random() < 0.4:  # repeated, by this run or by the next one, in another order
                seen["replayed"] += 1
                group = None
                if rng.random() < 0.5:
                    pipeline.run = f"run-{number}-{seen['replayed']}"
                else:
                    group = int(rng.integers(pipeline.groups))
                again = pipeline.batch(number, _shuffled(tables, rng), group, ended)
                own = results if group is None else pipeline.batch(number, tables, group, ended)
                assert rows_in_all(again) == rows_in_all(own), case
            found += results
        expected = expected_in_windows(case.spec, batches) if windowed else expected_rows(case)
        assert rows_in_all(found) == expected, case
        seen["found"] += expected.total()
        seen["spilled"] += pipeline.total("spilled") > 0
        seen["late"] += pipeline.total("late") if windowed else 1
        seen["divided"] += pipeline.groups > 1
        seen["copied"] += any(len(pipeline.grid.copies(number)) > 1 for number in range(len(pipeline.spec.names)))
        seen["grid"] += len(pipeline.grid.axes) > 1
    assert all(seen[each] for each in ("killed", "replayed", "spilled", "late", "divided", "copied", "grid")), seen
    assert seen["found"] > 100, seen


SCHEMA = pa.schema({"id": pa.int64(), "at": pa.int64()})
ON = ["r.id = s.id", "s.id = t.id"]


def _spec(**window: Any) -> MultiSpec:
    windows = parse_many_windows({"r": 10, "s": 2, "t": 10}, "rst", time="at", **window)
    return MultiSpec.of(dict.fromkeys("rst", SCHEMA), ON, window=windows)


def _tables(*rows: list[tuple[int, int]]) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array([k for k, _ in each], pa.int64()), pa.array([t for _, t in each], pa.int64())],
                            schema=SCHEMA) for each in rows]  # fmt: skip


def _files(pipeline: Pipeline, start: str = "operator") -> list[str]:
    return sorted(path.name for path in pipeline.path.glob(f"group-*/{start}*"))


def test_rows_expire_by_what_other_groups_have_seen(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, _spec(), 4 << 20)
    ids = {hash((value,)) % GROUPS: value for value in range(40)}
    apart = [ids[group] for group in range(GROUPS)]
    pipeline.batch(0, _tables(*[[(key, 0) for key in apart]] * 3))
    assert pipeline.figures[-1][6 + SCALARS.index("state_rows")] == 3
    # Only one group has rows, whose times the others learn of with the next batch; a group that nobody wakes waits.
    pipeline.batch(1, _tables(*[[(apart[0], 100)]] * 3))
    pipeline.figures.clear()
    found = pipeline.batch(2, _tables([(apart[0], 101)], [], []))
    assert sum(batch.num_rows for batch in found) == 1
    told = [each[6 + SCALARS.index("state_rows")] for each in pipeline.figures]
    assert sorted(told)[:2] == [0, 0]


@pytest.mark.parametrize(
    ("algorithm", "memory"), [("mjoin", 192 << 10), ("mjoin", 4 << 20), ("auto", 144 << 10), ("auto", 4 << 20)]
)
def test_state_stays_as_large_as_windows(
    algorithm: str, memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path, _spec(), memory, algorithm=algorithm)
    most, rng = [], np.random.default_rng(5)
    for number in range(24):
        keys = rng.integers(0, 2_000, (3, 600))
        rows = [[(int(key), 5 * number + i % 5) for i, key in enumerate(own)] for own in keys]
        pipeline.batch(number, _tables(*rows))
        most.append(sum(each[6 + SCALARS.index("state_rows")] for each in pipeline.figures[-GROUPS:]))
        if number % 5 == 0:
            _another_worker(monkeypatch)
    assert max(most[12:]) <= 1.2 * max(most[:12])
    assert max(most) < 24 * 1800 // 2
    files = len(_files(pipeline)) / len(most)
    assert files < 20, "of rows in memory, and of runs that have not expired"
    if algorithm == "mjoin":
        assert (pipeline.total("spilled") > 0) == (memory < 1 << 20)
    else:
        assert pipeline.total("written") > 0, "every batch ends with runs"


def test_a_row_that_is_late_in_all_groups_is_late_in_each(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, _spec(late="drop"), 4 << 20)
    pipeline.batch(0, _tables([(1, 50)], [(1, 50)], [(1, 50)]))
    found = pipeline.batch(1, _tables([(2, 49)], [(2, 50)], [(2, 50)]))
    assert not found
    assert pipeline.total("late") == 1
    pipeline = Pipeline(tmp_path / "error", _spec(late="error"), 4 << 20)
    pipeline.batch(0, _tables([(1, 50)], [], []))
    with pytest.raises(LateRowError, match="batch 1 has a row of r that comes later than lateness=0 allows"):
        pipeline.batch(1, _tables([(2, 49)], [], []))


def test_what_endless_inputs_keep_is_in_runs_and_few_of_them(tmp_path: Path) -> None:
    spec = replace(_spec(), window=None)
    pipeline = Pipeline(tmp_path, spec, 4 << 20, most_groups=1)
    counts, rng = [], np.random.default_rng(3)
    for number in range(40):
        keys = rng.integers(0, 50, (3, 4))
        pipeline.batch(number, _tables(*[[(int(key), number) for key in own] for own in keys]), 0)
        counts.append(len(_files(pipeline)))
    assert max(counts) < 3 * 40, "runs are merged"
    assert [each[6 + SCALARS.index("state_rows")] for each in pipeline.figures] == [12 * (n + 1) for n in range(40)]
    assert not pipeline.total("work_left")


def test_an_input_without_partners_to_come_is_forgotten(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, replace(_spec(), window=None), 4 << 20, ends=True, most_groups=1)
    pipeline.batch(0, _tables([(1, 0)], [(1, 0)], [(1, 0)]), 0)
    pipeline.batch(1, _tables([], [], []), 0, ended=(0, 1))
    # Rows of t meet those of r and s, which stay; those of t wait for nobody.
    assert pipeline.figures[-1][6 + SCALARS.index("state_rows")] == 2
    found = pipeline.batch(2, _tables([], [], [(1, 5), (2, 5)]), 0)
    assert sum(batch.num_rows for batch in found) == 1
    assert pipeline.figures[-1][6 + SCALARS.index("state_rows")] == 2
    pipeline.batch(3, _tables([], [], []), 0, ended=(2,))
    assert pipeline.figures[-1][6 + SCALARS.index("state_rows")] == 0


def test_words_that_do_not_fit() -> None:
    counted = parse_many_windows(rows(10), "rst")
    with pytest.raises(SpecError, match="neither is known to the tasks of a batch; give windows of time"):
        MultiFactory.of(replace(_spec(), window=counted), "auto")
    with pytest.raises(SpecError, match="miner knows no windows; choose algorithm='confluence' or 'mjoin'"):
        MultiFactory.of(_spec(), "miner")
    with pytest.raises(BudgetError, match="too little for a task of this join; allow at least"):
        check_memory(1000, MultiFactory.of(replace(_spec(), window=None), "auto"))
