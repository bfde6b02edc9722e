"""Hashes of runs that some rows are to meet, read into a buffer a few runs at a time.

Rows that settle go slice by slice, in the order of their hashes, and so do runs: of each run, a slice needs what lies
between its first and its last hash, and the next slice what comes after that. To read that where it is mapped would
cost a page fault or two for each run and slice, and a search for where to begin.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from watersmeet.core.arrays import Int64, Uint64
from watersmeet.core.errors import SpillError
from watersmeet.kernels import run_files
from watersmeet.runs.sorted_run import HASHES_AT, SortedRun


class HashWindow:
    """What of the hashes of some runs is in the buffer.

    Invariant: the hashes of each run before its cursor are smaller than those of the slice at hand. Slices ascend, but
    for those of rows that are sorted by the slice.
    """

    def __init__(self, runs: Sequence[SortedRun], files: Sequence[tuple[int, int, int]], buffer: Uint64) -> None:
        self._runs = runs
        self._descriptors = np.array([file[0] for file in files], np.int64)
        self._counts = np.array([run.rows for run in runs], np.int64)
        self._buffer = buffer
        self._cursors, self._nexts = np.zeros_like(self._counts), np.zeros_like(self._counts)
        self._between = (np.uint64(0), np.uint64(0))
        self._first = self._row = 0
        self.addresses: Int64 = np.zeros_like(self._counts)
        """Where the first hash of each run would lie, were all of them in the buffer."""
        self.lows, self.highs = np.zeros_like(self._counts), np.zeros_like(self._counts)
        """Which rows of each run are there, of those between both ends of the slice."""
        self.stop = 0
        """Before this run it ends."""
        self.rest = -1
        """The row from which on the last run has yet to be read; -1: there is none."""

    @classmethod
    def over(cls, runs: Sequence[SortedRun], buffer: Uint64) -> HashWindow | None:
        """A window over runs, if all of them can be read so."""
        files = [run.file for run in runs]
        return cls(runs, files, buffer) if len(buffer) and all(file[0] >= 0 for file in files) else None

    def share_of(self, least: np.uint64, most: np.uint64) -> Int64:
        """About how many rows of each run are between two hashes."""
        return (self._counts * ((int(most) - int(least) + 1) / 2**64)).astype(np.int64)

    def go_to(self, least: np.uint64, most: np.uint64) -> None:
        """Hashes from one to another are wanted: those of the slice that was at hand, or of another one."""
        if self._between != (least, most):
            ascends = least >= self._between[1]
            self._cursors[:] = self._nexts if ascends else -1
            self._between = least, most
        self._first = self.stop = 0

    def show(self, at: int, row: int, stop: int) -> None:
        """Have the hashes of a run from some row on, and of as many more runs as there is room for, up to `stop`."""
        begun = self._first <= at < self.stop and (at > self._first or row >= self._row)
        if begun and (at < self.stop - 1 or self.rest < 0 or row < self.rest):
            return
        self._first, self._row = at, row
        found, self.rest = run_files.read_hashes(
            self._descriptors, HASHES_AT, self._counts, self._cursors, self._nexts, at, row, stop, *self._between,
            self._buffer, self.addresses, self.lows, self.highs,
        )  # fmt: skip
        if found == run_files.NOT_SO:
            self._first = self.stop = 0
            name = self._runs[at].name
            raise SpillError(f"could not read the hashes of {name!r}, or of a run after it; check the disk")
        self.stop = found
