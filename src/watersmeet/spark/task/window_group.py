"""One group of a window join through one micro-batch: from the state of the batch before to that of this one.

```
state of batch N-1, and how far ──▶ operator ◀── the batch's rows, in the order of their times; then silence
all groups had come by then           │ results, as they are found
                                      ▼ snapshot ──▶ segments ──▶ manifest of batch N
```

By the end of a batch, all pairs of its rows with those before are found, on disk, too. So what a batch gives depends on
its rows and on the state before it alone: an attempt that comes second finds the same, and what it writes goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from watersmeet.core.errors import SegmentError
from watersmeet.core.protocol import Arrive, Event, Snapshot, Stall
from watersmeet.engine.shell import Operator
from watersmeet.records.times import NEVER
from watersmeet.spark.plan.multi_recipe import MultiFactory
from watersmeet.spark.plan.recipe import WindowFactory
from watersmeet.spark.state.directory import GroupState
from watersmeet.spark.state.publication import described, publish
from watersmeet.spark.state.store import VersionedStore
from watersmeet.spark.task.operator_cache import Kept, KeptOperators
from watersmeet.spark.task.operator_group import Shares, hand_over
from watersmeet.spark.task.timed_rows import TimedArrivals, late_row


@dataclass(slots=True)
class WindowCounts:
    """What a batch did to a group."""

    results: int = 0
    late: list[int] = field(default_factory=list)
    peak: int = 0
    spilled: int = 0
    written: int = 0
    state_rows: int = 0
    state_bytes: int = 0


class WindowGroup:
    """A group's window join, at one batch."""

    kind: ClassVar[type[Any]] = Operator

    def __init__(
        self,
        factory: WindowFactory | MultiFactory,
        shares: Shares,
        group: GroupState,
        kept: KeptOperators,
        newest: Sequence[int],
    ) -> None:
        """`newest` are the times that the inputs had reached before the batch, in all groups."""
        self.counts = WindowCounts(late=[0] * len(newest))
        self._factory = factory
        self._group = group
        self._kept = kept
        self._newest = newest
        self._timing = factory.timing()
        self._before = group.latest()
        self._shares = _enough(shares, self._before)
        self._after: tuple[dict[str, Any], VersionedStore] | None = None
        """What is to be published."""

    @property
    def place(self) -> str:
        """The group's directory."""
        return self._group.place

    @property
    def has_work(self) -> bool:
        """Whether all rows that the group holds of an input have expired, or the time of results has come."""
        if self._before is None:
            return False
        held, due = self._before["held"], self._before.get("due")
        if due is not None and self._is_due(due):
            return True
        return any(
            last is not None and last < self._timing.passed(side, self._newest) for side, last in enumerate(held)
        )

    def visited(self, arrivals: TimedArrivals) -> Iterator[pa.RecordBatch]:
        """What rows of one input find among those of the batches before, without being kept."""
        if self._before is None or self._before["snapshot"] is None:
            return
        self._kept.make_room(self._shares.kept)
        store = VersionedStore(self._group, self._before["files"])
        snapshot, open_run = Snapshot.from_json(self._before["snapshot"]), partial(self._kept.opened.get, store)
        try:
            operator = self._factory.restore(snapshot, self._shares.operator, store, open_run)
        except SegmentError as error:
            raise store.named(error) from error
        try:
            operator.advance(self._newest)
            for batch in hand_over(operator, self._judged(arrivals)):
                self.counts.results += batch.num_rows
                yield batch
            self.counts.peak = max(self.counts.peak, operator.budget.peak + arrivals.peak)
        except SegmentError as error:
            raise store.named(error) from error
        finally:
            operator.close()
            store.abandon()
            self._kept.opened.release(keep=self._shares.kept)

    def results(self, arrivals: TimedArrivals) -> Iterator[pa.RecordBatch]:
        """Take the batch's rows, and hand out what they lead to; then the state is to be published."""
        operator, store = self._open()
        try:
            operator.advance(self._newest)
            for batch in hand_over(operator, self._judged(arrivals)):
                self.counts.results += batch.num_rows
                yield batch
            spilled = store.bytes_written
            operator.put_away()
            snapshot = operator.snapshot() if operator.window_rows or self._due(operator) is not None else None
            self.counts.late = list(arrivals.late)
            self.counts.peak = max(self.counts.peak, operator.budget.peak + arrivals.peak)
            self.counts.spilled = spilled
            self.counts.written = store.bytes_written
            self.counts.state_rows = operator.window_rows
            self.counts.state_bytes = 0 if snapshot is None else sum(map(store.size, snapshot.segments))
        except BaseException as error:
            operator.close()
            store.abandon()
            if isinstance(error, SegmentError):
                raise store.named(error) from error
            raise
        held = self._held(operator, arrivals)
        self._after = {**described(snapshot, store), "held": held, "due": self._due(operator)}, store
        if snapshot is None:
            operator.close()
        else:  # whoever goes on from this attempt's state may take it; if it is never published, nobody does
            memory = self._shares.operator
            runs = [run for each in getattr(operator, "runs", ()) for run in each]  # not all joins have such
            self._kept.keep(self._group.place, Kept(operator, store, self._group.attempt, memory, runs))
        self._kept.opened.release(keep=self._shares.kept)

    def publish(self) -> None:
        """Make this the state after the batch, unless another attempt was first."""
        if self._after is not None:
            content, store = self._after
            publish(self._group, store, content)

    def _open(self) -> tuple[Operator, VersionedStore]:
        """The group's operator as of the batch before."""
        shares = self._shares
        operator, store = self._kept.open(self._group, self._factory, shares.operator, shares.kept, self._before)
        assert isinstance(operator, self.kind)
        return operator, store

    def _judged(self, arrivals: TimedArrivals) -> Iterator[Event]:
        """The batch's events; ends with an error at a late row if there must be none."""
        factory = self._factory
        for number, rows in arrivals.after(self._newest):
            if factory.late == "error" and arrivals.late[number]:
                raise late_row(self._group.batch.number, factory.spec.names[number], factory.lateness(number))
            yield Arrive(number, rows)
        yield Stall()

    def _is_due(self, due: Sequence[int | None]) -> bool:
        """Whether a time has come that results wait for, or rows of an input."""
        final = min(map(self._timing.late_before, self._newest))
        passed = [final, *(self._timing.passed(side, self._newest) for side in range(len(self._newest)))]
        return any(time is not None and time < before for time, before in zip(due, passed, strict=True))

    def _due(self, operator: Operator) -> list[int | None] | None:
        """Times that something waits for here; None: nothing does."""
        return operator.due

    def _held(self, operator: Operator, arrivals: TimedArrivals) -> list[int | None]:
        """The newest time of the rows of each input that the group holds; None if all have expired."""
        before = self._before["held"] if self._before else [None] * len(self._newest)
        held: list[int | None] = []
        for side, last in enumerate(before):
            newest = max(NEVER if last is None else last, arrivals.newest[side])
            alive = operator.window_rows and newest >= operator.expired_before(side) and newest != NEVER
            held.append(newest if alive else None)
        return held


def _enough(shares: Shares, before: dict[str, Any] | None) -> Shares:
    """As much for the operator as it had before, from what others have kept; it cannot go on with less."""
    needed = before["snapshot"]["state"]["memory"] if before and before["snapshot"] else 0
    more = max(0, needed - shares.operator)
    if more > shares.kept:  # too little, as will be said
        return shares
    return replace(shares, operator=shares.operator + more, kept=shares.kept - more)
