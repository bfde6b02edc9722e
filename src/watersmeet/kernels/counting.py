"""How often hashes came, in few counters: several hashes may share one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Int64, Numbers, Uint64
from watersmeet.kernels.addressed import read64
from watersmeet.kernels.compile import inlined, kernel

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
