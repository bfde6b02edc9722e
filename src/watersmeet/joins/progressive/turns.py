"""Whose rows come next in a join with promises: turns, quotas, and rows that a punctuation waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.joins.progressive.promised_arrival import PromisedArrival
from watersmeet.policies.promises import StreamSchedule
from watersmeet.records.intake import Intake, Received
from watersmeet.records.patterns import KeyPattern

if TYPE_CHECKING:
    from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin

_MOST_AT_ONCE = 1024
"""Punctuations that are heeded together, at most."""


class Turns:
    """Rows and punctuations that were received and have not been worked off, each before or behind the others."""

    def __init__(
        self, join: MetadataMJoin, intakes: Sequence[Intake], schedule: StreamSchedule, by_value: Sequence[bool]
    ) -> None:
        """`by_value` says of which inputs those rows come first that a punctuation of the other one waits for."""
        self._join = join
        self._intakes = intakes
        self._schedule = schedule
        self._by_value = by_value
        self.pools: tuple[list[Received], list[Received]] = ([], [])
        """Rows that wait for their turn to end, by input."""
        self.marks: tuple[deque[tuple[int, KeyPattern]], deque[tuple[int, KeyPattern]]] = (deque(), deque())
        """Punctuations that wait, each with the rows that come before it and after the last one."""
        self._behind = [0, 0]
        """Rows behind the last punctuation that waits."""

    def rows_came(self, side: int, rows: int) -> None:
        """So many rows of an input were received."""
        self._behind[side] += rows

    def add_mark(self, side: int, pattern: KeyPattern) -> None:
        """A punctuation was received, behind all rows so far."""
        self.marks[side].append((self._behind[side], pattern))
        self._behind[side] = 0

    def is_idle(self, side: int) -> bool:
        """Whether nothing of an input waits."""
        return not self._intakes[side].rows and not self.marks[side] and not self.pools[side]

    def next(self) -> PromisedArrival | None:
        """The next rows; punctuations before them are heeded. None if nothing waits."""
        while True:
            self._join.turn_begins()
            waiting = [
                intake.rows + sum(each.batch.num_rows for each in pool) + len(marks)
                for intake, pool, marks in zip(self._intakes, self.pools, self.marks, strict=True)
            ]
            if not any(waiting):
                return None
            side, most = self._choose(waiting)
            task = self._take(side, most)
            if task is not None:
                return task

    def _choose(self, waiting: list[int]) -> tuple[int, int]:
        for side, known in enumerate(self._join.known):
            if known.clustered and self._intakes[side].rows and self._in_met_cluster(side):
                return side, self._rows_of_cluster
        chosen, most = self._schedule.choose(waiting)
        other = 1 - chosen
        # The choice of another input ends the turn, and with it the wait of those in the pool.
        return (other, 0) if self.pools[other] and not self.pools[chosen] else (chosen, most)

    def _in_met_cluster(self, side: int) -> bool:
        """Whether the next rows belong to a cluster whose partner, the only one, has come."""
        if not self._join.known[1 - side].unique or not self._join.promised.met_last[side]:
            return False
        batch, numbers = self._intakes[side].next(self._ahead(side))
        self._intakes[side].put_back(batch, numbers)
        hashes, valid = self._join.codec.hash(side, self._join.plans[side].key_arrays(batch))
        if valid is not None:
            return False
        self._rows_of_cluster = self._join.known[side].in_open_cluster(hashes)
        return self._rows_of_cluster > 0

    def _ahead(self, side: int) -> int:
        """Rows before the next punctuation."""
        marks = self.marks[side]
        return marks[0][0] if marks else self._behind[side]

    def _take(self, side: int, most: int) -> PromisedArrival | None:
        """The next rows of an input; None after a punctuation."""
        pool, intake = self.pools[side], self._intakes[side]
        ahead = self._ahead(side)
        if pool and (not most or not ahead or not self._join.propagation.waits(1 - side)):
            received = pool.pop(0)
            assert received.numbers is not None
            return PromisedArrival(self._join, side, received.batch, received.numbers)
        if not ahead:
            self._join.heed(side, self._at_head(side))
            return None
        pooled = sum(each.batch.nbytes for each in pool)
        has_room = pooled < self._join.sizing.input_bytes
        by_value = self._by_value[side] and self._join.propagation.waits(1 - side) and has_room
        # Where purging can wait, so can the punctuations between rows that are taken together.
        rows_at_once = ahead if by_value or self._join.policy.immediate else intake.rows
        batch, numbers = intake.next(min(most, rows_at_once))
        self._schedule.took(side, batch.num_rows)
        passed = self._pass_marks(side, batch.num_rows)
        if by_value:
            batch, numbers = self._those_waited_for(side, batch, numbers)
        return PromisedArrival(self._join, side, batch, numbers, passed) if batch.num_rows else None

    def _at_head(self, side: int) -> list[KeyPattern]:
        """The punctuations that stand before the next row; they are taken."""
        marks = self.marks[side]
        taken = [marks.popleft()[1]]
        while marks and not marks[0][0] and len(taken) < _MOST_AT_ONCE:
            taken.append(marks.popleft()[1])
        return taken

    def _pass_marks(self, side: int, rows: int) -> list[tuple[int, KeyPattern]]:
        """The punctuations among the next so many rows, each with the rows before it; all of them are taken."""
        marks, passed, before = self.marks[side], [], 0
        while marks and before + marks[0][0] < rows:
            gap, pattern = marks.popleft()
            before += gap
            passed.append((before, pattern))
        if marks:
            marks[0] = (marks[0][0] - (rows - before), marks[0][1])
        else:
            self._behind[side] -= rows - before
        return passed

    def _those_waited_for(self, side: int, batch: pa.RecordBatch, numbers: Int64) -> tuple[pa.RecordBatch, Int64]:
        """The rows that a punctuation of the other input waits for; the others go to the pool."""
        keys = self._join.plans[side].key_arrays(batch)
        hashes, _ = self._join.codec.hash(side, keys)
        urgent = self._join.known[1 - side].range.contains(hashes, lambda: keys)
        if urgent.all():
            return batch, numbers
        later = np.flatnonzero(~urgent)
        self.pools[side].append(Received(batch.take(pa.array(later)), numbers[later]))
        now = np.flatnonzero(urgent)
        return batch.take(pa.array(now)), numbers[now]

    def to_state(self) -> dict[str, Any]:
        """For a snapshot: in it the rows of the pool stand in the queue again."""
        marks = []
        for side in (0, 1):
            pooled = sum(each.batch.num_rows for each in self.pools[side])
            gaps = [[gap, pattern.to_state()] for gap, pattern in self.marks[side]]
            behind = self._behind[side]
            if gaps:
                gaps[0][0] += pooled
            else:
                behind += pooled
            marks.append([gaps, behind])
        return {"marks": marks, "schedule": self._schedule.to_state()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        for side, (gaps, behind) in enumerate(state["marks"]):
            self.marks[side].extend((gap, KeyPattern.of_state(saved)) for gap, saved in gaps)
            self._behind[side] = behind
        self._schedule.load(state["schedule"])

    def check(self) -> None:
        """Assert the invariants."""
        for side, intake in enumerate(self._intakes):
            counted = self._behind[side] + sum(gap for gap, _ in self.marks[side])
            assert counted == intake.rows, "every row stands before or behind a punctuation"
