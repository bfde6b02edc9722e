"""Which key of a group makes for most of its work, told from a small sample of its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from watersmeet.core.arrays import Int32
from watersmeet.spark.rebalance.reorganizing import TopKey

_FROM_EACH_PIECE = 256
_MOST = 4096
"""Of each side: with more, every second one goes."""


class KeySample:
    """The hashes of some rows' keys, by side.

    >>> sample = KeySample()
    >>> for side in (0, 1):
    ...     sample.add(side, np.array([7, 7, 7, 1 + side], np.int32))
    >>> top = sample.top([40, 40], results=9000)
    >>> top.key, round(top.share, 3), top.rows
    (7, 0.998, (30, 30))
    """

    def __init__(self) -> None:
        self._drawn: list[list[Int32]] = [[], []]

    def add(self, side: int, keys: Int32) -> None:
        """Draw from some rows of a side."""
        drawn = self._drawn[side]
        drawn.append(keys[:: -(-len(keys) // _FROM_EACH_PIECE)].copy())
        if sum(map(len, drawn)) > _MOST:
            drawn[:] = [np.concatenate(drawn)[::2]]

    def top(self, rows: Sequence[int], results: int) -> TopKey | None:
        """The heaviest key, if so many rows of each side led to so many results; None without rows."""
        if not sum(rows):
            return None
        counts = []
        keys = np.unique(np.concatenate([part for drawn in self._drawn for part in drawn]))
        for side, drawn in enumerate(self._drawn):
            places = np.searchsorted(keys, np.concatenate(drawn)) if drawn else np.zeros(0, np.int64)
            found = np.bincount(places, minlength=len(keys))
            counts.append(found * (rows[side] / max(1, len(places))))
        pairs = counts[0] * counts[1]
        of_rows = (counts[0] + counts[1]) / sum(rows)
        of_pairs = pairs / max(1.0, float(pairs.sum()))
        # A row that comes and a result that is found take about the same time.
        shares = (of_rows * sum(rows) + of_pairs * results) / (sum(rows) + results)
        best = int(np.argmax(shares))
        return TopKey(int(keys[best]), float(shares[best]), (int(counts[0][best]), int(counts[1][best])))
