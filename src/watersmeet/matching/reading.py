"""What settling reads of runs: hashes into a buffer, many at once; and, in the papers' cost models, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watersmeet.core.arrays import Int64, Uint64
from watersmeet.core.cost import Meter
from watersmeet.core.errors import SpillError
from watersmeet.kernels import run_files
from watersmeet.runs.sorted_run import HASHES_AT, SortedRun

_READ_THROUGH = 8
"""Pages between two that are wanted, up to which reading on takes less time than finding the next place."""
ELSEWHERE = -(1 << 62)
"""Where the head is before it has read anything: near nothing."""


@dataclass(frozen=True, slots=True)
class Pages:
    """What lies on a page of a run, and how many pages are read or written at once: how work on the disk is counted.

    >>> Pages(hashes=512, rows=64).of(1000)
    18
    """

    hashes: int
    rows: int
    at_once: int = 1

    def of(self, rows: int) -> int:
        """Pages of so many rows with their hashes."""
        return -(-rows // self.hashes) - (-rows // self.rows)


class Reading:
    """The way through one run, in pages: of hashes a stretch, of rows a page or a few are at hand; all others are read.

    Rows lie behind the hashes. The head goes back and forth between them, and each time that it has to find its place
    is a seek; small gaps are read through. Rows are read if they match, whether or not anybody asks for more than
    their number: a join that counts stands for one that hands out rows.
    """

    def __init__(self, pages: Pages, kept: int = 1) -> None:
        """:param kept: pages of rows that are at hand, the last ones that were read"""
        self.pages = pages
        self._kept = kept
        self.begin_run(0)

    def begin_run(self, rows: int) -> None:
        """Of a run of so many rows nothing is at hand, and the head is elsewhere."""
        self._hash_pages = -(-rows // self.pages.hashes)
        self._hashes_read, self._head = 0, ELSEWHERE
        self._row_pages: Int64 = np.empty(0, np.int64)

    def read_hashes(self, low: int, high: int, looked_up: int, meter: Meter) -> None:
        """Hashes from `low` to `high` were passed, by so many look-ups."""
        first = max(low // self.pages.hashes, self._hashes_read)
        last = min(high // self.pages.hashes, self._hash_pages - 1)
        if first > last:
            return
        if looked_up * _READ_THROUGH < last - first:  # sparse: a page for each look-up
            meter.pages_read += looked_up
            meter.seeks += looked_up
            self._head = self._hashes_read = last + 1
        else:
            at_once = self.pages.at_once
            stop = min(first - (first - last - 1) // at_once * at_once, self._hash_pages)
            self._read(np.arange(first, stop), meter)
            self._hashes_read = stop

    def read_rows(self, rows: Int64, meter: Meter) -> None:
        """Some rows were wanted, in any order: their pages are read one after the other."""
        pages = distinct(rows // self.pages.rows)
        pages = pages[~np.isin(pages, self._row_pages)]
        if len(pages):
            self._read(self._hash_pages + pages, meter)
            self._row_pages = np.concatenate([self._row_pages, pages])[-self._kept :]

    def _read(self, pages: Int64, meter: Meter) -> None:
        count_pages(pages, self._head, meter)
        self._head = int(pages[-1]) + 1


def distinct(pages: Int64) -> Int64:
    """Each page once, in ascending order; they come nearly so, and sorting all of them would take its time."""
    return np.unique(pages[np.concatenate([[True], pages[1:] != pages[:-1]])])


def count_pages(pages: Int64, head: int, meter: Meter) -> None:
    """Pages in ascending order are read, and the head stands before one of them or elsewhere."""
    gaps = np.diff(pages, prepend=head - 1) - 1
    near = (gaps >= 0) & (gaps <= _READ_THROUGH)
    meter.pages_read += len(pages) + int(gaps[near].sum())
    meter.seeks += int(len(pages) - near.sum())


class HashWindow:
    """Hashes of runs that some rows are to meet, read into a buffer a few runs at a time.

    Rows that settle go slice by slice, in the order of their hashes, and so do runs: of each run, a slice needs what
    lies between its first and its last hash, and the next slice what comes after that. To read that where it is mapped
    would cost a page fault or two for each run and slice, and a search for where to begin.

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
