"""A queue's overflow on disk: a source that is faster than the join for a while runs ahead, and does not wait.

A queue in memory holds pieces in the order in which they came. When it is full, its reader takes the newest of them
back, writes them to one segment, and puts into their place where they lie::

    consumer ◀── piece · piece · [segments 1 to 7] · piece ◀── reader

So the order is the queue's own, and each row is in one place: whoever takes a piece from either end has it alone. The
consumer, when it comes to segments, reads the first and removes it. Where there is no room on disk, by the bound or
because the disk is full, the reader waits, as it would without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from watersmeet.core.errors import SpillError
from watersmeet.core.report import SpoolFigures
from watersmeet.spill.segment import Segment, SegmentWriter
from watersmeet.spill.store import Store

_SEGMENT_BYTES, _PAGE_BYTES, _COLUMN_BYTES = 4096, 1024, 512
"""No less than what a segment, each of its pages, and each column of a page take beside the rows."""


@dataclass(frozen=True, slots=True)
class Spooled:
    """Rows of a queue that lie on disk, in segments with these numbers."""

    queue: int
    first: int
    last: int
    rows: int

    def name(self) -> str:
        """Of the first segment."""
        return f"spooled-{self.queue}-{self.first}"

    def and_then(self, other: Spooled) -> Spooled:
        """Both, if the other's are the segments that come next."""
        assert (self.queue, self.last + 1) == (other.queue, other.first)
        return replace(self, last=other.last, rows=self.rows + other.rows)


class Spool:
    """Segments of all queues of a run, within a bound. Readers write to it, and the consumer reads.

    >>> from watersmeet.spill.store import MemoryStore
    >>> spool = Spool(1 << 20, MemoryStore)
    >>> waiting = spool.put(0, 1, [pa.record_batch({"n": [1, 2]}), pa.record_batch({"n": [3]})])
    >>> batches, rest = spool.take(waiting)
    >>> [batch.num_rows for batch in batches], rest, spool.figures().waiting_rows
    ([2, 1], None, 0)
    """

    def __init__(self, room: int, new_store: Callable[[], Store]) -> None:
        self.room = room
        self._new_store = new_store
        self._store: Store | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._waiting_rows = self._waiting_bytes = self._peak = 0
        self._rows = self._bytes = 0
        self._refused: str | None = None

    def put(self, queue: int, number: int, batches: Sequence[pa.RecordBatch]) -> Spooled | None:
        """Write rows of a queue as its segment of this number; None: there is no room, and nothing was written."""
        columns = len(batches[0].schema)
        about = _SEGMENT_BYTES + sum(batch.nbytes + _PAGE_BYTES + _COLUMN_BYTES * columns for batch in batches)
        with self._lock:
            if self._closed or self._waiting_bytes + about > self.room:
                return None
            if self._refused is not None and self._waiting_bytes:
                return None  # a disk that was full is tried again when nothing of ours is left on it
            self._waiting_bytes += about
        written = Spooled(queue, number, number, sum(batch.num_rows for batch in batches))
        try:
            size = self._write(written.name(), batches)
        except SpillError as error:
            with self._lock:
                self._waiting_bytes -= about
                self._refused = str(error)
            return None
        with self._lock:
            self._refused = None
            self._waiting_bytes += size - about
            self._waiting_rows += written.rows
            self._rows += written.rows
            self._bytes += size
            self._peak = max(self._peak, self._waiting_bytes)
        return written

    def _write(self, name: str, batches: Sequence[pa.RecordBatch]) -> int:
        with self._lock:
            if self._store is None:
                self._store = self._new_store()
            writer = SegmentWriter(self._store, name, batches[0].schema)
        try:
            for batch in batches:
                writer.write_page(batch)
            with self._lock:
                segment = writer.seal()
        except BaseException:
            with self._lock:
                writer.abort()
            raise
        size = segment.nbytes
        segment.close()
        return size

    def take(self, spooled: Spooled) -> tuple[list[pa.RecordBatch], Spooled | None]:
        """The rows of the first segment, in memory, which is gone; and what is left."""
        assert self._store is not None
        segment = Segment.open(self._store, spooled.name())
        batches = [_copied(segment.read_page(page)) for page in range(segment.pages)]
        rows, size = segment.rows, segment.nbytes
        segment.close()
        with self._lock:
            self._store.remove(spooled.name())
            self._waiting_rows -= rows
            self._waiting_bytes -= size
        left = replace(spooled, first=spooled.first + 1, rows=spooled.rows - rows)
        return batches, (left if left.first <= left.last else None)

    def figures(self) -> SpoolFigures:
        """What waits, and what has gone through."""
        with self._lock:
            return SpoolFigures(
                self._waiting_rows, self._waiting_bytes, self._peak, self._rows, self._bytes, self.room, self._refused
            )

    def close(self) -> None:
        """Remove whatever is left."""
        with self._lock:
            self._closed = True
            self._waiting_rows = self._waiting_bytes = 0
            store, self._store = self._store, None
        if store is not None:
            store.close()


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in memory of their own: an operator may keep them, and a mapped file takes room on disk as long."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()
