"""Extendible hashing: every row in its bucket, buckets of a good size, a directory no larger than it must be."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.cli import reproduce

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(reproduce.find_experiments().parent))
    extendible = importlib.import_module("experiments.extendible")
MOST_DEPTH = extendible.MOST_DEPTH


class Rows:
    """The rows themselves, and a directory of them."""

    def __init__(self, theta: int) -> None:
        self.hashes = np.empty(0, np.uint64)
        self.directory = extendible.ExtendibleDirectory(theta)

    def count(self, bits: int, depth: int) -> int:
        return int(np.count_nonzero((self.hashes & np.uint64((1 << depth) - 1)) == np.uint64(bits)))

    def add(self, hashes: np.ndarray) -> None:
        self.hashes = np.concatenate([self.hashes, hashes])
        self.directory.add(self.directory.find(hashes))
        self.directory.tune(self.count)

    def drop_oldest(self, rows: int) -> None:
        gone, self.hashes = self.hashes[:rows], self.hashes[rows:]
        self.directory.remove(self.directory.find(gone))
        self.directory.tune(self.count)

    def check(self) -> None:
        directory, theta = self.directory, self.directory.theta
        held = np.bincount(directory.find(self.hashes), minlength=len(directory.sizes))
        assert held.tolist() == directory.sizes.tolist()
        for bucket in directory.buckets:
            size, depth = int(directory.sizes[bucket]), directory.local_depth(bucket)
            assert size <= 2 * theta or depth == MOST_DEPTH
            buddy = directory.buddy(bucket)
            if size < theta and buddy is not None:
                assert size + directory.sizes[buddy] > 2 * theta, "it could have merged"
        assert directory.depth == max(map(directory.local_depth, directory.buckets))


@given(
    theta=st.integers(1, 8),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=12),
    spread=st.sampled_from([1, 7, 1 << 16, 1 << 40]),
    seed=st.integers(0, 1000),
)
def test_any_growing_and_shrinking(theta: int, steps: list[tuple[bool, int]], spread: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = Rows(theta)
    for grow, count in steps:
        if grow:
            rows.add(random.integers(0, spread, count, dtype=np.uint64))
        else:
            rows.drop_oldest(min(count, len(rows.hashes)))
        rows.check()


def test_it_doubles_and_is_halved_again() -> None:
    rows = Rows(theta=4)
    rows.add(np.arange(64, dtype=np.uint64))
    assert rows.directory.depth == 3 and len(rows.directory.buckets) == 8 and rows.directory.splits == 7
    rows.drop_oldest(60)
    assert rows.directory.depth == 0 and rows.directory.buckets == [rows.directory.find(np.zeros(1, np.uint64))[0]]
    assert rows.directory.merges == 7


def test_a_single_key_does_not_split_for_ever() -> None:
    rows = Rows(theta=2)
    rows.add(np.full(100, 5, np.uint64))
    rows.check()
    assert rows.directory.depth == MOST_DEPTH


def test_a_bucket_that_was_split_further_is_nobodys_buddy() -> None:
    rows = Rows(theta=2)
    rows.add(np.array([0, 4, 8, 12, 2, 6, 10, 14, 1], np.uint64))
    odd = int(rows.directory.find(np.ones(1, np.uint64))[0])
    assert rows.directory.local_depth(odd) == 1 and rows.directory.buddy(odd) is None
    rows.check()
