"""A memory partition joined with the other side's runs: the md-task of RPJ, and all that XJoin does in a silence."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.saved import Saved
from watersmeet.joins.progressive.spilling import SpillingJoin
from watersmeet.matching.found_pairs import Between
from watersmeet.matching.lookup import Lookup
from watersmeet.records.plan import BatchRows
from watersmeet.runs.page import Page
from watersmeet.runs.presence import Stay
from watersmeet.tables.hash_table import Probe

_MOST_HISTORY = 8
"""The history of visits may take about this part of the memory that rows have: what it takes is lost to them."""
_MOST_ENTRIES = 5
"""A visit that begins amid a merged run, wraps around, and ends amid another leaves as many."""


class PageLookups:
    """Pages of one side's disk, looked up in the other side's memory."""

    def __init__(self, join: SpillingJoin, probe_side: int, part: int) -> None:
        self._join = join
        self._probe_side = probe_side
        self._part = part
        self.page: Page | None = None
        self.lookup: Lookup | None = None

    def open(self, position: int, stop: int) -> None:
        """Begin with the rows from a position to the end of its page."""
        join, part = self._join, self._part
        page = join.disks[self._probe_side].read(part, position, stop)
        table = join.tables[1 - self._probe_side]
        self.page = page
        self.lookup = Lookup(
            Probe(page.hashes, np.full(len(page), part, np.int32)),
            table,
            Between(self._probe_side, BatchRows(page.columns), table),
            self._fresh,
        )

    def _fresh(self, probes: Int32, rows: Int32) -> Bool:
        assert self.page is not None
        stays: list[Stay] = [
            self._join.disks[self._probe_side].stay(self._part, self.page, probes),
            self._join.stay_in_table(1 - self._probe_side, self._part, rows),
        ]
        left, right = reversed(stays) if self._probe_side else stays
        return self._join.ledger.fresh(self._part, left, right)

    @property
    def rows_done(self) -> int:
        """How many of the page's rows have met all their matches."""
        return 0 if self.lookup is None else self.lookup.probe.next


class Visits(Saved):
    """Which memory partitions have visited the other side's disk, and where the next visit goes on."""

    SAVED: ClassVar[tuple[str, ...]] = ("_visited_at", "_resume_at", "_arrived")

    def __init__(self, join: SpillingJoin) -> None:
        partitions = join.sizing.layout.partitions
        self._join = join
        self._visited_at = np.zeros((2, partitions), np.int64)
        self._resume_at = np.zeros((2, partitions), np.int64)
        self._arrived = np.zeros((2, partitions), np.int64)
        """Rows that had ever arrived when a visit began that came around."""
        self._history_at_first = join.ledger.nbytes
        self._most_history = join.budget.free // _MOST_HISTORY

    def has_news(self, side: int, part: int) -> bool:
        """Whether a memory partition has enough rows that have not met all of the other side's disk.

        Each visit leaves a record. While there are few records, one new row is enough; the more there are, the larger
        must be the share of the partition's rows that is new.
        """
        join = self._join
        rows = int(join.tables[side].part_rows[part])
        if not (
            join.disks[1 - side].rows[part]
            and rows
            and join.tables[side].latest_tick(part) > self._visited_at[side, part]
        ):
            return False
        new = min(rows, int(join.statistics.total[side, part] - self._arrived[side, part]))
        return new >= rows * self._reluctance

    @property
    def _reluctance(self) -> float:
        """From 0, when there is no history yet, to above 1, when there must be no more of it."""
        return (self._join.ledger.nbytes - self._history_at_first) / self._most_history

    def met_all(self, side: int, parts: Int32, ticks: Int64) -> Bool:
        """Which rows of a memory, by their partitions and arrivals, have met all of the other side's disk."""
        on_disk = np.asarray(self._join.disks[1 - side].rows)
        met: Bool = (on_disk[parts] == 0) | (ticks <= self._visited_at[side][parts])
        return met

    def last_around(self, side: int, part: int) -> int:
        """When the last visit began that has met all that was on disk; 0 if there was none."""
        return int(self._visited_at[side, part])

    def may_begin(self, side: int, part: int) -> bool:
        """Whether there is memory to remember a visit."""
        return self._join.ledger.try_reserve(side, part, _MOST_ENTRIES if self._join.sorted_runs else 2)

    def begin(self, side: int, part: int) -> Visit:
        """A visit that goes on where the last one ended."""
        self._join.clock += 1
        start = int(self._resume_at[side, part]) % self._join.disks[1 - side].rows[part]
        return Visit(self._join, self, side, part, self._join.clock, start)

    def end(self, visit: Visit) -> None:
        """Record what a visit has covered, and where the next one goes on."""
        side, part = visit.side, visit.part
        disk = self._join.disks[1 - side]
        rows = disk.rows[part]
        beyond = min(visit.start + visit.covered, rows)
        wrapped = visit.covered - (beyond - visit.start)
        for stretch in [*disk.stretches(part, visit.start, beyond), *disk.stretches(part, 0, wrapped)]:
            self._join.ledger.record_visit(side, part, visit.tick, stretch, self._join.last_departure(side, part))
        self._resume_at[side, part] = wrapped or beyond
        if visit.covered == rows:
            self._visited_at[side, part] = visit.tick
            self._arrived[side, part] = visit.arrived
        self._join.visit_ended(side, part, visit.covered, rows)

    def resumed(self, state: dict[str, Any]) -> Visit:
        """A visit that a snapshot was taken of."""
        visit = Visit(self._join, self, state["side"], state["part"], state["tick"], state["start"])
        self.may_begin(visit.side, visit.part)
        visit.go_to(state)
        return visit


