"""Rows told apart by their hashes, for shards that join a part of them each."""

from __future__ import annotations

import numpy as np

from watersmeet.core.arrays import Bool, Int64, Numbers
from watersmeet.kernels.compile import inlined, kernel, prefetch

_LOW = 0xFFFFFFFF
_AHEAD = 24


@inlined
def _shard(hash_: int, shards: int) -> int:
    """By the lower half of the hash: tables use the upper bits, and would have most of their buckets empty."""
    return ((hash_ & _LOW) * shards) >> 32


@kernel
def split(hashes: Int64, valid: Bool, shards: int, stops: Int64, out_rows: Int64, out_hashes: Int64) -> None:
    """Put rows in the order of their shards, and within a shard in their own; `stops` tells where each shard ends.

    Rows that are not `valid` are left out; an empty array: all are.
    """
    count = hashes.shape[0]
    all_valid = valid.shape[0] == 0
    places = np.zeros(shards + 1, np.int64)
    for i in range(count):
        if all_valid or valid[i]:
            places[_shard(hashes[i], shards) + 1] += 1
    for k in range(shards):
        places[k + 1] += places[k]
    for i in range(count):
        if all_valid or valid[i]:
            shard = _shard(hashes[i], shards)
            at = places[shard]
            out_rows[at] = i
            out_hashes[at] = hashes[i]
            places[shard] = at + 1
    for k in range(shards):
        stops[k] = places[k]


@kernel
def locate(rows: Numbers, places: Int64, out: Int64) -> None:
    """Where some rows are, of which a table knows the places."""
    count = rows.shape[0]
    for i in range(count):
        if i + _AHEAD < count:
            prefetch(places, rows[i + _AHEAD])
        out[i] = places[rows[i]]
