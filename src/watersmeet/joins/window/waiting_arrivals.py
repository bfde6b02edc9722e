"""What window joins share whose arrivals sometimes have to wait for the disk: the wait, and how long rows took.

```
arrival ──▶ no room, or the disk's turn has come ──▶ suspended ──▶ a task goes through the disk ──▶ the arrival goes on
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from watersmeet.core.arrays import Float64, Int32, Int64
from watersmeet.core.delays import Marks
from watersmeet.core.errors import BudgetError
from watersmeet.core.protocol import Status
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.engine.arrival import Arrival, Task
from watersmeet.engine.sizing import Grain
from watersmeet.joins.window.windowed_blocks import BlockWindowJoin
from watersmeet.memory import format_bytes
from watersmeet.records.intake import Received
from watersmeet.runs.window_runs import WindowDisk
from watersmeet.spill.store import Store


class SuspendingWindowJoin(BlockWindowJoin):
    """The frame of a window join with rows on disk, in which a task may come before the arrival at hand."""

    def __init__(self, spec: WindowJoinSpec, memory: int, store: Store, grain: Grain | None = None) -> None:
        least = self.least_memory(spec)
        if memory < least:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for the {self.name} join of these rows; allow at "
                f"least {format_bytes(least)}"
            )
        super().__init__(spec, memory, store, grain)
        self.disks = tuple(
            WindowDisk(
                store,
                ("left", "right")[side],
                self.plans[side].types,
                self.budget.reservation(f"{name} on disk"),
                self.meter,
                self.sizing.page_bytes,
            )
            for side, name in enumerate(spec.names)
        )
        self.marks = Marks()
        self.came_at: Callable[[Int64], Float64] | None = None
        """When rows of these times came, where that is known better than from the first poll after it."""
        self._lengths = spec.seconds(0), spec.seconds(1)
        self._suspended: Arrival | None = None

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget: what is on disk must be remembered, too, and be read back."""
        return super().least_memory(spec, **options) * 3 // 2

    def must_keep(self, side: int) -> bool:
        """As long as the other input may bring rows, or has rows on disk that are to be met."""
        return not self.exhausted(1 - side) or self.disks[1 - side].absent > 0

    def close(self) -> None:
        """Let go of everything."""
        super().close()
        for disk in self.disks:
            disk.close()

    def _why_no_room(self, arrival: Arrival) -> str:
        entries = sum(disk.held for disk in self.disks)
        if 2 * entries < self.budget.total - self.sizing.buffers:
            return super()._why_no_room(arrival)
        return (
            f"to remember what was spilled takes {format_bytes(entries)} of {format_bytes(self.budget.total)} of "
            f"memory, and the rest is too little for rows; allow more memory, or a shorter window"
        )

    # --- how long rows took ---

    def rows_kept(self, side: int, parts: Int32) -> None:
        """Take note of when rows came."""
        self.marks.add(self.clock, self.now)

    def add_delays(self, ticks: Int64) -> None:
        """Results were found now whose later rows arrived at these ticks."""
        arrived = self.marks.times(ticks)
        if arrived is not None:
            self.delays.add(((self.now - arrived) * 1e6).astype(np.int64))

    def perhaps_delayed(self, side: int) -> bool:
        """Whether rows that have met everything by now may have done so too late."""
        length, first = self._lengths[side], self.marks.first
        return length is not None and (self.came_at is not None or (first is not None and self.now - first > length))

    def rows_settled(self, side: int, times: Int64, ticks: Int64) -> None:
        """Rows have met everything that came before them."""
        length = self._lengths[side]
        if length is None:
            return
        came = self.marks.times(ticks) if self.came_at is None else self.came_at(times)
        if came is not None:
            self.delayed += int(np.count_nonzero(self.now - came > length))

    # --- arrivals that wait ---

    def _suspend_for(self, task: Task) -> None:
        """Let the arrival at hand wait for a task."""
        assert isinstance(self._task, Arrival)
        self._task.lookup = None  # it is done; what a snapshot must know of is the rest of the batch
        self._suspended = self._task
        self._task = task

    def _work(self, fuel: int) -> int:
        if self._suspended is not None and self._task is not None:
            if not self._task.done:
                return self._task.work(fuel)
            self._task.finish()
            self._task, self._suspended = self._suspended, None
        return super()._work(fuel)

    def _status(self) -> Status:
        return Status.HAS_OUTPUT if self._suspended is not None else super()._status()

    @property
    def phase(self) -> str:
        """Arriving, reactive, clean-up or done."""
        return "arriving" if self._suspended is not None else super().phase

    # --- snapshots ---

    def claim_to_restore(self, claim: Callable[[], bool]) -> None:
        """Claim memory for what a snapshot holds."""
        if not claim():
            for table in self.tables:
                table.trim(self.budget.total)
            if not claim():
                raise BudgetError("the snapshot does not fit into this memory; allow a little more")

    def waiting(self, side: int) -> list[Received]:
        """One input's rows that are not in memory yet."""
        waiting = super().waiting(side)
        if self._suspended is not None and self._suspended.input == side:
            waiting.insert(0, self._suspended.unfinished())
        return waiting

    def frame_state(self) -> dict[str, Any]:
        """The frame's own state."""
        suspended = None if self._suspended is None else self._suspended.to_state()
        return {**super().frame_state(), "suspended": suspended}

    def _load_tasks(self, state: dict[str, Any], waiting: list[list[Received]]) -> None:
        if state["suspended"] is not None:
            self._suspended = self._arrival_at_hand(state["suspended"], waiting)
        super()._load_tasks(state, waiting)
