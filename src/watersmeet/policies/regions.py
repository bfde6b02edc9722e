"""DINER's choice of what leaves memory: three regions of values, each judged by the results a row in it has brought.

MINER has three regions for each attribute that an input is joined on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.saved import Saved

LOWER, MIDDLE, UPPER = 0, 1, 2
_LEAST, _MOST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
_IN_A_TIE = (UPPER, LOWER, MIDDLE)
_NEVER = float(np.finfo(np.float64).max)
"""The benefit of a region that has nothing to give up."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Places in the sorted order: of the rows that leave, and of those that only lose their join bit."""

    leave: Int64
    cleared: Int64


class Regions(Saved):
    """One input's lower, middle and upper region, and the results each has taken part in since the last flush.

    ```
    lowest word ├─ lower: about a block ─┤── middle ──┤─ upper: about a block ─┤ highest word
                 flushed from the outside  clock hand   flushed from the outside
    ```

    The region with the fewest results a row is flushed from; if it has too few rows, the next one follows. Before the
    first flush everything is the middle. Where rows come in batches, several flushes may follow on each other: then
    what was counted before the first of them holds for all.

    >>> regions = Regions()
    >>> words = np.arange(10)
    >>> regions.choose(words, np.array([1, 0, 1, 1, 1, 1, 0, 1, 1, 1], np.bool_), 2).leave
    array([1, 6])
    >>> regions.settle(np.delete(words, [1, 6]), 2); regions.lower, regions.upper
    (2, 8)
    >>> regions.joins[:] = 9, 9, 1
    >>> regions.choose(words, np.ones(10, np.bool_), 2).leave
    array([8, 9])
    """

    SAVED: ClassVar[tuple[str, ...]] = ("lower", "upper", "divided", "joins", "_hand", "_known")

    def __init__(self) -> None:
        self.lower = _LEAST
        self.upper = _MOST
        self.divided = False
        self.joins = np.zeros(3, np.int64)
        self._hand: int | None = None
        self._known: list[float] | None = None
        """The benefits at the last flush before which rows had come."""

    def benefits(self, words: Int64) -> tuple[list[float], tuple[int, int]]:
        """Results a row of each region, and where in the sorted words the middle begins and ends."""
        if not self.divided:
            return [_NEVER, 0.0, _NEVER], (0, len(words))
        begins = int(np.searchsorted(words, self.lower, side="right"))
        ends = max(begins, int(np.searchsorted(words, self.upper, side="left")))
        sizes = (begins, ends - begins, len(words) - ends)
        values = [float(self.joins[i]) / size if size else _NEVER for i, size in enumerate(sizes)]
        return values, (begins, ends)

    def choose(self, words: Int64, joined: Bool, count: int, counted: bool = True) -> Choice:
        """Which of the sorted words are to leave, `count` of them if there are as many, given their join bits.

        If rows have not come since the last flush (`counted`), what was known then holds.
        """
        values, (begins, ends) = self.benefits(words)
        if counted or self._known is None:
            self._known = values
        known = self._known
        leave: list[Int64] = []
        cleared = np.empty(0, np.int64)
        missing = min(count, len(words))
        for region in sorted(_IN_A_TIE, key=lambda each: known[each]):
            if region == LOWER:
                taken = np.arange(min(missing, begins))
            elif region == UPPER:
                taken = np.arange(len(words) - min(missing, len(words) - ends), len(words))
            else:
                taken, cleared = self._sweep(words, joined, begins, ends, missing)
            leave.append(taken)
            missing -= len(taken)
            if not missing:
                break
        return Choice(np.sort(np.concatenate(leave)), cleared)

    def _sweep(self, words: Int64, joined: Bool, begins: int, ends: int, count: int) -> tuple[Int64, Int64]:
        """Turn the clock hand over the middle until enough rows without a join bit were met; bits it passes go out."""
        size = ends - begins
        count = min(count, size)
        if not count:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        if self._hand is None:
            start = begins + size // 2
        else:
            start = int(np.searchsorted(words[begins:ends], self._hand, side="right")) + begins
        around = begins + (np.arange(start - begins, start - begins + size) % size)
        idle = np.flatnonzero(~joined[around])
        if len(idle) >= count:
            passed = around[: idle[count - 1] + 1]
            taken = around[idle[:count]]
            last = passed[-1]
        else:  # once around was not enough: now no bit is set, and the hand takes what it meets
            passed = around
            others = around[np.flatnonzero(joined[around])][: count - len(idle)]
            taken = np.concatenate([around[idle], others])
            last = others[-1]
        self._hand = int(words[last])
        return taken, np.setdiff1d(passed, taken)

    def settle(self, words: Int64, count: int) -> None:
        """Divide the words that stay anew, so that the outer regions have about `count` rows, and begin to count."""
        self.joins[:] = 0
        self.divided = len(words) > 0
        if not self.divided:
            self.lower, self.upper = _LEAST, _MOST
            return
        reach = min(count, len(words))
        self.lower, self.upper = int(words[reach - 1]), int(words[-reach])
        if self.lower >= self.upper:  # few rows or few values: the middle is squeezed to nothing, but regions are apart
            above = int(np.searchsorted(words, self.lower, side="right"))
            self.upper = int(words[above]) if above < len(words) else _MOST
            self.lower = min(self.lower, self.upper - 1)


class AttributeRegions(Saved):
    """One input's regions for each of its join attributes; results count in one region of every attribute.

    Counts begin anew with the first rows of another input after a flush: one that follows at once, or for more rows of
    the same input, goes by those of the last. Rows of its own input are no measure: they find rows of the others.

    >>> both = AttributeRegions(2)
    >>> words = [np.arange(10), np.arange(10) * 100]
    >>> both.victim(words)
    0
    >>> both.settle(words, 2); both.attributes[0].joins[:] = 7, 9, 6; both.attributes[1].joins[:] = 8, 2, 12
    >>> both.victim(words)
    1
    """

    SAVED: ClassVar[tuple[str, ...]] = ("_last", "_flushed", "attributes")

    def __init__(self, attributes: int) -> None:
        self.attributes = [Regions() for _ in range(attributes)]
        self._last = attributes - 1
        self._flushed = False

    def victim(self, words: Sequence[Int64]) -> int:
        """The attribute one of whose regions has brought the fewest results a row, given its words in their order.

        Where several have brought equally few, they take turns.
        """
        count = len(self.attributes)
        least = [min(regions.benefits(each)[0]) for regions, each in zip(self.attributes, words, strict=True)]
        self._last = min(range(count), key=lambda number: (least[number], (number - self._last - 1) % count))
        return self._last

    def settle(self, words: Sequence[Int64], count: int) -> None:
        """Divide all attributes' words that stay anew."""
        for regions, each in zip(self.attributes, words, strict=True):
            joins = regions.joins.copy()
            regions.settle(each, count)
            regions.joins[:] = joins
        self._flushed = True

    def rows_arrive(self) -> None:
        """Rows of another input are about to be looked up: begin to count, if there was a flush."""
        if self._flushed:
            for regions in self.attributes:
                regions.joins[:] = 0
            self._flushed = False
