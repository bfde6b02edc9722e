"""The chained hash index: every match of every hash, in order, however often a look-up is left and gone on with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from watersmeet.core.arrays import Int64
from watersmeet.kernels import hash_index


class Index:
    """Rows of some hashes, in a few partitions; entries of other attributes lie between theirs."""

    def __init__(self, hashes: Int64, buckets: int, bits: int, attributes: int) -> None:
        self.hashes, self.buckets, self.bits, self.step = hashes, buckets, bits, 2 * attributes
        self.heads = np.zeros(buckets << bits, np.int32)
        self._all = np.full(self.step * max(1, len(hashes)), -7, np.int64)
        self.entries = self._all[self.step - 2 :]
        rows = np.arange(len(hashes), dtype=np.int32)
        hash_index.link_rows(hashes, self.parts(hashes), rows, self.entries, self.heads, buckets, self.step)
        if attributes > 1:
            assert (self._all[:: self.step] == -7).all(), "what belongs to other attributes stays as it is"

    def parts(self, hashes: Int64) -> NDArray[np.int32]:
        parts = np.zeros(len(hashes), np.int32)
        if self.bits:
            hash_index.partitions_of(hashes, self.bits, parts)
        return parts

    def look_up(self, wanted: Int64, capacity: int) -> tuple[list[tuple[int, int]], int, int]:
        """All pairs, the entries visited, and how many calls that took."""
        probes, rows = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
        found, start, link, visited, calls = [], 0, -1, 0, 0
        while start < len(wanted):
            count, start, link, seen = hash_index.probe(
                wanted, self.parts(wanted), start, len(wanted), link,
                self.entries, self.heads, self.buckets, probes, rows, 0, self.step,
            )  # fmt: skip
            found += list(zip(probes[:count].tolist(), rows[:count].tolist(), strict=True))
            visited, calls = visited + seen, calls + 1
        return found, visited, calls

    def expected(self, wanted: Int64) -> list[tuple[int, int]]:
        """Hash by hash, from the newest row to the oldest."""
        newest = np.arange(len(self.hashes))[::-1]
        return [(i, int(row)) for i, each in enumerate(wanted) for row in newest[self.hashes[newest] == each]]


def hashes(rng: np.random.Generator, count: int, distinct: int) -> Int64:
    return rng.integers(0, distinct, count) * 0x1E3779B97F4A7C15


@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(0, 400),
    wanted=st.integers(0, 300),
    distinct=st.sampled_from([1, 3, 40, 1000]),
    buckets=st.sampled_from([1, 16, 256]),
    bits=st.integers(0, 3),
    capacity=st.sampled_from([1, 7, 100, 5000]),
    attributes=st.integers(1, 3),
)
def test_every_match_comes_once_and_in_order(
    seed: int, rows: int, wanted: int, distinct: int, buckets: int, bits: int, capacity: int, attributes: int
) -> None:
    rng = np.random.default_rng(seed)
    index = Index(hashes(rng, rows, distinct), buckets, bits, attributes)
    asked = hashes(rng, wanted, distinct)[:40] if distinct < 40 else hashes(rng, wanted, distinct)
    found, visited, calls = index.look_up(asked, capacity)
    assert found == index.expected(asked)
    assert visited >= len(found)
    assert calls <= len(found) // capacity + 1


@pytest.mark.parametrize("matches", [0, 1, 5, 30, 200, 700])
def test_look_ups_side_by_side_visit_what_one_after_the_other_do(matches: int) -> None:
    """From no match to more than can be noted of one hash: each chain is gone through once, and no other."""
    rng = np.random.default_rng(matches)
    index = Index(np.repeat(hashes(rng, 40, 1 << 40), matches), 64, 0, 1)
    asked = np.concatenate([np.unique(index.hashes), hashes(rng, 30, 1 << 40)])
    rng.shuffle(asked)
    found, visited, _ = index.look_up(asked, 100_000)
    assert found == index.expected(asked)
    bucket, held = asked & 63, index.hashes & 63
    assert visited == int((bucket[:, None] == held[None, :]).sum())


def test_rows_tell_their_hashes() -> None:
    rng = np.random.default_rng(3)
    index = Index(hashes(rng, 500, 1 << 30), 64, 2, 2)
    rows = rng.integers(0, 500, 300).astype(np.int32)
    told = np.empty(300, np.int64)
    hash_index.hashes_of(rows, index.entries, told, index.step)
    assert np.array_equal(told, index.hashes[rows])
