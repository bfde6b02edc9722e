"""One group's operator through one micro-batch: any operator of the protocol, from its snapshot to its snapshot.

```
state of batch N-1 ──▶ operator ◀── the batch's rows, punctuations, ends of inputs, silence
                          │ results ──▶ file
                          ▼ snapshot ──▶ segments
             manifest of batch N, which the first attempt publishes ──▶ results are handed out
```
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from watersmeet.core.cost import Cost
from watersmeet.core.errors import BudgetError, SegmentError, SnapshotError, SourceError
from watersmeet.core.protocol import Arrive, End, Event, JoinOperator, Punctuate, Snapshot, Stall, Status
from watersmeet.memory import format_bytes
from watersmeet.runs.sorted_run import OpenRun
from watersmeet.spark.state.directory import RESULTS, GroupState
from watersmeet.spark.state.publication import described, publish
from watersmeet.spark.state.store import VersionedStore
from watersmeet.spark.task.delays import Delays
from watersmeet.spark.task.operator_cache import Keepable, Kept, KeptOperators
from watersmeet.spark.task.ordered_rows import Arrivals, together
from watersmeet.spark.task.punctuations import Punctuations
from watersmeet.spill.segment import Segment, SegmentWriter
from watersmeet.spill.store import Store

POLL_FUEL = 65_536
"""Units of work in one poll."""


class OperatorFactory(Protocol):
    """What a verb adds: how its operator is made. Sent to the workers, so it can be pickled."""

    @property
    def fingerprint(self) -> str:
        """Equal for equal joins; state is kept under it."""
        ...

    def described(self) -> dict[str, Any]:
        """The join for its state."""
        ...

    @property
    def inputs(self) -> tuple[pa.Schema, ...]:
        """The schema of each input."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """What errors call the inputs."""
        ...

    @property
    def output(self) -> pa.Schema:
        """The schema of the results."""
        ...

    @property
    def punctuated(self) -> bool:
        """Whether it makes use of punctuations."""
        ...

    def punctuations(self, told: Punctuations) -> Iterator[Punctuate]:
        """What an operator is told of these."""
        ...

    def rows_held(self, operator: Keepable, seen: int) -> int:
        """Rows that an operator remembers, of all that it has seen."""
        ...

    def least_memory(self) -> int:
        """The smallest budget the operator can work in."""
        ...

    def build(self, memory: int, store: Store) -> Keepable:
        """An operator that has seen nothing."""
        ...

    def restore(self, snapshot: Snapshot, memory: int, store: Store, open_run: OpenRun) -> Keepable:
        """An operator that goes on where the snapshot was taken; `open_run` knows which runs are open."""
        ...


@dataclass(frozen=True, slots=True)
class Shares:
    """How a task divides its memory.

    >>> Shares.of(64 << 20).operator >> 20
    40
    """

    operator: int
    arrivals: int
    """Rows on their way into their order; sorting takes as much again."""
    results: int
    kept: int
    """Operators of other groups that the worker process has kept."""

    @classmethod
    def of(cls, memory: int) -> Shares:
        """The parts of a budget."""
        return cls(memory * 5 // 8, memory // 8, memory // 16, memory // 16)

    @classmethod
    def check(cls, memory: int, least: int) -> None:
        """Refuse a budget in which the operator's part is too small."""
        if cls.of(memory).operator < least:
            enough = least * 8 // 5 + 8
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for a task of this join; allow at least "
                f"{enough} bytes ({format_bytes(enough)})"
            )


@dataclass(slots=True)
class BatchCounts:
    """What a batch did to a group, for its manifest and for the figures."""

    rows: list[int]
    results: int = 0
    peak: int = 0
    spilled: int = 0
    written: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    work_left: bool = False
    reactive: int = 0
    delays: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A batch's results, and what it did."""

    counts: BatchCounts
    results: Iterator[pa.RecordBatch]


