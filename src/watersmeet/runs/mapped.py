"""Segments of the state in use: mapped, checked once, and probed where they lie.

What a worker process keeps from one task to the next is only this: mappings of immutable files. Any worker may be given
any group, and finds everything in the state directory.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import OrderedDict

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.errors import SegmentError
from watersmeet.kernels import gather, hash_index
from watersmeet.records.plan import Rows, value_widths
from watersmeet.runs.hash_runs import ONE_BUCKET, SegmentRef
from watersmeet.spill.file_store import FileStore
from watersmeet.spill.segment import Segment

_UNKNOWN, _ELSEWHERE = -1, -2
"""Instead of a place in the segment: of a page that was not read yet, and of values that do not just lie somewhere."""
MOST_KEPT = 256
"""Segments that a worker keeps mapped."""


class OpenSegment:
    """A segment's rows by number, and its index."""

    def __init__(self, store: FileStore, ref: SegmentRef) -> None:
        self.ref = ref
        self._where = store.path
        self.stamp = stamp(store, ref)
        try:
            self._segment = Segment.open(store, ref.name)
            if self._segment.checksum != ref.checksum:
                raise SegmentError(
                    f"segment {ref.name!r} is not the one that the manifest names (its checksum differs)"
                )
            self._entries = self._segment.array("entries")
            self._heads = self._segment.array("heads")
        except SegmentError as error:
            raise self._refused(error) from error
        self._bits = int(self._segment.meta["bits"])
        self.ends = np.cumsum([self._segment.page_rows(page) for page in range(self._segment.pages)])
        """The row after each page."""
        self._pages: dict[int, list[pa.Array]] = {}
        self._bytes = self._segment.mapped()
        self._types = [field.type for field in self._segment.schema]
        self._starts = np.full((len(self._types), self._segment.pages), _UNKNOWN, np.int64)

    def hashes(self, start: int, stop: int) -> Int64:
        """The hashes of a stretch of rows."""
        return self._entries[2 * start : 2 * stop : 2].copy()

    def row_of(self, hash_: int) -> int:
        """The first row whose hash is this or larger."""
        if self._entries[0] >= hash_:
            return 0
        page = bisect_left(self.ends, hash_, key=lambda end: self._entries[2 * (end - 1)])
        start = self._start(page)
        stop = int(self.ends[page]) if page < len(self.ends) else start
        return start + int(np.searchsorted(self.hashes(start, stop), hash_, "left"))

    def parts_of(self, hashes: Int64) -> Int32:
        """The bucket of each hash."""
        parts = np.empty(len(hashes), np.int32)
        hash_index.partitions_of(hashes, self._bits, parts)
        return parts

    def probe(
        self, hashes: Int64, parts: Int32, start: int, link: int, out_probe: Int32, out_row: Int32
    ) -> tuple[int, int, int]:
        """Look hashes up from `start` and `link` on until the buffers are full; pairs found, and where to go on."""
        found, start, link, _ = hash_index.probe(
            hashes, parts, start, len(hashes), link,
            self._entries, self._heads, ONE_BUCKET, out_probe, out_row, 0,
        )  # fmt: skip
        return found, start, link

    def page(self, page: int) -> list[pa.Array]:
        """The columns of a page."""
        if page not in self._pages:
            try:
                self._pages[page] = self._segment.read_page(page).columns
            except SegmentError as error:
                raise self._refused(error) from error
            for column, array in enumerate(self._pages[page]):
                self._starts[column, page] = self._start_of(array)
        return self._pages[page]

    def _start_of(self, array: pa.Array) -> int:
        """Where the values of a page lie, if nothing but their place need be known."""
        width = value_bytes(array.type)
        values = array.buffers()[1] if width and not array.null_count else None
        if values is None:
            return _ELSEWHERE
        start = int(values.address - self._bytes.ctypes.data) + array.offset * width
        return start if 0 <= start <= len(self._bytes) - len(array) * width else _ELSEWHERE

    def gather(self, column: int, rows: Int32) -> pa.Array:
        """One column's values for some rows."""
        width = value_bytes(self._types[column])
        if not width or not len(rows):
            return self._gather_by_page(column, rows)
        starts = self._starts[column]
        while (page := int(gather.first_unknown(starts, self.ends, rows, _UNKNOWN))) >= 0:
            self.page(page)
        if gather.first_unknown(starts, self.ends, rows, _ELSEWHERE) >= 0:
            return self._gather_by_page(column, rows)
        out = np.empty(len(rows) * width, np.uint8)
        gather.take_paged(self._bytes, width, starts, self.ends, rows, out)
        return pa.Array.from_buffers(self._types[column], len(rows), [None, pa.py_buffer(out)], 0)

    def _gather_by_page(self, column: int, rows: Int32) -> pa.Array:
        first, last = self._page_of(rows)
        if first == last:
            return self.page(first)[column].take(pa.array(rows - self._start(first)))
        pages = np.searchsorted(self.ends, rows, "right")
        order = np.argsort(pages, kind="stable")
        cuts = np.flatnonzero(np.diff(pages[order])) + 1
        taken = []
        for piece in np.split(order, cuts):
            page = int(pages[piece[0]])
            taken.append(self.page(page)[column].take(pa.array(rows[piece] - self._start(page))))
        together = pa.concat_arrays(taken)
        if (np.diff(order) > 0).all():  # rows looked up in order are found in order, mostly
            return together
        back = np.empty(len(rows), np.int64)
        back[order] = np.arange(len(rows))
        return together.take(pa.array(back))

    def widen(self, column: int, rows: Int32, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in an output batch."""
        pages = np.searchsorted(self.ends, rows, "right")
        for page in np.unique(pages):
            here = np.flatnonzero(pages == page)
            widths[here] += value_widths(self.page(int(page))[column])[rows[here] - self._start(int(page))]

    def release(self) -> None:
        """Let what was read leave this process's memory; it is mapped again when it is needed."""
        self._segment.release()

    def _page_of(self, rows: Int32) -> tuple[int, int]:
        low, high = (int(rows.min()), int(rows.max())) if len(rows) else (0, 0)
        first, last = np.searchsorted(self.ends, [low, high], "right")
        return int(first), int(last)

    def _start(self, page: int) -> int:
        return int(self.ends[page - 1]) if page else 0

    def _refused(self, error: SegmentError) -> SegmentError:
        return SegmentError(f"the state in {self._where} is damaged and the query cannot go on from it: {error}")


def value_bytes(type_: pa.DataType) -> int:
    """Bytes of each value, where values lie side by side; 0 for other types.

    >>> value_bytes(pa.int16()), value_bytes(pa.decimal128(9, 2)), value_bytes(pa.bool_()), value_bytes(pa.string())
    (2, 16, 0, 0)
    """
    if pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_):
        return int(type_.bit_width // 8)
    return 0


def stamp(store: FileStore, ref: SegmentRef) -> tuple[int, int, int]:
    """What changes when a file is replaced or written to; zeros if it is gone."""
    try:
        found = os.stat(f"{store.path}/{ref.name}")  # noqa: PTH116 - asked for each segment of each lookup
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


class Stretch:
    """Some adjoining rows, numbered from 0."""

    def __init__(self, rows: Rows, first: int) -> None:
        self._rows = rows
        self._first = np.int32(first)

    def gather(self, column: int, rows: Int32) -> pa.Array:
        """One column's values for some rows."""
        return self._rows.gather(column, rows + self._first)

    def widen(self, column: int, rows: Int32, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in an output batch."""
        self._rows.widen(column, rows + self._first, widths)


class OpenSegments:
    """The segments that a process has mapped, least recently used first."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._open: OrderedDict[tuple[str, str, int], OpenSegment] = OrderedDict()
        self._used: dict[str, OpenSegment] = {}

    def get(self, store: FileStore, ref: SegmentRef) -> OpenSegment:
        """A segment, mapped now unless it was before and nobody has touched it since."""
        key = (str(store.path), ref.name, ref.checksum)
        found = self._open.get(key)
        if found is None or found.stamp != stamp(store, ref):
            found = OpenSegment(store, ref)
            self._open[key] = found
            if len(self._open) > self._most:
                self._open.popitem(last=False)
        self._open.move_to_end(key)
        self._used[ref.name] = found
        return found

    def release(self, keep: int = 0) -> None:
        """Let what was read leave this process's memory, unless all segments that were used have `keep` bytes at most.

        Mapping a page again costs a microsecond, which small batches would feel.
        """
        if sum(segment.ref.nbytes for segment in self._used.values()) <= keep:
            return
        for segment in self._used.values():
            segment.release()
        self._used.clear()

    def forget(self, store: FileStore) -> None:
        """Drop the mappings of a directory that is going away."""
        for key in [key for key in self._open if key[0] == str(store.path)]:
            self._used.pop(self._open.pop(key).ref.name, None)


WORKER = OpenSegments()
"""This process's own."""
