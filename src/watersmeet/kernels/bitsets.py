"""Sets as rows of words, a bit for each member, and what they have in common; and numbers for keys that come again."""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.arrays import Bool, Int32, Int64, Uint64
from watersmeet.kernels.compile import inlined, kernel

_ONE = np.uint64(1)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_STEPS = np.array([32, 16, 8, 4, 2, 1], np.uint64)


@inlined
def _lowest(word: Any) -> Any:
    """The place of the lowest bit of a word that has one."""
    place = np.uint64(0)
    for step in _STEPS:
        if word & ((_ONE << step) - _ONE) == 0:
            word = word >> step
            place += step
    return place


@kernel
def have_common(
    left: Uint64, lefts: Int32, right: Uint64, rights: Int32, third: Uint64, thirds: Int32, found: Bool
) -> None:
    """Whether the sets of each pair, and a third, have a member in common."""
    for i in range(lefts.shape[0]):
        found[i] = False
        for k in range(left.shape[1]):
            if left[lefts[i], k] & right[rights[i], k] & third[thirds[i], k] != 0:
                found[i] = True
                break


@kernel
def measure_common(
    left: Uint64,
    lefts: Int32,
    right: Uint64,
    rights: Int32,
    third: Uint64,
    thirds: Int32,
    sizes: Int64,
    counts: Int32,
    widths: Int64,
) -> None:
    """How many members the sets of each pair have in common, and the sum of these members' sizes."""
    for i in range(lefts.shape[0]):
        counts[i] = 0
        widths[i] = 0
        for k in range(left.shape[1]):
            word = left[lefts[i], k] & right[rights[i], k] & third[thirds[i], k]
            while word != 0:
                counts[i] += 1
                widths[i] += sizes[64 * k + np.int64(_lowest(word))]
                word &= word - _ONE


@kernel
def list_common(
    left: Uint64, lefts: Int32, right: Uint64, rights: Int32, third: Uint64, thirds: Int32, members: Int32
) -> None:
    """The members that the sets of each pair have in common, in their order, one pair after the other."""
    at = 0
    for i in range(lefts.shape[0]):
        for k in range(left.shape[1]):
            word = left[lefts[i], k] & right[rights[i], k] & third[thirds[i], k]
            while word != 0:
                members[at] = 64 * k + np.int64(_lowest(word))
                at += 1
                word &= word - _ONE


@kernel
def intersect(table: Uint64, places: Int64, found: Uint64) -> None:
    """Leave in each set only what is in the set of a table that a place tells."""
    for i in range(places.shape[0]):
        for k in range(found.shape[1]):
            found[i, k] &= table[places[i], k]


@kernel
def digest(sets: Uint64, found: Int64) -> None:
    """A number for each set, which tells most of them apart."""
    for i in range(sets.shape[0]):
        state = np.uint64(0x9E3779B97F4A7C15)
        for k in range(sets.shape[1]):
            state = (state ^ sets[i, k]) * np.uint64(0xFF51AFD7ED558CCD)
            state ^= state >> np.uint64(32)
        found[i] = np.int64(state >> _ONE)


@inlined
def _first(key: Any, bits: Any) -> Any:
    return np.int64((np.uint64(key) * _SPREAD) >> np.uint64(64 - bits))


@kernel
def find_codes(keys: Int64, bits: int, slots: Int64, codes: Int32, found: Int32) -> int:
    """The code of each key, -1 where it has none; returns how many have none. Free slots are negative, as no key is."""
    mask = slots.shape[0] - 1
    missing = 0
    for i in range(keys.shape[0]):
        at = _first(keys[i], bits)
        while slots[at] >= 0 and slots[at] != keys[i]:
            at = (at + 1) & mask
        if slots[at] < 0:
            found[i] = -1
            missing += 1
        else:
            found[i] = codes[at]
    return missing


@kernel
def put_codes(keys: Int64, given: Int32, bits: int, slots: Int64, codes: Int32) -> None:
    """Give keys that have none their codes; there is room."""
    mask = slots.shape[0] - 1
    for i in range(keys.shape[0]):
        at = _first(keys[i], bits)
        while slots[at] >= 0:
            at = (at + 1) & mask
        slots[at], codes[at] = keys[i], given[i]
