"""Rows of the one of several inputs that come out in any case: alone, where they are in no result.

A row is known by its number in the order of its input, which lies with it wherever it goes, in as many runs as it has
attributes; and there is a bit for each number (`matching.matched.MatchedNumbers`). It is set when a result with the row
is handed out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64
from watersmeet.engine.multi_arrival import Arrival
from watersmeet.matching.found_combinations import BATCH, TABLE, Passing, places
from watersmeet.matching.many_rows import run_number
from watersmeet.matching.matched import MatchedNumbers
from watersmeet.records.intake import Received
from watersmeet.runs.matched_bits import LEAST_BYTES, MatchedBits

if TYPE_CHECKING:
    from watersmeet.joins.multiway.confluence import ManyConfluence

_NULLS, _ROWS, _ALONE = "nulls", "rows", "alone"
_BITS_SHARE = 64
"""One part in so many of the memory is for bits of the rows."""
_ROWS_A_FUEL = 16
"""Rows that are passed for as much fuel as a result takes."""


class PreservedArrival(Arrival):
    """A batch of that input on its way into memory; the stages are those of `engine.tracked_arrival`."""

    join: ManyConfluence

    def __init__(self, join: ManyConfluence, driver: int, batch: pa.RecordBatch, numbers: Int64) -> None:
        self._nulls: tuple[Int64, list[pa.Array]] | None = None
        super().__init__(join, driver, batch, numbers)
        self._stage = _ROWS if self._nulls is None else _NULLS
        self._slice_kept = True
        self._ids: Int64 | None = None
        """Rows that come out alone in this stage; None: it has not begun."""
        self._told = 0
        """How many of them were handed out, or put into the buffer."""

    def leave_out(self, positions: Int64, columns: Sequence[pa.Array]) -> None:
        """Rows that can match nothing come out, unless they did already."""
        positions = positions[self.numbers[positions] >= 0]
        if len(positions):
            self._nulls = positions, [column.take(pa.array(positions)) for column in columns]

    @property
    def _at_rest(self) -> bool:
        """Whether nothing is at hand but rows that wait."""
        if self._stage == _ROWS:
            return (self.pipeline is None or self.pipeline.done) and (self._slice_kept or not self._slice)
        return self._ids is not None and self._told == len(self._ids)

    @property
    def done(self) -> bool:
        """Whether the last slice was looked up, and whoever found nobody came out."""
        return self.next == self.rows and self._at_rest

    @property
    def waits(self) -> bool:
        """Whether rows wait to be taken into memory, and nothing else is at hand."""
        return self.next < self.rows and self._at_rest

    def work(self, fuel: int) -> int:
        """Fill the empty buffer; returns the fuel that took."""
        if self._stage == _ROWS and self.pipeline is not None and self.pipeline.done and not self._at_rest:
            self._stage = _ALONE
        if self._stage != _ROWS:
            if not self._at_rest:
                return self._tell(fuel)
            self._end_stage()
        return super().work(fuel)

    def _tell(self, fuel: int) -> int:
        if self._ids is None:
            self._ids = self._ids_of_nulls() if self._stage == _NULLS else self._ids_of_slice()
        some = self._ids[self._told : self._told + max(1, min(fuel, self.join.sizing.combinations))]
        self._told += len(some)
        if len(some):
            self.join.combinations.fill_alone(some)
        return 1 + len(some)

    def _ids_of_nulls(self) -> Int64:
        assert self._nulls is not None
        positions, columns = self._nulls
        self.join.inputs[self.driver].batch = Passing(columns, [], np.zeros(len(positions), np.int64))
        return places(BATCH, np.arange(len(positions), dtype=np.int32))

    def _ids_of_slice(self) -> Int64:
        """Those of the slice at hand that have found nobody, who passes by."""
        ids = places(BATCH, np.arange(self._slice, dtype=np.int32))
        assert self.join.preserved is not None
        return ids[self.join.preserved.are_alone(ids)]

    def _end_stage(self) -> None:
        if self._stage == _NULLS:
            self._note_nulls()
        self._stage, self._ids, self._told, self._slice, self.pipeline = _ROWS, None, 0, 0, None

    def _note_nulls(self) -> None:
        """Rows that can match nothing were handed out, and must not be once more."""
        if self._nulls is not None:
            positions, self._nulls = self._nulls[0], None
            self.numbers = self.numbers.copy()
            self.numbers[positions] = ~self.numbers[positions]

    def begin(self, fuel: int) -> None:
        """Take the next slice into memory and begin to look it up."""
        super().begin(fuel)
        self._slice_kept = self.kept

    def rest(self) -> tuple[pa.RecordBatch, Int64]:
        """The rows that have yet to be taken into memory, and their numbers."""
        if self._ids is not None:
            self._note_nulls()
        return super().rest()

    def unfinished(self) -> Received:
        """The rows that a snapshot must carry; those that can match nothing may be at hand."""
        return Received(self.batch, self.numbers, 0) if self._stage == _NULLS else super().unfinished()

    def to_state(self) -> dict[str, Any]:
        """What is at hand, and the place in it."""
        told = None if self._ids is None else self._told - self.join.combinations.waiting
        return {**super().to_state(), "kept": self._slice_kept, "stage": self._stage, "told": told}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on with what was at hand when a snapshot was taken; this batch begins with its rows."""
        self._stage = state["stage"]
        super().resume(state)
        self._slice_kept = state["kept"]
        if self._stage == _ALONE and self.pipeline is not None:
            self.pipeline = None  # all of it was found
            self._ids = self._ids_of_slice()
            self._told = state["told"] or 0
        elif self._stage == _NULLS and state["told"] is not None:
            self._ids, self._told = self._ids_of_nulls(), state["told"]


