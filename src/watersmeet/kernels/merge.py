"""Joining rows that are sorted by their keys: those of the same key, or those of all keys from one to another."""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.arrays import Int32, Int64, Numbers, Uint64
from watersmeet.kernels.addressed import read64
from watersmeet.kernels.compile import inlined, kernel

_LONG = 32
"""Rows of one bucket, from which on a key among them is found by halving."""
_STRIDE = 512
"""Rows that are sifted at once."""
FINER = 4
"""Bits of a key by which marks are finer than buckets: most keys that nobody looks for meet no mark."""


@kernel
def probe_sorted(
    low: Int64 | Uint64,
    high: Int64 | Uint64,
    start: int,
    stop: int,
    link: int,
    rows: Int64 | Uint64,
    near: int,
    out_probe: Int32,
    out_row: Numbers,
    found: int,
) -> tuple[int, int, int, int, int]:
    """Find in the ascending keys `rows` those from low[i] to high[i], for all i from `start` up to `stop`, and write
    the pairs from `found` on until the buffers are full. Both `low` and `high` ascend; they are one array where keys
    must be the same.

    `near` is a row at or before the first that can match. Returns the pairs now in the buffers, the next i, the row to
    go on with (-1: the first that matches), the next `near`, and how many rows were visited.
    """
    capacity = out_probe.shape[0]
    count = rows.shape[0]
    visited = 0
    i = start
    while i < stop:
        wanted = low[i]
        if link >= 0:
            row = link
        else:
            # Steps that double until they pass the place, then halving: short where both sides are alike dense, and
            # logarithmic where one is much denser.
            step = 1
            first = near
            last = near
            while last < count and rows[last] < wanted:
                first = last + 1
                last += step
                step *= 2
                visited += 1
            last = min(last, count)
            while first < last:
                middle = (first + last) // 2
                if rows[middle] < wanted:
                    first = middle + 1
                else:
                    last = middle
            near = first
            row = first
        most = high[i]
        while row < count and rows[row] <= most:
            visited += 1
            if found == capacity:
                return found, i, row, near, visited - 1
            out_probe[found] = i
            out_row[found] = row
            found += 1
            row += 1
        link = -1
        i += 1
    return found, i, -1, near, visited


@kernel
def divide_sorted(low: Uint64, high: Uint64, first: Any, shift: int, starts: Int32, marked: Uint64) -> None:
    """Prepare ranges, from low[i] to high[i], both of which ascend, for keys that look for those that hold them.

    Keys stand by their distance from `first` in steps of two to the power of `shift`, in `starts.size - 1` buckets; of
    each bucket, `starts` tells the first range that ends there or later. In `marked` there is a bit for each sixteenth
    of a bucket: whether any range reaches into it. Where keys must be the same, both ends are one array. A range may be
    empty, and then end before the first one begins.
    """
    buckets = starts.shape[0] - 1
    finer = np.uint64(max(0, shift - FINER))
    marked[:] = 0
    bucket = 0
    unmarked = np.uint64(0)
    for i in range(low.shape[0]):
        if high[i] < first:
            continue
        last = (high[i] - first) >> finer
        place = max((low[i] - first) >> finer, unmarked)
        while place <= last:
            marked[place >> np.uint64(6)] |= np.uint64(1) << (place & np.uint64(63))
            place += np.uint64(1)
        unmarked = max(unmarked, place)
        own = np.int64((high[i] - first) >> np.uint64(shift))
        while bucket <= own:
            starts[bucket] = i
            bucket += 1
    while bucket <= buckets:
        starts[bucket] = low.shape[0]
        bucket += 1


@inlined
def _lower_bound(address: Any, low: Any, high: Any, wanted: Any) -> Any:
    """The first of ascending hashes at an address that is not below the wanted one."""
    while low < high:
        middle = (low + high) // 2
        if np.uint64(read64(address + 8 * middle)) < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def bounds_in_runs(addresses: Int64, first: Any, last: Any, lows: Int64, highs: Int64) -> None:
    """Of the rows of each run from its low up to its high, those with hashes from `first` to `last`, both included."""
    for run in range(addresses.shape[0]):
        lows[run] = _lower_bound(addresses[run], lows[run], highs[run], first)
        if last != np.uint64(0xFFFFFFFFFFFFFFFF):
            highs[run] = _lower_bound(addresses[run], lows[run], highs[run], last + np.uint64(1))


