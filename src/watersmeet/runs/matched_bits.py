"""Which rows of runs have found a partner: a bit a row, beside the runs, which are never written again.

```
run 7    rows       ───────────────────────────────────────  written once
         bits       [page 0][page 1][page 2][page 3]         version "bits-0-12", written once
                               ▲ changed since: in memory, where there is room for so many pages and no more
```

A page is in memory if bits of it were asked for or have changed. When there is no room for another, the page that was
brought in first goes; if it has changed, all bits of its run are written first, as a new version, and the version
before is of no more use. So whoever goes through all pages in order writes a version for each memory-full of them. A
snapshot writes a new version of the bits that have changed since the last one, and names it. Runs none of whose rows
have a partner have no version at all.

A merge may leave rows out that nobody needs. Which these are is noted in bits of their own, a bit for each row that the
merge passes, in that order: whoever goes through the rows once more is told the same.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Bytes, Int32, Int64, Numbers
from watersmeet.core.errors import SegmentError, SpillError
from watersmeet.kernels import matched as kernels
from watersmeet.records.addressed import groups
from watersmeet.runs.sorted_run import MergedRows, SortedRun
from watersmeet.spill.store import Store

_TRAILER = struct.Struct("<QI8s")  # rows, checksum of the bits, end mark
_END_MARK = b"wm.bits1"
_LEAST_PAGE = 64
_MOST_PAGE = 4096
_PAGES = 16
"""There is room for at least so many pages."""
LEAST_BYTES = _PAGES * _LEAST_PAGE
_NONE = -1
_AT_ONCE = 1 << 15
"""Rows whose bits are carried at a time from runs to what they are merged into."""


@dataclass(slots=True)
class _Bits:
    """Those of one run."""

    rows: int
    slots: Int32
    """Where each page is in memory; negative: it is not."""
    version: str | None = None
    """What was written of it last; None: nothing, and all bits that are not in memory are zero."""
    buffer: pa.Buffer | None = None
    """That version, once it was opened. There may be more rows now."""


def left_out_of(name: str) -> str:
    """What the bits are called that say which rows are not in a merged run.

    >>> left_out_of("run-0-7")
    'run-0-7 without'
    """
    return f"{name} without"


class Filling:
    """The bits of a new run, from its first row on."""

    def __init__(self, set_page: Callable[[int, Bool], None], page_rows: int) -> None:
        self._set_page = set_page
        self._page_rows = page_rows
        self._start = 0
        self._left: Bool = np.empty(0, np.bool_)

    def add(self, marked: Bool) -> None:
        """Which of the next rows have a partner."""
        left = np.concatenate([self._left, marked]) if len(self._left) else marked
        while len(left) >= self._page_rows:
            self._set_page(self._start, left[: self._page_rows])
            self._start, left = self._start + self._page_rows, left[self._page_rows :]
        self._left = left

    def end(self) -> None:
        """These were all."""
        if len(self._left):
            self._set_page(self._start, self._left)


class MatchedBits:
    """The bits of all runs of a join, of which so many bytes are in memory at a time."""

    def __init__(
        self, store: Store, nbytes: int, new_name: Callable[[], str], discard: Callable[[list[str]], None]
    ) -> None:
        """Versions have new names, and those that are of no more use are discarded."""
        self._store = store
        self._new_name = new_name
        self._discard = discard
        page = max(_LEAST_PAGE, min(_MOST_PAGE, nbytes // _PAGES))
        self._page_bytes = 1 << (page.bit_length() - 1)
        self._shift = self._page_bytes.bit_length() + 2
        self._pool: Bytes = np.zeros(nbytes // self._page_bytes * self._page_bytes, np.uint8)
        count = len(self._pool) // self._page_bytes
        self._owners: list[tuple[str, int] | None] = [None] * count
        """The run and the page that each place in memory is taken by."""
        self._next = 0
        """The place that is taken next; those after it were taken before the others."""
        self._changed: Bool = np.zeros(count, np.bool_)
        """Which of these pages differ from the last version of their run's bits, or from zeros if there is none."""
        self._bits: dict[str, _Bits] = {}
        self.written = 0
        """How many versions."""

    def __contains__(self, name: str) -> bool:
        return name in self._bits

    # --- runs that come and go ---

    def begin(self, name: str, rows: int) -> Filling:
        """A run of so many rows is being written; which of them have a partner is told while it is."""
        self._bits[name] = self._new(rows)
        return Filling(partial(self._set_page, name), 1 << self._shift)

    def _new(self, rows: int, version: str | None = None) -> _Bits:
        return _Bits(rows, np.full(-(-rows >> self._shift) if rows else 0, _NONE, np.int32), version)

    def rows(self, name: str) -> int:
        """How many rows a run has."""
        return self._bits[name].rows

    def grow(self, name: str, rows: int) -> None:
        """Let there be so many rows, if they are more; the new ones have no partner."""
        bits = self._bits[name]
        if rows > bits.rows:
            slots = np.full(-(-rows >> self._shift), _NONE, np.int32)
            slots[: len(bits.slots)] = bits.slots
            bits.rows, bits.slots = rows, slots

    def _set_page(self, name: str, start: int, marked: Bool) -> None:
        if marked.any():
            at = self._bring(name, start >> self._shift) * self._page_bytes
            packed = np.packbits(marked, bitorder="little")
            self._pool[at : at + len(packed)] = packed
            self._changed[at // self._page_bytes] = True

    def replace(self, runs: Sequence[SortedRun], merged: Sequence[SortedRun]) -> None:
        """A merged run, in one piece or in several, takes the place of runs: its rows have the bits that they had.

        In which order rows follow is told by their hashes, which are gone through once more. Should that fail, nothing
        has changed.
        """
        some, source = any(self._has_some(run.name) for run in runs), MergedRows(runs)
        try:
            for run in merged:
                self._fill(self.begin(run.name, run.rows), source, run, some)
        except BaseException:
            self.forget([run.name for run in merged if run.name in self])
            raise
        self.forget([run.name for run in runs])
        self.forget([left_out_of(run.name) for run in merged if left_out_of(run.name) in self])

    def _fill(self, filling: Filling, source: MergedRows, run: SortedRun, some: bool) -> None:
        """The bits of a merged run, or of a piece of it."""
        without = left_out_of(run.name)
        passed, start = self._bits[without].rows if without in self else run.rows, 0
        for marked in self._carried(source, passed) if some else ():
            if without in self:
                marked, start = marked[~self.between(without, start, start + len(marked))], start + len(marked)
            filling.add(marked)
        filling.end()

    def _has_some(self, name: str) -> bool:
        bits = self._bits[name]
        return bits.version is not None or self._has_changed(bits)

    def _has_changed(self, bits: _Bits) -> bool:
        return bool(self._changed[bits.slots[bits.slots >= 0]].any())

    def _carried(self, source: MergedRows, rows: int) -> Iterable[Bool]:
        """Of the next rows of runs that are merged, which have a partner."""
        hashes, numbers = np.empty(_AT_ONCE, np.uint64), np.empty(_AT_ONCE, np.int64)
        while rows:
            most = min(rows, _AT_ONCE)
            count = source.next_sorted(hashes[:most], numbers[:most])
            rows -= count
            yield self.marked_of(source.names, numbers[:count])

    def marked_of(self, names: Sequence[str], numbers: Int64) -> Bool:
        """Which rows have a partner, of runs that are merged: those of each run follow each other."""
        which = numbers >> 32
        order = np.argsort(which, kind="stable")
        marked = np.empty(len(numbers), np.bool_)
        for group in groups(which[order], order):
            first, last = numbers[group[0]] & 0xFFFFFFFF, numbers[group[-1]] & 0xFFFFFFFF
            marked[group] = self.between(names[int(which[group[0]])], int(first), int(last) + 1)
        return marked

    def forget(self, names: Iterable[str]) -> None:
        """Runs are gone."""
        for name in names:
            bits = self._bits.pop(name)
            for slot in bits.slots[bits.slots >= 0].tolist():
                self._owners[slot], self._changed[slot] = None, False
            if bits.version is not None:
                self._discard([bits.version])

    # --- marks ---

    def mark(self, names: Sequence[str], rows: Numbers) -> Bool:
        """Mark rows of runs, whose places among the names are in the upper halves; tells which were not marked before,
        of rows that occur twice the first.
        """
        return self._visit(names, rows, setting=True)

    def mark_some(self, names: Sequence[str], rows: Numbers) -> Bool:
        """The same; but if the disk cannot take a page, after some rows, these are all that is told of."""
        return self._visit(names, rows, setting=True, some=True)

    def unmarked(self, names: Sequence[str], rows: Numbers) -> Bool:
        """Which rows of runs have no partner yet."""
        return self._visit(names, rows, setting=False)

    def marked(self, name: str) -> int:
        """How many rows of a run have a partner."""
        bits = self._bits[name]
        pages = range(len(bits.slots)) if self._has_some(name) else ()
        return sum(int(np.unpackbits(self._page(bits, page)).sum()) for page in pages)

    def _visit(self, names: Sequence[str], rows: Numbers, setting: bool, some: bool = False) -> Bool:
        fresh = np.empty(len(rows), np.bool_)
        firsts = np.zeros(len(names), np.int64)
        np.cumsum([len(self._bits[name].slots) for name in names[:-1]], out=firsts[1:])
        rows = np.ascontiguousarray(rows, np.int64)
        done = 0
        while True:
            slots = np.concatenate([self._bits[name].slots for name in names])
            pages = self._pool, self._changed, slots, firsts, self._shift
            done = int(kernels.mark_bits(*pages, rows, done, setting, fresh))
            if done == len(rows):
                return fresh
            missing = int(rows[done])
            try:
                self._bring(names[missing >> 32], (missing & 0xFFFFFFFF) >> self._shift)
            except SpillError:
                if some and done:
                    return fresh[:done]
                raise

    def unmarked_from(self, name: str, start: int, most: int) -> tuple[Int64, int]:
        """The next rows of a run that have no partner, so many at most, from one on; and from which on to go on.

        There may be none among the rows that were passed.
        """
        bits = self._bits[name]
        page = start >> self._shift
        first = page << self._shift
        stop = min(bits.rows, first + (1 << self._shift))
        marked = np.unpackbits(self._page(bits, page), bitorder="little")[start - first : stop - first]
        found = np.flatnonzero(marked == 0) + start
        return (found, stop) if len(found) <= most else (found[:most], int(found[most]))

    def between(self, name: str, start: int, stop: int) -> Bool:
        """Which rows of a run from one up to another have a partner."""
        bits = self._bits[name]
        first, last = start >> self._shift, (stop - 1) >> self._shift
        pages = [np.unpackbits(self._page(bits, page), bitorder="little") for page in range(first, last + 1)]
        before = first << self._shift
        return np.concatenate(pages)[start - before : stop - before].view(np.bool_)

    # --- pages ---

    def _page(self, bits: _Bits, page: int) -> Bytes:
        """The bits of a page, wherever they are."""
        slot = int(bits.slots[page])
        if slot >= 0:
            return self._pool[slot * self._page_bytes : (slot + 1) * self._page_bytes]
        if bits.version is None:
            return np.zeros(self._page_bytes, np.uint8)
        if bits.buffer is None:
            bits.buffer = self._opened(bits.version, bits.rows)
        start = page * self._page_bytes
        size = max(0, min(self._page_bytes, bits.buffer.size - _TRAILER.size - start))
        self._store.count_read(size)
        if size == self._page_bytes:
            return np.frombuffer(bits.buffer, np.uint8, size, start)
        content = np.zeros(self._page_bytes, np.uint8)
        content[:size] = np.frombuffer(bits.buffer, np.uint8, size, start if size else 0)
        return content

    def _opened(self, version: str, rows: int) -> pa.Buffer:
        buffer = self._store.open(version)
        check_bits(self._store.shown(version), buffer, rows)
        return buffer

    def _bring(self, name: str, page: int) -> int:
        """Have a page in memory, in the place of another if need be; returns where it is."""
        bits = self._bits[name]
        slot = int(bits.slots[page])
        if slot >= 0:
            return slot
        slot = self._next
        self._next = (slot + 1) % len(self._owners)
        owner = self._owners[slot]
        if owner is not None:
            other = self._bits[owner[0]]
            if self._changed[slot]:
                self._write(other)
            other.slots[owner[1]] = _NONE
        content = self._page(bits, page)
        at = slot * self._page_bytes
        self._pool[at : at + len(content)] = content
        self._pool[at + len(content) : at + self._page_bytes] = 0
        self._owners[slot] = (name, page)
        bits.slots[page] = slot
        return slot

    def _write(self, bits: _Bits) -> None:
        """Write a new version of a run's bits, as they are now."""
        name = self._new_name()
        out, checksum, left = self._store.create(name), 0, -(-bits.rows >> 3)
        try:
            for page in range(len(bits.slots)):
                part = np.ascontiguousarray(self._page(bits, page)[:left])
                checksum = zlib.crc32(part.data, checksum)
                out.write(part.data)
                left -= len(part)
            out.write(_TRAILER.pack(bits.rows, checksum, _END_MARK))
            out.commit()
        except BaseException:
            out.abort()
            raise
        if bits.version is not None:
            self._discard([bits.version])
        bits.version, bits.buffer = name, None
        self._changed[bits.slots[bits.slots >= 0]] = False
        self.written += 1

    # --- snapshots ---

    def save(self, names: Iterable[str] | None = None) -> dict[str, str | None]:
        """Write what has changed, of all runs or of these; returns the version of each one's bits, None where no row
        has a partner.
        """
        saved = {name: self._bits[name] for name in (self._bits if names is None else names)}
        for bits in saved.values():
            if self._has_changed(bits):
                self._write(bits)
        return {name: bits.version for name, bits in saved.items()}

    def load(self, versions: Mapping[str, str | None], rows: Mapping[str, int]) -> None:
        """Take over what a snapshot says, for runs of so many rows; nothing is read yet."""
        self._bits = {name: self._new(rows[name], version) for name, version in versions.items()}

    def check(self, names: Iterable[str]) -> None:
        """Assert the invariants, where these are the runs there are."""
        assert set(names) == set(self._bits), (sorted(names), sorted(self._bits))
        for slot, owner in enumerate(self._owners):
            assert owner is None or self._bits[owner[0]].slots[owner[1]] == slot
            assert owner is not None or not self._changed[slot]
        taken = sum(int((bits.slots >= 0).sum()) for bits in self._bits.values())
        assert taken == sum(owner is not None for owner in self._owners)


def check_bits(version: str, buffer: pa.Buffer, rows: int | None = None) -> None:
    """Make sure that bits are what was written, of so many rows at most; `SegmentError` if they are not."""
    size = buffer.size - _TRAILER.size
    told = _TRAILER.unpack(buffer.slice(size)) if size >= 0 else (0, 0, b"")
    fits = told[0] > 0 and (rows is None or told[0] <= rows)
    if told[1:] != (zlib.crc32(buffer.slice(0, max(0, size))), _END_MARK) or not fits:
        raise SegmentError(
            f"spill segment {version!r} cannot be used: it was altered after it was written; run the join again or "
            f"restore an older snapshot, and check the disk if this comes back"
        )
