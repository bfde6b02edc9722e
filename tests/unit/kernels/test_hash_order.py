"""Rows sorted by their hashes: as NumPy does, also where hashes are not spread as they should be."""

from __future__ import annotations

import numpy as np
import pytest

from watersmeet.core.arrays import Int64
from watersmeet.kernels.hash_order import sort_rows

RNG = np.random.default_rng(4)
ANY = RNG.integers(-(2**63), 2**63 - 1, 5_000)


@pytest.mark.parametrize(
    "hashes",
    [
        ANY,
        ANY[:0],
        ANY[:1],
        RNG.choice(ANY[:7], 3_000),
        ANY >> 30,
        RNG.choice(ANY[:3] >> 30, 4_000),
        np.concatenate([np.full(2_000, 5), RNG.integers(0, 2**40, 2_000), np.full(2_000, -1), ANY]),
    ],
    ids=["any", "none", "one", "few", "alike", "few and alike", "crowds"],
)
@pytest.mark.parametrize("first", [0, 17])
def test_rows_are_sorted_by_hash_and_then_by_number(hashes: Int64, first: int) -> None:
    entries = np.zeros(2 * (first + len(hashes)), np.int64)
    entries[2 * first :: 2] = hashes
    entries[1::2] = 99  # links, which are none of its business
    count = len(hashes)
    found, rows = np.empty(count, np.uint64), np.empty(count, np.int64)
    sort_rows(entries, first, count, found, rows, np.empty(count, np.uint64), np.empty(count, np.int32))
    order = np.argsort(hashes.view(np.uint64), kind="stable")
    assert np.array_equal(rows, first + order)
    assert np.array_equal(found, hashes.view(np.uint64)[order])
