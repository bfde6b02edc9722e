"""Rows of runs on disk, gathered stretch by stretch: what is wanted of each is read into a buffer, and copied.

Each row that is read where it is mapped maps what lies around it, by a page fault that takes longer than all the rest,
and mapped pages count as the process's own until they are let go. Rows that were found lie anywhere in many runs. So
they are copied in the order in which they lie::

    numbers of rows  ──▶  by stretch  ──▶  their blocks, read together  ──▶  values to their places in the results
                                      ──▶  strings to a room, one behind the other  ──▶  to their places, once measured

How many bytes strings are is known only when they were read, and nothing is read twice. Where runs have no descriptor
(there may be too many of them), rows are read where they are mapped, and a stretch is let go before the next.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bytes, Int32, Int64
from watersmeet.kernels import run_files
from watersmeet.kernels.addressed import WORDS
from watersmeet.records.addressed import AddressedRows, Layout, Picture

_STRETCH = 1 << 18
"""Bytes of rows that are looked at together, about; the buffer holds twice as many, for some are wider than others."""
_MAPPED_STRETCH = 1 << 20
"""The same where they are mapped."""
_ALL = 63
"""As a shift: all rows are one stretch."""
NO_FILE = (-1, 0, 0)


class GatheringRoom:
    """Memory through which rows of runs become a batch of results: for its strings, and for blocks that are read."""

    def __init__(self, strings: int, blocks: int = 2 * _STRETCH) -> None:
        """Whoever has it has claimed it."""
        self.nbytes = strings + blocks
        self._sizes = strings, blocks
        self._strings: Bytes | None = None
        self._blocks: Bytes | None = None

    @property
    def strings(self) -> Bytes:
        """For all strings."""
        if self._strings is None:
            self._strings = np.empty(self._sizes[0], np.uint8)
        return self._strings

    @property
    def blocks(self) -> Bytes:
        """For blocks of a stretch."""
        if self._blocks is None:
            self._blocks = np.empty(self._sizes[1], np.uint8)
        return self._blocks


class TakenStrings:
    """The strings of some columns of a batch of results, on their way from runs to where they go."""

    def __init__(self, room: GatheringRoom, picture: Picture, count: int) -> None:
        self._picture = picture
        self._room = room.strings if picture.strings else np.empty(0, np.uint8)
        self._taken = np.empty((len(picture.strings), count), np.int64)
        """Of each column and row, where in the room its string is, and how long."""
        self._used = 0

    def gather(
        self,
        stretches: Stretches,
        source: AddressedRows,
        columns: Int32,
        rows: Int64,
        layout: Layout,
        first: int = 0,
    ) -> bool:
        """Copy the values of some rows: their columns are those from `first` on. False if there is not enough room."""
        before = sum(k < first for k in self._picture.strings)
        words = slice(WORDS * first, WORDS * (first + len(columns)))
        nulls = layout.nulls[first : first + len(columns)]
        taken = self._taken[before:]
        self._used = stretches.gather(source, columns, rows, layout.out[words], nulls, taken, self._room, self._used)
        return self._used >= 0

    def place(self, layout: Layout) -> pa.Buffer | None:
        """All strings were taken: bring them to where they go, and return their bytes."""
        if not self._picture.strings:
            return None
        for taken, k in zip(self._taken, self._picture.strings, strict=True):
            layout.sizes[k] = run_files.offsets_of(taken, self._picture.widths[k], layout.firsts[k])
        strings = pa.allocate_buffer(layout.place_strings(), memory_pool=pa.system_memory_pool())
        layout.place_bytes(strings.address)
        for taken, k in zip(self._taken, self._picture.strings, strict=True):
            run_files.put_strings(taken, self._room, layout.out[WORDS * k + 1])
        return strings


class OnDisk(Protocol):
    """What is to be known of a run."""

    @property
    def rows(self) -> int:
        """How many it has."""
        ...

    @property
    def block_rows(self) -> int:
        """How many of them share a block."""
        ...

    @property
    def row_places(self) -> tuple[int, int]:
        """Where they lie, and how many bytes; that is 0 if they are not mapped."""
        ...

    @property
    def row_bytes(self) -> int:
        """Of all of them."""
        ...

    @property
    def file(self) -> tuple[int, int, int]:
        """Its descriptor, where its directory begins, and how many blocks it has, or `NO_FILE`."""
        ...


class Stretches:
    """Where the stretches of some runs begin, and where the runs lie."""

    def __init__(self, runs: Sequence[OnDisk], room: GatheringRoom | None, first: int = 0) -> None:
        """:param first: runs are sources from this number on; those before it are in memory, and stay"""
        self._room = room
        self._some_mapped = False
        """Whether some are read where they are mapped."""
        total = first + len(runs)
        self._files = np.zeros((total, 3), np.int64)
        self._files[:] = NO_FILE
        self._mapped = np.zeros((total, 2), np.int64)
        self._shifts = np.full(total, _ALL, np.int64)
        blocks = 1
        for number, run in enumerate(runs, first):
            if room is not None:
                self._files[number] = run.file
            self._mapped[number] = run.row_places
            has_file = self._files[number, 0] >= 0
            self._some_mapped |= not has_file
            size = _STRETCH if has_file else _MAPPED_STRETCH
            rows = max(1, run.block_rows, size * run.rows // max(1, run.row_bytes))
            self._shifts[number] = rows.bit_length() - 1
            blocks = max(blocks, (1 << int(self._shifts[number])) // run.block_rows)
        counts = np.array([run.rows for run in runs], np.int64)
        self._firsts = np.ones(total + 1, np.int64)
        self._firsts[0] = 0
        self._firsts[first + 1 :] = -(-counts >> self._shifts[first:])
        np.cumsum(self._firsts, out=self._firsts)
        self._directory, self._sums = np.empty(blocks + 1, np.int64), np.empty(blocks, np.int64)

    def gather(
        self,
        source: AddressedRows,
        columns: Int32,
        rows: Int64,
        out: Int64,
        nulls: Int64,
        taken: Int64,
        strings: Bytes,
        used: int = 0,
    ) -> int:
        """Copy the values of some rows to addresses (see `kernels.run_files.gather_by_stretch`); -1 if there was not
        enough room for strings. What was never read before is checked.
        """
        order, starts = np.empty(len(rows), np.int32), np.empty(int(self._firsts[-1]) + 1, np.int64)
        run_files.by_stretch(rows, self._firsts, self._shifts, order, starts)
        before = nulls.copy()

        def copy(files: Int64, buffer: Bytes) -> int:
            reading = self._directory, self._sums, buffer, mmap.PAGESIZE, mmap.MADV_DONTNEED
            return int(
                run_files.gather_by_stretch(
                    source.sources, self._mapped, files, source.widths, columns, rows, order, starts, out, nulls,
                    taken, strings, used, *reading,
                )
            )  # fmt: skip

        if self._some_mapped:
            source.check_rows(rows)
        if self._room is not None:
            found = copy(self._files, self._room.blocks)
            if found != run_files.NOT_SO:
                return found
            nulls[:] = before
        source.check_rows(rows)
        return copy(np.full_like(self._files, -1), np.empty(0, np.uint8))
