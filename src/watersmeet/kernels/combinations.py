"""Look-ups and duplicate checks of joins of several inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.arrays import Int32, Int64, Numbers
from watersmeet.kernels.addressed import fetch, read64
from watersmeet.kernels.compile import kernel

_AHEAD = 16
"""Words are asked for so many rows before they are read."""


@kernel
def probe_run(
    hashes: Int64, start: int, link: int, sorted_hashes: Any, order: Any, out_probe: Int32, out_row: Int32
) -> tuple[int, int, int, int]:
    """Look hashes[start:] up in the ascending hashes of a run, and write pairs until the buffers are full.

    `order` tells the row of each sorted hash. Returns the pairs, the next hash, the place to go on with (-1: that
    hash's first), and how many rows were visited.
    """
    capacity = out_probe.shape[0]
    count = sorted_hashes.shape[0]
    found = 0
    visited = 0
    i = start
    while i < hashes.shape[0]:
        wanted = hashes[i]
        place = link
        if place < 0:
            low, high = 0, count
            while low < high:
                middle = (low + high) // 2
                if sorted_hashes[middle] < wanted:
                    low = middle + 1
                else:
                    high = middle
            place = low
        while place < count and sorted_hashes[place] == wanted:
            if found == capacity:
                return found, i, place, visited
            visited += 1
            out_probe[found] = i
            out_row[found] = order[place]
            found += 1
            place += 1
        link = -1
        i += 1
    return found, i, -1, visited


@kernel
def extend(ids: Any, probes: Int32, rows: Numbers, tag: int, drivers: Int32, out: Any, out_drivers: Int32) -> None:
    """Partial combinations with one more row each: out[:, i] is ids[:, probes[i]], and below it rows[i], tagged."""
    known = ids.shape[0]
    count = probes.shape[0]
    for j in range(known):
        for i in range(count):
            out[j, i] = ids[j, probes[i]]
    for i in range(count):
        out[known, i] = tag | np.int64(rows[i])
        out_drivers[i] = drivers[probes[i]]


@kernel
def untag(ids: Int64, shift: int, rows: Int32) -> int:
    """Tell the rows of tagged numbers, and the tag if all have the same; -1 if they have not."""
    first = ids[0] >> shift
    differing = np.int64(0)
    for i in range(ids.shape[0]):
        differing |= (ids[i] >> shift) ^ first
        rows[i] = np.int32(ids[i] & 0x7FFFFFFF)
    return first if differing == 0 else -1


@kernel
def words_at(places: Int64, ids: Int64, words: Int64) -> bool:
    """The words of tagged rows: `places` tells for each tag where its rows' words begin, and how far they are apart.

    False if that is not known of some row: its tag's words begin at 0.
    """
    count = ids.shape[0]
    for i in range(count):
        if i + _AHEAD < count:
            later = ids[i + _AHEAD]
            fetch(places[later >> 32, 0] + places[later >> 32, 1] * (later & 0xFFFFFFFF))
        tag = ids[i] >> 32
        if places[tag, 0] == 0:
            return False
        words[i] = read64(places[tag, 0] + places[tag, 1] * (ids[i] & 0xFFFFFFFF))
    return True


@kernel
def differ(known: Int64, bound: Int64, ids: Int64, differing: Any) -> None:
    """differing[i] = what is known of the tags of combination i is not the same for all of its rows.

    known[j] tells it for the tags of input j, and bound[k] of which input the rows ids[k] are.
    """
    for i in range(ids.shape[1]):
        first = known[bound[0], ids[0, i] >> 32]
        differing[i] = False
        for k in range(1, ids.shape[0]):
            if known[bound[k], ids[k, i] >> 32] != first:
                differing[i] = True


@kernel
def met_in_memory(arrived: Any, departed: Any, met: Any) -> None:
    """met[i] = all rows of combination i were in memory at one tick."""
    inputs, count = arrived.shape
    for i in range(count):
        latest = arrived[0, i]
        earliest = departed[0, i]
        for j in range(1, inputs):
            latest = max(latest, arrived[j, i])
            earliest = min(earliest, departed[j, i])
        met[i] = latest < earliest


@kernel
def met_on_visit(arrived: Any, departed: Any, ordinals: Int64, visitor: int, visits: Any, met: Any) -> None:
    """met[i] |= the visitor's row was brought from disk when the rows of all other inputs were in memory.

    A visit is (tick, low, high): at that tick the visitor's rows of ordinals [low, high) met all that was in memory.
    """
    inputs, count = arrived.shape
    for i in range(count):
        if met[i] or ordinals[i] < 0:
            continue
        latest = np.int64(-1)
        earliest = np.iinfo(np.int64).max
        for j in range(inputs):
            if j != visitor:
                latest = max(latest, arrived[j, i])
                earliest = min(earliest, departed[j, i])
        if latest >= earliest:
            continue
        for k in range(visits.shape[0]):
            if latest <= visits[k, 0] < earliest and visits[k, 1] <= ordinals[i] < visits[k, 2]:
                met[i] = True
                break
