"""Searching the history of disk scans."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.kernels.compile import kernel

Int64 = NDArray[np.int64]


@kernel
def covered(visits: Any, arrived: Int64, departed: Int64, ordinal: Int64, met: Any) -> None:
    """met[i] |= some visit has arrived[i] < tick < departed[i] and low <= ordinal[i] < high; visits are ordered by
    tick.
    """
    ticks, low, high = visits[0], visits[1], visits[2]
    count = ticks.shape[0]
    for i in range(arrived.shape[0]):
        if ordinal[i] < 0:
            continue
        k = np.searchsorted(ticks, arrived[i], side="right")
        while k < count and ticks[k] < departed[i]:
            if low[k] <= ordinal[i] < high[k]:
                met[i] = True
                break
            k += 1
