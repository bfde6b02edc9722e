"""Sorting rows by their hashes: by the upper bits, a few at a time, and the few rows that agree in those one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.arrays import Int32, Int64, Numbers, Uint64
from watersmeet.kernels.compile import inlined, kernel

_DIGIT = 11
_PLACES = 1 << _DIGIT
_SHORT = 24
_FEW = 512
"""Fewer are sorted by comparing them in less time than digits are counted."""


@kernel
def sort_rows(
    entries: Int64,
    first: int,
    count: int,
    out_hashes: Uint64,
    out_rows: Numbers,
    hashes: Uint64,
    rows: Int32,
    step: int = 2,
) -> None:
    """So many rows of a hash index from `first` on, by ascending hash, those of one hash by their numbers. Hashes are
    `step` words apart.

    `hashes` and `rows` are room for as many on their way. Hashes are spread evenly, so that hardly any two agree in two
    digits; where many do, they are sorted with steps that become smaller.
    """
    mask = np.uint64(_PLACES - 1)
    lower, upper = np.uint64(64 - 2 * _DIGIT), np.uint64(64 - _DIGIT)
    ends = np.zeros(_PLACES + 1, np.int64)
    others = np.zeros(_PLACES + 1, np.int64)
    for i in range(count):
        hash_ = np.uint64(entries[step * (first + i)])
        ends[np.int64((hash_ >> lower) & mask) + 1] += 1
        others[np.int64(hash_ >> upper) + 1] += 1
    for place in range(_PLACES):
        ends[place + 1] += ends[place]
        others[place + 1] += others[place]
    for i in range(count):
        hash_ = np.uint64(entries[step * (first + i)])
        lower_digit = np.int64((hash_ >> lower) & mask)
        hashes[ends[lower_digit]] = hash_
        rows[ends[lower_digit]] = i
        ends[lower_digit] += 1
    for i in range(count):
        hash_ = hashes[i]
        upper_digit = np.int64(hash_ >> upper)
        out_hashes[others[upper_digit]] = hash_
        out_rows[others[upper_digit]] = first + rows[i]
        others[upper_digit] += 1
    start = 0
    while start < count:
        digits = out_hashes[start] >> lower
        stop = start + 1
        sorted_ = True
        while stop < count and out_hashes[stop] >> lower == digits:
            sorted_ = sorted_ and out_hashes[stop - 1] <= out_hashes[stop]
            stop += 1
        if not sorted_:
            _put_in_order(out_hashes, out_rows, start, stop)
        start = stop


def ascending(hashes: Int64) -> tuple[Int64, Int32]:
    """Hashes in ascending order, as unsigned words, and which they were; equal ones stay in the order that they have.

    >>> [each.tolist() for each in ascending(np.array([3, -1, 3, 0]))]
    [[0, 3, 3, -1], [3, 0, 2, 1]]
    """
    count = len(hashes)
    if count < _FEW:
        order = np.argsort(hashes.view(np.uint64), kind="stable").astype(np.int32)
        return hashes[order], order
    found, order = np.empty(count, np.int64), np.empty(count, np.int32)
    scratch = np.empty(count, np.uint64), np.empty(count, np.int32)
    sort_rows(hashes, 0, count, found.view(np.uint64), order, *scratch, 1)
    return found, order


@inlined
def _put_in_order(hashes: Any, rows: Any, start: Any, stop: Any) -> Any:
    gap = 1
    if stop - start > _SHORT:
        while gap < (stop - start) // 3:
            gap = 3 * gap + 1
    while gap > 0:
        for i in range(start + gap, stop):
            hash_, row = hashes[i], rows[i]
            j = i
            while j >= start + gap and (hashes[j - gap] > hash_ or (hashes[j - gap] == hash_ and rows[j - gap] > row)):
                hashes[j] = hashes[j - gap]
                rows[j] = rows[j - gap]
                j -= gap
            hashes[j] = hash_
            rows[j] = row
        gap //= 3
