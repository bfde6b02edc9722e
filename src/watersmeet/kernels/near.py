"""Whether points are near each other, exactly.

Of doubles, a first look at the rounded sum of squares decides all but those at the very edge. There the sum is taken
without rounding: a difference, and a product, of two doubles is the sum of two others (the rounded one, and what it
lacks), and such numbers are added up into parts that do not overlap, of which the largest has the sum's sign. All is
scaled by a power of two first, so that the radius is about one and nothing overflows; what would lose bits at the small
end is left to the caller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Bytes
from watersmeet.kernels.compile import inlined, kernel

FAR, NEAR, UNDECIDED = 0, 1, 2
_SPLITTER = 134217729.0
"""2^27 + 1: halves a double's bits."""
_MARGIN = 2.0**-45
"""More than all that rounding can make of a sum of squares, as a part of it."""
_LEAST = 2.0**-300
"""Products of numbers that are no smaller, and what these lack, are doubles in full."""
_MOST_PARTS = 24


@inlined
def _lacking(first: Any, second: Any, total: Any) -> Any:
    """What the rounded sum of two numbers lacks."""
    part = total - first
    return (first - (total - part)) + (second - part)


@inlined
def _product_lacking(first: Any, second: Any, product: Any) -> Any:
    """What the rounded product of two numbers lacks."""
    wide = _SPLITTER * first
    first_high = wide - (wide - first)
    first_low = first - first_high
    wide = _SPLITTER * second
    second_high = wide - (wide - second)
    second_low = second - second_high
    return first_low * second_low - (
        ((product - first_high * second_high) - first_low * second_high) - first_high * second_low
    )


@kernel
def _add(parts: Any, count: int, number: float) -> int:
    """Add a number to parts that do not overlap, from the smallest to the largest; returns how many there are now."""
    for i in range(count):
        total = number + parts[i]
        parts[i] = _lacking(number, parts[i], total)
        number = total
    parts[count] = number
    return count + 1


@kernel
def _add_product(parts: Any, count: int, first: float, second: float) -> int:
    product = first * second
    count = _add(parts, count, _product_lacking(first, second, product))
    return _add(parts, count, product)


@kernel
def _at_the_edge(left: Any, right: Any, i: int, radius: float, scales: Any, parts: Any) -> int:
    """The sum of squares less that of the radius, without rounding."""
    count = _add_product(parts, 0, -radius, radius)
    for d in range(left.shape[0]):
        high = left[d, i] - right[d, i]
        low = _lacking(left[d, i], -right[d, i], high)
        scaled_high, scaled_low = high * scales[0] * scales[1], low * scales[0] * scales[1]
        if (high != 0.0 and abs(scaled_high) < _LEAST) or (low != 0.0 and abs(scaled_low) < _LEAST):
            return UNDECIDED
        count = _add_product(parts, count, scaled_high, scaled_high)
        if low != 0.0:
            count = _add_product(parts, count, 2.0 * scaled_high, scaled_low)
            count = _add_product(parts, count, scaled_low, scaled_low)
    for at in range(count - 1, -1, -1):
        if parts[at] != 0.0:
            return NEAR if parts[at] < 0.0 else FAR
    return NEAR


@kernel
def near_doubles(
    left: NDArray[np.float64], right: NDArray[np.float64], radius: float, scales: NDArray[np.float64], found: Bytes
) -> int:
    """Which pairs of points, a row of numbers for each dimension, are near; returns how many are undecided.

    The product of the two scales is a power of two that brings the radius to between a half and one.
    """
    parts = np.empty(_MOST_PARTS)
    scaled = radius * scales[0] * scales[1]
    square = scaled * scaled
    undecided = 0
    for i in range(left.shape[1]):
        total, far = 0.0, False
        for d in range(left.shape[0]):
            apart = abs(left[d, i] - right[d, i])
            far |= not apart <= radius  # rounding keeps the order: then it is truly beyond
            apart = apart * scales[0] * scales[1]
            total += apart * apart
        if far or total > square * (1.0 + _MARGIN):
            found[i] = FAR
        elif total < square * (1.0 - _MARGIN) or square == 0.0:
            found[i] = NEAR
        else:
            found[i] = _at_the_edge(left, right, i, scaled, scales, parts)
            undecided += found[i] == UNDECIDED
    return undecided


@inlined
def _apart(one: Any, other: Any) -> Any:
    """The distance of two words, which may take all 64 bits."""
    return np.uint64(one) - np.uint64(other) if one >= other else np.uint64(other) - np.uint64(one)


@kernel
def near_words(
    left: NDArray[np.int64], right: NDArray[np.int64], radius: np.uint64, square: np.uint64, found: Bytes
) -> None:
    """Which pairs of points of whole numbers are near; the radius is below 2^31."""
    for i in range(left.shape[1]):
        total, far = np.uint64(0), False
        for d in range(left.shape[0]):
            apart = _apart(left[d, i], right[d, i])
            far |= apart > radius
            total += apart * apart
        found[i] = NEAR if not far and total <= square else FAR


@kernel
def near_far_words(
    left: NDArray[np.int64], right: NDArray[np.int64], radius: float, square: float, found: Bytes
) -> int:
    """The same for any radius, but that some are left undecided: how many. `square` is in units of the radius."""
    undecided = 0
    for i in range(left.shape[1]):
        total = 0.0
        for d in range(left.shape[0]):
            apart = np.float64(_apart(left[d, i], right[d, i])) / radius
            total += apart * apart
        found[i] = FAR if total > square else NEAR
        if square * (1.0 - _MARGIN) <= total <= square * (1.0 + _MARGIN):
            found[i] = UNDECIDED
            undecided += 1
    return undecided
