"""The books of Confluence for windows: a run is owed only by rows whose windows reach into its span of time; and which
pairs of rows are close enough.

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

from watersmeet.core.arrays import Bool, Int32, Int64, Numbers
from watersmeet.core.windows import TimeSpan
from watersmeet.kernels import window_pairs
from watersmeet.kernels.addressed import WORDS
from watersmeet.matching.debts import Debts, RunEntry
from watersmeet.records.addressed import AddressedRows, Sources
from watersmeet.records.times import TIME, Timing
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


_ONE_BLOCK = 40
"""Of more rows than there ever are."""


class WithinWindow:
    """Some rows of a side, each of which came after what it is to meet, and which of the rows found are close enough.

    Whether a row is met is told by its time alone, once it is known which rows look for it: each of those has the first
    time that it meets (its floor, which is later for rows that came late), and its own time tells the last. A row that
    owes came after all rows of the runs that it owes, so that rows which arrive and rows which settle ask the same.

    >>> import pyarrow as pa
    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.core.windows import WindowJoinSpec, parse_windows
    >>> from watersmeet.memory import Budget
    >>> from watersmeet.tables.hash_table import Layout
    >>> from watersmeet.tables.memtable import Memtable
    >>> schema = pa.schema({"id": pa.int64(), "t": pa.int64()})
    >>> spec = WindowJoinSpec(schema, schema, parse_on("id"), window=parse_windows((3, 10), "t"))
    >>> found, numbers = Memtable([pa.int64()], Budget(1 << 20), Layout(0, 4, 256), "right"), np.arange(4)
    >>> _ = found.append(numbers, np.zeros(4, np.int32), [pa.array([9, 10, 23, 24])], numbers)
    >>> looking = WithinWindow.arrived(Timing(spec), 0, np.array([20]), np.array([10]))
    >>> looking.holds(np.zeros(4, np.int32), found, numbers)
    array([False,  True,  True, False])
    """

    def __init__(self, timing: Timing, side: int, looking: Sources, numbers: Numbers) -> None:
        """`looking` says where rows lie that have a time and a floor as their first columns."""
        self._looking = looking
        self._numbers = numbers
        self._window = timing.words(side)

    @classmethod
    def arrived(cls, timing: Timing, side: int, times: Int64, floors: Int64) -> WithinWindow:
        """Of rows with these times and floors."""
        # Both arrays are one block of rows in memory.
        words = np.zeros(2 * WORDS, np.int64)
        words[0], words[WORDS] = times.ctypes.data, floors.ctypes.data
        sources = np.array([[0, words.ctypes.data, _ONE_BLOCK, 0, 0]], np.int64)
        within = cls(timing, side, sources, np.arange(len(times)))
        within._held = (words, times, floors)
        return within

    _held: tuple[Int64, ...] = ()

    def holds(self, probes: Int32, found: AddressedRows, rows: Numbers) -> Bool:
        """For which pairs the times are close enough."""
        found.check_rows(rows)
        close = np.empty(len(rows), np.bool_)
        window_pairs.within(self._looking, self._numbers, probes, found.sources, rows, TIME, self._window, close)
        return close


class SettlingWithinWindow(WithinWindow):
    """The same, of rows that lie in a memtable or in runs."""

    def __init__(self, timing: Timing, side: int, rows: AddressedRows, numbers: Int64) -> None:
        super().__init__(timing, side, rows.sources, numbers)
        self._rows = rows

    def holds(self, probes: Int32, found: AddressedRows, rows: Numbers) -> Bool:
        """For which pairs the times are close enough."""
        self._rows.check_rows(self._numbers[probes])
        return super().holds(probes, found, rows)
