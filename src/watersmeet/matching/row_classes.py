"""Classes of rows: those that the same queries want have one number, which is kept with each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from watersmeet.core.arrays import Int32, Int64, Uint64
from watersmeet.core.errors import SpecError

MOST_CLASSES = 1 << 20
CLASS_BYTES = 400
"""Of each class, beside bits for each query."""


class NoRoomError(Exception):
    """There is no memory for another class; once there is, it can be asked for again."""


class RowClasses:
    """The classes of one input's rows: which queries have rows that pass the same filters at the same time."""

    def __init__(self, may_grow: Callable[[int], bool]) -> None:
        self._may_grow = may_grow
        self._numbers: dict[int, int] = {0: 0}
        self.sets: list[int] = [0]
        """The queries of each class, a bit for each; class 0 is of rows that nobody wants."""
        self.latest = np.full(16, np.iinfo(np.int64).min)
        """The latest time of its rows."""
        self._free: list[int] = []
        self.order: Int64 = np.empty(0, np.int64)
        """Which query each bit of the words is."""
        self.words = np.zeros((16, 1), np.uint64)
        """The sets once more, for kernels."""

    def arrange(self, order: Int64) -> None:
        """Have the sets in words, with bits in this order."""
        self.order = order
        self.words = np.zeros((len(self.latest), words_for(len(order))), np.uint64)
        for found in sorted(self._numbers.values())[1:]:
            self.words[found] = words_of(self.sets[found], order)

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, queries: int) -> int:
        """The class of rows that these queries want."""
        found = self._numbers.get(queries)
        if found is not None:
            return found
        if not self._may_grow(1):
            raise NoRoomError
        if self._free:
            found = self._free.pop()
            self.sets[found] = queries
        else:
            found = len(self.sets)
            if found >= MOST_CLASSES:
                raise SpecError(
                    f"rows pass the filters of the queries in more than {MOST_CLASSES:,} ways at a time; give "
                    f"some of the queries the same filters, or make the windows shorter"
                )
            self.sets.append(queries)
            if found == len(self.latest):
                self.latest = np.concatenate([self.latest, np.full(found, np.iinfo(np.int64).min)])
                self.words = np.concatenate([self.words, np.zeros_like(self.words)])
        self._numbers[queries] = found
        self.latest[found] = np.iinfo(np.int64).min
        self.words[found] = words_of(queries, self.order)
        return found

    def came(self, classes: Int32, times: Int64) -> None:
        """Rows of these classes and times have come."""
        np.maximum.at(self.latest, classes, times)

    def forget(self, before: int) -> int:
        """Classes of which no row is as late as this are free; returns how many."""
        gone = [found for found in self._numbers.values() if found and self.latest[found] < before]
        for found in gone:
            del self._numbers[self.sets[found]]
            self.sets[found] = 0
            self._free.append(found)
        return len(gone)

    def to_state(self) -> list[Any]:
        """For a snapshot."""
        used = sorted(self._numbers.values())[1:]
        return [[found, f"{self.sets[found]:x}", int(self.latest[found])] for found in used]

    def load(self, state: Sequence[Any]) -> None:
        """Go on where a snapshot was taken."""
        most = max((found for found, _, _ in state), default=0) + 1
        self.sets = [0] * most
        self.latest = np.full(max(16, most), np.iinfo(np.int64).min)
        for found, queries, latest in state:
            self.sets[found], self.latest[found] = int(queries, 16), latest
            self._numbers[self.sets[found]] = found
        self._free = sorted({*range(1, most)} - {found for found, _, _ in state}, reverse=True)


def places_of(queries: int) -> list[int]:
    """The places of the bits of a set.

    >>> places_of(0b10010)
    [1, 4]
    """
    size = (queries.bit_length() + 7) // 8
    bits = np.unpackbits(np.frombuffer(queries.to_bytes(size, "little"), np.uint8), bitorder="little")
    found: list[int] = np.flatnonzero(bits).tolist()
    return found


def words_of(queries: int, order: Int64) -> Uint64:
    """A set as words, whose bits are those of the set in this order.

    >>> words_of(0b011, np.array([2, 1, 0]))
    array([6], dtype=uint64)
    """
    words = words_for(len(order))
    bits = np.zeros(64 * words, np.uint8)
    held = np.unpackbits(np.frombuffer(queries.to_bytes(8 * words, "little"), np.uint8), bitorder="little")
    bits[: len(order)] = held[order]
    return np.packbits(bits, bitorder="little").view(np.uint64)


def words_for(queries: int) -> int:
    """How many words have a bit for each of so many queries."""
    return max(1, -(-queries // 64))


def set_of(places: Sequence[int]) -> int:
    """The set of some places."""
    found = 0
    for place in places:
        found |= 1 << place
    return found
