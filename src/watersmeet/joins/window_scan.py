"""Rows in memory that meet what has left it: the disk of the other side is gone through once for many of them."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.cost import Meter
from watersmeet.state.lookup import Lookup
from watersmeet.state.pairs import Between, PairBuffer
from watersmeet.state.rows import BatchRows
from watersmeet.state.side import Probe
from watersmeet.state.window_disk import Piece
from watersmeet.state.window_table import WindowTable

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
    """The rows in memory that a scan is for, looked up by rows of the disk."""

    def __init__(self, table: WindowTable, times: Int64, wanted: Bits, ticks: tuple[int, int], window: Int64) -> None:
        self._table = table
        self._times = times
        self._wanted = wanted
        self._ticks = ticks
        self._window = window

    def probe(self, probe: Probe, stop: int, out_probe: Int32, out_row: Int32, found: int) -> tuple[int, int]:
        return self._table.scan(
            probe, self._times, stop, self._wanted, self._ticks, self._window, out_probe, out_row, found
        )


class _ScanLookup(Lookup):
    """A stretch of a page, looked up."""

    def __init__(
        self, probe: Probe, index: _ScanIndex, between: Between, scan: Scan, piece: Piece, start: int, page: int
    ) -> None:
        super().__init__(probe, index, between, self._not_met)
        self._scan = scan
        self.piece, self.start, self.page = piece, start, page

    @property
    def stop(self) -> int:
        """The row behind the last of the stretch."""
        return self.start + len(self.probe.hashes)

    def _not_met(self, probes: Int32, rows: Int32) -> Bool:
        piece, join, side = self.piece, self._scan.join, self._scan.side
        blocks = piece.blocks_of(self.start + probes.astype(np.int64))
        arrived = join.tables[side].ticks(rows)
        return join.encounters[side].fresh(piece.number + blocks, piece.left[blocks], arrived)

    def work(self, pairs: PairBuffer, fuel: int, meter: Meter) -> int:
        """Fill the empty buffer with pairs, and count which blocks they come from."""
        used = super().work(pairs, fuel, meter)
        if pairs.count:
            blocks = self.piece.blocks_of(self.start + pairs.probes[: pairs.count].astype(np.int64))
            self.piece.results[:] += np.bincount(blocks, minlength=len(self.piece.results))
            self._scan.join.tables[self._scan.side].count_results(pairs.rows[: pairs.count])
        return used


class Scan:
    """The rows of one side that arrived at ticks in (since, until], looked for among the other side's absent blocks.

    It can stop between any two pairs, be set aside while rows arrive, and go on later.
    """

    def __init__(self, join: SpillingWindowJoin, side: int, since: int, until: int, updates: bool) -> None:
        self.join = join
        self.side, self.since, self.until = side, since, until
        self.updates = updates
        """Whether blocks that it comes by may become frequent ones."""
        self.lookup: _ScanLookup | None = None
        self._next = (0, 0)
        """The segment and the row to go on with."""
        self._ended = False
        self._place: list[int] | None = None
        """Where it was set aside."""
        self._floor = join.least_floor(side, since)
        self._filter = join.budget.reservation("filter of a scan")
        self._wanted = self._make_filter()

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
        return self._ended

    @property
    def piece(self) -> int | None:
        """The segment at hand."""
        return None if self.lookup is None else self.lookup.piece.number

    def set_aside(self) -> None:
        """Wait; all pairs found so far have been handed out."""
        assert not self.join.pairs.waiting
        self._place = None if self.lookup is None else self.lookup.place(self.join.pairs)

    def take_up(self) -> Scan:
        """Go on."""
        self._place = None
        return self

    def work(self, fuel: int) -> int:
        """Go on with the stretch at hand, or with the next."""
        if self.lookup is None or self.lookup.done:
            self._go_on()
            if self._ended:
                return 1
        assert self.lookup is not None
        return self.lookup.work(self.join.pairs, fuel, self.join.meter)

    def _go_on(self) -> None:
        lookup, disk = self.lookup, self.join.disks[1 - self.side]
        if lookup is not None:
            self._next = (lookup.piece.number, lookup.stop)
            if self.updates:
                self.join.consider(1 - self.side, lookup.piece, lookup.start, lookup.stop)
        found = self._find()
        if lookup is not None and (found is None or found[0] is not lookup.piece):
            disk.release(lookup.piece)
        if found is None:
            self._ended, self.lookup = True, None
        else:
            self._open(*found)

    def _find(self) -> tuple[Piece, int, int] | None:
        """The next stretch of blocks that are worth a look: on one page, and all that the rows have not met."""
        number, row = self._next
        for piece in self.join.disks[1 - self.side].pieces:
            if piece.number < number:
                continue
            if piece.number > number:
                row = 0
            if row >= piece.rows:
                continue
            first = int(piece.blocks_of(np.array([row]))[0])
            worth = (piece.left[first:] < self.until) & (piece.latest[first:] >= self._floor)
            if not worth.any():
                continue
            begin = first + int(np.argmax(worth))
            start = max(row, int(piece.firsts[begin]))
            rest = worth[begin - first :]
            stop = piece.rows if rest.all() else int(piece.firsts[begin + int(np.argmin(rest))])
            page_end = piece.ends[bisect_right(piece.ends, start)]
            return piece, start, min(stop, page_end)
        return None

    def _open(self, piece: Piece, start: int, stop: int) -> None:
        join, side = self.join, self.side
        number = bisect_right(piece.ends, start)
        page = join.disks[1 - side].read(piece, number)
        page = page.slice(start - page.first_ordinal, stop - start)
        table = join.tables[side]
        times = page.columns[0].to_numpy()
        index = _ScanIndex(table, times, self._wanted, (self.since, self.until), join.timing.words(side))
        between = Between(1 - side, BatchRows(page.columns), table)
        self.lookup = _ScanLookup(Probe(page.hashes, _NO_PARTS), index, between, self, piece, start, number)

    def finish(self) -> None:
        """The rows have met everything."""
        self.drop()
        self.join.scan_ended(self)

    def drop(self) -> None:
        """Give the memory of the filter back."""
        self._filter.clear()

    def to_state(self) -> dict[str, Any]:
        """The scan for a snapshot."""
        lookup = self.lookup
        at_hand = None
        if lookup is not None:
            place = self._place or lookup.place(self.join.pairs)
            at_hand = [lookup.piece.number, lookup.start, lookup.stop, place]
        return {
            "kind": "scan", "side": self.side, "since": self.since, "until": self.until, "updates": self.updates,
            "next": list(self._next), "at_hand": at_hand, "ended": self._ended,
        }  # fmt: skip

    def go_to(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        self._next = (state["next"][0], state["next"][1])
        self._ended = state["ended"]
        if state["at_hand"] is not None:
            number, start, stop, place = state["at_hand"]
            piece, _ = self.join.disks[1 - self.side].find(number)
            self._open(piece, start, stop)
            assert self.lookup is not None
            self.lookup.resume(self.join.pairs, place)
