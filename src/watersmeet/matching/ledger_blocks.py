"""Has a row in memory met a block on disk before? The one place that decides it for window joins.

Of two rows, the one that arrived later finds the other: in memory as it arrives, or on disk when it is the turn of the
disk. So all there is to know is where a block was when the later row arrived, and ticks tell that: every row takes one
as it arrives, and so does every block that leaves the recent rows, or comes to the frequent ones or leaves them.

```
ticks      ─────────────────────────────────────────────────────────▶
block b      ├── recent ──┤                ├── frequent ──┤
rows                   1        2                  3         4
                       met b    b is on disk       met b     b is on disk
```

The recent rule is the thesis' minBN: a row's minBN is the number of the oldest block of the other side that it found in
memory, and since blocks leave in their order, a block has a smaller number exactly if it had left by then. The frequent
rule is its evicted list, with the ticks at which blocks came and went instead of a list that is emptied after each
scan: so blocks may come and go at any time, also while a scan is set aside for arrivals.
"""

from __future__ import annotations

import numpy as np

from watersmeet.core.arrays import Bool, Int64
from watersmeet.kernels.history import within_stays
from watersmeet.memory import Reservation

FOREVER = np.iinfo(np.int64).max
_STAY_BYTES = 3 * 8


class Encounters:
    """Which rows of one side, by their arrivals, have met which blocks of the other, by their numbers."""

    def __init__(self, claim: Reservation) -> None:
        self._claim = claim
        self._ended: list[tuple[int, int, int]] = []
        """(block, since, until): when blocks were among the frequent ones."""
        self._since: dict[int, int] = {}
        """Since when blocks are among the frequent ones."""
        self._arrays: Int64 | None = None

    def __len__(self) -> int:
        return len(self._ended) + len(self._since)

    @property
    def _stays(self) -> list[tuple[int, int, int]]:
        return [*self._ended, *((block, since, FOREVER) for block, since in self._since.items())]

    @property
    def stays(self) -> Int64:
        """As three rows of numbers, the smallest block first."""
        if self._arrays is None:
            self._arrays = np.array(sorted(self._stays), np.int64).reshape(-1, 3).T.copy()
        return self._arrays

    def try_come(self, block: int, tick: int) -> bool:
        """A block is among the frequent ones from now on; False, and it is not, if there is no memory to note that."""
        if not self._claim.try_grow(_STAY_BYTES):
            return False
        assert block not in self._since
        self._since[block] = tick
        self._arrays = None
        return True

    def go(self, block: int, tick: int) -> None:
        """A block is not among the frequent ones any more."""
        self._ended.append((block, self._since.pop(block), tick))
        self._arrays = None

    def forget(self, until: int) -> None:
        """All rows up to a tick have met all there is: stays that ended by then say nothing any more."""
        kept = [stay for stay in self._ended if stay[2] > until]
        if len(kept) < len(self._ended):
            self._claim.shrink(_STAY_BYTES * (len(self._ended) - len(kept)))
            self._ended, self._arrays = kept, None

    def fresh(self, blocks: Int64, left: Int64, arrived: Int64) -> Bool:
        """Which pairs of a block, which left memory at a tick, and a row that arrived at a tick have not met."""
        met = self.in_recent(left, arrived)
        met |= self.in_frequent(self.stays, blocks, arrived)
        return ~met

    @staticmethod
    def in_recent(left: Int64, arrived: Int64) -> Bool:
        """The block was still among the recent ones when the row arrived: its number is not below the row's minBN."""
        return left > arrived

    @staticmethod
    def in_frequent(stays: Int64, blocks: Int64, arrived: Int64) -> Bool:
        """The block was among the frequent ones when the row arrived, whether it was evicted since or not."""
        met = np.zeros(len(blocks), np.bool_)
        if stays.shape[1]:
            within_stays(stays, blocks, arrived, met)
        return met

    def to_state(self) -> list[list[int]]:
        """For a snapshot."""
        return [list(stay) for stay in self._stays]

    def load(self, state: list[list[int]]) -> None:
        """Take over a snapshot's state."""
        self._claim.grow(_STAY_BYTES * len(state))
        self._ended = [(block, since, until) for block, since, until in state if until < FOREVER]
        self._since = {block: since for block, since, until in state if until == FOREVER}
        self._arrays = None

    def check(self, clock: int) -> None:
        """Assert the invariants."""
        for _, since, until in self._stays:
            assert since <= clock and since < until and (until <= clock or until == FOREVER)
        assert self._claim.held == _STAY_BYTES * len(self)
