"""Rows of one of several inputs that have yet to settle, in the order of one attribute's hashes."""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.arrays import Int64, Uint64
from watersmeet.matching.many_rows import ManyRows, run_number
from watersmeet.matching.settlement import OwingRows
from watersmeet.runs.sorted_run import MergedRows

_ROW = 0xFFFFFFFF
_HASH_BYTES = 8


class OwingInput:
    """First the rows of runs that owe, all at once; then those in memory, from `low` up to `high`."""

    def __init__(self, rows: ManyRows, attribute: int, low: int, high: int, sorting: bool | None = None) -> None:
        sets = rows.disk.sets
        first = len(sets) - rows.disk.owing
        runs = [each.runs[attribute] for each in sets[first:]]
        self._runs = MergedRows(runs) if runs else None
        self._numbers = np.array([run_number(first + i, attribute, len(sets)) << 32 for i in range(len(runs))])
        self._resident, self._attribute = rows.resident, attribute
        self._memory = OwingRows(rows.table.orders[attribute], low, high, sorting)

    @property
    def done(self) -> bool:
        """Whether all have been passed."""
        return self._memory.done and (self._runs is None or self._runs.done)

    def next_slice(self, hashes: Uint64, ids: Int64) -> int:
        """Fill arrays with the next rows' hashes, and with what tells the rows; returns how many there are.

        Those of runs are in the order of their hashes, and so are those in memory, where both are there.
        """
        count = 0
        if self._runs is not None and not self._runs.done:
            count = self._runs.next_sorted(hashes, ids)
            ids[:count] = self._numbers[ids[:count] >> 32] + (ids[:count] & _ROW)
            self._resident.read_hashes(self._attribute, len(self._numbers), _HASH_BYTES * count)
        if count < len(ids):
            count += self._memory.next_slice(hashes[count:], ids[count:])
        return count

    def place(self) -> list[list[int]]:
        """Where it stands, to be gone to again."""
        return [[] if self._runs is None else self._runs.places(), self._memory.place()]

    def go_to(self, place: list[list[int]]) -> None:
        """Stand where it stood."""
        if self._runs is not None:
            self._runs.go_to(place[0])
        self._memory.go_to(place[1])

    def to_state(self) -> dict[str, Any]:
        """For a snapshot, but for the place."""
        return self._memory.to_state()
