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
from watersmeet.core.errors import BudgetError, ProtocolError, SpecError
from watersmeet.core.events import Arrive, End, Event, Stall, Status, Step
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.operator import Snapshot
from watersmeet.joins.pipeline import Pipeline, Scope
from watersmeet.joins.snapshots import Saver, check_snapshot
from watersmeet.memory import Budget, format_bytes
from watersmeet.policies import probing
from watersmeet.policies.probing import ProbingOrder
from watersmeet.spill.store import Store
from watersmeet.state.attributes import AttributeCodec
from watersmeet.state.combinations import BATCH, TABLE, CombinationBuffer, InputRows, ManyTable, Passing, places
from watersmeet.state.intake import Intake, Received
from watersmeet.state.many_runs import ManyRuns
from watersmeet.state.many_side import INDEX_BYTES, ManySide
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


class DrivenTask(ABC):
    """Rows of one input that go through the others; combinations emitted before are left out."""

    def __init__(self, join: MultiwayJoin, driver: int) -> None:
        self.join = join
        self.driver = driver
        self.pipeline: Pipeline | None = None
        self.steps: list[probing.Step] = []
        self._handed = 0
        self._skip = 0

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether all combinations were found."""

    @abstractmethod
    def begin(self, fuel: int) -> None:
        """Start with the next rows."""

    @abstractmethod
    def finish(self) -> None:
        """All combinations were handed out: settle what the task has achieved."""

    @abstractmethod
    def to_state(self) -> dict[str, Any]:
        """The task for a snapshot."""

    def fresh(self, ids: Int64) -> Bool | None:
        """Which combinations have not been emitted; None: none has."""
        return None

    def note(self, ids: Int64) -> None:  # noqa: B027  most tasks take no note
        """These combinations are about to be handed out."""

    def start(self, rows: Int64, scope: Scope) -> None:
        """Send rows through the other inputs."""
        join = self.join
        self.steps = self.steps or join.order.of(self.driver)
        self.pipeline = Pipeline(
            join.codec, join.inputs, self.driver, rows, self.steps, scope, join.sizing.combinations
        )  # fmt: skip
        self._handed = 0

    def work(self, fuel: int) -> int:
        """Fill the empty buffer; returns the fuel that took."""
        if self.pipeline is None or self.pipeline.done:
            self.begin(fuel)
            return 1
        used = self.pipeline.work(self.join.meter, self.join.order)
        self.hand_over()
        return used

    def hand_over(self) -> None:
        """Put what was found into the empty buffer."""
        assert self.pipeline is not None
        ids = self.pipeline.found
        if ids.shape[1]:
            fresh = self.fresh(ids)
            if fresh is not None:
                ids = ids[:, fresh]
            passed = min(self._skip, ids.shape[1])
            self._skip -= passed
            self.note(ids[:, passed:])
            self.join.combinations.fill(ids[:, passed:])
            self._handed += ids.shape[1]

    def place(self) -> dict[str, Any]:
        """How far the rows at hand are: their look-ups, and combinations handed out."""
        steps = [[step.input, step.edge, step.side, [list(end) for end in step.closing]] for step in self.steps]
        return {"steps": steps, "handed": self._handed - self.join.combinations.waiting + self._skip}

    def go_to(self, place: dict[str, Any]) -> None:
        """Prepare to go on at a place: what was handed out then is found again and left out."""
        self.steps = [
            probing.Step(number, edge, side, tuple((e, s) for e, s in closing))
            for number, edge, side, closing in place["steps"]
        ]
        self._skip = place["handed"]


class Arrival(DrivenTask):
    """A batch on its way into memory, slice by slice: each as large as the room and the fuel allow."""

    def __init__(self, join: MultiwayJoin, driver: int, batch: pa.RecordBatch, numbers: Int64) -> None:
        super().__init__(join, driver)
        plan = join.plans[driver]
        hashes, valid = join.codec.hash(driver, plan.key_arrays(batch))
        columns = plan.store(batch, numbers)
        positions = None
        if valid is not None:  # NULL matches nothing: such rows end here
            positions = np.flatnonzero(valid)
            hashes = [each[positions] for each in hashes]
            columns = [column.take(pa.array(positions)) for column in columns]
        self.next = 0
        self.kept = False
        self._slice = 0
        self._hashes = hashes
        self._parts = join.tables[driver].parts_of(hashes[0])
        self._columns = [*columns, *(pa.array(each) for each in hashes[1:])]
        self._received = (batch, numbers, positions)
        self.widest = plan.widest(columns)
        join.meter.hashes += batch.num_rows * len(hashes)

    @property
    def done(self) -> bool:
        """Whether the last slice was looked up."""
        return self.next == len(self._hashes[0]) and (self.pipeline is None or self.pipeline.done)

    def begin(self, fuel: int) -> None:
        """Take the next slice into memory and begin to look it up."""
        join = self.join
        if self.next == len(self._hashes[0]):
            return
        self.steps = []
        count = min(fuel, len(self._hashes[0]) - self.next, join.sizing.combinations)
        self.kept = join.must_keep(self.driver)
        count = join.admit(self, count)
        if not self.kept and join.must_keep(self.driver):
            # Making room brought rows of the others to disk, which these rows must now wait for.
            self.kept = True
            count = join.admit(self, count)
        hashes, parts, columns = self.piece(count)
        ticks = join.ticks(count)
        self.next += count
        self._slice = count
        if self.kept:
            rows = join.tables[self.driver].append(hashes[0], parts, columns, ticks)
            join.meter.inserts += count
            self.start(places(TABLE, rows), Scope.memory(len(join.inputs)))
        else:
            self._pass_by(hashes, columns, ticks)

    def _pass_by(self, hashes: list[Int64], columns: list[pa.Array], ticks: Int64) -> None:
        join = self.join
        join.inputs[self.driver].batch = Passing(columns, hashes, ticks)
        self.start(places(BATCH, np.arange(len(ticks), dtype=np.int32)), Scope.memory(len(join.inputs)))

    def piece(self, count: int) -> tuple[list[Int64], Int32, list[pa.Array]]:
        """Hashes, partitions and columns of the next rows."""
        stop = self.next + count
        return (
            [each[self.next : stop] for each in self._hashes],
            self._parts[self.next : stop],
            [column.slice(self.next, count) for column in self._columns],
        )

    def note(self, ids: Int64) -> None:
        """Let the operator count what its rows in memory are good for."""
        self.join.note_results(ids)

    def finish(self) -> None:
        """Nothing is left to settle."""

    def to_state(self) -> dict[str, Any]:
        """The slice at hand."""
        return {"kind": "arrival", "input": self.driver, "rows": self._slice, "kept": self.kept, "place": self.place()}

    def unfinished(self) -> Received:
        """The rows that a snapshot must carry: those not in memory yet, and with them the slice at hand."""
        start = self.next - self._slice
        batch, numbers, positions = self._received
        if positions is not None:
            start = int(positions[start]) if start < len(positions) else batch.num_rows
        return Received(batch, numbers, start)

    def resume(self, state: dict[str, Any]) -> None:
        """Go on with a slice that was at hand when a snapshot was taken; this batch begins with its rows."""
        if not state["rows"]:
            return
        self._slice, self.kept = state["rows"], state["kept"]
        hashes, _, columns = self.piece(self._slice)
        self.next = self._slice
        self.go_to(state["place"])
        # Kept or not: the rows' own table is not looked up, so that they may as well lie in the batch.
        self._pass_by(hashes, columns, np.zeros(self._slice, np.int64))


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
        self.plans = _plans(spec, self.codec)
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
        return ManySizing.least(cls._row_bytes(spec, _plans(spec, cls._make_codec(spec))))

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
    def _row_bytes(cls, spec: MultiSpec, plans: Sequence[RowPlan]) -> list[int]:
        return [
            row_bytes([*plan.types, *[pa.int64()] * (len(attributes) - 1)]) + INDEX_BYTES * (len(attributes) - 1)
            for plan, attributes in zip(plans, spec.attributes, strict=True)
        ]

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
        elif self._arrivals_wait and not isinstance(self._task, Arrival):
            self._give_way(self._task)
            if self.combinations.waiting:
                return 1
            if self._task is None:
                self._task = self._next_task()
        return self._task.work(fuel) if self._task is not None else 0

    @property
    def _arrivals_wait(self) -> bool:
        return any(intake.rows for intake in self._intakes)

    def _next_task(self) -> DrivenTask | None:
        for number, intake in enumerate(self._intakes):
            if intake.rows:
                return Arrival(self, number, *intake.next())
            self._closed[number] = self._ended[number]
        if all(self._closed):
            task = self._clean_up_task()
            self._done = task is None
            return task
        return self._reactive_task() if self._stalled else None

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
                size = sum(column.nbytes for column in columns)
                raise BudgetError(
                    f"a row of {self.spec.names[arrival.driver]} takes {format_bytes(size)}, for which "
                    f"{format_bytes(self.budget.total)} of memory are too little; allow more memory"
                )
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
        task = state["task"]
        if task is not None and task["kind"] == "arrival":
            at_hand = waiting[task["input"]].pop(0)
            assert at_hand.numbers is not None
            arrival = Arrival(self, task["input"], at_hand.batch, at_hand.numbers)
            arrival.resume(task)
            self._task = arrival
        elif task is not None:
            self._task = self._load_task(task)
        for number, batches in enumerate(waiting):
            self._intakes[number].numbered = state["numbered"][number]
            for received in batches:
                self._intakes[number].resume(received)


def _plans(spec: MultiSpec, codec: AttributeCodec) -> tuple[RowPlan, ...]:
    inexact = {
        edge.input(side) for edge, exact in zip(spec.edges, codec.exact, strict=True) if not exact for side in (0, 1)
    }
    return tuple(RowPlan(spec, i, i not in inexact) for i in range(len(spec.names)))
