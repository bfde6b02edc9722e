"""What a progressive join of two inputs does at a time: a task; and the task of rows that arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.state.intake import Received
from watersmeet.state.lookup import Lookup
from watersmeet.state.rows import BatchRows, TableRows

if TYPE_CHECKING:
    from watersmeet.joins.progressive import ProgressiveJoin

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

UNIT_OF_WORK = 4096
"""Fuel of a task that arrivals have to wait for."""


class Task(Protocol):
    """A stretch of work that can stop between any two pairs."""

    @property
    def done(self) -> bool:
        """Whether all its pairs were found."""
        ...

    @property
    def lookup(self) -> Lookup | None:
        """The look-up whose pairs are in the buffer."""
        ...

    def work(self, fuel: int) -> int:
        """Fill the empty pair buffer; returns the fuel that took, at least one."""
        ...

    def finish(self) -> None:
        """All pairs were handed out: settle what the task has achieved."""
        ...

    def to_state(self) -> dict[str, Any]:
        """The task for a snapshot."""
        ...


class Arrival:
    """A batch on its way into memory, slice by slice: each as large as the room and the fuel allow."""

    def __init__(self, join: ProgressiveJoin, side: int, batch: pa.RecordBatch, numbers: Int64) -> None:
        plan = join.plans[side]
        hashes, valid = join.codec.hash(side, plan.key_arrays(batch))
        columns = plan.store(batch, numbers)
        positions = None
        if valid is not None:  # NULL matches nothing: such rows end here
            positions = np.flatnonzero(valid)
            hashes = hashes[positions]
            columns = [column.take(pa.array(positions)) for column in columns]
        self.side = side
        self.next = 0
        self.lookup: Lookup | None = None
        self.kept = False
        self._join = join
        self._hashes = hashes
        self._parts = join.tables[side].parts_of(hashes)
        self._columns = columns
        self._received = (batch, numbers, positions)
        self.widest = plan.widest(columns)
        join.meter.hashes += batch.num_rows

    @property
    def done(self) -> bool:
        """Whether the last slice was looked up."""
        return self.next == len(self._hashes) and (self.lookup is None or self.lookup.done)

    @property
    def waits(self) -> bool:
        """Whether rows wait to be taken into memory, and nothing else is at hand."""
        return self.next < len(self._hashes) and (self.lookup is None or self.lookup.done)

    def work(self, fuel: int) -> int:
        """Go on with the slice at hand, or with the next."""
        join = self._join
        if self.lookup is None or self.lookup.done:
            if self.next == len(self._hashes):
                return 1
            count = min(fuel, len(self._hashes) - self.next)
            self.kept = join.must_keep(self.side)
            count = join.admit(self, count)
            if not self.kept and join.must_keep(self.side):
                # Making room brought rows of the other side to disk, which these rows must now wait for.
                self.kept = True
                count = join.admit(self, count)
            self.take_slice(count)
        assert self.lookup is not None
        return self.lookup.work(join.pairs, fuel, join.meter)

    def piece(self, count: int) -> tuple[Int64, Int32, list[pa.Array]]:
        """Hashes, partitions and columns of the next rows."""
        stop = self.next + count
        return (
            self._hashes[self.next : stop],
            self._parts[self.next : stop],
            [column.slice(self.next, count) for column in self._columns],
        )

    def take_slice(self, count: int) -> None:
        """Move the next rows into memory (which has room for them) and begin to look them up."""
        hashes, parts, columns = self.piece(count)
        join, table = self._join, self._join.tables[self.side]
        self.next += count
        if self.kept:
            rows = table.append(hashes, parts, columns, join.ticks(count))
            join.meter.inserts += count
            join.rows_kept(self.side, parts)
            source: TableRows | BatchRows = TableRows(table, rows)
        else:
            source = BatchRows(columns)
        self.lookup = join.arrival_lookup(self.side, hashes, parts, columns, source)

    def finish(self) -> None:
        """Nothing is left to settle."""

    def to_state(self) -> dict[str, Any]:
        """The slice at hand: how many rows it has, whether they were kept, and the place in its look-up."""
        if self.lookup is None:
            return {"kind": "arrival", "side": self.side, "rows": 0}
        rows = len(self.lookup.probe.hashes)
        place = self.lookup.place(self._join.pairs)
        return {"kind": "arrival", "side": self.side, "rows": rows, "kept": self.kept, "place": place}

    def unfinished(self) -> Received:
        """The rows that a snapshot must carry: those not in memory yet, and with them the slice at hand."""
        start = self.next - (0 if self.lookup is None else len(self.lookup.probe.hashes))
        batch, numbers, positions = self._received
        if positions is not None:
            start = int(positions[start]) if start < len(positions) else batch.num_rows
        return Received(batch, numbers, start)

    def resume(self, state: dict[str, Any]) -> None:
        """Go on with a slice that was at hand when a snapshot was taken; this batch begins with its rows."""
        if not state["rows"]:
            return
        count, self.kept = state["rows"], state["kept"]
        hashes, parts, columns = self.piece(count)
        self.next = count
        source: TableRows | BatchRows = BatchRows(columns)
        self.lookup = self._join.arrival_lookup(self.side, hashes, parts, columns, source)
        self.lookup.resume(self._join.pairs, state["place"])
