"""A chained hash index over flat arrays, probed by whole batches.

```
heads  int32[partitions * buckets]      entries  int64[2 * rows]
 bucket ──▶ link ───────────────────────▶ (hash, link) ──▶ (hash, link) ──▶ 0
```

Where rows are indexed by several attributes, the entries of one row lie side by side: `step` words from one row to the
next, and `entries` begins with the first row's words of the attribute.

A link is a row number plus one, so that zeroed memory is an empty index. The bucket of a row lies within its
partition's range of buckets, so that dropping a partition clears one slice of `heads`. New rows go to the front of a
chain: the rows of one hash are met from the newest to the oldest, however many buckets there are.

Rows that leave in any order are unlinked, or replaced, in place: the order of a chain stays.

A ring is the index of a queue: rows come at one end and leave at the other, and nothing is ever unlinked. Rows are
numbered as they come. Entry n lies at n modulo the size of the ring, and a chain leads from newer rows to older ones;
so the first entry that is older than the oldest row in the queue ends its chain, whatever lies there now.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels.compile import kernel, prefetch

AHEAD = 16
_GROUP = 128
"""Hashes that are looked up side by side at most."""
_FEWEST = 4
"""And at least: where so few have too many matches, chains are long, and are gone through one after the other."""
_PAIRS = 512
"""Matches of a group that can be noted before they are put in order."""
# The scratch words: links to go on with, whose they are, matches of each hash, and the hash and row of each match.
_COUNTS = 2 * _GROUP
_PROBES = 3 * _GROUP
_ROWS = _PROBES + _PAIRS
_SCRATCH = _ROWS + _PAIRS


@kernel
def partitions_of(hashes: Int64, bits: int, parts: Int32) -> None:
    """The top bits of each hash."""
    shift = np.uint64(63 - bits)
    for i in range(hashes.shape[0]):
        parts[i] = (np.uint64(hashes[i]) >> np.uint64(1)) >> shift


@kernel
def link_rows(
    hashes: Int64, parts: Int32, rows: Int32, entries: Int64, heads: Int32, buckets: int, step: int = 2
) -> None:
    """Put rows into the index, in their order."""
    mask = buckets - 1
    count = hashes.shape[0]
    for i in range(count):
        if i + AHEAD < count:
            prefetch(heads, np.intp(parts[i + AHEAD] * buckets + (hashes[i + AHEAD] & mask)))
        row = np.int64(rows[i])
        bucket = parts[i] * buckets + (hashes[i] & mask)
        entries[step * row] = hashes[i]
        entries[step * row + 1] = heads[bucket]
        heads[bucket] = row + 1


@kernel
def relink_span(part: int, first: int, count: int, entries: Int64, heads: Int32, buckets: int, step: int = 2) -> None:
    """Put a span of rows that have their hashes already into other heads, in their order."""
    mask = buckets - 1
    for row in range(first, first + count):
        ahead = row + AHEAD
        if ahead < first + count:
            prefetch(heads, np.intp(part * buckets + (entries[step * ahead] & mask)))
        bucket = part * buckets + (entries[step * row] & mask)
        entries[step * row + 1] = heads[bucket]
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
    step: int = 2,
    first: int = 0,
) -> tuple[int, int, int, int]:
    """Look up hashes[start:stop], and write the pairs from `found` on until the buffers are full.

    Returns the pairs now in the buffers, the next hash, the link to go on with (-1: from that hash's head), and how
    many entries were visited. Calling it again with these goes on where it stopped. Where chains lead from newer rows
    to older ones, those before `first` can be left out.
    """
    capacity = out_probe.shape[0]
    mask = buckets - 1
    visited = 0
    width = _GROUP
    scratch = np.empty(_SCRATCH, np.int64)
    i = start
    while i < stop:
        end = min(stop, i + width) if link < 0 else i + 1
        if link < 0 and width >= _FEWEST:
            pairs, seen = _side_by_side(hashes, parts, i, end, entries, heads, buckets, step, first, scratch)
            if pairs < 0:
                width //= 2
                continue
            if pairs <= capacity - found:
                _put_in_order(i, end - i, pairs, scratch, out_probe, out_row, found)
                found += pairs
                visited += seen
                i = end
                continue
        while i < end:
            wanted = hashes[i]
            if link < 0:
                link = int(heads[parts[i] * buckets + (wanted & mask)])
            while link > first:
                row = link - 1
                visited += 1
                if entries[step * row] == wanted:
                    if found == capacity:
                        return found, i, link, visited - 1
                    out_probe[found] = i
                    out_row[found] = row
                    found += 1
                link = entries[step * row + 1]
            link = -1
            i += 1
    return found, i, -1, visited


@kernel
def _side_by_side(
    hashes: Int64,
    parts: Int32,
    start: int,
    stop: int,
    entries: Int64,
    heads: Int32,
    buckets: int,
    step: int,
    first: int,
    scratch: Int64,
) -> tuple[int, int]:
    """Go through the chains of a group of hashes together, an entry of each at a time, and note the matches.

    How long a chain is cannot be foreseen, and a processor that guesses wrong at its end waits longer than a look-up
    takes. So nothing is decided by jumps here: what does not count is overwritten by what comes next. Returns the
    matches and the entries visited; -1 matches if they are too many to be noted.
    """
    mask = buckets - 1
    for j in range(start, stop):
        prefetch(heads, np.intp(parts[j] * buckets + (hashes[j] & mask)))
    going = 0
    for j in range(stop - start):
        head = int(heads[parts[start + j] * buckets + (hashes[start + j] & mask)])
        prefetch(entries, np.intp(step * (head - 1)))
        scratch[going] = head
        scratch[_GROUP + going] = j
        scratch[_COUNTS + j] = 0
        going += head > first
    pairs = 0
    visited = 0
    while 0 < going <= _PAIRS - pairs:
        visited += going
        left = 0
        for k in range(going):
            row = scratch[k] - 1
            j = scratch[_GROUP + k]
            scratch[_PROBES + pairs] = j
            scratch[_ROWS + pairs] = row
            same = entries[step * row] == hashes[start + j]
            pairs += same
            scratch[_COUNTS + j] += same
            following = entries[step * row + 1]
            prefetch(entries, np.intp(step * (following - 1)))
            scratch[left] = following
            scratch[_GROUP + left] = j
            left += following > first
        going = left
    return (pairs if going == 0 else -1), visited


@kernel
def _put_in_order(
    start: int, width: int, pairs: int, scratch: Int64, out_probe: Int32, out_row: Int32, found: int
) -> None:
    """Write the matches that were noted, hash by hash; those of one hash are in their order already."""
    place = found
    for j in range(width):
        count = scratch[_COUNTS + j]
        scratch[_COUNTS + j] = place
        place += count
    for k in range(pairs):
        j = scratch[_PROBES + k]
        place = scratch[_COUNTS + j]
        scratch[_COUNTS + j] = place + 1
        out_probe[place] = start + j
        out_row[place] = scratch[_ROWS + k]


@kernel
def hashes_of(rows: Int32, entries: Int64, hashes: Int64, step: int = 2) -> None:
    """The hashes of some rows."""
    count = rows.shape[0]
    for i in range(count):
        if i + AHEAD < count:
            prefetch(entries, np.intp(step * np.int64(rows[i + AHEAD])))
        hashes[i] = entries[step * np.int64(rows[i])]


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


@kernel
def link_ring(hashes: Int64, first: int, ring_hashes: Int64, ring_links: Int64, heads: Int64) -> None:
    """Put rows `first`, `first` + 1, ... into the index; sizes are powers of two, links are row numbers plus one."""
    mask = ring_hashes.shape[0] - 1
    buckets = heads.shape[0] - 1
    for i in range(hashes.shape[0]):
        number = np.int64(first + i)
        bucket = hashes[i] & buckets
        ring_hashes[number & mask] = hashes[i]
        ring_links[number & mask] = heads[bucket]
        heads[bucket] = number + 1


@kernel
def probe_ring(
    hashes: Any,
    start: int,
    stop: int,
    link: int,
    oldest: int,
    ring_hashes: Int64,
    ring_links: Int64,
    heads: Int64,
    out_probe: Int32,
    out_number: Int64,
) -> tuple[int, int, int, int]:
    """Look up hashes[start:stop] until the buffers are full.

    Returns the pairs found, the next hash, the link to go on with (-1: from that hash's head), and the entries visited.
    """
    mask = ring_hashes.shape[0] - 1
    buckets = heads.shape[0] - 1
    capacity = out_probe.shape[0]
    found = 0
    visited = 0
    for i in range(start, stop):
        if link < 0:
            link = heads[hashes[i] & buckets]
        while link > oldest:
            slot = (link - 1) & mask
            visited += 1
            if ring_hashes[slot] == hashes[i]:
                if found == capacity:
                    return found, i, link, visited - 1
                out_probe[found] = i
                out_number[found] = link - 1
                found += 1
            link = ring_links[slot]
        link = -1
    return found, stop, -1, visited
