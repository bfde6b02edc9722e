"""Which rows stay in memory when the others of their memtable leave: those that will most likely be asked for soon.

What memory holds does not decide whether a pair is found while rows arrive, only how early. So the rule is simple, and
pays for itself or is not followed:

- How often the other input asked for a hash is counted in a few counters, at each flush, of the rows that came since.
- At a flush, what was known *before* is put to the test by what came since: had the rows with the highest counts stayed
  (or those that nobody had asked for yet: where each key comes once, its partner is still to come), by how much more
  than any others would they have been asked for?
- What was best stays, if that is much. Else nothing does, as with keys that all come alike.

Old counts fade, at two rates: one remembers about as long as rows are in memory, one eight times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from watersmeet.core.arrays import Bool, Int32, Int64, Numbers, Uint64
from watersmeet.kernels import counting
from watersmeet.kernels.counting import LEVELS, Counts
from watersmeet.memory import Budget

_SHARE = 64
"""One part of the memory is for counters."""
_COUNTER_BYTES = 2 * 4 * 2
"""Of both sides: what came since the last flush, twice, and what came before, at two rates."""
_LEAST_COUNTERS = 1 << 8
_MOST_COUNTERS = 1 << 20
_FADING = (1, 3)
"""Of what is known, one part of two to these powers is forgotten at each flush."""
_PAYS = 1.5
"""By so much more than others must rows be asked for to stay."""
_LEAST_EVIDENCE = 64
"""So often must they have been asked for."""
_HIGHEST = 0xFFFF


class Entries(Protocol):
    """Rows of one side in memory."""

    @property
    def rows(self) -> int:
        """How many there are."""
        ...

    @property
    def hash_address(self) -> int:
        """Where the first one's hash lies; each lies two words behind the one before."""
        ...


class Staying(NamedTuple):
    """Rows that stay: those from a number on with hashes that were asked for so often."""

    numbers: Int32
    """In the order of their arrival."""
    known: Counts
    shift: int
    least: int
    most: int
    first: int

    def stay(self, hashes: Uint64, numbers: Numbers) -> Bool:
        """Which of some rows do."""
        found = np.empty(len(hashes), np.bool_)
        counting.counts_between(hashes, self.shift, self.known, self.least, self.most, found)
        if self.first:
            found &= numbers >= self.first
        return found


@dataclass(frozen=True, slots=True)
class _Candidate:
    gain: float
    known: Counts
    most: int
    """Counts of rows that stay: any from some on, or 0 where only those do that nobody has asked for."""


class Keeping:
    """Counts of what each input asks for, and what follows for the other's rows."""

    def __init__(self, counters: int, pays: float = _PAYS, evidence: int = _LEAST_EVIDENCE) -> None:
        """`counters` of each side, a power of two; rows stay if they `pay`, and that was seen so many times."""
        self._pays, self._evidence = pays, evidence
        self._shift = 64 - (counters.bit_length() - 1)
        self._fresh: list[Counts] = [np.zeros(counters, np.uint16) for _ in (0, 1)]
        self._witnesses: list[Counts] = [np.zeros(counters, np.uint16) for _ in (0, 1)]
        self._known: list[list[Counts]] = [[np.zeros(counters, np.uint16) for _ in _FADING] for _ in (0, 1)]
        self._counted = [0, 0]
        """Rows of each memtable that have been counted."""

    @classmethod
    def within(cls, budget: Budget) -> Keeping | None:
        """As many counters as a small part of the memory has room for; None if these are too few."""
        fitting = min(_MOST_COUNTERS, budget.total // (_SHARE * _COUNTER_BYTES))
        if fitting < _LEAST_COUNTERS:
            return None
        counters = 1 << (fitting.bit_length() - 1)
        budget.reservation("counts of keys").grow(_COUNTER_BYTES * counters)
        return cls(counters)

    def rows_left(self, side: int, stayed: int = 0) -> None:
        """Rows of a memtable have left, but for some, which have been counted."""
        self._counted[side] = stayed

    def choose(self, side: int, tables: Sequence[Entries], most: int) -> Staying | None:
        """Which rows of a side, at most so many, stay while the others leave; None: all leave."""
        for each, table in enumerate(tables):
            counts = self._fresh[each], self._witnesses[each]
            counting.count_entries(table.hash_address, self._counted[each], table.rows, self._shift, *counts)
            self._counted[each] = table.rows
        asked, table = 1 - side, tables[side]
        best = max(
            (candidate for known in self._known[asked] for candidate in self._candidates(table, asked, known, most)),
            key=lambda candidate: candidate.gain,
            default=None,
        )
        for known, fading in zip(self._known[asked], _FADING, strict=True):
            counting.fade(known, self._fresh[asked], fading)
        self._fresh[asked][:] = 0
        self._witnesses[asked][:] = 0
        if best is None or best.gain < self._pays:
            return None
        return self._chosen(table, best, most)

    def _candidates(self, table: Entries, asked: int, known: Counts, most: int) -> list[_Candidate]:
        """What could have stayed by what was known, and how much better than any others that would have been."""
        held, wanted = np.zeros(LEVELS, np.int64), np.zeros(LEVELS, np.int64)
        counting.weigh_entries(table.hash_address, table.rows, self._shift, known, self._witnesses[asked], held, wanted)
        least = _lowest_level(held, most)
        often = _Candidate(self._gain(held, wanted, slice(least, None)), known, _HIGHEST)
        return [often, _Candidate(self._gain(held, wanted, slice(0, 1)), known, 0)]

    def _gain(self, held: Int64, wanted: Int64, levels: slice) -> float:
        """How much more often rows of these counts were wanted than rows are on average; 0 if that may be chance."""
        asked = int(wanted[levels].sum())
        if asked < self._evidence:
            return 0.0
        return asked / int(held[levels].sum()) / (int(wanted.sum()) / int(held.sum()))

    def _chosen(self, table: Entries, best: _Candidate, most: int) -> Staying | None:
        """The same kind of rows by what is known now."""
        known, least, first = best.known, 0, 0
        if best.most:
            held, unused = np.zeros(LEVELS, np.int64), np.zeros(LEVELS, np.int64)
            counting.weigh_entries(table.hash_address, table.rows, self._shift, known, known, held, unused)
            least = counting.least_count(_lowest_level(held, most))
        numbers = np.empty(most, np.int32)
        while True:
            count = counting.entries_between(
                table.hash_address, first, table.rows, self._shift, known, least, best.most, numbers
            )
            if count <= most:
                return Staying(numbers[:count], known, self._shift, least, best.most, first) if count else None
            first += -(-(table.rows - first) // 4)  # fewer, the newest of them


def _lowest_level(held: Int64, most: int) -> int:
    """The lowest above zero from which on there are at most so many rows; the highest of all if that has more."""
    above = np.cumsum(held[:0:-1])
    fitting = LEVELS - int(np.searchsorted(above, most, side="right"))
    return min(fitting, int(np.max(np.flatnonzero(held), initial=1)))
