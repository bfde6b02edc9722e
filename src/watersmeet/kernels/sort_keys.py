"""Sort keys of equalities and a band together: the upper half is of the equalities' hash, the lower tells the value.

The value's word has 64 bits, and 32 are left for it. Its upper half would not do: words of prices of one stock, or of
the times of one day, differ in their lower bits alone. So what is told is the distance from an origin in their midst,
as a floating number of 26 bits: exact up to 2^26, and beyond that to one part in 2^25. However far values spread, rows
of one hash are thereby told apart as finely as 2^-25 of their spread.

**Order.** `_code` never falls as the word rises. A distance of up to 26 bits is its own size. One of 26 + e bits has
the size 2^25 * e + u, where u, its upper 26 bits, is from 2^25 up to 2^26 - 1: so all sizes of e lie below all those of
e + 1, and among those of one e the upper bits decide, which follow the distance. From the origin's own code, 2^31,
sizes are counted upward for words above and downward for words below; the largest, of 64 bits, is below 40 * 2^25.
Hence, if a word lies between two others, its code lies between theirs, which is all that a look-up relies on.
(`tests/unit/kernels/test_sort_keys.py` breaks it, and is noticed.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.arrays import Int64, Uint64
from watersmeet.kernels.compile import inlined, kernel

_BITS = np.uint64(26)
_ORIGIN = np.uint64(1 << 31)
_ONE = np.uint64(1)
_LOWER = np.uint64(0xFFFFFFFF)
_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)


@inlined
def _code(word: Any, origin: Any) -> Any:
    """32 bits of a word in unsigned order."""
    distance = word - origin if word >= origin else origin - word
    exponent = np.uint64(0)
    upper = distance
    while upper >> _BITS:
        upper >>= _ONE
        exponent += _ONE
    size = (exponent << np.uint64(25)) + upper
    return _ORIGIN + size if word >= origin else _ORIGIN - size


@inlined
def _distances(size: Any) -> Any:
    """The least and the greatest distance that have a code."""
    exponent = np.uint64(0)
    if size >> _BITS:
        exponent = (size >> np.uint64(25)) - _ONE
    upper = size - (exponent << np.uint64(25))
    return upper << exponent, ((upper + _ONE) << exponent) - _ONE


@kernel
def coarse_keys(hashes: Uint64, words: Uint64, origin: Any, keys: Uint64) -> None:
    """The sort key of each row from its hash and the word of its value, in unsigned order."""
    for i in range(words.shape[0]):
        keys[i] = (hashes[i] & ~_LOWER) | _code(words[i], origin)


@kernel
def words_of_keys(keys: Uint64, origin: Any, first: Uint64, last: Uint64) -> None:
    """The lowest and the highest word that rows of each key may have."""
    for i in range(keys.shape[0]):
        code = keys[i] & _LOWER
        if code >= _ORIGIN:
            near, far = _distances(code - _ORIGIN)
            # A distance may lead beyond the last word, and there is none.
            first[i] = origin + near
            last[i] = origin + far if far <= _LAST - origin else _LAST
        else:
            near, far = _distances(_ORIGIN - code)
            first[i] = origin - far if far <= origin else np.uint64(0)
            last[i] = origin - near


MOST_STRIPS = (1 << 31) - 2
"""Strips on each side of the one that strips are counted from; whatever lies beyond is in the last one."""


@inlined
def _size(distance: Any, bits: Any) -> Any:
    """A distance as a floating number of so many bits; it rises by one at most where the distance does."""
    exponent = np.uint64(0)
    upper = distance
    while upper >> bits:
        upper >>= _ONE
        exponent += _ONE
    return (exponent << (bits - _ONE)) + upper


@kernel
def largest_size(bits: np.uint64) -> Any:
    """The size of the last strip."""
    return _size(np.uint64(MOST_STRIPS), bits)


@kernel
def strips_of_words(words: Int64, origin: np.int64, width: np.uint64, strips: Int64) -> None:
    """In which strip, as wide as that, each word lies, counted from the origin's."""
    most = np.uint64(MOST_STRIPS)
    for i in range(words.shape[0]):
        if words[i] >= origin:
            strips[i] = np.int64(min((np.uint64(words[i]) - np.uint64(origin)) // width, most))
        else:
            below = (np.uint64(origin) - np.uint64(words[i]) - _ONE) // width + _ONE
            strips[i] = -np.int64(min(below, most))


@kernel
def add_strips(keys: Uint64, strips: Int64, bits: np.uint64, field: np.uint64, shift: np.uint64) -> None:
    """Put a code of each row's strip into a field of its key; neither the first nor the last code is ever used.

    So a code can be taken one higher or lower without touching the fields beside it. Strips are told by floating
    numbers of so many bits: codes of neighbours differ by one at most, and codes never fall as strips rise.
    """
    origin = _ONE << (field - _ONE)
    for i in range(keys.shape[0]):
        size = _size(np.uint64(abs(strips[i])), bits)
        keys[i] |= (origin + size if strips[i] >= 0 else origin - size) << shift


@kernel
def ask_under_all(keys: Uint64, rows: Int64, count: int, shifts: Uint64) -> None:
    """Let the first rows, in the order of their keys, stand there once for each shift, in the order of shifted keys.

    The room is as many times larger. It is filled from its end with the largest that is left of each shift: what is
    written is never a row that is still to be read, for no shift has more left than all have together.
    """
    left = np.full(shifts.shape[0], count, np.int64)
    for at in range(count * shifts.shape[0] - 1, -1, -1):
        best = -1
        most = np.uint64(0)
        for i in range(shifts.shape[0]):
            if left[i]:
                key = keys[left[i] - 1] + shifts[i]
                if best < 0 or key > most:
                    best, most = i, key
        left[best] -= 1
        keys[at], rows[at] = most, rows[left[best]]
