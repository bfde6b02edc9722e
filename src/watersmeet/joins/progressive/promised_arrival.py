"""A batch on its way into memory, of which only those rows are kept that can still find partners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64
from watersmeet.joins.progressive.keyed_arrival import KeyedArrival
from watersmeet.memory import Budget
from watersmeet.records.patterns import KeyPattern
from watersmeet.records.plan import BatchRows
from watersmeet.records.punctuated import behind_values, punctuated_range

if TYPE_CHECKING:
    from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin


class PromisedArrival(KeyedArrival):
    """Rows of one input, slice by slice: checked, kept or dropped, looked up, and then learned from."""

    _join: MetadataMJoin

    def __init__(
        self,
        join: MetadataMJoin,
        side: int,
        batch: pa.RecordBatch,
        numbers: Int64,
        marks: Sequence[tuple[int, KeyPattern]] = (),
    ) -> None:
        """`marks` are punctuations among the rows, each with the rows before it: they count when all rows are done."""
        super().__init__(join, side, batch, numbers)
        self._marks = list(marks)
        self.keep: Bool = np.empty(0, np.bool_)
        """Which rows of the next slice are to be kept; they have room."""
        self._settled = True
        self._first = 0

    def work(self, fuel: int) -> int:
        """Go on with the slice at hand, or with the next."""
        if self.lookup is None or self.lookup.done:
            self._settle()
            if self.next == self.rows:
                return 1
            count = self._join.admit(self, min(fuel, self.rows - self.next))
            self._join.promised.check_word(self, count)
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
            table = join.tables[self.input]
            if kept == count:
                table.append(hashes, parts, columns, ticks)
            else:
                table.append(
                    hashes[rows], parts[rows], [column.take(pa.array(rows)) for column in columns], ticks[rows]
                )
            join.meter.inserts += kept
            join.rows_kept(self.input, parts[rows])
        join.promised.not_kept(self.input, hashes, lambda: self.keys(self.next, count), ~keep)
        self._first = self.next
        self.next += count
        self._settled = False
        self.lookup = join.arrival_lookup(self.input, hashes, parts, columns, BatchRows(columns))

    def _settle(self) -> None:
        """All rows of the slice have met their partners in memory."""
        if not self._settled:
            self._settled = True
            first, count = self._first, self.next - self._first
            self._join.promised.met_memory(
                self.input, self._hashes[0][first : self.next], self._parts[first : self.next],
                lambda: self.keys(first, count),
            )  # fmt: skip

    def finish(self) -> None:
        """Learn from the last slice, and heed the punctuations."""
        self._settle()
        if self._marks:
            patterns, self._marks = [pattern for _, pattern in self._marks], []
            self._join.heed(self.input, patterns)

    def behind_marks(self, first: int, hashes: Int64, keys: Callable[[], list[pa.Array]]) -> Bool:
        """Which of the rows from `first` on come behind a punctuation, in this batch, that speaks of them."""
        late = np.zeros(len(hashes), np.bool_)
        if not self._marks:
            return late
        positions = self.positions
        places = np.arange(first, first + len(hashes)) if positions is None else positions[first : first + len(hashes)]
        last = int(places[-1]) if len(places) else 0
        before = [(at, pattern) for at, pattern in self._marks if at <= last]
        values = [(at, pattern.values) for at, pattern in before if pattern.values is not None]
        if values:
            begins = np.repeat([at for at, _ in values], [len(value[0]) for _, value in values])
            columns = [pa.concat_arrays(column) for column in zip(*(value for _, value in values), strict=True)]
            late |= behind_values(self._join.codec, columns, begins, hashes, keys, places)
        for at, pattern in before:
            if pattern.values is None:
                alone = punctuated_range(self._join.codec, Budget(1 << 20).reservation("one range"), 1 << 20)
                alone.add(pattern)
                late |= (places >= at) & alone.contains(hashes, keys)
        return late

    def to_state(self) -> dict[str, Any]:
        """The slice at hand, and the punctuations among its rows and those that follow."""
        start = self.unfinished().start
        marks = [[max(0, at - start), pattern.to_state()] for at, pattern in self._marks]
        return {**super().to_state(), "marks": marks}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on with a slice that was at hand when a snapshot was taken."""
        self._marks = [(at, KeyPattern.of_state(saved)) for at, saved in state["marks"]]
        super().resume(state)
        self._first, self._settled = 0, not state["rows"]
