"""Operators that a worker process keeps from one batch to the next, so that it need not restore them.

Only a shortcut: a task takes a kept operator if it is exactly where the state directory says the group is, as of the
very attempt that was published; else it restores the group's snapshot, and any worker can.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from watersmeet.core.operator import JoinOperator
from watersmeet.memory import Budget
from watersmeet.spark.versioned_store import VersionedStore


class Keepable(JoinOperator, Protocol):
    """An operator whose memory can be seen and let go."""

    @property
    def budget(self) -> Budget:
        """What it may hold, and what it holds."""
        ...

    def close(self) -> None:
        """Let go of everything in memory."""
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """An operator, its store, and the attempt whose manifest describes it."""

    operator: Keepable
    store: VersionedStore
    attempt: str


class KeptOperators:
    """The operators of a process, least recently used first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    @property
    def held(self) -> int:
        """Bytes that all of them hold."""
        return sum(kept.operator.budget.used for kept in self._kept.values())

    def take(self, place: str, attempt: str | None) -> Kept | None:
        """A group's operator if it is as of this attempt; what is not is dropped."""
        found = self._kept.pop(place, None)
        if found is not None and found.attempt != attempt:
            found.operator.close()
            return None
        return found

    def make_room(self, room: int) -> None:
        """Drop operators until the rest hold no more than this."""
        while self._kept and self.held > room:
            self._kept.popitem(last=False)[1].operator.close()

    def keep(self, place: str, kept: Kept) -> None:
        """Keep an operator for the next batch."""
        self._kept[place] = kept


WORKER = KeptOperators()
"""This process's own."""
