"""What window joins of two endless streams share: times, arrivals in the order in which they came, and expiry.

```
receive ──▶ intake ──▶ arrival: time and floor, keep the row, look it up among the other side's ──▶ pairs
                         │ no room                                             rows in its window
                         ▼
                       expired rows go; then it is the operator's own choice
```

Whether two rows meet is told by their times (`core.windows`); a row that comes late meets what has not expired. Rows
are worked off in the order in which they were received, those of both inputs together: "before" has one meaning.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.delays import Delays
from watersmeet.core.errors import BudgetError, LateRowError, SpecError
from watersmeet.core.kinds import refuse_kind
from watersmeet.core.promises import Punctuation
from watersmeet.core.protocol import Event, Punctuate, Step
from watersmeet.core.report import Report, WindowFigures
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import FAR, WindowJoinSpec
from watersmeet.engine.arrival import Arrival, Task
from watersmeet.engine.shell import Arriving
from watersmeet.engine.silence import Silence
from watersmeet.engine.sizing import Grain, Sizing
from watersmeet.engine.two_way import ProgressiveJoin
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.matching.lookup import Index, Lookup
from watersmeet.memory import format_bytes
from watersmeet.records.intake import Order
from watersmeet.records.keys import KeyCodec
from watersmeet.records.times import NEVER, Timing, WindowCodec, WindowPlan
from watersmeet.spill.store import Store
from watersmeet.tables.hash_table import Probe, row_bytes

ALWAYS = 4 * FAR - 1
"""Later than any time."""


class TimedLookup(Lookup):
    """Rows that have just arrived, looked up in memory; takes note of how long their pairs waited."""

    def __init__(
        self,
        probe: Probe,
        table: Index,
        between: Between,
        join: WindowJoin,
        fresh: Callable[[Int32, Int32], Bool] | None = None,
        partners: Int64 | None = None,
    ) -> None:
        super().__init__(probe, table, between, fresh, partners)
        self._join = join
        self._began = join.now

    def work(self, pairs: PairBuffer, fuel: int, meter: Any) -> int:
        """Fill the empty buffer with pairs; returns the fuel that took."""
        used = super().work(pairs, fuel, meter)
        if pairs.count:
            self._join.delays.add_same(self._join.now - self._began, pairs.count)
        return used


class WindowArrival(Arrival):
    """A batch on its way into memory, each row with its time and its floor."""

    def __init__(
        self, join: WindowJoin, side: int, batch: pa.RecordBatch, numbers: Int64, newest: int, others: int
    ) -> None:
        hashes, valid = join.codec.hash(side, join.plans[side].key_arrays(batch))
        timed = join.timing.read(side, batch, numbers, newest, others)
        for fit in (timed.known, None if timed.late is None or join.window.late == "keep" else ~timed.late):
            valid = fit if valid is None else valid if fit is None else valid & fit
        moments = [pa.array(timed.times), pa.array(timed.floors)]
        Arriving.__init__(self, join, side, batch, numbers, [hashes], valid, moments)
        self.lookup: Lookup | None = None
        self.timed = timed
        self._reached = timed.newest if self.positions is None else timed.newest[self.positions]
        self._others = others
        self._window_join = self._join = join

    def work(self, fuel: int) -> int:
        """Go on with the slice at hand, or with the next, if there is room for it."""
        join = self._window_join
        if self.lookup is None or self.lookup.done:
            if self.next == self.rows:
                return 1
            count = min(fuel, self.rows - self.next)
            self.kept = join.must_keep(self.input)
            count = join.admit(self, count)
            if count and not self.kept and join.must_keep(self.input):
                self.kept = True
                count = join.admit(self, count)
            if not count:
                return 1
            self.take_slice(count)
        assert self.lookup is not None
        return self.lookup.work(join.pairs, fuel, join.meter)

    def take_slice(self, count: int) -> None:
        """Move the next rows into memory, and let their times count."""
        super().take_slice(count)
        join = self._window_join
        join.newest[self.input] = int(self._reached[self.next - 1])
        join.slice_taken(self.input)

    def finish(self) -> None:
        """The times of rows that match nothing count, too."""
        if len(self.timed.newest):
            self._window_join.newest[self.input] = int(self.timed.newest[-1])
        self._window_join.arrival_done(self.input)

    def to_state(self) -> dict[str, Any]:
        """The slice at hand, and what was known before it."""
        newest = self.newest_before(self.unfinished().start)
        return {**super().to_state(), "newest": newest, "others": self._others}

    def newest_before(self, row: int) -> int:
        """The newest time of the input before a row of the batch."""
        return int(self.timed.newest[row - 1]) if row else self.timed.before


class WindowJoin(ProgressiveJoin):
    """The frame of an operator for two endless streams."""

    joins_ranges: ClassVar[bool] = True
    emits: ClassVar[tuple[str, ...]] = ("early",)
    """When results can come."""
    needs_keys: ClassVar[bool] = True
    """Whether rows are found by equal values alone."""
    spec: WindowJoinSpec
    plans: tuple[WindowPlan, WindowPlan]
    takes_punctuations: ClassVar[bool] = True
    settles_in_silence: ClassVar[bool] = True
    """Whether all pairs of the rows so far are found by the end of a silence."""

    def __init__(self, spec: WindowJoinSpec, memory: int, store: Store, grain: Grain | None = None) -> None:
        super().__init__(spec, memory, store, grain)
        self.window = spec.window
        self.timing = Timing(spec)
        nothing = -1 if spec.counted else NEVER
        self.newest = [nothing, nothing]
        """Each input's newest time (or last row's number) so far."""
        self.late = [0, 0]
        """How many rows of each input came too late."""
        self.events: Counter[str] = Counter()
        """What happened how often: dumps, scans, expired blocks and the like."""
        self._order = Order()
        self._told = [False, False]
        """Which inputs have said something that is no row since the last poll."""
        self.now = 0.0
        """The time of the poll at hand."""
        self.delayed = 0
        """Rows that met the last of what they had to meet later than the length of their own window after they came;
        0 if that length is not known in seconds."""
        self.silence = None if spec.window.idle is None else Silence(spec.window.idle)
        """Which inputs have fallen silent; None: that makes no difference."""
        self.delays = Delays()
        """Of each result, the seconds from the first poll after its later row came until it was found."""

    def poll(self, now: float, fuel: int) -> Step:
        """Work a little, and hand out at most one batch."""
        self.now = now
        if self.silence is not None and not self._must_poll:
            speaks = [bool(intake.rows) or told for intake, told in zip(self._intakes, self._told, strict=True)]
            if any(self._let_follow(self.silence.listen(now, speaks))):
                self.expire()
        self._told = [False, False]
        return super().poll(now, fuel)

    def wake_at(self) -> float | None:
        """When an input that says nothing will no longer hold back the other."""
        return None if self.silence is None else self.silence.wake_at(self._ended)

    def _let_follow(self, overtaken: Sequence[bool]) -> list[bool]:
        """An input that was overtaken has come as far as the other; returns which have come further than before."""
        before = list(self.newest)
        for side in (0, 1):
            if overtaken[side]:
                self.newest[side] = max(before)
        followed = [now > then for now, then in zip(self.newest, before, strict=True)]
        self.events["overtaken"] += any(followed)
        return followed

    def receive(self, event: Event) -> None:
        """Take note of an event; a promise that no more rows up to a time come says how far an input has come."""
        if not isinstance(event, Punctuate):
            super().receive(event)
            return
        self._check_open(event.input)
        reached = self.timing.told_by(event.input, Punctuation(event.pattern).pattern)
        if reached is not None:
            self._order.tell(event.input, reached)
        self._told[event.input] = True

    @property
    def window_rows(self) -> int:
        """How many rows are remembered, in memory and on disk."""
        return sum(table.rows for table in self.tables)

    def report(self) -> Report:
        return Report(window=self._figures(self.delays))

    def _figures(self, delays: Delays) -> WindowFigures:
        reached, dated = self.timing.reached(self.newest), self.spec.tick is not None
        waited = delays.median_and_p99()
        return WindowFigures(tuple(self.late), self.window_rows, waited, self.delayed, reached, dated)

    @classmethod
    def _least_for_rows(cls, spec: JoinSpec) -> int:
        codec = WindowCodec(spec)
        return Sizing.least([row_bytes(WindowPlan(spec, side, codec).types) for side in (0, 1)])

    @classmethod
    def refuse_unfit(cls, spec: JoinSpec) -> None:
        """An error if the spec has no windows, or rows no keys."""
        if not isinstance(spec, WindowJoinSpec):
            raise SpecError(f"{cls.name} joins endless inputs by windows; use wm.window_join, or another algorithm")
        if cls.needs_keys and not spec.equalities:
            raise SpecError(
                f"{cls.name} finds rows by equal values, and the join asks for none; name a column in on=, or take "
                f"algorithm='confluence'"
            )
        if spec.window.emit not in cls.emits:
            raise SpecError(
                f"{cls.name} hands out results as it finds them, and cannot do emit={spec.window.emit!r}; take "
                f"algorithm='confluence', or leave emit= out"
            )
        refuse_kind(spec.kind, cls.name, cls.kinds)

    def _make_codec(self) -> KeyCodec:
        return WindowCodec(self.spec)

    def _make_plans(self) -> tuple[WindowPlan, WindowPlan]:
        assert isinstance(self.codec, WindowCodec)
        return WindowPlan(self.spec, 0, self.codec), WindowPlan(self.spec, 1, self.codec)

    # --- arrivals, in their order ---

    def _receive_batch(self, side: int, batch: pa.RecordBatch) -> None:
        super()._receive_batch(side, batch)
        self._order.add(side, batch.num_rows)

    def _next_arrival(self) -> Task | None:
        for side, intake in enumerate(self._intakes):
            if not intake.rows:
                self._close_if_ended(side)
        told = self._order.next_told()
        while told is not None:
            side, time = told
            self.newest[side] = max(self.newest[side], time)
            self.arrival_done(side)
            told = self._order.next_told()
        return self._arrival(*self._order.next(self._intakes)) if self._order else None

    def _arrival(self, side: int, batch: pa.RecordBatch, numbers: Int64) -> WindowArrival:
        others = self._intakes[1 - side].numbered
        arrival = WindowArrival(self, side, batch, numbers, self.newest[side], others)
        late = arrival.timed.late
        if late is not None:
            if self.window.late == "error":
                row = int(numbers[np.flatnonzero(late)[0]])
                raise LateRowError(
                    f"row {row:,} of {self.spec.names[side]} comes later than lateness={self.window.lateness!r} "
                    f"allows; allow more, or say late='keep' or late='drop'"
                )
            self.late[side] += int(late.sum())
        return arrival

    def _take_back(self, arrival: Arrival) -> None:
        """The rest of an arrival goes back to where it came from, as if it had never been looked at."""
        assert isinstance(arrival, WindowArrival)
        side, (batch, numbers) = arrival.input, arrival.rest()
        self._intakes[side].put_back(batch, numbers)
        self._order.put_back(side, batch.num_rows)
        start = arrival.batch.num_rows - batch.num_rows
        self.newest[side] = arrival.newest_before(start)
        if arrival.timed.late is not None:
            self.late[side] -= int(arrival.timed.late[start:].sum())

    def _resumed_arrival(self, state: dict[str, Any], batch: pa.RecordBatch, numbers: Int64) -> WindowArrival:
        return WindowArrival(self, state["input"], batch, numbers, state["newest"], state["others"])

    def admit(self, arrival: Arrival, count: int) -> int:
        """Make room for the next rows of an arrival; returns for how many, 0 if other work must come first."""
        while count and not self._has_room_for(arrival, count):
            count //= 2
        if not count and not self._must_wait():
            raise BudgetError(self._why_no_room(arrival))
        return count

    def _why_no_room(self, arrival: Arrival) -> str:
        size = sum(column.nbytes for column in arrival.piece(1)[2])
        return (
            f"a row of {self.spec.names[arrival.input]} takes {format_bytes(size)}, for which "
            f"{format_bytes(self.budget.total)} of memory are too little; allow more memory"
        )

    def _must_wait(self) -> bool:
        """Whether work that comes before the arrival at hand may make room; then it was begun."""
        return False

    def slice_taken(self, side: int) -> None:
        """Rows of an input were taken into memory, and are about to be looked up."""

    def arrival_done(self, side: int) -> None:
        """A batch has been worked off: what has expired goes."""
        if self.silence is not None:
            self._let_follow(self.silence.overtaken)
        self.expire()

    # --- expiry ---

    def advance(self, newest: Sequence[int]) -> None:
        """Learn, between two batches, that the inputs have reached these times in rows that came to other operators."""
        assert not self._arrivals_wait, "rows that have come before are judged by what was known then"
        self.newest = [max(pair) for pair in zip(self.newest, newest, strict=True)]
        self.expire()

    @property
    def due(self) -> int | None:
        """When all inputs have passed this time, results come that wait for it; None if there are none."""
        return None

    def put_away(self) -> None:
        """Between two batches, with no work left: rows may go to where a snapshot need not write them again."""

    def expired_before(self, side: int) -> int:
        """Rows of an input that are older than this meet nothing that is still to come."""
        if self._closed[1 - side]:
            return ALWAYS
        return self.timing.expired_before(side, self.newest[1 - side], self.newest[side] + 1)

    @abstractmethod
    def expire(self) -> bool:
        """Let go of rows that have expired; False if there are none that can go."""

    # --- snapshots ---

    def frame_state(self) -> dict[str, Any]:
        """The frame's own state."""
        return {
            **super().frame_state(),
            "newest": list(self.newest),
            "late": list(self.late),
            "order": self._order.to_state(),
            "told": list(self._told),
            "silence": None if self.silence is None else self.silence.to_state(),
        }

    def _load_all(self, snapshot: Any) -> None:
        state = snapshot.state
        self.newest, self.late = list(state["newest"]), list(state["late"])
        self._order.load(state["order"])
        self._told = list(state["told"])
        if self.silence is not None:
            self.silence.load(state["silence"])
        super()._load_all(snapshot)
