"""A hash index over a queue: rows come at one end and leave at the other, and nothing is ever unlinked.

Rows are numbered as they come. Entry n lies at n modulo the size of the ring, and a chain leads from newer rows to
older ones; so the first entry that is older than the oldest row in the queue ends its chain, whatever lies there now.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.kernels.compile import kernel

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


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
