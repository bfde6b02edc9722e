"""One group of a join through one micro-batch that owes nothing at its end: from runs to runs.

```
runs of batch N-1 ──▶ operator ◀── the batch's rows as they come, ends of inputs; then silence
                         │ results, as they are found
                         ▼ both memtables, settled, become runs ──▶ manifest of batch N, a list of runs
```

Any worker goes on from there: it maps the runs and reads no row of them. What a batch gives depends on its rows and on
those before it alone (`state.publication` has the argument).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Protocol, TypeVar, cast, runtime_checkable

import pyarrow as pa

from watersmeet.core.errors import BudgetError, SegmentError
from watersmeet.core.protocol import Arrive, End, Event, Punctuate, Snapshot
from watersmeet.memory import format_bytes
from watersmeet.runs.sorted_run import OpenRun, SortedRun
from watersmeet.spark.state.directory import ROWS, GroupState
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.state.publication import described, publish
from watersmeet.spark.state.store import VersionedStore
from watersmeet.spark.task.new_columns import with_new_columns
from watersmeet.spark.task.operator_cache import Keepable
from watersmeet.spark.task.operator_group import BatchCounts, Shares, hand_over, row_after_end, work_off
from watersmeet.spill.store import Store

T = TypeVar("T")

_KEPT_SHARE = 4
"""Of the memory: as much of the runs may stay mapped between tasks."""


class Settling(Keepable, Protocol):
    """An operator that can let all rows leave memory."""

    @property
    def phase(self) -> str:
        """`"done"` once all inputs have ended, and all was found."""
        ...

    @property
    def runs(self) -> list[list[SortedRun]]:
        """Those of each input, each row once."""
        ...

    def end_batch(self) -> None:
        """All rows of a batch have come: let them settle and leave memory, which the next polls do."""
        ...


@runtime_checkable
class SettlingFactory(Protocol):
    """What a verb adds: how its operator is made. Sent to the workers, so it can be pickled."""

    @property
    def settles(self) -> bool:
        """Whether its operator can owe nothing at the end of a batch."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """What errors call the inputs."""
        ...

    def least_memory(self) -> int:
        """The smallest budget the operator can work in."""
        ...

    def settling(self, memory: int, store: Store, before: Snapshot | None, open_run: OpenRun) -> Settling:
        """An operator whose rows settle at the end of a batch: as of a snapshot, or one that has seen nothing."""
        ...


def check_memory(memory: int, factory: SettlingFactory) -> None:
    """Refuse a budget in which a task cannot work."""
    least = factory.least_memory()
    if not factory.settles:
        Shares.check(memory, least)
    elif memory < least:
        raise BudgetError(
            f"{format_bytes(memory)} of memory are too little for a task of this join; allow at least "
            f"{least} bytes ({format_bytes(least)})"
        )


class SettledGroup:
    """A group's join, at one batch."""

    def __init__(self, factory: SettlingFactory, memory: int, group: GroupState, opened: OpenRuns) -> None:
        self.counts = BatchCounts([0] * len(factory.names))
        self._factory = factory
        self._memory = memory
        self._group = group
        self._opened = opened
        self._before = group.latest()

    @property
    def is_new(self) -> bool:
        """Whether it has no state yet."""
        return self._before is None

    def remembered(self, read: Callable[[Settling], Iterator[T]]) -> Iterator[T]:
        """What somebody reads from the group as of the batch before; nothing is changed."""
        if self._before is None or self._before["snapshot"] is None:
            return
        operator, store = self._open()
        try:
            yield from read(operator)
        except SegmentError as error:
            raise store.named(error) from error
        finally:
            operator.close()
            store.abandon()
            self._opened.release(keep=self._memory // _KEPT_SHARE)

    @property
    def ended(self) -> frozenset[int]:
        """The inputs that had ended by the batch before."""
        return frozenset(self._before["ended"]) if self._before else frozenset()

    def results(
        self,
        pieces: Iterator[tuple[int, pa.RecordBatch]],
        ended: Callable[[], set[int]],
        promises: Callable[[], Iterator[Punctuate] | None] | None = None,
        inherited: Callable[[], Iterator[tuple[int, pa.RecordBatch]]] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Take the batch's rows, and hand out what they lead to; then the state has been published.

        `ended` says which inputs have ended, and `promises` what they will not send any more, once all rows have come.
        A group without a state begins with `inherited` rows, all of one input, which meet nobody and are not counted.
        """
        before = self._before
        over = frozenset(before["ended"]) if before else frozenset()
        first = next(pieces, None)
        if first is None and ended() <= over and (promises is None or promises() is None):
            return  # nothing has happened
        pieces = self._counted(chain([] if first is None else [first], pieces), over)
        if before is None and inherited is not None:
            pieces = chain(inherited(), pieces)
        if before is not None and before["snapshot"] is None:  # all inputs have ended: any row is an error
            for _ in pieces:
                pass
            return
        operator, store = self._open()
        try:
            events = _events(pieces, promises, over, lambda: sorted(ended() - over))
            for batch in chain(hand_over(operator, events), self._last_results(operator, store)):
                self.counts.results += batch.num_rows
                yield batch
            snapshot = None if operator.phase == "done" else operator.snapshot()
            self.counts.peak = operator.budget.peak
            self.counts.written = store.bytes_written
            rows = [] if snapshot is None else [sum(run.rows for run in each) for each in operator.runs]
            self.counts.state_rows = sum(rows)
            self.counts.state_bytes = 0 if snapshot is None else sum(map(store.size, snapshot.segments))
        except BaseException as error:
            store.abandon()
            if isinstance(error, SegmentError):
                raise store.named(error) from error
            raise
        finally:
            operator.close()
            self._opened.release(keep=self._memory // _KEPT_SHARE)
        told = {"ended": sorted(over | ended()), ROWS: rows or [0] * len(self._factory.names)}
        publish(self._group, store, {**described(snapshot, store), **told})

    def _open(self) -> tuple[Settling, VersionedStore]:
        """The group's operator as of the batch before."""
        before = self._before
        store = VersionedStore(self._group, before["files"] if before else None)
        snapshot, open_run = None, cast(OpenRun, partial(self._opened.get, store))
        try:
            if before:
                snapshot = Snapshot.from_json(before["snapshot"])
                snapshot, open_run = with_new_columns(
                    self._factory, self._group, snapshot, store, open_run, self._memory
                )
            return self._factory.settling(self._memory, store, snapshot, open_run), store
        except SegmentError as error:
            raise store.named(error) from error

    def _counted(
        self, pieces: Iterator[tuple[int, pa.RecordBatch]], over: frozenset[int]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        for number, rows in pieces:
            self.counts.rows[number] += rows.num_rows
            if number in over:
                raise row_after_end(self._factory.names[number], self._group.batch.number, rows.num_rows)
            yield number, rows

    def _last_results(self, operator: Settling, store: VersionedStore) -> Iterator[pa.RecordBatch]:
        """What settling leads to; then all rows are in runs."""
        self.counts.spilled = store.bytes_written
        if operator.phase != "done":
            operator.end_batch()
            yield from work_off(operator)


def _events(
    pieces: Iterator[tuple[int, pa.RecordBatch]],
    promises: Callable[[], Iterator[Punctuate] | None] | None,
    over: frozenset[int],
    ended: Callable[[], list[int]],
) -> Iterator[Event]:
    for number, rows in pieces:
        yield Arrive(number, rows)
    for promise in (promises() if promises is not None else None) or ():
        if promise.input not in over:
            yield promise
    for number in ended():
        yield End(number)
