"""What runs in a task of a plain join whose hot keys are split: its own group's rows, and those of hot keys' homes.

The rows of the task's own group are joined as they come, as in any task of a join. Those of hot keys that have a home
here wait, on disk if they are many, and are joined after them, each home in a group of its own. All of them are from
the state of the batch before to that of this one, as `task.settled_group` does it.

A home that has no state yet begins with what the key's own group remembers of the side that is copied, as of the batch
before. That is the same whenever it is asked for: from the batch on with which the key is split, rows of that side are
copied to all groups of the home, so one that has no state has missed none; and what its rows meet are rows of the other
side, of which a new home has none, so what is copied meets nobody twice. `routing` says why each pair is found once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.joins.confluence import Confluence
from watersmeet.spark.rebalance.master_task import RoutingFiles
from watersmeet.spark.rebalance.reorganizing import GroupLoad, SlotLoad, is_hot
from watersmeet.spark.rebalance.routing import INPUTS, HotKey, Role
from watersmeet.spark.rebalance.slot_rows import KeySample, SlotRows
from watersmeet.spark.state import open_runs
from watersmeet.spark.state.directory import StateDirectory
from watersmeet.spark.task.context import answers_for_all, scratch_directory
from watersmeet.spark.task.delays import Delays
from watersmeet.spark.task.figures import figures_row, with_figures
from watersmeet.spark.task.operator_group import BatchCounts
from watersmeet.spark.task.operator_task import Incoming, OperatorTask, batch_figures
from watersmeet.spark.task.settled_group import SettledGroup, SettlingFactory
from watersmeet.spark.task.stored_rows import rows_of_key
from watersmeet.spill.file_store import FileStore

_WAITING_SHARE = 16
"""Of the memory: rows of hot keys that wait, and as much again while they are sorted."""
_READING_SHARE = 8
"""Of the memory: what reads the rows that a new home begins with."""


class SplitTask(OperatorTask):
    """The function of `mapInArrow` of a streaming join whose rows all settle, and whose hot keys are split."""

    splits: ClassVar[bool] = True

    def _settled(
        self,
        factory: SettlingFactory,
        begin: Callable[[], StateDirectory],
        batches: Iterator[pa.RecordBatch],
        began: float,
    ) -> Iterator[pa.RecordBatch]:
        limit = self.memory // _WAITING_SHARE
        with closing(SlotRows(self.layout.kinds, limit, lambda: FileStore(scratch_directory()))) as waiting:
            incoming = _Incoming(self, waiting)
            pieces = incoming.pieces(batches)
            first = next(pieces, None)
            homes = [] if first is not None or incoming.group is not None else incoming.homes()
            if first is None and incoming.group is None and not homes:
                if answers_for_all():
                    begin()
                return
            work = _Work(self, factory, begin(), incoming, began)
            if incoming.group is not None:
                yield from work.own(pieces if first is None else chain([first], pieces))
            for number in incoming.homes():
                yield from work.home(number, waiting.of(number))
        yield work.told()


class _Work:
    """A task's work in one batch."""

    def __init__(
        self, task: SplitTask, factory: SettlingFactory, directory: StateDirectory, incoming: _Incoming, began: float
    ) -> None:
        self._task, self._factory, self._directory = task, factory, directory
        self._incoming, self._began = incoming, began
        self._memory = max(factory.least_memory(), task.memory - 2 * (task.memory // _WAITING_SHARE))
        self._delays = Delays(task.times)
        self._counts = BatchCounts([0] * INPUTS)
        self._loads: dict[int, GroupLoad] = {}
        self._hot: dict[int, HotKey] | None = None

    def own(self, pieces: Iterator[tuple[int, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """What the task's own group finds."""
        number = self._incoming.group
        assert number is not None, "rows or signs have told it"
        group = SettledGroup(self._factory, self._memory, self._directory.group(number), open_runs.WORKER)
        yield from self._handed_out(group.results(pieces, lambda: self._incoming.ended))
        self._count(number, group.counts, self._incoming.copied, self._incoming.sample)

    def home(self, number: int, rows: Iterator[tuple[int, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """What a home of a hot key finds."""
        copied, sample = [0] * INPUTS, KeySample()
        state = self._directory.group(number)
        group = SettledGroup(self._factory, self._memory, state, open_runs.WORKER)
        ended, inherited = self._incoming.ended, None
        if group.is_new:
            reading = self._task.memory // _READING_SHARE
            least = self._factory.least_memory()
            group = SettledGroup(self._factory, max(least, self._memory - reading), state, open_runs.WORKER)
            key = self._key_of(number)
            base = self._directory.group(key.homes[0].first)
            before = SettledGroup(self._factory, max(least, reading), base, open_runs.OpenRuns())
            ended = ended | before.ended
            inherited = partial(before.remembered, partial(_copies, self._task.factory, key))
        pieces = self._incoming.of_home(rows, copied, sample)
        yield from self._handed_out(group.results(pieces, lambda: ended, None, inherited))
        self._count(number, group.counts, copied, sample)

    def told(self) -> pa.RecordBatch:
        """The row of figures; what the master has to know is told on the way."""
        groups = self._task.groups
        if any(number >= groups or is_hot(load, groups) for number, load in self._loads.items()):
            seconds = time.monotonic() - self._began
            load = SlotLoad(min(self._loads), seconds, self._loads, self._directory.batch.number)
            RoutingFiles(self._directory).tell(load)
        self._counts.delays = self._delays.counts if self._task.times else []
        return figures_row(self._task.factory.output, batch_figures(self._counts, self._began).as_list())

    def _handed_out(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for results in with_figures(batches):
            self._delays.count(results, time.time())
            yield results

    def _key_of(self, number: int) -> HotKey:
        """Whose home a group is."""
        if self._hot is None:
            routing = RoutingFiles(self._directory).current()
            assert routing is not None, "rows were sent by it"
            self._hot = {group: key for key in routing.hot for group in key.home.groups}
        return self._hot[number]

    def _count(self, number: int, done: BatchCounts, copied: list[int], sample: KeySample) -> None:
        so_far = self._counts
        rows = list(done.rows)
        so_far.rows = [total + count - other for total, count, other in zip(so_far.rows, rows, copied, strict=True)]
        so_far.peak = max(so_far.peak, done.peak + self._incoming.waiting.peak)
        for name in ("results", "spilled", "written", "state_rows", "state_bytes"):
            setattr(so_far, name, getattr(so_far, name) + getattr(done, name))
        if sum(rows):
            self._loads[number] = GroupLoad(sum(rows), done.results, 0.0, sample.top(rows, done.results))


class _Incoming(Incoming):
    """Rows as Spark delivers them: those of the task's own group, the others put aside, and signs taken out."""

    def __init__(self, task: SplitTask, waiting: SlotRows) -> None:
        super().__init__(task)
        self.waiting = waiting
        self.copied = [0] * INPUTS
        """Rows of the own group that are counted elsewhere."""
        self.sample = KeySample()
        self._signed: set[int] = set()
        """Homes that were given a sign."""

    def homes(self) -> list[int]:
        """The groups of hot keys that have rows or were given a sign; all rows have come."""
        return sorted({*self.waiting.groups(), *self._signed})

    def of_home(
        self, rows: Iterator[tuple[int, pa.RecordBatch]], copied: list[int], sample: KeySample
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of a home, each piece of one input."""
        for kind, piece in rows:
            yield self._piece(kind, piece, copied, sample)

    def _take(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        task, kinds = self._task, self._task.layout.kinds
        tags = batch.column(0).to_numpy()
        if task.signed:
            signs = batch.column(batch.num_columns - 1).to_numpy()
            if signs.any():
                self._take_signs(tags[signs != 0], signs[signs != 0])
                batch = batch.filter(pa.array(signs == 0))
                tags = tags[signs == 0]
            batch = batch.select(range(batch.num_columns - 1))
        away = tags >= task.groups * kinds
        if away.any():
            self.waiting.add(batch.filter(pa.array(away)))
            batch, tags = batch.filter(pa.array(~away)), tags[~away]
        if not len(tags):
            return
        self.group, found = task.layout.kinds_of(tags, self.group)
        for kind in np.flatnonzero(np.bincount(found, minlength=kinds)).tolist():
            own = found == kind
            rows = batch if own.all() else batch.filter(pa.array(own))
            yield self._piece(kind, rows, self.copied, self.sample)

    def _piece(
        self, kind: int, piece: pa.RecordBatch, copied: list[int], sample: KeySample
    ) -> tuple[int, pa.RecordBatch]:
        role, side = Role(kind // INPUTS), kind % INPUTS
        if role is Role.COPY:
            copied[side] += piece.num_rows
        sample.add(side, piece.column(piece.num_columns - 1).to_numpy())
        return side, self._task.layout.rows_of(piece, side, self._task.factory.inputs)

    def _take_signs(self, tags: Any, signs: Any) -> None:
        kinds = self._task.layout.kinds
        self.ended.update(self._ends(tags, signs))
        for number in np.unique(tags // kinds).tolist():
            if number < self._task.groups:
                self._know(number)
            else:
                self._signed.add(number)

    def _know(self, number: int) -> None:
        self.group = number if self.group is None else self.group


def _copies(factory: Any, key: HotKey, operator: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
    """What a group remembers of a key's rows that are copied."""
    assert isinstance(operator, Confluence)
    side = 1 - key.tracked
    for rows in rows_of_key(operator, factory.spec, side, key.key):
        yield side, rows
