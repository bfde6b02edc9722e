"""Operators that a worker process keeps from one batch to the next, so that it need not restore them.

Only a shortcut: a task takes a kept operator if it is exactly where the state directory says the group is, as of the
very attempt that was published; else it restores the group's snapshot, and any worker can. One that has an operator of
an older version catches up: the runs that this one has, mapped and checked, are those of the new one, and only what has
come since is opened.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from watersmeet.core.errors import SegmentError
from watersmeet.core.protocol import JoinOperator, Snapshot
from watersmeet.memory import Budget
from watersmeet.runs.sorted_run import OpenRun, SortedRun
from watersmeet.spark.state import open_runs
from watersmeet.spark.state.directory import GroupState
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.state.store import VersionedStore
from watersmeet.spark.task.new_columns import with_new_columns
from watersmeet.spill.store import Store


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
    """An operator, its store, the attempt whose manifest describes it, the memory that it was given, and its runs."""

    operator: Keepable
    store: VersionedStore
    attempt: str
    memory: int
    runs: Sequence[SortedRun] = ()


class Factory(Protocol):
    """What makes a group's operator."""

    def build(self, memory: int, store: Store) -> Keepable:
        """An operator that has seen nothing."""
        ...

    def restore(self, snapshot: Snapshot, memory: int, store: Store, open_run: OpenRun) -> Keepable:
        """An operator that goes on where the snapshot was taken; `open_run` knows which runs are open."""
        ...


class KeptOperators:
    """The operators of a process, least recently used first."""

    def __init__(self, opened: OpenRuns | None = None) -> None:
        self.opened = OpenRuns() if opened is None else opened
        """Runs of operators that are there, and of those that were."""
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    @property
    def held(self) -> int:
        """Bytes that all of them hold."""
        return sum(kept.operator.budget.used for kept in self._kept.values())

    def held_beside(self, place: str) -> int:
        """Bytes that all but one group's hold."""
        return sum(kept.operator.budget.used for other, kept in self._kept.items() if other != place)

    def open(
        self, group: GroupState, factory: Factory, memory: int, room: int, before: dict[str, Any] | None
    ) -> tuple[Keepable, VersionedStore]:
        """A group's operator as of the manifest of the batch before: kept, restored, or new if there is no state.

        :param room: what operators of other groups may hold meanwhile
        """
        kept = self.take(group.place, before["attempt"] if before else None)
        self.make_room(room)
        grown = before and before["snapshot"] and group.columns_before(before["snapshot"]["fingerprint"])
        if kept is not None and (kept.memory != memory or grown):
            kept.operator.close()
            kept = None
        if kept is not None:
            kept.store.go_on(group)
            return kept.operator, kept.store
        if before is None or before["snapshot"] is None:
            store = VersionedStore(group)
            return factory.build(memory, store), store
        store = VersionedStore(group, before["files"])
        try:
            snapshot = Snapshot.from_json(before["snapshot"])
            snapshot, open_run = with_new_columns(
                factory, group, snapshot, store, partial(self.opened.get, store), memory
            )
            return factory.restore(snapshot, memory, store, open_run), store
        except SegmentError as error:
            raise store.named(error) from error

    def take(self, place: str, attempt: str | None) -> Kept | None:
        """A group's operator if it is as of this attempt; what is not is dropped."""
        found = self._kept.pop(place, None)
        if found is not None and found.attempt != attempt:
            self.opened.take_over(found.store, found.runs)
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


WORKER = KeptOperators(open_runs.WORKER)
"""This process's own."""


def forgetful() -> KeptOperators:
    """For a task whose operator nobody can go on with: only runs stay."""
    return KeptOperators(open_runs.WORKER)
