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

Where runs are sorted and merged, a row keeps its ordinal, but rows no longer lie on disk in that order: they stand in
the order of (hash, ordinal) within their run. A visit that ends amid a merged run therefore covers the run's ordinals
as far as a certain (hash, ordinal). Merging does not change that order, so what was covered can be told for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.errors import BudgetError
from watersmeet.kernels.history import covered, within
from watersmeet.memory import Reservation
from watersmeet.runs.presence import FOREVER, Stay, Stretch

_FIELDS = 7
_RECTANGLE_BYTES = 40


class _History:
    """Ticks at which a memory partition was joined with stretches of the other side's disk."""

    def __init__(self) -> None:
        self.count = 0
        self._entries = np.empty((_FIELDS, 0), np.int64)

    def try_reserve(self, count: int, claim: Reservation) -> bool:
        """Have room for so many more entries, doubling it where there is none."""
        room = self._entries.shape[1]
        if self.count + count <= room:
            return True
        more = max(4, room, count)
        if not claim.try_grow(more * self._entries.itemsize * _FIELDS):
            return False
        self._entries = np.concatenate([self._entries, np.empty((_FIELDS, more), np.int64)], axis=1)
        return True

    def add(self, entry: Sequence[int]) -> None:
        self._entries[:, self.count] = entry
        self.count += 1

    def forget_within(self, stretch: Stretch, after: int) -> None:
        """Drop the entries after a tick whose stretches lie within another; their room stays."""
        entries = self.entries
        tick, low, high, since_hash, since, until_hash, until = entries
        within = (tick > after) & (low >= stretch.low) & (high <= stretch.high)
        if not within.any():
            return
        begins, ends = stretch.since, stretch.until
        within &= (since_hash > begins[0]) | ((since_hash == begins[0]) & (since >= begins[1]))
        within &= (until_hash < ends[0]) | ((until_hash == ends[0]) & (until <= ends[1]))
        kept = entries[:, ~within]
        self.count = kept.shape[1]
        self._entries[:, : self.count] = kept

    @property
    def entries(self) -> Int64:
        return self._entries[:, : self.count]

    def drop(self, claim: Reservation) -> None:
        claim.shrink(self._entries.nbytes)
        self.count, self._entries = 0, np.empty((_FIELDS, 0), np.int64)


