"""The rows of a slot's groups in one micro-batch: as Spark delivers them, of all groups mixed, and then group by group.

What exceeds the memory is written to disk in parts, each in the order of groups, a page for every group and kind of
rows; what is read back of them is one group's at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32
from watersmeet.records.types import put_together
from watersmeet.spill.segment import Segment, SegmentWriter
from watersmeet.spill.store import Store

_PAGE_ROWS = 4096
_MOST_BYTES = 1 << 30
"""Of strings in one array: their offsets have 32 bits."""


class SlotRows:
    """Rows by their tags, which are in the first column; in memory at most twice `limit` bytes of them.

    >>> from watersmeet.spill.store import MemoryStore
    >>> rows = SlotRows(kinds=2, limit=1 << 20, scratch=MemoryStore)
    >>> rows.add(pa.record_batch({"tag": pa.array([7, 4, 7], pa.int32()), "id": [1, 2, 3]}))
    >>> rows.groups(), [(kind, piece["id"].to_pylist()) for kind, piece in rows.of(3)]
    ([2, 3], [(1, [1, 3])])
    """

    def __init__(self, kinds: int, limit: int, scratch: Callable[[], Store]) -> None:
        self._kinds = kinds
        self._limit = min(limit, _MOST_BYTES)
        self._scratch = scratch
        self._store: Store | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._held = 0
        self.peak = 0
        """The most bytes that were in memory at once."""
        self._segments: dict[str, Segment] = {}
        self._pieces: dict[int, list[tuple[int, pa.RecordBatch | tuple[str, int]]]] = {}
        """Of each group: the kind, and the rows, or the segment and page where they are."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows of any groups."""
        if not batch.num_rows:
            return
        if self._held and self._held + batch.nbytes > self._limit:
            self._settle(to_disk=True)
        self._waiting.append(batch)
        self._held += batch.nbytes
        self.peak = max(self.peak, 2 * self._held)

    def groups(self) -> list[int]:
        """Those that have rows, in their order; all rows have come."""
        self._settle(to_disk=self._store is not None)
        return sorted(self._pieces)

    def of(self, group: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """A group's rows, each piece of one kind; they are gone then."""
        for kind, where in self._pieces.pop(group):
            if isinstance(where, pa.RecordBatch):
                yield kind, where
            else:
                yield kind, self._segments[where[0]].read_page(where[1])
                self._segments[where[0]].release(where[1])

    def close(self) -> None:
        """Let go of everything."""
        self._waiting, self._pieces, self._segments = [], {}, {}
        if self._store is not None:
            self._store.close()

    def _settle(self, to_disk: bool) -> None:
        """Put the rows at hand into the order of their tags."""
        if not self._waiting:
            return
        whole = put_together(self._waiting)
        assert whole is not None, "types that Spark hands to Python can be put together"
        self._waiting, self._held = [], 0
        tags: Int32 = whole.column(0).to_numpy()
        order = np.argsort(tags, kind="stable")
        bounds = np.flatnonzero(np.diff(tags[order], prepend=-1, append=-1))
        ordered = whole.take(pa.array(order))
        spans = [(int(tags[order[start]]), start, end) for start, end in pairwise(bounds.tolist())]
        if to_disk:
            self._write(ordered, spans)
        else:
            for tag, start, end in spans:
                self._note(tag, ordered.slice(start, end - start))

    def _write(self, ordered: pa.RecordBatch, spans: list[tuple[int, int, int]]) -> None:
        if self._store is None:
            self._store = self._scratch()
        name = f"slot-{len(self._segments)}"
        page = 0
        with SegmentWriter(self._store, name, ordered.schema) as writer:
            for tag, start, end in spans:
                for first in range(start, end, _PAGE_ROWS):
                    writer.write_page(ordered.slice(first, min(_PAGE_ROWS, end - first)))
                    self._note(tag, (name, page))
                    page += 1
            self._segments[name] = writer.seal()

    def _note(self, tag: int, where: pa.RecordBatch | tuple[str, int]) -> None:
        self._pieces.setdefault(tag // self._kinds, []).append((tag % self._kinds, where))
