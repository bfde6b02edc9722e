"""A memtable's index that finds nothing: keys of rows as they came, to be sorted when somebody asks for an order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from watersmeet.core.arrays import Int32, Int64, Numbers, Uint64
from watersmeet.memory import Reservation
from watersmeet.records.arena import Arena
from watersmeet.tables.memtable_index import Walk, move_down

_RELEASED_FROM = 1 << 16
_KEPT_SHARE = 16


class ArrivalIndex:
    """The keys of rows by number. Whoever orders rows counts the memory for that as part of each row's."""

    row_bytes: ClassVar[int] = 8
    bits = 0

    def __init__(self, capacity: int, claim: Reservation) -> None:
        self._keys = Arena(np.int64, capacity)
        self._kept = max(_RELEASED_FROM // self._keys.itemsize, capacity // _KEPT_SHARE)
        """Rows of which the memory of keys is not given back to the system: others come, and it would be taken anew."""

    @property
    def built(self) -> list[int]:
        """There is nothing to build."""
        return []

    def keys(self, rows: Int32) -> Int64:
        """The keys of some rows."""
        return self._keys.array[rows]

    def stretch(self, start: int, stop: int) -> Int64:
        """The keys of rows that came one after the other, uncopied."""
        return self._keys.array[start:stop]

    def append(self, first: int, keys: Int64, grow: bool) -> Int32:
        """Rows from number `first` on; returns their numbers."""
        stop = first + len(keys)
        self._keys.array[first:stop] = keys
        return np.arange(first, stop, dtype=np.int32)

    def drop_first(self, count: int, rows: int) -> None:
        """Forget the first of so many rows; the others get smaller numbers."""
        move_down(self._keys.array, count, rows)
        if rows > self._kept and count * self._keys.itemsize > _RELEASED_FROM:
            self._keys.release(max(self._kept, rows - count), rows)

    def clear(self, rows: int) -> None:
        """Forget all rows."""
        if rows > self._kept:
            self._keys.release(self._kept, rows)

    def probe(self, *args: Any) -> tuple[int, int]:
        """Nothing is found here."""
        raise AssertionError("rows in the order of their arrival are not looked up by their keys")

    def next_sorted(self, walk: Walk, keys: Uint64, rows: Numbers) -> int:
        """Nobody walks through rows here."""
        raise AssertionError("rows in the order of their arrival have no other")

    def walk(self, low: int, high: int, room: int = 0) -> Walk:
        """Nobody walks through rows here."""
        raise AssertionError("rows in the order of their arrival have no other")

    def fit(self, rows: int, built: Sequence[int] | None = None) -> None:
        """There is nothing to build."""

    def have_bits(self, rows: int, bits: int) -> None:
        """There is nothing to build."""

    def check(self, rows: int) -> None:
        """Nothing can be wrong."""


class WaitingIndex(ArrivalIndex):
    """Of rows that wait: a mark for each, and room to put them into an order when they leave memory."""

    row_bytes: ClassVar[int] = 8 + 1 + 12


class TimedIndex(ArrivalIndex):
    """Of rows that are kept in the order of hash and time: twice hash, time and number, while stretches are merged."""

    row_bytes: ClassVar[int] = 8 + 2 * 20
