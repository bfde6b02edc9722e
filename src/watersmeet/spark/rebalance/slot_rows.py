"""The rows of one micro-batch in a task that joins several groups: kept by group, and a sample of their keys.

Spark delivers the rows of all groups mixed. What exceeds the memory is written to disk in parts, each in the order of
groups, a page for every group and kind of rows; what is read back of them is one group's at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32
from watersmeet.records.types import put_together
from watersmeet.spark.rebalance.reorganizing import TopKey
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
        for kind, where in self._pieces.pop(group, ()):
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
        waiting, self._waiting, self._held = self._waiting, [], 0
        if not to_disk and all(map(self._of_one_group, waiting)):
            for batch in waiting:
                self._note_kinds(batch)
            return
        whole = put_together(waiting)
        assert whole is not None, "types that Spark hands to Python can be put together"
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

    def _of_one_group(self, batch: pa.RecordBatch) -> bool:
        tags: Int32 = batch.column(0).to_numpy()
        return bool(tags.min() // self._kinds == tags.max() // self._kinds)

    def _note_kinds(self, batch: pa.RecordBatch) -> None:
        """Rows of one group, as they are where they are all of one kind."""
        tags: Int32 = batch.column(0).to_numpy()
        for tag in np.unique(tags).tolist():
            own = tags == tag
            self._note(tag, batch if own.all() else batch.filter(pa.array(own)))

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


_FROM_EACH_PIECE = 256
_MOST = 4096
"""Of each side: with more, every second one goes."""


class KeySample:
    """The hashes of some rows' keys, by side.

    >>> sample = KeySample()
    >>> for side in (0, 1):
    ...     sample.add(side, np.array([7, 7, 7, 1 + side], np.int32))
    >>> top = sample.top([40, 40], results=9000)
    >>> top.key, round(top.share, 3), top.rows
    (7, 0.998, (30, 30))
    """

    def __init__(self) -> None:
        self._drawn: list[list[Int32]] = [[], []]

    def add(self, side: int, keys: Int32) -> None:
        """Draw from some rows of a side."""
        drawn = self._drawn[side]
        drawn.append(keys[:: -(-len(keys) // _FROM_EACH_PIECE)].copy())
        if sum(map(len, drawn)) > _MOST:
            drawn[:] = [np.concatenate(drawn)[::2]]

    def top(self, rows: Sequence[int], results: int) -> TopKey | None:
        """The heaviest key, if so many rows of each side led to so many results; None without rows."""
        if not sum(rows):
            return None
        counts = []
        keys = np.unique(np.concatenate([part for drawn in self._drawn for part in drawn]))
        for side, drawn in enumerate(self._drawn):
            places = np.searchsorted(keys, np.concatenate(drawn)) if drawn else np.zeros(0, np.int64)
            found = np.bincount(places, minlength=len(keys))
            counts.append(found * (rows[side] / max(1, len(places))))
        pairs = counts[0] * counts[1]
        of_rows = (counts[0] + counts[1]) / sum(rows)
        of_pairs = pairs / max(1.0, float(pairs.sum()))
        # A row that comes and a result that is found take about the same time.
        shares = (of_rows * sum(rows) + of_pairs * results) / (sum(rows) + results)
        best = int(np.argmax(shares))
        return TopKey(int(keys[best]), float(shares[best]), (int(counts[0][best]), int(counts[1][best])))
