"""What settling reads of runs, page by page and seek by seek: for experiments in the papers' cost models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from watersmeet.core.arrays import Int64
from watersmeet.core.cost import Meter

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
