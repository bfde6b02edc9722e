"""Blocks of one input that were dumped, in segments of many blocks each, until they expire.

```
segment 4    [block 17 of partition 0 │ block 18 of partition 0 │ block 19 of partition 3]      rows on pages
             first and last time, when it left memory (FOREVER: it has not yet), results         in memory
```

A dumped block may stay in memory for a while: until it leaves, nobody has to look it up here. Segments are mapped, not
loaded; one whose blocks have all expired is removed without having been read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Bytes, Int32, Int64
from watersmeet.core.cost import Meter
from watersmeet.memory import Reservation
from watersmeet.records.plan import fixed_width
from watersmeet.runs.page import Page, count_pages, page_schema, write_batches, write_rows
from watersmeet.runs.window_segments import FOREVER, Piece, Span, joined_blocks
from watersmeet.spill.segment import Segment, SegmentWriter
from watersmeet.spill.store import Store
from watersmeet.tables.window_table import WindowTable

ELSEWHERE = -1
_FIELDS = 6
_BLOCK_BYTES = 8 * _FIELDS + 40
_PAGE_BYTES = 12 + 32
_PIECE_BYTES = 96 + 128
"""Of each entry, and what a scan remembers of it."""
JOINED_BYTES = 64
"""Of a row of segments that become one: hashes and times, before and after."""
_PLACES_FROM = 16 * 1024
_PAGES_RESIDENT = 8
_MOST_OPEN = 1024
"""Segments that are mapped at once."""


def _start_of(array: pa.Array, width: int, mapped: Bytes) -> int:
    """Where an array's values lie, if nothing but their place need be known."""
    values = array.buffers()[1] if width and not array.null_count else None
    if values is None:
        return ELSEWHERE
    start = int(values.address - mapped.ctypes.data) + array.offset * width
    return start if 0 <= start <= len(mapped) - len(array) * width else ELSEWHERE


