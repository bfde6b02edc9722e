"""How long rows waited for their answer: a histogram in constant memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_STEPS = 8
_BUCKETS = 64 * _STEPS


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

    def add(self, microseconds: NDArray[np.int64]) -> None:
        """So long some rows have waited."""
        waited = np.maximum(microseconds, 0)
        buckets = np.minimum((_STEPS * np.log2(waited + 1.0)).astype(np.int64), _BUCKETS - 1)
        self._counts += np.bincount(buckets, minlength=_BUCKETS)
        self._total += int(waited.sum())

    def quantile(self, share: float) -> float:
        """Seconds that this share of the rows waited at most; 0 if there are none."""
        count = self.count
        if not count:
            return 0.0
        bucket = int(np.searchsorted(np.cumsum(self._counts), share * count))
        return float(2.0 ** ((bucket + 0.5) / _STEPS) - 1.0) / 1e6 if bucket else 0.0

    def to_state(self) -> list[list[int]]:
        """For JSON."""
        used = np.flatnonzero(self._counts)
        return [used.tolist(), self._counts[used].tolist(), [self._total]]

    def load(self, state: list[list[int]]) -> None:
        """From JSON."""
        self._counts[state[0]] = state[1]
        self._total = state[2][0]
