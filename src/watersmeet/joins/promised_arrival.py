"""A batch on its way into memory, of which only those rows are kept that can still find partners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.joins.progressive import Arrival
from watersmeet.state.key_patterns import plain_array
from watersmeet.state.rows import BatchRows

if TYPE_CHECKING:
    from watersmeet.joins.metadata_mjoin import MetadataMJoin

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


class PromisedArrival(Arrival):
    """Rows of one input, slice by slice: checked, kept or dropped, looked up, and then learned from."""

    _join: MetadataMJoin

    def __init__(self, join: MetadataMJoin, side: int, batch: pa.RecordBatch, numbers: Int64) -> None:
        super().__init__(join, side, batch, numbers)
        self.keep: Bool = np.empty(0, np.bool_)
        """Which rows of the next slice are to be kept; they have room."""
        self._settled = True
        self._first = 0

    def work(self, fuel: int) -> int:
        """Go on with the slice at hand, or with the next."""
        if self.lookup is None or self.lookup.done:
            self._settle()
            if self.next == len(self._hashes):
                return 1
            count = self._join.admit(self, min(fuel, len(self._hashes) - self.next))
            self._join.check_word(self, count)
            self.take_slice(count)
        assert self.lookup is not None
        return self.lookup.work(self._join.pairs, fuel, self._join.meter)

    def take_slice(self, count: int) -> None:
        """Move those rows of the next ones that are to be kept into memory, and begin to look all of them up."""
        hashes, parts, columns = self.piece(count)
        join, keep = self._join, self.keep
        ticks = join.ticks(count)
        kept = int(np.count_nonzero(keep))
        if kept:
            rows = np.flatnonzero(keep)
            table = join.tables[self.side]
            if kept == count:
                table.append(hashes, parts, columns, ticks)
            else:
                table.append(
                    hashes[rows], parts[rows], [column.take(pa.array(rows)) for column in columns], ticks[rows]
                )
            join.meter.inserts += kept
            join.rows_kept(self.side, parts[rows])
        join.not_kept(self.side, hashes, lambda: self.keys(self.next, count), ~keep)
        self._first = self.next
        self.next += count
        self._settled = False
        self.lookup = join.arrival_lookup(self.side, hashes, parts, columns, BatchRows(columns))

    def _settle(self) -> None:
        """All rows of the slice have met their partners in memory."""
        if not self._settled:
            self._settled = True
            first, count = self._first, self.next - self._first
            self._join.met_memory(
                self.side, self._hashes[first : self.next], self._parts[first : self.next],
                lambda: self.keys(first, count),
            )  # fmt: skip

    def finish(self) -> None:
        """Learn from the last slice."""
        self._settle()

    def resume(self, state: dict[str, Any]) -> None:
        """Go on with a slice that was at hand when a snapshot was taken."""
        super().resume(state)
        self._first, self._settled = 0, not state["rows"]

    def keys(self, first: int, count: int) -> list[pa.Array]:
        """The key columns of some rows, in plain types."""
        batch, _, positions = self._received
        columns = [plain_array(column) for column in self._join.plans[self.side].key_arrays(batch)]
        if positions is not None:
            return [column.take(pa.array(positions[first : first + count])) for column in columns]
        return [column.slice(first, count) for column in columns]

    def row_number(self, row: int) -> int:
        """The number of a row in its input."""
        _, numbers, positions = self._received
        return int(numbers[row if positions is None else positions[row]])
