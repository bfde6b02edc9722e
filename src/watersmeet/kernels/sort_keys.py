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

from watersmeet.core.arrays import Uint64
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
