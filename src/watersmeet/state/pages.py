"""Rows of a table as pages of a segment: hash, arrival tick, and the stored columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.kernels.gather import fitting
from watersmeet.spill.segment import SegmentWriter
from watersmeet.spill.store import Store
from watersmeet.state.side import SideTable

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

_FIXED_BYTES = 16
_MEASURED_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows read back."""

    hashes: Int64
    ticks: Int64
    columns: list[pa.Array]
    first_ordinal: int
    departed: int

    @classmethod
    def of(cls, batch: pa.RecordBatch, first_ordinal: int = -1, departed: int = -1) -> Page:
        """A page from the batch that was written."""
        return cls(batch.column(0).to_numpy(), batch.column(1).to_numpy(), batch.columns[2:], first_ordinal, departed)

    def __len__(self) -> int:
        return len(self.hashes)

    def slice(self, start: int, count: int) -> Page:
        """Some of its rows."""
        return Page(
            self.hashes[start : start + count],
            self.ticks[start : start + count],
            [column.slice(start, count) for column in self.columns],
            self.first_ordinal + start,
            self.departed,
        )


def write_rows(store: Store, name: str, table: SideTable, rows: Int32, page_bytes: int) -> tuple[int, ...]:
    """Write rows of a table as a segment; returns the rows up to the end of each page. Whole or not at all."""
    fields = [("hash", pa.int64()), ("tick", pa.int64()), *((f"c{i}", type_) for i, type_ in enumerate(table.types))]
    schema = pa.schema(fields)
    writer = SegmentWriter(store, name, schema)
    ends: list[int] = []
    try:
        for start, stop in _cut(table, rows, page_bytes):
            piece = rows[start:stop]
            arrays = [pa.array(table.hashes(piece)), pa.array(table.ticks(piece))]
            arrays += [table.gather(column, piece) for column in range(len(table.types))]
            writer.write_page(pa.RecordBatch.from_arrays(arrays, schema=schema))
            ends.append(stop)
        writer.seal().close()
    except BaseException:
        writer.abort()
        raise
    return tuple(ends)


def _cut(table: SideTable, rows: Int32, page_bytes: int) -> Iterator[tuple[int, int]]:
    """Stretches of rows that each fill a page."""
    for first in range(0, len(rows), _MEASURED_AT_ONCE):
        ahead = rows[first : first + _MEASURED_AT_ONCE]
        widths = np.full(len(ahead), _FIXED_BYTES, np.int64)
        for column in range(len(table.types)):
            table.widen(column, ahead, widths)
        start = 0
        while start < len(ahead):
            stop = start + int(fitting(widths[start:], page_bytes))
            yield first + start, first + stop
            start = stop
