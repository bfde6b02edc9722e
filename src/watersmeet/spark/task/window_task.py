"""What runs in a Spark task of a window join: a group's rows of one micro-batch in, its results out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from watersmeet.core.protocol import Arrive, End, Event
from watersmeet.records.times import NEVER
from watersmeet.spark.plan.multi_recipe import MultiFactory
from watersmeet.spark.plan.row_layout import RowLayout
from watersmeet.spark.plan.window_recipe import WindowFactory
from watersmeet.spark.state.directory import GroupState, Owner, StateDirectory
from watersmeet.spark.state.remote import CACHE_BYTES, Place
from watersmeet.spark.state.watermarks import Marks, Silences
from watersmeet.spark.task import operator_cache as kept_operators
from watersmeet.spark.task.context import (
    answers_for_all,
    current_batch,
    current_partition,
    scratch_directory,
    state_place,
)
from watersmeet.spark.task.delays import Delays
from watersmeet.spark.task.figures import Figures, figures_row, with_figures
from watersmeet.spark.task.operator_group import Shares, hand_over
from watersmeet.spark.task.timed_rows import TimedArrivals
from watersmeet.spark.task.window_group import WindowCounts, WindowGroup
from watersmeet.spill.file_store import FileStore


@dataclass(frozen=True)
class WindowTask:
    """The function of `mapInArrow`: a streaming window join's if it has a state directory, else a batch one's."""

    factory: WindowFactory | MultiFactory
    layout: RowLayout
    memory: int
    groups: int
    state: str | None = None
    retain: int = 100
    times: tuple[str, str] | None = None
    """The columns of the results from which delays are counted."""
    cache_bytes: int = CACHE_BYTES
    """Of state elsewhere: what may be kept of it on this machine."""
    numbered: bool = False
    """Whether rows are sent to tasks by their groups' numbers, so that a task without rows knows its group, too."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the rows of one partition."""
        return self._in_one_pass(batches) if self.state is None else self._go_on(state_place(self.state), batches)

    def _in_one_pass(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows, in the order of their times, then the ends: nothing is late, and no state is kept."""
        with closing(self._arrivals()) as arrivals, FileStore(scratch_directory()) as store:
            if self._take(batches, arrivals) is None:
                return
            operator = self.factory.build(Shares.of(self.memory).operator, store)
            yield from hand_over(operator, _whole(arrivals))
            operator.close()

    def _go_on(self, path: Place, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began, delays = time.monotonic(), Delays(self.times)
        batch, query = current_batch()
        owner = Owner(
            self.factory.fingerprint, self.groups, query, tick=self.factory.spec.tick, describe=self.factory.described,
            by_id=self.numbered, grows=self.factory.grows,
        )  # fmt: skip
        begin = partial(StateDirectory, path, owner, batch, self.retain, self.cache_bytes)
        with closing(self._arrivals()) as arrivals:
            number = self._take(batches, arrivals)
            if number is None and self.numbered and self.factory.waits_for_time:
                number = current_partition()  # what waits for its time comes also where no rows come
            if number is None:
                if answers_for_all():
                    begin()
                return
            directory = begin()
            idle = self.factory.idle
            marks = Marks(directory, len(arrivals.rows) * (1 if idle is None else 2), NEVER)
            before = marks.before()
            silences = None if idle is None else Silences(before, idle, arrivals.at, arrivals.spoke)
            newest = before if silences is None else silences.newest
            # Elsewhere, two attempts at once may both publish, and this one may not be the last.
            kept = kept_operators.WORKER if isinstance(path, Path) else kept_operators.forgetful()
            group = self._group(Shares.of(self.memory), directory.group(number), kept, newest)
            told = arrivals.newest if silences is None else silences.told(arrivals.newest)
            if any(own > known for own, known in zip(told, before, strict=True)):
                marks.tell(number, told)
            if not any(arrivals.rows) and not group.has_work:
                return
            for results in with_figures(group.results(arrivals)):
                delays.count(results, time.time())
                yield results
            group.publish()
        yield figures_row(self.factory.output, self._figures(arrivals.rows, group.counts, began, delays).as_list())

    def _group(
        self, shares: Shares, group: GroupState, kept: kept_operators.KeptOperators, newest: Sequence[int]
    ) -> WindowGroup:
        """A group at one batch."""
        return WindowGroup(self.factory, shares, group, kept, newest)

    def _arrivals(self) -> TimedArrivals:
        limit = Shares.of(self.memory).arrivals
        return TimedArrivals(self.factory.inputs, self.factory.timing(), limit, lambda: FileStore(scratch_directory()))

    def _take(self, batches: Iterator[pa.RecordBatch], arrivals: TimedArrivals) -> int | None:
        """Collect the rows, and tell the group; None if not a single row has come."""
        group = None
        for batch in batches:
            if batch.num_rows:
                group, pieces = self.layout.split(batch, self.factory.inputs, group)
                for number, rows in pieces:
                    arrivals.add(number, rows)
                for number, signs in self.layout.ticks_of(batch, self.factory.inputs):
                    arrivals.tick(number, signs)
                if self.factory.idle is not None and self.state is not None:
                    arrivals.at = batch.column(batch.num_columns - 1)[0].as_py()
        return group

    def _figures(self, rows: list[int], counts: WindowCounts, began: float, delays: Delays) -> Figures:
        return Figures(
            rows=rows,
            late=counts.late,
            results=counts.results,
            memory=counts.peak,
            written=counts.written,
            state_rows=counts.state_rows,
            state_bytes=counts.state_bytes,
            spilled=counts.spilled,
            task_ms=round((time.monotonic() - began) * 1000),
            delays=delays.counts if self.times else (),
        )


def _whole(arrivals: TimedArrivals) -> Iterator[Event]:
    for number, rows in arrivals.after([NEVER] * len(arrivals.rows)):
        yield Arrive(number, rows)
    for number in range(len(arrivals.rows)):
        yield End(number)
