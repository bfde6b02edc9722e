"""The books of Confluence: which rows have yet to meet which runs.

`matching.settlement` has the argument why these few numbers are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from watersmeet.core.windows import NOWHERE, TimeSpan
from watersmeet.runs.sorted_run import SortedRun
from watersmeet.runs.spine import oldest_to_merge
from watersmeet.tables.memtable import Memtable

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
