"""Rows on their way into a relation: in their stored form with their places, sorted into runs that fit into memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int64
from watersmeet.memory import Budget
from watersmeet.records.places import PlaceCodec, Places
from watersmeet.records.plan import fixed_width, value_widths
from watersmeet.records.types import to_stored
from watersmeet.relation.relation import Design
from watersmeet.spill.segment import Segment, SegmentWriter
from watersmeet.spill.store import Store

INDEX_BYTES = 24
"""Of each row in a segment, beside its columns: the entry of the index and its bucket."""
_SORT_BYTES = 56
"""Of each row being sorted: its place, and the orders that sorting makes."""
_PAGE_BYTES = 32 * 1024
_LONGEST_RUN = 512 << 20


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in their stored form, with their places."""

    columns: list[pa.Array]
    places: Places

    def __len__(self) -> int:
        return len(self.places)

    def take(self, rows: NDArray[Any]) -> Rows:
        """Some of the rows."""
        numbers = pa.array(rows)
        return Rows([column.take(numbers) for column in self.columns], self.places.take(rows))

    def slice(self, start: int, stop: int) -> Rows:
        """A stretch of the rows."""
        return Rows(
            [column.slice(start, stop - start) for column in self.columns], self.places.take(slice(start, stop))
        )

    def sorted(self) -> Rows:
        """The rows in the order of their places."""
        return self.take(self.places.order())

    def widths(self) -> Int64:
        """Bytes that each row takes in a segment."""
        widths = np.full(len(self), INDEX_BYTES, np.int64)
        for column in self.columns:
            width = fixed_width(column.type)
            widths += value_widths(column) if width is None else width
        return widths

    @staticmethod
    def concat(parts: list[Rows]) -> Rows:
        """Rows one after the other."""
        if len(parts) == 1:
            return parts[0]
        columns = [pa.concat_arrays([part.columns[i] for part in parts]) for i in range(len(parts[0].columns))]
        words = np.concatenate([part.places.words for part in parts])
        hashes = np.concatenate([part.places.hashes for part in parts])
        return Rows(columns, Places(words, hashes, None))


def stored_rows(design: Design, codec: PlaceCodec, batch: pa.RecordBatch) -> tuple[Rows, int]:
    """A batch's rows that have a key, and how many have none."""
    places = codec.places([batch.column(name) for name in design.on])
    columns = [to_stored(column) for column in batch.columns]
    if places.known is None:
        return Rows(columns, places), 0
    known = np.flatnonzero(places.known)
    rows = Rows(columns, Places(places.words, places.hashes, None)).take(known)
    return rows, batch.num_rows - len(known)


class RelationRun(Protocol):
    """Sorted rows that can be read in slices."""

    @property
    def words(self) -> Int64:
        """Of the places, in order."""
        ...

    @property
    def hashes(self) -> Int64:
        """Of the places, in order."""
        ...

    def marks(self) -> tuple[Int64, Int64]:
        """The first row of each page, and the bytes of the page."""
        ...

    def slice(self, start: int, stop: int) -> Rows:
        """Some of its rows."""
        ...


class _MemoryRun:
    """The only run there is: it need not be written."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._order = rows.places.order()
        self.words = rows.places.words[self._order]
        self.hashes = rows.places.hashes[self._order]

    def marks(self) -> tuple[Int64, Int64]:
        widths = self._rows.widths()[self._order]
        page = max(1, int(_PAGE_BYTES // max(1, widths.mean()))) if len(widths) else 1
        firsts = np.arange(0, len(widths), page)
        return firsts, np.add.reduceat(widths, firsts) if len(firsts) else firsts

    def slice(self, start: int, stop: int) -> Rows:
        return self._rows.take(self._order[start:stop])


class DiskRun:
    """A run that was spilled."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.words = segment.array("words")
        self.hashes = segment.array("hashes")
        self._starts = np.concatenate([[0], np.cumsum([segment.page_rows(i) for i in range(segment.pages)])])

    def marks(self) -> tuple[Int64, Int64]:
        sizes = [self._segment.page_nbytes(i) + INDEX_BYTES * self._segment.page_rows(i)
                 for i in range(self._segment.pages)]  # fmt: skip
        return self._starts[:-1], np.array(sizes, np.int64)

    def slice(self, start: int, stop: int) -> Rows:
        first, last = (int(np.searchsorted(self._starts, at, side="right")) - 1 for at in (start, stop - 1))
        parts = []
        for page in range(first, last + 1):
            batch, begin = self._segment.read_page(page), int(self._starts[page])
            low, high = max(start, begin) - begin, min(stop - begin, batch.num_rows)
            places = Places(self.words[begin + low : begin + high], self.hashes[begin + low : begin + high], None)
            parts.append(Rows([column.slice(low, high - low) for column in batch.columns], places))
        return Rows.concat(parts)

    def release(self, before: int) -> None:
        """Pages that end before this row will not be read again."""
        for page in range(int(np.searchsorted(self._starts, before, side="right")) - 1):
            self._segment.release(page)


class Sorter:
    """Takes rows, and turns them into sorted runs that fit into memory one at a time."""

    def __init__(self, design: Design, memory: int, spill: Store) -> None:
        self.design = design
        self.left_out = 0
        self.rows = 0
        self._budget = Budget(memory)
        self._held = self._budget.reservation("rows being sorted")
        self._spill = spill
        self._codec: PlaceCodec | None = None
        self._waiting: list[Rows] = []
        self._runs: list[DiskRun] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take some rows."""
        if not batch.num_rows:
            return
        if self._codec is None:
            if not self.design.prefix:
                prefix = self.design.codec().common_prefix([batch.column(name) for name in self.design.on])
                self.design = replace(self.design, prefix=prefix)
            self._codec = self.design.codec()
        rows, left_out = stored_rows(self.design, self._codec, batch)
        self.left_out += left_out
        self.rows += len(rows)
        # The rows themselves, and their copy in order.
        size = 2 * sum(column.nbytes for column in rows.columns) + _SORT_BYTES * len(rows)
        if size > self._budget.total // 4 and len(rows) > 1:
            half = batch.num_rows // 2
            self.left_out -= left_out
            self.rows -= len(rows)
            del rows
            self.add(batch.slice(0, half))
            self.add(batch.slice(half))
            return
        if self._waiting and (self._held.held + size > _LONGEST_RUN or not self._held.try_grow(size)):
            self._write_run()
            self._held.grow(size)
        elif not self._waiting:
            self._held.grow(size)
        self._waiting.append(rows)

    def runs(self) -> list[RelationRun]:
        """All rows, sorted; nothing can be added any more."""
        if self._waiting and self._runs:
            self._write_run()
        if self._waiting:
            return [_MemoryRun(Rows.concat(self._waiting))]
        return list(self._runs)

    def _write_run(self) -> None:
        rows = Rows.concat(self._waiting)
        self._waiting = []
        order = rows.places.order()
        width = max(1, int(rows.widths().mean()))
        page = max(1, _PAGE_BYTES // width)
        schema = self.design.stored
        if self.design.surrogate is not None:
            schema = schema.remove(len(schema) - 1)
        with SegmentWriter(self._spill, f"run-{len(self._runs)}", schema) as writer:
            for start in range(0, len(order), page):
                piece = rows.take(order[start : start + page])
                writer.write_page(pa.RecordBatch.from_arrays(piece.columns, schema=schema))
            writer.add_array("words", rows.places.words[order])
            writer.add_array("hashes", rows.places.hashes[order])
            self._runs.append(DiskRun(writer.seal()))
        self._held.shrink(self._held.held)
