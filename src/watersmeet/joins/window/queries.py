"""Many window joins in one, as a part of a window join: rows get their classes, and pairs the names of their queries.

What a query is, `core.queries` says; `matching.query_sets` has the argument that each gets what it would get alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32
from watersmeet.core.errors import SpecError
from watersmeet.core.protocol import AddQuery, RemoveQuery
from watersmeet.core.queries import BoundQuery, QueriesSpec
from watersmeet.core.windows import NOWHERE
from watersmeet.engine.windows import TimedArrival
from watersmeet.matching.query_sets import QUERY_BYTES, WINDOW_BYTES, QuerySets
from watersmeet.matching.row_classes import CLASS_BYTES, NoRoomError
from watersmeet.memory import Reservation, no_room_for
from watersmeet.records.cells import Codes

if TYPE_CHECKING:
    from watersmeet.joins.window.confluence import WindowConfluence

EVENT = -1
"""Stands for an input in the order of what was received: a query comes or goes."""
_LEAST_REMEMBERED = 32
_MOST_REMEMBERED = 1 << 15
_SHARE = 16
"""What is remembered of cells and times has one part in so many of the memory, beyond what there must be."""
_LEAST_CLASSES = 16
"""So many classes there is always room for."""


def least_for(spec: QueriesSpec) -> int:
    """Bytes that there must be for the queries of a spec."""
    queries = spec.bound_queries
    return _bytes_for(queries, 0) + _LEAST_CLASSES * _class_bytes(len(queries))


def _class_bytes(queries: int) -> int:
    return CLASS_BYTES + queries // 2


def _remembered_bytes(queries: int) -> int:
    """Of each cell and relation of times that is remembered; of the latter there may be more for a moment."""
    return 2 * (WINDOW_BYTES + queries // 4) + 3 * Codes.bytes_for(1 << 10) // (1 << 10)


def _remembered(queries: int, spare: int) -> int:
    """How many are, with so many queries, and so much memory beyond what there must be."""
    return min(_MOST_REMEMBERED, max(_LEAST_REMEMBERED, spare // _SHARE // _remembered_bytes(queries)))


def _bytes_for(queries: Sequence[BoundQuery | None], spare: int) -> int:
    """What some queries take, without their classes."""
    there = [query for query in queries if query is not None]
    names = sum(len(query.name.encode()) for query in there)
    # A filter has no more values than words: each divides a column, and each part says which filters hold.
    words = sum(len(text or "") for query in there for text in query.filters)
    filters = words * (8 + len(queries) // 8)
    each = _remembered_bytes(len(queries))
    remembered = min(_MOST_REMEMBERED * each, max(_LEAST_REMEMBERED * each, spare // _SHARE))
    return QUERY_BYTES * len(queries) + 8 * names + filters + remembered


class Queries:
    """The queries of a window join: what rows, pairs and events have to do with them."""

    def __init__(self, join: WindowConfluence, spec: QueriesSpec, spare: int) -> None:
        """`spare` bytes of memory are there beyond those that there must be."""
        self._join = join
        self._spec = spec
        self._spare = spare
        self._room = join.budget.reservation("queries")
        self._class_room = join.budget.reservation("classes of rows")
        self.sets = QuerySets(spec, partial(_remembered, spare=self._spare), self._may_grow, join.events)
        self._events: deque[BoundQuery | str] = deque()
        """What was received and has not happened yet: a query that comes, or the name of one that goes."""
        self._names: set[str] = set()
        """Of the queries that are there once all that was received has happened."""
        self._told: tuple[pa.RecordBatch, Int32] | None = None
        """Rows that were told their classes, and are about to arrive."""
        bound = spec.bound_queries
        self._room.grow(_bytes_for(bound, self._spare))
        self._class_room.set_aside(_LEAST_CLASSES * _class_bytes(len(bound)))
        for query in bound:
            self.sets.add(query)
            self._names.add(query.name)

    # --- room ---

    def _may_grow(self, classes: int) -> bool:
        size = classes * _class_bytes(len(self.sets.queries))
        return self._join.secure(lambda: self._class_room.try_grow(size))

    def _resize(self, queries: Sequence[BoundQuery | None]) -> bool:
        """Have room for more queries, and for as many classes as there are; False if there is not enough memory."""
        classes = sum(len(each) - 1 for each in self.sets.classes)
        more = _bytes_for(queries, self._spare) - self._size
        more_classes = classes * (_class_bytes(len(queries)) - _class_bytes(len(self.sets.queries)))
        return self._join.secure(lambda: _grow_all([(self._room, more), (self._class_room, more_classes)]))

    @property
    def _size(self) -> int:
        return _bytes_for(self.sets.queries, self._spare)

    def forget(self) -> bool:
        """Let go of classes that nobody can meet any more, and of removed queries that have none; were there any?"""
        join, debts = self._join, self._join.debts
        owing = [debts.span_of_owing(side) if debts.owes(side) else NOWHERE for side in (0, 1)]
        before = [min(join.expired_before(side), owing[1 - side].floor, owing[side].earliest) for side in (0, 1)]
        queries, size = list(self.sets.queries), self._size
        gone = self.sets.forget(before)
        self._class_room.shrink(gone * _class_bytes(len(queries)))
        left = sum(len(each) - 1 for each in self.sets.classes)
        self._class_room.shrink(left * (_class_bytes(len(queries)) - _class_bytes(len(self.sets.queries))))
        self._room.shrink(size - self._size)
        self._join.events["forgotten classes"] += gone
        return gone > 0

    # --- queries that come and go ---

    def receive(self, event: AddQuery | RemoveQuery) -> None:
        """Take note of a query that comes or goes, once the rows before have been worked off."""
        if isinstance(event, AddQuery):
            query = self._spec.bound(event.query)
            if query.name in self._names:
                raise SpecError(f"there is a query called {query.name!r}; remove it first, or choose another name")
            self._names.add(query.name)
            self._events.append(query)
        else:
            if event.name not in self._names:
                told = ", ".join(map(repr, sorted(self._names))) or "none"
                raise SpecError(f"there is no query called {event.name!r}; there are {told}")
            self._names.remove(event.name)
            self._events.append(event.name)

    def change(self) -> bool:
        """Let the next query come or go; False if there is no room for it yet."""
        self.forget()
        event = self._events[0]
        if isinstance(event, str):
            self.sets.remove(event)
        else:
            if not self._resize(self.sets.with_one_more(event)):
                return False
            self.sets.add(event)
        self._events.popleft()
        self._told = None
        self._join.events["queries changed"] += 1
        return True

    def no_room(self) -> Exception:
        """What is said when memory is not enough for queries, though all rows have left it."""
        size = max(_class_bytes(len(self.sets.queries)), *(len(each) for each in self.sets.classes))
        return no_room_for("what the queries have to be told from", size, self._join.budget)

    # --- rows and pairs ---

    def tell_classes(self, side: int, batch: pa.RecordBatch) -> bool:
        """Tell rows that arrive their classes; False if there is no room for a new one yet."""
        if self._told is not None and self._told[0] is batch:
            return True
        for _ in range(2):
            try:
                self._told = batch, self.sets.classes_of(side, batch)
                return True
            except NoRoomError:
                self.forget()  # what has expired, and what was just begun
        return False

    def classes(self, side: int, batch: pa.RecordBatch) -> Int32:
        """The classes of rows that arrive."""
        if not self.tell_classes(side, batch):
            raise self.no_room()
        assert self._told is not None
        (_, classes), self._told = self._told, None  # whose rows are the arrival's from now on
        return classes

    # --- snapshots ---

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        events = [event if isinstance(event, str) else event.to_state() for event in self._events]
        return {**self.sets.to_state(), "events": events, "names": sorted(self._names)}

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        self._room.shrink(self._size)
        self.sets.load(state)
        self._room.grow(self._size)
        classes = sum(len(each) - 1 for each in self.sets.classes)
        self._class_room.grow(classes * _class_bytes(len(self.sets.queries)))
        self._events = deque(each if isinstance(each, str) else BoundQuery.of_state(each) for each in state["events"])
        self._names = set(state["names"])

    def check(self) -> None:
        """Assert the invariants."""
        self.sets.check()
        classes = sum(len(each) - 1 for each in self.sets.classes)
        assert self._room.used == self._size, (self._room.used, self._size)
        assert self._class_room.used == classes * _class_bytes(len(self.sets.queries))


def _grow_all(wanted: Sequence[tuple[Reservation, int]]) -> bool:
    """All of it, or nothing."""
    for place, (room, size) in enumerate(wanted):
        if not room.try_grow(size):
            for grown, by in wanted[:place]:
                grown.shrink(by)
            return False
    return True


class QueriedArrival(TimedArrival):
    """A batch on its way into memory, each row with its class; rows that no query wants end here."""

    def moments(
        self, join: Any, side: int, batch: pa.RecordBatch, taken: Bool | None
    ) -> tuple[list[pa.Array], Bool | None]:
        """What is stored before the columns of rows, and which rows are taken (None: all)."""
        moments, taken = super().moments(join, side, batch, taken)
        classes = join.queries.classes(side, batch)
        wanted = classes > 0
        taken = wanted if taken is None else taken & wanted
        join.queries.sets.classes[side].came(classes[taken], self.timed.times[taken])
        return [*moments, pa.array(classes)], taken
