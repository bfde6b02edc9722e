"""Counting the pairs that rows would have made which were let go.

Each key has four numbers: how many rows of each input came, and how many of these were let go. A row that is kept has
lost its pairs with the other input's rows that were let go, and one that is let go all its pairs: as the later row of a
pair is counted, so is the pair, once.

Keys for which there is no place are told by sketches: each adds or subtracts one at a place of every line, both by its
hash. The product of two such lines is, on average, the number of pairs between what they were made of.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Int64, Uint64
from watersmeet.kernels.compile import kernel
from watersmeet.kernels.hashing import COMBINER, mix

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
