"""What is known of the partitions: how much has arrived, and where the next row will likely fall."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from watersmeet.core.arrays import Float64, Int64
from watersmeet.core.saved import Saved

UNIT = 1024
"""Rows received from both inputs together that make a unit of time."""
DECAY = 0.8
"""How much of the past a unit leaves."""


class PartitionStatistics(Saved):
    """Arrivals by side and partition, and from them the probability of where the next row falls.

    The probability that the next row is of side i and partition j is P(i) P(j | i). The second factor is the share of
    the side's rows that fell there so far. The first follows the speeds of the inputs, which change: it is the share of
    *recent* rows, where each unit of time leaves `decay` of what was there and adds `1 - decay` of its own.

    A unit is so many arrivals, not seconds: which input is next depends on their relative speeds alone, and a silence
    says nothing about them.

    >>> statistics = PartitionStatistics(2, decay=0.5, unit=4)
    >>> statistics.arrived(0, np.array([3, 1])); statistics.arrived(1, np.array([0, 4]))
    >>> statistics.probabilities().tolist()
    [[0.375, 0.125], [0.0, 0.5]]
    >>> statistics.ended(1)
    >>> statistics.probabilities().tolist()
    [[0.75, 0.25], [0.0, 0.0]]
    """

    SAVED: ClassVar[tuple[str, ...]] = ("total", "_recent", "_units", "_in_unit", "_ended")

    def __init__(self, partitions: int, decay: float = DECAY, unit: int = UNIT) -> None:
        self.total = np.zeros((2, partitions), np.int64)
        """Rows that ever arrived."""
        self._decay = decay
        self._unit = unit
        self._recent = np.zeros(2)
        self._units = 0
        self._in_unit = np.zeros(2, np.int64)
        self._ended = [False, False]

    def arrived(self, side: int, counts: Int64) -> None:
        """Some rows came, so many in each partition."""
        self.total[side] += counts
        count = int(counts.sum())
        while count:
            now = min(count, self._unit - int(self._in_unit.sum()))
            self._in_unit[side] += now
            count -= now
            if self._in_unit.sum() == self._unit:
                kept = self._decay if self._units else 0.0
                self._recent = kept * self._recent + (1 - kept) * self._in_unit
                self._in_unit[:] = 0
                self._units += 1

    def ended(self, side: int) -> None:
        """Nothing more will come from an input."""
        self._ended[side] = True

    def probabilities(self) -> Float64:
        """Where the next row falls, by side and partition; nowhere if both inputs have ended."""
        recent = (self._recent if self._units else self._in_unit).astype(np.float64)
        # An input that has not been heard of lately may come back: it keeps one row's worth of probability.
        recent = np.maximum(recent, self.total.any(axis=1))
        recent[self._ended] = 0.0
        totals = self.total.sum(axis=1)
        shares: Float64 = self.total / np.maximum(1, totals)[:, None]
        everything = float(recent.sum())
        if not everything:
            return np.zeros_like(shares)
        return shares * (recent / everything)[:, None]
