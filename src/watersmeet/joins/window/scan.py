"""Rows in memory that meet what has left it: the disk of the other side is gone through once for many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from watersmeet.core.arrays import Bool, Int32
from watersmeet.matching.disk_lookup import DiskIndex, DiskLookup, filter_of
from watersmeet.runs.scan import ScannedRows

if TYPE_CHECKING:
    from watersmeet.joins.window.exact import ExactWindowJoin


class _ScanLookup(DiskLookup):
    """The disk, looked up in memory."""

    def __init__(self, scan: Scan, index: DiskIndex, rows: ScannedRows) -> None:
        super().__init__(scan.side, scan.join.tables[scan.side], index, rows)
        self._join = scan.join
        self._side = scan.side

    def not_met(self, probes: Int32, rows: Int32) -> Bool:
        """As the ticks tell."""
        blocks = self.rows.blocks_of(probes)
        arrived = self.table.ticks(rows)
        numbers, left = self.rows.block_numbers[blocks], self.rows.block_left[blocks]
        return self._join.encounters[self._side].fresh(numbers, left, arrived)

    def found(self, probes: Int32, rows: Int32) -> None:
        """Count which blocks they come from, and how long they took."""
        blocks = self.rows.blocks_of(probes)
        self.rows.block_results += np.bincount(blocks, minlength=len(self.rows.block_results))
        self.table.count_results(rows)
        self._join.waits.add(self.table.ticks(rows))


class Scan:
    """The rows of one side that arrived at ticks in (since, until], looked for among the other side's absent blocks.

    It can stop between any two pairs, be set aside while rows arrive, and go on later.
    """

    def __init__(
        self, join: ExactWindowJoin, side: int, since: int, until: int, updates: bool, floor: int | None = None
    ) -> None:
        self.join = join
        self.side, self.since, self.until = side, since, until
        self.updates = updates
        """Whether blocks that it comes by may become frequent ones."""
        self._floor = join.least_floor(side, since) if floor is None else floor
        self._rows = ScannedRows(join.disks[1 - side], join.plans[1 - side].types, until, self._floor)
        ticks, window = (since, until), join.timed.timing.words(side)
        table = join.tables[side]
        fresh = table.live(since)
        partners = np.bincount(table.part_of[fresh], table.sizes(fresh), table.layout.partitions).astype(np.int64)
        self._index = DiskIndex(table, join.disks[1 - side], self._rows, ticks, window, partners)
        self.lookup = _ScanLookup(self, self._index, self._rows)
        self._place: list[int] | None = None
        """Where it was set aside."""
        self._filter = join.filters[side]
        self._index.wanted = filter_of(table, fresh, self._filter)

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
            self.join.copies.consider(1 - self.side, self._rows)
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
