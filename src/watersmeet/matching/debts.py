"""The books of Confluence: which rows have yet to meet which runs.

`matching.settlement` has the argument why these few numbers are enough.

**With windows**, a run is owed only by rows whose windows reach into its span of time. Windows take three things
from the argument, and add nothing:

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
from dataclasses import dataclass
from typing import Any

import numpy as np

from watersmeet.core.arrays import Bool, Int32, Int64, Numbers
from watersmeet.core.windows import NOWHERE, TimeSpan
from watersmeet.kernels import window_index
from watersmeet.kernels.addressed import WORDS
from watersmeet.records.addressed import AddressedRows, Sources
from watersmeet.records.times import TIME, Timing
from watersmeet.runs.sorted_run import SortedRun
from watersmeet.runs.spine import close_in_time, oldest_to_merge
from watersmeet.tables.memtable import Memtable
from watersmeet.tables.memtables import WindowMemtable

_NEVER = 1 << 62

MERGED_AT_ONCE = 24
"""Runs that are merged at a time, at most: what is read of each maps what lies around it."""


@dataclass(slots=True)
class RunEntry:
    """A run, and who owes whom."""

    run: SortedRun
    birth: int
    """The tick at which it was written."""
    since: int
    """Rows of the other memtable from this number on owe it."""
    level: int = 0
    """How often its rows were merged."""
    owes_before: int | None = None
    """If its own rows have yet to settle: they owe the runs that were written before this tick."""
    span: TimeSpan = NOWHERE
    """Of a run of a window join: from when until when its rows are."""

    def to_state(self) -> list[Any]:
        """For a snapshot."""
        return [self.run.name, self.birth, self.since, self.level, self.owes_before, self.span.to_state()]

    @classmethod
    def from_state(cls, run: SortedRun, state: list[Any]) -> RunEntry:
        """From what a snapshot says beside the run's name."""
        birth, since, level, owes_before, span = state
        return cls(run, birth, since, level, owes_before, TimeSpan(*span))