class Ledger:
    """The meetings of two sides, by partition."""

    def __init__(self, partitions: int, claim: Reservation) -> None:
        self._claim = claim
        self._visits = [[_History() for _ in range(partitions)] for _ in (0, 1)]
        self._merged = [np.empty((0, 4), np.int64) for _ in range(partitions)]
        self._reserved = 0

    @property
    def nbytes(self) -> int:
        """What the history takes, with what is set aside for it."""
        return self._claim.held

    def try_reserve(self, side: int, part: int, count: int = 1) -> bool:
        """Claim memory for more visits; without it no visit may begin."""
        return self._visits[side][part].try_reserve(count, self._claim)

    def record_visit(self, side: int, part: int, tick: int, stretch: Stretch, since: int = FOREVER) -> None:
        """Memory of `side` at `tick` has now met a stretch of the other side's disk.

        No row has left that memory after the tick `since`, so earlier visits after it to places within the stretch need
        not be remembered: whoever went then went now, too.
        """
        if stretch.high > stretch.low:
            self._visits[side][part].forget_within(stretch, since)
            self._visits[side][part].add((tick, stretch.low, stretch.high, *stretch.since, *stretch.until))

    def try_reserve_merge(self) -> bool:
        """Claim memory for one more merge; without it none may begin."""
        if not self._reserved and self._claim.try_grow(_RECTANGLE_BYTES):
            self._reserved = 1
        return self._reserved > 0

    def record_merge(self, part: int, left: tuple[int, int], right: tuple[int, int]) -> None:
        """These ordinals [low, high) of the left disk have now met those of the right disk."""
        assert self._reserved
        before = self._merged[part]
        contained = (left[0] <= before[:, 0]) & (before[:, 1] <= left[1])
        contained &= (right[0] <= before[:, 2]) & (before[:, 3] <= right[1])
        self._merged[part] = np.vstack([before[~contained], np.array([[*left, *right]], np.int64)])
        self._reserved = 0
        self._claim.shrink(_RECTANGLE_BYTES * int(np.count_nonzero(contained)))

    def all_merged(self, part: int, left_rows: int, right_rows: int) -> bool:
        """Whether every row among the first so many ordinals of each side has met every one of the other's."""
        held = self._merged[part]
        whole = (held[:, 0] == 0) & (held[:, 1] >= left_rows) & (held[:, 2] == 0) & (held[:, 3] >= right_rows)
        return not left_rows or not right_rows or bool(whole.any())

    def drop(self, part: int) -> None:
        """Forget a partition."""
        for side in (0, 1):
            self._visits[side][part].drop(self._claim)
        self._claim.shrink(_RECTANGLE_BYTES * len(self._merged[part]))
        self._merged[part] = np.empty((0, 4), np.int64)

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
            hashes = np.zeros(len(met), np.int64) if disk.hash is None else disk.hash
            covered(visits, memory.arrived, memory.departed, disk.ordinal, hashes, met)
        return met

    @staticmethod
    def merged(rectangles: Int64, left: Stay, right: Stay) -> Bool:
        """Both lie on disk within stretches that were joined with each other."""
        met = np.zeros(len(left.arrived), np.bool_)
        if len(rectangles):
            within(rectangles, left.ordinal, right.ordinal, met)
        return met

    def to_state(self) -> dict[str, Any]:
        """The ledger for a snapshot."""
        return {
            "visits": [[history.entries.tolist() for history in side] for side in self._visits],
            "merged": [rectangles.tolist() for rectangles in self._merged],
            "reserved": self._reserved,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over a snapshot's ledger."""
        for side, histories in enumerate(state["visits"]):
            for part, entries in enumerate(histories):
                for entry in zip(*entries, strict=True):
                    if not self.try_reserve(side, part):
                        raise _does_not_fit()
                    self._visits[side][part].add(entry)
        for part, rectangles in enumerate(state["merged"]):
            if not self._claim.try_grow(_RECTANGLE_BYTES * len(rectangles)):
                raise _does_not_fit()
            self._merged[part] = np.array(rectangles, np.int64).reshape(-1, 4)
        if state["reserved"] and not self.try_reserve_merge():
            raise _does_not_fit()

    def check(self, clock: int, disk_rows: Sequence[Sequence[int]]) -> None:
        """Assert that nothing is recorded of the future or beyond what is on disk."""
        for side in (0, 1):
            for part, history in enumerate(self._visits[side]):
                if not history.count:
                    continue
                ticks, low, high = history.entries[:3]
                assert (np.diff(ticks) >= 0).all() and (ticks <= clock).all()
                assert (low >= 0).all() and (low < high).all() and (high <= disk_rows[1 - side][part]).all()
        for part, rectangles in enumerate(self._merged):
            if not len(rectangles):
                continue
            assert (rectangles[:, 0] < rectangles[:, 1]).all() and (rectangles[:, 2] < rectangles[:, 3]).all()
            assert (rectangles[:, 1] <= disk_rows[0][part]).all() and (rectangles[:, 3] <= disk_rows[1][part]).all()


class FlushLedger(Ledger):
    """Of a join whose rows do not meet as they arrive, but all at once, right before they leave memory together."""

    @staticmethod
    def together(left: Stay, right: Stay) -> Bool:
        """Both left memory at one tick: their runs have the same number."""
        return np.equal(left.departed, right.departed)


def _does_not_fit() -> BudgetError:
    return BudgetError("the snapshot's history does not fit; allow as much memory as when it was taken")
