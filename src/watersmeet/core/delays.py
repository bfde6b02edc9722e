"""How long rows waited for their answer: a histogram in constant memory."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from watersmeet.core.arrays import Float64, Int64

_STEPS = 8
_BUCKETS = 64 * _STEPS
_MOST_MARKS = 4096


class Delays:
    """Counts of delays, in buckets that grow by a twelfth; quantiles are right to that.

    >>> delays = Delays()
    >>> delays.add(np.array([1000, 2000, 500_000]))
    >>> delays.count, 0.0018 < delays.quantile(0.5) < 0.0022, round(delays.mean, 4)
    (3, True, 0.1677)
    """

    nbytes = 8 * _BUCKETS

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        self._total = 0

    @property
    def count(self) -> int:
        """Rows so far."""
        return int(self._counts.sum())

    @property
    def mean(self) -> float:
        """Seconds."""
        count = self.count
        return self._total / count / 1e6 if count else 0.0

    def add(self, microseconds: Int64, times: int = 1) -> None:
        """So long some rows have waited, each of which stands for so many."""
        if len(microseconds) and microseconds.min() == microseconds.max():  # those that came together
            self.add_same(microseconds[0] / 1e6, times * len(microseconds))
            return
        waited = np.maximum(microseconds, 0)
        buckets = np.minimum((_STEPS * np.log2(waited + 1.0)).astype(np.int64), _BUCKETS - 1)
        self._counts += times * np.bincount(buckets, minlength=_BUCKETS)
        self._total += times * int(waited.sum())

    def add_same(self, seconds: float, count: int) -> None:
        """So many rows have all waited equally long."""
        waited = max(0, round(seconds * 1e6))
        self._counts[min(int(_STEPS * np.log2(waited + 1.0)), _BUCKETS - 1)] += count
        self._total += waited * count

    def plus(self, *others: Delays) -> Delays:
        """These delays and others, counted together."""
        both = Delays()
        for each in (self, *others):
            both._counts += each._counts
            both._total += each._total
        return both

    def quantile(self, share: float) -> float:
        """Seconds that this share of the rows waited at most; 0 if there are none."""
        count = self.count
        if not count:
            return 0.0
        bucket = int(np.searchsorted(np.cumsum(self._counts), share * count))
        return float(2.0 ** ((bucket + 0.5) / _STEPS) - 1.0) / 1e6 if bucket else 0.0

    def median_and_p99(self) -> tuple[float, float]:
        """Seconds that half of the rows waited at most, and 99 in 100."""
        return self.quantile(0.5), self.quantile(0.99)

    def to_state(self) -> list[list[int]]:
        """For JSON."""
        used = np.flatnonzero(self._counts)
        return [used.tolist(), self._counts[used].tolist(), [self._total]]

    def load(self, state: list[list[int]]) -> None:
        """From JSON."""
        self._counts[state[0]] = state[1]
        self._total = state[2][0]


class Marks:
    """When the rows of which ticks arrived: a few thousand marks, of which two become one as they grow too many.

    Rows that share a mark are taken to have come with the first of them: nobody waits longer than is told.

    >>> marks = Marks()
    >>> marks.add(10, now=1.0); marks.add(20, now=2.0)
    >>> marks.times(np.array([10, 11])).tolist(); marks.forget(10); marks.first
    [1.0, 2.0]
    2.0
    """

    def __init__(self) -> None:
        self._ticks: list[int] = []
        self._times: list[float] = []

    @property
    def first(self) -> float | None:
        """When the oldest rows arrived that somebody may ask for; None if there are none."""
        return self._times[0] if self._times else None

    def add(self, tick: int, now: float) -> None:
        """Rows up to this tick have arrived by now."""
        self._ticks.append(tick)
        self._times.append(now)
        if len(self._ticks) > _MOST_MARKS:
            last = self._ticks[-1:] if len(self._ticks) % 2 else []
            self._ticks, self._times = self._ticks[1::2] + last, self._times[::2]

    def clear(self) -> None:
        """Nobody will ask for any of them again."""
        self._ticks, self._times = [], []

    def forget(self, tick: int) -> None:
        """Nobody will ask for rows up to a tick again."""
        place = bisect_right(self._ticks, tick)
        del self._ticks[:place], self._times[:place]

    def count_from(self, tick: int) -> None:
        """Ticks are counted from this one on now; those before are forgotten."""
        self.forget(tick)
        self._ticks = [max(0, each - tick) for each in self._ticks]

    def times(self, ticks: Int64) -> Float64 | None:
        """When rows arrived; None if that is not known."""
        if not self._ticks:
            return None
        places = np.searchsorted(self._ticks, ticks, side="left")
        found: Float64 = np.asarray(self._times)[np.minimum(places, len(self._times) - 1)]
        return found
