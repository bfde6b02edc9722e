"""The one shell of joins of streams: receiving, the order of work, room, output, snapshots.

```
receive ──▶ intake ──▶ arrival: keep the rows, look them up in the other inputs ──▶ what was found ──▶ poll's batch
                         │ no room
                         ▼
                       the operator's own choice
```

A paper says what to do when memory is full, when the inputs are silent, and when they have ended: see `Operator`. The
shell is that of two inputs; `engine.multiway` has what is different for several.

Its sections: what rows are kept in, the protocol, work (whose turn it is), room (what an arrival waits for), windows,
what the operators differ in, snapshots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.cost import Cost, Meter
from watersmeet.core.errors import BudgetError, ProtocolError, SnapshotError, SpecError
from watersmeet.core.kinds import refuse_kind
from watersmeet.core.promises import Punctuation
from watersmeet.core.protocol import Arrive, End, Event, Punctuate, Snapshot, Stall, Status, Step
from watersmeet.core.queries import QueriesSpec
from watersmeet.core.report import Report
from watersmeet.core.saved import load_state, saved_names, state_of
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.engine.arrival import Arrival, Arriving, Found, Task
from watersmeet.engine.phases import LATER, Phase, phase_of
from watersmeet.engine.sizing import Grain, Sizing
from watersmeet.engine.snapshot import Saver, check_snapshot
from watersmeet.engine.windows import ALWAYS, TimedArrival, Windows, refuse_unfit_windows
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.matching.lookup import Lookup
from watersmeet.memory import Budget, format_bytes, no_room_for
from watersmeet.records.intake import Intake, Order, Received
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import BatchRows, RowPlan, Rows
from watersmeet.records.times import WindowCodec, WindowPlan
from watersmeet.spill.store import Store
from watersmeet.tables.hash_table import Probe, SideTable, row_bytes

_LEAST_ROOM_TO_RESTORE = 2048
_FRAME = ("clock", "_ended", "_closed", "_stalled", "_must_poll", "_done", "gone", "windows")
"""What a snapshot says of every operator; the rest of the shell's state are rows and tasks."""


