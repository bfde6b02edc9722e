"""Stretches of rows on disk, one after the other as if they lay in one place: what a scan goes through."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bytes, Int32, Int64
from watersmeet.kernels.gather import take, take_paged, take_wide
from watersmeet.records.plan import fixed_width, value_widths
from watersmeet.runs.window_runs import ELSEWHERE, WindowDisk
from watersmeet.runs.window_segments import Piece

_FIRST = np.zeros(1, np.int64)
_WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows of one segment that follow each other, and the place of the first among all rows of a scan."""

    piece: Piece
    start: int
    stop: int
    place: int

    @property
    def end(self) -> int:
        """The place behind its last row."""
        return self.place + self.stop - self.start


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows on one page."""

    batch: pa.RecordBatch
    rows: Int32
    first: int
    """How many rows come before them."""


class _Memory:
    """So many bytes from an address on, as an array: looked at only where a segment is mapped.

    It is what lets one pass over rows go through many segments.
    """

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}


class ScannedRows:
    """Rows of some stretches by their places; blocks are told apart, since each left memory at a tick of its own."""

    def __init__(
        self,
        disk: WindowDisk,
        types: Sequence[pa.DataType],
        until: int,
        floor: int,
        pieces: Sequence[Piece] | None = None,
    ) -> None:
        """Of all segments, or of these, the blocks that left memory before a tick and have times from `floor` on."""
        self._disk = disk
        self._widths = [fixed_width(type_) for type_ in types]
        self.stretches: list[Stretch] = []
        blocks: list[tuple[Piece, Int64]] = []
        place = 0
        for piece in disk.pieces if pieces is None else pieces:
            if len(piece.left) == 1:  # a run: there may be very many of them
                if piece.left[0] < until and piece.newest >= floor:
                    blocks.append((piece, _FIRST))
                    self.stretches.append(Stretch(piece, 0, piece.rows, place))
                    place += piece.rows
                continue
            worth = (piece.left < until) & (piece.latest >= floor)
            if not worth.any():
                continue
            chosen = np.flatnonzero(worth)
            blocks.append((piece, chosen))
            together = len(chosen) == chosen[-1] - chosen[0] + 1
            for run in [chosen] if together else np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1):
                start, stop = int(piece.firsts[run[0]]), piece.stop(int(run[-1]))
                self.stretches.append(Stretch(piece, start, stop, place))
                place += stop - start
        self.rows = place
        self._set_blocks(blocks)
        self._set_pages()
        self._current: Int32 | None = None
        self._current_groups: list[_Group] | None = None
        self._touched: list[Piece] = []
        self._read = 0
        """Bytes that values were taken from among, since pages were last let go."""
        self._page_ends = np.empty(0, np.int64)
        self._mapped: list[Bytes] = []
        """The bytes of all segments, which stay mapped as long as places in them are known."""
        self._everywhere = np.empty(0, np.uint8)
        """All memory from the first of these bytes to the last, whatever lies between."""
        self._starts: dict[int, Int64] = {}
        """Of each column: where there the values of each page begin, those that are not scanned left out."""

    def _set_blocks(self, blocks: list[tuple[Piece, Int64]]) -> None:
        none = np.empty(0, np.int64)
        sizes = [
            np.diff(np.append(piece.firsts, piece.rows))[chosen] if len(piece.firsts) > 1 else [piece.rows]
            for piece, chosen in blocks
        ]
        self.block_places = np.cumsum(np.concatenate([[0], *sizes])).astype(np.int64)[:-1]
        self.block_parts = np.concatenate([none, *(piece.parts[chosen] for piece, chosen in blocks)])
        self.block_left = np.concatenate([none, *(piece.left[chosen] for piece, chosen in blocks)])
        self.block_numbers = np.concatenate([none, *(piece.number + chosen for piece, chosen in blocks)])
        self.block_results = np.zeros(len(self.block_left), np.int64)
        self.chosen = blocks

    def _set_pages(self) -> None:
        """Where each page begins: its place, the stretch, the page's number, and the row there."""
        pages: list[tuple[int, int, int, int]] = []
        for number, stretch in enumerate(self.stretches):
            row = stretch.start
            while row < stretch.stop:
                page = bisect_right(stretch.piece.ends, row)
                before = stretch.piece.ends[page - 1] if page else 0
                pages.append((stretch.place + row - stretch.start, number, page, row - before))
                row = stretch.piece.ends[page]
        self._pages = np.array(pages, np.int64).reshape(-1, 4)

    @property
    def nbytes(self) -> int:
        """Memory that this takes, about."""
        return 256 * len(self.stretches) + 40 * len(self.block_left) + self._pages.nbytes

    def nested(self, stretch: Stretch, partners: Int64) -> int:
        """How many rows nested loops would compare a stretch with, where each partition has so many to look for."""
        first, last = np.searchsorted(self.block_places, [stretch.place, stretch.end])
        sizes = np.diff(self.block_places[first:last], append=stretch.end)
        return int(sizes @ partners[self.block_parts[first:last]])

    def stretch_at(self, place: int) -> int:
        """The number of the stretch that a place is in."""
        return bisect_right(self.stretches, place, key=lambda stretch: stretch.place) - 1

    def blocks_of(self, rows: Int32) -> Int64:
        """In which blocks rows lie."""
        return np.searchsorted(self.block_places, rows, side="right") - 1

    def settle(self) -> None:
        """Hand what was counted over to the segments."""
        first = 0
        for piece, chosen in self.chosen:
            piece.results[chosen] += self.block_results[first : first + len(chosen)]
            first += len(chosen)
        self.block_results[:] = 0

    # --- rows out ---

    def gather(self, column: int, rows: Int32) -> pa.Array:
        """One stored column's values for some rows, which are in order."""
        width = self._widths[column]
        if width and len(rows) and self._disk.by_places and column in self._find_values():
            self._touch(rows)
            buffer = pa.allocate_buffer(len(rows) * width)
            out = np.frombuffer(buffer, np.uint8)
            take_paged(self._everywhere, width, self._starts[column], self._page_ends, rows, out)
            self._read += width * int(rows[-1] - rows[0])
            if self._read > self._disk.resident:
                self.release()
            return pa.Array.from_buffers(self._disk.schema.field(2 + column).type, len(rows), [None, buffer], 0)
        groups = self._groups(rows)
        arrays = [group.batch.column(2 + column) for group in groups]
        if not arrays:
            return pa.array([], self._disk.schema.field(2 + column).type)
        if not width or pa.types.is_boolean(arrays[0].type) or any(array.null_count for array in arrays):
            taken = [array.take(pa.array(group.rows)) for array, group in zip(arrays, groups, strict=True)]
            return pa.concat_arrays(taken)
        buffer = pa.allocate_buffer(len(rows) * width)
        out = np.frombuffer(buffer, np.uint8)
        word = _WORDS.get(width)
        for array, group in zip(arrays, groups, strict=True):
            source = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * width :]
            target = out[group.first * width : (group.first + len(group.rows)) * width]
            if word is None:
                take_wide(source, width, group.rows, target)
            else:
                take(source[: len(source) // width * width].view(word), group.rows, target.view(word))
        return pa.Array.from_buffers(arrays[0].type, len(rows), [None, buffer], 0)

    def _find_values(self) -> dict[int, Int64]:
        """Where values begin, of columns of which that is all there is to know."""
        if self._mapped or not self.rows:
            return self._starts
        pieces = list({id(stretch.piece): stretch.piece for stretch in self.stretches}.values())
        known = [self._disk.bytes_of(piece) for piece in pieces]
        self._mapped = [mapped for mapped, _ in known]
        addresses = np.array([mapped.ctypes.data for mapped in self._mapped], np.int64)
        ends = addresses + [len(mapped) for mapped in self._mapped]
        first = int(addresses.min())
        self._everywhere = np.asarray(_Memory(first, int(ends.max()) - first))
        numbers = {id(piece): number for number, piece in enumerate(pieces)}
        of_stretch = np.array([numbers[id(stretch.piece)] for stretch in self.stretches])
        of_page = of_stretch[self._pages[:, 1]]
        pages_before = np.cumsum([0, *(starts.shape[1] for _, starts in known)])[:-1]
        on_all_pages = np.concatenate([starts for _, starts in known], axis=1)
        on_pages = on_all_pages[:, pages_before[of_page] + self._pages[:, 2]]
        self._page_ends = np.append(self._pages[1:, 0], self.rows)
        for column, width in enumerate(self._widths):
            if width and (on_pages[column] != ELSEWHERE).all():
                self._starts[column] = addresses[of_page] - first + on_pages[column] + self._pages[:, 3] * width
        return self._starts

    def _begin(self, rows: Int32) -> None:
        """Rows are about to be gathered, every column of them in turn; those before them have been."""
        if self._current is not rows:
            self.release()
            self._current = rows

    def _touch(self, rows: Int32) -> None:
        """Remember which segments are about to be read."""
        self._begin(rows)
        if not self._touched:
            first, last = self.stretch_at(int(rows[0])), self.stretch_at(int(rows[-1]))
            self._touched = [stretch.piece for stretch in self.stretches[first : last + 1]]

    def widen(self, column: int, rows: Int32, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in an output batch."""
        width = self._widths[column]
        if width is not None:
            widths += width
            return
        for group in self._groups(rows):
            widths[group.first : group.first + len(group.rows)] += value_widths(group.batch.column(2 + column))[
                group.rows
            ]

    def release(self) -> None:
        """Let pages that were gathered from leave this process's memory."""
        for piece in self._touched:
            self._disk.release(piece)
        self._touched.clear()
        self._read = 0
        self._current = self._current_groups = None

    def _groups(self, rows: Int32) -> list[_Group]:
        """The rows by pages."""
        self._begin(rows)
        if self._current_groups is not None:
            return self._current_groups
        pages = np.searchsorted(self._pages[:, 0], rows, side="right") - 1
        cuts = np.flatnonzero(np.diff(pages)) + 1
        found: list[_Group] = []
        first = 0
        for some in np.split(rows, cuts) if len(rows) else []:
            place, stretch, page, row = self._pages[pages[first]].tolist()
            piece = self.stretches[stretch].piece
            if not self._touched or self._touched[-1] is not piece:
                self._touched.append(piece)
            batch = self._disk.read(piece, page)
            found.append(_Group(batch, (some - (place - row)).astype(np.int32), first))
            first += len(some)
        self._current_groups = found
        return found