class Visit:
    """A memory partition joined with the other side's disk partition, from some position on, once around."""

    def __init__(self, join: SpillingJoin, visits: Visits, side: int, part: int, tick: int, start: int) -> None:
        self.side, self.part, self.tick, self.start = side, part, tick, start
        self._join = join
        self._visits = visits
        self.arrived = int(join.statistics.total[side, part])
        """Rows that had ever arrived in the memory partition when it began."""
        self._rows = join.disks[1 - side].rows[part]
        self._pages = PageLookups(join, 1 - side, part)
        self._before = 0
        """Rows on the pages before the one at hand."""

    @property
    def lookup(self) -> Lookup | None:
        """The page at hand."""
        return self._pages.lookup

    @property
    def covered(self) -> int:
        """Rows of the disk that have met all their matches."""
        return self._before + self._pages.rows_done

    @property
    def done(self) -> bool:
        """Whether it has come around."""
        return self.covered == self._rows

    @property
    def between_rows(self) -> bool:
        """Whether it can end here."""
        return self.lookup is None or self.lookup.between_rows

    def work(self, fuel: int) -> int:
        """Go on with the page at hand, or with the next."""
        if self.lookup is None or self.lookup.done:
            self._open_next(self.covered)
        assert self.lookup is not None
        return self.lookup.work(self._join.pairs, fuel, self._join.meter)

    def _open_next(self, covered: int) -> None:
        self._before = covered
        position = (self.start + covered) % self._rows
        self._pages.open(position, self._rows if position >= self.start else self.start)

    def give_way(self) -> tuple[int, bool]:
        """Rows have arrived: end with the row at hand; returns the fuel that took, and whether it has ended."""
        if not self.between_rows:
            return self.work(1), False
        self.finish()
        return 1, True

    def finish(self) -> None:
        """Record what was covered."""
        self._visits.end(self)

    def to_state(self) -> dict[str, Any]:
        """The visit for a snapshot."""
        place = None if self.lookup is None else self.lookup.place(self._join.pairs)
        return {
            "kind": "visit", "side": self.side, "part": self.part, "tick": self.tick, "start": self.start,
            "before": self._before, "place": place, "arrived": self.arrived,
        }  # fmt: skip

    def go_to(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        self.arrived = state["arrived"]
        if state["place"] is not None:
            self._open_next(state["before"])
            assert self.lookup is not None
            self.lookup.resume(self._join.pairs, state["place"])
