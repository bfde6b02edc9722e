"""A batch's rows that fit into memory: in their canonical order, looked up like a segment of the state."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels import hash_index
from watersmeet.records.plan import BatchRows
from watersmeet.runs.hash_runs import ONE_BUCKET, index_bits, link, pages, widest_row, widths_of


class Fresh(BatchRows):
    """Rows sorted by hash, and an index of them once it is needed."""

    def __init__(self, hashes: Int64, columns: list[pa.Array]) -> None:
        super().__init__(columns)
        self._hashes = hashes
        self._columns = columns
        self._index: tuple[Int64, Int32] | None = None
        self._bits = index_bits(len(hashes))
        self.rows = len(hashes)
        self.first, self.last = int(hashes[0]), int(hashes[-1])
        """The smallest and the largest hash."""
        self.widest = widest_row(columns)
        """Bytes of the widest row."""

    def hashes(self, start: int, stop: int) -> Int64:
        """The hashes of a stretch of rows."""
        return self._hashes[start:stop]

    def pages(self, page_bytes: int) -> Iterator[tuple[Int64, list[pa.Array]]]:
        """All rows, so many bytes at a time."""
        widths, width = widths_of(self._columns)
        for start, stop in pages(widths, self.rows, width + 8, page_bytes):
            yield self._hashes[start:stop], [column.slice(start, stop - start) for column in self._columns]

    def parts_of(self, hashes: Int64) -> Int32:
        """The bucket of each hash."""
        parts = np.empty(len(hashes), np.int32)
        hash_index.partitions_of(hashes, self._bits, parts)
        return parts

    def probe(
        self, hashes: Int64, parts: Int32, start: int, link_to: int, out_probe: Int32, out_row: Int32
    ) -> tuple[int, int, int]:
        """Look hashes up from `start` and `link_to` on until the buffers are full; pairs found, and where to go on."""
        if self._index is None:
            self._index = link(self._hashes, self._bits)
        found, start, link_to, _ = hash_index.probe(
            hashes, parts, start, len(hashes), link_to, *self._index, ONE_BUCKET, out_probe, out_row, 0
        )
        return found, start, link_to
