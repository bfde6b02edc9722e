"""Rows on disk that are of no more use: merges leave them out, and runs of little else are merged for that alone.

- Of a semi or anti join, a left row that has a partner has come out, or never will.

Which rows a merge leaves out is decided once, while it passes their hashes, and noted beside the new run
(`runs.matched_bits`): bits and promises may change before the last piece of a long merge is there.
(`tests/conformance/test_forgetting.py` leaves out others, and is noticed.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

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
        matched = self._join.matched
        return matched is not None and self._join.windows is None and matched.forgotten(side)

    def run_is_worn(self, side: int, run: SortedRun) -> bool:
        """Whether most rows of a run are of no more use."""
        return self.is_worn(side, [run])

    def is_worn(self, side: int, chain: Sequence[SortedRun]) -> bool:
        """Whether most rows of a run, in several pieces, are of no more use."""
        rows, matched = sum(run.rows for run in chain), self._join.matched
        if matched is None or not self.wears(side) or rows < self.least:
            return False
        useless = sum(matched.bits.marked(run.name) for run in chain)
        return useless >= self.least and 2 * useless > rows

    def left_out(self, side: int) -> LeftOutRows | None:
        """What a merge of a side's runs leaves out; None: nothing."""
        matched = self._join.matched
        if matched is None or not self.wears(side):
            return None
        bits = matched.bits

        def useless(rows: MergedRows, hashes: Uint64, numbers: Int64) -> Bool:
            return bits.marked_of(rows.names, numbers)

        return LeftOutRows(bits, useless)