class Preserved:
    """Part of an operator: which rows of the preserved input are in results, and when the others come out.

    That is when all other inputs have ended and nothing is owed: then all its rows are settled.
    """

    def __init__(self, join: ManyConfluence, memory: int) -> None:
        assert join.spec.preserved is not None
        self._join = join
        self.number = join.spec.preserved
        size = max(LEAST_BYTES, memory // _BITS_SHARE)
        join.budget.reservation("bits of rows").grow(size)
        new_bits = partial(join.flushing.new_name, "bits")
        self.matched = MatchedNumbers(MatchedBits(join.store, size, new_bits, lambda names: join.saver.discard(names)))
        join.combinations.in_results = self.in_results
        self.saved: list[Any] | None = None
        """What the last snapshot says."""

    def _numbers_of(self, ids: Int64) -> Int64:
        """The numbers of some rows."""
        column = self._join.plans[self.number].number
        assert column is not None
        numbers: Int64 = self._join.inputs[self.number].gather_columns([column], ids)[0].to_numpy()
        return numbers

    def in_results(self, ids: Int64) -> None:
        """Results with these rows are handed out."""
        self.matched.mark(self._numbers_of(ids))

    def are_alone(self, ids: Int64) -> Bool:
        """Which rows are in no result so far."""
        return self.matched.unmarked(self._numbers_of(ids))

    def has_come(self) -> bool:
        """Whether rows are there whose results have all been found, and no more will come."""
        join = self._join
        if not join.is_of_no_use(self.number) or join.owes or join.settling is not None:
            return False
        return bool(join.tables[self.number].rows or join.disks[self.number].sets)

    def task(self) -> AloneTask | None:
        """Hand out the rows that are in no result, if all have settled."""
        if not self.has_come():
            return None
        self._join.events["rows without a partner settled"] += 1
        return AloneTask(self._join, self)

    def is_over(self) -> None:
        """All rows are in results or came out alone: nobody needs them any more."""
        self._join.clock += 1
        self._join.flushing.forget_rows(self.number)
        self._join.flushing.forget_runs(self.number)
        self._join.flushing.count()

    # --- snapshots ---

    def save(self) -> list[str]:
        """Write the bits that have changed; returns the segment that they are in, if there is one."""
        self.saved = self.matched.to_state()
        return [self.saved[0]] if self.saved[0] is not None else []

    def load(self, state: Sequence[Any]) -> None:
        """Take over what a snapshot says."""
        self.matched.load(state)


class AloneTask:
    """All rows of the preserved input that are in no result, now that the others have ended and nothing is owed.

    Arrivals wait for it. When all were handed out, nobody needs the input's rows any more.
    """

    def __init__(
        self, join: ManyConfluence, preserved: Preserved, part: int = 0, start: int = 0, handed: int = 0
    ) -> None:
        """From a row of a part on, of which so many that are alone were handed out."""
        self._join = join
        self._preserved = preserved
        number = preserved.number
        self._part, self._start, self._skip = part, start, handed
        self._next, self._filled = start, 0
        sets = join.inputs[number].disk.sets
        self._rows = [join.tables[number].rows, *(each.rows for each in sets)]
        self._sources = [TABLE, *(run_number(k, 0, len(sets)) for k in range(len(sets)))]

    @property
    def done(self) -> bool:
        """Whether all were found."""
        return self._part == len(self._rows) - 1 and self._next >= self._rows[-1]

    def work(self, fuel: int) -> int:
        """Fill the empty buffer; returns the fuel that took."""
        join = self._join
        join.let_go()
        if self._next >= self._rows[self._part]:
            self._part, self._next = self._part + 1, 0
        self._start = self._next
        self._next = min(self._rows[self._part], self._start + join.sizing.combinations)
        ids = np.arange(self._start, self._next) | (self._sources[self._part] << 32)
        found = ids[self._preserved.are_alone(ids)] if len(ids) else ids
        self._filled = len(found)
        found, self._skip = found[self._skip :], 0
        if len(found):
            join.combinations.fill_alone(found)
        return 1 + len(found) + len(ids) // _ROWS_A_FUEL

    def finish(self) -> None:
        """The input is done with."""
        self._preserved.is_over()

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        waiting = self._join.combinations.waiting
        place = [self._start, self._filled - waiting] if waiting else [self._next, self._skip]
        return {"kind": "alone", "number": self._preserved.number, "part": self._part, "place": place}
