"""What runs in a Spark task of a join by times: a group's rows of one micro-batch in, its results out.

A batch's rows are put into the order of their times; of an as-of join, right rows of one time into one that depends on
their values alone: so an attempt that comes second gives the same answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.protocol import Arrive, End, Event
from watersmeet.joins.asof.join import AsofJoin
from watersmeet.records.asof_times import AsofTiming
from watersmeet.records.times import NEVER
from watersmeet.spark.plan.multi_recipe import MultiFactory
from watersmeet.spark.plan.recipe import WindowFactory
from watersmeet.spark.plan.row_layout import RowLayout
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
from watersmeet.spark.task.operator_cache import KeptOperators
from watersmeet.spark.task.operator_group import Shares, hand_over
from watersmeet.spark.task.ordered_rows import Arrivals, together
from watersmeet.spark.task.row_hashes import row_hashes
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
    made: int = field(default_factory=time.time_ns, compare=False)
    """When the query was put together: see `state.lineage`."""

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
            by_id=self.numbered, grows=self.factory.grows, splits=False, made=self.made,
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


_RIGHT = 1


class AsofArrivals(TimedArrivals):
    """The rows of both inputs of a micro-batch; right rows of one time are in the order of their hashes."""

    _timing: AsofTiming  # type: ignore[assignment]

    def _late_before(self, number: int, newest: int) -> int:
        return self._timing.mark(number, newest)

    def _piece_rows(self, number: int) -> int:
        return Arrivals._piece_rows(self, number)

    def _streams(self) -> list[Iterator[tuple[Int64, pa.RecordBatch]]]:
        streams = super()._streams()
        return [*streams[:_RIGHT], ties_in_order(streams[_RIGHT])]


def ties_in_order(pieces: Iterator[tuple[Int64, pa.RecordBatch]]) -> Iterator[tuple[Int64, pa.RecordBatch]]:
    """The same rows, those of one time by their hashes; the last time of a piece may go on in the next one.

    >>> rows = pa.record_batch({"t": [1, 2, 2, 3], "v": ["a", "c", "b", "d"]})
    >>> def told(rows):
    ...     pieces = ties_in_order(iter([(rows["t"].to_numpy(), rows)]))
    ...     return [value for _, piece in pieces for value in piece["v"].to_pylist()]
    >>> told(rows) == told(rows.take(pa.array([0, 2, 1, 3])))
    True
    """
    held: list[tuple[Int64, pa.RecordBatch]] = []
    for times, rows in pieces:
        if held and times[0] != held[0][0][-1]:
            yield from _by_hash(held)
            held = []
        cut = int(np.searchsorted(times, times[-1]))
        if cut and not held:
            yield from _by_hash([(times[:cut], rows.slice(0, cut))])
            held = [(times[cut:], rows.slice(cut))]
        elif cut:
            head = int(np.searchsorted(times, times[0], "right"))
            yield from _by_hash([*held, (times[:head], rows.slice(0, head))])
            if head < cut:
                yield from _by_hash([(times[head:cut], rows.slice(head, cut - head))])
            held = [(times[cut:], rows.slice(cut))]
        else:
            held.append((times, rows))
    yield from _by_hash(held)


def _by_hash(pieces: Sequence[tuple[Int64, pa.RecordBatch]]) -> Iterator[tuple[Int64, pa.RecordBatch]]:
    if not pieces:
        return
    times = np.concatenate([each for each, _ in pieces])
    (rows,) = together([each for _, each in pieces])
    if (times[1:] == times[:-1]).any():
        rows = rows.take(pa.array(np.lexsort((row_hashes(rows), times))))
    yield times, rows


class AsofGroup(WindowGroup):
    """A group's as-of join, at one batch."""

    kind: ClassVar[type[Any]] = AsofJoin

    @property
    def has_work(self) -> bool:
        """Whether the right input has passed left rows that wait here."""
        lowest = None if self._before is None else self._before["held"][0]
        timing: Any = self._timing
        return lowest is not None and lowest <= timing.mark(_RIGHT, self._newest[_RIGHT])

    def _due(self, operator: Any) -> None:
        """What waits is told by the left rows that are held."""

    def _held(self, operator: Any, arrivals: TimedArrivals) -> list[int | None]:
        """The oldest time as of which a left row waits; None if none does."""
        return [operator.left.lowest if operator.left.count else None, None]


@dataclass(frozen=True)
class AsofTask(WindowTask):
    """The function of `mapInArrow`: a streaming as-of join's if it has a state directory, else a batch one's."""

    factory: Any

    def _group(self, shares: Shares, group: GroupState, kept: KeptOperators, newest: Sequence[int]) -> AsofGroup:
        return AsofGroup(self.factory, shares, group, kept, newest)

    def _arrivals(self) -> AsofArrivals:
        limit = Shares.of(self.memory).arrivals
        return AsofArrivals(self.factory.inputs, self.factory.timing(), limit, lambda: FileStore(scratch_directory()))
