"""The function of `mapInArrow` around an operator of the protocol: a batch of rows and signs in, results out.

A verb adds an `OperatorFactory`; nothing here knows what its operator does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.protocol import Arrive, End, Punctuate
from watersmeet.joins.confluence import Confluence
from watersmeet.spark.io.source import END
from watersmeet.spark.plan.control_rows import OVER, SIGN_CODES, UP_TO
from watersmeet.spark.plan.row_layout import RowLayout
from watersmeet.spark.rebalance.master_task import RoutingFiles
from watersmeet.spark.rebalance.reorganizing import GroupLoad, SlotLoad, is_hot
from watersmeet.spark.rebalance.routing import INPUTS, HotKey, Role
from watersmeet.spark.rebalance.slot_rows import KeySample, SlotRows
from watersmeet.spark.state import open_runs
from watersmeet.spark.state.directory import Owner, StateDirectory
from watersmeet.spark.state.remote import CACHE_BYTES, Place
from watersmeet.spark.task import operator_cache as kept_operators
from watersmeet.spark.task.context import answers_for_all, current_batch, scratch_directory, state_place
from watersmeet.spark.task.delays import Delays
from watersmeet.spark.task.figures import Figures, figures_row, with_figures
from watersmeet.spark.task.operator_group import BatchCounts, OperatorFactory, OperatorGroup, Shares, hand_over
from watersmeet.spark.task.ordered_rows import Arrivals
from watersmeet.spark.task.punctuations import Punctuations
from watersmeet.spark.task.settled_group import SettledGroup, SettlingFactory
from watersmeet.spark.task.stored_rows import rows_of_key
from watersmeet.spill.file_store import FileStore

Numbers = NDArray[np.integer]

_TOLD_SHARE = 32
"""Punctuations of a batch may take one part in so many of the memory, and as much again while they are sorted."""


@dataclass(frozen=True)
class OperatorTask:
    """A streaming operator's task if it has a state directory, else that of one pass over batch DataFrames."""

    factory: OperatorFactory
    layout: RowLayout
    memory: int
    groups: int
    fuel: int = 0
    state: str | None = None
    retain: int = 100
    times: tuple[str, str] | None = None
    """The columns of the results from which delays are counted."""
    cache_bytes: int = CACHE_BYTES
    """Of state elsewhere: what may be kept of it on this machine."""
    signed: bool = True
    """Whether the last column of the rows holds signs."""
    by_id: bool = True
    """Whether Spark is given the numbers of groups."""
    made: int = field(default_factory=time.time_ns, compare=False)
    """When the query was put together: see `state.lineage`."""
    splits: ClassVar[bool] = False
    """Whether hot keys may have homes of their own."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the rows of one partition."""
        return self._in_one_pass(batches) if self.state is None else self._go_on(state_place(self.state), batches)

    def _in_one_pass(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows, then the ends: no state is kept, and an attempt that is repeated begins anew."""
        pieces = Incoming(self).pieces(batches)
        first = next(pieces, None)
        if first is None:
            return
        arrivals = (Arrive(number, rows) for number, rows in chain([first], pieces))
        ends = (End(number) for number in range(len(self.factory.inputs)))
        with FileStore(scratch_directory()) as store:
            operator = self.factory.build(self.memory, store)
            yield from hand_over(operator, chain(arrivals, ends))
            operator.close()

    def _go_on(self, path: Place, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began = time.monotonic()
        batch, query = current_batch()
        owner = Owner(
            self.factory.fingerprint, self.groups, query, describe=self.factory.described, by_id=self.by_id,
            grows=isinstance(self.factory, SettlingFactory) and self.factory.settles, splits=self.splits,
            made=self.made,
        )  # fmt: skip
        begin = partial(StateDirectory, path, owner, batch, self.retain, self.cache_bytes)
        if isinstance(self.factory, SettlingFactory) and self.factory.settles:
            yield from self._settled(self.factory, begin, batches, began)
        else:
            yield from self._with_results(begin, batches, began)

    def _settled(
        self,
        factory: SettlingFactory,
        begin: Callable[[], StateDirectory],
        batches: Iterator[pa.RecordBatch],
        began: float,
    ) -> Iterator[pa.RecordBatch]:
        """By the end of a batch nothing is owed: results are handed out as they are found."""
        with ExitStack() as stack:
            told, memory = None, self.memory
            if self.factory.punctuated:
                limit = memory // _TOLD_SHARE
                told = stack.enter_context(closing(Punctuations(self.factory.inputs, limit, _scratch)))
                memory = max(self.factory.least_memory(), memory - 2 * limit)  # sorting takes as much again
            incoming, delays = Incoming(self, told), Delays(self.times)
            pieces = incoming.pieces(batches)
            first = next(pieces, None)
            if incoming.group is None:
                if answers_for_all():
                    begin()
                return
            group = SettledGroup(factory, memory, begin().group(incoming.group), open_runs.WORKER)
            rows = pieces if first is None else chain([first], pieces)
            promises = None if told is None else partial(self._promises, told)
            for results in with_figures(group.results(rows, lambda: incoming.ended, promises)):
                delays.count(results, time.time())
                yield results
        group.counts.delays = delays.counts if self.times else []
        yield figures_row(self.factory.output, batch_figures(group.counts, began).as_list())

    def _promises(self, told: Punctuations) -> Iterator[Punctuate] | None:
        """What inputs promise behind the rows of a batch; None: nothing."""
        return self.factory.punctuations(told) if any(told.rows) else None

    def _with_results(
        self, begin: Callable[[], StateDirectory], batches: Iterator[pa.RecordBatch], began: float
    ) -> Iterator[pa.RecordBatch]:
        """Which pairs are found in which batch depends on much: what the batch gave is published with its state."""
        # Sorting takes as much again of either.
        limit = Shares.of(self.memory).arrivals * 7 // 8 if self.factory.punctuated else Shares.of(self.memory).arrivals
        with ExitStack() as stack:
            arrivals = stack.enter_context(closing(Arrivals(self.factory.inputs, limit, _scratch)))
            told = None
            if self.factory.punctuated:
                told = stack.enter_context(closing(Punctuations(self.factory.inputs, limit // 7, _scratch)))
            incoming = Incoming(self, told)
            for number, rows in incoming.pieces(batches):
                arrivals.add(number, rows)
            if incoming.group is None:
                if answers_for_all():
                    begin()
                return
            directory = begin()
            group = directory.group(incoming.group)
            # Elsewhere, two attempts at once may both publish: as both begin from the snapshot, they find the same.
            kept = kept_operators.WORKER if isinstance(directory.path, Path) else kept_operators.forgetful()
            work = OperatorGroup(self.factory, self.memory, self.fuel, group, kept, self.times)
            outcome = work.run(arrivals, frozenset(incoming.ended), told)
        yield from with_figures(outcome.results)
        yield figures_row(self.factory.output, batch_figures(outcome.counts, began).as_list())


class Incoming:
    """Rows as Spark delivers them, the signs among them taken out."""

    def __init__(self, task: OperatorTask, told: Punctuations | None = None) -> None:
        """`told` takes the punctuations, if anybody is to make use of them."""
        self.group: int | None = None
        self.ended: set[int] = set()
        self._task = task
        self._told = told

    def pieces(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The ordinary rows, each piece of one input."""
        for batch in batches:
            if batch.num_rows:
                yield from self._take(batch)

    def _take(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        task = self._task
        plain = batch
        signs = batch.column(batch.num_columns - 1).to_numpy() if task.signed else None
        if signs is not None and signs.any():
            tags = batch.column(0).to_numpy()
            self.ended.update(self._ends(tags, signs))
            if self._told is not None:
                self._punctuate(batch, tags % task.layout.kinds, signs)
            plain = batch.filter(pa.array(signs == 0))
            self.group = int(tags[0]) // task.layout.kinds if self.group is None else self.group
        if plain.num_rows:
            self.group, pieces = task.layout.split(plain, task.factory.inputs, self.group)
            yield from pieces

    def _ends(self, tags: Numbers, signs: Numbers) -> list[int]:
        """The inputs that these rows say to have ended."""
        ended: list[int] = (tags[signs == SIGN_CODES[END]] % self._task.layout.kinds).tolist()
        return ended

    def _punctuate(self, batch: pa.RecordBatch, kinds: Numbers, signs: Numbers) -> None:
        assert self._told is not None
        layout, inputs = self._task.layout, self._task.factory.inputs
        for code in (SIGN_CODES[OVER], SIGN_CODES[UP_TO]):
            for number in range(len(inputs)):
                rows = batch.filter(pa.array((signs == code) & (kinds == number)))
                if rows.num_rows:
                    self._told.take(number, code, layout.rows_of(rows, number, inputs))


def _scratch() -> FileStore:
    return FileStore(scratch_directory())


def batch_figures(counts: BatchCounts, began: float) -> Figures:
    """What a task tells of a batch."""
    return Figures(
        rows=counts.rows,
        results=counts.results,
        memory=counts.peak,
        written=counts.written,
        state_rows=counts.state_rows,
        state_bytes=counts.state_bytes,
        spilled=counts.spilled,
        work_left=int(counts.work_left),
        reactive=counts.reactive,
        task_ms=round((time.monotonic() - began) * 1000),
        delays=counts.delays,
    )


_WAITING_SHARE = 16
"""Of the memory: rows of hot keys that wait, and as much again while they are sorted."""
_READING_SHARE = 8
"""Of the memory: what reads the rows that a new home begins with."""


class SplitTask(OperatorTask):
    """The function of `mapInArrow` of a streaming join whose rows all settle, and whose hot keys are split.

    The rows of the task's own group are joined as they come, as in any task of a join. Those of hot keys that have
    a home here wait, on disk if they are many, and are joined after them, each home in a group of its own. All of
    them are from the state of the batch before to that of this one, as `task.settled_group` does it.

    A home that has no state yet begins with what the key's own group remembers of the side that is copied, as of
    the batch before. That is the same whenever it is asked for: from the batch on with which the key is split, rows
    of that side are copied to all groups of the home, so one that has no state has missed none; and what its rows
    meet are rows of the other side, of which a new home has none, so what is copied meets nobody twice. `routing`
    says why each pair is found once.
    """

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
            incoming = _SplitIncoming(self, waiting)
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
        self,
        task: SplitTask,
        factory: SettlingFactory,
        directory: StateDirectory,
        incoming: _SplitIncoming,
        began: float,
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


class _SplitIncoming(Incoming):
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
