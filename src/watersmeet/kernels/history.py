"""Searching the history of disk scans."""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.arrays import Int64
from watersmeet.kernels.compile import kernel


@kernel
def together(arrived: int, departed: int, other_arrived: int, other_departed: int) -> bool:
    """Whether two rows were in memory at one tick."""
    return arrived < other_departed and other_arrived < departed


@kernel
def covered(visits: Any, arrived: Int64, departed: Int64, ordinal: Int64, hashes: Int64, met: Any) -> None:
    """met[i] |= some visit has arrived[i] < tick < departed[i] and covered the row of this ordinal and hash; visits are
    ordered by tick.

    A visit covers the ordinals [low, high), and of those the rows that stand from one (hash, ordinal) up to another.
    """
    ticks, low, high = visits[0], visits[1], visits[2]
    count = ticks.shape[0]
    for i in range(arrived.shape[0]):
        if ordinal[i] < 0:
            continue
        k = np.searchsorted(ticks, arrived[i], side="right")
        while k < count and ticks[k] < departed[i]:
            if (
                low[k] <= ordinal[i] < high[k]
                and (hashes[i] > visits[3, k] or hashes[i] == visits[3, k] and ordinal[i] >= visits[4, k])
                and (hashes[i] < visits[5, k] or hashes[i] == visits[5, k] and ordinal[i] < visits[6, k])
            ):
                met[i] = True
                break
            k += 1


@kernel
def within(rectangles: Any, left: Int64, right: Int64, met: Any) -> None:
    """met[i] |= some rectangle (left low, left high, right low, right high) holds the point (left[i], right[i])."""
    for i in range(left.shape[0]):
        for k in range(rectangles.shape[0]):
            if rectangles[k, 0] <= left[i] < rectangles[k, 1] and rectangles[k, 2] <= right[i] < rectangles[k, 3]:
                met[i] = True
                break


@kernel
def within_stays(stays: Int64, blocks: Int64, arrived: Int64, met: Any) -> None:
    """met[i] if one of the stays (block, since, until), sorted by block, is of this block and around this arrival."""
    count = stays.shape[1]
    for i in range(blocks.shape[0]):
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if stays[0, middle] < blocks[i]:
                low = middle + 1
            else:
                high = middle
        while low < count and stays[0, low] == blocks[i]:
            if stays[1, low] < arrived[i] < stays[2, low]:
                met[i] = True
            low += 1
