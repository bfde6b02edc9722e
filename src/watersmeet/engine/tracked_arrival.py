"""Rows that arrive on an input of which it matters who finds nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.engine.arrival import Arrival
from watersmeet.matching.unmatched import Unmatched, among
from watersmeet.records.intake import Received
from watersmeet.records.plan import TableRows

_NULLS, _ROWS, _ALONE = "nulls", "rows", "alone"


class TrackedArrival(Arrival):
    """A batch on its way into memory, of an input whose rows are marked when they find a partner.

    ```
    nulls    rows that can match nothing, for a key of theirs is NULL: they are settled when they come
      │
      ▼
    rows     the next slice is looked up; and so on ◀──╮
      │ if the slice is not kept                        │
      ▼                                                 │
    alone    its rows that have found nobody ───────────╯
    ```

    A slice is not kept if the other input has ended and all of it is in memory: its rows are settled, too. A row that
    can match nothing and was handed out has its number negated (`~number`), wherever the rest of its batch goes.
    """

    def __init__(self, join: Any, side: int, batch: pa.RecordBatch, numbers: Int64) -> None:
        self._begin_tracking(join, side)
        super().__init__(join, side, batch, numbers)
        self._begin_stages()

    def _begin_tracking(self, join: Any, side: int) -> None:
        """Before the rows are looked at."""
        self._nulls: tuple[Int64, list[pa.Array]] | None = None
        self._preserved = join.spec.kind.preserved[side]
        self._tracking = join

    def _begin_stages(self) -> None:
        """When it is known which of them can match nothing."""
        self._stage = _ROWS if self._nulls is None else _NULLS
        self._slice, self._slice_kept = 0, False

    def leave_out(self, positions: Int64, columns: Sequence[pa.Array]) -> None:
        """Rows that can match nothing come out, unless they did already."""
        positions = positions[self.numbers[positions] >= 0]
        if self._preserved and len(positions):
            self._nulls = positions, [column.take(pa.array(positions)) for column in columns]

    @property
    def at_hand(self) -> int:
        """How many rows are being looked up, or handed out."""
        return self._slice

    @property
    def _at_rest(self) -> bool:
        """Whether nothing is at hand but rows that wait."""
        if self.lookup is None:
            return self._stage != _NULLS
        return self.lookup.done and not (self._stage == _ROWS and self._settles_slice)

    @property
    def _settles_slice(self) -> bool:
        return self._preserved and self._slice > 0 and not self._slice_kept

    @property
    def done(self) -> bool:
        """Whether the last slice was looked up, and whoever found nobody came out."""
        return self.next == self.rows and self._at_rest

    @property
    def waits(self) -> bool:
        """Whether rows wait to be taken into memory, and nothing else is at hand."""
        return self.next < self.rows and self._at_rest

    def work(self, fuel: int) -> int:
        """Go on with what is at hand, or with the next."""
        join = self._tracking
        if self.lookup is None or self.lookup.done:
            if self._stage == _NULLS and self.lookup is None:
                self.lookup = self._nulls_alone()
            elif self._stage == _ROWS and self.lookup is not None and self._settles_slice:
                self._stage, self.lookup = _ALONE, self._slice_alone(self.lookup.between.probe)
            else:
                self._end_stage()
                return super().work(fuel)
        return self.lookup.work(join.pairs, fuel, join.meter)

    def _end_stage(self) -> None:
        if self._stage == _NULLS:
            self._note_nulls()
        if self._stage != _ROWS:
            self._stage, self.lookup, self._slice = _ROWS, None, 0

    def _note_nulls(self) -> None:
        """Rows that can match nothing were handed out, and must not be once more."""
        if self._nulls is not None:
            positions, self._nulls = self._nulls[0], None
            self.numbers = self.numbers.copy()
            self.numbers[positions] = ~self.numbers[positions]

    def _nulls_alone(self) -> Unmatched:
        assert self._nulls is not None
        positions, columns = self._nulls
        nobody = np.zeros(len(positions), np.uint8)
        return Unmatched(self.input, self._tracking.loose_rows(columns), len(positions), among(nobody))

    def _slice_alone(self, source: Any) -> Unmatched:
        return Unmatched(self.input, source, self._slice, among(self._tracking.matched.loose))

    def take_slice(self, count: int) -> None:
        """Move the next rows into memory, or note who of them finds a partner while they are looked up."""
        self._slice, self._slice_kept = count, self.kept
        if not self.kept:
            self._tracking.matched.loose = np.zeros(count, np.uint8)
        super().take_slice(count)

    def rest(self) -> tuple[pa.RecordBatch, Int64]:
        """The rows that have yet to be taken into memory, and their numbers."""
        if self.lookup is not None:
            self._note_nulls()
        return super().rest()

    def unfinished(self) -> Received:
        """The rows that a snapshot must carry; those that can match nothing may be at hand."""
        if self._stage == _NULLS:
            return Received(self.batch, self.numbers, 0)
        return super().unfinished()

    def to_state(self) -> dict[str, Any]:
        """What is at hand, and the place in it."""
        state = {"kind": "arrival", "input": self.input, "stage": self._stage, "rows": self._slice}
        state["kept"] = self._slice_kept
        return {**state, "place": None if self.lookup is None else self.lookup.place(self._tracking.pairs)}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on with what was at hand when a snapshot was taken; this batch begins with its rows."""
        self._stage, count, place = state["stage"], state["rows"], state["place"]
        self.kept = self._slice_kept = state["kept"]
        if place is None:
            return
        join = self._tracking
        if self._stage == _NULLS:
            self.lookup = self._nulls_alone()
        else:
            hashes, parts, columns = self.piece(count)
            self.next = self._slice = count
            source = join.loose_rows(columns)
            if self.kept:  # they are the last that were taken into memory
                table = join.tables[self.input]
                source = TableRows(table, np.arange(table.rows - count, table.rows, dtype=np.int32))
            if self._stage == _ALONE:
                self.lookup = self._slice_alone(source)
            else:
                self.lookup = join.arrival_lookup(self.input, hashes, parts, columns, source)
        assert self.lookup is not None
        self.lookup.resume(join.pairs, place)
