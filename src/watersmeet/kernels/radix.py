"""The order of words, digit by digit: a few passes over an array, however its words lie."""

from __future__ import annotations

import numpy as np

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels.compile import kernel

_DIGIT = 11
_FEW = 1024
"""Fewer rows are sorted by comparing them in less time than digits are counted."""


def sorted_order(words: Int64) -> Int32:
    """In which order words ascend; equal ones stay in the order that they have.

    >>> sorted_order(np.array([3, -1, 3, 0])).tolist()
    [1, 3, 0, 2]
    """
    if len(words) < _FEW:
        return np.argsort(words, kind="stable").astype(np.int32)
    order, spare = np.empty(len(words), np.int32), np.empty(len(words), np.int32)
    return spare if _order_digits(words, order, spare) else order


@kernel
def _order_digits(words: Int64, order: Int32, spare: Int32) -> bool:
    """Order rows by one digit after the other, from the lowest on, leaving out those that all words agree in; whether
    the order is in `spare`.
    """
    many = words.shape[0]
    differing = np.int64(0)
    for i in range(many):
        order[i] = i
        differing |= words[i] ^ words[0]
    counts = np.empty((1 << _DIGIT) + 1, np.int64)
    mask = np.uint64((1 << _DIGIT) - 1)
    sign = np.uint64(1 << 63)  # the sign is the highest bit, and is the other way round
    source, target = order, spare
    swapped = False
    for shift in range(0, 64, _DIGIT):
        at = np.uint64(shift)
        if not (np.uint64(differing) >> at) & mask:
            continue
        counts[:] = 0
        for i in range(many):
            counts[np.intp(((np.uint64(words[i]) ^ sign) >> at) & mask) + 1] += 1
        for i in range(1 << _DIGIT):
            counts[i + 1] += counts[i]
        for i in range(many):
            row = source[i]
            digit = np.intp(((np.uint64(words[row]) ^ sign) >> at) & mask)
            target[counts[digit]] = row
            counts[digit] += 1
        source, target = target, source
        swapped = not swapped
    return swapped
