"""How much of the runs of one input is mapped, and how it leaves memory again.

Mapped pages are the system's to take back, but count as the process's own until they are let go. Hashes are gone
through again and again, and stay for as long as they are few. Rows lie anywhere, and each maps what lies around it, so
that they are gathered stretch by stretch: those of one are let go before the next ones are read.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels import addressed as kernels
from watersmeet.records.addressed import Sources
from watersmeet.runs.sorted_run import SortedRun, let_go_of, mapped_places

_AROUND = 64 << 10
"""Bytes that the system maps around what is read."""
_STRETCH = 1 << 20
"""Bytes of rows that are mapped at once, about."""
_ALL = 63
"""As a shift: all rows are one stretch."""


class Resident:
    """Bytes of an input's runs that may be mapped: hashes, by the order that they are in; rows are not, for long."""

    def __init__(self, first: int) -> None:
        """Runs are sources from the number `first` on; those before are in memory, and stay."""
        self._first = first
        self._hashes: list[int] = []
        self.runs_changed(())

    def runs_changed(self, orders: Sequence[Sequence[SortedRun]]) -> None:
        """Runs came or went; nothing of those that are there stays mapped."""
        runs = [run for order in orders for run in order]
        self._places: Int64 = mapped_places(runs)
        self._rows_alone: Int64 = mapped_places(runs, rows_alone=True)
        self._most_hashes = [sum(-(-run.hash_bytes // _AROUND) for run in order) * _AROUND for order in orders]
        self._mapped = np.zeros((self._first + len(runs), 2), np.int64)
        if len(self._rows_alone) == len(runs):
            self._mapped[self._first :] = self._rows_alone
        stretches = [1 << max(0, (_STRETCH * run.rows // run.nbytes).bit_length() - 1) for run in runs]
        self._shifts = np.array([_ALL] * self._first + [each.bit_length() - 1 for each in stretches], np.int64)
        counts = [1] * self._first + [-(-run.rows // each) for run, each in zip(runs, stretches, strict=True)]
        self._firsts = np.cumsum([0, *counts])
        self.let_go()

    @property
    def nbytes(self) -> int:
        """How much may be mapped."""
        return sum(self._hashes)

    def read_hashes(self, order: int, runs: int, nbytes: int) -> None:
        """So many bytes of hashes of an order were gone through, of so many runs."""
        self._hashes[order] = min(self._most_hashes[order], self._hashes[order] + _AROUND * runs + nbytes)

    def let_go(self) -> None:
        """Nothing is mapped any more."""
        self._hashes = [0] * len(self._most_hashes)
        let_go_of(self._places)

    def let_go_of_rows(self) -> None:
        """Nothing but hashes is."""
        let_go_of(self._rows_alone)

    def gather(self, sources: Sources, widths: Int32, columns: Int32, rows: Int64, out: Int64, nulls: Int64) -> None:
        """Copy the values of some rows to addresses, and let go of them (see `kernels.addressed.gather`)."""
        order, starts = np.empty(len(rows), np.int32), np.empty(int(self._firsts[-1]) + 1, np.int64)
        kernels.by_stretch(rows, self._firsts, self._shifts, order, starts)
        kernels.gather_by_stretch(
            sources, self._mapped, widths, columns, rows, order, starts, out, nulls, mmap.PAGESIZE, mmap.MADV_DONTNEED
        )
