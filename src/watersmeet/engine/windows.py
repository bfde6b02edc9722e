"""Windows of two endless streams, as a part of an operator: the times of rows, who is late, and what has expired.

Whether two rows meet is told by their times (`core.windows`); a row that comes late meets what has not expired. Rows
are worked off in the order in which they were received, those of both inputs together: "before" has one meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.delays import Delays
from watersmeet.core.errors import LateRowError, SpecError
from watersmeet.core.report import WindowFigures
from watersmeet.core.saved import Saved
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import FAR, WindowJoinSpec
from watersmeet.engine.arrival import Arrival
from watersmeet.engine.silence import Silence, followed
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.matching.lookup import Index, Lookup
from watersmeet.matching.range_lookup import RangeLookup
from watersmeet.records.intake import Order
from watersmeet.records.times import NEVER, Timing

if TYPE_CHECKING:
    from watersmeet.engine.shell import Operator

ALWAYS = 4 * FAR - 1
"""Later than any time."""


def refuse_unfit_windows(name: str, spec: JoinSpec, needs_keys: bool, emits: Sequence[str]) -> None:
    """An error if a join of this name cannot carry out what the spec asks for."""
    if not isinstance(spec, WindowJoinSpec):
        raise SpecError(f"{name} joins endless inputs by windows; use wm.window_join, or another algorithm")
    if needs_keys and not spec.equalities:
        raise SpecError(
            f"{name} finds rows by equal values, and the join asks for none; name a column in on=, or take "
            f"algorithm='confluence'"
        )
    if spec.window.emit not in emits:
        raise SpecError(
            f"{name} hands out results as it finds them, and cannot do emit={spec.window.emit!r}; take "
            f"algorithm='confluence', or leave emit= out"
        )


class Windows(Saved):
    """How far two inputs have come, and what that means for their rows."""

    SAVED: ClassVar[tuple[str, ...]] = ("newest", "late", "_told", "_silence")

    def __init__(self, spec: WindowJoinSpec, events: Counter[str]) -> None:
        self._spec = spec
        self._events = events
        self.window = spec.window
        self.timing = Timing(spec)
        nothing = -1 if spec.counted else NEVER
        self.newest = [nothing, nothing]
        """Each input's newest time (or last row's number) so far."""
        self.late = [0, 0]
        """How many rows of each input came too late."""
        self._silence = None if spec.window.idle is None else Silence(spec.window.idle)
        """Which inputs have fallen silent; None: that makes no difference."""
        self._told = [False, False]
        """Which inputs have said something that is no row since the last poll."""
        self.delayed = 0
        """Rows that met the last of what they had to meet later than the length of their own window after they came;
        0 if that length is not known in seconds."""
        self.delays = Delays()
        """Of each result, the seconds from the first poll after its later row came until it was found."""

    def arrival(
        self,
        join: Operator,
        side: int,
        batch: pa.RecordBatch,
        numbers: Int64,
        others: int,
        kind: type[TimedArrival] | None = None,
    ) -> TimedArrival:
        """The next rows of an input, after so many of the other; those that are late are counted."""
        arrival = (kind or TimedArrival)(join, self, side, batch, numbers, self.newest[side], others)
        late = arrival.timed.late
        if late is not None:
            if self.window.late == "error":
                row = 1 + int(numbers[np.flatnonzero(late)[0]])
                raise LateRowError(
                    f"row {row:,} of {self._spec.names[side]} comes later than lateness={self.window.lateness!r} "
                    f"allows; allow more, or say late='keep' or late='drop'"
                )
            self.late[side] += int(late.sum())
        return arrival

    def take_back(self, arrival: TimedArrival, rows: int) -> None:
        """The last so many rows of an arrival were never looked at."""
        side, start = arrival.input, arrival.batch.num_rows - rows
        self.newest[side] = arrival.newest_before(start)
        if arrival.timed.late is not None:
            self.late[side] -= int(arrival.timed.late[start:].sum())

    # --- how far the inputs have come ---

    def note_promise(self, side: int, pattern: Mapping[str, object], order: Order) -> None:
        """A promise that no more rows up to a time come says how far an input has come, after the rows so far."""
        reached = self.timing.told_by(side, pattern)
        if reached is not None:
            order.tell(side, reached)
        self._told[side] = True

    def reach(self, side: int, time: int) -> None:
        """An input has told that it has come so far."""
        self.newest[side] = max(self.newest[side], time)

    def listen(self, now: float, speaks: Sequence[bool], in_between: bool) -> bool:
        """A poll begins, with rows of these inputs; `in_between`: all that came before was worked off. Whether an input
        was overtaken, and so has come further.
        """
        told, self._told = self._told, [False, False]
        if self._silence is None or not in_between:
            return False
        return self._let_follow(self._silence.listen(now, [any(pair) for pair in zip(speaks, told, strict=True)]))

    def follow(self) -> None:
        """Those that are overtaken come as far as the other has come."""
        if self._silence is not None:
            self._let_follow(self._silence.overtaken)

    def _let_follow(self, overtaken: Sequence[bool]) -> bool:
        before, self.newest = self.newest, followed(self.newest, overtaken)
        further = before != self.newest
        self._events["overtaken"] += further
        return further

    def wake_at(self, ended: Sequence[bool]) -> float | None:
        """When an input that says nothing will no longer hold back the other."""
        return None if self._silence is None else self._silence.wake_at(ended)

    def advance(self, newest: Sequence[int]) -> None:
        """The inputs have reached these times."""
        self.newest = [max(pair) for pair in zip(self.newest, newest, strict=True)]

    def expired_before(self, side: int) -> int:
        """Rows of an input that are older than this meet nothing that is still to come of the other."""
        return self.timing.expired_before(side, self.newest[1 - side], self.newest[side] + 1)

    def figures(self, rows: int, delays: Delays) -> WindowFigures:
        """For people; so many rows are remembered, and results took so long."""
        reached, dated = self.timing.reached(self.newest), self._spec.tick is not None
        return WindowFigures(tuple(self.late), rows, delays.median_and_p99(), self.delayed, reached, dated)


class TimedArrival(Arrival):
    """A batch on its way into memory, each row with its time and its floor."""

    def __init__(
        self,
        join: Operator,
        windows: Windows,
        side: int,
        batch: pa.RecordBatch,
        numbers: Int64,
        newest: int,
        others: int,
    ) -> None:
        self.timed = timed = windows.timing.read(side, batch, numbers, newest, others)
        taken = timed.known
        self.dropped = None if windows.window.late == "keep" else timed.late
        """Which rows are ignored because they came too late; None: none."""
        if self.dropped is not None:
            taken = ~self.dropped if taken is None else taken & ~self.dropped
        moments, taken = self.moments(join, side, batch, taken)
        super().__init__(join, side, batch, numbers, moments, taken)
        self._windows = windows
        self._reached = timed.newest if self.positions is None else timed.newest[self.positions]
        self._others = others

    def moments(
        self, join: Any, side: int, batch: pa.RecordBatch, taken: Bool | None
    ) -> tuple[list[pa.Array], Bool | None]:
        """What is stored before the columns of rows, and which rows are taken (None: all)."""
        return [pa.array(self.timed.times), pa.array(self.timed.floors)], taken

    def take_slice(self, count: int) -> None:
        """Move the next rows into memory, and let their times count."""
        super().take_slice(count)
        self._windows.newest[self.input] = int(self._reached[self.next - 1])
        self._join.slice_taken(self.input)

    def finish(self) -> None:
        """The times of rows that match nothing count, too; then what has expired goes."""
        if len(self.timed.newest):
            self._windows.newest[self.input] = int(self.timed.newest[-1])
        self._join.arrival_done()

    def to_state(self) -> dict[str, Any]:
        """The slice at hand, and what was known before it."""
        newest = self.newest_before(self.unfinished().start)
        return {**super().to_state(), "newest": newest, "others": self._others}

    def newest_before(self, row: int) -> int:
        """The newest time of the input before a row of the batch."""
        return int(self.timed.newest[row - 1]) if row else self.timed.before


class TimedLookup(Lookup):
    """Rows that have just arrived, looked up in memory; takes note of how long their pairs waited."""

    def __init__(
        self,
        probe: Any,
        table: Index,
        between: Between,
        join: Operator,
        fresh: Callable[[Int32, Int32], Bool] | None = None,
        **more: Any,
    ) -> None:
        """`more` is what a look-up that takes no such note may be told."""
        super().__init__(probe, table, between, fresh, **more)
        self._join = join
        self._delays = join.timed.delays
        self._began = join.now

    def work(self, pairs: PairBuffer, fuel: int, meter: Any) -> int:
        """Fill the empty buffer with pairs; returns the fuel that took."""
        used = super().work(pairs, fuel, meter)
        if pairs.count:
            self._delays.add_same(self._join.now - self._began, pairs.count)
        return used


class TimedRangeLookup(TimedLookup, RangeLookup):
    """The same by ranges, in sorted memory."""
