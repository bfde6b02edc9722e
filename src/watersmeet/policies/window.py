"""The choices of window joins that spill, as arithmetic.

For EWJ and AH-EWJ: whose memory shrinks, what is dumped in which order. For RPWJ: what leaves memory, what a reactive
task takes, how many rows are looked up at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from watersmeet.core.arrays import Float64, Int64
from watersmeet.core.saved import Saved


@dataclass(slots=True)
class ArrivalFrequency(Saved):
    """How many rows of each input came lately: counted, and at the end of every epoch of so many rows, decayed.

    >>> frequency = ArrivalFrequency(epoch=100, decay=0.4)
    >>> frequency.add(0, 90); frequency.add(1, 20); frequency.counts
    [36.0, 8.0]
    """

    SAVED: ClassVar[tuple[str, ...]] = ("counts", "since")

    epoch: int
    decay: float
    counts: list[float] = field(default_factory=lambda: [0.0, 0.0])
    since: int = 0

    def add(self, side: int, rows: int) -> None:
        """Rows of an input came."""
        self.counts[side] += rows
        self.since += rows
        if self.since >= self.epoch:
            self.since = 0
            self.counts = [self.decay * count for count in self.counts]


def supplier(
    arriving: int, counts: Sequence[float], sizes: Sequence[int], least: Sequence[int], threshold: float
) -> int:
    """Which input gives up a block when one comes on `arriving` and there is no room: the other one if it is faster by
    a threshold and holds more than its least, since rows of the slower input are met more often.

    >>> supplier(0, [100, 150], [50, 50], [10, 10], threshold=0.4), supplier(0, [100, 130], [50, 50], [10, 10], 0.4)
    (1, 0)
    >>> supplier(0, [100, 150], [50, 10], [10, 10], threshold=0.4)
    0
    """
    other = 1 - arriving
    faster = counts[other] >= (1 + threshold) * counts[arriving]
    return other if faster and sizes[other] > least[other] else arriving


@dataclass(slots=True)
class Train(Saved):
    """In which order blocks are dumped: one partition's after the other's, but none before all those have gone that
    are older than a limit.

    So the blocks of a partition lie together on disk, and yet old blocks do not wait there behind young ones.
    """

    SAVED: ClassVar[tuple[str, ...]] = ("limit", "part")

    length: int
    """How many blocks' ages may be mixed."""
    limit: int = -1
    part: int = 0

    def order(self, stale: Sequence[tuple[int, int, int]], count: int) -> list[tuple[int, int]]:
        """The next `count` of the stale blocks, given as (age, partition, block) with small ages for old blocks.

        >>> train = Train(length=4)
        >>> stale = [(1, 0, 10), (2, 1, 11), (3, 0, 12), (4, 1, 13), (5, 0, 14)]
        >>> train.order(stale, 3), train.limit
        ([(0, 10), (0, 12), (1, 11)], 4)
        >>> train.order([(4, 1, 13), (5, 0, 14)], 2)
        [(1, 13), (0, 14)]
        """
        taken: list[tuple[int, int]] = []
        rest = sorted(stale)
        while rest and len(taken) < count:
            if rest[0][0] > self.limit:
                self.limit = rest[min(self.length, len(rest)) - 1][0]
                self.part = 0
            inside = sorted(
                (each for each in rest if each[0] <= self.limit),
                key=lambda each: (each[1] < self.part, each[1:2], each),
            )
            for _, part, block in inside[: count - len(taken)]:
                taken.append((part, block))
                self.part = part
            chosen = set(taken)
            rest = [each for each in rest if each[1:] not in chosen]
        return taken


def tail_blocks(memory: int, disk: int, together: int, probe: float, access: float) -> int:
    """How many of a window's blocks in memory are best used for the tail of the window on disk, not for recent rows.

    Equations 3.1 to 3.3 of the thesis, for each block that arrives: the recent rows are dumped, and the disk is read,
    once for every `probe` of their blocks; the tail is read once for every filling. Reading costs an access for so many
    blocks as lie `together`, and a transfer for each; `access` is in transfers.

    >>> tail_blocks(memory=100, disk=0, together=16, probe=0.95, access=40), tail_blocks(100, 1000, 16, 0.95, 40)
    (16, 9)
    """

    def reading(blocks: int) -> float:
        return -(-blocks // together) * access + blocks

    def cost(tail: int) -> float:
        fresh = max(1.0, probe * (memory - tail))
        return (reading(disk) + access + fresh) / fresh + reading(tail) / tail

    return min(range(1, max(2, memory // 2)), key=cost)


class PartitionFrequency(Saved):
    """How many rows fell into each partition of each side lately: at the end of an epoch of so many rows, what was
    counted so far keeps a share of its weight.

    >>> frequency = PartitionFrequency(2, epoch=10, decay=0.4)
    >>> frequency.add(0, np.array([6, 2])); frequency.add(1, np.array([0, 5])); frequency.counts.round(1).tolist()
    [[2.4, 0.8], [0.0, 2.0]]
    """

    SAVED: ClassVar[tuple[str, ...]] = ("counts", "_since")

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
