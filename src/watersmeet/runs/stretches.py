"""Rows of mapped runs, gathered stretch by stretch, so that few pages are mapped at a time.

Each row that is read maps what lies around it, and mapped pages count as the process's own until they are let go. Rows
that were found lie anywhere in many runs; copied in the order of results they would map most of them. So they are
copied in the order in which they lie, and those of a stretch are let go before the next are read::

    numbers of rows  ──▶  by stretch  ──▶  values to their places in the results
                                      ──▶  strings to a room, one behind the other  ──▶  to their places, once measured

How many bytes strings are is known only when they were read, and reading them twice would map everything twice.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels import addressed as kernels
from watersmeet.records.addressed import Layout, Picture, Sources

_STRETCH = 1 << 20
"""Bytes of rows that are mapped at once, about."""
_ALL = 63
"""As a shift: all rows are one stretch."""


class StringRoom:
    """Memory for the strings of one batch of results; whoever has it has claimed it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._bytes: NDArray[np.uint8] | None = None

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """All of it."""
        if self._bytes is None:
            self._bytes = np.empty(self.size, np.uint8)
        return self._bytes


class TakenStrings:
    """The strings of some columns of a batch of results, on their way from runs to where they go."""

    def __init__(self, room: StringRoom, picture: Picture, count: int) -> None:
        self._picture = picture
        self._room = room.bytes if picture.strings else np.empty(0, np.uint8)
        self._taken = np.empty((len(picture.strings), count), np.int64)
        """Of each column and row, where in the room its string is, and how long."""
        self._used = 0

    def gather(
        self,
        stretches: Stretches,
        sources: Sources,
        widths: Int32,
        columns: Int32,
        rows: Int64,
        layout: Layout,
        first: int = 0,
    ) -> bool:
        """Copy the values of some rows: their columns are those from `first` on. False if there is not enough room."""
        before = sum(k < first for k in self._picture.strings)
        words = slice(kernels.WORDS * first, kernels.WORDS * (first + len(columns)))
        nulls = layout.nulls[first : first + len(columns)]
        taken = self._taken[before:]
        self._used = stretches.gather(
            sources, widths, columns, rows, layout.out[words], nulls, taken, self._room, self._used
        )
        return self._used >= 0

    def place(self, layout: Layout) -> pa.Buffer | None:
        """All strings were taken: bring them to where they go, and return their bytes."""
        if not self._picture.strings:
            return None
        for taken, k in zip(self._taken, self._picture.strings, strict=True):
            layout.sizes[k] = kernels.offsets_of(taken, self._picture.widths[k], layout.firsts[k])
        strings = pa.allocate_buffer(layout.place_strings(), memory_pool=pa.system_memory_pool())
        layout.place_bytes(strings.address)
        for taken, k in zip(self._taken, self._picture.strings, strict=True):
            kernels.put_strings(taken, self._room, layout.out[kernels.WORDS * k + 1])
        return strings


class Stretches:
    """Where the stretches of some mapped runs begin, and where the runs lie."""

    def __init__(self, mapped: Int64, rows: Sequence[int], first: int = 0) -> None:
        """:param mapped: where the rows of each run lie, and how many bytes
        :param rows: how many there are
        :param first: runs are sources from this number on; those before it are in memory, and stay
        """
        counts = np.array(rows, np.int64)
        self._mapped = np.zeros((first + len(counts), 2), np.int64)
        if len(mapped) == len(counts):
            self._mapped[first:] = mapped
        each = np.maximum(1, _STRETCH * counts // np.maximum(1, self._mapped[first:, 1]))
        self._shifts = np.full(first + len(counts), _ALL, np.int64)
        self._shifts[first:] = np.log2(each).astype(np.int64)
        self._firsts = np.ones(first + len(counts) + 1, np.int64)
        self._firsts[0] = 0
        self._firsts[first + 1 :] = -(-counts >> self._shifts[first:])
        np.cumsum(self._firsts, out=self._firsts)

    def gather(
        self,
        sources: Sources,
        widths: Int32,
        columns: Int32,
        rows: Int64,
        out: Int64,
        nulls: Int64,
        taken: Int64,
        room: NDArray[np.uint8],
        used: int = 0,
    ) -> int:
        """Copy the values of some rows to addresses, and let go of them (see `kernels.addressed.gather_by_stretch`)."""
        order, starts = np.empty(len(rows), np.int32), np.empty(int(self._firsts[-1]) + 1, np.int64)
        kernels.by_stretch(rows, self._firsts, self._shifts, order, starts)
        how = taken, room, used, mmap.PAGESIZE, mmap.MADV_DONTNEED
        return int(
            kernels.gather_by_stretch(
                sources, self._mapped, widths, columns, rows, order, starts, out, nulls, *how
            )
        )  # fmt: skip
