"""The books of Confluence for windows: a run is owed only by rows whose windows reach into its span of time.

**Who owes what** is as in `matching.settlement`: a row owes the runs of the other input that were written before it
came, until it has settled. Windows take three things from that, and add nothing:

- *Runs that are skipped.* Rows that owe look no further back than the least of their floors, and no further ahead than
  the newest of them meets. A run whose span of time lies outside of that has no row for any of them: it need not be
  met, and if all runs are such, nothing is owed.
- *Runs that expire.* A run goes as a whole when nobody can ask for its rows any more: no row that is still to come,
  for they are older than all of those will meet (`Timing.expired_before`); and no row that owes, for the run is one
  that they skip. Rows of a run that has yet to settle have pairs to find, so it stays.
- *Rows that expire in memory* go when they owe nothing, or have settled. Whoever came has met them already.

So that runs can go as a whole, only such become one as together span a quarter of what is remembered, or less: that
leaves four times `fan_in` of them, or a few more where rows come out of order; then the smallest become one, too.
(`tests/conformance/test_window_confluence.py` breaks each of these rules, and is noticed.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from watersmeet.core.windows import TimeSpan
from watersmeet.matching.debts import Debts, RunEntry
from watersmeet.records.times import Timing
from watersmeet.tables.window_memtable import WindowMemtable

_SHARE = 4
"""Runs become one that span at most this part of the time that is remembered."""


class WindowDebts(Debts):
    """The runs of both sides with their spans of time, and how many rows of each memtable have settled."""

    _tables: Sequence[WindowMemtable]

    def __init__(self, tables: Sequence[WindowMemtable], timing: Timing) -> None:
        super().__init__(tables)
        self._timing = timing

    def refresh(self) -> None:
        """Runs, or what is known of them, have changed."""
        super().refresh()
        self._owed: list[tuple[int, list[RunEntry]]] = [(-1, []), (-1, [])]
        """What rows of each side owed when there were so many of them."""

    # --- who owes ---

    def span_of_owing(self, side: int) -> TimeSpan:
        """Of all rows of a side that may owe."""
        rows, runs = self._tables[side].span_from(self.settled[side]), self.owing_runs(side)
        return TimeSpan.all_of([rows, *(entry.span for entry in runs)]) if runs else rows

    def owed(self, side: int) -> list[RunEntry]:
        """The runs that rows of a side are to meet when they settle: those that are in the reach of some."""
        runs = self.runs[1 - side]
        if not runs:
            return []
        rows = self._tables[side].rows
        if self._owed[side][0] != rows:
            self._owed[side] = rows, self._within_reach(side, self.span_of_owing(side))
        return self._owed[side][1]

    def _within_reach(self, side: int, span: TimeSpan) -> list[RunEntry]:
        """The runs that rows of a side with such a span look into."""
        if span.is_empty:
            return []
        last = int(self._timing.meets(side, np.array([span.latest]))[0])
        runs = self.runs[1 - side]
        return [entry for entry in runs if entry.span.latest >= span.floor and entry.span.earliest <= last]

    def rows_owe(self, side: int) -> bool:
        """Whether rows in memory do."""
        rows = self._tables[side].rows
        return self.settled[side] < rows and any(entry.since < rows for entry in self.owed(side))

    def rows_owe_alike(self, side: int) -> bool:
        """Whether each row in memory owes all runs that any of them owes."""
        return not self.rows_owe(side) or super().rows_owe_alike(side)

    def hashes_owed(self, side: int) -> int:
        """How many hashes a row that owes has to be merged with; where none does, the rows that have settled had to."""
        owed = self.owed(side) or self._within_reach(side, self._tables[side].span_from(0))
        return sum(entry.run.rows for entry in owed)

    # --- what expires ---

    def rows_dropped(self, side: int, count: int) -> None:
        """The first rows of a memtable are gone, and the others have smaller numbers."""
        self.settled[side] = max(0, self.settled[side] - count)
        for entry in self.runs[1 - side]:
            entry.since = max(0, entry.since - count)
        self.refresh()

    def drop_expired(self, side: int, before: int, may_go: Callable[[RunEntry], bool]) -> list[RunEntry]:
        """Forget the runs of a side that nobody can ask for, if all rows before this time have expired."""
        runs = self.runs[side]
        if not any(entry.span.latest < before for entry in runs):
            return []
        before = min(before, self.span_of_owing(1 - side).floor)
        gone = [each for each in runs if each.span.latest < before and each.owes_before is None and may_go(each)]
        if gone:
            runs[:] = [entry for entry in runs if entry not in gone]
            self.refresh()
        return gone

    # --- runs that become one ---

    def choose(self, side: int, entries: Sequence[RunEntry], fan_in: int) -> Sequence[RunEntry]:
        """The oldest `fan_in` runs of one level that follow each other and do not span too much together.

        Where runs are too many nevertheless, those become one that have the fewest rows.
        """
        if len(entries) < fan_in:
            return ()
        everything = TimeSpan.all_of(entry.span for entry in self.runs[side])
        limit = max(self._timing.length(side), everything.latest - everything.earliest) // _SHARE
        for start in range(len(entries) - fan_in + 1):
            some = entries[start : start + fan_in]
            if some[-1].span.latest - some[0].span.earliest <= limit and len({entry.level for entry in some}) == 1:
                span = TimeSpan.all_of(entry.span for entry in some)
                if span.latest - span.earliest <= limit:
                    return some
        if len(entries) <= _SHARE * fan_in:
            return ()
        parts = [entries[start : start + fan_in] for start in range(len(entries) - fan_in + 1)]
        return min(parts, key=lambda part: sum(entry.run.rows for entry in part))
