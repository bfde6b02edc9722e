"""A chained hash index over flat arrays, probed by whole batches.

```
heads  int32[partitions * buckets]      entries  int64[2 * rows]
 bucket ──▶ link ───────────────────────▶ (hash, link) ──▶ (hash, link) ──▶ 0
```

A link is a row number plus one, so that zeroed memory is an empty index. The bucket of a row lies within its
partition's range of buckets, so that dropping a partition clears one slice of `heads`. New rows go to the front of a
chain: the rows of one hash are met from the newest to the oldest, however many buckets there are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from watersmeet.kernels.compile import kernel, prefetch

AHEAD = 16
GROUP = 32

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@kernel
def partitions_of(hashes: Int64, bits: int, parts: Int32) -> None:
    """The top bits of each hash."""
    shift = np.uint64(63 - bits)
    for i in range(hashes.shape[0]):
        parts[i] = (np.uint64(hashes[i]) >> np.uint64(1)) >> shift


@kernel
def link_rows(hashes: Int64, parts: Int32, rows: Int32, entries: Int64, heads: Int32, buckets: int) -> None:
    """Put rows into the index, in their order."""
    mask = buckets - 1
    count = hashes.shape[0]
    for i in range(count):
        if i + AHEAD < count:
            prefetch(heads, np.intp(parts[i + AHEAD] * buckets + (hashes[i + AHEAD] & mask)))
        row = np.int64(rows[i])
        bucket = parts[i] * buckets + (hashes[i] & mask)
        entries[2 * row] = hashes[i]
        entries[2 * row + 1] = heads[bucket]
        heads[bucket] = row + 1


@kernel
def relink_span(part: int, first: int, count: int, entries: Int64, heads: Int32, buckets: int) -> None:
    """Put a span of rows that have their hashes already into other heads, in their order."""
    mask = buckets - 1
    for row in range(first, first + count):
        ahead = row + AHEAD
        if ahead < first + count:
            prefetch(heads, np.intp(part * buckets + (entries[2 * ahead] & mask)))
        bucket = part * buckets + (entries[2 * row] & mask)
        entries[2 * row + 1] = heads[bucket]
        heads[bucket] = row + 1


@kernel
def probe(
    hashes: Int64,
    parts: Int32,
    start: int,
    stop: int,
    link: int,
    entries: Int64,
    heads: Int32,
    buckets: int,
    out_probe: Int32,
    out_row: Int32,
    found: int,
    scratch: Int64,
) -> tuple[int, int, int, int]:
    """Look up hashes[start:stop], and write the pairs from `found` on until the buffers are full.

    Returns the pairs now in the buffers, the next hash, the link to go on with (-1: from that hash's head), and how
    many entries were visited. Calling it again with these goes on where it stopped.
    """
    capacity = out_probe.shape[0]
    mask = buckets - 1
    visited = 0
    i = start
    while i < stop:
        if link >= 0:
            group_end = i + 1
            scratch[0] = link
        else:
            group_end = min(stop, i + GROUP)
            for j in range(i, group_end):
                prefetch(heads, np.intp(parts[j] * buckets + (hashes[j] & mask)))
            for j in range(i, group_end):
                head = np.int64(heads[parts[j] * buckets + (hashes[j] & mask)])
                scratch[j - i] = head
                if head > 0:
                    prefetch(entries, np.intp(2 * (head - 1)))
            for j in range(i, group_end):
                head = scratch[j - i]
                if head > 0:
                    second = entries[2 * (head - 1) + 1]
                    if second > 0:
                        prefetch(entries, np.intp(2 * (second - 1)))
        base = i
        while i < group_end:
            wanted = hashes[i]
            link = scratch[i - base]
            while link > 0:
                row = link - 1
                visited += 1
                if entries[2 * row] == wanted:
                    if found == capacity:
                        return found, i, link, visited - 1
                    out_probe[found] = i
                    out_row[found] = row
                    found += 1
                link = entries[2 * row + 1]
            i += 1
        link = -1
    return found, i, -1, visited


@kernel
def place_rows(
    parts: Int32, tails: Int32, used: Int32, block_rows: int, fresh: Int32, owners: Int32, rows: Int32, part_rows: Int64
) -> int:
    """Give each row a slot at the end of its partition; a full block is followed by one of the `fresh` ones.

    `tails` holds each partition's last block (-1: none), `used` its filled slots, `part_rows` all its rows.
    Returns how many fresh blocks were taken; `owners` tells by which partition.
    """
    taken = 0
    for i in range(parts.shape[0]):
        part = parts[i]
        if tails[part] < 0 or used[part] == block_rows:
            tails[part] = fresh[taken]
            owners[taken] = part
            used[part] = 0
            taken += 1
        rows[i] = tails[part] * block_rows + used[part]
        used[part] += 1
        part_rows[part] += 1
    return taken


@kernel
def blocks_needed(parts: Int32, tails: Int32, used: Int32, block_rows: int, counts: Int32) -> int:
    """How many fresh blocks `place_rows` would take; `counts` is left with the rows per partition."""
    counts[:] = 0
    for i in range(parts.shape[0]):
        counts[parts[i]] += 1
    needed = 0
    for part in range(counts.shape[0]):
        room = block_rows - used[part] if tails[part] >= 0 else 0
        over = counts[part] - room
        if over > 0:
            needed += (over + block_rows - 1) // block_rows
    return needed