class WindowDisk:
    """One side's dumped blocks, numbered in the order in which they were dumped."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        types: Sequence[pa.DataType],
        claim: Reservation,
        meter: Meter,
        page_bytes: int,
    ) -> None:
        self._page_bytes = page_bytes
        self.resident = _PAGES_RESIDENT * page_bytes
        """Bytes of segments that may be mapped at once, about, while rows are gathered."""
        self.by_places = page_bytes >= _PLACES_FROM
        """Whether it is worth remembering where values lie on pages: on small ones that would take too much memory."""
        self.schema = page_schema(types)
        self._widths = [0 if pa.types.is_boolean(type_) else fixed_width(type_) or 0 for type_ in types]
        self.pieces: list[Piece] = []
        self.next_block = 0
        self._store = store
        self._prefix = prefix
        self._claim = claim
        self._meter = meter
        self._open: list[Piece] = []
        self.absent = 0
        """How many blocks have left memory."""

    def name(self, number: int) -> str:
        """The segment that begins with this block."""
        return f"{self._prefix}-{number}"

    def entry_bytes(self, blocks: int, pages: int) -> int:
        """Memory that the entry of a dump takes."""
        places = 16 * len(self._widths) if self.by_places else 0
        return _PIECE_BYTES + _BLOCK_BYTES * blocks + (_PAGE_BYTES + places) * pages

    def try_dump(self, table: WindowTable, blocks: Sequence[tuple[int, int]]) -> bool:
        """Write blocks, as (partition, block) of the table, one after the other; they stay in memory.

        False, and nothing is written, if there is no memory to remember them.
        """
        spans = [table.rows_in(part, block) for part, block in blocks]
        places = np.array([block for _, block in blocks], np.int64)
        firsts = np.cumsum([0, *(len(span) for span in spans[:-1])])
        left = np.full(len(blocks), FOREVER)
        parts = [part for part, _ in blocks]
        fields = [parts, firsts, table.earliest[places], table.latest[places], left, table.results[places]]
        if not self._try_write(table, np.concatenate(spans), np.array(fields, np.int64)):
            return False
        table.disk[places] = np.arange(self.next_block - len(blocks), self.next_block)
        return True

    def try_dump_run(self, table: WindowTable, part: int, tick: int) -> bool:
        """Write a whole partition as one block, which leaves memory at this tick; False, and nothing is written, if
        there is no memory to remember it.
        """
        places = np.array(table.queues[part], np.int64)
        fields = [[part], [0], [table.earliest[places].min()], [table.latest[places].max()], [tick], [0]]
        if not self._try_write(table, table.rows_of(part), np.array(fields, np.int64)):
            return False
        self.absent += 1
        return True

    def _try_write(self, table: WindowTable, rows: Int32, blocks: Int64) -> bool:
        claimed = self.entry_bytes(blocks.shape[1], count_pages(table, rows, self._page_bytes))
        if not self._claim.try_grow(claimed):
            return False
        number = self.next_block
        try:
            beside = {"hashes": table.hashes(rows), "times": table.times(rows)}
            ends = write_rows(self._store, self.name(number), table, rows, self._page_bytes, beside)
        except BaseException:
            self._claim.shrink(claimed)
            raise
        self._meter.pages_written += len(ends)
        self._meter.disk_rows += len(rows)
        self._meter.seeks += 1
        self.pieces.append(Piece(number, ends, blocks, claimed))
        self.next_block += blocks.shape[1]
        return True

    def try_join(self, pieces: Sequence[Piece], before: int, block_rows: int = FOREVER) -> Piece | None:
        """Write segments whose blocks have all left memory, the oldest first, as one: each partition's rows together,
        in blocks of so many rows, without those of times before this.

        They are forgotten then, and their segments can go. None, and nothing is written, if there is no memory to
        remember the new one, or no row is left.
        """
        spans = Span.by_partition(pieces)
        index = {piece.number: self.index(piece) for piece in pieces}
        hashes, times = (np.concatenate([index[span.piece.number][at][span.rows] for span in spans]) for at in (0, 1))
        live = times >= before
        if not live.any():
            return None
        firsts, blocks = joined_blocks(spans, times, live, block_rows)
        most = self.entry_bytes(len(firsts), sum(span.pages for span in spans))
        if not self._claim.try_grow(most):
            return None
        number = self.next_block
        try:
            writer = SegmentWriter(self._store, self.name(number), self.schema)
            try:
                ends = write_batches(writer, self._batches(spans, live), self._page_bytes)
                writer.add_array("hashes", hashes[live])
                writer.add_array("times", times[live])
                writer.seal().close()
            except BaseException:
                writer.abort()
                raise
        except BaseException:
            self._claim.shrink(most)
            raise
        self._meter.pages_written += len(ends)
        self._meter.disk_rows += ends[-1]
        self._meter.seeks += 1
        claimed = self.entry_bytes(len(firsts), len(ends))
        self._claim.shrink(most - claimed)
        joined = Piece(number, ends, blocks, claimed, age=pieces[0].age)
        self.pieces.append(joined)
        self.next_block += len(firsts)
        self.absent += len(firsts)
        for piece in pieces:
            self.forget(piece)
        return joined

    def _batches(self, spans: Sequence[Span], live: NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        """The rows of blocks, page by page, without those that are not to live on."""
        first = 0
        for span in spans:
            self.count_read(span.piece, span.start, span.stop)
            row = span.start
            while row < span.stop:
                page = bisect_right(span.piece.ends, row)
                before = span.piece.ends[page - 1] if page else 0
                stop = min(span.stop, span.piece.ends[page])
                kept = live[first : first + stop - row]
                if kept.any():
                    batch = self.read(span.piece, page).slice(row - before, stop - row)
                    yield batch if kept.all() else batch.take(pa.array(np.flatnonzero(kept)))
                first += stop - row
                row = stop
            self.release(span.piece)

    @property
    def held(self) -> int:
        """Memory for the entries of all segments."""
        return self._claim.held

    def by_age(self) -> list[Piece]:
        """All segments, in the order in which their rows came to the disk."""
        return sorted(self.pieces, key=lambda piece: piece.age)

    def find(self, block: int) -> tuple[Piece, int]:
        """The segment of a block, and its place there."""
        piece = self.pieces[bisect_right(self.pieces, block, key=lambda piece: piece.number) - 1]
        return piece, block - piece.number

    def leave(self, block: int, tick: int, results: int) -> None:
        """A block has left memory."""
        piece, place = self.find(block)
        piece.left[place] = tick
        piece.results[place] = results
        self.absent += 1

    def read(self, piece: Piece, page: int) -> pa.RecordBatch:
        """A page: hash, tick, time, floor and the other columns."""
        return self._opened(piece).read_page(page)

    def _opened(self, piece: Piece) -> Segment:
        if piece.segment is None:
            if len(self._open) >= _MOST_OPEN:
                self._close(self._open[0])
            piece.segment = Segment.open(self._store, self.name(piece.number))
            self._open.append(piece)
        return piece.segment

    def bytes_of(self, piece: Piece) -> tuple[Bytes, Int64]:
        """All bytes of a segment, and where in them the values of each column lie on each page."""
        segment = self._opened(piece)
        mapped = segment.mapped()
        if piece.starts is None:
            pages = [segment.read_page(page) for page in range(segment.pages)]
            piece.starts = np.array(
                [
                    [_start_of(page.column(2 + column), width, mapped) for page in pages]
                    for column, width in enumerate(self._widths)
                ],
                np.int64,
            ).reshape(len(self._widths), len(pages))
            del pages
            segment.release()
        return mapped, piece.starts

    def index(self, piece: Piece) -> tuple[Int64, Int64]:
        """The hashes and the times of all its rows."""
        segment = self._opened(piece)
        return segment.array("hashes"), segment.array("times")

    def count_nested(self, rows: int) -> None:
        """Take note of how many rows nested loops would have compared what was read with."""
        self._meter.nested += rows

    def count_read(self, piece: Piece, start: int, stop: int) -> None:
        """Take note that the pages of these rows were gone through."""
        first, last = bisect_right(piece.ends, start), bisect_right(piece.ends, stop - 1)
        self._meter.pages_read += last + 1 - first
        self._meter.disk_rows += stop - start
        self._meter.seeks += 1

    def pages_of(self, piece: Piece, start: int, stop: int) -> Iterator[Page]:
        """The rows from one to another, page by page."""
        self.count_read(piece, start, stop)
        while start < stop:
            number = bisect_right(piece.ends, start)
            before = piece.ends[number - 1] if number else 0
            page = Page.of(self.read(piece, number), before)
            end = min(stop, piece.ends[number])
            yield page.slice(start - before, end - start)
            start = end
        self.release(piece)

    def release(self, piece: Piece) -> None:
        """Let what was read of a segment leave this process's memory."""
        if piece.segment is not None:
            piece.segment.release()

    def expire(self, before: int, spared: Collection[int | None]) -> list[str]:
        """Forget segments all of whose blocks have times before this, and are not in memory; returns their names."""
        found = [
            piece
            for piece in self.pieces
            if piece.newest < before and int(piece.left.max()) < FOREVER and piece.number not in spared
        ]
        for piece in found:
            self.forget(piece)
        return [self.name(piece.number) for piece in found]

    def forget(self, piece: Piece) -> None:
        """Forget a segment, none of whose blocks is in memory."""
        self.pieces.remove(piece)
        self.absent -= len(piece.left)
        self._claim.shrink(piece.claimed)
        self._close(piece)

    def close(self) -> None:
        """Unmap everything."""
        for piece in list(self._open):
            self._close(piece)

    def _close(self, piece: Piece) -> None:
        if piece.segment is not None:
            piece.segment.close()
            piece.segment = None
            self._open.remove(piece)

    def segments(self) -> list[str]:
        """The names of all segments."""
        return [self.name(piece.number) for piece in self.pieces]

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            "next": self.next_block,
            "pieces": [[piece.number, list(piece.ends), piece.blocks.tolist(), piece.age] for piece in self.pieces],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over a snapshot's segments."""
        self.next_block = state["next"]
        for number, ends, blocks, age in state["pieces"]:
            claimed = self.entry_bytes(len(blocks[0]), len(ends))
            self._claim.grow(claimed)
            piece = Piece(number, tuple(ends), np.array(blocks, np.int64), claimed, age)
            self.pieces.append(piece)
            self.absent += int((piece.left < FOREVER).sum())

    def check(self) -> None:
        """Assert the invariants."""
        numbers = [piece.number for piece in self.pieces]
        assert numbers == sorted(set(numbers))
        assert self.absent == sum(int((piece.left < FOREVER).sum()) for piece in self.pieces)
        assert self._claim.held >= sum(piece.claimed for piece in self.pieces)
        by_age = self.by_age()
        if by_age:
            parts, left = np.concatenate([piece.blocks[[0, 4]] for piece in by_age], axis=1)
            order = np.argsort(parts, kind="stable")
            assert (np.diff(left[order])[np.diff(parts[order]) == 0] >= 0).all(), "a partition's old blocks left first"
