"""Which partition of a relation a place lies in: the slot array."""

from __future__ import annotations

import numpy as np

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels import places as kernels
from watersmeet.records.places import Places

_SLOTS_PER_PARTITION = 16
_MOST_SLOTS = 1 << 20


class PartitionMap:
    """Partitions as stretches of the line of places, each known by its first place.

    ```
    slots        │ 0 │ 0 │ 0 │ 1 │ 1 │ 3 │ 3 │      equal lengths; each entry: the partition of the slot's lowest place
    partitions   │     0     │   1  │2│   3   │      unequal lengths, about equal sizes
    ```

    A word's slot is a subtraction and a shift away. Where a slot reaches over the border of partitions, a search among
    them decides.

    >>> partitions = PartitionMap(np.array([0, 100, 200]), np.array([0, 0, 0]))
    >>> partitions.locate(Places(np.array([-7, 99, 100, 1000]), np.zeros(4, np.int64), None)).tolist()
    [0, 0, 1, 2]
    """

    def __init__(self, first_words: Int64, first_hashes: Int64) -> None:
        self.first_words = np.ascontiguousarray(first_words, np.int64)
        self.first_hashes = np.ascontiguousarray(first_hashes, np.int64)
        count = len(self.first_words)
        # The first partition begins at the beginning of the line, so its own first place says nothing about the range.
        inner = self.first_words[1:]
        self._low = int(inner[0]) if count > 1 else 0
        span = int(inner[-1]) - self._low + 1 if count > 1 else 1
        wanted = min(_MOST_SLOTS, _SLOTS_PER_PARTITION * count)
        self._shift = max(0, (span - 1).bit_length() - (wanted - 1).bit_length())
        slots = (span - 1 >> self._shift) + 1
        offsets = np.arange(slots, dtype=np.uint64) << np.uint64(self._shift)
        lowest = (np.array(self._low, np.int64).view(np.uint64) + offsets).view(np.int64)
        # Below the first slot lies slot 0 as well: it begins with partition 0.
        found = np.searchsorted(self.first_words[1:], lowest, side="left")
        self._slots = np.concatenate([found, [count - 1]]).astype(np.int32)
        self._slots[0] = 0

    def __len__(self) -> int:
        return len(self.first_words)

    @property
    def nbytes(self) -> int:
        """What the map holds."""
        return self._slots.nbytes + self.first_words.nbytes + self.first_hashes.nbytes

    def locate(self, places: Places) -> Int32:
        """The partition of each place."""
        parts = np.empty(len(places), np.int32)
        kernels.locate(
            places.words, places.hashes, self._low, self._shift, self._slots, self.first_words, self.first_hashes, parts
        )
        return parts
