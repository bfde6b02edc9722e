"""Windows of several endless streams, as a part of an operator: the moments of rows, who is late, what has expired.

It is for several inputs what `engine.windows` is for two, and the shell asks both the same. Which combinations are
results is told in `core.many_windows`, and how that is found out in `matching.multi_windows`. Rows are worked off in
the order in which they were received, those of all inputs together. Rows, and silences (`engine.silence`), tell how far
an input has come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.delays import Delays
from watersmeet.core.errors import ProtocolError
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.report import WindowFigures
from watersmeet.core.saved import Saved
from watersmeet.engine.multi_arrival import Arrival
from watersmeet.engine.silence import Silence, followed
from watersmeet.matching.multi_windows import Moments, WindowClock, WindowFilter
from watersmeet.records.intake import Order


class MultiWindows(Saved):
    """How far several inputs have come, and what that means for their rows."""

    SAVED: ClassVar[tuple[str, ...]] = ("clock",)

    def __init__(self, spec: MultiSpec, meet_later: bool, events: Counter[str]) -> None:
        """`meet_later`: rows may meet others later than they come, and carry with them what was known then."""
        assert spec.window is not None
        self.clock = WindowClock(spec)
        self._events = events
        self._silence = None if spec.window.idle is None else Silence(spec.window.idle, len(spec.names))
        """Which inputs have fallen silent; None: that makes no difference."""
        self.parts: Sequence[Sequence[int]] = [(number,) for number in range(len(spec.names))]
        """By input, of which of the clock's inputs its rows have moments."""
        self.delays = Delays()
        """Of each result, the seconds from the first poll after its last row came until it was found."""
        self._meet_later = meet_later

    def arrival(self, join: Any, number: int, batch: pa.RecordBatch, numbers: Int64) -> WindowedArrival:
        """The next rows of an input; those that are late are counted."""
        arrival = WindowedArrival(join, self, number, batch, numbers, self.clock.newest[number])
        self.clock.count_late(number, arrival.moments, numbers)
        return arrival

    def take_back(self, arrival: WindowedArrival, rows: int) -> None:
        """The last so many rows of an arrival were never looked at; rows before them that match nothing were."""
        start, late = arrival.batch.num_rows - rows, arrival.moments.late
        if late is not None:
            self.clock.late[arrival.driver] -= int(late[start:].sum())
        if start:
            arrival.reach(start - 1)

    def known(self, number: int, moments: Moments) -> list[Int64]:
        """What rows of an input that arrive now carry behind their moments."""
        return self.clock.known(number, moments) if self._meet_later else []

    @property
    def late(self) -> list[int]:
        """How many rows of each input came too late."""
        return self.clock.late

    # --- how far the inputs have come ---

    def advance(self, newest: Sequence[int]) -> None:
        """The inputs have reached these times."""
        self.clock.advance(newest)

    def expired_before(self, number: int) -> int:
        """Rows of an input that are older than this meet nothing that is still to come of the others."""
        return self.clock.expired_before(number, self.parts[number])

    def note_promise(self, number: int, pattern: Mapping[str, object], order: Order) -> None:
        """Of several inputs, rows alone tell how far they have come."""
        raise ProtocolError("a join of several inputs by windows does not take Punctuate")

    def listen(self, now: float, speaks: Sequence[bool], in_between: bool) -> bool:
        """A poll begins, with rows of these inputs; `in_between`: all that came before was worked off. Whether an input
        was overtaken, and so has come further.
        """
        if self._silence is None or not in_between:
            return False
        return self._let_follow(self._silence.listen(now, speaks))

    def follow(self) -> None:
        """Those that are overtaken come as far as the others have come."""
        if self._silence is not None:
            self._let_follow(self._silence.overtaken)

    def _let_follow(self, overtaken: Sequence[bool]) -> bool:
        before = self.clock.newest
        self.clock.advance(followed(before, overtaken))
        further = before != self.clock.newest
        self._events["overtaken"] += further
        return further

    def wake_at(self, ended: Sequence[bool]) -> float | None:
        """When an input that says nothing will no longer hold back the others."""
        return None if self._silence is None else self._silence.wake_at(ended)

    # --- for people, and for snapshots ---

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        return {**super().to_state(), "silence": None if self._silence is None else self._silence.to_state()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken; one of a join that is told of no silences may know none."""
        super().load(state)
        if self._silence is not None:
            self._silence.load(state["silence"])

    def figures(self, rows: int, delays: Delays) -> WindowFigures:
        """For people; so many rows are remembered, and results took so long."""
        clock = self.clock
        late, waited = tuple(self.late), delays.median_and_p99()
        return WindowFigures(late, rows, waited, reached=clock.reached(), dated=clock.tick is not None)


class WindowedArrival(Arrival):
    """A batch on its way into memory, each row with its moment."""

    def __init__(
        self, join: Any, windows: MultiWindows, driver: int, batch: pa.RecordBatch, numbers: Int64, newest: int
    ) -> None:
        self._windows = windows
        self.moments = windows.clock.read(driver, batch, numbers, newest)
        self._came = join.now
        words = [*self.moments.columns, *windows.known(driver, self.moments)]
        super().__init__(join, driver, batch, numbers, [*map(pa.array, words)], self.moments.taken)

    def begin(self, fuel: int) -> None:
        """Take the next slice into memory, let its moments count, and begin to look it up."""
        before = self.next
        super().begin(fuel)
        if self.next > before:
            self.reach(self._position(self.next - 1))
            self.join.slice_taken(self.driver)

    def finish(self) -> None:
        """The moments of rows that match nothing count, too; then what has expired may go."""
        if len(self.moments.newest):
            self.reach(len(self.moments.newest) - 1)
        self.join.arrival_done()

    def reach(self, row: int) -> None:
        """Rows of the batch up to this one have come."""
        self._windows.clock.reach(self.driver, int(self.moments.newest[row]), int(self.numbers[row]) + 1)

    def _position(self, row: int) -> int:
        """Where a row lies in the batch that was received."""
        positions = self.positions
        return row if positions is None else int(positions[row])

    def counting(self) -> WindowFilter:
        """Those of the slice at hand."""
        windows, marks = self._windows, self.moments.marks
        if marks is not None:
            positions = self.positions
            taken = marks if positions is None else marks[positions]
            marks = taken[self.next - self._slice : self.next]
        return WindowFilter(windows.clock, self.join.inputs, windows.parts, marks)

    def note(self, ids: Int64) -> None:
        """Results come as soon as their last row."""
        self._windows.delays.add_same(self.join.now - self._came, ids.shape[1])

    def to_state(self) -> dict[str, Any]:
        """The slice at hand, and what was known before it."""
        return {**super().to_state(), "newest": self.moments.newest_at(self.unfinished().start)}
