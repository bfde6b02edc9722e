"""Rows in memory that meet what has left it: the disk of the other side is gone through once for many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.cost import Meter
from watersmeet.state.lookup import Lookup
from watersmeet.state.pairs import Between, PairBuffer
from watersmeet.state.scanned_rows import ScannedRows
from watersmeet.state.side import Probe

if TYPE_CHECKING:
    from watersmeet.joins.window_spilling import SpillingWindowJoin

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
Bits = NDArray[np.uint64]

_NO_PARTS = np.empty(0, np.int32)
_EVERYTHING = np.full(1, np.iinfo(np.uint64).max)
_MOST_FILTER_BYTES = 1 << 20
_BITS_A_ROW = 16


class _ScanIndex:
    """The rows in memory that a scan is for, looked up by rows of the disk, stretch by stretch."""

    def __init__(self, join: SpillingWindowJoin, side: int, ticks: tuple[int, int], rows: ScannedRows) -> None:
        self._table = join.tables[side]
        self._disk = join.disks[1 - side]
        self._ticks = ticks
        self._rows = rows
        self._window = join.timing.words(side)
        self._at = -1
        self._index: tuple[Int64, Int64] = (np.empty(0, np.int64), np.empty(0, np.int64))
        self.wanted: Bits = _EVERYTHING

    def probe(self, probe: Probe, stop: int, out_probe: Int32, out_row: Int32, found: int) -> tuple[int, int]:
        visited = 0
        while probe.next < stop:
            number = self._rows.stretch_at(probe.next)
            stretch = self._rows.stretches[number]
            if number != self._at:
                self._open(number)
            shift = stretch.start - stretch.place
            inside = Probe(self._index[0], _NO_PARTS, probe.next + shift, probe.link)
            before = found
            found, more = self._table.scan(
                inside, self._index[1], min(stop, stretch.end) + shift, self.wanted, self._ticks, self._window,
                out_probe, out_row, found,
            )  # fmt: skip
            out_probe[before:found] -= shift
            visited += more
            probe.next, probe.link = inside.next - shift, inside.link
            if probe.next < min(stop, stretch.end):
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

    def close(self) -> None:
        if self._at >= 0:
            self._disk.release(self._rows.stretches[self._at].piece)


class _Places(Probe):
    """A look-up of as many rows as a scan goes through; their hashes are with the segments."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        super().__init__(np.empty(0, np.int64), _NO_PARTS)
        self.count = count

    @property
    def done(self) -> bool:
        return self.next >= self.count

    def __len__(self) -> int:
        return self.count


class _ScanLookup(Lookup):
    """The disk, looked up in memory."""

    def __init__(self, scan: Scan, index: _ScanIndex, rows: ScannedRows) -> None:
        table = scan.join.tables[scan.side]
        super().__init__(_Places(rows.rows), index, Between(1 - scan.side, rows, table), self._not_met)
        self._scan = scan
        self._rows = rows

    @property
    def length(self) -> int:
        """How many rows are looked up."""
        return self._rows.rows

    def _not_met(self, probes: Int32, rows: Int32) -> Bool:
        scanned, join, side = self._rows, self._scan.join, self._scan.side
        blocks = scanned.blocks_of(probes)
        arrived = join.tables[side].ticks(rows)
        return join.encounters[side].fresh(scanned.block_numbers[blocks], scanned.block_left[blocks], arrived)

    def work(self, pairs: PairBuffer, fuel: int, meter: Meter) -> int:
        """Fill the empty buffer with pairs, and count which blocks they come from."""
        used = super().work(pairs, fuel, meter)
        if pairs.count:
            blocks = self._rows.blocks_of(pairs.probes[: pairs.count])
            self._rows.block_results += np.bincount(blocks, minlength=len(self._rows.block_results))
            join, table = self._scan.join, self._scan.join.tables[self._scan.side]
            table.count_results(pairs.rows[: pairs.count])
            arrived = join.marks.times(table.ticks(pairs.rows[: pairs.count]))
            if arrived is not None:
                join.delays.add(((join.now - arrived) * 1e6).astype(np.int64))
        return used


class Scan:
    """The rows of one side that arrived at ticks in (since, until], looked for among the other side's absent blocks.

    It can stop between any two pairs, be set aside while rows arrive, and go on later.
    """

    def __init__(
        self, join: SpillingWindowJoin, side: int, since: int, until: int, updates: bool, floor: int | None = None
    ) -> None:
        self.join = join
        self.side, self.since, self.until = side, since, until
        self.updates = updates
        """Whether blocks that it comes by may become frequent ones."""
        self._floor = join.least_floor(side, since) if floor is None else floor
        self._rows = ScannedRows(join.disks[1 - side], join.plans[1 - side].types, until, self._floor)
        self._index = _ScanIndex(join, side, (since, until), self._rows)
        self.lookup = _ScanLookup(self, self._index, self._rows)
        self._place: list[int] | None = None
        """Where it was set aside."""
        self._filter = join.budget.reservation("filter of a scan")
        self._index.wanted = self._make_filter()

    def _make_filter(self) -> Bits:
        table = self.join.tables[self.side]
        wanted = [
            (part, block)
            for part, queue in enumerate(table.queues)
            for block in queue
            if table.last_tick[block] > self.since
        ]
        rows = len(wanted) * table.layout.block_rows
        size = min(_MOST_FILTER_BYTES, max(64, 1 << (rows * _BITS_A_ROW // 8).bit_length()))
        while size >= 64 and not self._filter.try_grow(size):
            size //= 2
        if size < 64:
            return _EVERYTHING
        bits = np.zeros(size // 8, np.uint64)
        for part, block in wanted:
            table.want(part, block, bits)
        return bits

    @property
    def done(self) -> bool:
        """Whether all pairs were found."""
        return self.lookup.done

    @property
    def pieces(self) -> list[int]:
        """The segments that it goes through."""
        return [stretch.piece.number for stretch in self._rows.stretches]

    def set_aside(self) -> None:
        """Wait; all pairs found so far have been handed out."""
        assert not self.join.pairs.waiting
        self._place = self.lookup.place(self.join.pairs)

    def take_up(self) -> Scan:
        """Go on."""
        self._place = None
        return self

    def work(self, fuel: int) -> int:
        """Go on."""
        return self.lookup.work(self.join.pairs, fuel, self.join.meter) if not self.done else 1

    def finish(self) -> None:
        """The rows have met everything."""
        self._index.close()
        self._rows.release()
        self._rows.settle()
        self._filter.clear()
        if self.updates:
            self.join.consider(1 - self.side, self._rows)
        self.join.scan_ended(self)

    def to_state(self) -> dict[str, Any]:
        """The scan for a snapshot."""
        return {
            "kind": "scan", "side": self.side, "since": self.since, "until": self.until, "updates": self.updates,
            "floor": self._floor, "place": self._place or self.lookup.place(self.join.pairs), "done": self.done,
        }  # fmt: skip

    def go_to(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        self.lookup.resume(self.join.pairs, state["place"])
        if state["done"]:
            self.lookup.probe.next = self.lookup.length
