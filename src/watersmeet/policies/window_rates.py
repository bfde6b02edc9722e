"""RPWJ's choices as arithmetic: what leaves memory, what a reactive task takes, how many rows are looked up at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from watersmeet.core.arrays import Float64, Int64


class PartitionFrequency:
    """How many rows fell into each partition of each side lately: at the end of an epoch of so many rows, what was
    counted so far keeps a share of its weight.

    >>> frequency = PartitionFrequency(2, epoch=10, decay=0.4)
    >>> frequency.add(0, np.array([6, 2])); frequency.add(1, np.array([0, 5])); frequency.counts.round(1).tolist()
    [[2.4, 0.8], [0.0, 2.0]]
    """

    def __init__(self, partitions: int, epoch: int, decay: float) -> None:
        self.counts = np.zeros((2, partitions))
        self._epoch = epoch
        self._decay = decay
        self._since = 0

    def add(self, side: int, counts: Int64) -> None:
        """Rows of a side came, so many in each partition."""
        self.counts[side] += counts
        self._since += int(counts.sum())
        if self._since >= self._epoch:
            self._since = 0
            self.counts *= self._decay

    def to_state(self) -> list[Any]:
        """For a snapshot."""
        return [self.counts.tolist(), self._since]

    def load(self, state: list[Any]) -> None:
        """Take over a snapshot's counts."""
        self.counts, self._since = np.array(state[0], np.float64), state[1]


def rarely_met(
    counts: Float64, sizes: Int64, room: int, spared: Collection[tuple[int, int]] = ()
) -> list[tuple[int, int]]:
    """The partitions, as (side, partition), that leave memory to make so much room: whole ones, those first whose
    partners on the other side came least lately.

    Partitions far below the average size come last: a run costs an access and an entry, however short it is.

    >>> rarely_met(np.array([[9, 1], [4, 6]]), np.array([[10, 20], [30, 40]]), room=50)
    [(1, 1), (0, 0)]
    >>> rarely_met(np.array([[9, 1], [4, 6]]), np.array([[10, 20], [30, 3]]), room=30)
    [(0, 0), (0, 1)]
    """
    chosen: list[tuple[int, int]] = []
    tiny = sizes < sizes.mean() / 4
    order = np.argsort(counts[::-1].ravel(), kind="stable")
    for place in [*order[~tiny.ravel()[order]], *order[tiny.ravel()[order]]]:
        if room <= 0:
            break
        victim = divmod(int(place), counts.shape[1])
        if sizes[victim] and victim not in spared:
            chosen.append(victim)
            room -= int(sizes[victim])
    return chosen


@dataclass(frozen=True, slots=True)
class LoopCosts:
    """What tasks take that read whole partitions of runs, in page transfers (equations 4.1 to 4.3).

    In equation 4.3 the inner partition is read once for each cluster of itself; it is once for each of the outer one.

    >>> costs = LoopCosts(access=10, read=4)
    >>> costs.of_md_task(np.array([3]), np.array([8])).tolist()
    [58.0]
    >>> costs.of_dd_task(np.array([[1], [2]]), np.array([[4], [6]])).tolist()
    [146.0]
    """

    access: float = 40.0
    """Finding a place on disk."""
    read: float = 16.0
    """Pages that are read at once."""

    def of_md_task(self, runs: Int64, pages: Int64) -> Float64:
        """Reading a partition of one side."""
        return np.asarray((runs + pages / self.read) * self.access + pages, np.float64)

    def of_dd_task(self, runs: Int64, pages: Int64, fan_in: int = 0) -> Float64:
        """Reading one side's partition a half of the room at a time, and the other's once for each; nothing is merged,
        so there is no fan-in.
        """
        scan = (runs + 2 * pages / self.read) * self.access + pages
        return np.asarray(scan[0] + np.ceil(2 * pages[0] / self.read) * scan[1], np.float64)


@dataclass(slots=True)
class Granularity:
    """Whether rows are looked up one by one, or a block at once: that is better when many wait.

    >>> granularity = Granularity(high=100, low=10)
    >>> [granularity.blocks(waiting) for waiting in (50, 100, 50, 9, 50)]
    [False, True, True, False, False]
    """

    high: int
    low: int
    in_blocks: bool = False

    def blocks(self, waiting: int) -> bool:
        """Whether it is a block's turn, with so many rows waiting."""
        if waiting >= self.high:
            self.in_blocks = True
        elif waiting < self.low:
            self.in_blocks = False
        return self.in_blocks
