"""Runs become few over many batches, and no batch pays for long ones alone.

A join that writes a run of each input with every batch would soon have very many. Between batches nobody owes anything
to anybody, so any of them can become one; what must be bounded is how much is written at once. Runs are of one class
if their rows have as many digits, to the base `fan_in`; as soon as there are `fan_in` of a class, they are merged.

    class 3   ████████████████ ████████████████
    class 2   ████ ████ ████ ████  ──▶ ███ ···       each batch adds a piece; meanwhile the four count
    class 1   █ █

Each batch adds a piece to the merge of each class: at least twice as many rows as it brought, and `_LEAST_ROWS`. The
pieces are sorted runs themselves, one after the other in the order of hashes; the runs that they are made of stay what
they were until the last piece is there, and then all pieces take their place at once. So a repeated batch, or one that
another process goes on with, is never half-way. Pieces have one birth, by which they are known as one run.

Where rows come to be of no more use, merges leave them out; and runs that are *worn*, most of whose rows are of no use,
are merged before they are many, even one alone. That pays: whoever passes two rows forgets one.

**It keeps up.** A row that is merged goes to a higher class: it is written again once a class at most, but for the
lowest, whose runs have few rows. So no more rows can come to wait in a class than come with the batches, plus what the
classes below hold when they come; a class merges twice as many as the batches bring. Therefore at most some `fan_in`
runs wait in a class while as many are merged, and there are as many classes as the rows have digits: the number of runs
follows the logarithm of the rows, and the work of a batch is bounded by its own rows times that logarithm.
(`tests/unit/joins/test_upkeep.py` holds it to that.)

**Rows on disk that are of no more use** are left out of merges, and runs of little else are merged for that alone:

- Of a semi or anti join, a left row that has a partner has come out, or never will.
- A row of whose key the other input will send no more (`foretold`) meets nobody any more; where rows without a
  partner come out, it must have come out, or have one.

Which rows a merge leaves out is decided once, while it passes their hashes, and noted beside the new run
(`runs.matched_bits`): bits and promises may change before the last piece of a long merge is there.
(`tests/conformance/test_forgetting.py` leaves out others, and is noticed.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from watersmeet.core.arrays import Bool, Int64, Uint64
from watersmeet.matching.debts import Debts
from watersmeet.runs.matched_bits import Filling, MatchedBits, left_out_of
from watersmeet.runs.sorted_run import MergedRows, SortedRun
from watersmeet.runs.spine import Merge
from watersmeet.spill.store import Store

if TYPE_CHECKING:
    from watersmeet.joins.confluence import Confluence


_LEAST_ROWS = 1 << 18
"""Merged by a batch of each class, however few rows it has: a fraction of a second's work. Fewer would make very many
pieces."""
_SMALL = 4096
"""Runs of fewer rows are of the lowest class."""
_TIMES = 2
"""Rows merged of each class for each that came."""

Chain = tuple[SortedRun, ...]
"""The pieces of a run, in the order of hashes."""


def size_class(rows: int, fan_in: int) -> int:
    """By how many digits a run is longer than a small one.

    >>> [size_class(rows, 8) for rows in (1, 4_095, 4_096, 32_767, 32_768, 10**9)]
    [0, 0, 1, 1, 2, 6]
    """
    found = 0
    while rows >= _SMALL:
        rows //= fan_in
        found += 1
    return found


@dataclass(slots=True)
class Merging:
    """Runs of one side and class that become one."""

    side: int
    size: int
    """Their class."""
    chains: list[Chain]
    places: list[list[int]]
    """How far each piece of each run has been merged."""
    pieces: list[SortedRun] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)
    """Rows of these runs that each piece was made of; some may have been left out."""

    @property
    def runs(self) -> list[SortedRun]:
        """All that is merged."""
        return [run for chain in self.chains for run in chain]

    @property
    def left(self) -> int:
        """Rows that have yet to be merged."""
        return sum(run.rows for run in self.runs) - sum(map(sum, self.places))

    def ahead(self, rows: int) -> Iterator[tuple[int, int]]:
        """Of each run, the pieces that the next so many rows can be of."""
        for i, chain in enumerate(self.chains):
            found = 0
            for j, run in enumerate(chain):
                if found < rows and self.places[i][j] < run.rows:
                    found += run.rows - self.places[i][j]
                    yield i, j


class Upkeep:
    """The merges of a join's runs that are under way, from batch to batch."""

    def __init__(
        self,
        debts: Debts,
        store: Store,
        new_name: Callable[[int], str],
        block_bytes: int,
        fan_in: int,
        wear: Wear | None = None,
    ) -> None:
        self._debts = debts
        self._store = store
        self._new_name = new_name
        self._block_bytes = block_bytes
        self._fan_in = fan_in
        self._wear = wear
        self.least_rows = _LEAST_ROWS
        self._under_way: list[Merging] = []
        self.rows_merged = 0
        """Since this process has it."""
        self.rows_left_out = 0
        """Of these."""

    @property
    def names(self) -> list[str]:
        """Of pieces that nobody meets yet."""
        return [piece.name for merging in self._under_way for piece in merging.pieces]

    @property
    def passed(self) -> dict[str, int]:
        """Of each of these, how many rows it was made of."""
        return {
            piece.name: passed
            for merging in self._under_way
            for piece, passed in zip(merging.pieces, merging.passed, strict=True)
        }

    def go_on(self, new_rows: Sequence[int]) -> list[str]:
        """Merge some rows after a batch that brought so many of each side; returns the names of runs that can go."""
        gone = []
        for side in (0, 1):
            self._begin(side)
            for merging in [each for each in self._under_way if each.side == side]:
                self._add_piece(merging, max(self.least_rows, _TIMES * new_rows[side]))
                if not merging.left:
                    self._under_way.remove(merging)
                    self._debts.replace(side, merging.runs, *merging.pieces)
                    gone += [run.name for run in merging.runs]
        return gone

    def _begin(self, side: int) -> None:
        """Runs of a class that have become enough are merged from now on, unless others of that class still are."""
        mine = [each for each in self._under_way if each.side == side]
        busy = {run.name for merging in mine for run in merging.runs}
        waiting: dict[int, list[Chain]] = {}
        for _, entries in groupby(self._debts.runs[side], key=lambda entry: entry.birth):
            chain = tuple(entry.run for entry in entries)
            if chain[0].name not in busy:
                waiting.setdefault(size_class(sum(run.rows for run in chain), self._fan_in), []).append(chain)
        for size, chains in waiting.items():
            if any(merging.size == size for merging in mine):
                continue
            if len(chains) < self._fan_in:
                chains = [chain for chain in chains if self._wear is not None and self._wear.is_worn(side, chain)]
            if chains:
                self._under_way.append(Merging(side, size, chains, [[0] * len(chain) for chain in chains]))

    def _add_piece(self, merging: Merging, most: int) -> None:
        ahead = list(merging.ahead(most))
        runs = [merging.chains[i][j] for i, j in ahead]
        start = [merging.places[i][j] for i, j in ahead]
        left_out = None if self._wear is None else self._wear.left_out(merging.side)
        name = self._new_name(merging.side)
        merge = Merge(self._store, name, runs, self._block_bytes, start, most, left_out)
        try:
            while merge.work():
                pass
        except BaseException:
            merge.abort()
            raise
        assert merge.merged is not None
        for (i, j), place in zip(ahead, merge.places(), strict=True):
            merging.places[i][j] = place
        merging.pieces.append(merge.merged)
        merging.passed.append(merge.rows)
        self.rows_merged += merge.rows
        self.rows_left_out += merge.rows - merge.merged.rows

    def forget(self, side: int) -> list[str]:
        """The runs of a side are of no use any more, nor are pieces of them; returns the names of these."""
        over = [each for each in self._under_way if each.side == side]
        self._under_way = [each for each in self._under_way if each.side != side]
        return [piece.name for merging in over for piece in merging.pieces]

    def check(self) -> None:
        """Assert the invariants."""
        for merging in self._under_way:
            there = {entry.run.name for entry in self._debts.runs[merging.side]}
            assert all(run.name in there for run in merging.runs), "what is merged stays until it is replaced"
            assert sum(merging.passed) == sum(map(sum, merging.places))
            assert all(piece.rows <= rows for piece, rows in zip(merging.pieces, merging.passed, strict=True))

    def to_state(self) -> list[dict[str, Any]]:
        """For a snapshot."""
        return [
            {
                "side": each.side,
                "size": each.size,
                "chains": [[run.name for run in chain] for chain in each.chains],
                "places": each.places,
                "pieces": [piece.name for piece in each.pieces],
                "passed": each.passed,
            }
            for each in self._under_way
        ]

    def load(self, state: list[dict[str, Any]], open_run: Callable[[int, str], SortedRun]) -> None:
        """Take over what a snapshot says, once the runs are there."""
        for told in state:
            side = told["side"]
            there = {entry.run.name: entry.run for entry in self._debts.runs[side]}
            chains = [tuple(there[name] for name in chain) for chain in told["chains"]]
            pieces = [open_run(side, name) for name in told["pieces"]]
            places = [list(each) for each in told["places"]]
            passed = list(told.get("passed", [piece.rows for piece in pieces]))  # before, nothing was left out
            self._under_way.append(Merging(side, told["size"], chains, places, pieces, passed))


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