class OperatorGroup:
    """A group's operator, at one batch."""

    def __init__(
        self,
        factory: OperatorFactory,
        memory: int,
        fuel: int,
        group: GroupState,
        kept: KeptOperators,
        times: tuple[str, ...] | None = None,
    ) -> None:
        self._factory = factory
        self._shares = Shares.of(memory)
        self._fuel = fuel
        self._group = group
        self._kept = kept
        self._times = times

    def run(self, arrivals: Arrivals, ended: frozenset[int], told: Punctuations | None = None) -> Outcome:
        """Take a batch's rows, its punctuations and the ends of inputs; publish the state and hand out the results."""
        digest = [*map(list, zip(arrivals.rows, arrivals.digests, strict=True)), sorted(ended)]
        if told is not None:
            digest += told.digest
        manifest = self._group.published()
        if manifest is None:
            manifest = self._work(arrivals, ended, told, digest)
            if manifest is None:
                return Outcome(BatchCounts(list(arrivals.rows)), iter(()))
        elif manifest["run"] != self._group.batch.run and manifest["input"] != digest:
            raise SnapshotError(
                f"the state in {self._group.place} has a batch {manifest['batch']} of other rows than the query gives "
                f"now; put back the checkpoint that belongs to the state, or start both again"
            )
        return Outcome(BatchCounts(**manifest["counts"]), read_results(self._group, manifest[RESULTS]))

    def _work(
        self, arrivals: Arrivals, ended: frozenset[int], told: Punctuations | None, digest: list[Any]
    ) -> dict[str, Any] | None:
        """Run the batch and publish what it led to; returns what is published, None if nothing is left to be done."""
        before = self._group.latest()
        finished = set(before["ended"]) if before else set[int]()
        self._check_open(arrivals, finished)
        opened = self._open(before)
        if opened is None:
            return None
        operator, store = opened
        delays = Delays(self._times)
        results = ResultFile(self._group, self._factory.output, self._shares.results, delays)
        try:
            course = _Course(operator, results, self._fuel, float(self._group.batch.number))
            course.go(arrivals, iter(()) if told is None else self._factory.punctuations(told), ended - finished)
            results.finish()
            spilled = store.bytes_written
            snapshot = None if course.done else operator.snapshot()
            seen = sum(arrivals.rows) + (before["counts"]["state_rows"] if before else 0)
            counts = BatchCounts(
                rows=list(arrivals.rows),
                results=results.rows,
                peak=operator.budget.peak + arrivals.peak,
                spilled=spilled,
                written=store.bytes_written + results.nbytes,
                state_rows=0 if snapshot is None else self._factory.rows_held(operator, seen),
                state_bytes=0 if snapshot is None else sum(map(store.size, snapshot.segments)),
                work_left=course.work_left,
                reactive=course.reactive,
                delays=delays.counts if self._times else [],
            )
        except BaseException as error:
            results.abandon()
            store.abandon()
            if isinstance(error, SegmentError):
                raise store.named(error) from error
            raise
        manifest = self._publish(snapshot, store, results, counts, sorted(finished | ended), digest)
        ours = manifest["attempt"] == self._group.attempt
        if ours and snapshot is not None:
            self._kept.keep(self._group.place, Kept(operator, store, self._group.attempt, self._shares.operator))
        else:
            operator.close()
        if not ours:
            results.abandon()
        elif before is not None:  # the batch before is over: what it gave has reached the sink
            self._group.remove(before[RESULTS])
        return manifest

    def _check_open(self, arrivals: Arrivals, finished: set[int]) -> None:
        for number in finished:
            if arrivals.rows[number]:
                raise row_after_end(self._factory.names[number], self._group.batch.number, arrivals.rows[number])

    def _open(self, before: dict[str, Any] | None) -> tuple[Keepable, VersionedStore] | None:
        """The group's operator as of the batch before; None if all inputs had ended and all was done."""
        if before is not None and before["snapshot"] is None:
            return None
        return self._kept.open(self._group, self._factory, self._shares.operator, self._shares.kept, before)

    def _publish(
        self,
        snapshot: Snapshot | None,
        store: VersionedStore,
        results: ResultFile,
        counts: BatchCounts,
        ended: list[int],
        digest: list[Any],
    ) -> dict[str, Any]:
        return publish(
            self._group,
            store,
            {
                **described(snapshot, store),
                RESULTS: results.names,
                "ended": ended,
                "input": digest,
                "counts": {name: getattr(counts, name) for name in BatchCounts.__slots__},
            },
        )


