"""Where a key lies among the partitions of a relation: order words of strings, and look-ups in a slot array."""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.arrays import Bytes, Int32, Int64
from watersmeet.kernels.compile import kernel

LOWEST = np.int64(-(2**63))
HIGHEST = np.int64(2**63 - 1)


@kernel
def prefix_words(offsets: Any, data: Bytes, prefix: Bytes, words: Int64) -> None:
    """The eight bytes after `prefix` as a number, in the bytes' order; strings without the prefix go to either end."""
    skipped = prefix.shape[0]
    for i in range(words.shape[0]):
        start = np.int64(offsets[i])
        length = np.int64(offsets[i + 1]) - start
        order = 0
        j = 0
        while j < skipped and order == 0:
            if j >= length or data[start + j] < prefix[j]:
                order = -1
            elif data[start + j] > prefix[j]:
                order = 1
            j += 1
        if order < 0:
            words[i] = LOWEST
        elif order > 0:
            words[i] = HIGHEST
        else:
            word = np.uint64(0)
            for k in range(8):
                at = skipped + k
                byte = np.uint64(data[start + at]) if at < length else np.uint64(0)
                word = (word << np.uint64(8)) | byte
            words[i] = np.int64(word ^ np.uint64(1 << 63))


@kernel
def locate(
    words: Int64,
    hashes: Int64,
    low: int,
    shift: int,
    slots: Int32,
    first_words: Int64,
    first_hashes: Int64,
    parts: Int32,
) -> None:
    """The partition of each place: the last one whose first place is not beyond it.

    `slots[s]` is the partition of the lowest place in slot s, with one more entry for the end, so that a search is
    between two neighbours.
    """
    last = slots.shape[0] - 2
    for i in range(words.shape[0]):
        word = words[i]
        if word < low:
            slot = np.int64(0)
        else:
            far = (np.uint64(word) - np.uint64(low)) >> np.uint64(shift)
            slot = last if far > np.uint64(last) else np.int64(far)
        p = np.int64(slots[slot])
        q = np.int64(slots[slot + 1])
        while p < q:
            middle = (p + q + 1) >> 1
            first = first_words[middle]
            if first < word or (first == word and first_hashes[middle] <= hashes[i]):
                p = middle
            else:
                q = middle - 1
        parts[i] = p
