"""What a progressive join of two inputs does at a time: a task; and the task of rows that arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.engine import shell as frame
from watersmeet.engine.shell import Arriving
from watersmeet.matching.found_pairs import Between
from watersmeet.matching.lookup import Lookup
from watersmeet.matching.unmatched import Unmatched
from watersmeet.records.plan import Rows, TableRows

if TYPE_CHECKING:
    from watersmeet.engine.two_way import ProgressiveJoin


UNIT_OF_WORK = 4096
"""Fuel of a task that arrivals have to wait for."""


class Finding(Protocol):
    """What fills the buffer of pairs, and tells where their rows lie: a look-up, a settlement, or rows without any."""

    @property
    def done(self) -> bool:
        """Whether everything was found; some may still wait in the buffer."""
        ...

    @property
    def between(self) -> Between:
        """Where the rows in the buffer lie."""
        ...


class Task(frame.Task, Protocol):
    """A stretch of work that can stop between any two pairs."""

    @property
    def lookup(self) -> Finding | None:
        """The look-up whose pairs are in the buffer."""
        ...


class Arrival(Arriving):
    """A batch on its way into memory, slice by slice: each as large as the room and the fuel allow."""

    def __init__(self, join: ProgressiveJoin, side: int, batch: pa.RecordBatch, numbers: Int64) -> None:
        hashes, valid = join.codec.hash(side, join.plans[side].key_arrays(batch))
        super().__init__(join, side, batch, numbers, [hashes], valid)  # NULL matches nothing: such rows end here
        self._join = join
        self.lookup: Lookup | Unmatched | None = None

    @property
    def done(self) -> bool:
        """Whether the last slice was looked up."""
        return self.next == self.rows and (self.lookup is None or self.lookup.done)

    @property
    def at_hand(self) -> int:
        """How many rows are being looked up."""
        return self.lookup.length if isinstance(self.lookup, Lookup) else 0

    @property
    def waits(self) -> bool:
        """Whether rows wait to be taken into memory, and nothing else is at hand."""
        return self.next < self.rows and (self.lookup is None or self.lookup.done)

    def work(self, fuel: int) -> int:
        """Go on with the slice at hand, or with the next."""
        join = self._join
        if self.lookup is None or self.lookup.done:
            if self.next == self.rows:
                return 1
            count = min(fuel, self.rows - self.next)
            self.kept = join.must_keep(self.input)
            count = join.admit(self, count)
            if not self.kept and join.must_keep(self.input):
                # Making room brought rows of the other side to disk, which these rows must now wait for.
                self.kept = True
                count = join.admit(self, count)
            self.take_slice(count)
        assert self.lookup is not None
        return self.lookup.work(join.pairs, fuel, join.meter)

    def piece(self, count: int) -> tuple[Int64, Int32, list[pa.Array]]:
        """Hashes, partitions and columns of the next rows."""
        (hashes,), parts, columns = self.slice_of(count)
        return hashes, parts, columns

    def take_slice(self, count: int) -> None:
        """Move the next rows into memory (which has room for them) and begin to look them up."""
        hashes, parts, columns = self.piece(count)
        join, table = self._join, self._join.tables[self.input]
        self.next += count
        if self.kept:
            rows = table.append(hashes, parts, columns, join.ticks(count))
            join.meter.inserts += count
            join.rows_kept(self.input, parts)
            source: Rows = TableRows(table, rows)
        else:
            source = join.loose_rows(columns)
        self.lookup = join.arrival_lookup(self.input, hashes, parts, columns, source)

    def finish(self) -> None:
        """Nothing is left to settle."""

    def to_state(self) -> dict[str, Any]:
        """The slice at hand: how many rows it has, whether they were kept, and the place in its look-up."""
        if self.lookup is None:
            return {"kind": "arrival", "input": self.input, "rows": 0}
        place = self.lookup.place(self._join.pairs)
        return {"kind": "arrival", "input": self.input, "rows": self.at_hand, "kept": self.kept, "place": place}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on with a slice that was at hand when a snapshot was taken; this batch begins with its rows."""
        if not state["rows"]:
            return
        count, self.kept = state["rows"], state["kept"]
        hashes, parts, columns = self.piece(count)
        self.next = count
        source = self._join.loose_rows(columns)
        self.lookup = self._join.arrival_lookup(self.input, hashes, parts, columns, source)
        self.lookup.resume(self._join.pairs, state["place"])
