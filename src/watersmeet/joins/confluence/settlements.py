"""Settlements of Confluence: rows that owe meet what is on disk, one settlement a side at a time.

`matching.settlement` has the argument why each pair is found once, and `matching.debts` who owes what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from watersmeet.core.report import Report
from watersmeet.engine.owed_since import OwedSince
from watersmeet.matching.owing import OwingRows, OwingRuns
from watersmeet.matching.reading import Pages
from watersmeet.matching.settlement import Settlement

if TYPE_CHECKING:
    from watersmeet.joins.confluence.operator import Confluence


class SettlementTask:
    """A settlement at work. What must be settled before anything else does not give way to arrivals."""

    def __init__(self, join: Confluence, settlement: Settlement, urgent: bool) -> None:
        self._join = join
        self.settlement = settlement
        self.urgent = urgent

    @property
    def lookup(self) -> Any:
        """Where pairs in the buffer come from."""
        return self.settlement

    @property
    def done(self) -> bool:
        """Whether all pairs were found."""
        return self.settlement.done

    def work(self, fuel: int) -> int:
        """Fill the empty buffer with pairs; returns the fuel that took."""
        return self._join.settlements.go_on(self.settlement, fuel)

    def finish(self) -> None:
        """All pairs were handed out: nothing is owed any more."""
        self._join.settled_now(self.settlement)

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        return {"kind": "settlement", "urgent": self.urgent, **self.settlement.to_state(self._join.pairs)}


class Settlements:
    """Part of Confluence: settlements that have begun, and how late their pairs are."""

    def __init__(self, join: Confluence, pages: Pages | None, most_mapped: int | None, owed_since: OwedSince) -> None:
        self._join = join
        self._owed_since = owed_since
        self._pages = pages
        self._most_mapped = most_mapped
        self.begun: list[Settlement | None] = [None, None]
        """Of each side; one that gave way to arrivals goes on later."""
        self.began_at = [0, 0]
        """The tick at which each side's last settlement began."""

    # --- one settlement ---

    def task(self, side: int, why: str, urgent: bool = False) -> SettlementTask:
        """Go on with the settlement of a side, or begin one: of runs that owe, or else of rows in memory."""
        settling = self.begun[side]
        if settling is None:
            join = self._join
            owing = join.debts.owing_runs(side)
            table, room = join.tables[side], len(join.workspace.slice.rows)
            debtor = OwingRuns(owing) if owing else OwingRows(table, join.debts.settled[side], table.rows, room=room)
            settling = self.begun[side] = self._settlement(side, debtor)
            self.began_at[side] = join.clock
            join.events[f"settled {why}"] += 1
            join.events["runs settled"] += len(owing)
        return SettlementTask(self._join, settling, urgent)

    def _settlement(self, side: int, debtor: OwingRows | OwingRuns, names: Sequence[str] | None = None) -> Settlement:
        """A settlement with all runs that are owed, or with those of these names."""
        join = self._join
        entries = join.debts.owed(side)
        if names is not None:
            named = {entry.run.name: entry for entry in join.debts.runs[1 - side]}
            entries = [named[name] for name in names]
        elif isinstance(debtor, OwingRows):
            # Runs that most rows have yet to meet come first: a settlement that is cut short left them for later.
            entries = sorted((entry for entry in entries if entry.since < debtor.high), key=lambda entry: entry.since)
        how = join.workspace.slice, join.sizing.page_bytes, self._pages, join.reach(side), join.condition(side)
        settlement = Settlement(side, debtor, entries, *how)
        settlement.most_mapped = self._most_mapped or settlement.most_mapped
        if join.workspace.gathering is not None:
            settlement.have_room(join.workspace.gathering)
        return settlement

    def go_on(self, settlement: Settlement, fuel: int) -> int:
        """Go on with a settlement; returns the fuel that took."""
        settlement.let_go()
        used = settlement.work(self._join.pairs, fuel, self._join.meter)
        if settlement.ends_slice and settlement.found and isinstance(settlement.debtor, OwingRows):
            self._note_lateness(settlement)
        return used

    def ends_early(self, side: int) -> bool:
        """All rows of a side must settle: if more came since a settlement began, it ends with the run at hand.

        The others, and those that came since, then go through the runs together. True if it has ended at once.
        """
        settling = self.begun[side]
        if settling is None or settling.met is not None or not isinstance(settling.debtor, OwingRows):
            return False
        if settling.debtor.high == self._join.tables[side].rows or not settling.cut_short():
            return False
        self._join.events["cut short"] += settling.met is not None
        if settling.done:
            self._join.settled_now(settling)
        return settling.done

    def end(self, settlement: Settlement) -> None:
        """All rows of a settlement have met all runs there were when it began, or those that it names."""
        side, debtor, debts = settlement.side, settlement.debtor, self._join.debts
        self.begun[side] = None
        settlement.let_go(all_of_it=self._most_mapped is None)
        if isinstance(debtor, OwingRuns):
            debts.runs_settled(debtor.entries)
        elif settlement.met is not None:
            assert isinstance(debtor, OwingRows)
            debts.have_met(side, settlement.met, debtor.high)
        else:
            assert isinstance(debtor, OwingRows)
            debts.have_settled(side, debtor.high)
            self._owed_since.came[side].forget(debtor.high)
        if not debts.owing_runs(side):
            self._owed_since.runs_settled(side)

    # --- how late they are ---

    def _note_lateness(self, settlement: Settlement) -> None:
        """How long the pairs of a slice have waited: of a few rows, which stand for all, and of the oldest."""
        times = self._owed_since.came[settlement.side].times(settlement.some_rows + 1)
        if times is None:
            return
        waited = self._join.now - times
        self._owed_since.longest = max(self._owed_since.longest, float(waited[-1]))
        self._owed_since.note(waited[:-1], -(-settlement.found // (len(waited) - 1)))

    def report(self) -> Report:
        """How late pairs were, and how many rows have yet to settle."""
        join = self._join
        if not any(join.debts.runs) and not self._owed_since.longest:
            return Report()
        owing = sum(join.debts.owing(side) for side in (0, 1)) if join.tables else 0
        return Report(lateness=self._owed_since.figures(owing))

    # --- snapshots ---

    def to_state(self, at_hand: Any) -> list[dict[str, Any] | None]:
        """Those that have begun, but for the one of the task at hand, which says so itself."""
        mine = at_hand.settlement if isinstance(at_hand, SettlementTask) else None
        return [None if each is None or each is mine else each.to_state(None) for each in self.begun]

    def load(self, saved: dict[str, Any]) -> Settlement:
        """Go on with a settlement from a snapshot."""
        join, side = self._join, saved["side"]
        debtor: OwingRows | OwingRuns
        if "owing" in saved:
            named = {entry.run.name: entry for entry in join.debts.runs[side]}
            debtor = OwingRuns([named[name] for name in saved["owing"]])
        else:
            table = join.tables[side]
            table.have_bits(max(saved["slice"][0], saved["behind"][0]))
            debtor = OwingRows(table, saved["low"], saved["high"], saved["sorting"])
        settlement = self.begun[side] = self._settlement(side, debtor, saved["runs"])
        settlement.load(saved, join.pairs)
        return settlement