class Operator(ABC):
    """A join that takes rows of its inputs into memory, and moves them out when it is full.

    What a paper decides are the methods under "what the operators differ in". What its tasks and its parts may use is
    public: that is their context.
    """

    SAVED: ClassVar[tuple[str, ...]] = ()
    """Attributes and parts that are an operator's own state, see `core.saved`; those of its layer come first."""
    name: ClassVar[str]
    reason: str = ""
    """Why the planner chose it."""
    takes_punctuations: bool = False
    beyond: int = 0
    """Bytes of buffers that come on top of the budget; only where that is said in its documentation."""
    spills: ClassVar[bool] = True
    partitioned: ClassVar[bool] = True
    joins_ranges: ClassVar[bool] = False
    """Whether it takes a band among its conditions."""
    joins_points: ClassVar[bool] = False
    """Whether it joins points that are near each other."""
    kinds: ClassVar[tuple[str, ...]] = ("inner",)
    """What it can be asked for by `how`."""
    windowed: ClassVar[bool] = False
    """Whether its inputs are endless, and its rows meet within windows."""
    emits: ClassVar[tuple[str, ...]] = ("early",)
    """With windows: when results can come."""
    needs_keys: ClassVar[bool] = True
    """With windows: whether rows are found by equal values alone."""
    takes_queries: ClassVar[bool] = False
    """With windows: whether it is many joins in one, each with filters and a window of its own."""
    settles_in_silence: ClassVar[bool] = True
    """With windows: whether all pairs of the rows so far are found by the end of a silence."""
    rows_buffered: int = 3
    """How many rows of an input can be in buffers at once, each perhaps as wide as the widest."""

    spec: Any
    sizing: Sizing
    codec: Any
    plans: tuple[RowPlan, ...]
    tables: tuple[Any, ...]
    """Rows in memory, by input; whatever is in them has met all that was in the others when it came."""
    pairs: PairBuffer
    found: Found
    """What was found and not handed out; a task works only while it is empty."""
    windows: Windows | None
    """How far the inputs have come, where rows meet within windows; None: they all meet."""
    saver: Saver

    def __init__(self, spec: JoinSpec, memory: int, store: Store, grain: Grain | None = None) -> None:
        self.refuse_unfit(spec)
        self.refuse_too_little(spec, memory)
        self.spec = spec
        self.codec = self._make_codec()
        self.plans = self._make_plans()
        # Values that are close to each other may have any hashes: a band leaves nothing to divide rows by.
        partitioned = self.partitioned and not spec.asks_for_close
        widths = [row_bytes(plan.types) for plan in self.plans]
        self._set_up(self._divide(memory, widths, partitioned, grain), memory, store)
        self.tables = tuple(self._make_table(side) for side in (0, 1))
        self.found = self.pairs = self._make_pairs()
        self.saver = Saver(self)

    def _set_up(self, sizing: Any, memory: int, store: Store) -> None:
        """What comes before the tables, the buffer of what was found, and the saver."""
        spec = self.spec
        self.sizing = sizing
        self.store = store
        self.budget = self._make_budget(memory)
        """Bytes are reserved here before they are held."""
        self.buffers = self.budget.reservation("buffers")
        self.buffers.grow(sizing.buffers)
        self._restoring = self.budget.reservation("room to restore in")
        self._restoring.set_aside(self._room_to_restore)
        self.meter = Meter()
        """Work is counted here as it is done."""
        self.clock = 0
        """The last tick: one for each row kept, and one for whatever else must be told from what came before."""
        self.now = 0.0
        """The time of the poll at hand."""
        self.events: Counter[str] = Counter()
        """What happened how often: dumps, scans, expired blocks and the like."""
        inputs = range(len(spec.names))
        self.gone = np.zeros((len(inputs), sizing.layout.partitions), np.int64)
        """Rows of an input and partition that arrived up to this tick are no longer in memory."""
        self.windows = self._make_windows()
        self._intakes = tuple(Intake(sizing.input_bytes) for _ in inputs)
        self._order = Order() if self.windows is not None else None
        """In which rows of all inputs were received; None: it does not matter."""
        self._ended = [False for _ in inputs]
        self._closed = [False for _ in inputs]
        self._known_schemas = [spec.input(number) for number in inputs]
        self._stalled = False
        self._must_poll = False
        self._task: Any = None
        self._held_up: Any = None
        """An arrival that waits for the task at hand."""
        self._done = False
        self._last_phase = Phase.ARRIVING

    @classmethod
    def least_memory(cls, spec: Any, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        return cls._least_for_rows(spec)

    @classmethod
    def _least_for_rows(cls, spec: JoinSpec) -> int:
        return Sizing.least([row_bytes(plan.types) for plan in cls._plans_of(spec, cls._codec_of(spec))])

    @classmethod
    def refuse_unfit(cls, spec: JoinSpec) -> None:
        """An error if this join cannot carry out what the spec asks for."""
        refuse_kind(spec.kind, cls.name, cls.kinds)
        if spec.near is not None and not cls.joins_points:
            what = "a window join" if cls.windowed else cls.name
            raise SpecError(
                f"{what} does not join points that are near each other; use wm.join with algorithm='confluence', the "
                f"default"
            )
        if isinstance(spec, QueriesSpec) and not cls.takes_queries:
            raise SpecError(f"{cls.name} is one join, and not many queries in one; take algorithm='confluence'")
        if cls.windowed:
            refuse_unfit_windows(cls.name, spec, cls.needs_keys, cls.emits)
        elif spec.band is not None and not cls.joins_ranges:
            raise SpecError(
                f"{cls.name} joins on equal values only, and a band of {spec.band.left!r} asks for close ones; use "
                f"algorithm='confluence', 'diner' or 'pmj'"
            )

    @classmethod
    def refuse_too_little(cls, spec: Any, memory: int) -> None:
        """An error if so much memory is not enough."""
        least = cls.least_memory(spec)
        if memory < least:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for the {cls.name} join of these rows; allow at "
                f"least {format_bytes(least)}"
            )

    # --- what an operator may hold its rows in ---

    def _make_windows(self) -> Any:
        """How far the inputs have come, where rows meet within windows; None: they all meet."""
        return Windows(self.spec, self.events) if isinstance(self.spec, WindowJoinSpec) else None

    def _make_budget(self, memory: int) -> Budget:
        """What this operator may hold."""
        return Budget(memory)

    @classmethod
    def _codec_of(cls, spec: Any) -> Any:
        return WindowCodec(spec) if cls.windowed else KeyCodec(spec)

    @classmethod
    def _plans_of(cls, spec: Any, codec: Any) -> tuple[RowPlan, ...]:
        if isinstance(codec, WindowCodec):
            return WindowPlan(spec, 0, codec), WindowPlan(spec, 1, codec)
        return RowPlan(spec, 0, codec.exact), RowPlan(spec, 1, codec.exact)

    def _make_codec(self) -> Any:
        return self._codec_of(self.spec)

    def _make_plans(self) -> tuple[RowPlan, RowPlan]:
        left, right = self._plans_of(self.spec, self.codec)
        return left, right

    def _make_table(self, side: int) -> Any:
        return SideTable(self.plans[side].types, self.budget, self.sizing.layout, self.spec.names[side])

    def _divide(self, memory: int, widths: list[int], partitioned: bool, grain: Grain | None) -> Sizing:
        return Sizing.divide(memory, widths, partitioned, f"the {self.name} join", grain)

    def _make_pairs(self) -> PairBuffer:
        return PairBuffer(self.spec, self.codec, self.plans, self.sizing.pairs)

    def arrival_lookup(self, side: int, hashes: Int64, parts: Int32, columns: list[pa.Array], source: Rows) -> Lookup:
        """The look-up of rows that arrived on one side in the memory of the other."""
        other = self.tables[1 - side]
        return Lookup(Probe(hashes, parts), other, Between(side, source, other), partners=other.part_rows)

    def loose_rows(self, columns: list[pa.Array]) -> Rows:
        """Rows that are in no table, by their places among those that arrive."""
        return BatchRows(columns)

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
        elif isinstance(event, Punctuate) and self.windows is not None and self._order is not None:
            self._check_open(event.input)
            self.windows.note_promise(event.input, Punctuation(event.pattern).pattern, self._order)
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
        if self._order is not None:
            self._order.add(number, batch.num_rows)

    def _check_open(self, number: int) -> None:
        if self._ended[number]:
            raise ProtocolError(f"{self.spec.names[number]} has ended; nothing can follow")

    def poll(self, now: float, fuel: int) -> Step:
        """Work a little, and hand out at most one batch."""
        self.now = now
        if self.windows is not None:
            speaks = [bool(intake.rows) for intake in self._intakes]
            if self.windows.listen(now, speaks, in_between=not self._must_poll):
                self.expire()
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
        """Never, as all work follows events; but with windows, when a silent input is to hold nobody back any more."""
        return None if self.windows is None else self.windows.wake_at(self._ended)

    @property
    def patience(self) -> int:
        """Each row is wanted at once."""
        return 0

    @property
    def ahead(self) -> int | None:
        """No input is ahead of the others."""
        return None

    def report(self) -> Report:
        """Where its windows are, if there are any."""
        if self.windows is None:
            return Report()
        return Report(window=self.windows.figures(self.window_rows, self.windows.delays))

    @property
    def cost(self) -> Cost:
        """All work so far."""
        return self.meter.total()

    @property
    def phase(self) -> str:
        """Arriving, reactive, clean-up or done."""
        reacting = self._task is not None and self._held_up is None and not isinstance(self._task, Arriving)
        return phase_of(done=self._done, ended=all(self._closed) and self._held_up is None, reacting=reacting).value

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
        assert not isinstance(self.found, PairBuffer) or not self.found.waiting or self._task is not None
        phase = Phase(self.phase)
        assert phase in LATER[self._last_phase], f"from {self._last_phase.value} nothing leads to {phase.value}"
        self._last_phase = phase

    # --- work ---

    def _work(self, fuel: int) -> int:
        """One stretch of work with nothing found and not handed out; returns the fuel used, 0 if there is no work."""
        if self._held_up is not None and self._task is not None:
            if not self._task.done:
                return int(self._task.work(fuel))
            self._task.finish()
            self._task, self._held_up = self._held_up, None
        if self._task is not None and self._task.done:
            reactive = not isinstance(self._task, Arriving) and not all(self._closed)
            self._task.finish()
            self._task = None
            if reactive:
                return fuel  # the driver may have rows that wait for the end of the task
        if self._task is None:
            self._task = self._next_task()
        elif self._arrivals_wait and not isinstance(self._task, Arriving) and not self._is_urgent(self._task):
            return int(self._give_way(self._task))
        if self._task is None:
            return 0
        return 1 if self._put_off(self._task) else int(self._task.work(fuel))

    def _is_urgent(self, task: Any) -> bool:
        """Whether arrivals have to wait for the end of a task."""
        return False

    def _put_off(self, task: Any) -> bool:
        """Whether something else has to be done first, and the task was put aside for it."""
        return False

    def _hand_out(self) -> tuple[pa.RecordBatch | None, int, int]:
        """A batch of what was found, how many results these are, and the fuel that took."""
        out, count = self.pairs.take(self._task.lookup.between, self.sizing.output_bytes)
        return out, count, count

    @property
    def _arrivals_wait(self) -> bool:
        """Whether rows were received that nobody has looked at, or with windows what inputs told between them."""
        if self._order is not None:
            return bool(self._order)
        for intake in self._intakes:  # noqa: SIM110  asked at every step, where any() takes three times as long
            if intake.rows:
                return True
        return False

    def _next_task(self) -> Task | None:
        arrival = self._next_arrival()
        if arrival is not None:
            return arrival
        if all(self._closed):
            task = self._clean_up_task()
            self._done = task is None
            return task
        return self._reactive_task() if self._stalled else None

    def _next_arrival(self) -> Task | None:
        for number, intake in enumerate(self._intakes):
            if not intake.rows:
                self._close_if_ended(number)
            elif self._order is None:
                return self._arrival(number, *intake.next())
        while self._order is not None and (told := self._order.next_told()) is not None:
            if not self._heed(*told):
                self._order.tell_again(*told)
                return None
        return self._arrival(*self._order.next(self._intakes)) if self._order else None

    def _heed(self, number: int, time: int) -> bool:
        """An input has told, between its rows, how far it has come; False if that has to wait for other work."""
        self.timed.reach(number, time)
        self.arrival_done()
        return True

    def _close_if_ended(self, number: int) -> None:
        """No row of an input waits: if it has ended, this is all."""
        if self._ended[number] and not self._closed[number]:
            self._closed[number] = True
            self._input_closed(number)

    def _arrival(self, number: int, batch: pa.RecordBatch, numbers: Int64) -> Task | None:
        """The task of rows that arrive; None if they went back to where they came from, until there is room."""
        if self.windows is None:
            return Arrival(self, number, batch, numbers)
        return self.windows.arrival(self, number, batch, numbers, self._intakes[1 - number].numbered)

    def _take_back(self, arrival: Any) -> None:
        """The rest of an arrival goes back to where it came from, as if it had never been looked at."""
        number, (batch, numbers) = arrival.input, arrival.rest()
        self._intakes[number].put_back(batch, numbers)
        if self._order is not None:
            self._order.put_back(number, batch.num_rows)
        if self.windows is not None:
            self.windows.take_back(arrival, batch.num_rows)

    def _hold_up_for(self, task: Any) -> None:
        """Let the arrival at hand wait for a task."""
        self._task.lookup = None  # it is done; what a snapshot must know of is the rest of the batch
        self._held_up, self._task = self._task, task

    def _status(self) -> Status:
        if self.found.waiting or self._held_up is not None or self._arrivals_wait:
            return Status.HAS_OUTPUT
        if self._done:
            return Status.DONE
        if all(self._ended):
            return Status.HAS_OUTPUT
        if self.windows is not None and isinstance(self._task, Arriving):
            return Status.HAS_OUTPUT  # its last rows may have told the time, which counts when it ends
        if self._task is not None and not self._task.done:
            return Status.HAS_OUTPUT if isinstance(self._task, Arriving) else Status.HAS_WORK
        if self._ended != self._closed:
            return Status.HAS_WORK  # that an input has ended is yet to be acted upon
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
        """Make room for the next rows of an arrival; returns for how many, 0 if other work must come first."""
        while count and not self._has_room_for(arrival, count):
            count //= 2
        if not count and not self._must_wait():
            raise self._no_room_for(arrival)
        return count

    def _has_room_for(self, arrival: Arriving, count: int) -> bool:
        """Make room for the next rows of an arrival, if that can be."""
        _, parts, columns = arrival.slice_of(count)
        if not self._allow_widest(arrival.input, arrival.widest):
            return False
        table = self.tables[arrival.input]
        return not arrival.kept or self.secure(lambda: table.reserve(parts, columns))

    def _must_wait(self) -> bool:
        """Whether work that comes before the arrival at hand may make room; then it was begun."""
        return False

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

    # --- windows ---

    @property
    def timed(self) -> Windows:
        """The windows of an operator that has them."""
        assert self.windows is not None
        return self.windows

    @property
    def window_rows(self) -> int:
        """How many rows are remembered, in memory and on disk."""
        return sum(table.rows for table in self.tables)

    def expired_before(self, side: int) -> int:
        """Rows of an input that are older than this meet nothing that is still to come."""
        return ALWAYS if self._closed[1 - side] else self.timed.expired_before(side)

    def advance(self, newest: Sequence[int]) -> None:
        """Learn, between two batches, that the inputs have reached these times in rows that came to other operators."""
        assert not self._arrivals_wait, "rows that have come before are judged by what was known then"
        self.timed.advance(newest)
        self.expire()

    def arrival_done(self) -> None:
        """All times of a batch are known: what has expired goes."""
        self.timed.follow()
        self.expire()

    def expire(self) -> bool:
        """Let go of rows that have expired; False if there are none that can go."""
        return False

    @property
    def due(self) -> list[int | None] | None:
        """Times that something waits for: results until all inputs have passed one, and rows of either input until they
        have expired, when they come alone. None: nothing waits.
        """
        return None

    def put_away(self) -> None:  # noqa: B027  not everybody cares
        """Between two batches, with no work left: rows may go to where a snapshot need not write them again."""

    def slice_taken(self, side: int) -> None:  # noqa: B027  not everybody cares
        """Rows of an input were taken into memory, their times count, and they are about to be looked up."""

    # --- what the operators differ in ---

    @abstractmethod
    def must_keep(self, number: int) -> bool:
        """Whether a row that arrives on this input can still find partners later."""

    def rows_kept(self, side: int, parts: Int32) -> None:  # noqa: B027  not everybody cares
        """Rows of these partitions have arrived and are in memory now."""

    @abstractmethod
    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        """Move something out of memory, but no spared partition; False if nothing is left to move."""

    def _input_closed(self, number: int) -> None:  # noqa: B027  not everybody cares
        """All rows of an input have been worked off."""

    def _can_react(self) -> bool:
        """Whether there is reactive work."""
        return False

    def _reactive_task(self) -> Task | None:
        """The next reactive work; None if there is none."""
        return None

    def _give_way(self, task: Any) -> Any:
        """Rows have arrived: end the reactive task at the next boundary; returns the fuel that took."""
        raise AssertionError("there is no reactive work")

    def _clean_up_task(self) -> Task | None:
        """The next work after all inputs have ended; None when all is done."""
        return None

    def _own_state(self) -> Any:
        """The segments and the state that only this operator has."""
        return [], self.declared_state()

    def _load_own(self, state: dict[str, Any]) -> None:
        """Take over the state that only this operator has."""
        load_state(self, saved_names(type(self)), state)

    def _load_task(self, state: dict[str, Any]) -> Task:
        """The task that was at hand, if it is none of the shell's own."""
        raise SnapshotError(f"the snapshot has work of an unknown kind: {state['kind']!r}")

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        """The state as of now; writes the rows that arrived since the last one."""
        return self.saver.save(*self._own_state())

    @classmethod
    def restore(cls, spec: Any, snapshot: Snapshot, memory: int, store: Store, **options: Any) -> Self:
        """An operator that goes on where the snapshot was taken."""
        check_snapshot(cls.name, spec.fingerprint, snapshot, memory)
        join = cls(spec, memory, store, **options)
        if join.sizing.layout.partitions != len(snapshot.state["gone"][0]):
            # More memory would make more partitions than the rows were spilled by: go on with as much as before.
            join = cls(spec, snapshot.state["memory"], store, **options)
        join._load(snapshot)
        return join

    def declared_state(self) -> dict[str, Any]:
        """What the operator and its layer name as theirs."""
        return state_of(self, saved_names(type(self)))

    def frame_state(self) -> dict[str, Any]:
        """The shell's own state."""
        return {
            **state_of(self, _FRAME),
            "numbered": [intake.numbered for intake in self._intakes],
            "widest": list(self.found.widest),
            "task": None if self._task is None else self._task.to_state(),
            "held_up": None if self._held_up is None else self._held_up.to_state(),
            "received": None if self._order is None else self._order.to_state(),
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
        for arrival in (self._task, self._held_up):
            if isinstance(arrival, Arriving) and arrival.input == number:
                waiting.insert(0, arrival.unfinished())
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
        load_state(self, _FRAME, state)
        if self._order is not None:
            self._order.load(state["received"])
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
        if state["held_up"] is not None:
            self._held_up = self._arrival_at_hand(state["held_up"], waiting)
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

    def _resumed_arrival(self, state: dict[str, Any], batch: pa.RecordBatch, numbers: Int64) -> Any:
        """The task of rows that were arriving when a snapshot was taken."""
        if self.windows is None:
            return self._arrival(state["input"], batch, numbers)
        known = state["newest"], state["others"]
        return self._arrival_kind(state["input"])(self, self.windows, state["input"], batch, numbers, *known)

    def _arrival_kind(self, side: int) -> type[TimedArrival]:
        """How rows with times arrive on a side."""
        return TimedArrival
