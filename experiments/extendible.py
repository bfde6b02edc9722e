"""A directory by extendible hashing: buckets of a partition that split when they grow and merge when they shrink.

The directory has two to the power of its depth entries, chosen by the lowest bits of a row's hash; each points to a
bucket. A bucket has a depth of its own: all its rows agree in so many bits, and as many entries point to it as the
remaining bits allow. It splits by one more bit when it holds more than twice theta, and merges with its buddy, which
differs from it in its last bit only, when it holds less than theta and both together no more than twice that. When a
bucket that uses all bits splits, the directory doubles first; when no bucket uses them all any more, it is halved.

Chakraborty's thesis on exact window joins (section 7.4.4) keeps the partitions of a parallel join so; its formula for
the buddy is for a directory by the highest bits, its text and this directory go by the lowest.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from watersmeet.core.arrays import Int64, Uint64

Count = Callable[[int, int], int]
"""How many of a partition's rows end in these bits: the bits, and how many of them."""

MOST_DEPTH = 20
"""Beyond it nothing is split: so many rows that agree in twenty bits have one key, as a rule."""


class ExtendibleDirectory:
    """Buckets and their sizes; the rows themselves are elsewhere.

    >>> hashes = np.arange(10, dtype=np.uint64)
    >>> count = lambda bits, depth: int(np.count_nonzero((hashes & np.uint64((1 << depth) - 1)) == bits))
    >>> directory = ExtendibleDirectory(theta=2)
    >>> directory.add(directory.find(hashes)); directory.tune(count)
    >>> directory.depth, directory.sizes[directory.find(hashes)].tolist()
    (2, [3, 3, 2, 2, 3, 3, 2, 2, 3, 3])
    """

    def __init__(self, theta: int) -> None:
        """:param theta: rows; a bucket that can split or merge holds from theta to twice as many"""
        self.theta = theta
        self.depth = 0
        """Bits by which the directory is addressed (the global depth)."""
        self.splits = 0
        self.merges = 0
        self._entries: Int64 = np.zeros(1, np.int64)
        self._bits: list[int] = [0]
        """Of each bucket, the bits in which its rows agree."""
        self._depths: list[int] = [0]
        """Of each bucket, how many they are (the local depth)."""
        self._free: list[int] = []
        self.sizes: Int64 = np.zeros(1, np.int64)
        """Rows of each bucket, by its number."""

    @property
    def buckets(self) -> list[int]:
        """The numbers of the buckets there are."""
        gone = set(self._free)
        return [bucket for bucket in range(len(self._bits)) if bucket not in gone]

    def local_depth(self, bucket: int) -> int:
        """In how many bits a bucket's rows agree."""
        return self._depths[bucket]

    def find(self, hashes: Uint64) -> Int64:
        """The bucket of each row."""
        return self._entries[(hashes & np.uint64((1 << self.depth) - 1)).astype(np.int64)]

    def add(self, buckets: Int64) -> None:
        """Rows have come to these buckets."""
        self.sizes += np.bincount(buckets, minlength=len(self.sizes))

    def remove(self, buckets: Int64) -> None:
        """Rows have left these buckets."""
        self.sizes -= np.bincount(buckets, minlength=len(self.sizes))

    def tune(self, count: Count) -> None:
        """Split what is too large and merge what is too small, as far as it goes.

        :param count: tells how a bucket's rows divide; asked once for each split
        """
        if len(self._bits) == 1 and self.sizes[0] <= 2 * self.theta:
            return
        waiting = [bucket for bucket in self.buckets if self.sizes[bucket] > 2 * self.theta]
        while waiting:
            bucket = waiting.pop()
            if self._depths[bucket] < MOST_DEPTH:
                waiting += [half for half in self._split(bucket, count) if self.sizes[half] > 2 * self.theta]
        small = list(filter(self._is_small, self.buckets))
        while small:
            bucket = small.pop()
            if bucket in self._free or not self._merge(bucket):
                continue
            # Merged, it may be small still, or the buddy that a small one has been waiting for.
            small += [each for each in (bucket, self.buddy(bucket)) if each is not None and self._is_small(each)]
        self._halve()

    def buddy(self, bucket: int) -> int | None:
        """The bucket that differs in the last bit only; None if it has been split further, or there is none."""
        depth = self._depths[bucket]
        if depth == 0:
            return None
        other = int(self._entries[self._bits[bucket] ^ (1 << (depth - 1))])
        return other if self._depths[other] == depth else None

    def _is_small(self, bucket: int) -> bool:
        return bool(self.sizes[bucket] < self.theta)

    def _split(self, bucket: int, count: Count) -> tuple[int, int]:
        depth = self._depths[bucket]
        if depth == self.depth:
            self._entries = np.concatenate([self._entries, self._entries])
            self.depth += 1
        upper_bits = self._bits[bucket] | 1 << depth
        upper = self._new_bucket(upper_bits, depth + 1)
        self._depths[bucket] = depth + 1
        self._entries[upper_bits :: 1 << (depth + 1)] = upper
        moved = count(upper_bits, depth + 1)
        self.sizes[upper] = moved
        self.sizes[bucket] -= moved
        self.splits += 1
        return bucket, upper

    def _merge(self, bucket: int) -> bool:
        """Take in the buddy, if there is one and both fit into one bucket."""
        other = self.buddy(bucket)
        if other is None or self.sizes[bucket] + self.sizes[other] > 2 * self.theta:
            return False
        depth = self._depths[bucket] - 1
        self._bits[bucket] &= (1 << depth) - 1
        self._depths[bucket] = depth
        self._entries[self._bits[bucket] :: 1 << depth] = bucket
        self.sizes[bucket] += self.sizes[other]
        self.sizes[other] = 0
        self._free.append(other)
        self.merges += 1
        return True

    def _new_bucket(self, bits: int, depth: int) -> int:
        if self._free:
            bucket = self._free.pop()
            self._bits[bucket], self._depths[bucket] = bits, depth
            return bucket
        self._bits.append(bits)
        self._depths.append(depth)
        if len(self._bits) > len(self.sizes):
            self.sizes = np.concatenate([self.sizes, np.zeros(len(self.sizes), np.int64)])
        return len(self._bits) - 1

    def _halve(self) -> None:
        """Forget bits that no bucket needs."""
        needed = max(self._depths[bucket] for bucket in self.buckets)
        self._entries = self._entries[: 1 << needed].copy()
        self.depth = needed
