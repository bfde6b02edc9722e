"""Which partitions leave memory when it is full.

A policy sees numbers only: the rows in memory by side and partition, and the statistics of arrivals. It names its
victims in the order in which they go.

In a join of several inputs it also chooses whose partitions leave. With k inputs and a share f of their rows in memory,
a new row finds all its partners with probability f to the power of k - 1 if rows were flushed without regard to each
other. If all inputs flush the same partitions, and are joined on one attribute, it finds all of them or none, with
probability f [1]_.

.. [1] S. Viglas, J. Naughton, J. Burger: Maximizing the Output Rate of Multi-Way Join Queries over Streaming
   Information Sources, VLDB 2003, section 2.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

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


Victims: TypeAlias = "dict[int, list[int]]"
"""Partitions by input."""
ManyFlush: TypeAlias = "Callable[[Int64, Int64, int], Victims]"
"""From the rows in memory and on disk, by input and partition, and a tick, to those that are to leave."""

_SHARE = 8
"""One part in so many of the rows in memory leaves at once: going through the indexes pays only for many."""
_LEAST_ROWS = 64
"""Fewer rows than these are not worth a run of their own."""


def coordinated(in_memory: Int64, on_disk: Int64, tick: int) -> Victims:
    """The same partitions of all inputs, those first of which something is on disk already.

    >>> coordinated(np.array([[400, 500], [400, 100]]), np.array([[0, 0], [0, 3]]), 1)
    {0: [1], 1: [1]}
    """
    rows = in_memory.sum(axis=0)
    begun = on_disk.sum(axis=0) > 0
    order = np.lexsort((np.arange(len(rows)), -rows, ~begun))
    return _of_all_inputs(in_memory, [int(part) for part in order if rows[part]])


def _of_all_inputs(in_memory: Int64, order: list[int]) -> Victims:
    wanted = max(_LEAST_ROWS, -(-int(in_memory.sum()) // _SHARE))
    victims: Victims = {}
    for part in order:
        if wanted <= 0:
            break
        for number in np.flatnonzero(in_memory[:, part]):
            victims.setdefault(int(number), []).append(part)
        wanted -= int(in_memory[:, part].sum())
    return victims


def largest(in_memory: Int64, on_disk: Int64, tick: int) -> Victims:
    """The partitions that have most rows, whosever they are.

    >>> largest(np.array([[400, 500], [400, 100]]), np.zeros((2, 2), np.int64), 1)
    {0: [1]}
    """
    return _one_by_one(in_memory, np.argsort(-in_memory.ravel(), kind="stable"))


def scattered(in_memory: Int64, on_disk: Int64, tick: int) -> Victims:
    """Any partitions, drawn by a generator that the tick seeds."""
    return _one_by_one(in_memory, np.random.default_rng(tick).permutation(in_memory.size))


def _one_by_one(in_memory: Int64, order: NDArray[np.intp]) -> Victims:
    wanted = max(_LEAST_ROWS, -(-int(in_memory.sum()) // _SHARE))
    victims: Victims = {}
    for place in order:
        number, part = divmod(int(place), in_memory.shape[1])
        if wanted > 0 and in_memory[number, part]:
            victims.setdefault(number, []).append(part)
            wanted -= int(in_memory[number, part])
    return victims


POLICIES: Mapping[str, ManyFlush] = {"coordinated": coordinated, "largest": largest, "random": scattered}


def many_flush(name: str, on_one_attribute: bool) -> ManyFlush:
    """The policy of a name; `auto` is `coordinated` where that is possible, else `largest`."""
    if name == "auto":
        name = "coordinated" if on_one_attribute else "largest"
    if name not in POLICIES:
        raise SpecError(f"flush={name!r} is not known; choose auto, {', '.join(sorted(POLICIES))}")
    if name == "coordinated" and not on_one_attribute:
        raise SpecError(
            "flush='coordinated' needs inputs that are all joined on one attribute, and these are joined on several; "
            "choose 'largest' or 'random'"
        )
    return POLICIES[name]
