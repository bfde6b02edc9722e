"""The tasks of a streaming join, run batch by batch as Spark would run them; without Spark."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.checks.canonical import Row, canonical_rows
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.records.asof_times import AsofCodec, AsofPlan, AsofTiming
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan
from watersmeet.records.times import WindowCodec, WindowPlan
from watersmeet.spark.io.source import END
from watersmeet.spark.plan.control_rows import SIGN_CODES
from watersmeet.spark.plan.grid import grid_for
from watersmeet.spark.plan.multi_recipe import MultiFactory
from watersmeet.spark.plan.recipe import AsofFactory, JoinFactory, WindowFactory
from watersmeet.spark.plan.row_layout import RowLayout
from watersmeet.spark.state.directory import Batch
from watersmeet.spark.task import operator_task, window_task
from watersmeet.spark.task.figures import COLUMN, SCALARS
from watersmeet.spark.task.operator_task import OperatorTask
from watersmeet.spark.task.window_task import AsofTask, WindowTask

GROUPS = 3
TASKS = (window_task, operator_task)
"""Modules that ask which batch they are part of."""
_ENDS = SIGN_CODES[END]


def place_of(value: Any, groups: int) -> int:
    """The group of a value, the same in every process."""
    return zlib.crc32(repr(value).encode()) % groups


def comparable(keys: pa.Array) -> list[Row]:
    """Values of which those that join are the same: both zeros, and every NaN."""
    if pa.types.is_floating(keys.type):
        keys = pa.array([None if key is None else key + 0.0 for key in keys.to_pylist()], keys.type)
    return canonical_rows(pa.record_batch([keys], ["key"]))


@dataclass
class Pipeline:
    """The tasks of all groups: what is different for each verb is how its task is made, and whose rows are whose."""

    path: Path | str
    spec: Any
    memory: int
    algorithm: str = "auto"
    options: tuple[tuple[str, Any], ...] = ()
    run: str = "run-1"
    wakes: bool = True
    """Whether groups are told of rows of others."""
    ends: bool = False
    """Whether inputs may end."""
    groups: int = GROUPS
    fuel: int = 0
    figures: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.inputs = range(len(self.spec.names))
        self.task: Any = self.make_task()

    def make_task(self) -> Any:
        """What Spark is given."""
        raise NotImplementedError

    def rows_of(self, group: int, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """A group's rows of an input, those left out that the plan leaves out."""
        raise NotImplementedError

    def layout(self, wakes: bool = True) -> RowLayout:
        """How rows share one row."""
        types = [[column.type for column in self.spec.input(number)] for number in self.inputs]
        return RowLayout.of(*types, wakes=wakes)

    def batch(
        self, number: int, tables: list[pa.RecordBatch], only: int | None = None, ended: tuple[int, ...] = ()
    ) -> list[pa.RecordBatch]:
        """What all tasks of a batch give, or one of them."""
        found = []
        for group in range(self.groups) if only is None else [only]:
            with pytest.MonkeyPatch.context() as patch:
                for module in TASKS:
                    patch.setattr(module, "current_batch", lambda: (Batch(number, self.run), "query"))
                found += self.attempt(group, tables, ended)
        return found

    def attempt(self, group: int, tables: list[pa.RecordBatch], ended: tuple[int, ...] = ()) -> list[pa.RecordBatch]:
        """What the task of a group gives in the batch at hand."""
        found = []
        for out in self.task(self._delivered(group, tables, ended)):
            told = out.column(COLUMN)
            self.figures += [each for each in told.to_pylist() if each is not None]
            found.append(out.drop_columns([COLUMN]).filter(told.is_null()))
        return [batch for batch in found if batch.num_rows]

    def total(self, name: str) -> int:
        """A figure of all batches."""
        inputs = len(self.inputs)
        if name == "late":
            return sum(sum(each[inputs : 2 * inputs]) for each in self.figures)
        return sum(each[2 * inputs + SCALARS.index(name)] for each in self.figures)

    def _delivered(
        self, group: int, tables: list[pa.RecordBatch], ended: tuple[int, ...] = ()
    ) -> Iterator[pa.RecordBatch]:
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


