"""Which partitions of a relation stay in memory, and which rows are taken to the disk next.

All of it is arithmetic over counts by partition; nothing here has seen a row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Float64, Int64


class ArrivalFrequency:
    """How many rows of a stream came to each partition, older epochs counting less.

    Within an epoch of so many rows, arrivals are counted; at its end all counts are multiplied by `alpha`.

    >>> frequency = ArrivalFrequency(2, alpha=0.5, epoch=4)
    >>> frequency.note(np.array([3, 1])); frequency.note(np.array([0, 2])); frequency.counts.tolist()
    [1.5, 2.5]
    """

    def __init__(self, partitions: int, alpha: float, epoch: int) -> None:
        self.alpha = alpha
        self.epoch = epoch
        self.counts: Float64 = np.zeros(partitions)
        self.seen = 0
        """Rows in the epoch that is not over."""

    def note(self, arrivals: Int64) -> None:
        """Rows have arrived, so many for each partition."""
        self.counts += arrivals
        self.seen += int(arrivals.sum())
        while self.seen >= self.epoch:
            # An epoch ends between two rows, and rows of one batch have no order among partitions: those that came
            # together count to the epoch that they end.
            self.counts *= self.alpha
            self.seen -= self.epoch


def victims(
    counts: Float64, sizes: Int64, resident: NDArray[np.intp], newcomer: int, rho: float, free: int
) -> list[int] | None:
    """The partitions in memory that give way to a newcomer, the weakest first; None if they would not.

    Each must be wanted less than the newcomer for its size, by a fraction rho (equation 6.1 of the thesis), and
    together they must make enough room (6.2, where it is one partition that does).

    >>> counts, sizes = np.array([10.0, 2.0, 6.0]), np.array([100, 100, 100])
    >>> victims(counts, sizes, np.array([0, 1]), 2, rho=0.25, free=0)
    [1]
    >>> victims(counts, sizes, np.array([0]), 2, rho=0.25, free=0) is None
    True
    >>> victims(counts, sizes, np.array([0]), 2, rho=0.25, free=100)
    []
    """
    own = int(sizes[newcomer])
    theirs = sizes[resident]
    weaker = resident[counts[newcomer] * theirs >= own * (1 + rho) * counts[resident]]
    order = weaker[np.argsort(counts[weaker] / np.maximum(sizes[weaker], 1), kind="stable")]
    room = free + np.concatenate([[0], np.cumsum(sizes[order])])
    enough = int(np.searchsorted(room, own))
    chosen: list[int] = order[:enough].tolist()
    return chosen if enough <= len(order) else None


class Granularity:
    """Tuple by tuple while few rows wait, block by block once many do.

    >>> mode = Granularity(low=2, high=100)
    >>> [mode.blocks(waiting) for waiting in (50, 101, 50, 1)]
    [False, True, True, False]
    """

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high
        self.in_blocks = False

    def blocks(self, waiting: int) -> bool:
        """Whether to go block by block, with so much waiting in the input buffer."""
        if waiting > self.high:
            self.in_blocks = True
        elif waiting < self.low:
            self.in_blocks = False
        return self.in_blocks
