"""What is counted as rows pass by: how often hashes came, which pairs were lost, and which pages were not in a cache.

*How often hashes came* is told by few counters: several hashes may share one.

*Pairs that rows would have made which were let go*: each key has four numbers, how many rows of each input came, and
how many of these were let go. A row that is kept has lost its pairs with the other input's rows that were let go, and
one that is let go all its pairs: as the later row of a pair is counted, so is the pair, once. Keys for which there is
no place are told by sketches: each adds or subtracts one at a place of every line, both by its hash. The product of
two such lines is, on average, the number of pairs between what they were made of.

*Pages that were not there*: of a cache that forgets the least recently used one first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Int32, Int64, Numbers, Uint64
from watersmeet.kernels.addressed import read64
from watersmeet.kernels.compile import inlined, kernel
from watersmeet.kernels.hashing import COMBINER, mix

Counts = NDArray[np.uint16]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_OTHERWISE = np.uint64(0xC2B2AE3D27D4EB4F)
_MOST = 0xFFFF
ONCE = 8
"""What a hash that came once counts, so that it fades by and by."""
_FINE = 16
LEVELS = 13 * _FINE
"""Counts are told apart by levels: each has its own up to 31, then there are sixteen for each power of two."""


@inlined
def _place(hash_: Any, shift: Any) -> Any:
    """The counter of a hash: of its product with an odd word the top bits, so that shards use all counters, too."""
    return (hash_ * _SPREAD) >> np.uint64(shift)


def least_count(level: int) -> int:
    """The lowest count of a level."""
    powers = max(0, level // _FINE - 1)
    return (level - powers * _FINE) << powers


@inlined
def _level(count: Any) -> Any:
    part = np.int64(count)
    level = np.int64(0)
    while part >= 32 * _FINE:
        part >>= 4
        level += 4 * _FINE
    while part >= 2 * _FINE:
        part >>= 1
        level += _FINE
    return level + part


@inlined
def _other_place(hash_: Any, shift: Any) -> Any:
    """Another counter: hashes that share the one do not share the other, so that what is due to that shows."""
    return (hash_ * _OTHERWISE) >> np.uint64(shift)


@kernel
def count_entries(address: int, start: int, stop: int, shift: int, counts: Counts, witnesses: Counts) -> None:
    """Count the hashes of rows from `start` up to `stop`, each of which lies at the first of two words; and once more
    in other counters.
    """
    for row in range(start, stop):
        hash_ = np.uint64(read64(address + 16 * row))
        place = _place(hash_, shift)
        if counts[place] < _MOST:
            counts[place] += np.uint16(1)
        place = _other_place(hash_, shift)
        if witnesses[place] < _MOST:
            witnesses[place] += np.uint16(1)


@kernel
def weigh_entries(
    address: int, rows: int, shift: int, known: Counts, witnesses: Counts, held: Int64, wanted: Int64
) -> None:
    """Of rows in memory, by the levels of what was known of their hashes: how many there are, and how often they were
    wanted since, by the witnesses.
    """
    for row in range(rows):
        hash_ = np.uint64(read64(address + 16 * row))
        level = _level(known[_place(hash_, shift)])
        held[level] += 1
        wanted[level] += witnesses[_other_place(hash_, shift)]


@kernel
def entries_between(
    address: int, first: int, rows: int, shift: int, known: Counts, least: int, most: int, out: Numbers
) -> int:
    """Rows from number `first` on whose counts are from `least` to `most`, as many as fit; returns how many there are,
    also of those that do not.
    """
    found = 0
    for row in range(first, rows):
        count = known[_place(np.uint64(read64(address + 16 * row)), shift)]
        if least <= count <= most:
            if found < out.shape[0]:
                out[found] = row
            found += 1
    return found


@kernel
def counts_between(hashes: Uint64, shift: int, known: Counts, least: int, most: int, out: Bool) -> None:
    """Whether the counts of hashes are from `least` to `most`."""
    for i in range(hashes.shape[0]):
        count = known[_place(hashes[i], shift)]
        out[i] = least <= count <= most


@kernel
def fade(counts: Counts, fresh: Counts, shift: int) -> None:
    """Take a part of the counts away, one of two to the power of `shift`, and add fresh ones, each worth `ONCE`."""
    for i in range(counts.shape[0]):
        # Rounded up, so that nothing stays for ever.
        faded = np.int64(counts[i]) - ((np.int64(counts[i]) + (1 << shift) - 1) >> shift)
        counts[i] = np.uint16(min(np.int64(_MOST), faded + ONCE * np.int64(fresh[i])))


_MOST_FULL = 4
"""Three places in so many are taken at most."""


@kernel
def count_rows(
    hashes: Uint64,
    valid: Bool,
    side: int,
    shed: int,
    keys: Uint64,
    counts: Int64,
    taken: int,
    came: NDArray[np.int64],
    went: NDArray[np.int64],
) -> Any:
    """Count rows of a side, kept or let go: pairs lost so far as places tell, places taken, rows that sketches have.

    `keys` has a power of two places; of each, `counts` has how many came of both sides, and how many were let go.
    `came` and `went` are sketches by side, line and place.
    """
    mask = np.uint64(keys.shape[0] - 1)
    most = keys.shape[0] // _MOST_FULL * (_MOST_FULL - 1)
    columns = np.uint64(came.shape[2] - 1)
    other = 1 - side
    lost = 0
    sketched = 0
    for i in range(hashes.shape[0]):
        if not valid[i]:
            continue
        key = hashes[i]
        at = mix(key) & mask
        while counts[at, 0] + counts[at, 1] and keys[at] != key:
            at = (at + np.uint64(1)) & mask
        if not counts[at, 0] + counts[at, 1]:
            if taken >= most:
                sketched += 1
                for line in range(came.shape[1]):
                    word = mix(key ^ (COMBINER * np.uint64(line + 1)))
                    sign = 1 if word >> np.uint64(63) else -1
                    came[side, line, word & columns] += sign
                    if shed:
                        went[side, line, word & columns] += sign
                continue
            keys[at] = key
            taken += 1
        lost += counts[at, other] if shed else counts[at, 2 + other]
        counts[at, side] += 1
        if shed:
            counts[at, 2 + side] += 1
    return lost, taken, sketched


HEAD, TAIL, USED = 0, 1, 2


@kernel
def use_pages(pages: Int64, frame_of: Int32, page_of: Int64, newer: Int32, older: Int32, ends: Int32) -> int:
    """Use pages in their order; returns how many were not there.

    `frame_of` has each page's frame (-1: none); the frames form a list from the newest (`ends[HEAD]`) to the oldest.
    """
    missed = 0
    for i in range(pages.shape[0]):
        page = pages[i]
        frame = frame_of[page]
        if frame >= 0 and frame == ends[HEAD]:
            continue
        if frame >= 0:
            newer_one, older_one = newer[frame], older[frame]
            older[newer_one] = older_one
            if older_one >= 0:
                newer[older_one] = newer_one
            else:
                ends[TAIL] = newer_one
        else:
            missed += 1
            if ends[USED] < page_of.shape[0]:
                frame = ends[USED]
                ends[USED] += 1
            else:
                frame = ends[TAIL]
                frame_of[page_of[frame]] = -1
                ends[TAIL] = newer[frame]
                if ends[TAIL] >= 0:
                    older[ends[TAIL]] = -1
                else:
                    ends[HEAD] = -1
            page_of[frame] = page
            frame_of[page] = frame
        newer[frame] = -1
        older[frame] = ends[HEAD]
        if ends[HEAD] >= 0:
            newer[ends[HEAD]] = frame
        else:
            ends[TAIL] = frame
        ends[HEAD] = frame
    return missed
