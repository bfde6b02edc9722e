"""Rows of the disk, looked up among rows in memory that arrived after they had left it."""

from __future__ import annotations

import numpy as np

from watersmeet.core.arrays import Bool, Int32, Int64, Uint64
from watersmeet.core.cost import Meter
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.matching.lookup import Lookup
from watersmeet.memory import Reservation
from watersmeet.runs.scan import ScannedRows
from watersmeet.runs.window_runs import WindowDisk
from watersmeet.tables.hash_table import Probe
from watersmeet.tables.window_table import WindowTable

_NO_PARTS = np.empty(0, np.int32)
EVERYTHING = np.full(1, np.iinfo(np.uint64).max)
"""A filter that lets every hash through."""
_MOST_FILTER_BYTES = 1 << 20
_BITS_A_ROW = 16


def filter_of(table: WindowTable, blocks: Int64, claim: Reservation) -> Uint64:
    """A bit for each hash of some blocks, in as much memory as there is: most rows of the disk meet none of them, and
    are told by one look at it.
    """
    rows = len(blocks) * table.layout.block_rows
    size = min(_MOST_FILTER_BYTES, max(64, 1 << (rows * _BITS_A_ROW // 8).bit_length()))
    while size >= 64 and not claim.try_grow(size):
        size //= 2
    if size < 64:
        return EVERYTHING
    bits = np.zeros(size // 8, np.uint64)
    for block in blocks.tolist():
        table.want(block, bits)
    return bits


class DiskIndex:
    """Rows in memory that arrived at ticks in (since, until], looked up by rows of the disk, stretch by stretch."""

    def __init__(
        self,
        table: WindowTable,
        disk: WindowDisk,
        rows: ScannedRows,
        ticks: tuple[int, int],
        window: Int64,
        partners: Int64,
    ) -> None:
        """Of each partition of the disk, `partners` says how many rows of the table are looked for."""
        self._table = table
        self._disk = disk
        self._ticks = ticks
        self._rows = rows
        self._window = window
        self._partners = partners
        self._at = -1
        self._index: tuple[Int64, Int64] = (np.empty(0, np.int64), np.empty(0, np.int64))
        self.wanted: Uint64 = EVERYTHING

    def probe(self, probe: Probe, limit: int, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        """Go on with the rows of the disk up to a place, or until the buffers are full."""
        found = visited = 0
        while probe.next < limit:
            number = self._rows.stretch_at(probe.next)
            stretch = self._rows.stretches[number]
            if number != self._at:
                self._open(number)
            shift = stretch.start - stretch.place
            inside = Probe(self._index[0], _NO_PARTS, probe.next + shift, probe.link)
            before = found
            found, more = self._table.scan(
                inside, self._index[1], min(limit, stretch.end) + shift, self.wanted, self._ticks, self._window,
                out_probe, out_row, found,
            )  # fmt: skip
            out_probe[before:found] -= shift
            visited += more
            probe.next, probe.link = inside.next - shift, inside.link
            if probe.next < min(limit, stretch.end):
                break  # the buffer is full
        return found, visited

    def _open(self, number: int) -> None:
        stretches = self._rows.stretches
        if self._at >= 0 and stretches[self._at].piece is not stretches[number].piece:
            self._disk.release(stretches[self._at].piece)
        self._at = number
        stretch = stretches[number]
        self._index = self._disk.index(stretch.piece)
        self._disk.count_read(stretch.piece, stretch.start, stretch.stop)
        self._disk.count_nested(self._rows.nested(stretch, self._partners))

    def close(self) -> None:
        """Let go of what was read."""
        if self._at >= 0:
            self._disk.release(self._rows.stretches[self._at].piece)


class _Places(Probe):
    """A look-up of as many rows as there are places; their hashes are with the segments."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        super().__init__(np.empty(0, np.int64), _NO_PARTS)
        self.count = count

    @property
    def done(self) -> bool:
        return self.next >= self.count

    def __len__(self) -> int:
        return self.count


class DiskLookup(Lookup):
    """One side's rows on disk, looked up in a table of the other side; a join says which of the pairs are new."""

    def __init__(self, side: int, table: WindowTable, index: DiskIndex, rows: ScannedRows) -> None:
        super().__init__(_Places(rows.rows), index, Between(1 - side, rows, table), self.not_met)
        self.rows = rows
        self.table = table

    @property
    def length(self) -> int:
        """How many rows are looked up."""
        return self.rows.rows

    def not_met(self, probes: Int32, rows: Int32) -> Bool:
        """Which pairs of a row on disk and one in the table have not been found before."""
        raise NotImplementedError

    def found(self, probes: Int32, rows: Int32) -> None:
        """Take note of new pairs."""

    def work(self, pairs: PairBuffer, fuel: int, meter: Meter) -> int:
        """Fill the empty buffer with pairs."""
        used = super().work(pairs, fuel, meter)
        if pairs.count:
            self.found(pairs.probes[: pairs.count], pairs.rows[: pairs.count])
        return used
