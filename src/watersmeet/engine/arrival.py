"""What a join does at a time: a task; and the task of rows that arrive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.matching.lookup import Lookup
from watersmeet.matching.unmatched import Unmatched
from watersmeet.records.intake import Received
from watersmeet.records.plan import Rows, TableRows

if TYPE_CHECKING:
    from watersmeet.engine.shell import Operator


UNIT_OF_WORK = 4096
"""Fuel of a task that arrivals have to wait for."""


class Task(Protocol):
    """A stretch of work that can stop between any two results.

    Of two inputs, it has a `lookup` with pairs in the buffer.
    """

    @property
    def done(self) -> bool:
        """Whether all its results were found."""
        ...

    def work(self, fuel: int) -> int:
        """Fill the empty buffer of what was found; returns the fuel that took, at least one."""
        ...

    def finish(self) -> None:
        """All results were handed out: settle what the task has achieved."""
        ...

    def to_state(self) -> dict[str, Any]:
        """The task for a snapshot."""
        ...


class Found(Protocol):
    """Results that were found and not handed out."""

    widest: list[int]
    """Bytes of the widest row of each input."""

    @property
    def waiting(self) -> int:
        """How many there are."""
        ...

    def clear(self) -> None:
        """Forget them."""
        ...


class Arriving(ABC):
    """A batch on its way into memory, slice by slice: each as large as the room and the fuel allow."""

    def __init__(
        self,
        join: Operator,
        number: int,
        batch: pa.RecordBatch,
        numbers: Int64,
        hashes: Sequence[Int64],
        valid: Bool | None,
        moments: Sequence[pa.Array] = (),
    ) -> None:
        """Rows that are not `valid` are left out; `moments` are stored before the columns."""
        self.input = number
        self.numbers = numbers
        plan = join.plans[number]
        columns = [*moments, *plan.store(batch, numbers)]
        self.positions: Int64 | None = None
        """Of rows that are not left out, their places in the batch; None: all are there."""
        if valid is not None and not valid.all():
            self.positions = np.flatnonzero(valid)
            self.leave_out(np.flatnonzero(~valid), columns)
            hashes = [each[self.positions] for each in hashes]
            columns = [column.take(pa.array(self.positions)) for column in columns]
        self.batch = batch
        self.widest: int = plan.widest(columns)
        self.kept = False
        self.next = 0
        self.rows = len(hashes[0])
        self._hashes = hashes
        self._parts: Int32 = join.tables[number].parts_of(hashes[0])
        self._columns = columns
        join.meter.hashes += batch.num_rows * len(hashes)

    def leave_out(self, positions: Int64, columns: Sequence[pa.Array]) -> None:  # noqa: B027  most have no use for them
        """Rows at these places of the batch, which has these columns, can match nothing."""

    @property
    @abstractmethod
    def at_hand(self) -> int:
        """How many of the last rows taken into memory have not met all of their partners there."""

    @property
    @abstractmethod
    def waits(self) -> bool:
        """Whether rows wait to be taken into memory, and nothing else is at hand."""

    def slice_of(self, count: int) -> tuple[list[Int64], Int32, list[pa.Array]]:
        """Hashes, partitions and columns of the next rows."""
        stop = self.next + count
        if count == self.rows:
            return list(self._hashes), self._parts, self._columns
        return (
            [each[self.next : stop] for each in self._hashes],
            self._parts[self.next : stop],
            [column.slice(self.next, count) for column in self._columns],
        )

    def unfinished(self) -> Received:
        """The rows that a snapshot must carry: those not in memory yet, and with them the slice at hand."""
        return Received(self.batch, self.numbers, self._in_batch(self.next - self.at_hand))

    def rest(self) -> tuple[pa.RecordBatch, Int64]:
        """The rows that have yet to be taken into memory, and their numbers."""
        start = self._in_batch(self.next)
        return self.batch.slice(start), self.numbers[start:]

    def _in_batch(self, row: int) -> int:
        """Where a row stands in the batch, of which some rows may have been left out."""
        if self.positions is None:
            return row
        return int(self.positions[row]) if row < len(self.positions) else self.batch.num_rows


class Arrival(Arriving):
    """A batch on its way into memory, slice by slice: each as large as the room and the fuel allow."""

    def __init__(
        self,
        join: Operator,
        side: int,
        batch: pa.RecordBatch,
        numbers: Int64,
        moments: Sequence[pa.Array] = (),
        taken: Bool | None = None,
    ) -> None:
        """`moments` are stored before the columns; where `taken` is given, rows that it does not have are left out."""
        hashes, valid = join.codec.hash(side, join.plans[side].key_arrays(batch))
        if taken is not None:
            valid = taken if valid is None else valid & taken
        # NULL matches nothing: such rows end here.
        super().__init__(join, side, batch, numbers, [hashes], valid, moments)
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
        """Go on with the slice at hand, or with the next, if nothing must come before it."""
        join = self._join
        if self.lookup is None or self.lookup.done:
            if self.next == self.rows:
                return 1
            count = min(fuel, self.rows - self.next)
            self.kept = join.must_keep(self.input)
            count = join.admit(self, count)
            if count and not self.kept and join.must_keep(self.input):
                # Making room brought rows of the other side to disk, which these rows must now wait for.
                self.kept = True
                count = join.admit(self, count)
            if not count:
                return 1
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
