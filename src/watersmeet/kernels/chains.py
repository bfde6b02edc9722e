"""Hash chains over rows that come and go in any order, kept newest first.

They have the form that `hash_index` builds and probes: `entries` holds (hash, link) of every row, `step` words from one
row to the next, `heads` a link by bucket, a link is a row number plus one. What is here changes chains in place and
keeps their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.kernels.compile import kernel

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@kernel
def unlink_blocks(entries: Int64, heads: Int32, gone: Any, block_rows: int, step: int) -> None:
    """Take the rows of blocks that are gone out of all chains."""
    for bucket in range(heads.shape[0]):
        link = np.int64(heads[bucket])
        last = np.int64(-1)  # the row before, of those that stay
        while link > 0:
            row = link - 1
            following = entries[step * row + 1]
            if gone[row // block_rows]:
                if last < 0:
                    heads[bucket] = following
                else:
                    entries[step * last + 1] = following
            else:
                last = row
            link = following


@kernel
def spread(entries: Int64, heads: Int32, wider: Int32, tails: Int64, step: int) -> None:
    """Move the chains of few heads to more, a power of two times as many; `tails` has room for one bucket's share."""
    few, many = heads.shape[0], wider.shape[0]
    for bucket in range(few):
        tails[:] = -1
        link = np.int64(heads[bucket])
        while link > 0:
            row = link - 1
            link = entries[step * row + 1]
            target = entries[step * row] & (many - 1)
            share = target // few
            if tails[share] < 0:
                wider[target] = row + 1
            else:
                entries[step * tails[share] + 1] = row + 1
            entries[step * row + 1] = 0
            tails[share] = row


@kernel
def sort_chains(entries: Int64, heads: Int32, ticks: Int64, step: int) -> None:
    """Bring every chain into the order newest first, by merging ever longer stretches of it."""
    for bucket in range(heads.shape[0]):
        head = np.int64(heads[bucket])
        width = 1
        merges = 2
        while head > 0 and merges > 1:
            merges = 0
            rest = head
            head = np.int64(0)
            tail = np.int64(0)
            while rest > 0:
                merges += 1
                first = rest
                second = first
                left = 0
                while left < width and second > 0:
                    second = entries[step * (second - 1) + 1]
                    left += 1
                right = width
                while left > 0 or (right > 0 and second > 0):
                    from_first = left > 0 and (right == 0 or second == 0 or ticks[first - 1] >= ticks[second - 1])
                    if from_first:
                        taken = first
                        first = entries[step * (first - 1) + 1]
                        left -= 1
                    else:
                        taken = second
                        second = entries[step * (second - 1) + 1]
                        right -= 1
                    if tail == 0:
                        head = taken
                    else:
                        entries[step * (tail - 1) + 1] = taken
                    tail = taken
                rest = second
            if tail > 0:
                entries[step * (tail - 1) + 1] = 0
            width *= 2
        heads[bucket] = head


@kernel
def unlink_rows(rows: Int32, parts: Int32, dead: Any, entries: Int64, heads: Int32, buckets: int) -> None:
    """Take rows out of their chains; all of them are marked in `dead` with 1, which becomes 2.

    A chain is gone through once, however many of its rows go.
    """
    mask = buckets - 1
    for i in range(rows.shape[0]):
        if dead[rows[i]] == 2:
            continue
        bucket = parts[i] * buckets + (entries[2 * np.int64(rows[i])] & mask)
        link = np.int64(heads[bucket])
        last = np.int64(-1)
        while link > 0:
            row = link - 1
            following = entries[2 * row + 1]
            if dead[row] == 1:
                dead[row] = 2
                if last < 0:
                    heads[bucket] = following
                else:
                    entries[2 * last + 1] = following
            else:
                last = row
            link = following


@kernel
def replace_rows(olds: Int32, news: Int32, parts: Int32, entries: Int64, heads: Int32, buckets: int) -> None:
    """Let new rows stand in the chains where old ones stood."""
    mask = buckets - 1
    for i in range(olds.shape[0]):
        old, new = np.int64(olds[i]), np.int64(news[i])
        bucket = parts[i] * buckets + (entries[2 * old] & mask)
        entries[2 * new] = entries[2 * old]
        entries[2 * new + 1] = entries[2 * old + 1]
        link = np.int64(heads[bucket])
        last = np.int64(-1)
        while link != old + 1:
            last = link - 1
            link = entries[2 * last + 1]
        if last < 0:
            heads[bucket] = new + 1
        else:
            entries[2 * last + 1] = new + 1
