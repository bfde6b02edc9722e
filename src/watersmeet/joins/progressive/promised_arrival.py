"""Rows that arrive at a join with promises: whose come next (turns, quotas, and rows that a punctuation waits for), and
which of them are kept, because they can still find partners.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.errors import PromiseError
from watersmeet.engine.arrival import Arrival
from watersmeet.joins.progressive.knowledge import key_text
from watersmeet.memory import Budget
from watersmeet.policies.promises import StreamSchedule
from watersmeet.records.intake import Intake, Received
from watersmeet.records.patterns import KeyPattern, plain_array
from watersmeet.records.plan import BatchRows
from watersmeet.records.punctuated import behind_values, punctuated_range

if TYPE_CHECKING:
    from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin


class KeyedArrival(Arrival):
    """A batch on its way into memory, whose keys can be had in plain types."""

    def keys(self, first: int, count: int) -> list[pa.Array]:
        """The key columns of some rows, in plain types."""
        positions = self.positions
        columns = [plain_array(column) for column in self._join.plans[self.input].key_arrays(self.batch)]
        if positions is not None:
            return [column.take(pa.array(positions[first : first + count])) for column in columns]
        return [column.slice(first, count) for column in columns]

    def row_number(self, row: int) -> int:
        """The number of a row in its input."""
        return int(self.numbers[row if self.positions is None else self.positions[row]])

    def broken_word(self, row: int, remedy: str) -> PromiseError:
        """An error that names a row which was promised not to come."""
        spec = self._join.spec
        name = spec.names[self.input]
        told = key_text(spec, self.input, self.keys(row, 1), 0)
        number = 1 + self.row_number(row)  # people count from one, as the sources do in their errors
        return PromiseError(
            f"row {number:,} of {name} has {told}, which {name} had promised not to send any more; {remedy}"
        )


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
        self._join.meter.comparisons += len(hashes)
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
