"""Settling: rows in memory meet what the other input has on disk, by merging sorted hashes.

```
owing rows of the memtable, in the order of their hashes     3 · 8 · 8 · 21 · 34 ...      a slice at a time
hashes of a run of the other input                           1 · 3 · 5 · 8 · 9 · 34 ...   read forward, skipping by leaps
pairs                                                        (3, 3) · (8, 8) · (8, 8) · (34, 34)
```

**Who owes what.** Every run knows `since`: rows of the other memtable with smaller numbers were in memory together with all
of the run's rows when the later of each two came, and have met them there. Rows from `since` on came after the run had left
memory, and owe it. A settlement takes rows that owe, up to some number, and meets them with every run there is when it
begins; from then on they owe nothing that was written before. So a pair is found in memory if both rows were there when the
later one came, and else when the later one settles: exactly once, with one number a run and one a memtable to tell.
(`tests/conformance/test_confluence_mutants.py` breaks each of these, and is noticed.)

A settlement stops at any pair, and goes on where it stopped: rows may arrive meanwhile, for they have higher numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from watersmeet.core.arrays import Int32, Uint64
from watersmeet.core.cost import Meter
from watersmeet.kernels.merge import probe_sorted
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.runs.sorted_run import SortedRun
from watersmeet.tables.memtable import Memtable, Walk

_HASH_BYTES = 8


@dataclass(slots=True)
class Debt:
    """A run, and from which row on the other memtable's rows owe it."""

    run: SortedRun
    since: int
    level: int = 0
    """How often its rows were merged."""


class Slice:
    """Some owing rows in the order of their hashes: a buffer through which settlements and new runs go."""

    def __init__(self, capacity: int) -> None:
        self.hashes: Uint64 = np.empty(capacity, np.uint64)
        self.rows: Int32 = np.empty(capacity, np.int32)
        self.owner: Settlement | None = None
        """Whose rows are in it now."""

    @classmethod
    def bytes_for(cls, capacity: int) -> int:
        """What so many rows take."""
        return 12 * capacity


