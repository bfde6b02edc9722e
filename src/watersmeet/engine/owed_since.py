"""How long rows may owe, and how late what they found was: what Confluence of two inputs and of several share."""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from watersmeet.core.arrays import Float64
from watersmeet.core.delays import Delays, Marks
from watersmeet.core.report import Lateness
from watersmeet.core.windows import parse_seconds


class OwedSince:
    """Part of an operator: when rows came that owe, how long they may, and how long results waited for that.

    Rows that settle at different times are counted apart: those of each of two inputs; of several, all settle at once.
    Each count has marks of when its rows came, by numbers that grow as they come.

    >>> owed = OwedSince("2 s", counts=1)
    >>> owed.came[0].add(10, now=5.0); owed.came[0].add(20, now=6.5)
    >>> owed.is_overdue(0, now=6.9), owed.is_overdue(0, now=7.0), owed.wake_at([0])
    (False, True, 7.0)
    >>> owed.came[0].forget(10); owed.wake_at([0]), owed.wake_at([])
    (8.5, None)
    """

    def __init__(self, delay: float | str | timedelta | None, counts: int) -> None:
        self._delay = None if delay is None else parse_seconds(delay, "delay")
        self.came = tuple(Marks() for _ in range(counts))
        """When rows in memory came that may have to wait; of several inputs, those on disk that owe, too."""
        self._written: list[float | None] = [None] * counts
        """When the first of the rows came that were written before they had settled."""
        self.lateness = Delays()
        """How long results waited that were not found as their last row came."""
        self.longest = 0.0
        """Seconds, of all of them."""

    # --- how long they may ---

    def first(self, count: int) -> float | None:
        """When the oldest row came that may owe; None if there is none, or nobody noted it."""
        known = [at for at in (self._written[count], self.came[count].first) if at is not None]
        return min(known, default=None)

    def is_overdue(self, count: int, now: float) -> bool:
        """Whether the oldest row has owed for as long as it may, if it owes."""
        if self._delay is None:
            return False
        first = self.first(count)
        return first is not None and now >= first + self._delay

    def wake_at(self, owing: list[int]) -> float | None:
        """When the oldest row of the counts that owe will have owed for as long as it may; None: never."""
        if self._delay is None:
            return None
        firsts = map(self.first, owing)
        return min((first + self._delay for first in firsts if first is not None), default=None)

    def rows_left(self, count: int, owing: bool) -> None:
        """Rows have left memory, and others will have their numbers; whether these still owe."""
        self._written[count] = self.first(count) if owing else self._written[count]
        self.came[count].clear()

    def runs_settled(self, count: int) -> None:
        """Rows that were written before they had settled have done so."""
        self._written[count] = None

    # --- how late results are ---

    def note(self, waited: Float64, times: int = 1) -> None:
        """Results have waited so long, each of which stands for so many."""
        if len(waited):
            self.longest = max(self.longest, float(waited.max()))
            self.lateness.add((waited * 1e6).astype(np.int64), times)

    def figures(self, owing: int) -> Lateness:
        """For people; so many rows have yet to settle."""
        return Lateness(*self.lateness.median_and_p99(), self.longest, owing)
