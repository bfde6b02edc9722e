"""When rows of a table arrived, told by stretches: rows that came together have ticks that follow each other."""

from __future__ import annotations

import numpy as np

from watersmeet.core.arrays import Int64, Numbers

STRETCH_BYTES = 32
"""Of each stretch at most: its first row and tick, in arrays that may be twice as long as needed."""
_FEW = 64


class ArrivalTicks:
    """Ticks by row number, of rows that are numbered as they come.

    >>> ticks = ArrivalTicks()
    >>> ticks.append(0, np.array([5, 6, 7])), ticks.append(3, np.array([8, 12]))
    (1, 1)
    >>> ticks.of(np.array([0, 3, 4])).tolist(), ticks.stretches
    ([5, 8, 12], 2)
    >>> ticks.drop_first(4)
    >>> ticks.of(np.array([0])).tolist(), ticks.stretches
    ([12], 1)
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._rows = np.empty(_FEW, np.int64)
        self._less = np.empty(_FEW, np.int64)
        """A row's tick is its number and this."""
        self.stretches = 0

    def append(self, first: int, ticks: Int64) -> int:
        """Rows from number `first` on arrived at these ticks, which increase; returns how many stretches that added."""
        count = len(ticks)
        if not count:
            return 0
        before = self.stretches
        if int(ticks[-1]) - int(ticks[0]) == count - 1:
            self._add(first, int(ticks[0]) - first)
        else:
            less = ticks - np.arange(first, first + count)
            for at in (0, *(np.flatnonzero(np.diff(less)) + 1).tolist()):
                self._add(first + at, int(less[at]))
        return self.stretches - before

    def _add(self, row: int, less: int) -> None:
        last = self.stretches - 1
        if last >= 0 and int(self._less[last]) == less:
            return
        if self.stretches == len(self._rows):
            self._rows, self._less = (np.concatenate((each, each)) for each in (self._rows, self._less))
        self._rows[self.stretches], self._less[self.stretches] = row, less
        self.stretches += 1

    def of(self, rows: Numbers) -> Int64:
        """The ticks of some rows."""
        which = np.searchsorted(self._rows[: self.stretches], rows, "right") - 1
        ticks: Int64 = rows + self._less[which]
        return ticks

    def drop_first(self, count: int) -> None:
        """Forget the first rows; the others get smaller numbers."""
        gone = int(np.searchsorted(self._rows[: self.stretches], count, "right")) - 1
        kept = slice(max(0, gone), self.stretches)
        rows, less = np.maximum(0, self._rows[kept] - count), self._less[kept] + count
        self.clear()
        self.stretches = len(rows)
        room = max(_FEW, len(rows))
        self._rows, self._less = np.resize(rows, room), np.resize(less, room)
