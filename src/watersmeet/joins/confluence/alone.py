"""Rows of Confluence that have found nobody come out, once nobody can come any more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from watersmeet.matching.unmatched import Unmatched, UnmatchedTask, among
from watersmeet.runs.sorted_run import let_go

if TYPE_CHECKING:
    from watersmeet.joins.confluence.operator import Confluence


class Alone:
    """Part of Confluence: which rows come out without a partner, and when.

    All rows of a side are settled at once: when the other input has ended, and no row owes anything to anybody. Those
    without a mark come out then, and nobody needs the side any more. With windows rows are settled one by one, which
    `joins.window.settled_rows` says in place of this.
    """

    def __init__(self, join: Confluence) -> None:
        self._join = join

    def has_come(self, side: int) -> bool:
        """Whether rows of a side are there whose partners have all been found, and no more will come."""
        join = self._join
        if not join.is_last(side) or any(join.debts.owes(each) for each in (0, 1)):
            return False
        return bool(join.tables[side].rows or join.debts.runs[side]) and join.settlements.begun == [None, None]

    def task(self, side: int) -> UnmatchedTask | None:
        """Hand out the rows of a side that have no partner, if all have settled."""
        if not self.has_come(side):
            return None
        self._join.events["rows without a partner settled"] += 1
        return UnmatchedTask(self._join, side, self._parts(side), self._is_over)

    def resumed(self, state: dict[str, Any]) -> UnmatchedTask:
        """The task that was at hand when a snapshot was taken."""
        task = UnmatchedTask(self._join, state["side"], self._parts(state["side"]), self._is_over)
        task.resume(state)
        return task

    def _parts(self, side: int) -> list[Unmatched]:
        assert self._join.matched is not None
        table, bits = self._join.tables[side], self._join.matched.bits
        return [
            Unmatched(side, table, table.rows, among(table.marks)),
            *(
                Unmatched(side, run, run.rows, partial(bits.unmarked_from, run.name), partial(let_go, [run]))
                for run in self._join.runs[side]
            ),
        ]

    def _is_over(self, side: int) -> None:
        """All rows of a side have found their partners or come out without: nobody needs them any more."""
        join = self._join
        join.clock += 1
        join.flushing.forget_rows(side)
        join.catalogue.forget(side)
        join.full = False
        join.catalogue.count()

    def rows_dropped(self, side: int, count: int) -> None:
        """The first rows of a memtable are gone, or all; they take their marks with them."""

    def runs_dropped(self, side: int, names: Sequence[str]) -> None:
        """Runs are gone; what became of them has their bits."""
