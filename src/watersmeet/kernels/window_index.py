"""A chained hash index whose oldest rows are forgotten a block at a time, without touching a chain.

```
heads  int64[partitions * buckets]      entries  int64[4 * rows]
 bucket ──▶ link ───────────────────────▶ (hash, link, time, floor) ──▶ (hash, link, time, floor) ──▶ 0
```

A link is the row's number below the birth of the block that it lies in (32 bits each). Blocks are numbered as they are
opened, and a block that is given up loses its birth: a link whose birth is not its block's any more leads nowhere, and
since the blocks of a partition go in the order of their birth, everything behind it is gone, too.

Times are those of windows (see `core.windows`), or row numbers where windows count rows. A row's floor is the least
time that a row it meets may have had if it arrived before it.

`within` asks the same of rows that were found elsewhere, by their hashes alone: which are close enough in time?
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.kernels.addressed import WORDS as COLUMN_WORDS
from watersmeet.kernels.addressed import described, fetch, numbered, read64
from watersmeet.kernels.compile import inlined, kernel, prefetch

AHEAD = 16
GROUP = 32
WORDS = 4
"""Of each entry."""
SLOT = (1 << 32) - 1


@kernel
def link_rows(
    hashes: Int64,
    parts: Int32,
    rows: Int32,
    times: Int64,
    floors: Int64,
    ticks: Int64,
    entries: Int64,
    all_ticks: Int64,
    heads: Int64,
    buckets: int,
    shift: int,
    births: Int64,
    latest: Int64,
    earliest: Int64,
    least_floor: Int64,
    last_tick: Int64,
) -> None:
    """Put rows into the index, in their order, and note what each block holds."""
    mask = buckets - 1
    count = hashes.shape[0]
    for i in range(count):
        if i + AHEAD < count:
            prefetch(heads, np.intp(parts[i + AHEAD] * buckets + (hashes[i + AHEAD] & mask)))
        row = np.int64(rows[i])
        bucket = parts[i] * buckets + (hashes[i] & mask)
        block = row >> shift
        at = WORDS * row
        entries[at] = hashes[i]
        entries[at + 1] = heads[bucket]
        entries[at + 2] = times[i]
        entries[at + 3] = floors[i]
        heads[bucket] = (births[block] << 32) | row
        all_ticks[row] = ticks[i]
        latest[block] = max(latest[block], times[i])
        earliest[block] = min(earliest[block], times[i])
        least_floor[block] = min(least_floor[block], floors[i])
        last_tick[block] = ticks[i]


@kernel
def relink_blocks(
    part: int,
    blocks: Int64,
    sizes: Int64,
    shift: int,
    births: Int64,
    entries: Int64,
    heads: Int64,
    buckets: int,
) -> None:
    """Put the rows of blocks into other heads, in their order."""
    mask = buckets - 1
    for i in range(blocks.shape[0]):
        birth, first = births[blocks[i]], blocks[i] << shift
        for row in range(first, first + sizes[i]):
            bucket = part * buckets + (entries[WORDS * row] & mask)
            entries[WORDS * row + 1] = heads[bucket]
            heads[bucket] = (birth << 32) | row


@kernel
def probe(
    hashes: Int64,
    parts: Int32,
    times: Int64,
    lows: Int64,
    highs: Int64,
    least_behind: int,
    least_ahead: int,
    start: int,
    stop: int,
    link: int,
    entries: Int64,
    heads: Int64,
    buckets: int,
    shift: int,
    births: Int64,
    out_probe: Int32,
    out_row: Int32,
    found: int,
    scratch: Int64,
) -> tuple[int, int, int, int]:
    """Look up rows that have just arrived: which rows of these hashes have times in [low, high]?

    Not those that are less than `least_behind` older or less than `least_ahead` younger. Stops when the buffers are
    full; returns the pairs now in them, the next hash, the link to go on with (-1: that hash's head) and how many
    entries were visited.
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
                head = heads[parts[j] * buckets + (hashes[j] & mask)]
                scratch[j - i] = head
                if head > 0:
                    prefetch(entries, np.intp(WORDS * (head & SLOT)))
            for j in range(i, group_end):
                head = scratch[j - i]
                if head > 0:
                    second = entries[WORDS * (head & SLOT) + 1]
                    if second > 0:
                        prefetch(entries, np.intp(WORDS * (second & SLOT)))
        base = i
        while i < group_end:
            wanted = hashes[i]
            link = scratch[i - base]
            while link > 0:
                row = link & SLOT
                if births[row >> shift] != link >> 32:
                    break
                visited += 1
                at = WORDS * row
                if entries[at] == wanted:
                    time = entries[at + 2]
                    if lows[i] <= time <= highs[i] and (
                        time <= times[i] - least_behind or time >= times[i] + least_ahead
                    ):
                        if found == capacity:
                            return found, i, link, visited - 1
                        out_probe[found] = i
                        out_row[found] = row
                        found += 1
                link = entries[at + 1]
            i += 1
        link = -1
    return found, i, -1, visited


@inlined
def last_time(time: Any, floor: Any, span: Any, step: Any, landmark: Any, has_landmark: Any) -> Any:
    """`Timing.meets`: the last time of rows that a row of this time and floor meets."""
    if has_landmark:
        if time >= landmark:
            return np.int64(1 << 62)
        return time if floor <= time else time - 1
    if step == 1:
        return time + span
    return ((time + span) // step + 1) * step - 1


@kernel
def scan(
    hashes: Int64,
    times: Int64,
    start: int,
    stop: int,
    link: int,
    wanted: NDArray[np.uint64],
    partition_bits: int,
    entries: Int64,
    all_ticks: Int64,
    heads: Int64,
    buckets: int,
    shift: int,
    births: Int64,
    since: int,
    until: int,
    window: Int64,
    out_probe: Int32,
    out_row: Int32,
    found: int,
    places: Int64,
    scratch: Int64,
) -> tuple[int, int, int, int]:
    """Look up rows that left memory: which rows in memory that arrived later, at ticks in (since, until], meet them?

    `wanted` has a bit for every hash worth a look-up. `window` is: counted, the span, step, landmark and whether there
    is one of the rows in memory, the least ages behind and ahead. Stops and goes on like `probe`.
    """
    capacity = out_probe.shape[0]
    mask = buckets - 1
    bits = np.uint64(wanted.shape[0] * 64 - 1)
    part_shift = np.uint64(63 - partition_bits)
    visited = 0
    i = start
    while i < stop:
        count = 0
        if link >= 0:
            places[0], scratch[0] = i, link
            count = 1
            i += 1
        else:
            # Most rows are worth no look-up; those that are go on together, so that memory answers them together.
            while i < stop and count < GROUP:
                hash_ = hashes[i]
                place = (np.uint64(hash_) >> np.uint64(13)) & bits
                if (wanted[place >> np.uint64(6)] >> (place & np.uint64(63))) & np.uint64(1):
                    part = np.int64((np.uint64(hash_) >> np.uint64(1)) >> part_shift)
                    bucket = part * buckets + (hash_ & mask)
                    prefetch(heads, np.intp(bucket))
                    places[count], scratch[count] = i, bucket
                    count += 1
                i += 1
            for j in range(count):
                head = heads[scratch[j]]
                scratch[j] = head
                if head > 0:
                    prefetch(entries, np.intp(WORDS * (head & SLOT)))
        for j in range(count):
            at_hand = places[j]
            hash_ = hashes[at_hand]
            time = times[at_hand]
            link = scratch[j]
            while link > 0:
                row = link & SLOT
                if births[row >> shift] != link >> 32:
                    break
                visited += 1
                at = WORDS * row
                if entries[at] == hash_ and entries[at + 3] <= time and since < all_ticks[row] <= until:
                    other = entries[at + 2]
                    if window[0] or (
                        time <= last_time(other, entries[at + 3], window[1], window[2], window[3], window[4])
                        and (time <= other - window[5] or time >= other + window[6])
                    ):
                        if found == capacity:
                            return found, at_hand, link, visited - 1
                        out_probe[found] = at_hand
                        out_row[found] = row
                        found += 1
                link = entries[at + 1]
        link = -1
    return found, i, -1, visited


@kernel
def want(first: int, count: int, entries: Int64, wanted: NDArray[np.uint64]) -> None:
    """Set the bits of a block's hashes."""
    bits = np.uint64(wanted.shape[0] * 64 - 1)
    for row in range(first, first + count):
        place = (np.uint64(entries[WORDS * row]) >> np.uint64(13)) & bits
        wanted[place >> np.uint64(6)] |= np.uint64(1) << (place & np.uint64(63))


@kernel
def take_word(entries: Int64, word: int, rows: Int32, out: Int64) -> None:
    """One word of some entries."""
    count = rows.shape[0]
    for i in range(count):
        if i + AHEAD < count:
            prefetch(entries, np.intp(WORDS * np.int64(rows[i + AHEAD])))
        out[i] = entries[WORDS * np.int64(rows[i]) + word]


@kernel
def count_blocks(rows: Int32, shift: int, counts: Int64) -> None:
    """counts[the row's block] += 1."""
    for i in range(rows.shape[0]):
        counts[np.int64(rows[i]) >> shift] += 1


_PAIRS_AHEAD = 24


@inlined
def _place(sources: Any, words: Any, code: Any) -> Any:
    """Where the value of a row in a column of words lies."""
    which, row = numbered(code)
    shift = sources[which, 2]
    at, origin = described(sources, which, row >> shift)
    return origin + read64(at + words) + 8 * (row & ((1 << shift) - 1))


@kernel
def within(
    looking: Int64, numbers: Any, probes: Int32, found: Int64, rows: Any, column: int, window: Int64, keep: Bool
) -> None:
    """Which rows that were found meet the rows that look for them, each of which came after what it looks for?

    `numbers` are those of rows that look, of which `probes` tells which found what; their times are in a column, and
    their floors in the next. `window` is theirs, as in `scan`. Where both lie, `kernels.addressed` says.
    """
    words = 8 * COLUMN_WORDS * np.int64(column)
    floors = words + 8 * COLUMN_WORDS
    counted, behind, ahead = window[0], window[5], window[6]
    count = rows.shape[0]
    for i in range(count):
        if i + _PAIRS_AHEAD < count:
            fetch(_place(found, words, rows[i + _PAIRS_AHEAD]))
            fetch(_place(looking, words, numbers[probes[i + _PAIRS_AHEAD]]))
            fetch(_place(looking, floors, numbers[probes[i + _PAIRS_AHEAD]]))
        time = read64(_place(found, words, rows[i]))
        who = numbers[probes[i]]
        own, floor = read64(_place(looking, words, who)), read64(_place(looking, floors, who))
        keep[i] = time >= floor and (
            counted != 0
            or (
                time <= last_time(own, floor, window[1], window[2], window[3], window[4])
                and (time <= own - behind or time >= own + ahead)
            )
        )
