"""Joining rows that are sorted by their hashes."""

from __future__ import annotations

from watersmeet.core.arrays import Int32, Int64, Numbers, Uint64
from watersmeet.kernels.compile import kernel


@kernel
def probe_sorted(
    hashes: Int64 | Uint64,
    start: int,
    stop: int,
    link: int,
    rows: Int64 | Uint64,
    near: int,
    out_probe: Int32,
    out_row: Numbers,
    found: int,
) -> tuple[int, int, int, int, int]:
    """Look up the ascending hashes[start:stop] in the ascending `rows`, and write the pairs from `found` on until the
    buffers are full.

    `near` is a row at or before the first that can match. Returns the pairs now in the buffers, the next hash, the row
    to go on with (-1: that hash's first), the next `near`, and how many rows were visited.
    """
    capacity = out_probe.shape[0]
    count = rows.shape[0]
    visited = 0
    i = start
    while i < stop:
        wanted = hashes[i]
        if link >= 0:
            row = link
        else:
            # Steps that double until they pass the place, then halving: short where both sides are alike dense, and
            # logarithmic where one is much denser.
            step = 1
            low = near
            high = near
            while high < count and rows[high] < wanted:
                low = high + 1
                high += step
                step *= 2
                visited += 1
            high = min(high, count)
            while low < high:
                middle = (low + high) // 2
                if rows[middle] < wanted:
                    low = middle + 1
                else:
                    high = middle
            near = low
            row = low
        while row < count and rows[row] == wanted:
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
