"""Was this pair emitted already? The one place that decides.

Every row received and every flush, disk scan and merge takes the next tick of a logical clock, so no two things happen
at once. A row is in memory from its arrival tick to its departure tick (FOREVER if it has not left). On disk, the rows
of one side and partition are numbered in the order in which they were flushed: their ordinals.

```
ticks    ──────────────────────────────────────────────▶
left a      ├──── in memory ────┤ on disk ···············
right b              ├─ in memory ─┤ on disk ············       a met b: their stays overlap
right c                            ├── in memory ──────▶        a and c never met
                                        ▲ right memory scanned left disk up to a's ordinal: now a met c
```

A pair has been emitted exactly if its rows met in one of three ways:

1. *together*: both were in memory at one tick;
2. *visited*: one was in memory when its partition was joined with a stretch of the other's disk that holds the other;
3. *merged*: both were on disk, within stretches that were joined with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.errors import BudgetError
from watersmeet.kernels.history import covered
from watersmeet.memory import Reservation

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

FOREVER = np.iinfo(np.int64).max
NOT_ON_DISK = -1


@dataclass(frozen=True, slots=True)
class Stay:
    """Rows of one side, one for each pair: their arrivals, departures and ordinals."""

    arrived: Int64
    departed: Int64
    ordinal: Int64

    @classmethod
    def in_memory(cls, arrived: Int64) -> Stay:
        """Rows that have never left."""
        return cls(arrived, np.full(len(arrived), FOREVER), np.full(len(arrived), NOT_ON_DISK))


class _History:
    """Ticks at which a memory partition was joined with ordinals [low, high) of the other side's disk."""

    def __init__(self) -> None:
        self.count = 0
        self._entries = np.empty((3, 0), np.int64)

    def try_reserve(self, count: int, claim: Reservation) -> bool:
        """Have room for so many more entries, doubling it where there is none."""
        room = self._entries.shape[1]
        if self.count + count <= room:
            return True
        more = max(4, room, count)
        if not claim.try_grow(more * self._entries.itemsize * 3):
            return False
        self._entries = np.concatenate([self._entries, np.empty((3, more), np.int64)], axis=1)
        return True

    def add(self, tick: int, low: int, high: int) -> None:
        self._entries[:, self.count] = tick, low, high
        self.count += 1

    @property
    def entries(self) -> Int64:
        return self._entries[:, : self.count]

    def drop(self, claim: Reservation) -> None:
        claim.shrink(self._entries.nbytes)
        self.count, self._entries = 0, np.empty((3, 0), np.int64)


class Ledger:
    """The meetings of two sides, by partition."""

    def __init__(self, partitions: int, claim: Reservation) -> None:
        self._claim = claim
        self._visits = [[_History() for _ in range(partitions)] for _ in (0, 1)]
        self._merged: list[tuple[int, int]] = [(0, 0)] * partitions

    def try_reserve(self, side: int, part: int, count: int = 1) -> bool:
        """Claim memory for more visits; without it no visit may begin."""
        return self._visits[side][part].try_reserve(count, self._claim)

    def record_visit(self, side: int, part: int, tick: int, low: int, high: int) -> None:
        """Memory of `side` at `tick` has now met the other side's ordinals [low, high)."""
        if high > low:
            self._visits[side][part].add(tick, low, high)

    def record_merge(self, part: int, left_rows: int, right_rows: int) -> None:
        """The first `left_rows` ordinals of the left disk have now met the first `right_rows` of the right disk."""
        self._merged[part] = (left_rows, right_rows)

    def drop(self, part: int) -> None:
        """Forget a partition."""
        for side in (0, 1):
            self._visits[side][part].drop(self._claim)
        self._merged[part] = (0, 0)

    def fresh(self, part: int, left: Stay, right: Stay) -> Bool:
        """Which pairs have not been emitted."""
        met = self.together(left, right)
        met |= self.visited(self._visits[0][part].entries, left, right)
        met |= self.visited(self._visits[1][part].entries, right, left)
        met |= self.merged(self._merged[part], left, right)
        return ~met

    @staticmethod
    def together(left: Stay, right: Stay) -> Bool:
        """Both were in memory at one tick."""
        return (left.arrived < right.departed) & (right.arrived < left.departed)

    @staticmethod
    def visited(visits: Int64, memory: Stay, disk: Stay) -> Bool:
        """A visit fell into the stay of the row in memory, and its stretch of disk holds the other."""
        met = np.zeros(len(memory.arrived), np.bool_)
        if visits.shape[1]:
            covered(visits, memory.arrived, memory.departed, disk.ordinal, met)
        return met

    @staticmethod
    def merged(stretch: tuple[int, int], left: Stay, right: Stay) -> Bool:
        """Both lie on disk within the stretches that were joined with each other."""
        on_disk = (left.ordinal >= 0) & (right.ordinal >= 0)
        return on_disk & (left.ordinal < stretch[0]) & (right.ordinal < stretch[1])

    def to_state(self) -> dict[str, Any]:
        """The ledger for a snapshot."""
        return {
            "visits": [[history.entries.tolist() for history in side] for side in self._visits],
            "merged": [list(stretch) for stretch in self._merged],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over a snapshot's ledger."""
        for side, histories in enumerate(state["visits"]):
            for part, entries in enumerate(histories):
                for tick, low, high in zip(*entries, strict=True):
                    if not self.try_reserve(side, part):
                        raise BudgetError(
                            "the snapshot's history does not fit; allow as much memory as when it was taken"
                        )
                    self.record_visit(side, part, tick, low, high)
        self._merged = [(left, right) for left, right in state["merged"]]

    def check(self, clock: int, disk_rows: Sequence[Sequence[int]]) -> None:
        """Assert that nothing is recorded of the future or beyond what is on disk."""
        for side in (0, 1):
            for part, history in enumerate(self._visits[side]):
                ticks, low, high = history.entries
                assert (np.diff(ticks) >= 0).all() and (ticks <= clock).all()
                assert (low >= 0).all() and (low < high).all() and (high <= disk_rows[1 - side][part]).all()
        for part, stretch in enumerate(self._merged):
            assert stretch[0] <= disk_rows[0][part] and stretch[1] <= disk_rows[1][part]
