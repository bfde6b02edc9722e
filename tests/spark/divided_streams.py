"""Joins whose groups are joined one after the other, as Spark's tasks do it: for tests that change their number."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.checks.canonical import canonical_rows
from watersmeet.core.asof import AsofSpec
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.spark.offline import dividing
from watersmeet.spark.plan.grid import grid_for
from watersmeet.spark.plan.multi_recipe import MultiFactory
from watersmeet.spark.plan.recipe import AsofFactory, JoinFactory, WindowFactory
from watersmeet.spark.plan.row_layout import RowLayout
from watersmeet.spark.state import directory as state_directory
from watersmeet.spark.state.directory import Batch, Owner, StateDirectory
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.task import operator_cache as kept_operators
from watersmeet.spark.task import window_task
from watersmeet.spark.task.figures import COLUMN
from watersmeet.spark.task.operator_cache import KeptOperators
from watersmeet.spark.task.placement import Placement
from watersmeet.spark.task.settled_group import SettledGroup
from watersmeet.spark.task.window_task import AsofTask, WindowTask
from watersmeet.spill import file_store

Tables = list[pa.RecordBatch]


@dataclass
class Stream:
    """A join on Spark without Spark: batches in, results out; `groups` may be set anew after a repartition."""

    path: Path | str
    spec: JoinSpec
    groups: int
    memory: int = 1 << 20
    run: str = "run-0"
    ended: set[int] = field(default_factory=set)

    @cached_property
    def placement(self) -> Placement:
        return Placement(self.spec, by_id=True)

    def batch(self, number: int, tables: Tables, ended: tuple[int, ...] = (), only: int | None = None) -> Counter[Any]:
        """What all tasks of a batch give, or one of them."""
        found: Counter[Any] = Counter()
        self.ended |= set(ended)
        for group in range(self.groups) if only is None else [only]:
            run = self._window_task if self._is_windowed else self._join_task
            for out in run(number, group, [self.rows_of(group, side, table) for side, table in enumerate(tables)]):
                found.update(canonical_rows(out))
        return found

    def rows_of(self, group: int, side: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """A group's rows."""
        keys = [rows.column(name) for name in self.spec.keys(side)]
        own = self.placement.groups(keys, side, self.groups) == group
        return rows.filter(pa.array(own))

    @property
    def _is_windowed(self) -> bool:
        return isinstance(self.spec, WindowJoinSpec | AsofSpec)

    def _window_factory(self) -> Any:
        if isinstance(self.spec, AsofSpec):
            return AsofFactory(self.spec)
        assert isinstance(self.spec, WindowJoinSpec)
        return WindowFactory(self.spec, "confluence")

    def _join_task(self, number: int, group: int, tables: Tables) -> Iterator[pa.RecordBatch]:
        factory = JoinFactory.of(self.spec, "auto")
        owner = Owner(factory.fingerprint, self.groups, "query", describe=factory.described)
        state = StateDirectory(_place(self.path), owner, Batch(number, self.run), retain=4).group(group)
        pieces = [(side, table) for side, table in enumerate(tables) if table.num_rows]
        yield from SettledGroup(factory, self.memory, state, OpenRuns()).results(iter(pieces), lambda: self.ended)

    def _window_task(self, number: int, group: int, tables: Tables) -> Iterator[pa.RecordBatch]:
        factory = self._window_factory()
        layout = RowLayout.of(*([each.type for each in schema] for schema in factory.inputs), wakes=True)
        kind = AsofTask if isinstance(self.spec, AsofSpec) else WindowTask
        task = kind(factory, layout, self.memory, self.groups, str(self.path), 4, numbered=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(window_task, "current_batch", lambda: (Batch(number, self.run), "query"))
            patch.setattr(window_task, "current_partition", lambda: group)
            patch.setattr(kept_operators, "WORKER", KeptOperators())
            for out in task(_delivered(layout, group, tables)):
                plain = out.filter(out.column(COLUMN).is_null()).drop_columns([COLUMN])
                if plain.num_rows:
                    yield plain


class ManyStream(Stream):
    """A join of several inputs on Spark without Spark."""

    spec: Any

    def rows_of(self, group: int, side: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        grid = grid_for(self.spec, self.groups)
        known = rows
        for place in grid.known(side):
            known = known.filter(known.column(grid.axes[place].columns[side][0]).is_valid())
        if self.spec.window is not None:
            known = known.filter(known.column(self.spec.window.time[side]).is_valid())
        groups = np.zeros(known.num_rows, np.int64)
        for place in grid.known(side):
            axis = grid.axes[place]
            types = [self.spec.input(i).field(each[0]).type for i, each in enumerate(axis.columns) if each]
            values = known.column(axis.columns[side][0])
            groups += grid.strides[place] * Placement.of_types(types, by_id=True).groups([values], side, axis.shares)
        return known.filter(pa.array(np.isin(group - groups, grid.copies(side))))

    @property
    def _is_windowed(self) -> bool:
        return self.spec.window is not None

    def _window_factory(self) -> MultiFactory:
        return MultiFactory.of(self.spec, "auto")

    def _join_task(self, number: int, group: int, tables: Tables) -> Iterator[pa.RecordBatch]:
        factory = MultiFactory.of(self.spec, "auto")
        owner = Owner(factory.fingerprint, self.groups, "query", describe=factory.described)
        state = StateDirectory(_place(self.path), owner, Batch(number, self.run), retain=4).group(group)
        pieces = [(side, table) for side, table in enumerate(tables) if table.num_rows]
        yield from SettledGroup(factory, self.memory, state, OpenRuns()).results(iter(pieces), lambda: self.ended)


def _place(path: Path | str) -> Any:
    from watersmeet.spark.state.remote import place_of

    return place_of(str(path))


def _delivered(layout: RowLayout, group: int, tables: Tables) -> Iterator[pa.RecordBatch]:
    wake = [pa.record_batch([pa.array([0])], ["none"])]
    for kind, table in enumerate([*tables, *wake]):
        arrays = [pa.array([group * layout.kinds + kind] * table.num_rows, pa.int32())]
        for slot in range(layout.count):
            column = layout.column_in(kind, slot) if kind < len(tables) else None
            arrays.append(table.column(column) if column is not None else pa.nulls(table.num_rows))
        yield pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])


def cut(table: pa.RecordBatch, batches: int) -> list[pa.RecordBatch]:
    """A table as so many batches of about one size."""
    ends = np.linspace(0, table.num_rows, batches + 1).astype(int).tolist()
    return [table.slice(start, stop - start) for start, stop in pairwise(ends)]


class Killed(BaseException):
    """What a SIGKILL looks like to a test: nothing is cleaned up."""


def killed_at(step: int, act: Callable[[], Any]) -> bool:
    """Do something that ends before its so many-th step on the disk; whether it came to that."""
    left = step

    def counted(real: Any) -> Any:
        def one(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return real(*args, **kwargs)

        return one

    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (file_store._FileWriter, "write"), (file_store._FileWriter, "commit"), (state_directory, "publish"),
            (dividing, "publish"), (dividing, "make_directory"), (os, "unlink"), (os, "rmdir"),
        ):  # fmt: skip
            patch.setattr(module, name, counted(getattr(module, name)))
        patch.setattr(file_store._FileWriter, "abort", lambda self: None)
        try:
            act()
        except Killed:
            return True
    return False