class _Known:
    """What is asked of one side's runs at every step."""

    def __init__(self, entries: Sequence[RunEntry]) -> None:
        self.rows = sum(entry.run.rows for entry in entries)
        self.least_since = min((entry.since for entry in entries), default=_NEVER)
        self.owing = [entry for entry in entries if entry.owes_before is not None]
        self.rows_owing = sum(entry.run.rows for entry in self.owing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class Debts:
    """The runs of both sides, and how many rows of each memtable have settled."""

    def __init__(self, tables: Sequence[Memtable]) -> None:
        self._tables = tables
        self.runs: tuple[list[RunEntry], list[RunEntry]] = ([], [])
        """The runs of each side, from the oldest on."""
        self.settled = [0, 0]
        """Rows of each memtable with smaller numbers owe no run at all."""
        self.on_replace: Callable[[int, Sequence[SortedRun], Sequence[SortedRun]], None] | None = None
        """Who wants to know of runs of a side that have become others."""
        self.refresh()

    def refresh(self) -> None:
        """Runs, or what is known of them, have changed: add up anew what is asked at every step."""
        self._known: list[_Known] | None = None

    def _of(self, side: int) -> _Known:
        if self._known is None:
            self._known = [_Known(entries) for entries in self.runs]
        return self._known[side]

    # --- who owes ---

    def owes(self, side: int) -> bool:
        """Whether rows of a side have yet to meet runs of the other."""
        return self.rows_owe(side) or bool(self.owing_runs(side))

    def rows_owe(self, side: int) -> bool:
        """Whether rows in memory do."""
        rows = self._tables[side].rows
        return self.settled[side] < rows and self._of(1 - side).least_since < rows

    def rows_owe_alike(self, side: int) -> bool:
        """Whether each row in memory owes all runs that any of them owes."""
        rows = self._tables[side].rows
        if self.settled[side] == rows:
            return True
        return self.settled[side] == 0 and all(entry.since in (0, rows) for entry in self.runs[1 - side])

    def owing_runs(self, side: int) -> list[RunEntry]:
        """Runs of a side whose own rows have yet to settle."""
        return self._of(side).owing

    def owing(self, side: int) -> int:
        """How many rows of a side owe."""
        rows = self._tables[side].rows - self.settled[side] if self.rows_owe(side) else 0
        return rows + self._of(side).rows_owing

    def hashes_owed(self, side: int) -> int:
        """How many hashes a row that owes has to be merged with."""
        return self._of(1 - side).rows

    def owed(self, side: int) -> list[RunEntry]:
        """The runs that rows of a side are to meet when they settle."""
        return list(self.runs[1 - side])

    # --- what changes ---

    def have_settled(self, side: int, upto: int) -> None:
        """Rows in memory before this number owe nothing any more."""
        self.settled[side] = upto
        self.refresh()

    def have_met(self, side: int, entries: Sequence[RunEntry], upto: int) -> None:
        """Rows in memory before this number do not owe these runs any more, but maybe others."""
        for entry in entries:
            entry.since = max(entry.since, upto)
        self.refresh()

    def add(self, side: int, entry: RunEntry) -> None:
        """A run was written."""
        if not self.runs[side]:
            self.have_settled(1 - side, self._tables[1 - side].rows)  # until now there was nothing to owe
        self.runs[side].append(entry)
        self.refresh()

    def rows_left(self, side: int, stayed: int = 0) -> None:
        """A memtable is empty now but for rows that have settled; whatever comes owes all that is on disk."""
        self.settled[side] = stayed
        for entry in self.runs[1 - side]:
            entry.since = 0
        self.refresh()

    def runs_settled(self, entries: Sequence[RunEntry]) -> None:
        """The rows of some runs owe nothing any more."""
        for entry in entries:
            entry.owes_before = None
        self.refresh()

    # --- runs that become one ---

    def to_merge(
        self, side: int, fan_in: int, after: int = 0, worn: Callable[[SortedRun], bool] | None = None
    ) -> list[SortedRun]:
        """Runs that should become one: only if the same rows owe them, and if they owe nothing themselves.

        Of those that were written after a tick; others are somebody else's to merge. If they are not too many, those
        that are worn: of whose rows most are of no more use.
        """
        if self.owing_runs(1 - side):
            return []  # these owe some and not others
        settled = self.settled[1 - side]
        ready = [entry for entry in self.runs[side] if entry.owes_before is None and entry.birth > after]
        same = [entry for entry in ready if max(entry.since, settled) == max(ready[0].since, settled)]
        chosen = self.choose(side, same, fan_in)
        if not chosen and worn is not None:
            chosen = [entry for entry in same if worn(entry.run)][:MERGED_AT_ONCE]
        return [entry.run for entry in chosen]

    def choose(self, side: int, entries: Sequence[RunEntry], fan_in: int) -> Sequence[RunEntry]:
        """Of runs that could become one, those that should."""
        return entries[oldest_to_merge([entry.level for entry in entries], fan_in, MERGED_AT_ONCE)]

    def waiting_to_merge(self, side: int, fan_in: int, after: int) -> bool:
        """Whether runs of after a tick would become one, were they not owed by different rows, and are too many."""
        ready = [entry for entry in self.runs[side] if entry.owes_before is None and entry.birth > after]
        return bool(self.choose(side, ready, fan_in + 1))

    def rows_since(self, side: int, after: int) -> int:
        """How many rows are in runs that were written after a tick."""
        return sum(entry.run.rows for entry in self.runs[side] if entry.birth > after)

    def forget(self, side: int) -> list[str]:
        """Nobody will meet the runs of a side any more; returns their names."""
        names = [entry.run.name for entry in self.runs[side]]
        self.runs[side].clear()
        self.refresh()
        return names

    def keeps_runs_apart(self, side: int, most: int) -> bool:
        """Whether rows of a side owe some of the other's runs and not others, so that too many cannot be merged."""
        return len({max(entry.since, self.settled[side]) for entry in self.runs[1 - side]}) >= most

    def replace(self, side: int, runs: Sequence[SortedRun], *merged: SortedRun, higher: bool = True) -> None:
        """A merged run, in one piece or in several, takes the place of the runs that it was made of.

        It is of a `higher` level than the oldest of them, unless there were too few to make up one.
        """
        gone = {run.name for run in runs}
        olds = [entry for entry in self.runs[side] if entry.run.name in gone]
        if self.on_replace is not None:  # it may fail, and then nothing has changed
            self.on_replace(side, [entry.run for entry in olds], merged)
        birth, since = max(entry.birth for entry in olds), max(entry.since for entry in olds)
        place = self.runs[side].index(olds[0])
        self.runs[side][:] = [entry for entry in self.runs[side] if entry.run.name not in gone]
        level, span = olds[0].level + higher, TimeSpan.all_of(entry.span for entry in olds)
        self.runs[side][place:place] = [RunEntry(run, birth, since, level, span=span) for run in merged]
        self.refresh()

    # --- as a whole ---

    @property
    def count(self) -> int:
        """How many runs there are."""
        return len(self.runs[0]) + len(self.runs[1])

    @property
    def names(self) -> list[str]:
        """Of all runs."""
        return [entry.run.name for entries in self.runs for entry in entries]

    def check(self, clock: int) -> None:
        """Assert the invariants."""
        for side in (0, 1):
            assert 0 <= self.settled[side] <= self._tables[side].rows
            assert all(0 <= entry.since <= self._tables[1 - side].rows for entry in self.runs[side])
            assert all(entry.birth <= clock for entry in self.runs[side])
            assert self._of(side) == _Known(self.runs[side])

    def close(self) -> None:
        """Let go of all runs."""
        self.runs = ([], [])
        self.refresh()

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        runs = [[entry.to_state() for entry in entries] for entries in self.runs]
        return {"runs": runs, "settled": list(self.settled)}

    def load(self, state: dict[str, Any], open_run: Callable[[int, str], SortedRun]) -> None:
        """Take over what a snapshot says, with a way to open runs of a side; no row is read."""
        for side, runs in enumerate(state["runs"]):
            self.runs[side][:] = [RunEntry.from_state(open_run(side, name), rest) for name, *rest in runs]
        self.settled = list(state["settled"])
        self.refresh()


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
        """Of runs that could become one, those that should: they do not span too much together."""
        everything = TimeSpan.all_of(entry.span for entry in self.runs[side])
        window = max(self._timing.length(side), everything.latest - everything.earliest)
        return close_in_time(entries, fan_in, window, lambda entry: entry.run.rows)


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
        window_index.within(self._looking, self._numbers, probes, found.sources, rows, TIME, self._window, close)
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
