"""What inputs promise of their keys, where rows without a partner matter: these come out before the other input ends.

A row is settled, too, when the other input has promised to send no more rows of its key, by a punctuation or because it
comes sorted or clustered, and when the row has met all that came before.

**When.** Whoever looks finds nobody owing anything (`matching.debts`): all rows so far have met. What an input says of
its keys counts from the rows behind it on; a row that breaks its word is an error, so that no row ever comes with NULLs
that a later one contradicts. A look is due when enough rows came to pay for it, in a silence, at the end of a batch,
and before rows leave memory.

**Each once.** Rows that come out are marked as those with a partner are, when all of one pass have come out; until then
nothing else happens, and a snapshot within a pass goes on with it.

**What is forgotten.** A row that has met all and will meet nobody any more is not written to disk, and merges leave it
out (`upkeep`).
(`tests/conformance/test_foretold.py` breaks each of these, and is noticed.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Numbers, Uint64
from watersmeet.engine.tracked_arrival import TrackedArrival
from watersmeet.joins.progressive.knowledge import Knowledge
from watersmeet.joins.progressive.promised_arrival import KeyedArrival
from watersmeet.matching.unmatched import Scan, Unmatched, UnmatchedTask, all_of, among, only
from watersmeet.memory import Budget
from watersmeet.records.patterns import KeyPattern, plain_array, read_pattern
from watersmeet.records.punctuated import ranges_can_be_told
from watersmeet.runs.sorted_run import SortedRun, let_go
from watersmeet.tables.memtable import Memtable

if TYPE_CHECKING:
    from watersmeet.joins.confluence.operator import Confluence

RANGE_SHARE = 16
"""What is known of the keys of each input may take one part in so many of the memory."""
LEAST_ROWS = 256
"""Fewer are not worth a look, unless there is nothing else to do."""
_ROWS_A_ROW = 2, 8
"""Rows in memory, and on disk, that are looked at for each that came."""
_IN_SILENCE = 1024
"""The same on disk while nothing comes."""
_AT_ONCE = 1 << 14
"""Rows whose keys are looked at at a time."""
_REMEDY = "mend the input, or take back the promise"


class ForetoldArrival(KeyedArrival):
    """Rows that are held to what their input has promised, and tell what will not come."""

    def take_slice(self, count: int) -> None:
        """Move the next rows into memory, and begin to look them up."""
        self._join.foretold.rows_come(self, count)  # type: ignore[attr-defined]
        super().take_slice(count)


class ForetoldTrackedArrival(ForetoldArrival, TrackedArrival):
    """The same of an input whose rows are marked when they find a partner."""


class ForetoldTask(UnmatchedTask):
    """All rows of a side that are settled by what the other input has promised, and have no partner."""

    def __init__(self, join: Any, side: int, on_disk: bool) -> None:
        foretold = join.foretold
        super().__init__(join, side, foretold.unmatched(side, on_disk), partial(foretold.passed, on_disk=on_disk))
        self._on_disk = on_disk

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        return {**super().to_state(), "kind": "foretold", "on disk": self._on_disk}


class Foretold:
    """Part of an operator: what its inputs promise, and which rows are settled by it."""

    def __init__(self, join: Confluence, budget: Budget) -> None:
        spec = join.spec
        self._join = join
        most = budget.total // RANGE_SHARE
        claims = [budget.reservation(f"promises of {name}") for name in spec.names]
        self.known = tuple(Knowledge(spec, side, join.codec, claims[side], most) for side in (0, 1))
        for known in self.known:
            known.unique = False  # it settles nothing, and nobody relies on it
        self._tells_ranges = join.codec.exact or ranges_can_be_told(
            spec.left.field(spec.keys(0)[0]).type, spec.right.field(spec.keys(1)[0]).type
        )
        self._marks: tuple[deque[tuple[int, KeyPattern]], ...] = (deque(), deque())
        """Punctuations that wait for the rows before them, with how many these are in all."""
        self._received = [0, 0]
        """Rows of each input, so far."""
        self._looked_at = [0, 0]
        """The tick of the last look at the rows of each side."""
        self._came = [False, False]
        """Whether rows of a side have come since."""
        self._not_looked_at = [False, False]
        """Whether rows of a side have gone to disk that nobody has looked at since the last promise."""
        self.useless: tuple[dict[str, int], dict[str, int]] = ({}, {})
        """Of runs of each side, how many rows would meet nobody any more when they were last looked at."""

    # --- what inputs say ---

    def rows_received(self, side: int, rows: int) -> None:
        """Rows were received."""
        self._received[side] += rows

    def punctuated(self, side: int, pattern: Mapping[str, object]) -> None:
        """An input promises something behind all rows that were received."""
        found = read_pattern(self._join.spec, side, pattern)
        if found is not None and (found.values is not None or self._tells_ranges):
            self._marks[side].append((self._received[side], found))

    @property
    def waits(self) -> bool:
        """Whether promises wait to be heeded."""
        return any(self._marks)

    def before_mark(self, side: int, waiting: int) -> int | None:
        """How many rows of an input come before the next promise, if so many wait; those that are due are heeded."""
        marks, taken = self._marks[side], self._received[side] - waiting
        while marks and marks[0][0] <= taken:
            self.known[side].add(marks.popleft()[1])
        return marks[0][0] - taken if marks else None

    def rows_come(self, arrival: ForetoldArrival, count: int) -> None:
        """The next rows are about to be looked up: none of them may have been promised not to come."""
        side, first = arrival.input, arrival.next
        known, hashes = self.known[side], arrival.piece(count)[0]
        self._came[side] = True

        def keys() -> list[pa.Array]:
            return arrival.keys(first, count)

        if not known.range.entries and not known.in_order:
            return
        late = known.broken(hashes, keys, np.zeros(count, np.bool_))
        if late.any():
            raise arrival.broken_word(first + int(np.argmax(late)), _REMEDY)
        known.learn(hashes, keys)

    def arrival_kind(self, side: int) -> type[ForetoldArrival]:
        """How rows arrive on a side."""
        return ForetoldTrackedArrival if self._join.spec.kind.tracked[side] else ForetoldArrival

    def input_closed(self, side: int) -> None:
        """An input has ended: nothing of it needs to be remembered."""
        self.known[side].clear()

    # --- who is settled by it ---

    def _wants(self, side: int) -> bool:
        """Whether rows of a side may be settled that nobody has looked at."""
        join, known = self._join, self.known[1 - side]
        if not join.spec.kind.preserved[side] or not known.range.entries:
            return False
        there = bool(join.tables[side].rows and (known.news or self._came[side]))
        return there or self._wants_disk(side)

    def _wants_disk(self, side: int) -> bool:
        return bool(self._join.debts.runs[side]) and (self.known[1 - side].news > 0 or self._not_looked_at[side])

    def is_due(self, side: int) -> bool:
        """Whether to look at the rows of a side before more come."""
        in_memory, on_disk = _ROWS_A_ROW
        least = max(LEAST_ROWS, self._join.tables[side].rows // in_memory)
        return self._wants(side) and self._pays(side, on_disk, least)

    def can_look(self, side: int) -> bool:
        """Whether to look at the rows of a side while there is nothing else to do."""
        return self._wants(side) and self._pays(side, _IN_SILENCE, 0)

    def _pays(self, side: int, disk_share: int, least: int) -> bool:
        arrived = self._join.clock - self._looked_at[side]
        on_disk = self._join.debts.hashes_owed(1 - side) if self._wants_disk(side) else 0
        return arrived >= max(least, on_disk // disk_share)

    def task(self, side: int, *, at_any_cost: bool = False) -> ForetoldTask | None:
        """Hand out rows of a side that are settled; None if there may be none, or if something is owed."""
        join = self._join
        if not (self._wants(side) if at_any_cost else self.can_look(side)):
            return None
        if any(join.debts.owes(each) for each in (0, 1)) or join.settlements.begun != [None, None]:
            return None
        join.events["rows settled by a promise"] += 1
        return ForetoldTask(join, side, self._wants_disk(side))

    def unmatched(self, side: int, on_disk: bool) -> list[Unmatched]:
        """The rows of a side that are settled and have no partner, wherever they lie."""
        join = self._join
        assert join.matched is not None
        table, bits = join.tables[side], join.matched.bits
        parts = [Unmatched(side, table, table.rows, self._over(side, table, among(table.marks)))]
        for run in join.runs[side] if on_disk else ():
            scan = self._over(side, run, partial(bits.unmarked_from, run.name))
            parts.append(Unmatched(side, run, run.rows, scan, partial(let_go, [run])))
        return parts

    def _over(self, side: int, rows: Any, scan: Scan) -> Scan:
        """Of what a scan finds, the rows whose keys are over."""
        return only(scan, lambda found: self.is_over(side, rows, found))

    def is_over(self, side: int, rows: Any, numbers: Numbers, hashes: Uint64 | None = None) -> Bool:
        """Which rows of a side have keys of which no more partners will come."""
        if hashes is None:
            hashes = _hashes(rows, numbers)
        return self.known[1 - side].range.contains(hashes.view(np.int64), lambda: self._keys(side, rows, numbers))

    def _keys(self, side: int, rows: Any, numbers: Numbers) -> list[pa.Array]:
        """The key columns of rows, in plain types."""
        plan = self._join.plans[side]
        columns = rows.gather_all(tuple(plan.keys), numbers)
        return [plain_array(plan.original(column, array)) for column, array in zip(plan.keys, columns, strict=True)]

    def passed(self, side: int, on_disk: bool) -> None:
        """All rows of a side that were settled have come out."""
        join = self._join
        assert join.matched is not None
        table, bits = join.tables[side], join.matched.bits
        for found in all_of(self._over(side, table, among(table.marks)), table.rows):
            table.marks[found] = 1
        for run in join.runs[side] if on_disk else ():
            for found in all_of(self._over(side, run, partial(bits.unmarked_from, run.name)), run.rows):
                bits.mark([run.name], found)
            self._count_useless(side, run)
            let_go([run])
        if on_disk or not join.debts.runs[side]:
            self.known[1 - side].acted_upon()
            self._not_looked_at[side] = False
        self._looked_at[side], self._came[side] = join.clock, False
        join.catalogue.changed = True  # some runs may be worn

    def _count_useless(self, side: int, run: Any) -> None:
        if self._join.codec.exact:
            starts = range(0, run.rows, _AT_ONCE)
            each = (np.arange(start, min(run.rows, start + _AT_ONCE)) for start in starts)
            self.useless[side][run.name] = sum(int(self.is_over(side, run, some).sum()) for some in each)

    # --- rows that are of no more use ---

    def helps(self, side: int) -> bool:
        """Whether rows of a side may be of no more use for what the other input has promised."""
        return self.known[1 - side].range.entries > 0

    def useless_in_memory(self, side: int) -> tuple[int, Callable[[Uint64, Numbers], Bool]]:
        """How many rows of a memtable that owes nothing need not be written, and which of some these are."""
        table, kind = self._join.tables[side], self._join.spec.kind
        tracked, preserved, forgets = kind.tracked[side], kind.preserved[side], kind.forgets and side == 0

        def useless(hashes: Uint64, numbers: Numbers) -> Bool:
            over = self.is_over(side, table, numbers, hashes)
            marked = table.marks[numbers] != 0 if tracked else np.ones(len(numbers), np.bool_)
            found: Bool = over & (marked | (not preserved))
            return found | marked if forgets else found

        count = 0
        for start in range(0, table.rows, _AT_ONCE):
            some = np.arange(start, min(table.rows, start + _AT_ONCE), dtype=np.int32)
            count += int(useless(table.hashes(some).view(np.uint64), some).sum())
        return count, useless

    def rows_left(self, side: int) -> None:
        """Rows of a side leave memory for the disk."""
        self._not_looked_at[side] |= self._came[side] or self.known[1 - side].news > 0
        self._came[side] = False

    def runs_gone(self, side: int, names: list[str]) -> None:
        """Runs of a side are no more."""
        for name in names:
            self.useless[side].pop(name, None)

    # --- snapshots ---

    def resumed(self, state: dict[str, Any]) -> ForetoldTask:
        """The pass that was at hand."""
        task = ForetoldTask(self._join, state["side"], state["on disk"])
        task.resume(state)
        return task

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            "known": [known.to_state() for known in self.known],
            "marks": [[[at, pattern.to_state()] for at, pattern in marks] for marks in self._marks],
            "received": list(self._received),
            "looked at": [list(self._looked_at), list(self._came), list(self._not_looked_at)],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        for known, saved in zip(self.known, state["known"], strict=True):
            known.load(saved)
        for marks, told in zip(self._marks, state["marks"], strict=True):
            marks.extend((at, KeyPattern.of_state(saved)) for at, saved in told)
        self._received = list(state["received"])
        self._looked_at, self._came, self._not_looked_at = map(list, state["looked at"])


def _hashes(rows: Memtable | SortedRun, numbers: Numbers) -> Uint64:
    """Of rows in memory or of a run, in their order."""
    if not isinstance(rows, SortedRun):
        return rows.hashes(numbers.astype(np.int32)).view(np.uint64)
    if len(numbers):
        rows.check_hashes(int(numbers[0]), int(numbers[-1]) + 1)
    return rows.hashes()[numbers]
