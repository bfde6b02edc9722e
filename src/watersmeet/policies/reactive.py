"""What to do in a silence: the task that promises the most results for its cost.

A memory partition can be joined with the other side's disk (an md-task), and both sides' disks with each other (a
dd-task). A task's rate is the number of results it is expected to give, by what it reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from watersmeet.core.arrays import Float64, Int64
from watersmeet.core.errors import SpecError
from watersmeet.core.saved import Saved

KINDS = {"md": ("md",), "dd": ("dd",), "both": ("md", "dd")}


@dataclass(frozen=True, slots=True)
class AccessCosts:
    """What a page costs where the disk has to go there first, and where it just goes on."""

    random: float = 1.0
    sequential: float = 0.1

    def of_md_task(self, runs: Int64, pages: Int64) -> Float64:
        """Scanning a partition of one side: each run's first page is a random access.

        >>> AccessCosts(random=10, sequential=1).of_md_task(np.array([2]), np.array([5])).tolist()
        [23.0]
        """
        return np.asarray(runs * self.random + (pages - runs) * self.sequential, np.float64)

    def of_dd_task(self, runs: Int64, pages: Int64, fan_in: int) -> Float64:
        """Merging a partition's runs (by side and partition), all passes: each page is read and written at random.

        The paper takes the number of passes from the pages; what is merged are runs.

        >>> AccessCosts(random=10, sequential=1).of_dd_task(np.array([[4], [1]]), np.array([[8], [2]]), 2).tolist()
        [400.0]
        """
        passes = np.ceil(np.log(np.maximum(runs, 2)) / np.log(fan_in) - 1e-9).max(axis=0)
        return np.asarray(2 * self.random * pages.sum(axis=0) * np.maximum(passes, 1), np.float64)


class ExpectedResults(Saved):
    """How many new results each task is expected to give, kept up to date by arrivals, flushes and tasks.

    Two rows of one partition match with a chance that is taken to be the same for all (one in the number of values of
    the partition), so results are counted in pairs of rows that have not met. In memory rows meet when they arrive, so
    an arrival leaves unmet what lies on the other side's disk at that time. Those pairs are promised by the md-task of
    its partition until the task is done, and by the dd-task once the row is flushed before that.

    By the paper, a flushed row takes from its md-task all rows *now* on the other side's disk. Those that were flushed
    after the row had arrived have met it in memory and were never counted: what was added is what is taken away, unless
    somebody asks for the paper's own numbers.

    >>> expected = ExpectedResults(partitions=1)
    >>> expected.arrived(0, np.array([4]), other_disk=np.array([0]))
    >>> expected.flushed(0, 0)
    >>> expected.arrived(1, np.array([3]), other_disk=np.array([4])); expected.md.tolist(), expected.dd.tolist()
    ([[0.0], [12.0]], [0.0])
    >>> expected.flushed(1, 0); expected.md.tolist(), expected.dd.tolist()
    ([[0.0], [0.0]], [12.0])
    """

    SAVED: ClassVar[tuple[str, ...]] = ("md", "dd")

    def __init__(self, partitions: int) -> None:
        self.md = np.zeros((2, partitions))
        """Of joining a side's memory with the other's disk."""
        self.dd = np.zeros(partitions)
        """Of joining both disks."""

    def arrived(self, side: int, counts: Int64, other_disk: Int64) -> None:
        """Rows came, so many in each partition, while so many lay on the other side's disk."""
        self.md[side] += counts * other_disk

    def flushed(self, side: int, part: int, share: float = 1.0, by_paper: tuple[int, int] | None = None) -> None:
        """Rows of a partition went from memory to disk: what their visits have not found is left to merging.

        They had this share of what was expected of the partition. By the paper: pairs with rows that lay on disk when
        they came, and with all that lie there now, of those rows that no visit has seen.

        >>> expected = ExpectedResults(partitions=1)
        >>> expected.arrived(0, np.array([4]), other_disk=np.array([5]))
        >>> expected.flushed(0, 0, share=0.25, by_paper=(5, 8)); expected.md.tolist(), expected.dd.tolist()
        ([[12.0], [0.0]], [5.0])
        """
        leaves = share * self.md[side, part]
        gains, loses = by_paper or (leaves, leaves)
        self.dd[part] += gains
        self.md[side, part] = max(0.0, self.md[side, part] - loses)

    def forgotten(self, side: int, part: int) -> None:
        """A partition left memory for good."""
        self.md[side, part] = 0.0

    def visited(self, side: int, part: int, share: float) -> None:
        """An md-task has covered this share of the disk."""
        self.md[side, part] *= 1.0 - share

    def merged(self, part: int, share: float) -> None:
        """A dd-task has brought together this share of all pairs on disk."""
        self.dd[part] *= 1.0 - share


@dataclass(frozen=True, slots=True)
class ReactiveTask:
    """A memory side and partition for an md-task; a partition for a dd-task."""

    kind: str
    part: int
    side: int = 0


class TaskCosts(Protocol):
    """What tasks cost, by the runs and pages of partitions."""

    def of_md_task(self, runs: Int64, pages: Int64) -> Float64:
        """Joining memory with partitions of one side."""
        ...

    def of_dd_task(self, runs: Int64, pages: Int64, fan_in: int) -> Float64:
        """Joining partitions of both sides."""
        ...


class BestRate:
    """RPJ's choice: of 2n md-tasks and n dd-tasks the one with the most expected results per cost."""

    def __init__(self, reactive: str = "both", costs: TaskCosts | None = None) -> None:
        if reactive not in KINDS:
            raise SpecError(f"reactive={reactive!r} is not understood; write 'md', 'dd' or 'both'")
        self._kinds = KINDS[reactive]
        self._costs: TaskCosts = costs or AccessCosts()

    def rates(self, expected: ExpectedResults, runs: Int64, pages: Int64, fan_in: int) -> tuple[Float64, Float64]:
        """Expected results per cost of all md-tasks (by memory side and partition) and dd-tasks (by partition)."""
        md_cost = self._costs.of_md_task(runs[::-1], pages[::-1])
        dd_cost = self._costs.of_dd_task(runs, pages, fan_in)
        md = np.divide(expected.md, md_cost, out=np.zeros_like(expected.md), where=md_cost > 0)
        dd = np.divide(expected.dd, dd_cost, out=np.zeros_like(expected.dd), where=dd_cost > 0)
        return md, dd

    def choose(self, expected: ExpectedResults, runs: Int64, pages: Int64, fan_in: int) -> Iterator[ReactiveTask]:
        """The tasks that promise anything, the best first; of equals, md-tasks first.

        >>> expected = ExpectedResults(2)
        >>> expected.md[1, 0], expected.dd[1] = 50, 400
        >>> runs, pages = np.array([[1, 2], [1, 2]]), np.array([[5, 10], [5, 10]])
        >>> [(task.kind, task.part) for task in BestRate().choose(expected, runs, pages, fan_in=2)]
        [('md', 0), ('dd', 1)]
        """
        md, dd = self.rates(expected, runs, pages, fan_in)
        partitions = len(dd)
        rates = np.concatenate([md.ravel() if "md" in self._kinds else [], dd if "dd" in self._kinds else []])
        places = 2 * partitions if "md" in self._kinds else 0
        for place in np.argsort(-rates, kind="stable"):
            if rates[place] <= 0:
                return
            if place < places:
                yield ReactiveTask("md", int(place % partitions), int(place // partitions))
            else:
                yield ReactiveTask("dd", int(place - places))
