"""Which partitions leave memory when it is full.

A policy sees numbers only: the rows in memory by side and partition, and the statistics of arrivals. It names its
victims in the order in which they go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from watersmeet.core.arrays import Float64, Int64
from watersmeet.core.errors import SpecError
from watersmeet.policies.statistics import PartitionStatistics


@dataclass(frozen=True, slots=True)
class Victim:
    """So many rows of a partition."""

    side: int
    part: int
    rows: int
    first: bool = False
    """Whether it is the first of a policy's victims: something must go."""


class FlushPolicy(Protocol):
    """Chooses victims."""

    def victims(self, rows: Int64, statistics: PartitionStatistics) -> list[Victim]:
        """What to flush, from the rows in memory by side and partition; some have rows."""
        ...


class FlushAll:
    """Everything goes: the longest runs, and nothing left to meet.

    >>> FlushAll().choose(np.array([[3, 0], [9, 1]]))
    [(0, 0), (1, 0), (1, 1)]
    """

    def victims(self, rows: Int64, statistics: PartitionStatistics) -> list[Victim]:
        return _whole(rows, self.choose(rows))

    def choose(self, rows: Int64) -> list[tuple[int, int]]:
        """Every partition that has rows."""
        return [(int(side), int(part)) for side, part in np.argwhere(rows)]


class FlushLargest:
    """XJoin's choice: the partition with the most rows, so that flushes are few and their writes long.

    >>> FlushLargest().choose(np.array([[3, 9], [9, 1]]))
    (0, 1)
    """

    def victims(self, rows: Int64, statistics: PartitionStatistics) -> list[Victim]:
        return _whole(rows, [self.choose(rows)])

    def choose(self, rows: Int64) -> tuple[int, int]:
        """The largest."""
        side, part = np.unravel_index(np.argmax(rows), rows.shape)
        return int(side), int(part)


class FlushSmallest:
    """The partition with the fewest rows, on the ground that few arrivals will look for them.

    >>> FlushSmallest().choose(np.array([[3, 9], [0, 2]]))
    (1, 1)
    """

    def victims(self, rows: Int64, statistics: PartitionStatistics) -> list[Victim]:
        return _whole(rows, [self.choose(rows)])

    def choose(self, rows: Int64) -> tuple[int, int]:
        """The smallest that is not empty."""
        side, part = np.unravel_index(np.argmin(np.where(rows > 0, rows, np.iinfo(np.int64).max)), rows.shape)
        return int(side), int(part)


class FlushAdaptive:
    """HMJ's choice: a pair of partitions that is large, and whose going leaves both sides with like shares of memory.

    Of the pairs with at least the mean number of rows, it is the one after which the sides' rows in memory differ
    least; of several such, the largest.

    >>> FlushAdaptive().choose(np.array([[50, 60, 1], [50, 20, 1]]))
    1
    >>> FlushAdaptive().choose(np.array([[50, 60, 1], [49, 20, 42]]))
    0
    """

    def victims(self, rows: Int64, statistics: PartitionStatistics) -> list[Victim]:
        part = self.choose(rows)
        return _whole(rows, [(side, part) for side in (0, 1) if rows[side, part]])

    def choose(self, rows: Int64) -> int:
        """The partition whose both sides go."""
        sums = rows.sum(axis=0)
        held = np.flatnonzero(sums)
        large = held[sums[held] >= sums[held].mean()]
        left, right = rows.sum(axis=1)
        imbalance = np.abs((left - rows[0, large]) - (right - rows[1, large]))
        return int(large[np.lexsort((-sums[large], imbalance))[0]])


class OptimalFlush:
    """RPJ's choice: the rows that the next arrivals will least likely meet.

    A row of one side is met by arrivals of the other side in its partition. So partitions go in the order of the
    probability that the next arrival falls into their *opposite*, until enough rows have gone.

    Where the paper's figure 4 counts down the number of partitions, this counts down the rows still to flush.

    >>> rows = np.array([[10, 10], [10, 10]])
    >>> OptimalFlush().plan(rows, np.array([[0.35, 0.25], [0.10, 0.30]]), 15)
    [Victim(side=0, part=0, rows=10, first=True), Victim(side=1, part=1, rows=5, first=False)]
    """

    def __init__(self, share: float = 0.1) -> None:
        if not 0 < share <= 1:
            raise SpecError(f"the share of the rows in memory to be flushed is {share}; it must be above 0, at most 1")
        self._share = share

    def victims(self, rows: Int64, statistics: PartitionStatistics) -> list[Victim]:
        return self.plan(rows, statistics.probabilities(), int(np.ceil(self._share * rows.sum())))

    def plan(self, rows: Int64, probabilities: Float64, count: int) -> list[Victim]:
        """The victims for so many rows, given the probability of an arrival by side and partition."""
        met = probabilities[::-1]  # rows of a side are met by arrivals of the other
        # Among equals the largest first: as much is lost, in fewer writes.
        order = np.lexsort((-rows.ravel(), met.ravel()))
        found: list[Victim] = []
        for place in order:
            side, part = (int(i) for i in np.unravel_index(place, rows.shape))
            if count <= 0:
                break
            if rows[side, part]:
                now = min(count, int(rows[side, part]))
                found.append(Victim(side, part, now, not found))
                count -= now
        return found


def _whole(rows: Int64, chosen: list[tuple[int, int]]) -> list[Victim]:
    return [Victim(side, part, int(rows[side, part]), i == 0) for i, (side, part) in enumerate(chosen)]


FLUSH_POLICIES: Mapping[str, type[FlushPolicy]] = {
    "all": FlushAll,
    "smallest": FlushSmallest,
    "largest": FlushLargest,
    "adaptive": FlushAdaptive,
    "optimal": OptimalFlush,
}
"""Every policy by the name that a user gives."""


def flush_policy(choice: FlushPolicy | str) -> FlushPolicy:
    """A policy from its name; a policy is returned as it is."""
    if not isinstance(choice, str):
        return choice
    if choice not in FLUSH_POLICIES:
        raise SpecError(f"there is no flush policy {choice!r}; there are {', '.join(sorted(FLUSH_POLICIES))}")
    return FLUSH_POLICIES[choice]()