@inlined
def _sift(marked: Any, first: Any, finer: Any, address: Any, row: Any, stop: Any, kept: Any) -> Any:
    """Which rows from one up to another may have a key that is looked for; returns how many.

    Most have none, and the few that do cannot be foreseen: so nothing is decided by jumps here.
    """
    count = np.int64(0)
    for k in range(row, stop):
        place = (np.uint64(read64(address + 8 * k)) - first) >> finer
        kept[count] = k
        count += np.int64((marked[place >> np.uint64(6)] >> (place & np.uint64(63))) & np.uint64(1))
    return count


@kernel
def scan_runs(
    low: Uint64,
    high: Uint64,
    marks: Int64,
    starts: Int32,
    marked: Uint64,
    first: Any,
    shift: int,
    addresses: Int64,
    lows: Int64,
    highs: Int64,
    thresholds: Int64,
    cursor: Int64,
    stop: int,
    most: int,
    out_probe: Int32,
    out_row: Numbers,
    found: int,
) -> tuple[int, int]:
    """Go through the keys of runs, from the one at the cursor up to `stop`, and find all ranges, from low[i] to
    high[i], that hold them; `divide_sorted` has divided these. A pair counts if the range's mark is above the run's
    threshold. As both ends ascend, ranges that hold a key follow each other.

    Writes pairs from `found` on, of which the rows are numbered with their run, until the buffers are full or about
    `most` rows were passed. The cursor tells the run, the row there, and the range to go on with (-1: its first).
    Returns the pairs now in the buffers, and how many rows were passed.
    """
    capacity = out_probe.shape[0]
    many = low.shape[0]
    finer = np.uint64(max(0, shift - FINER))
    kept = np.empty(_STRIDE, np.int64)
    passed = 0
    run, row, link = cursor[0], cursor[1], cursor[2]
    while run < stop:
        address, top, threshold = addresses[run], highs[run], thresholds[run]
        row = max(row, lows[run])
        while row < top:
            behind = min(top, row + _STRIDE, row + most - passed)
            count = _sift(marked, first, finer, address, row, behind, kept)
            for k in range(count):
                wanted = np.uint64(read64(address + 8 * kept[k]))
                bucket = np.int64((wanted - first) >> np.uint64(shift))
                end = np.int64(starts[bucket + 1])
                i = np.int64(starts[bucket])
                if link >= 0:
                    i = link
                    link = -1
                elif end - i > _LONG:
                    while i < end:
                        middle = (i + end) // 2
                        if high[middle] < wanted:
                            i = middle + 1
                        else:
                            end = middle
                else:
                    while i < end and high[i] < wanted:
                        i += 1
                while i < many and low[i] <= wanted:
                    if marks[i] > threshold:
                        if found == capacity:
                            cursor[0], cursor[1], cursor[2] = run, kept[k], i
                            return found, passed + kept[k] - row
                        out_probe[found] = i
                        out_row[found] = (run << 32) + kept[k]
                        found += 1
                    i += 1
            passed += behind - row
            row = behind
            if passed >= most:
                cursor[0], cursor[1], cursor[2] = run, row, -1
                return found, passed
        run += 1
        row = np.int64(0)
    cursor[0], cursor[1], cursor[2] = run, 0, -1
    return found, passed


@kernel
def hashes_in_runs(addresses: Int64, rows: Numbers, hashes: Uint64) -> None:
    """The hashes of rows that are numbered with their run."""
    for i in range(rows.shape[0]):
        hashes[i] = np.uint64(read64(addresses[rows[i] >> 32] + 8 * (rows[i] & 0xFFFFFFFF)))
