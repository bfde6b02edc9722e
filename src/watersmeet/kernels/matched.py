"""Marks of rows that have found a partner: a byte each in memory, a bit each beside runs."""

from __future__ import annotations

import numpy as np

from watersmeet.core.arrays import Bool, Bytes, Int32, Int64, Numbers
from watersmeet.kernels.compile import kernel


@kernel
def mark(marks: Bytes, rows: Numbers, fresh: Bool) -> None:
    """Mark rows; `fresh` tells which were not marked before, of rows that occur twice the first."""
    for i in range(rows.shape[0]):
        row = rows[i]
        fresh[i] = marks[row] == 0
        marks[row] = 1


@kernel
def mark_bits(
    pool: Bytes, changed: Bool, slots: Int32, firsts: Int64, shift: int, rows: Int64, start: int, setting: bool,
    fresh: Bool,
) -> int:  # fmt: skip
    """Mark rows of runs, or ask whether they are marked; returns how many were done before a page was missing.

    A row's run is in the upper half of its number. Pages have two to the power of `shift` rows; that of number p of run
    r lies at place `slots[firsts[r] + p]` of the pool, if that is not negative; `changed` tells which places differ
    from what was written.
    """
    page_rows = np.int64(1) << shift
    for i in range(start, rows.shape[0]):
        row = rows[i] & 0xFFFFFFFF
        slot = np.int64(slots[firsts[rows[i] >> 32] + (row >> shift)])
        if slot < 0:
            return i
        within = row & (page_rows - 1)
        at = (slot << shift >> 3) + (within >> 3)
        bit = np.uint8(1 << (within & 7))
        fresh[i] = (pool[at] & bit) == 0
        if setting:
            pool[at] |= bit
            changed[slot] = True
    return int(rows.shape[0])