class Settlement:
    """Rows of one memtable on their way through the other input's runs.

    Invariants: rows of the slice have met the runs before `_at`, those before `_next` the one at `_at`, too; rows behind
    the slice have met none.
    """

    def __init__(
        self, side: int, table: Memtable, walk: Walk, debts: Sequence[Debt], buffer: Slice, page_bytes: int
    ) -> None:
        self.side = side
        self.high = walk.high
        self._table = table
        self._debts = list(debts)
        self._buffer = buffer
        self._page_hashes = max(1, page_bytes // _HASH_BYTES)
        self._walk = walk
        self._length = 0
        self._at = len(self._debts)
        self._next, self._link, self._near = 0, -1, -1
        self._slice_at = self._place()
        self._filled = [0, 0, -1]
        self._kept = 0

    @classmethod
    def begin(
        cls, side: int, table: Memtable, low: int, debts: Sequence[Debt], buffer: Slice, page_bytes: int
    ) -> Settlement:
        """Of all rows from `low` on that are in memory now."""
        owed = [debt for debt in debts if debt.since < table.rows]
        return cls(side, table, table.walk(low, table.rows), owed, buffer, page_bytes)

    def _place(self) -> Walk:
        return replace(self._walk, cursor=self._walk.cursor.copy())

    @property
    def done(self) -> bool:
        """Whether all pairs were found; some may still wait in the buffer."""
        return self._at == len(self._debts) and (not self._debts or self._walk.done)

    @property
    def runs(self) -> list[SortedRun]:
        """What the rows are merged with."""
        return [debt.run for debt in self._debts]

    @property
    def between(self) -> Between:
        """Where the rows of the pairs in the buffer lie."""
        return Between(self.side, self._table, self._debts[self._filled[0]].run)

    def work(self, pairs: PairBuffer, fuel: int, meter: Meter) -> int:
        """Fill the empty buffer with pairs; returns the fuel that took."""
        if self._at == len(self._debts):
            self._slice_at = self._place()
            self._length = self._table.next_sorted(self._walk, self._buffer.hashes, self._buffer.rows)
            self._buffer.owner = self
            self._begin_run(0 if self._length else len(self._debts))
            meter.probes += self._length
            return max(1, self._length)
        if self._buffer.owner is not self:
            self._take_slice_again()
        self._filled = [self._at, self._next, self._link]
        used = self._fill(pairs, max(1, fuel), meter)
        self._kept = pairs.count
        return used

    def _begin_run(self, number: int) -> None:
        self._at = number
        self._next, self._link, self._near = 0, -1, -1

    def _take_slice_again(self) -> None:
        """Somebody else has used the buffer since: the same rows once more, and no more of them."""
        again = replace(self._slice_at, cursor=self._slice_at.cursor.copy())
        count = self._table.next_sorted(again, self._buffer.hashes, self._buffer.rows)
        assert count >= self._length
        self._buffer.owner = self

    def _fill(self, pairs: PairBuffer, fuel: int, meter: Meter) -> int:
        debt = self._debts[self._at]
        run, hashes = debt.run, self._buffer.hashes[: self._length]
        if self._near < 0:
            self._near = int(np.searchsorted(run.hashes(), hashes[self._next]))
            meter.seeks += 1
        start, near = self._next, self._near
        stop = min(self._length, start + fuel)
        run.check_hashes(near, int(np.searchsorted(run.hashes(), hashes[stop - 1], side="right")))
        found, self._next, self._link, self._near, visited = probe_sorted(
            hashes, start, stop, self._link, run.hashes(), near, pairs.probes[: pairs.room], pairs.rows[: pairs.room], 0
        )
        pairs.first, pairs.count = 0, found
        pairs.probes[:found] = self._buffer.rows[pairs.probes[:found]]
        if found and debt.since > self._walk.low:
            pairs.filter(pairs.probes[:found] >= debt.since)
        passed = self._next - start
        meter.probes += passed
        meter.comparisons += visited
        # Dense merges read all pages of hashes that they pass, sparse ones a page for each row.
        meter.pages_read += min(max(1, passed), 1 + (self._near - near) // self._page_hashes)
        if self._next == self._length:
            self._begin_run(self._at + 1)
        return max(1, passed) + found

    def to_state(self, pairs: PairBuffer | None) -> dict[str, Any]:
        """For a snapshot; with `pairs` if those in the buffer are this settlement's."""
        place = [self._at, self._next, self._link]
        handed_out = None
        if pairs is not None and pairs.waiting:
            place, handed_out = self._filled, self._kept - pairs.waiting
        return {
            "side": self.side,
            "rows": [self._walk.low, self._walk.high, int(self._walk.sorting)],
            "slice": [self._slice_at.bits, *self._slice_at.cursor.tolist()],
            "behind": [self._walk.bits, *self._walk.cursor.tolist()],
            "length": self._length,
            "runs": [run.name for run in self.runs],
            "place": place,
            "handed_out": handed_out,
        }

    @classmethod
    def load(
        cls,
        state: dict[str, Any],
        table: Memtable,
        debts: Sequence[Debt],
        buffer: Slice,
        page_bytes: int,
        pairs: PairBuffer,
    ) -> Settlement:
        """Go on where a snapshot was taken; pairs that waited in the buffer wait there again."""
        low, high, sorting = state["rows"]

        def walk(saved: list[int]) -> Walk:
            return Walk(low, high, bool(sorting), saved[0], np.array(saved[1:], np.int64))

        table.have_bits(max(state["slice"][0], state["behind"][0]))
        named = {debt.run.name: debt for debt in debts}
        owed = [named[name] for name in state["runs"]]
        settlement = cls(state["side"], table, walk(state["behind"]), owed, buffer, page_bytes)
        settlement._slice_at, settlement._length = walk(state["slice"]), state["length"]
        settlement._at, settlement._next, settlement._link = state["place"]
        if state["handed_out"] is not None:
            settlement.work(pairs, state["length"], Meter())
            pairs.first = state["handed_out"]
        return settlement
