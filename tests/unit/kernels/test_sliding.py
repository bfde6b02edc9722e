"""Ranges that ascend meet sorted keys: every pair once, however the work is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.kernels.merge import FINER, bounds_in_runs, divide_sorted, hashes_in_runs, probe_sorted, scan_runs

KEYS = st.lists(st.one_of(st.integers(0, 30), st.integers(0, 1 << 62)), max_size=25)
WIDTHS = st.tuples(st.integers(-3, 4), st.integers(-3, 4))
"""How far ranges reach to both sides; some are empty, and some of these end before the first one begins."""


def words(values: list[int]) -> Any:
    return np.array(values, np.uint64)


def ends(keys: list[int], widths: tuple[int, int]) -> tuple[Any, Any]:
    low, high = ([max(0, key + width) for key in sorted(keys)] for width in (-widths[0], widths[1]))
    return words(low), words(high)


@given(KEYS, WIDTHS, KEYS, st.integers(1, 7), st.integers(1, 4))
def test_ranges_are_looked_up_in_keys(
    keys: list[int], widths: tuple[int, int], others: list[int], capacity: int, step: int
) -> None:
    low, high = ends(keys, widths)
    rows = words(sorted(others))
    probes, found_rows = np.empty(capacity, np.int32), np.empty(capacity, np.int64)
    pairs: list[tuple[int, int]] = []
    at, link, near = 0, -1, 0
    while at < len(low):
        stop = min(len(low), at + step)
        found, at, link, near, _ = probe_sorted(low, high, at, stop, link, rows, near, probes, found_rows, 0)
        pairs += zip(probes[:found].tolist(), found_rows[:found].tolist(), strict=True)
    assert pairs == [(i, j) for i in range(len(low)) for j in range(len(rows)) if low[i] <= rows[j] <= high[i]]


def test_empty_ranges_before_all_others_are_divided() -> None:
    low, high = words([5, 6, 8]), words([2, 3, 9])
    starts, marked = np.full(6, -1, np.int32), np.full(3, 7, np.uint64)
    divide_sorted(low, high, low[0], 0, starts[:6], marked[:1])
    assert starts.tolist() == [2, 2, 2, 2, 2, 3] and marked.tolist() == [0b11000, 7, 7]


@given(KEYS, WIDTHS, st.lists(KEYS, min_size=1, max_size=4), st.integers(1, 7), st.integers(1, 9), st.data())
def test_runs_are_scanned_for_ranges(
    keys: list[int], widths: tuple[int, int], runs: list[list[int]], capacity: int, most: int, data: st.DataObject
) -> None:
    low, high = ends(keys, widths)
    marks = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(keys), max_size=len(keys))), np.int64)
    thresholds = np.array(data.draw(st.lists(st.integers(-1, 3), min_size=len(runs), max_size=len(runs))), np.int64)
    sorted_runs = [words(sorted(run)) for run in runs]
    addresses = np.array([run.ctypes.data for run in sorted_runs], np.int64)
    lows, highs = np.zeros(len(runs), np.int64), np.array([len(run) for run in runs], np.int64)
    first, span = np.uint64(0), 0
    if keys:
        first, last = low[0], max(low[0], high[-1])
        span = int(last) - int(first)
        bounds_in_runs(addresses, first, last, lows, highs)
    else:
        highs[:] = 0
    shift = max(0, span.bit_length() - len(keys).bit_length())
    starts = np.empty((span >> shift) + 2, np.int32)
    marked = np.empty((span >> max(0, shift - FINER) >> 6) + 1, np.uint64)
    divide_sorted(low, high, first, shift, starts, marked)
    probes, found_rows = np.empty(capacity, np.int32), np.empty(capacity, np.int64)
    cursor = np.array([0, 0, -1], np.int64)
    pairs: list[tuple[int, int]] = []
    while cursor[0] < len(runs):
        found, _ = scan_runs(
            low, high, marks, starts, marked, first, shift, addresses, lows, highs, thresholds, cursor, len(runs), most,
            probes, found_rows, 0,
        )  # fmt: skip
        pairs += zip(probes[:found].tolist(), found_rows[:found].tolist(), strict=True)
    assert pairs == [
        (i, (r << 32) + j)
        for r, run in enumerate(sorted_runs)
        for j, key in enumerate(run)
        for i in range(len(low))
        if low[i] <= key <= high[i] and marks[i] > thresholds[r]
    ]
    numbers = np.array([row for _, row in pairs], np.int64)
    hashes = np.empty(len(numbers), np.uint64)
    hashes_in_runs(addresses, numbers, hashes)
    assert hashes.tolist() == [int(sorted_runs[row >> 32][row & 0xFFFFFFFF]) for row in numbers.tolist()]
