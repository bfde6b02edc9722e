"""What joins of a stream with a relation on disk share: receiving, versions, output, snapshots.

```
receive ──▶ intake of the version that is newest now ──▶ slices ──▶ `_take`: the operator's own way with them
                                                                       │
                     poll's batch ◀── units of rows and indexes ◀──────┘
```

A row meets the relation as it is when the row is received. Rows of one version are worked off, or at least all that
wait for a partition that has changed since, before those of the next.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int64
from watersmeet.core.cost import Cost
from watersmeet.core.errors import BudgetError, ProtocolError, RelationError, SnapshotError, SpecError
from watersmeet.core.lookup import LookupSpec
from watersmeet.core.protocol import Arrive, End, Event, Snapshot, Stall, Status, Step
from watersmeet.core.report import LookupFigures, Report
from watersmeet.engine.lookup_answers import Asked, Unit, lookup_figures
from watersmeet.engine.lookup_shell import PAGE_BYTES, LookupFrame, Waiting
from watersmeet.engine.phases import phase_of
from watersmeet.engine.snapshot import FORMAT, check_snapshot
from watersmeet.memory import format_bytes
from watersmeet.records.plan import BatchRows
from watersmeet.relation.relation import RelationReader
from watersmeet.spill.segment import Segment, SegmentWriter
from watersmeet.spill.store import Store

_NO_NUMBERS = np.empty(0, np.int64)
_NO_SLOTS = np.empty(0, np.int32)


class LookupJoin(LookupFrame):
    """An operator that joins a stream with a relation: how it takes rows in, moves from version to version, hands out
    answers, and is saved.
    """

    # --- the protocol ---

    def receive(self, event: Event) -> None:
        """Take note of an event."""
        self._steps += 1
        if isinstance(event, Arrive):
            self._receive_batch(event.batch)
        elif isinstance(event, Stall):
            self._stalled = True
        elif isinstance(event, End):
            self._check_open()
            self._ended = True
        else:
            raise ProtocolError(f"{self.name} does not take {type(event).__name__}")

    def _receive_batch(self, batch: pa.RecordBatch) -> None:
        self._check_open()
        if self._must_poll:
            raise ProtocolError("poll until what was received is worked off, before the next arrival")
        if batch.schema is not self._known_schema:
            if batch.schema != self.spec.stream:
                raise SpecError(
                    f"a batch of {self.spec.names[0]} has other columns than announced: it has "
                    f"{', '.join(f'{field.name}: {field.type}' for field in batch.schema)}"
                )
            self._known_schema = batch.schema
        self._stalled = False
        if not self._led and self.reader.latest(pinned=True).number != self.newest:
            self._queue.append(Waiting(self._row_limit, self.reader.pin()))
        self._queue[-1].add(batch)

    @property
    def newest(self) -> int:
        """The version that the next rows will meet."""
        return self._queue[-1].pinned.version.number

    def follow(self, number: int) -> None:
        """Let the next rows meet this version. From now on the join looks for none itself: whoever leads it does."""
        self._steps += 1
        self._led = True
        if number != self.newest:
            self._queue.append(Waiting(self._row_limit, self.reader.pin(number)))

    @property
    def empty(self) -> bool:
        """Whether all rows that were received have been answered."""
        return self._unit is None and not self._arrivals_wait and not self.rows_waiting

    def _check_open(self) -> None:
        if self._ended:
            raise ProtocolError(f"{self.spec.names[0]} has ended; nothing can follow")

    def poll(self, now: float, fuel: int) -> Step:
        """Work a little, and hand out at most one batch."""
        self._steps += 1
        answers = self.answers
        answers.now = round(now * 1e6)
        if self._received_at is None:
            self._received_at = answers.now
        before = answers.meter.total()
        left = max(1, fuel)
        out: pa.RecordBatch | None = None
        while left > 0 and out is None:
            if self._unit is None:
                used = self._advance(left)
                if not used:
                    break
                left -= used
            if self._unit is not None:
                if not self._unit.done and left > 0:
                    out, used = self._unit.work(left)
                    left -= used
                if self._unit is not None and self._unit.done:
                    self._unit = None
                    self._unit_done()
                    if self._gives_way():
                        break
        self._cleaning_up = self._cleaning_up or (self._ended and not self._arrivals_wait)
        status = self.status
        self._must_poll = status is Status.HAS_OUTPUT
        if not self._must_poll:
            self._received_at = None
        return Step(out, status, answers.meter.total() - before)

    def _advance(self, fuel: int) -> int:
        """Find the next thing to do; returns the fuel that took, 0 if there is none."""
        if self._arrival is None and self._skip:
            self._unit = self._resume_row()
            return 1
        if self._arrival is None:
            self._arrival = self._next_arrival()
            if self._arrival is not None and (self._arrival.parts < 0).any():
                # NULL has no partner anywhere: such rows are answered by themselves.
                has_key = self._arrival.parts >= 0
                self._unit = Unit(self.answers, self._arrival.take(~has_key), _NO_SLOTS, [], 0)
                self._arrival = self._arrival.take(has_key) if has_key.any() else None
                return 1
        if self._arrival is not None:
            taken, self._unit = self._take(self._arrival.take(slice(0, fuel)))
            self._arrival = self._arrival.take(slice(taken, None)) if taken < len(self._arrival) else None
            return max(1, taken)
        if len(self._queue) > 1:
            return self._move_on()
        if self._ended:
            self._unit = self._last_unit(None)
            self._done = self._unit is None
            return 0 if self._done else 1
        self._unit = self._next_unit(self._stalled)
        return 0 if self._unit is None else 1

    def _next_arrival(self) -> Asked | None:
        if self._resumed:
            batch, times = self._resumed.popleft()
            return self._asked(batch, times)
        if not self._queue[0].rows:
            return None
        batch, _ = self._queue[0].next()
        assert self._received_at is not None
        return self._asked(batch, np.full(batch.num_rows, self._received_at, np.int64))

    def _asked(self, batch: pa.RecordBatch, times: Int64) -> Asked:
        plan = self.answers.plans[0]
        columns = plan.store(batch, _NO_NUMBERS)
        places = self._codec.places(plan.key_arrays(batch))
        parts = self.version.map.locate(places)
        if places.known is not None:
            parts[~places.known] = -1  # NULL is in no partition
        self.answers.meter.hashes += batch.num_rows
        widest = plan.widest(columns)
        if widest + self.version.widest_row > self.sizing.output_bytes:
            raise BudgetError(
                f"a row of {self.spec.names[0]} takes {format_bytes(widest)}, for which "
                f"{format_bytes(self.budget.total)} of memory are too little; allow more memory"
            )
        rows = np.arange(batch.num_rows, dtype=np.int32)
        return Asked(BatchRows(columns), rows, places.hashes, parts, times, widest)

    def _move_on(self) -> int:
        """Everything of this version has been taken: answer what changes with the next, and go there."""
        following = self._queue[1].pinned
        changed = following.version.changed_since(self.version)
        if changed is not None and following.version.largest_segment > self.version.largest_segment:
            changed = None
        self._unit = self._last_unit(changed)
        return 1 if self._unit is not None or self._settled(changed) else 0

    def _settled(self, changed: NDArray[np.bool_] | None) -> bool:
        """Nobody waits any more for what changes: go to the next version. False if that has to be put off."""
        self._go_on(changed)
        return True

    def _go_on(self, changed: NDArray[np.bool_] | None) -> None:
        following = self._queue[1].pinned
        self.reader.forget(set(self.version.ids.tolist()) - set(following.version.ids.tolist()))
        self._pinned.release()
        self._queue.popleft()
        self._pinned = following
        self._check_relation()
        if changed is None:
            self._set_up()
        else:
            self._forget(changed)

    @property
    def _arrivals_wait(self) -> bool:
        return self._arrival is not None or bool(self._resumed) or any(each.rows for each in self._queue)

    @property
    def status(self) -> Status:
        """What a poll would be good for."""
        if self._unit is not None and not self._stalled:
            return Status.HAS_OUTPUT
        if self._arrivals_wait:
            return Status.HAS_OUTPUT
        if self._done:
            return Status.DONE
        if len(self._queue) > 1:
            return Status.HAS_OUTPUT
        if self._ended or self._is_due():
            return Status.HAS_OUTPUT
        if self._stalled and (self._unit is not None or self.rows_waiting):
            return Status.HAS_WORK
        return Status.NEED_INPUT

    def wake_at(self) -> float | None:
        """Never, unless an operator lets no row wait too long."""
        return None

    @property
    def cost(self) -> Cost:
        """All work so far."""
        return self.answers.meter.total()

    @property
    def phase(self) -> str:
        """Arriving, reactive, clean-up or done."""
        return phase_of(done=self._done, ended=self._cleaning_up, reacting=self._stalled).value

    def figures(self) -> LookupFigures:
        """How the rows fared so far."""
        answers = self.answers
        read = answers.meter.pages_read * PAGE_BYTES
        return lookup_figures(answers.answered, answers.misses, self.hits, read, answers.delays)

    def report(self) -> Report:
        return Report(lookup=self.figures())

    def close(self) -> None:
        """Let go of all rows and of the relation; the store belongs to whoever made it."""
        self._unit = self._arrival = None
        for each in self._queue:
            each.pinned.release()

    def check(self) -> None:
        """Assert the invariants."""
        self.budget.check()
        assert self._queue and self._queue[0].pinned is self._pinned
        numbers = [each.pinned.version.number for each in self._queue]
        assert numbers == sorted(set(numbers))

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        """The state as of now; writes the rows that are not answered, unless the last snapshot has them."""
        if self._saved is not None and self._saved[0] == self._steps:
            return self._saved[1]
        name = f"lookup-{self._steps}"
        skip, pages, times = self._pages()
        state = {
            **self._own_state(),
            "format": FORMAT,
            "memory": self.budget.total,
            "steps": self._steps,
            "versions": [each.pinned.version.number for each in self._queue],
            "skip": skip,
            "received_at": self._received_at,
            "flags": [self._stalled, self._ended, self._done, self._must_poll, self._cleaning_up],
            "counts": [self.answers.answered + self._answered_at_hand(), self.answers.misses, self.hits],
            "delays": self.answers.delays.to_state(),
        }
        names: tuple[str, ...] = ()
        if pages:
            with SegmentWriter(self.store, name, self.spec.stream) as writer:
                for _, batch in pages:
                    writer.write_page(batch)
                for i, when in enumerate(times):
                    writer.add_array(f"times-{i}", when)
                writer.seal({"versions": [version for version, _ in pages]}).close()
            names = (name,)
        taken = Snapshot(self.name, self.spec.fingerprint, state, names)
        before, self._saved = self._saved, (self._steps, taken)
        for old in before[1].segments if before is not None else ():
            self.store.remove(old)
        return taken

    def _pages(self) -> tuple[int, list[tuple[int, pa.RecordBatch]], list[Int64]]:
        """How many partners the very first row was given, all rows to save with their versions, and when those of
        this version that were taken up arrived.
        """
        asked: list[Asked] = []
        skip = self._skip
        if self._unit is not None:
            pending, skip = self._unit.pending()
            asked.append(pending)
        asked += [*self._waiting_rows(), *([] if self._arrival is None else [self._arrival])]
        asked = [each for each in asked if len(each)]
        timed = [(self.answers.batch(each), each.times) for each in asked] + list(self._resumed)
        pages = [(self.version.number, batch) for batch, _ in timed]
        for each in self._queue:
            pages += [(each.pinned.version.number, received.batch) for received in each.waiting()]
        return skip, pages, [times for _, times in timed]

    @classmethod
    def restore(
        cls, spec: LookupSpec, snapshot: Snapshot, memory: int, store: Store, relation: RelationReader, **options: Any
    ) -> Self:
        """An operator that goes on where the snapshot was taken; the relation must still have that version."""
        check_snapshot(cls.name, spec.fingerprint, snapshot, memory)
        join = cls(spec, memory, store, relation, **options)
        join._load_snapshot(snapshot)
        return join

    def _load_snapshot(self, snapshot: Snapshot) -> None:
        state: dict[str, Any] = dict(snapshot.state)
        try:
            pins = [self.reader.pin(number) for number in state["versions"]]
        except RelationError as error:
            raise SnapshotError(f"the snapshot's rows cannot meet the relation as it was: {error}") from None
        self._pinned.release()
        self._pinned = pins[0]
        self._check_relation()
        self._set_up()
        self._queue = deque(Waiting(self._row_limit, pinned) for pinned in pins)
        self._steps, self._received_at = state["steps"], state["received_at"]
        self._stalled, self._ended, self._done, self._must_poll, self._cleaning_up = state["flags"]
        self.answers.answered, self.answers.misses, self.hits = state["counts"]
        self.answers.delays.load(state["delays"])
        self._skip = state["skip"]
        self._load_own(state)
        for name in snapshot.segments:
            segment = Segment.open(self.store, name)
            for i, version in enumerate(segment.meta["versions"]):
                batch = segment.read_page(i)
                if f"times-{i}" in segment.arrays:
                    self._resumed.append((batch, np.array(segment.array(f"times-{i}"))))
                else:
                    next(each for each in self._queue if each.pinned.version.number == version).add(batch)
            segment.close()
        self._adopt_resumed(state)
        self._saved = (self._steps, snapshot)

    def _answered_at_hand(self) -> int:
        if self._unit is None:
            return 0
        return len(self._unit.asked) - len(self._unit.pending()[0])

    def _resume_row(self) -> Unit:
        """The row of a snapshot that was answered in part."""
        batch, times = self._resumed.popleft()
        if batch.num_rows > 1:
            self._resumed.appendleft((batch.slice(1), times[1:]))
        row = self._asked(batch.slice(0, 1), times[:1])
        skip, self._skip = self._skip, 0
        part = int(row.parts[0])
        return self.ask_mapped(row, self.mapped_indexes(part), part, skip)
