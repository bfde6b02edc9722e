"""Rows on disk that are of no more use: merges leave them out, and runs of little else are merged for that alone.

- Of a semi or anti join, a left row that has a partner has come out, or never will.
- A row of whose key the other input will send no more (`foretold`) meets nobody any more; where rows without a
  partner come out, it must have come out, or have one.

Which rows a merge leaves out is decided once, while it passes their hashes, and noted beside the new run
(`runs.matched_bits`): bits and promises may change before the last piece of a long merge is there.
(`tests/conformance/test_forgetting.py` leaves out others, and is noticed.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from watersmeet.core.arrays import Bool, Int64, Uint64
from watersmeet.runs.matched_bits import Filling, MatchedBits, left_out_of
from watersmeet.runs.sorted_run import MergedRows, SortedRun

if TYPE_CHECKING:
    from watersmeet.joins.confluence import Confluence

LEAST_WORN = 1024
"""Rows of no more use for which alone a run is written again: fewer would not be worth a file."""

Useless = Callable[[MergedRows, Uint64, Int64], Bool]
"""Which rows, by their hashes and numbers, are of no more use."""


class LeftOutRows:
    """Which rows one merge leaves out, noted in bits: see `runs.spine.LeftOut`."""

    def __init__(self, bits: MatchedBits, useless: Useless) -> None:
        self.name = ""
        self._bits = bits
        self.decide = useless
        self._filling: Filling | None = None
        self._place = 0

    def begin(self, name: str, rows: int) -> None:
        """So many rows are about to be passed on their way into the run of this name."""
        self.name, self._place = left_out_of(name), 0
        self._filling = self._bits.begin(self.name, rows)

    def add(self, left_out: Bool) -> None:
        """Take note of the next rows, whether they are left out."""
        assert self._filling is not None
        self._filling.add(left_out)

    def again(self, count: int) -> Bool:
        """Which of the next so many rows were left out, from the first on."""
        if self._filling is not None:
            self._filling.end()
            self._filling = None
        self._place += count
        return self._bits.between(self.name, self._place - count, self._place)

    def forget(self) -> None:
        """Nothing of it is needed any more."""
        if self.name in self._bits:
            self._bits.forget([self.name])


class Wear:
    """Part of an operator: which of its rows on disk nobody needs."""

    least = LEAST_WORN

    def __init__(self, join: Confluence) -> None:
        self._join = join

    def wears(self, side: int) -> bool:
        """Whether rows of a side come to be of no more use one by one."""
        matched, foretold = self._join.matched, self._join.foretold
        if matched is None or self._join.windows is not None:
            return False
        return matched.forgotten(side) or (foretold is not None and foretold.helps(side))

    def run_is_worn(self, side: int, run: SortedRun) -> bool:
        """Whether most rows of a run are of no more use."""
        return self.is_worn(side, [run])

    def is_worn(self, side: int, chain: Sequence[SortedRun]) -> bool:
        """Whether most rows of a run, in several pieces, are of no more use."""
        rows, matched = sum(run.rows for run in chain), self._join.matched
        if matched is None or not self.wears(side) or rows < self.least:
            return False
        useless = sum(self._useless(side, run) for run in chain)
        return useless >= self.least and 2 * useless > rows

    def _useless(self, side: int, run: SortedRun) -> int:
        """How many rows of a run are, as far as is known."""
        matched, foretold = self._join.matched, self._join.foretold
        assert matched is not None
        of_matched = matched.bits.marked(run.name) if matched.forgotten(side) else 0
        # Those that have a partner may be among the others.
        return max(of_matched, 0 if foretold is None else foretold.useless[side].get(run.name, 0))

    def left_out(self, side: int) -> LeftOutRows | None:
        """What a merge of a side's runs leaves out; None: nothing."""
        matched = self._join.matched
        if matched is None or not self.wears(side):
            return None
        bits, kind, foretold = matched.bits, self._join.spec.kind, self._join.foretold
        # Rows that owe these runs may have come before the promise.
        heeds = foretold is not None and foretold.helps(side) and not self._join.debts.owes(1 - side)
        if not heeds and not matched.forgotten(side):
            return None

        def useless(rows: MergedRows, hashes: Uint64, numbers: Int64) -> Bool:
            marked = bits.marked_of(rows.names, numbers) if kind.tracked[side] else np.ones(len(numbers), np.bool_)
            found = marked if matched.forgotten(side) else np.zeros(len(numbers), np.bool_)
            if heeds:
                assert foretold is not None
                over = foretold.is_over(side, rows, numbers, hashes)
                found = found | (over & (marked | (not kind.preserved[side])))
            return found

        return LeftOutRows(bits, useless)
