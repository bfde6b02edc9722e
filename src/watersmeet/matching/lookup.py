"""Rows looked up in a table, a little at a time, with pairs that were emitted before left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from watersmeet.core.arrays import Bool, Int32, Int64, Numbers
from watersmeet.core.cost import Meter
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.records.addressed import AddressedRows
from watersmeet.tables.hash_table import Probe


class Index(Protocol):
    """Where rows are looked up, by hash or by range: any table in memory, sorted rows of a page, a segment on disk."""

    def probe(self, probe: Any, limit: int, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        """Go on with a look-up until the buffers are full, or up to a limit: by hash, that hash of those looked up; by
        range, about so many entries visited. Returns the pairs found and the entries visited.
        """
        ...


class Condition(Protocol):
    """What pairs of equal hashes must fulfil, too."""

    def holds(self, probes: Int32, found: AddressedRows, rows: Numbers) -> Bool:
        """For which pairs it does: rows that were looked up, by their places, and rows that were found."""
        ...


class Lookup:
    """One batch of rows on its way through a table's index.

    Candidates come in a fixed order (row by row, newest match first), so that a count is enough to find the place
    again: `place` tells it, and `resume` goes there in a table that was built anew.
    """

    def __init__(
        self,
        probe: Probe,
        table: Index,
        between: Between,
        fresh: Callable[[Int32, Int32], Bool] | None = None,
        partners: Int64 | None = None,
    ) -> None:
        """`partners` are the rows of each of the table's partitions: nested loops would compare a row with all of its
        own.
        """
        self.probe = probe
        self.between = between
        self._table = table
        self._fresh = fresh
        self._partners = partners
        self._before = 0
        self._in_buffer = 0
        self._kept = 0

    @property
    def done(self) -> bool:
        """Whether all pairs were found; some may still wait in the buffer."""
        return self.probe.done

    @property
    def between_rows(self) -> bool:
        """Whether the rows so far have met all their matches, and the others none."""
        return self.probe.link < 0

    @property
    def length(self) -> int:
        """How many rows are looked up."""
        return len(self.probe.hashes)

    def work(self, pairs: PairBuffer, fuel: int, meter: Meter) -> int:
        """Fill the empty buffer with pairs; returns the fuel that took."""
        start = self.probe.next
        stop = min(self.length, start + max(1, fuel))
        self._before += self._in_buffer
        room = pairs.room
        found, visited = self._table.probe(self.probe, stop, pairs.probes[:room], pairs.rows[:room])
        self._settle(pairs, found)
        meter.probes += self.probe.next - start
        meter.comparisons += visited
        if self._partners is not None:
            meter.nested += int(self._partners[self.probe.parts[start : self.probe.next]].sum())
        return max(1, self.probe.next - start) + found

    def _settle(self, pairs: PairBuffer, found: int) -> None:
        self._in_buffer = found
        pairs.first, pairs.count = 0, found
        if self._fresh is not None and found:
            pairs.filter(self._fresh(pairs.probes[:found], pairs.rows[:found]))
        self._kept = pairs.count

    def place(self, pairs: PairBuffer) -> list[int]:
        """Candidates passed before the buffer, candidates in it, and how many of those were handed out."""
        return [self._before, self._in_buffer, self._kept - pairs.waiting]

    def resume(self, pairs: PairBuffer, place: list[int]) -> None:
        """Go to a place."""
        before, in_buffer, handed_out = place
        while self._before < before:
            limit = min(before - self._before, len(pairs.probes))
            found, _ = self._table.probe(self.probe, self.length, pairs.probes[:limit], pairs.rows[:limit])
            self._before += found
        found, _ = self._table.probe(self.probe, self.length, pairs.probes[:in_buffer], pairs.rows[:in_buffer])
        self._settle(pairs, found)
        pairs.first = handed_out
        if not pairs.waiting:
            pairs.clear()
