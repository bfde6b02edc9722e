"""The rows of one micro-batch on their way to an operator: collected, put into a canonical order, handed on in pieces.

Spark delivers a task's rows in an order that differs from attempt to attempt. They are sorted by the hash of the whole
row, so the order depends on the rows alone, and says nothing about their keys: an operator sees them as if shuffled.
Rows of several inputs are dealt evenly. What exceeds the memory is sorted in parts on disk, and merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge as merge_sorted

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.records.types import put_together
from watersmeet.spark.task.row_hashes import row_hashes
from watersmeet.spill.segment import Segment, SegmentWriter
from watersmeet.spill.store import Store

_MOST_ROWS = 4096
"""Rows that are handed on at once."""
_MOST_BYTES = 1 << 30
"""Of strings in one array: their offsets have 32 bits."""
_MOST_MERGED = 16
_ORDER = "order"
"""A column by which rows are sorted."""
_ORDER_BYTES = 24
"""Of each row that waits: what it is sorted by, its place in the order, and a copy of one of them."""


class Arrivals:
    """The rows of all inputs of a micro-batch; in memory at most twice `limit` bytes of them.

    >>> from watersmeet.spill.store import MemoryStore
    >>> batch = pa.record_batch({"id": range(5)})
    >>> arrivals = Arrivals([batch.schema], 1 << 20, MemoryStore)
    >>> arrivals.add(0, batch)
    >>> [sorted(piece["id"].to_pylist()) for _, piece in arrivals.in_order()], arrivals.rows
    ([[0, 1, 2, 3, 4]], [5])
    """

    def __init__(self, schemas: Sequence[pa.Schema], limit: int, scratch: Callable[[], Store]) -> None:
        self.rows = [0] * len(schemas)
        self.digests = [0] * len(schemas)
        """A number for each input that tells its rows from others, whatever their order."""
        self._schemas = [schema.append(pa.field(_ORDER, pa.int64())) for schema in schemas]
        self._limit = min(limit, _MOST_BYTES)
        self._scratch = scratch
        self._store: Store | None = None
        self._piles: list[list[pa.RecordBatch]] = [[] for _ in schemas]
        self._runs: list[list[str]] = [[] for _ in schemas]
        self._bytes = [0] * len(schemas)
        self._held = 0
        self.peak = 0
        """The most bytes that rows and their order took at once."""
        self._written = 0

    @property
    def spilled(self) -> bool:
        """Whether the rows did not fit into the memory."""
        return self._store is not None

    def add(self, number: int, batch: pa.RecordBatch) -> None:
        """Take rows of one input."""
        each = max(1, batch.nbytes // max(1, batch.num_rows) + _ORDER_BYTES)
        step = max(1, self._limit // 2 // each)
        for start in range(0, batch.num_rows, step):
            self._add(number, batch.slice(start, step))

    def _add(self, number: int, batch: pa.RecordBatch) -> None:
        order = self._order(number, batch)
        self.rows[number] += batch.num_rows
        size = batch.nbytes + _ORDER_BYTES * batch.num_rows
        self._bytes[number] += batch.nbytes
        if self._held and self._held + size > self._limit:
            self._spill()
        arrays = [*batch.columns, pa.array(order)]
        self._piles[number].append(pa.RecordBatch.from_arrays(arrays, schema=self._schemas[number]))
        self._held += size
        self.peak = max(self.peak, 2 * self._held)

    def _order(self, number: int, batch: pa.RecordBatch) -> Int64:
        """What rows are sorted by."""
        hashes = row_hashes(batch)
        self.digests[number] = (self.digests[number] + int(hashes.sum(dtype=np.uint64))) % (1 << 64)
        return hashes.view(np.int64)

    def settle(self) -> None:
        """All rows have come."""
        if self._store is not None:
            self._spill()

    def in_order(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """All rows, each piece of one input."""
        self.settle()
        dealt = [self._deal(number) for number in range(len(self.rows)) if self.rows[number]]
        for _, number, piece in merge_sorted(*dealt, key=lambda each: each[:2]):
            yield number, piece

    def close(self) -> None:
        """Let go of everything."""
        self._piles = [[] for _ in self._piles]
        if self._store is not None:
            self._store.close()

    def _deal(self, number: int) -> Iterator[tuple[float, int, pa.RecordBatch]]:
        """One input's pieces, each with its place among those of all inputs."""
        pieces = -(-self.rows[number] // self._piece_rows(number))
        for i, (_, piece) in enumerate(self.pieces(number)):
            yield (i + 0.5) / pieces, number, piece

    def pieces(self, number: int) -> Iterator[tuple[Int64, pa.RecordBatch]]:
        """One input's rows in their order, so many at a time, and what they are sorted by."""
        if not self.rows[number]:
            return
        size = self._piece_rows(number)
        for piece in _cut(self._merged(number) if self._runs[number] else self._sorted(number, size), size):
            yield _keys(piece), piece.drop_columns([_ORDER])

    def _piece_rows(self, number: int) -> int:
        width = max(1, self._bytes[number] // self.rows[number])
        return min(_MOST_ROWS, 1 << max(0, (self._limit // 4 // width).bit_length() - 1))

    def _sorted(self, number: int, size: int) -> Iterator[pa.RecordBatch]:
        pile, self._piles[number] = self._piles[number], []
        yield from _ordered(pile, size)

    def _spill(self) -> None:
        """Write the rows at hand, sorted, as a run for each input."""
        for number, pile in enumerate(self._piles):
            if pile:
                self._piles[number] = []
                width = max(1, sum(batch.nbytes for batch in pile) // sum(batch.num_rows for batch in pile))
                rows = max(1, self._page_bytes // width)
                self._write(number, _ordered(pile, rows))
        self._held = 0

    @property
    def _page_bytes(self) -> int:
        return max(1024, self._limit // (2 * _MOST_MERGED))

    def _write(self, number: int, pages: Iterator[pa.RecordBatch]) -> None:
        if self._store is None:
            self._store = self._scratch()
        self._written += 1
        name = f"arrivals-{number}-{self._written}"
        with SegmentWriter(self._store, name, self._schemas[number]) as writer:
            for page in pages:
                writer.write_page(page)
            writer.seal().close()
        self._runs[number].append(name)

    def _merged(self, number: int) -> Iterator[pa.RecordBatch]:
        assert self._store is not None
        while len(self._runs[number]) > _MOST_MERGED:
            first, self._runs[number] = self._runs[number][:_MOST_MERGED], self._runs[number][_MOST_MERGED:]
            self._write(number, _merge(self._store, first))
            for name in first:
                self._store.remove(name)
        yield from _merge(self._store, self._runs[number])


def _keys(batch: pa.RecordBatch) -> Int64:
    keys: Int64 = batch.column(batch.num_columns - 1).to_numpy()
    return keys


def _ordered(pile: list[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a pile in their order, so many at a time."""
    order = np.argsort(np.concatenate([_keys(batch) for batch in pile]), kind="stable")
    whole = put_together(pile)
    assert whole is not None, "types that Spark hands to Python can be put together"
    pile.clear()
    for start in range(0, len(order), rows):
        yield whole.take(pa.array(order[start : start + rows]))


def _merge(store: Store, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of sorted runs in one order, a page of each at hand."""
    streams = [_Stream(Segment.open(store, name)) for name in names]
    while streams:
        # Nothing that is still to come can be smaller than the smallest end of what is at hand.
        end = min(int(_keys(stream.page)[-1]) for stream in streams)
        pile = [piece for stream in streams if (piece := stream.take(end)).num_rows]
        yield from _ordered(pile, max(piece.num_rows for piece in pile))
        streams = [stream for stream in streams if stream.page.num_rows]


class _Stream:
    """A sorted run, a page at hand; without rows at its end."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._next = 1
        self.page = segment.read_page(0)

    def take(self, end: int) -> pa.RecordBatch:
        """The rows at hand up to this place in the order."""
        count = int(np.searchsorted(_keys(self.page), end, "right"))
        taken, self.page = self.page.slice(0, count), self.page.slice(count)
        if not self.page.num_rows and self._next < self._segment.pages:
            self._segment.release()
            self.page = self._segment.read_page(self._next)
            self._next += 1
        return taken


def _cut(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in pieces of so many."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while batch.num_rows:
            piece, batch = batch.slice(0, rows - count), batch.slice(rows - count)
            waiting.append(piece)
            count += piece.num_rows
            if count == rows:
                yield from together(waiting)
                waiting, count = [], 0
    if waiting:
        yield from together(waiting)


def together(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Batches as one; as they are where types cannot be put together."""
    if len(batches) == 1:
        return batches
    whole = put_together(batches)
    return batches if whole is None else [whole]
