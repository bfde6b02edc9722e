"""The state of a join of several inputs, divided into another number of groups: see `dividing`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from watersmeet.core.arrays import Int32, Int64
from watersmeet.joins.division import divided_whole
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.matching.multi_windows import Reached
from watersmeet.records.times import NEVER
from watersmeet.runs.run_set import RunSet
from watersmeet.runs.sorted_run import SortedRun
from watersmeet.spark.offline.dividing import Dividing, NewGroup
from watersmeet.spark.offline.opened import MEMORY, OpenedState
from watersmeet.spark.plan.grid import grid_for
from watersmeet.spark.state.described import many_spec_of
from watersmeet.spark.state.directory import ROWS
from watersmeet.spark.state.store import VersionedStore
from watersmeet.spark.task.placement import Placement
from watersmeet.spark.task.stored_rows import column_of_many
from watersmeet.spill.store import Store


class DividingMany(Dividing):
    """The same of a join of several inputs: each set of runs, which has its rows in several orders, becomes sets.

    Rows that are copied to several groups are taken from the first of the old ones, and are copied to new ones again.

    With windows, a batch ends with all rows in runs, too; each has its span of time, which holds for any part of it.
    How far the inputs have come is what the old group knows that has come furthest. Rows carry how many others had come
    before them, which tells who of a combination came last, if late rows are kept. Each old group has counted its own
    rows; new groups go on from the highest of these counts, so that every row to come is later than all that are there.
    Combinations of rows that were there have been judged.
    """

    def __init__(self, state: OpenedState, partitions: int) -> None:
        self._spec = many_spec_of(state.described)
        self._grid = grid_for(self._spec, partitions)
        super().__init__(state, self._grid.groups)
        self._old_grid = grid_for(self._spec, state.groups)
        inputs = len(self._spec.names)
        self._nobody = [0] * inputs
        # Where there are several values, Spark is told the group, or a number that it will hash to that group.
        by_id = state.owner.get("by_id", True) or len(self._grid.axes) > 1
        self._placements = [
            Placement.of_types(
                [
                    self._spec.input(i).field(column).type
                    for i, columns in enumerate(axis.columns)
                    for column in columns
                ],
                by_id,
            )
            for axis in self._grid.axes
        ]
        self._told_ended = {batch: [False] * inputs for batch in self._batches}
        self._widest = {batch: [0] * inputs for batch in self._batches}
        self._windowed = self._spec.window is not None
        never = Reached((NEVER,) * inputs, (0,) * inputs, (False,) * inputs)
        self._reached = dict.fromkeys(self._batches, never)
        """With windows: how far the inputs had come."""
        self._late = {batch: [0] * inputs for batch in self._batches}
        """And how many rows came too late for some old group."""

    def _divide(self, number: int, groups: list[NewGroup]) -> None:
        opened: dict[int, tuple[ManyConfluence, VersionedStore]] = {}
        try:
            for batch in self._batches:
                version = self._state.version(number, batch)
                if version is None:
                    continue
                self._ended[batch] |= set(version.manifest.get("ended", ()))
                if version.manifest["snapshot"] is None:
                    self._over[batch] |= not self._windowed  # else all rows have expired, and others come
                    continue
                store = self._state.store(version)
                join = self._state.restored(ManyConfluence, self._spec, version, store)
                opened[batch] = join, store
                for each in range(len(self._nobody)):
                    self._told_ended[batch][each] |= join.exhausted(each)
                    self._widest[batch][each] = max(self._widest[batch][each], join.found.widest[each])
                if self._windowed:
                    self._reached[batch] = self._reached[batch].and_also(join.timed.clock.at)
                    self._late[batch] = list(map(max, self._late[batch], join.timed.late))
            for each in range(len(self._nobody)):
                if self._old_grid.is_first(each, number):
                    self._divide_input(each, opened, groups)
        finally:
            for join, _ in opened.values():
                join.close()

    def _divide_input(
        self, number: int, opened: dict[int, tuple[ManyConfluence, VersionedStore]], groups: list[NewGroup]
    ) -> None:
        found: dict[str, dict[int, tuple[ManyConfluence, RunSet]]] = {}
        for batch, (join, store) in opened.items():
            for each in join.disks[number].sets:
                found.setdefault(store.file_of(each.runs[0].name), {})[batch] = join, each
        for of in found.values():
            first = min(of)  # what both versions have is written once, as the earlier one's
            join, own = of[first]
            self._rows += own.rows if max(of) == self._last else 0
            names: dict[int, list[str]] = {}
            for run in own.runs:
                for target, name in self._divided(join, number, run, first, groups).items():
                    names.setdefault(target, []).append(name)
            for target, written in names.items():
                for batch, (_, same) in of.items():
                    groups[target].sets[batch].append((number, written, same))
                    if batch != first:
                        groups[target].stores[batch].share(groups[target].stores[first], written)

    def _divided(
        self, join: ManyConfluence, number: int, run: SortedRun, batch: int, groups: list[NewGroup]
    ) -> dict[int, str]:
        """A run's rows as runs of the new groups: their names."""

        def new_run(target: int, of: int) -> tuple[Store, str]:
            return groups[target].new_run(batch, of)

        names: dict[int, str] = {}
        for more in self._grid.copies(number):
            names |= divided_whole(run, number, partial(self._place_row, join, more), new_run)
        return names

    def _place_row(self, join: ManyConfluence, more: int, number: int, run: SortedRun, numbers: Int64) -> Int32:
        """To which group rows go, by the values that rows are sent by; of copies, so many groups further."""
        groups = np.full(len(numbers), more, np.int32)
        for place in self._grid.known(number):
            axis, placement = self._grid.axes[place], self._placements[place]
            (column,) = axis.columns[number]
            values = column_of_many(join, self._spec, number, column, run, numbers)
            groups += self._grid.strides[place] * placement.groups([values], number, axis.shares)
        return groups

    def _new_join(self, store: VersionedStore) -> ManyConfluence:
        return ManyConfluence(self._spec, MEMORY, store)

    def _inherit(self, join: Any, group: NewGroup, batch: int) -> None:
        store = group.stores[batch]
        for number, table in enumerate(join.tables):
            sets = [
                RunSet(tuple(SortedRun(store, name, table.types) for name in names), 0, old.level, old.span)
                for of, names, old in group.sets[batch]
                if of == number
            ]
            join.adopt(number, sets, group.named)
        join.know(self._told_ended[batch], self._widest[batch])
        if self._windowed:
            join.know_times(self._reached[batch], self._late[batch])

    def _holds(self, join: Any) -> bool:
        return not self._windowed or bool(join.window_rows)

    def _told(self, join: Any, batch: int, rows: list[int]) -> dict[str, Any]:
        if self._windowed:
            latest = [max((each.span.latest for each in disk.sets), default=None) for disk in join.disks]
            return {"held": latest, "due": None}
        return {"ended": sorted(self._ended[batch]), ROWS: rows}
