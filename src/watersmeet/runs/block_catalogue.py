"""Spilled rows as blocks: each the rows of one flush, sorted, and numbered in the order in which they were written."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.cost import Meter
from watersmeet.memory import Reservation
from watersmeet.runs.page import Page, joined, write_rows
from watersmeet.spill.segment import Segment
from watersmeet.spill.store import Store

_BLOCK_BYTES = 36
_PAGE_BYTES = 9
"""In the catalogue, with what growing arrays leave unused: four words for a block, one for each of its pages."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block's segment, when its rows left memory, its words from the first to the last, and its pages."""

    segment: str
    departed: int
    first: int
    last: int
    page_ends: tuple[int, ...]
    """Rows up to the end of each page."""

    @property
    def rows(self) -> int:
        """All rows of the block."""
        return self.page_ends[-1]

    @property
    def nbytes(self) -> int:
        """What the entry in the catalogue takes."""
        return _BLOCK_BYTES + _PAGE_BYTES * len(self.page_ends)


class SortedBlocks:
    """One side's blocks. They are only ever added, and dropped all together."""

    def __init__(self, store: Store, prefix: str, claim: Reservation, meter: Meter) -> None:
        self._store = store
        self._prefix = prefix
        self._claim = claim
        self._meter = meter
        self._open: Segment | None = None
        self._open_block = -1
        """When the rows of the open segment left memory."""
        self._last_read: int | None = None
        """The page at which the disk stands, counted from the first block's first."""
        self._departed, self._first, self._last = array("q"), array("q"), array("q")
        self._first_pages, self._page_ends = array("q", [0]), array("q")

    def __len__(self) -> int:
        return len(self._departed)

    def __getitem__(self, number: int) -> Block:
        """A block, described anew: there may be very many of them."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        departed = self._departed[number]
        ends = self._page_ends[self._first_pages[number] : self._first_pages[number + 1]]
        return Block(self._name(departed), departed, self._first[number], self._last[number], tuple(ends))

    def pages(self, number: int) -> int:
        """How many pages a block has."""
        return self._first_pages[number + 1] - self._first_pages[number]

    def span(self, number: int) -> tuple[int, int]:
        """A block's first word and its last."""
        return self._first[number], self._last[number]

    def __iter__(self) -> Iterator[Block]:
        return (self[number] for number in range(len(self)))

    def _name(self, tick: int) -> str:
        return f"{self._prefix}-{tick}"

    def write(self, source: Any, rows: Int32, tick: int, page_bytes: int) -> Block:
        """Write rows of a table, sorted by their words; the block counts only once it is added."""
        name = self._name(tick)
        words = source.hashes(rows)
        ends = write_rows(self._store, name, source, rows, page_bytes)
        self._meter.pages_written += len(ends)
        self._meter.seeks += 1
        self._last_read = None
        return Block(name, tick, int(words[0]), int(words[-1]), ends)

    def try_add(self, block: Block) -> bool:
        """Take a block into the catalogue; False if there is no memory for that."""
        if not self._claim.try_grow(block.nbytes):
            return False
        self._append(block)
        return True

    def _append(self, block: Block) -> None:
        self._departed.append(block.departed)
        self._first.append(block.first)
        self._last.append(block.last)
        self._page_ends.extend(block.page_ends)
        self._first_pages.append(len(self._page_ends))

    def read_some(self, number: int, page: int, count: int) -> Page:
        """Some pages of a block, as one."""
        pages = [self.read(number, page + i) for i in range(count)]
        return pages[0] if count == 1 else joined(pages)

    def read(self, number: int, page: int) -> Page:
        """A page of a block."""
        departed = self._departed[number]
        if self._open is None or self._open_block != departed:
            self._close()
            self._open, self._open_block = Segment.open(self._store, self._name(departed)), departed
        batch = self._open.read_page(page)
        # Blocks lie on the disk in the order in which they were written, so that the next one's first page follows.
        place = self._first_pages[number] + page
        if self._last_read != place:
            self._meter.pages_read += 1
            self._meter.seeks += self._last_read is None or place != self._last_read + 1
            self._last_read = place
        return Page.of(batch, -1, departed)

    def arrivals(self, number: int) -> Int64:
        """When the rows of a block arrived; read without being counted."""
        segment = Segment.open(self._store, self[number].segment)
        ticks = [np.array(segment.read_page(page).column(1)) for page in range(segment.pages)]
        segment.close()
        return np.concatenate(ticks)

    def release(self) -> None:
        """Unmap the segment that was read last."""
        self._close()
        self._last_read = None

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def drop(self) -> list[str]:
        """Forget all blocks; returns their segments, for the caller to remove."""
        self.release()
        names = [block.segment for block in self]
        self._claim.shrink(_BLOCK_BYTES * len(self) + _PAGE_BYTES * len(self._page_ends))
        self._departed, self._first, self._last = array("q"), array("q"), array("q")
        self._first_pages, self._page_ends = array("q", [0]), array("q")
        return names

    def to_state(self) -> list[list[Any]]:
        """The catalogue for a snapshot."""
        return [[each.departed, each.first, each.last, list(each.page_ends)] for each in self]

    def load(self, state: Sequence[Sequence[Any]]) -> None:
        """Take over a snapshot's catalogue."""
        for departed, first, last, ends in state:
            block = Block(self._name(departed), departed, first, last, tuple(ends))
            self._claim.grow(block.nbytes)
            self._append(block)

    def check(self) -> None:
        """Assert that blocks lie in the order in which they left memory."""
        assert list(self._departed) == sorted(set(self._departed))
        assert all(each.rows > 0 and each.first <= each.last for each in self)
