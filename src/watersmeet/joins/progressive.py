"""What progressive joins of two finite streams share: receiving, arrivals, output, snapshots.

```
receive ──▶ intake ──▶ arrival: keep the row, look it up on the other side ──▶ pairs ──▶ poll's batch
                         │ no room
                         ▼
                       `_flush_one`: the operator's own choice
```

A subclass says what to do when memory is full, when the inputs are silent, and when they have ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.cost import Cost, Meter
from watersmeet.core.errors import ProtocolError, SnapshotError, SpecError
from watersmeet.core.events import Arrive, End, Event, Stall, Status, Step
from watersmeet.core.operator import Snapshot
from watersmeet.core.spec import JoinSpec
from watersmeet.joins.snapshots import Saver, check_snapshot
from watersmeet.joins.tasks import Arrival, Task
from watersmeet.memory import Budget, no_room_for
from watersmeet.spill.store import Store
from watersmeet.state.intake import Intake, Received
from watersmeet.state.keys import KeyCodec
from watersmeet.state.lookup import Lookup
from watersmeet.state.pairs import Between, PairBuffer
from watersmeet.state.rows import BatchRows, RowPlan, TableRows
from watersmeet.state.side import Probe, SideTable, row_bytes
from watersmeet.state.sizing import Grain, Sizing

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


_LEAST_ROOM_TO_RESTORE = 2048


class ProgressiveJoin(ABC):
    """The frame of an operator for two finite streams."""

    name: ClassVar[str]
    partitioned: ClassVar[bool] = True
    rows_buffered: int = 3
    """How many rows of a side can be in buffers at once, each perhaps as wide as the widest."""
    spills: ClassVar[bool] = True
    reason: str = ""
    """Why the planner chose this operator."""
    joins_ranges: ClassVar[bool] = False
    """Whether it takes a band among its conditions."""

    def __init__(self, spec: JoinSpec, memory: int, store: Store, grain: Grain | None = None) -> None:
        self.refuse_unfit(spec)
        self.spec = spec
        self.store = store
        self.codec = self._make_codec()
        self.plans = self._make_plans()
        widths = [row_bytes(plan.types) for plan in self.plans]
        # Values that are close to each other may have any hashes: a band leaves nothing to divide rows by.
        partitioned = self.partitioned and spec.band is None
        self.sizing = Sizing.divide(memory, widths, partitioned, f"the {self.name} join", grain)
        self.budget = Budget(memory)
        self.buffers = self.budget.reservation("buffers")
        self.buffers.grow(self.sizing.buffers)
        self._restoring = self.budget.reservation("room to restore in")
        self._restoring.set_aside(self._room_to_restore)
        self.tables: tuple[SideTable, ...] = tuple(self._make_table(side) for side in (0, 1))
        self.pairs = PairBuffer(spec, self.codec, self.plans, self.sizing.pairs)
        self.meter = Meter()
        self.clock = 0
        self.gone = np.zeros((2, self.sizing.layout.partitions), np.int64)
        """Rows of a side and partition that arrived up to this tick are no longer in memory."""
        self.saver = Saver(self)
        self._intakes = (Intake(self.sizing.input_bytes), Intake(self.sizing.input_bytes))
        self._ended = [False, False]
        self._closed = [False, False]
        self._known_schemas = [spec.left, spec.right]
        self._stalled = False
        self._must_poll = False
        self._task: Task | None = None
        self._done = False

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        return cls._least_for_rows(spec)

    @classmethod
    def _least_for_rows(cls, spec: JoinSpec) -> int:
        exact = KeyCodec(spec).exact
        return Sizing.least([row_bytes(RowPlan(spec, side, exact).types) for side in (0, 1)])

    @classmethod
    def refuse_unfit(cls, spec: JoinSpec) -> None:
        """An error if this join cannot carry out what the spec asks for."""
        if spec.band is not None and not cls.joins_ranges:
            raise SpecError(
                f"{cls.name} joins on equal values only, and a band of {spec.band.left!r} asks for close ones; use "
                f"algorithm='diner' or 'pmj'"
            )

    # --- what an operator may hold its rows in ---

    def _make_codec(self) -> KeyCodec:
        return KeyCodec(self.spec)

    def _make_plans(self) -> tuple[RowPlan, RowPlan]:
        return RowPlan(self.spec, 0, self.codec.exact), RowPlan(self.spec, 1, self.codec.exact)

    def _make_table(self, side: int) -> Any:
        return SideTable(self.plans[side].types, self.budget, self.sizing.layout, self.spec.names[side])

    def arrival_lookup(
        self, side: int, hashes: Int64, parts: Int32, columns: list[pa.Array], source: TableRows | BatchRows
    ) -> Lookup:
        """The look-up of rows that arrived on one side in the memory of the other."""
        other = self.tables[1 - side]
        return Lookup(Probe(hashes, parts), other, Between(side, source, other))

    def still_in_memory(self, side: int, parts: Int32, ticks: Int64) -> NDArray[np.bool_]:
        """Which rows, by their partitions and arrivals, have not left memory since a snapshot wrote them."""
        stayed: NDArray[np.bool_] = ticks > self.gone[side][parts]
        return stayed

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

    def _receive_batch(self, side: int, batch: pa.RecordBatch) -> None:
        if self._ended[side]:
            self._check_open(side)
        if self._must_poll:
            raise ProtocolError("poll until what was received is worked off, before the next arrival")
        schema = batch.schema
        if schema is not self._known_schemas[side]:
            if schema != self.spec.input(side):
                raise SpecError(
                    f"a batch of {self.spec.names[side]} has other columns than announced: it has "
                    f"{', '.join(f'{field.name}: {field.type}' for field in schema)}"
                )
            self._known_schemas[side] = schema
        self._stalled = False
        self._intakes[side].add(batch)

    def _check_open(self, side: int) -> None:
        if self._ended[side]:
            raise ProtocolError(f"{self.spec.names[side]} has ended; nothing can follow")

    def poll(self, now: float, fuel: int) -> Step:
        """Work a little, and hand out at most one batch."""
        before = self.meter.total()
        left = max(1, fuel)
        out: pa.RecordBatch | None = None
        while left > 0 and out is None:
            if not self.pairs.waiting:
                used = self._work(left)
                if not used:
                    break
                left -= used
            if self.pairs.waiting:
                assert self._task is not None and self._task.lookup is not None
                out, count = self.pairs.take(self._task.lookup.between, self.sizing.output_bytes)
                self.meter.results += count
                left -= count
        status = self._status()
        self._must_poll = status is Status.HAS_OUTPUT
        return Step(out, status, self.meter.total() - before)

    def wake_at(self) -> float | None:
        """Never: all work follows events."""
        return None

    @property
    def patience(self) -> int:
        """How many rows a driver may let wait while there is reactive work."""
        return 0

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
        return "reactive" if self._task is not None and not isinstance(self._task, Arrival) else "arriving"

    def close(self) -> None:
        """Let go of all rows; the store belongs to whoever made it."""
        self._task = None
        self.pairs.clear()
        self.tables = ()

    def check(self) -> None:
        """Assert the invariants."""
        self.budget.check()
        for table in self.tables:
            table.check()
        assert self.pairs.waiting >= 0
        assert not self.pairs.waiting or self._task is not None

    # --- work ---

    def _work(self, fuel: int) -> int:
        """One stretch of work with an empty pair buffer; returns the fuel used, 0 if there is nothing to do."""
        if self._task is not None and self._task.done:
            reactive = not isinstance(self._task, Arrival) and not all(self._closed)
            self._task.finish()
            self._task = None
            if reactive:
                return fuel  # the driver may have rows that wait for the end of the task
        if self._task is None:
            self._task = self._next_task()
        elif self._arrivals_wait and not isinstance(self._task, Arrival):
            return self._give_way(self._task)
        return self._task.work(fuel) if self._task is not None else 0

    @property
    def _arrivals_wait(self) -> bool:
        return any(intake.rows for intake in self._intakes)

    def _next_task(self) -> Task | None:
        for side, intake in enumerate(self._intakes):
            if intake.rows:
                return self._arrival(side, *intake.next())
            if self._ended[side] and not self._closed[side]:
                self._closed[side] = True
                self._input_closed(side)
        if all(self._closed):
            task = self._clean_up_task()
            self._done = task is None
            return task
        return self._reactive_task() if self._stalled else None

    def _arrival(self, side: int, batch: pa.RecordBatch, numbers: Int64) -> Arrival:
        return Arrival(self, side, batch, numbers)

    def _status(self) -> Status:
        if self.pairs.waiting or self._arrivals_wait:
            return Status.HAS_OUTPUT
        if self._done:
            return Status.DONE
        if all(self._ended):
            return Status.HAS_OUTPUT
        if self._task is not None and not self._task.done:
            return Status.HAS_OUTPUT if isinstance(self._task, Arrival) else Status.HAS_WORK
        return Status.HAS_WORK if self._stalled and self._can_react() else Status.NEED_INPUT

    def exhausted(self, side: int) -> bool:
        """Whether an input has ended and all its rows have been worked off; asked by the other side's arrivals."""
        return self._ended[side] and not self._intakes[side].rows

    def ticks(self, count: int) -> Int64:
        """The next ticks of the logical clock."""
        first = self.clock + 1
        self.clock += count
        return np.arange(first, first + count)

    def admit(self, arrival: Arrival, count: int) -> int:
        """Make room for the next rows of an arrival; returns for how many, at least one."""
        table = self.tables[arrival.side]
        while True:
            _, parts, columns = arrival.piece(count)
            wide_enough = self._allow_widest(arrival.side, arrival.widest)
            if wide_enough and (not arrival.kept or self.secure(lambda: table.reserve(parts, columns))):  # noqa: B023
                return count
            if count == 1:
                size = max(table.row_bytes, sum(column.nbytes for column in columns))
                raise no_room_for(f"a row of {self.spec.names[arrival.side]}", size, self.budget)
            count //= 2

    def _allow_widest(self, side: int, widest: int) -> bool:
        """Let the buffers hold the widest row of each side, should it be wider than what was set aside for them."""
        allowed = min(self.sizing.page_bytes, self.sizing.output_bytes // 2)
        grown = self.rows_buffered * (max(widest, allowed) - max(self.pairs.widest[side], allowed))
        if grown > 0 and not self.secure(lambda: self.buffers.try_grow(grown)):
            return False
        self.pairs.widest[side] = max(widest, self.pairs.widest[side])
        return True

    def secure(self, claim: Callable[[], bool], spared: frozenset[tuple[int, int]] = frozenset()) -> bool:
        """Make room until a claim succeeds; False if it does not with all but the spared partitions gone."""
        while not claim():
            # A claim that fails half-way leaves free memory reserved: give all of that back, and ask again.
            for table in self.tables:
                table.trim(self.budget.total)
            if claim():
                break
            if not self._flush_one(spared):
                return False
        return True

    def forget(self, side: int, part: int) -> None:
        """Drop a partition from memory: its rows are on disk, or can find no more partners."""
        self.tables[side].drop(part)
        self.gone[side][part] = self.clock

    # --- what the operators differ in ---

    def rows_kept(self, side: int, parts: Int32) -> None:  # noqa: B027 (an operator need not count)
        """Rows of these partitions have arrived and are in memory now."""

    @abstractmethod
    def must_keep(self, side: int) -> bool:
        """Whether a row that arrives on this side can still find partners later."""

    @abstractmethod
    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        """Move something out of memory, but no spared partition; False if nothing is left to move."""

    @abstractmethod
    def _input_closed(self, side: int) -> None:
        """All rows of an input have been worked off."""

    @abstractmethod
    def _can_react(self) -> bool:
        """Whether there is reactive work."""

    @abstractmethod
    def _reactive_task(self) -> Task | None:
        """The next reactive work; None if there is none."""

    @abstractmethod
    def _give_way(self, task: Task) -> int:
        """Rows have arrived: end the reactive task at the next boundary; returns the fuel that took."""

    @abstractmethod
    def _clean_up_task(self) -> Task | None:
        """The next work after all inputs have ended; None when all is done."""

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        """The state as of now; writes the rows that arrived since the last one."""
        return self.saver.save(*self._own_state())

    @classmethod
    def restore(cls, spec: JoinSpec, snapshot: Snapshot, memory: int, store: Store, **options: Any) -> Self:
        """An operator that goes on where the snapshot was taken."""
        check_snapshot(cls.name, spec.fingerprint, snapshot, memory)
        join = cls(spec, memory, store, **options)
        if join.sizing.layout.partitions != len(snapshot.state["gone"][0]):
            # More memory would make more partitions than the rows were spilled by: go on with as much as before.
            join = cls(spec, snapshot.state["memory"], store, **options)
        join._load(snapshot)
        return join

    def _resumed_arrival(self, state: dict[str, Any], batch: pa.RecordBatch, numbers: Int64) -> Arrival:
        arrival = self._arrival(state["side"], batch, numbers)
        arrival.resume(state)
        return arrival

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        """The segments and the state that only this operator has."""
        return [], {}

    def _load_own(self, state: dict[str, Any]) -> None:  # noqa: B027 (an operator need not have any)
        """Take over the state that only this operator has."""

    def _load_task(self, state: dict[str, Any]) -> Task:
        """The task that was at hand, if it is none of the frame's own."""
        raise SnapshotError(f"the snapshot has work of an unknown kind: {state['kind']!r}")

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
            "widest": list(self.pairs.widest),
            "task": None if self._task is None else self._task.to_state(),
        }

    def waiting(self, side: int) -> list[Received]:
        """One input's rows that were received and are not in memory yet, the slice at hand first."""
        waiting = self._intakes[side].waiting()
        if isinstance(self._task, Arrival) and self._task.side == side:
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
        for side, widest in enumerate(state["widest"]):
            self._allow_widest(side, widest)
        self._load_own(state)
        self.saver.load(snapshot)
        waiting = self.saver.load_waiting(snapshot)
        self._load_tasks(state, waiting)
        for side, batches in enumerate(waiting):
            self._intakes[side].numbered = state["numbered"][side]
            for received in batches:
                self._intakes[side].resume(received)

    def _load_tasks(self, state: dict[str, Any], waiting: list[list[Received]]) -> None:
        """Take over the work that was at hand; its rows are the first that wait."""
        task = state["task"]
        if task is not None and task["kind"] == "arrival":
            at_hand = waiting[task["side"]].pop(0)
            assert at_hand.numbers is not None
            self._task = self._resumed_arrival(task, at_hand.batch, at_hand.numbers)
        elif task is not None:
            self._task = self._load_task(task)
