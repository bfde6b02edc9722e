"""What joins of streams share, of two inputs or of many: receiving, the order of work, room, output, snapshots.

```
receive ──▶ intake ──▶ arrival: keep the rows, look them up in the other inputs ──▶ what was found ──▶ poll's batch
                         │ no room
                         ▼
                       the operator's own choice
```

A subclass says what to do when memory is full, when the inputs are silent, and when they have ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.cost import Cost, Meter
from watersmeet.core.errors import ProtocolError, SpecError
from watersmeet.core.protocol import Arrive, End, Event, PlainOperator, Snapshot, Stall, Status, Step
from watersmeet.engine.snapshot import Saver
from watersmeet.memory import Budget, no_room_for
from watersmeet.records.intake import Intake, Received
from watersmeet.spill.store import Store

_LEAST_ROOM_TO_RESTORE = 2048


class Task(Protocol):
    """A stretch of work that can stop between any two results."""

    @property
    def done(self) -> bool:
        """Whether all its results were found."""
        ...

    def work(self, fuel: int) -> int:
        """Fill the empty buffer of what was found; returns the fuel that took, at least one."""
        ...

    def finish(self) -> None:
        """All results were handed out: settle what the task has achieved."""
        ...

    def to_state(self) -> dict[str, Any]:
        """The task for a snapshot."""
        ...


class Found(Protocol):
    """Results that were found and not handed out."""

    widest: list[int]
    """Bytes of the widest row of each input."""

    @property
    def waiting(self) -> int:
        """How many there are."""
        ...

    def clear(self) -> None:
        """Forget them."""
        ...


class Arriving(ABC):
    """A batch on its way into memory, slice by slice: each as large as the room and the fuel allow."""

    def __init__(
        self,
        join: JoinFrame[Any],
        number: int,
        batch: pa.RecordBatch,
        numbers: Int64,
        hashes: Sequence[Int64],
        valid: Bool | None,
        moments: Sequence[pa.Array] = (),
    ) -> None:
        """Rows that are not `valid` are left out; `moments` are stored before the columns."""
        self.input = number
        self.numbers = numbers
        plan = join.plans[number]
        columns = [*moments, *plan.store(batch, numbers)]
        self.positions: Int64 | None = None
        """Of rows that are not left out, their places in the batch; None: all are there."""
        if valid is not None and not valid.all():
            self.positions = np.flatnonzero(valid)
            self.leave_out(np.flatnonzero(~valid), columns)
            hashes = [each[self.positions] for each in hashes]
            columns = [column.take(pa.array(self.positions)) for column in columns]
        self.batch = batch
        self.widest: int = plan.widest(columns)
        self.kept = False
        self.next = 0
        self.rows = len(hashes[0])
        self._hashes = hashes
        self._parts: Int32 = join.tables[number].parts_of(hashes[0])
        self._columns = columns
        join.meter.hashes += batch.num_rows * len(hashes)

    def leave_out(self, positions: Int64, columns: Sequence[pa.Array]) -> None:  # noqa: B027  most have no use for them
        """Rows at these places of the batch, which has these columns, can match nothing."""

    @property
    @abstractmethod
    def at_hand(self) -> int:
        """How many of the last rows taken into memory have not met all of their partners there."""

    @property
    @abstractmethod
    def waits(self) -> bool:
        """Whether rows wait to be taken into memory, and nothing else is at hand."""

    def slice_of(self, count: int) -> tuple[list[Int64], Int32, list[pa.Array]]:
        """Hashes, partitions and columns of the next rows."""
        stop = self.next + count
        if count == self.rows:
            return list(self._hashes), self._parts, self._columns
        return (
            [each[self.next : stop] for each in self._hashes],
            self._parts[self.next : stop],
            [column.slice(self.next, count) for column in self._columns],
        )

    def unfinished(self) -> Received:
        """The rows that a snapshot must carry: those not in memory yet, and with them the slice at hand."""
        return Received(self.batch, self.numbers, self._in_batch(self.next - self.at_hand))

    def rest(self) -> tuple[pa.RecordBatch, Int64]:
        """The rows that have yet to be taken into memory, and their numbers."""
        start = self._in_batch(self.next)
        return self.batch.slice(start), self.numbers[start:]

    def _in_batch(self, row: int) -> int:
        """Where a row stands in the batch, of which some rows may have been left out."""
        if self.positions is None:
            return row
        return int(self.positions[row]) if row < len(self.positions) else self.batch.num_rows


Work = TypeVar("Work", bound=Task)


class JoinFrame(PlainOperator, ABC, Generic[Work]):
    """The frame of an operator that takes rows of several streams into memory, and moves them out when it is full."""

    spills: ClassVar[bool] = True
    rows_buffered: int = 3
    """How many rows of an input can be in buffers at once, each perhaps as wide as the widest."""

    codec: Any
    plans: tuple[Any, ...]
    tables: tuple[Any, ...]
    found: Found
    saver: Saver

    def __init__(self, spec: Any, sizing: Any, memory: int, store: Store) -> None:
        """What comes before the tables; a subclass adds those, the buffer of what was found, and the saver."""
        self.spec = spec
        self.sizing = sizing
        self.store = store
        self.budget = self._make_budget(memory)
        self.buffers = self.budget.reservation("buffers")
        self.buffers.grow(sizing.buffers)
        self._restoring = self.budget.reservation("room to restore in")
        self._restoring.set_aside(self._room_to_restore)
        self.meter = Meter()
        self.clock = 0
        inputs = range(len(spec.names))
        self.gone = np.zeros((len(inputs), sizing.layout.partitions), np.int64)
        """Rows of an input and partition that arrived up to this tick are no longer in memory."""
        self._intakes = tuple(Intake(sizing.input_bytes) for _ in inputs)
        self._ended = [False for _ in inputs]
        self._closed = [False for _ in inputs]
        self._known_schemas = [spec.input(number) for number in inputs]
        self._stalled = False
        self._must_poll = False
        self._task: Work | None = None
        self._done = False

    def _make_budget(self, memory: int) -> Budget:
        """What this operator may hold."""
        return Budget(memory)

    # --- the protocol ---

    def receive(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, Arrive):
            self._receive_batch(event.input, event.batch)
        elif isinstance(event, Stall):
            self._stalled = True
        elif isinstance(event, End):
            self._check_open(event.input)
            self._ended[event.input] = True
        else:
            raise ProtocolError(f"{self.name} does not take {type(event).__name__}")

    def _receive_batch(self, number: int, batch: pa.RecordBatch) -> None:
        self._check_open(number)
        if self._must_poll:
            raise ProtocolError("poll until what was received is worked off, before the next arrival")
        schema = batch.schema
        if schema is not self._known_schemas[number]:
            if schema != self.spec.input(number):
                raise SpecError(
                    f"a batch of {self.spec.names[number]} has other columns than announced: it has "
                    f"{', '.join(f'{field.name}: {field.type}' for field in schema)}"
                )
            self._known_schemas[number] = schema
        self._stalled = False
        self._intakes[number].add(batch)

    def _check_open(self, number: int) -> None:
        if self._ended[number]:
            raise ProtocolError(f"{self.spec.names[number]} has ended; nothing can follow")

    def poll(self, now: float, fuel: int) -> Step:
        """Work a little, and hand out at most one batch."""
        before = self.meter.total()
        left = max(1, fuel)
        out: pa.RecordBatch | None = None
        while left > 0 and out is None:
            if not self.found.waiting:
                used = self._work(left)
                if not used:
                    break
                left -= used
            if self.found.waiting:
                out, count, used = self._hand_out()
                self.meter.results += count
                left -= used
        status = self._status()
        self._must_poll = status is Status.HAS_OUTPUT
        return Step(out, status, self.meter.total() - before)

    def wake_at(self) -> float | None:
        """Never: all work follows events."""
        return None

    @property
    def cost(self) -> Cost:
        """All work so far."""
        return self.meter.total()

    @property
    def phase(self) -> str:
        """Arriving, reactive, clean-up or done."""
        if self._done:
            return "done"
        if all(self._closed):
            return "clean-up"
        return "reactive" if self._task is not None and not isinstance(self._task, Arriving) else "arriving"

    def close(self) -> None:
        """Let go of all rows; the store belongs to whoever made it."""
        self._task = None
        self.found.clear()
        self.tables = ()

    def check(self) -> None:
        """Assert the invariants."""
        self.budget.check()
        for table in self.tables:
            table.check()
        assert self.found.waiting >= 0

    # --- work ---

    @property
    def _arrivals_wait(self) -> bool:
        for intake in self._intakes:  # noqa: SIM110  asked at every step, where any() takes three times as long
            if intake.rows:
                return True
        return False

    def _next_task(self) -> Work | None:
        arrival = self._next_arrival()
        if arrival is not None:
            return arrival
        if all(self._closed):
            task = self._clean_up_task()
            self._done = task is None
            return task
        return self._reactive_task() if self._stalled else None

    def _next_arrival(self) -> Work | None:
        for number, intake in enumerate(self._intakes):
            if intake.rows:
                return self._arrival(number, *intake.next())
            self._close_if_ended(number)
        return None

    def _close_if_ended(self, number: int) -> None:
        """No row of an input waits: if it has ended, this is all."""
        if self._ended[number] and not self._closed[number]:
            self._closed[number] = True
            self._input_closed(number)

    def _status(self) -> Status:
        if self.found.waiting or self._arrivals_wait:
            return Status.HAS_OUTPUT
        if self._done:
            return Status.DONE
        if all(self._ended):
            return Status.HAS_OUTPUT
        if self._task is not None and not self._task.done:
            return Status.HAS_OUTPUT if isinstance(self._task, Arriving) else Status.HAS_WORK
        return Status.HAS_WORK if self._stalled and self._can_react() else Status.NEED_INPUT

    def exhausted(self, number: int) -> bool:
        """Whether an input has ended and all its rows have been worked off; asked by the others' arrivals."""
        return self._ended[number] and not self._intakes[number].rows

    def ticks(self, count: int) -> Int64:
        """The next ticks of the logical clock."""
        first = self.clock + 1
        self.clock += count
        return np.arange(first, first + count)

    # --- room ---

    def admit(self, arrival: Any, count: int) -> int:
        """Make room for the next rows of an arrival; returns for how many, at least one."""
        while not self._has_room_for(arrival, count):
            if count == 1:
                raise self._no_room_for(arrival)
            count //= 2
        return count

    def _has_room_for(self, arrival: Arriving, count: int) -> bool:
        """Make room for the next rows of an arrival, if that can be."""
        _, parts, columns = arrival.slice_of(count)
        if not self._allow_widest(arrival.input, arrival.widest):
            return False
        table = self.tables[arrival.input]
        return not arrival.kept or self.secure(lambda: table.reserve(parts, columns))

    def _no_room_for(self, arrival: Arriving) -> Exception:
        size = max(self.tables[arrival.input].row_bytes, sum(column.nbytes for column in arrival.slice_of(1)[2]))
        return no_room_for(f"a row of {self.spec.names[arrival.input]}", size, self.budget)

    def _allow_widest(self, number: int, widest: int) -> bool:
        """Let the buffers hold the widest row of each input, should it be wider than what was set aside for them."""
        allowed = min(self.sizing.page_bytes, self.sizing.output_bytes // len(self._intakes))
        grown = self.rows_buffered * (max(widest, allowed) - max(self.found.widest[number], allowed))
        if grown > 0 and not self.secure(lambda: self.buffers.try_grow(grown)):
            return False
        self.found.widest[number] = max(widest, self.found.widest[number])
        return True

    @abstractmethod
    def secure(self, claim: Callable[[], bool]) -> bool:
        """Make room until a claim succeeds; False if it does not with nothing left in memory."""

    def _secure_by(self, make_room: Callable[[], bool], claim: Callable[[], bool]) -> bool:
        """Make room, which is False when nothing is left to move, until a claim succeeds; False if it does not."""
        while not claim():
            # A claim that fails half-way leaves free memory reserved: give all of that back, and ask again.
            for table in self.tables:
                table.trim(self.budget.total)
            if claim():
                break
            if not make_room():
                return False
        return True

    # --- what the operators differ in ---

    @abstractmethod
    def _work(self, fuel: int) -> int:
        """One stretch of work with nothing found and not handed out; returns the fuel used, 0 if there is no work."""

    @abstractmethod
    def _hand_out(self) -> tuple[pa.RecordBatch | None, int, int]:
        """A batch of what was found, how many results these are, and the fuel that took."""

    @abstractmethod
    def _arrival(self, number: int, batch: pa.RecordBatch, numbers: Int64) -> Work:
        """The task of rows that arrive."""

    def _resumed_arrival(self, state: dict[str, Any], batch: pa.RecordBatch, numbers: Int64) -> Any:
        """The task of rows that were arriving when a snapshot was taken."""
        return self._arrival(state["input"], batch, numbers)

    def _input_closed(self, number: int) -> None:
        """All rows of an input have been worked off."""

    @abstractmethod
    def must_keep(self, number: int) -> bool:
        """Whether a row that arrives on this input can still find partners later."""

    @abstractmethod
    def _can_react(self) -> bool:
        """Whether there is reactive work."""

    @abstractmethod
    def _reactive_task(self) -> Work | None:
        """The next reactive work; None if there is none."""

    @abstractmethod
    def _clean_up_task(self) -> Work | None:
        """The next work after all inputs have ended; None when all is done."""

    # --- snapshots ---

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The state as of now; writes the rows that arrived since the last one."""

    @abstractmethod
    def _load_own(self, state: dict[str, Any]) -> None:
        """Take over the state that only this operator has."""

    @abstractmethod
    def _load_task(self, state: dict[str, Any]) -> Work:
        """The task that was at hand, if it is none of the frame's own."""

    def frame_state(self) -> dict[str, Any]:
        """The frame's own state."""
        return {
            "clock": self.clock,
            "numbered": [intake.numbered for intake in self._intakes],
            "ended": list(self._ended),
            "closed": list(self._closed),
            "stalled": self._stalled,
            "must_poll": self._must_poll,
            "done": self._done,
            "gone": self.gone.tolist(),
            "widest": list(self.found.widest),
            "task": None if self._task is None else self._task.to_state(),
        }

    def still_in_memory(self, number: int, parts: Int32, ticks: Int64) -> Bool:
        """Which rows, by their partitions and arrivals, have not left memory since a snapshot wrote them."""
        stayed: Bool = ticks > self.gone[number][parts]
        return stayed

    def waiting_schema(self, number: int) -> pa.Schema:
        """Of one input's rows that were received and are not in memory yet."""
        return self.spec.input(number)

    def waiting(self, number: int) -> list[Received]:
        """One input's rows that were received and are not in memory yet, the slice at hand first."""
        waiting = self._intakes[number].waiting()
        if isinstance(self._task, Arriving) and self._task.input == number:
            waiting.insert(0, self._task.unfinished())
        return waiting

    @property
    def _room_to_restore(self) -> int:
        """Bytes that rows never get: brought back in other portions, they may need a little more than they had."""
        return max(_LEAST_ROOM_TO_RESTORE, self.budget.total // 64)

    def _load(self, snapshot: Snapshot) -> None:
        self._restoring.clear()
        self._load_all(snapshot)
        if self.budget.free >= self._room_to_restore:
            self._restoring.set_aside(self._room_to_restore)

    def _load_all(self, snapshot: Snapshot) -> None:
        state: dict[str, Any] = dict(snapshot.state)
        self.clock = state["clock"]
        self._ended, self._closed = list(state["ended"]), list(state["closed"])
        self._stalled, self._must_poll, self._done = state["stalled"], state["must_poll"], state["done"]
        self.gone = np.array(state["gone"], np.int64)
        for number, widest in enumerate(state["widest"]):
            self._allow_widest(number, widest)
        self._load_own(state)
        self._load_rows(snapshot)
        for intake, numbered in zip(self._intakes, state["numbered"], strict=True):
            intake.numbered = numbered
        waiting = self.saver.load_waiting(snapshot)
        self._load_tasks(state, waiting)
        for intake, batches in zip(self._intakes, waiting, strict=True):
            for received in batches:
                intake.resume(received)

    def _load_rows(self, snapshot: Snapshot) -> None:
        self.saver.load(snapshot)

    def _load_tasks(self, state: dict[str, Any], waiting: list[list[Received]]) -> None:
        """Take over the work that was at hand."""
        task = state["task"]
        if task is not None:
            arriving = task["kind"] == "arrival"
            self._task = self._arrival_at_hand(task, waiting) if arriving else self._load_task(task)

    def _arrival_at_hand(self, state: dict[str, Any], waiting: list[list[Received]]) -> Any:
        """The task of rows that were arriving: the first that wait."""
        rows = waiting[state["input"]].pop(0)
        assert rows.numbers is not None
        arrival = self._resumed_arrival(state, rows.batch, rows.numbers)
        arrival.resume(state)
        return arrival
