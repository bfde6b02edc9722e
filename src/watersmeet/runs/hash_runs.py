"""Runs: rows sorted by the hash of their key, in segments that each cover a range of hashes and carry an index.

```
run of one side     segment  hashes -90..-3      pages │ entries (hash, link) │ heads
                    segment  hashes -3..55       pages │ entries (hash, link) │ heads
```

A segment's index is the chained one of `kernels.hash_index`, its buckets chosen by the top bits of the hash. Rows that
are sorted by hash are then sorted by bucket too, but for the sign: looking up sorted hashes walks through the segment
from one end to the other, and touches only the pages that hold something wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels import hash_index
from watersmeet.records.plan import value_widths, widest_value
from watersmeet.spill.segment import SegmentWriter
from watersmeet.spill.store import Store

ONE_BUCKET = 1
"""Of each partition of the index: all bits that choose a bucket are the partition's."""
_LEAST_BITS = 4


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """What a manifest says of a segment: enough to know whether it must be opened, and whether it is the right one.

    The rows at its beginning may have been merged into another run already: then `first` is larger than their hashes.
    """

    name: str
    rows: int
    """Those that have not been merged elsewhere."""
    first: int
    """The smallest hash of these."""
    last: int
    """The largest."""
    widest: int
    """Bytes of its widest row."""
    nbytes: int
    checksum: int


_REF_FIELDS = [field.name for field in fields(SegmentRef)]


@dataclass(frozen=True, slots=True)
class Run:
    """Segments whose rows, one segment after the other, are sorted by hash."""

    segments: tuple[SegmentRef, ...]
    taking: int = 0
    """How many of the next newer runs are being merged into this one, from their smallest hashes on."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(segment.rows for segment in self.segments)

    def to_json(self) -> dict[str, Any]:
        """The run for a manifest."""
        segments = [{name: getattr(segment, name) for name in _REF_FIELDS} for segment in self.segments]
        return {"segments": segments, "taking": self.taking}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Run:
        """The run that a manifest names."""
        return cls(tuple(SegmentRef(**segment) for segment in found["segments"]), found["taking"])


def index_bits(rows: int) -> int:
    """How many bits of a hash choose its bucket, in an index of so many rows.

    >>> index_bits(1000), index_bits(1024), index_bits(3)
    (10, 10, 4)
    """
    return max(_LEAST_BITS, (rows - 1).bit_length())


def link(hashes: Int64, bits: int) -> tuple[Int64, Int32]:
    """The index of rows in their order: entries and heads."""
    entries, heads = np.empty(2 * len(hashes), np.int64), np.zeros(1 << bits, np.int32)
    parts = np.empty(len(hashes), np.int32)
    hash_index.partitions_of(hashes, bits, parts)
    hash_index.link_rows(hashes, parts, np.arange(len(hashes), dtype=np.int32), entries, heads, ONE_BUCKET)
    return entries, heads


def stored_schema(types: Sequence[pa.DataType]) -> pa.Schema:
    """The schema of a segment's pages."""
    return pa.schema([(f"c{i}", type_) for i, type_ in enumerate(types)])


class RunWriter:
    """Writes rows that come sorted by hash as one run. As a context manager it leaves nothing unless finished."""

    def __init__(
        self,
        store: Store,
        names: Callable[[], str],
        types: Sequence[pa.DataType],
        page_bytes: int,
        segment_rows: int,
    ) -> None:
        self._store = store
        self._names = names
        self._schema = stored_schema(types)
        self._page_bytes = page_bytes
        self._segment_rows = segment_rows
        self._done: list[SegmentRef] = []
        self._writer: SegmentWriter | None = None
        self._hashes: list[Int64] = []
        self._rows = 0
        self._widest = 0
        self._pending: list[tuple[Int64, list[pa.Array]]] = []
        self._pending_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.abort()

    def add(self, hashes: Int64, columns: list[pa.Array]) -> None:
        """Add rows whose hashes are none smaller than those before; a page or less at a time."""
        if not len(hashes):
            return
        self._pending.append((hashes, columns))
        self._pending_bytes += sum(column.nbytes for column in columns) + 8 * len(hashes)
        if self._pending_bytes >= self._page_bytes:
            self._write_pending()

    def finish(self) -> Run:
        """Seal the last segment."""
        self._write_pending()
        self._seal()
        return Run(tuple(self._done))

    def _write_pending(self) -> None:
        if not self._pending:
            return
        pieces, self._pending, self._pending_bytes = self._pending, [], 0
        hashes = np.concatenate([hashes for hashes, _ in pieces]) if len(pieces) > 1 else pieces[0][0]
        columns = [
            pa.concat_arrays([piece[i] for _, piece in pieces]) if len(pieces) > 1 else pieces[0][1][i]
            for i in range(len(self._schema))
        ]
        start = 0
        while start < len(hashes):
            count = min(len(hashes) - start, self._segment_rows - self._rows)
            self._write_page(hashes[start : start + count], [column.slice(start, count) for column in columns])
            start += count
            if self._rows >= self._segment_rows:
                self._seal()

    def _write_page(self, hashes: Int64, columns: list[pa.Array]) -> None:
        if self._writer is None:
            self._writer = SegmentWriter(self._store, self._names(), self._schema)
        self._writer.write_page(_page(self._schema, columns, len(hashes)))
        self._hashes.append(hashes)
        self._rows += len(hashes)
        self._widest = max(self._widest, widest_row(columns))

    def _seal(self) -> None:
        if self._writer is None:
            return
        hashes = np.concatenate(self._hashes)
        bits = index_bits(len(hashes))
        entries, heads = link(hashes, bits)
        self._writer.add_array("entries", entries)
        self._writer.add_array("heads", heads)
        segment = self._writer.seal({"bits": bits})
        self._done.append(
            SegmentRef(
                segment.name,
                len(hashes),
                int(hashes[0]),
                int(hashes[-1]),
                self._widest,
                segment.nbytes,
                segment.checksum,
            )
        )
        segment.close()
        self._writer, self._hashes, self._rows, self._widest = None, [], 0, 0


def _page(schema: pa.Schema, columns: list[pa.Array], rows: int) -> pa.RecordBatch:
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))


def pages(widths: Int64 | None, rows: int, width: int, page_bytes: int) -> Iterator[tuple[int, int]]:
    """Stretches of rows that each fill a page: rows of one `width`, or of the `widths` given.

    >>> list(pages(np.array([4, 4, 100, 4]), 4, 0, 10)), list(pages(None, 5, 4, 10))
    ([(0, 2), (2, 3), (3, 4)], [(0, 2), (2, 4), (4, 5)])
    """
    if widths is None:
        step = max(1, page_bytes // max(1, width))
        yield from ((start, min(rows, start + step)) for start in range(0, rows, step))
        return
    ends = np.cumsum(widths)
    start = 0
    while start < rows:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + page_bytes, "right")))
        yield start, stop
        start = stop


def widest_row(columns: Sequence[pa.Array]) -> int:
    """Bytes of the widest row, at most."""
    return sum(widest_value(column) for column in columns)


def widths_of(columns: Sequence[pa.Array]) -> tuple[Int64 | None, int]:
    """Bytes of each row, or None and the bytes of every row if all have as many."""
    varying = [column for column in columns if not _is_fixed(column.type)]
    fixed = sum(-(-column.type.bit_width // 8) for column in columns if _is_fixed(column.type))
    if not varying:
        return None, fixed
    widths = np.full(len(columns[0]), fixed + 8, np.int64)
    for column in varying:
        widths += value_widths(column)
    return widths, 0


def _is_fixed(type_: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_))