class _Course:
    """What happens to an operator in one batch: rows, punctuations, ends, then silence as long as the fuel lasts."""

    def __init__(self, operator: Keepable, results: ResultFile, fuel: int, now: float) -> None:
        self._operator = operator
        self._results = results
        self._left = fuel
        self._now = now
        self._status = Status.NEED_INPUT
        self.reactive = 0
        """Results found with the fuel that rows and ends left over."""

    @property
    def done(self) -> bool:
        """Whether all inputs have ended and all results were found."""
        return self._status is Status.DONE

    @property
    def work_left(self) -> bool:
        """Whether the fuel was used up before the work was."""
        return self._status is Status.HAS_WORK

    def go(self, arrivals: Arrivals, punctuations: Iterator[Punctuate], ended: frozenset[int]) -> None:
        """Run the whole course."""
        for number, rows in arrivals.in_order():
            self._tell(Arrive(number, rows))
        for punctuation in punctuations:
            self._tell(punctuation)
        for number in sorted(ended):
            self._tell(End(number))
        if not self.done and self._left > 0:
            before = self._results.rows
            self._tell(Stall())
            while self._status is Status.HAS_WORK and self._left > 0:
                self._poll(min(self._left, POLL_FUEL))
                self._drain()
            self.reactive = self._results.rows - before

    def _tell(self, event: Event) -> None:
        """Hand over an event, and work off what it asks for."""
        self._operator.receive(event)
        self._poll(POLL_FUEL if not isinstance(event, Stall) else min(self._left, POLL_FUEL))
        self._drain()

    def _drain(self) -> None:
        while self._status is Status.HAS_OUTPUT:
            self._poll(POLL_FUEL)

    def _poll(self, fuel: int) -> None:
        step = self._operator.poll(self._now, fuel)
        self._status = step.status
        self._left -= _units(step.cost)
        if step.out is not None and step.out.num_rows:
            self._results.add(step.out)


def _units(cost: Cost) -> int:
    """The fuel that a step has used, as far as its cost tells."""
    return max(1, cost.inserts + cost.probes + cost.results)


def hand_over(operator: JoinOperator, events: Iterator[Event]) -> Iterator[pa.RecordBatch]:
    """Tell an operator of events, and work off each of them: silence and ends until there is no work left at all."""
    for event in events:
        operator.receive(event)
        yield from work_off(operator, isinstance(event, Stall | End))


def work_off(operator: JoinOperator, to_the_end: bool = False) -> Iterator[pa.RecordBatch]:
    """What an operator finds until it wants more rows, or until it has no work left at all."""
    while True:
        step = operator.poll(0.0, POLL_FUEL)
        if step.out is not None and step.out.num_rows:
            yield step.out
        if not (step.status is Status.HAS_OUTPUT or (to_the_end and step.status is Status.HAS_WORK)):
            return


def row_after_end(name: str, batch: int, rows: int) -> SourceError:
    """Rows of an input that has ended."""
    return SourceError(
        f"{name} has ended, but batch {batch} has {rows} more rows of it; nothing may follow the row that marks the end"
    )


_ROWS = 8192


class ResultFile:
    """Collects the results of one attempt; no file is made as long as there are none.

    Which pairs an operator finds in which batch depends on its memory, its fuel and on what it had at hand. So results
    are written before the state is published, and handed out afterwards: an attempt that finds the batch published
    hands out the very same results, and the sink and the state never disagree.
    """

    def __init__(self, group: GroupState, schema: pa.Schema, page_bytes: int, delays: Delays) -> None:
        self.rows = 0
        self.nbytes = 0
        self._group = group
        self._schema = schema
        self._page_bytes = page_bytes
        self._delays = delays
        self._writer: SegmentWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._name: str | None = None

    @property
    def names(self) -> list[str]:
        """The files that hold the results."""
        return [] if self._name is None else [self._name]

    def add(self, batch: pa.RecordBatch) -> None:
        """Take results; small batches are put together."""
        self.rows += batch.num_rows
        self._delays.count(batch, time.time())
        size = batch.nbytes
        if self._waiting and self._waiting_bytes + size > self._page_bytes:
            self._write()
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += size
        if self._waiting_rows >= _ROWS:
            self._write()

    def finish(self) -> None:
        """Write the rest."""
        self._write()
        if self._writer is not None:
            self._writer.seal().close()
            self.nbytes = self._writer.nbytes
            self._name = self._writer.name

    def abandon(self) -> None:
        """Leave nothing behind."""
        if self._writer is not None:
            self._writer.abort()
        self._group.remove(self.names)

    def _write(self) -> None:
        if not self._waiting:
            return
        if self._writer is None:
            self._writer = SegmentWriter(self._group.store, self._group.file("results"), self._schema)
        for batch in together(self._waiting):
            self._writer.write_page(batch)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


def read_results(group: GroupState, names: list[str]) -> Iterator[pa.RecordBatch]:
    """The results in these files, a page at a time."""
    for name in names:
        try:
            segment = Segment.open(group.store, name)
            for page in range(segment.pages):
                yield segment.read_page(page)
                segment.release(page)
        except SegmentError as error:
            raise SegmentError(f"the state in {group.place} is damaged and the query cannot go on: {error}") from error
