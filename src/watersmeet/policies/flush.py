"""Which partition leaves memory when it is full."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class FlushPolicy(Protocol):
    """Chooses a victim."""

    def victim(self, rows: NDArray[np.int64]) -> tuple[int, int]:
        """The side and the partition to flush, from the rows in memory by side and partition; some have rows."""
        ...


class FlushLargest:
    """XJoin's choice: the partition with the most rows, so that flushes are few and their writes long.

    >>> FlushLargest().victim(np.array([[3, 9], [9, 1]]))
    (0, 1)
    """

    def victim(self, rows: NDArray[np.int64]) -> tuple[int, int]:
        side, part = np.unravel_index(np.argmax(rows), rows.shape)
        return int(side), int(part)
