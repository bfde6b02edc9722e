"""Rows in the order of their hashes: sorted, or read off a hash index.

Sorting goes by the upper bits, a few at a time, and puts the few rows that agree in those in order one by one.

Where the heads of an index stand by the top bits of the hash, buckets follow each other as hashes do, and only the few
rows of one bucket have to be put in order. A chain leads from newer rows to older ones: behind a row that is too old
all are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.arrays import Int32, Int64, Numbers, Uint64
from watersmeet.kernels.compile import inlined, kernel, prefetch

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
            _put_in_order(out_hashes, out_rows, start, stop, False)
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
def _put_in_order(hashes: Any, rows: Any, start: Any, stop: Any, newest_first: Any) -> Any:
    """Sort a few rows by their hashes, those of one hash by their numbers; many with steps that become smaller."""
    gap = 1
    if stop - start > _SHORT:
        while gap < (stop - start) // 3:
            gap = 3 * gap + 1
    while gap > 0:
        for i in range(start + gap, stop):
            hash_, row = hashes[i], rows[i]
            j = i
            while j >= start + gap and (
                hashes[j - gap] > hash_ or (hashes[j - gap] == hash_ and (rows[j - gap] > row) != newest_first)
            ):
                hashes[j] = hashes[j - gap]
                rows[j] = rows[j - gap]
                j -= gap
            hashes[j] = hash_
            rows[j] = row
        gap //= 3


CURSOR = 4
"""Words of a cursor: the bucket (-1: at the end); whether its chain is too long for the buffer and is gone through hash
by hash, the hash at hand, and the link to go on with."""
_AHEAD = 16


@kernel
def relink(entries: Int64, count: int, heads: Int32, bits: int) -> None:
    """Put all rows into other heads, in their order."""
    shift = np.uint64(63 - bits)
    for row in range(count):
        if row + _AHEAD < count:
            ahead = np.uint64(entries[2 * (row + _AHEAD)])
            prefetch(heads, np.intp((ahead >> np.uint64(1)) >> shift))
        bucket = np.intp((np.uint64(entries[2 * row]) >> np.uint64(1)) >> shift)
        entries[2 * row + 1] = heads[bucket]
        heads[bucket] = row + 1


@kernel
def walk(
    entries: Int64, heads: Int32, low: int, high: int, cursor: Int64, out_hashes: Uint64, out_rows: Numbers
) -> Any:
    """The next rows from `low` up to `high` by ascending hash, as many as the buffers hold; returns how many."""
    room = out_rows.shape[0]
    buckets = heads.shape[0]
    found: Any = 0
    bucket = cursor[0]
    if bucket < 0:
        return 0
    while bucket < buckets:
        if cursor[1]:
            found = _take_hash(entries, low, high, cursor, out_hashes, out_rows, found)
            if cursor[3] > 0:
                cursor[0] = bucket
                return found
            following, some = _next_hash(entries, heads[bucket], low, high, np.uint64(cursor[2]), True)
            if some:
                cursor[2] = np.int64(following)
                cursor[3] = heads[bucket]
            else:
                cursor[1] = 0
                bucket += 1
            continue
        if bucket + _AHEAD < buckets:
            prefetch(entries, np.intp(2 * (np.int64(heads[bucket + _AHEAD]) - 1)))
        count = np.int64(0)
        link = np.int64(heads[bucket])
        while link > low:
            count += np.int64(link <= high)
            link = entries[2 * link - 1]
        if count > room - found:
            if found:
                break
            first, _ = _next_hash(entries, heads[bucket], low, high, np.uint64(0), False)
            cursor[1] = 1
            cursor[2] = np.int64(first)
            cursor[3] = heads[bucket]
            continue
        if count:
            _take_bucket(entries, heads[bucket], low, high, out_hashes, out_rows, found)
            _put_in_order(out_hashes, out_rows, found, found + count, True)
            found += count
        bucket += 1
    cursor[0] = bucket if bucket < buckets else -1
    return found


@kernel
def take_numbered(
    words: Int64, rows: Int32, start: int, low: int, high: int, out_keys: Uint64, out_rows: Numbers
) -> tuple[int, int]:
    """Of sorted words and the rows that they belong to, those from `start` on whose rows are numbered from `low` up to
    `high`, as many as the buffers hold; returns the place behind the last, and how many there are.

    Words are in signed order, what they become in that of unsigned ones.
    """
    room = out_rows.shape[0]
    found = 0
    place = start
    while place < words.shape[0] and found < room:
        row = rows[place]
        out_keys[found] = np.uint64(words[place]) ^ np.uint64(1 << 63)
        out_rows[found] = row
        found += low <= row < high
        place += 1
    return place, found


@inlined
def _take_bucket(entries: Any, head: Any, low: Any, high: Any, out_hashes: Any, out_rows: Any, at: Any) -> Any:
    link = np.int64(head)
    while link > low:
        if link <= high:
            out_hashes[at] = np.uint64(entries[2 * link - 2])
            out_rows[at] = link - 1
            at += 1
        link = entries[2 * link - 1]


@inlined
def _take_hash(entries: Any, low: Any, high: Any, cursor: Any, out_hashes: Any, out_rows: Any, at: Any) -> Any:
    """Rows of the hash at hand, as far as there is room; leaves the link to go on with, 0 if there is none."""
    link = cursor[3]
    while link > low and at < out_rows.shape[0]:
        if link <= high and entries[2 * link - 2] == cursor[2]:
            out_hashes[at] = np.uint64(cursor[2])
            out_rows[at] = link - 1
            at += 1
        link = entries[2 * link - 1]
    cursor[3] = link if link > low else 0
    return at


@inlined
def _next_hash(entries: Any, head: Any, low: Any, high: Any, above: Any, strictly: Any) -> Any:
    """The least hash of a chain, or the least above another; and whether there is one."""
    best = np.uint64(0)
    some = False
    link = np.int64(head)
    while link > low:
        if link <= high:
            hash_ = np.uint64(entries[2 * link - 2])
            if (hash_ > above or not strictly) and (not some or hash_ < best):
                best = hash_
                some = True
        link = entries[2 * link - 1]
    return best, some
