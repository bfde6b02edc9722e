"""Joins that make room before they take rows, because that may take a while: settling comes first."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from watersmeet.core.protocol import Status
from watersmeet.engine.arrival import Arriving
from watersmeet.memory import Budget

_PLENTY = 64
"""A row of which so many fit into free memory, more than half of all, surely fits."""


class RoomFirst:
    """Part of an operator: a batch for which there is no room goes back to where it came from, until there is.

    What must be done first is urgent: arrivals wait for it, and drivers are told that there is more to come.
    """

    budget: Budget
    tables: tuple[Any, ...]
    _take_back: Callable[[Any], None]
    _task: Any
    _has_room_for: Callable[..., bool]
    must_keep: Callable[[int], bool]
    full: bool = False
    """Whether rows wait for memory to be flushed."""

    @abstractmethod
    def _is_due(self, number: int) -> bool:
        """Whether rows should settle before more of an input arrive."""

    @abstractmethod
    def _is_urgent(self, task: Any) -> bool:
        """Whether arrivals have to wait for the end of a task."""

    @abstractmethod
    def _has_urgent_work(self) -> bool:
        """Whether something is to be done before more rows arrive."""

    @property
    def phase(self) -> str:
        """Arriving, reactive, clean-up or done."""
        phase: str = super().phase  # type: ignore[misc]
        return "arriving" if phase == "reactive" and self._task is not None and self._is_urgent(self._task) else phase

    def _status(self) -> Status:
        status: Status = super()._status()  # type: ignore[misc]
        if status in (Status.NEED_INPUT, Status.HAS_WORK) and self._has_urgent_work():
            return Status.HAS_OUTPUT
        return status

    def _put_off(self, task: Any) -> bool:
        if not isinstance(task, Arriving) or not task.waits or self._may_go_on(task):
            return False
        # The rows go back to where they came from: what is to be done first may take a while.
        self._take_back(task)
        self._task = None
        return True

    def _may_go_on(self, arrival: Arriving) -> bool:
        """Whether there is room for the next rows, and nothing that should be done before."""
        if self._is_due(arrival.input):
            return False
        arrival.kept = self.must_keep(arrival.input)
        free = self.budget.free
        if (2 * free > self.budget.total and _PLENTY * arrival.widest < free) or self._has_some_room(arrival):
            return True
        if not any(table.rows for table in self.tables):
            return True  # nothing can be moved: the frame says so
        self.full = True
        return False

    def _has_some_room(self, arrival: Arriving) -> bool:
        """Whether a good part of the next rows fits; a few at a time would take as long, each, as many."""
        count = arrival.rows - arrival.next
        least = min(count, max(1, self.tables[arrival.input].rows // 16))
        while True:
            if self._has_room_for(arrival, count):
                return True
            count //= 2
            if count < least:
                return False

    def secure(self, claim: Callable[[], bool], spared: frozenset[tuple[int, int]] = frozenset()) -> bool:
        """Room is made before rows are taken (see `_may_go_on`): here, there is some or there is none."""
        if claim():
            return True
        for table in self.tables:
            table.trim(0)
        return bool(claim())
