"""The choices of window joins that spill, as arithmetic: whose memory shrinks, what is dumped in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class ArrivalFrequency:
    """How many rows of each input came lately: counted, and at the end of every epoch of so many rows, decayed.

    >>> frequency = ArrivalFrequency(epoch=100, decay=0.4)
    >>> frequency.add(0, 90); frequency.add(1, 20); frequency.counts
    [36.0, 8.0]
    """

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
class Train:
    """In which order blocks are dumped: one partition's after the other's, but none before all those have gone that
    are older than a limit.

    So the blocks of a partition lie together on disk, and yet old blocks do not wait there behind young ones.
    """

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
