"""Rows that have found nobody, on their way out once they are settled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from watersmeet.core.arrays import Bool, Bytes, Int64
from watersmeet.core.cost import Meter
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.records.plan import Rows

_PASSED = 1 << 15
"""Rows whose marks are gone through at a time."""
_LOOKED_AT = 1 << 12
"""Rows that are looked at at a time, where more is asked than their marks."""
_ROWS_A_FUEL = 64
"""Marks that are passed for as much fuel as a result takes."""

Scan = Callable[[int, int], tuple[Int64, int]]
"""The next rows without a partner, from one on and so many at most; and from which on to go on."""


def among(marks: Bytes) -> Scan:
    """How to go through the marks of rows in memory.

    >>> among(np.array([1, 0, 1, 0], np.uint8))(0, 1)
    (array([1]), 2)
    """

    def scan(start: int, most: int) -> tuple[Int64, int]:
        some = marks[start : start + _PASSED]
        found = np.flatnonzero(some == 0) + start
        return (found, start + len(some)) if len(found) <= most else (found[:most], int(found[most - 1]) + 1)

    return scan


def only(scan: Scan, wanted: Callable[[Int64], Bool]) -> Scan:
    """Of what a scan finds, the rows that are wanted. However many are asked for, as many are looked at.

    >>> only(among(np.zeros(6, np.uint8)), lambda rows: rows % 2 == 1)(0, 2)
    (array([1, 3]), 4)
    """

    def some(start: int, most: int) -> tuple[Int64, int]:
        found, behind = scan(start, _LOOKED_AT)
        found = found[wanted(found)]
        return (found, behind) if len(found) <= most else (found[:most], int(found[most - 1]) + 1)

    return some


def all_of(scan: Scan, rows: int) -> Iterator[Int64]:
    """All that a scan finds among so many rows, some at a time.

    >>> [found.tolist() for found in all_of(among(np.array([1, 0, 1, 0], np.uint8)), 4)]
    [[1, 3]]
    """
    start = 0
    while start < rows:
        found, start = scan(start, _LOOKED_AT)
        if len(found):
            yield found


class Unmatched:
    """The rows of one source that have no partner; it can stop at any row.

    What it hands out are results without a row of the other input: see `PairBuffer.take`.
    """

    def __init__(
        self, side: int, source: Rows, rows: int, scan: Scan, release: Callable[[], None] | None = None
    ) -> None:
        """`release` lets go of what was read of the rows that were handed out."""
        self.between = Between(side, source, None)
        self._rows = rows
        self._scan = scan
        self._release = release
        self._next = self._filled = self._kept = 0

    @property
    def done(self) -> bool:
        """Whether all rows were passed; some may still wait in the buffer."""
        return self._next >= self._rows

    def work(self, pairs: PairBuffer, fuel: int, meter: Meter) -> int:
        """Fill the empty buffer with rows; returns the fuel that took."""
        if self._release is not None:
            self._release()
        self._filled = start = self._next
        found, self._next = self._scan(start, max(1, min(fuel, pairs.room)))
        pairs.first, pairs.count = 0, len(found)
        pairs.rows[: len(found)] = found
        self._kept = len(found)
        meter.comparisons += self._next - start
        return max(1, (self._next - start) // _ROWS_A_FUEL) + len(found)

    def place(self, pairs: PairBuffer) -> list[int]:
        """From which row on the buffer was filled, with how many, and how many of those were handed out."""
        if not pairs.waiting:
            return [self._next, 0, 0]
        return [self._filled, self._kept, self._kept - pairs.waiting]

    def resume(self, pairs: PairBuffer, place: Sequence[int]) -> None:
        """Go to a place."""
        self._next, kept, handed_out = place
        if kept:
            self.work(pairs, kept, Meter())
            pairs.first = handed_out


class UnmatchedTask:
    """All rows of a side that are settled and have no partner.

    Arrivals wait for it, as they do for what must settle first. When all were handed out, whoever made it is told.
    """

    def __init__(self, join: Any, side: int, parts: Sequence[Unmatched], over: Callable[[int], None]) -> None:
        self.side = side
        self._join = join
        self._parts = parts
        self._over = over
        self._number = 0

    @property
    def lookup(self) -> Unmatched:
        """Where the rows in the buffer come from."""
        return self._parts[self._number]

    @property
    def done(self) -> bool:
        """Whether all of them were found."""
        return self._number == len(self._parts) - 1 and self.lookup.done

    def work(self, fuel: int) -> int:
        """Fill the empty buffer with rows; returns the fuel that took."""
        if self.lookup.done:
            self._number += 1
        return self.lookup.work(self._join.pairs, fuel, self._join.meter)

    def finish(self) -> None:
        """All of them were handed out."""
        self._over(self.side)

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        place = self.lookup.place(self._join.pairs)
        return {"kind": "unmatched", "side": self.side, "number": self._number, "place": place}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        self._number = state["number"]
        self.lookup.resume(self._join.pairs, state["place"])
