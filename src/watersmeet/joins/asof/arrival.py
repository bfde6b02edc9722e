"""Rows that arrive at an as-of join: each gets its time, and left rows the time as of which they ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.engine.arrival import Arrival, Arriving
from watersmeet.records.bands import LOWEST

if TYPE_CHECKING:
    from watersmeet.joins.asof.join import AsofJoin

_RIGHT = 1


class AsofArrival(Arrival):
    """A batch on its way into memory, each row with its time."""

    def __init__(self, join: AsofJoin, side: int, batch: pa.RecordBatch, numbers: Int64, newest: int) -> None:
        hashes, valid = join.codec.hash(side, join.plans[side].key_arrays(batch))
        timed = join.timing.read(side, batch, newest)
        known = timed.known if valid is None else valid if timed.known is None else valid & timed.known
        drops = timed.late is not None and (side == _RIGHT or join.spec.times.late == "drop")
        in_time = ~timed.late if drops and timed.late is not None else None
        if side == _RIGHT or join.spec.how == "inner":
            fit = known if in_time is None else in_time if known is None else known & in_time
        else:  # a row without a key or a time comes without a partner
            fit = in_time
        if side == _RIGHT:
            keys, moments = hashes, [pa.array(timed.times)]
        else:
            keys = timed.floors if known is None else np.where(known, timed.floors, LOWEST)
            moments = [pa.array(timed.times, mask=None if known is None else ~known), pa.array(hashes)]
        Arriving.__init__(self, join, side, batch, numbers, [keys], fit, moments)
        self.lookup = None
        self.timed = timed
        self._reached = timed.newest if self.positions is None else timed.newest[self.positions]
        self._asof = self._join = join

    @property
    def at_hand(self) -> int:
        """Rows are not looked up as they arrive."""
        return 0

    def work(self, fuel: int) -> int:
        """Take the next rows."""
        join = self._asof
        if self.next == self.rows:
            return 1
        self.kept = join.must_keep(self.input)
        count = join.admit(self, min(fuel, self.rows - self.next))
        self.take_slice(count)
        return count

    def take_slice(self, count: int) -> None:
        """Move the next rows into memory, and let their times count."""
        keys, parts, columns = self.piece(count)
        join = self._asof
        self.next += count
        if self.kept:
            join.tables[self.input].append(keys, parts, columns, join.ticks(count))
            join.meter.inserts += count
        join.rows_taken(self.input, keys, int(self._reached[self.next - 1]))

    def finish(self) -> None:
        """The times of rows that match nothing count, too."""
        if len(self.timed.newest):
            self._asof.has_reached(self.input, int(self.timed.newest[-1]))

    def to_state(self) -> dict[str, Any]:
        """What was known before the rows that wait."""
        return {**super().to_state(), "newest": self.newest_before(self.unfinished().start)}

    def newest_before(self, row: int) -> int:
        """The newest time of the input before a row of the batch."""
        return int(self.timed.newest[row - 1]) if row else self.timed.before
