"""How much of the runs of one input is mapped, and how it leaves memory again.

Mapped pages are the system's to take back, but count as the process's own until they are let go. Hashes are gone
through again and again, and stay for as long as they are few. Rows lie anywhere, and each maps what lies around it, so
that they are gathered stretch by stretch: those of one are let go before the next ones are read.
"""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.core.arrays import Int64
from watersmeet.runs.sorted_run import SortedRun, let_go_of, mapped_places
from watersmeet.runs.stretches import Stretches, StringRoom

_AROUND = 64 << 10
"""Bytes that the system maps around what is read."""


class Resident:
    """Bytes of an input's runs that may be mapped: hashes, by the order that they are in; rows are not, for long."""

    def __init__(self, first: int) -> None:
        """Runs are sources from the number `first` on; those before are in memory, and stay."""
        self._first = first
        self.room: StringRoom | None = None
        """For strings of rows that are gathered; without, rows are gathered as if they were in memory."""
        self._hashes: list[int] = []
        self.runs_changed(())

    def runs_changed(self, orders: Sequence[Sequence[SortedRun]]) -> None:
        """Runs came or went; nothing of those that are there stays mapped."""
        runs = [run for order in orders for run in order]
        self._places: Int64 = mapped_places(runs)
        self._rows_alone: Int64 = mapped_places(runs, rows_alone=True)
        self._most_hashes = [sum(-(-run.hash_bytes // _AROUND) for run in order) * _AROUND for order in orders]
        self.stretches = Stretches(self._rows_alone, [run.rows for run in runs], self._first)
        """In which rows are gathered."""
        self.let_go()

    @property
    def nbytes(self) -> int:
        """How much may be mapped."""
        return sum(self._hashes)

    def read_hashes(self, order: int, runs: int, nbytes: int) -> None:
        """So many bytes of hashes of an order were gone through, of so many runs."""
        self._hashes[order] = min(self._most_hashes[order], self._hashes[order] + _AROUND * runs + nbytes)

    def let_go(self) -> None:
        """Nothing is mapped any more."""
        self._hashes = [0] * len(self._most_hashes)
        let_go_of(self._places)

    def let_go_of_rows(self) -> None:
        """Nothing but hashes is."""
        let_go_of(self._rows_alone)
