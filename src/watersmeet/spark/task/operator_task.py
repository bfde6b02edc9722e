"""The function of `mapInArrow` around an operator of the protocol: a batch of rows and signs in, results out.

A verb adds an `OperatorFactory`; nothing here knows what its operator does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.protocol import Arrive, End, Punctuate
from watersmeet.spark.io.source import END
from watersmeet.spark.plan.control_rows import OVER, SIGN_CODES, UP_TO
from watersmeet.spark.plan.row_layout import RowLayout
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
