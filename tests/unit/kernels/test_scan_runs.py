"""Runs that are read through: each pair of equal hashes once, wherever the scan is left and gone on with."""

from __future__ import annotations

import numpy as np
import pytest

from watersmeet.kernels.merge import FINER, divide_sorted, scan_runs


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("capacity", "most"), [(1 << 12, 1 << 62), (7, 1 << 62), (1 << 12, 3), (3, 700)])
def test_each_pair_comes_once_however_often_the_scan_is_left(seed: int, capacity: int, most: int) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(0, 1 << 64, 400, np.uint64, endpoint=False)
    if seed % 2:  # hashes that are next to each other, and many that are the same
        values = np.uint64(1 << 63) + random.integers(0, 40, 400).astype(np.uint64)
    wanted = np.sort(random.choice(values, 300))
    first, span = wanted[0], int(wanted[-1]) - int(wanted[0])
    within = values[(values >= first) & (values <= wanted[-1])]
    runs = [np.sort(random.choice(within, count)) for count in (0, 1, 1500, 70)]
    shift = max(0, span.bit_length() - len(wanted).bit_length())
    starts = np.empty((span >> shift) + 2, np.int32)
    marked = np.empty((span >> max(0, shift - FINER) >> 6) + 1, np.uint64)
    divide_sorted(wanted, wanted, first, shift, starts, marked)
    marks = random.integers(0, 3, len(wanted))
    thresholds = np.array([0, -1, 1, 0])
    addresses = np.array([run.ctypes.data for run in runs])
    highs, cursor = np.array([len(run) for run in runs]), np.array([0, 0, -1])
    probes, rows = np.empty(capacity, np.int32), np.empty(capacity, np.int64)
    found, all_passed, times = [], 0, 0
    while cursor[0] < len(runs):
        count, passed = scan_runs(
            wanted, wanted, marks, starts, marked, first, shift, addresses, np.zeros(4, np.int64), highs, thresholds,
            cursor, len(runs), most, probes, rows, 0,
        )  # fmt: skip
        found += zip(probes[:count].tolist(), rows[:count].tolist(), strict=True)
        assert passed <= most
        all_passed += passed
        times += 1
    expected = [
        (i, (number << 32) + row)
        for number, run in enumerate(runs)
        for row in range(len(run))
        for i in np.flatnonzero((wanted == run[row]) & (marks > thresholds[number])).tolist()
    ]
    assert sorted(found) == sorted(expected)
    assert len(expected) > 100 and all_passed == sum(map(len, runs))
    assert (times > 1) is (most < 1 << 62 or capacity < 1 << 12 or len(expected) > capacity)