class JoinPipeline(Pipeline):
    """Of a join of two inputs; rows that meet nothing go to the first group."""

    spec: JoinSpec

    def make_task(self) -> OperatorTask:
        self.codec = KeyCodec(self.spec)
        self.plans = [RowPlan(self.spec, side, self.codec.exact) for side in (0, 1)]
        self.groups = self.groups if self.spec.equalities else 1
        factory = JoinFactory.of(self.spec, self.algorithm)
        return OperatorTask(
            factory, self.layout(False), self.memory, self.groups, self.fuel, str(self.path), retain=4, signed=self.ends
        )

    def rows_of(self, group: int, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.groups == 1:
            return rows
        hashes, valid = self.codec.hash(number, self.plans[number].key_arrays(rows))
        places = hashes.view(np.uint64) % self.groups
        own = places == group if valid is None else np.where(valid, places, 0) == group
        return rows.filter(pa.array(own))


class WindowPipeline(Pipeline):
    """Of a window join of two inputs."""

    spec: WindowJoinSpec

    def make_task(self) -> WindowTask:
        self.codec = WindowCodec(self.spec)
        self.plans = [WindowPlan(self.spec, side, self.codec) for side in (0, 1)]
        factory = WindowFactory(self.spec, "ah_ewj" if self.algorithm == "auto" else self.algorithm, self.options)
        return WindowTask(factory, self.layout(), self.memory, self.groups, str(self.path), retain=4)

    def rows_of(self, group: int, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        hashes, valid = self.codec.hash(number, self.plans[number].key_arrays(rows))
        assert self.spec.window.time is not None
        timed = rows.column(self.spec.window.time[number]).is_valid().to_numpy(zero_copy_only=False)
        groups = hashes.view(np.uint64) % self.groups if self.spec.equalities else np.zeros(rows.num_rows)
        own = (groups == group) & timed
        return rows.filter(pa.array(own if valid is None else own & valid))


class AsofPipeline(Pipeline):
    """Of an as-of join."""

    def make_task(self) -> AsofTask:
        self.codec = AsofCodec(self.spec)
        self.plans = [AsofPlan(self.spec, side, self.codec.exact) for side in (0, 1)]
        self.timing = AsofTiming(self.spec)
        return AsofTask(AsofFactory(self.spec), self.layout(), self.memory, self.groups, str(self.path), retain=4)

    def rows_of(self, group: int, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        hashes, valid = self.codec.hash(number, self.plans[number].key_arrays(rows))
        _, known = self.timing.times(number, rows)
        own = hashes.view(np.uint64) % self.groups == group
        for fit in (valid, known):
            own = own if fit is None else own & fit
        return rows.filter(pa.array(own))

    def _delivered(
        self, group: int, tables: list[pa.RecordBatch], ended: tuple[int, ...] = ()
    ) -> Iterator[pa.RecordBatch]:
        yield from super()._delivered(group, tables, ended)
        if not sum(table.num_rows for table in tables):  # groups are woken also by a batch without rows
            layout = self.task.layout
            yield self._tagged(group * layout.kinds + len(tables), [pa.nulls(1)] * layout.count, 0, 1)


class ManyPipeline(Pipeline):
    """Of a join of several inputs, with windows or without; `groups` is the most there may be."""

    def make_task(self) -> OperatorTask | WindowTask:
        spec, windowed = self.spec, self.spec.window is not None
        factory = MultiFactory.of(spec, self.algorithm)
        self.grid = grid_for(spec, self.groups)
        # Where one value has several types, it is Spark that makes them comparable.
        types_of = [
            {spec.input(i).field(each[0]).type for i, each in enumerate(axis.columns) if each}
            for axis in self.grid.axes
        ]
        if any(len(each) > 1 for each in types_of):
            self.grid = grid_for(spec, 1)
        self.groups = self.grid.groups
        layout, path = self.layout(windowed), str(self.path)
        if windowed:
            return WindowTask(factory, layout, self.memory, self.groups, path, retain=4)
        return OperatorTask(factory, layout, self.memory, self.groups, self.fuel, path, retain=4, signed=self.ends)

    def rows_of(self, group: int, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Of an input that is not routed all, else those with a value that comes here."""
        grid = self.grid
        own, first = np.ones(rows.num_rows, np.bool_), np.zeros(rows.num_rows, np.int64)
        for place in grid.known(number):
            axis = grid.axes[place]
            (column,) = axis.columns[number]
            if self.spec.preserved != number:
                own &= rows.column(column).is_valid().to_numpy(zero_copy_only=False)
            shares = [place_of(value, axis.shares) for value in comparable(rows.column(column))]
            first += grid.strides[place] * np.array(shares, np.int64)
        own &= np.isin(group - first, grid.copies(number))
        if self.spec.window is not None:
            assert self.spec.window.time is not None
            for name in (self.spec.window.time[number], *self.spec.keys(number)):
                own &= rows.column(name).is_valid().to_numpy(zero_copy_only=False)
        return rows.filter(pa.array(own))
