"""Rows of a table as pages of a segment: hash, arrival tick, and the stored columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels.gather import fitting
from watersmeet.spill.segment import SegmentWriter
from watersmeet.spill.store import Store

_FIXED_BYTES = 16
_MEASURED_AT_ONCE = 65_536


class Stored(Protocol):
    """Rows by number that can be written: those of a table."""

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        """The stored columns' types."""
        ...

    def hashes(self, rows: Int32) -> Int64:
        """The hashes of some rows."""
        ...

    def ticks(self, rows: Int32) -> Int64:
        """When some rows arrived."""
        ...

    def gather(self, column: int, rows: Int32) -> pa.Array:
        """One column's values for some rows."""
        ...

    def widen(self, column: int, rows: Int32, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in a batch."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows read back."""

    hashes: Int64
    ticks: Int64
    columns: list[pa.Array]
    first_ordinal: int
    departed: int
    merged: Int64 | None = None
    """The ordinals, where they do not simply count on from the first: on pages of merged runs."""

    @classmethod
    def of(cls, batch: pa.RecordBatch, first_ordinal: int = -1, departed: int = -1, merged: bool = False) -> Page:
        """A page from the batch that was written."""
        hashes, ticks = batch.column(0).to_numpy(), batch.column(1).to_numpy()
        if merged:
            return cls(hashes, ticks, batch.columns[3:], first_ordinal, departed, batch.column(2).to_numpy())
        return cls(hashes, ticks, batch.columns[2:], first_ordinal, departed)

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def nbytes(self) -> int:
        """What its rows take in memory."""
        ordinals = 0 if self.merged is None else self.merged.nbytes
        return int(self.hashes.nbytes + self.ticks.nbytes + ordinals + sum(column.nbytes for column in self.columns))

    @property
    def ordinals(self) -> Int64:
        """Each row's ordinal."""
        if self.merged is not None:
            return self.merged
        return np.arange(self.first_ordinal, self.first_ordinal + len(self))

    def slice(self, start: int, count: int) -> Page:
        """Some of its rows."""
        return Page(
            self.hashes[start : start + count],
            self.ticks[start : start + count],
            [column.slice(start, count) for column in self.columns],
            self.first_ordinal + start,
            self.departed,
            None if self.merged is None else self.merged[start : start + count],
        )


def joined(pages: Sequence[Page]) -> Page:
    """Pages that left memory at one time, one after the other, as one."""
    first = pages[0]
    columns = [pa.concat_arrays([page.columns[c] for page in pages]) for c in range(len(first.columns))]
    hashes, ticks = (np.concatenate([getattr(page, name) for page in pages]) for name in ("hashes", "ticks"))
    return Page(hashes, ticks, columns, first.first_ordinal, first.departed)


def page_schema(types: Sequence[pa.DataType], merged: bool = False) -> pa.Schema:
    """The columns of a page."""
    ordinal = [("ordinal", pa.int64())] if merged else []
    columns = [(f"c{i}", type_) for i, type_ in enumerate(types)]
    return pa.schema([("hash", pa.int64()), ("tick", pa.int64()), *ordinal, *columns])


def write_rows(
    store: Store,
    name: str,
    table: Stored,
    rows: Int32,
    page_bytes: int,
    beside: Mapping[str, Int64] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> tuple[int, ...]:
    """Write rows of a table as a segment; returns the rows up to the end of each page. Whole or not at all.

    Arrays may lie `beside` the pages, to be read without them, and `meta` says anything about the whole.
    """
    schema = page_schema(table.types)
    writer = SegmentWriter(store, name, schema)
    ends: list[int] = []
    try:
        for start, stop in cut(table, rows, page_bytes):
            piece = rows[start:stop]
            arrays = [pa.array(table.hashes(piece)), pa.array(table.ticks(piece))]
            arrays += [table.gather(column, piece) for column in range(len(table.types))]
            writer.write_page(pa.RecordBatch.from_arrays(arrays, schema=schema))
            ends.append(stop)
        for label, array in (beside or {}).items():
            writer.add_array(label, array)
        writer.seal(meta).close()
    except BaseException:
        writer.abort()
        raise
    return tuple(ends)


def write_batches(writer: SegmentWriter, batches: Iterable[pa.RecordBatch], page_bytes: int) -> tuple[int, ...]:
    """Write pages again, small ones together on one; returns the rows up to the end of each page."""
    ends: list[int] = []
    waiting: list[pa.RecordBatch] = []

    def write() -> None:
        columns = [pa.concat_arrays(arrays) for arrays in zip(*(batch.columns for batch in waiting), strict=True)]
        page = pa.RecordBatch.from_arrays(columns, schema=waiting[0].schema)
        writer.write_page(page)
        ends.append((ends[-1] if ends else 0) + page.num_rows)
        waiting.clear()

    for batch in batches:
        if waiting and sum(each.nbytes for each in waiting) + batch.nbytes > page_bytes:
            write()
        waiting.append(batch)
    if waiting:
        write()
    return tuple(ends)


def count_pages(table: Stored, rows: Int32, page_bytes: int) -> int:
    """How many pages `write_rows` would write."""
    return sum(1 for _ in cut(table, rows, page_bytes))


def cut(table: Stored, rows: Int32, page_bytes: int) -> Iterator[tuple[int, int]]:
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
