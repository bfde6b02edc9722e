"""What joins of several finite streams share: receiving, arrivals, output, snapshots.

```
receive ──▶ intake ──▶ arrival: keep the rows, look them up in all other inputs ──▶ combinations ──▶ poll's batch
                         │ no room
                         ▼
                       `_flush`: the operator's own choice
```
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.cost import Cost, Meter
from watersmeet.core.errors import ProtocolError, SpecError
from watersmeet.core.events import Arrive, End, Event, Stall, Status, Step
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.operator import Snapshot
from watersmeet.joins.driven import Arrival, DrivenTask
from watersmeet.joins.snapshots import Saver, check_snapshot
from watersmeet.memory import Budget, no_room_for
from watersmeet.policies.probing import ProbingOrder
from watersmeet.spill.store import Store
from watersmeet.state.attributes import AttributeCodec
from watersmeet.state.combinations import CombinationBuffer, InputRows, ManyTable
from watersmeet.state.intake import Intake, Received
from watersmeet.state.many_runs import ManyRuns
from watersmeet.state.many_side import ManySide
from watersmeet.state.many_sizing import ManySizing
from watersmeet.state.rows import RowPlan
from watersmeet.state.side import row_bytes
from watersmeet.state.sizing import Grain

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

_LEAST_ROOM_TO_RESTORE = 2048
_ROWS_BUFFERED = 3
"""How many rows of an input can be in buffers at once, each perhaps as wide as the widest."""


class MultiwayJoin(ABC):
    """The frame of an operator for several finite streams."""

    name: ClassVar[str]
    spills: ClassVar[bool] = True
    reason: str = ""
    """Why the planner chose this operator."""

    def __init__(
        self,
        spec: MultiSpec,
        memory: int,
        store: Store,
        *,
        order: ProbingOrder | None = None,
        grain: Grain | None = None,
    ) -> None:
        self.spec = spec
        self._grain = grain or Grain()
        self.store = store
        self.order = order or ProbingOrder(spec)
        self.codec = self._make_codec(spec)
        self.plans = self._make_plans(spec, self.codec)
        self.sizing = self._divide(memory)
        self.budget = Budget(memory)
        self.buffers = self.budget.reservation("buffers")
        self.buffers.grow(self.sizing.buffers)
        self._restoring = self.budget.reservation("room to restore in")
        self._restoring.set_aside(self._room_to_restore)
        self.meter = Meter()
        numbers = range(len(spec.names))
        self.catalogue = self.budget.reservation("catalogue of spilled runs")
        self.catalogue.set_aside(self._grain.records or 0)
        self.tables: tuple[ManyTable, ...] = tuple(self._make_table(i) for i in numbers)
        self.disks = tuple(
            ManyRuns(store, f"run-{i}", len(spec.attributes[i]), self.catalogue, self.meter) for i in numbers
        )
        self.inputs = tuple(InputRows(table, disk) for table, disk in zip(self.tables, self.disks, strict=True))
        self.combinations = CombinationBuffer(spec, self.codec, self.plans)
        self.clock = 0
        self.gone = np.zeros((len(numbers), self.sizing.layout.partitions), np.int64)
        """Rows of an input and partition that arrived up to this tick are no longer in memory."""
        self.saver = Saver(self)
        self._intakes = tuple(Intake(self.sizing.input_bytes) for _ in numbers)
        self._ended = [False for _ in numbers]
        self._closed = [False for _ in numbers]
        self._stalled = False
        self._must_poll = False
        self._task: DrivenTask | None = None
        self._done = False

    @classmethod
    def least_memory(cls, spec: MultiSpec, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        return ManySizing.least(cls._row_bytes(spec, cls._make_plans(spec, cls._make_codec(spec))))

    @classmethod
    def widest_row(cls, spec: MultiSpec, memory: int) -> int:
        """Bytes that a row may take for certain in so much memory, beyond the usual."""
        return memory // (16 * len(spec.names))

    # --- what rows are kept in ---

    @classmethod
    def _make_codec(cls, spec: MultiSpec) -> AttributeCodec:
        if spec.has_bands:
            raise SpecError(f"{cls.name} joins on equal values only; for a band choose algorithm='miner'")
        return AttributeCodec(spec)

    @classmethod
    def _make_plans(cls, spec: MultiSpec, codec: AttributeCodec) -> tuple[RowPlan, ...]:
        inexact = {
            edge.input(side)
            for edge, exact in zip(spec.edges, codec.exact, strict=True)
            if not exact
            for side in (0, 1)
        }
        return tuple(cls._make_plan(spec, number, number not in inexact) for number in range(len(spec.names)))

    @classmethod
    def _make_plan(cls, spec: MultiSpec, number: int, exact_hash: bool) -> RowPlan:
        if spec.window is not None:
            raise SpecError(f"{cls.__name__} knows no windows; build the join with planner.build_multiway")
        return RowPlan(spec, number, exact_hash)

    @classmethod
    def _row_bytes(cls, spec: MultiSpec, plans: Sequence[RowPlan]) -> list[int]:
        return [row_bytes(plan.types, len(attributes)) for plan, attributes in zip(plans, spec.attributes, strict=True)]

    def _divide(self, memory: int) -> ManySizing:
        row_bytes = self._row_bytes(self.spec, self.plans)
        return ManySizing.divide(memory, row_bytes, f"the {self.name} join", self._grain)

    def _make_table(self, number: int) -> ManyTable:
        attributes = len(self.spec.attributes[number])
        return ManySide(
            self.plans[number].types, attributes, self.budget, self.sizing.layout, self.spec.names[number]
        )  # fmt: skip

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
        if batch.schema != self.spec.input(number):
            raise SpecError(
                f"a batch of {self.spec.names[number]} has other columns than announced: it has "
                f"{', '.join(f'{field.name}: {field.type}' for field in batch.schema)}"
            )
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
            if not self.combinations.waiting:
                used = self._work(left)
                if not used:
                    break
                left -= used
            if self.combinations.waiting:
                out, count, taken = self.combinations.take(self.inputs, self.sizing.output_bytes)
                self.meter.results += count
                left -= taken
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
        return "reactive" if self._task is not None and not isinstance(self._task, Arrival) else "arriving"

    def close(self) -> None:
        """Let go of all rows; the store belongs to whoever made it."""
        self._task = None
        self.combinations.clear()
        for disk in self.disks:
            disk.close()
        self.inputs = self.tables = ()

    def check(self) -> None:
        """Assert the invariants."""
        self.budget.check()
        for number, table in enumerate(self.tables):
            table.check()
            self.disks[number].check()
            for part in range(self.sizing.layout.partitions):
                assert (table.ticks(table.rows_of(part)) > self.gone[number][part]).all()

    # --- work ---

    def _work(self, fuel: int) -> int:
        """One stretch of work with an empty buffer; returns the fuel used, 0 if there is nothing to do."""
        if self._task is not None and self._task.done:
            self._task.finish()
            self._task = None
        if self._task is None:
            self._task = self._next_task()
        elif not isinstance(self._task, Arrival) and self._arrivals_wait:
            self._give_way(self._task)
            if self.combinations.waiting:
                return 1
            if self._task is None:
                self._task = self._next_task()
        return self._task.work(fuel) if self._task is not None else 0

    @property
    def _arrivals_wait(self) -> bool:
        for intake in self._intakes:  # noqa: SIM110  asked at every step, where any() takes three times as long
            if intake.rows:
                return True
        return False

    def _next_task(self) -> DrivenTask | None:
        arrival = self._next_arrival()
        if arrival is not None:
            return arrival
        if all(self._closed):
            task = self._clean_up_task()
            self._done = task is None
            return task
        return self._reactive_task() if self._stalled else None

    def _next_arrival(self) -> Arrival | None:
        for number, intake in enumerate(self._intakes):
            if intake.rows:
                return Arrival(self, number, *intake.next())
            self._closed[number] = self._ended[number]
        return None

    def _status(self) -> Status:
        if self.combinations.waiting or self._arrivals_wait:
            return Status.HAS_OUTPUT
        if self._done:
            return Status.DONE
        if all(self._ended):
            return Status.HAS_OUTPUT
        if self._task is not None and not self._task.done:
            return Status.HAS_OUTPUT if isinstance(self._task, Arrival) else Status.HAS_WORK
        return Status.HAS_WORK if self._stalled and self._can_react() else Status.NEED_INPUT

    def exhausted(self, number: int) -> bool:
        """Whether an input has ended and all its rows have been worked off."""
        return self._ended[number] and not self._intakes[number].rows

    def must_keep(self, number: int) -> bool:
        """Whether a row that arrives on this input can still find partners later."""
        others = [i for i in range(len(self.inputs)) if i != number]
        return any(not self.exhausted(i) or self.disks[i].rows for i in others)

    def note_results(self, ids: Int64) -> None:  # noqa: B027  most operators take no note
        """These results were found by rows that arrive."""

    def ticks(self, count: int) -> Int64:
        """The next ticks of the logical clock."""
        first = self.clock + 1
        self.clock += count
        return np.arange(first, first + count)

    def admit(self, arrival: Arrival, count: int) -> int:
        """Make room for the next rows of an arrival; returns for how many, at least one."""
        table = self.tables[arrival.driver]
        while True:
            _, parts, columns = arrival.piece(count)
            wide_enough = self._allow_widest(arrival.driver, arrival.widest)
            if wide_enough and (not arrival.kept or self.secure(lambda: table.reserve(parts, columns))):  # noqa: B023
                return count
            if count == 1:
                size = max(table.row_bytes, sum(column.nbytes for column in columns))
                raise no_room_for(f"a row of {self.spec.names[arrival.driver]}", size, self.budget)
            count //= 2

    def _allow_widest(self, number: int, widest: int) -> bool:
        """Let the buffers hold the widest row of each input, should it be wider than what was set aside for them."""
        allowed = min(self.sizing.page_bytes, self.sizing.output_bytes // len(self.inputs))
        grown = _ROWS_BUFFERED * (max(widest, allowed) - max(self.combinations.widest[number], allowed))
        if grown > 0 and not self.secure(lambda: self.buffers.try_grow(grown)):
            return False
        self.combinations.widest[number] = max(widest, self.combinations.widest[number])
        return True

    def secure(self, claim: Callable[[], bool]) -> bool:
        """Make room until a claim succeeds; False if it does not with nothing left in memory."""
        while not claim():
            # A claim that fails half-way leaves free memory reserved: give all of that back, and ask again.
            for table in self.tables:
                table.trim(self.budget.total)
            if claim():
                break
            if not self._flush():
                return False
        return True

    # --- what the operators differ in ---

    @abstractmethod
    def _flush(self) -> bool:
        """Move something out of memory; False if nothing is left to move."""

    @abstractmethod
    def _can_react(self) -> bool:
        """Whether there is reactive work."""

    @abstractmethod
    def _reactive_task(self) -> DrivenTask | None:
        """The next reactive work; None if there is none."""

    @abstractmethod
    def _give_way(self, task: DrivenTask) -> None:
        """Rows have arrived: end the reactive task, or let it end at the next boundary."""

    @abstractmethod
    def _clean_up_task(self) -> DrivenTask | None:
        """The next work after all inputs have ended; None when all is done."""

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        """The state as of now; writes the rows that arrived since the last one."""
        segments = [name for disk in self.disks for name in disk.segments]
        return self.saver.save(segments, {"runs": [disk.to_state() for disk in self.disks], **self._own_state()})

    @classmethod
    def restore(cls, spec: MultiSpec, snapshot: Snapshot, memory: int, store: Store, **options: Any) -> Self:
        """An operator that goes on where the snapshot was taken."""
        check_snapshot(cls.name, spec.fingerprint, snapshot, memory)
        # With more memory there would be other partitions than the rows were spilled by: go on with as much as before.
        join = cls(spec, snapshot.state["memory"], store, **options)
        join._load(snapshot)
        return join

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """The state that only this operator has."""

    @abstractmethod
    def _load_own(self, state: dict[str, Any]) -> None:
        """Take over the state that only this operator has."""

    @abstractmethod
    def _load_task(self, state: dict[str, Any]) -> DrivenTask:
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
            "widest": list(self.combinations.widest),
            "order": self.order.to_state(),
            "task": None if self._task is None else self._task.to_state(),
        }

    def still_in_memory(self, number: int, parts: Int32, ticks: Int64) -> Bool:
        """Which rows, by their partitions and arrivals, have not left memory since a snapshot wrote them."""
        stayed: Bool = ticks > self.gone[number][parts]
        return stayed

    def waiting(self, number: int) -> list[Received]:
        """One input's rows that were received and are not in memory yet, the slice at hand first."""
        waiting = self._intakes[number].waiting()
        if isinstance(self._task, Arrival) and self._task.driver == number:
            waiting.insert(0, self._task.unfinished())
        return waiting

    @property
    def _room_to_restore(self) -> int:
        """Bytes that rows never get: brought back in other portions, they may need a little more than they had."""
        return max(_LEAST_ROOM_TO_RESTORE, self.budget.total // 64)

    def _load(self, snapshot: Snapshot) -> None:
        self._restoring.clear()
        state: dict[str, Any] = dict(snapshot.state)
        self.clock = state["clock"]
        self._ended, self._closed = list(state["ended"]), list(state["closed"])
        self._stalled, self._must_poll, self._done = state["stalled"], state["must_poll"], state["done"]
        self.gone = np.array(state["gone"], np.int64)
        self.order.load(state["order"])
        for number, widest in enumerate(state["widest"]):
            self._allow_widest(number, widest)
        for disk, runs in zip(self.disks, state["runs"], strict=True):
            disk.load(runs)
        self._load_own(state)
        self.saver.load(snapshot)
        for table in self.tables:
            table.sort_indexes()
        self._load_waiting(snapshot, state)
        if self.budget.free >= self._room_to_restore:
            self._restoring.set_aside(self._room_to_restore)

    def _load_waiting(self, snapshot: Snapshot, state: dict[str, Any]) -> None:
        waiting = self.saver.load_waiting(snapshot)
        for intake, numbered in zip(self._intakes, state["numbered"], strict=True):
            intake.numbered = numbered
        task = state["task"]
        if task is not None and task["kind"] == "arrival":
            at_hand = waiting[task["input"]].pop(0)
            assert at_hand.numbers is not None
            arrival = self._resumed_arrival(task, at_hand.batch, at_hand.numbers)
            arrival.resume(task)
            self._task = arrival
        elif task is not None:
            self._task = self._load_task(task)
        for intake, batches in zip(self._intakes, waiting, strict=True):
            for received in batches:
                intake.resume(received)

    def _resumed_arrival(self, state: dict[str, Any], batch: pa.RecordBatch, numbers: Int64) -> Arrival:
        return Arrival(self, state["input"], batch, numbers)
