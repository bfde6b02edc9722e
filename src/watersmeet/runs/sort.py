"""Sorted runs on disk, read from the front and written at the end, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.core.saved import Saved
from watersmeet.records.columns import gathered
from watersmeet.runs.catalogue import DiskSide, Run
from watersmeet.runs.page import Page, page_schema
from watersmeet.spill.segment import SegmentWriter
from watersmeet.spill.store import Store


class RunCursor:
    """A place in a sorted run: everything before it is done with."""

    def __init__(self, disk: DiskSide, part: int, run: Run, looks_back: bool = False) -> None:
        self.run = run
        self._part = part
        self._disk = disk
        self._page: Page | None = None
        self._looks_back = looks_back
        self._page_before: Page | None = None
        """Kept only by a cursor that looks back: most of what it looks for lies there."""
        self.number = 0
        self.at = 0

    @property
    def done(self) -> bool:
        """Whether it has come to the end."""
        return self.number == len(self.run.page_ends)

    @property
    def page(self) -> Page:
        """The page at hand."""
        if self._page is None:
            self._page = self._disk.read_page(self._part, self.run, self.number)
        return self._page

    @property
    def on_last_page(self) -> bool:
        """Whether no page follows."""
        return self.number + 1 == len(self.run.page_ends)

    def seek(self, place: Sequence[int]) -> None:
        """Go to a page, and a row on it."""
        number, at = place
        if number != self.number:
            self._page_before = self._page if self._looks_back and number == self.number + 1 else None
            self._page = None
        self.number, self.at = number, at

    def place(self) -> tuple[int, int]:
        """Where it is."""
        return self.number, self.at

    def count_below(self, bound: int | None) -> int:
        """How many of the page's remaining rows have a smaller hash; all of them if there is no bound."""
        remaining = self.page.hashes[self.at :]
        return len(remaining) if bound is None else int(np.searchsorted(remaining, bound))

    def after(self, count: int) -> tuple[int, int]:
        """The place so many rows on, on this page or at the beginning of the next."""
        at = self.at + count
        return (self.number, at) if at < len(self.page) else (self.number + 1, 0)

    def stretches_of(self, hash_: int) -> list[tuple[int, int, int]]:
        """All rows from here on that have this hash, over all pages: page, first row, number of rows."""
        found = []
        number, at = self.number, self.at
        while number < len(self.run.page_ends):
            page = self._page_of(number)
            count = int(np.searchsorted(page.hashes[at:], hash_, side="right"))
            if not count or page.hashes[at] != hash_:
                break
            found.append((number, at, count))
            if at + count < len(page):
                break
            number, at = number + 1, 0
        return found

    def read(self, stretch: tuple[int, int, int]) -> Page:
        """Some rows of a page."""
        number, at, count = stretch
        return self._page_of(number).slice(at, count)

    def stretches_since(self, word: int) -> list[tuple[int, int, int]]:
        """All rows before this place that are not below a word, over all pages: page, first row, number of rows."""
        found = []
        number, stop = self.number, self.at
        while number >= 0:
            if stop:
                first = int(np.searchsorted(self._page_of(number).hashes[:stop], word))
                if first < stop:
                    found.append((number, first, stop - first))
                if first:
                    break
            number -= 1
            stop = self.run.page_rows(number) if number >= 0 else 0
        return found[::-1]

    def _page_of(self, number: int) -> Page:
        if number == self.number:
            return self.page
        if number == self.number - 1 and self._page_before is not None:
            return self._page_before
        return self._disk.read_page(self._part, self.run, number)


class MergedRunWriter(Saved):
    """A merged run in the making.

    Its pages go to one segment, or to several: `seal` ends a segment so that all rows added so far are safely stored,
    and the next row begins another.
    """

    SAVED: ClassVar[tuple[str, ...]] = ("_sealed", "_ends")

    def __init__(
        self, store: Store, disk: DiskSide, part: int, tick: int, types: Sequence[pa.DataType], page_bytes: int
    ) -> None:
        self._store = store
        self._disk = disk
        self._part = part
        self._tick = tick
        self._schema = page_schema(types, merged=True)
        self._page_bytes = page_bytes
        self._buffered: list[pa.RecordBatch] = []
        self._bytes = 0
        self._writer: SegmentWriter | None = None
        self._sealed: list[int] = []
        self._ends: list[int] = []

    def add(self, page: Page) -> None:
        """Rows that follow all those before."""
        arrays = [pa.array(page.hashes), pa.array(page.ticks), pa.array(page.ordinals), *page.columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        size = batch.nbytes
        if self._buffered and self._bytes + size > self._page_bytes:
            self._write()
        self._buffered.append(batch)
        self._bytes += size

    def _write(self) -> None:
        if not self._buffered:
            return
        if self._writer is None:
            name = self._disk.merged_segment(self._part, self._tick, len(self._sealed))
            self._writer = SegmentWriter(self._store, name, self._schema)
        rows = sum(batch.num_rows for batch in self._buffered)
        self._writer.write_page(self._buffered[0] if len(self._buffered) == 1 else pa.concat_batches(self._buffered))
        self._disk.wrote(1)
        self._ends.append(rows + (self._ends[-1] if self._ends else 0))
        self._buffered, self._bytes = [], 0

    def seal(self) -> None:
        """Store what was added."""
        self._write()
        if self._writer is not None:
            self._writer.seal().close()
            self._sealed.append(len(self._ends))
            self._writer = None

    def abort(self) -> None:
        """Leave nothing that was not sealed."""
        if self._writer is not None:
            self._writer.abort()
            self._writer = None

    def run(self, first_ordinal: int, level: int) -> Run:
        """The run, sealed."""
        return Run(tuple(self._sealed), self._tick, first_ordinal, tuple(self._ends), level)

    def segments(self) -> list[str]:
        """The names of the sealed segments."""
        return [self._disk.merged_segment(self._part, self._tick, number) for number in range(len(self._sealed))]


def put_in_order(pages: Sequence[Page]) -> Page:
    """Sorted pages of neighbouring runs, in the runs' order, as one sorted page.

    Rows of one hash stay in the order of their runs and so of their ordinals.
    """
    if len(pages) == 1:
        return pages[0]
    hashes = np.concatenate([page.hashes for page in pages])
    order = np.argsort(hashes, kind="stable").astype(np.int32)
    columns = [
        gathered(pa.concat_arrays([page.columns[c] for page in pages]), order) for c in range(len(pages[0].columns))
    ]
    ticks = np.concatenate([page.ticks for page in pages])
    ordinals = np.concatenate([page.ordinals for page in pages])
    return Page(hashes[order], ticks[order], columns, -1, -1, ordinals[order])
