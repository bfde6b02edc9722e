"""Rows of one input in memory, as they came: batches are not copied, only indexed.

```
batch of 8,192 rows      ──▶  blocks 3 .. 10, each described by addresses into the batch's own buffers
batch of 40 rows         ──▶  copied to the end of the last block, until that is full
index                         entries (hash, link) by row, heads by the top bits of the hash
```

Rows are numbered as they come, without gaps. The buckets of the index are in the order of hashes, so that going through
them is going through the rows in sorted order: what a settlement or a run needs is read off the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64, Numbers, Uint64
from watersmeet.core.errors import BudgetError
from watersmeet.kernels import hash_index, sorted_walk
from watersmeet.kernels.addressed import OTHER, STRINGS, WORDS
from watersmeet.memory import Budget
from watersmeet.records.addressed import AddressedRows, Sources, gathered_by_block, with_values, words_of
from watersmeet.records.arena import Arena, uses_huge_pages
from watersmeet.tables.hash_table import Layout, Probe

ENTRY_BYTES = 24
"""Of each row, beyond its columns and its bucket: hash, link, arrival tick."""
_HASH_AND_LINK = 16
_FIRST_BITS = 6
_FEW = 8
"""Where one row of so many buckets is wanted, going through the index takes longer than sorting."""
_MOST_ROWS = 2**31 - 2
_RELEASED_FROM = 1 << 16
"""Bytes of the index that are given back to the system when rows go, so that others can have them."""


@dataclass(slots=True)
class Walk:
    """A place in the rows sorted by their hashes, of those numbered from `low` to `high`."""

    low: int
    high: int
    sorting: bool = False
    """Whether rows are taken in the order of their arrival, as many as the buffer holds, and sorted; else the index
    tells their order, over all buffers."""
    bits: int = 0
    """Of the index that the cursor is a place in."""
    cursor: Int64 = field(default_factory=lambda: np.zeros(sorted_walk.CURSOR, np.int64))

    @property
    def done(self) -> bool:
        """Whether all rows have been passed."""
        return bool(self.cursor[0] < 0)


class Memtable(AddressedRows):
    """Rows by number, found by their hashes, in the order of their arrival or of their hashes."""

    def __init__(
        self, types: Sequence[pa.DataType], budget: Budget, layout: Layout, name: str, ticked: bool = True
    ) -> None:
        """Without `ticked`, somebody else knows when the rows came."""
        super().__init__(types)
        self._ticked = ticked
        self._entry_bytes = ENTRY_BYTES if ticked else _HASH_AND_LINK
        self.layout = layout
        block_rows = layout.block_rows
        self._shift = block_rows.bit_length() - 1
        self._block_rows = block_rows
        self._budget = budget
        self._claim = budget.reservation(f"rows of {name}")
        self._index_claim = budget.reservation(f"index of {name}")
        capacity = min(_MOST_ROWS, budget.total // self._entry_bytes + block_rows)
        self._entries = Arena(np.int64, 2 * capacity, uses_huge_pages(budget))
        self._ticks = Arena(np.int64, capacity, uses_huge_pages(budget))
        self._stride = 8 * WORDS * len(self.types)
        blocks = capacity // block_rows + 2
        self._words = Arena(np.int64, blocks * WORDS * max(1, len(self.types)))
        self._sources = np.array([[0, self._words.array.ctypes.data, self._shift, self._stride, 0]], np.int64)
        self.row_bytes = ENTRY_BYTES + 8
        self._begin()

    def _begin(self) -> None:
        self.rows = 0
        self._bits = _FIRST_BITS
        self._heads = np.zeros(1 << self._bits, np.int32)
        self._index_claim.clear()
        self._index_claim.grow(self._heads.nbytes)
        self._reserved = 0
        self._nullable = [False] * len(self.types)
        self._kept: list[list[pa.Array]] = []
        self._tail: list[pa.Array] | None = None
        self._others: list[list[pa.Array]] = [[] for _ in self.types]

    # --- where rows are ---

    @property
    def sources(self) -> Sources:
        return self._sources

    def may_be_null(self, column: int) -> bool:
        return self._nullable[column]

    def other(self, column: int, rows: Numbers) -> pa.Array:
        return gathered_by_block(self._others[column].__getitem__, rows, self._shift)

    def other_width(self, column: int, rows: Numbers) -> int:
        pieces = self._others[column]
        return int(sum(piece.nbytes for piece in pieces)) // max(1, self.rows) + 1

    def hashes(self, rows: Int32) -> Int64:
        """The hashes of some rows."""
        hashes = np.empty(len(rows), np.int64)
        hash_index.hashes_of(rows, self._entries.array, hashes)
        return hashes

    @property
    def hash_address(self) -> int:
        """Where the first row's hash lies; those of the others follow, each with its link behind it."""
        return int(self._entries.array.ctypes.data)

    @property
    def held(self) -> int:
        """Bytes that would be free without these rows."""
        return self._claim.held + self._index_claim.held

    # --- rows that come ---

    def reserve(self, parts: Int32, columns: Sequence[pa.Array]) -> bool:
        """Claim all that `append` of these rows needs; False if there is no room. Asking again replaces the claim."""
        self.trim(0)
        count = len(parts)
        size = sum(column.nbytes for column in columns)
        filled = self.rows & (self._block_rows - 1)
        copied = min(count, self._block_rows - filled) if filled else 0
        whole = (count - copied) >> self._shift
        if whole:
            # The batch stays for its whole blocks, and what goes to the ends of others is there twice.
            size += size * (copied + ((count - copied) & (self._block_rows - 1))) // count
        blocks = -(-(self.rows + count) // self._block_rows) - -(-self.rows // self._block_rows)
        size += self._entry_bytes * count + self._stride * blocks
        if not self._claim.try_grow(size):
            return False
        self._reserved = size
        return True

    def trim(self, size: int) -> int:
        """Give back what was claimed and not used; returns how much."""
        freed, self._reserved = self._reserved, 0
        self._claim.shrink(freed)
        return freed

    def append(
        self, hashes: Int64, parts: Int32, columns: Sequence[pa.Array], ticks: Int64, grow_index: bool = True
    ) -> Int32:
        """Take rows for which there is room; returns their numbers."""
        self._reserved = 0
        count, first = len(hashes), self.rows
        if self._ticked:
            self._ticks.array[first : first + count] = ticks
        plain = [column if self.widths[i] == OTHER else with_values(column) for i, column in enumerate(columns)]
        self._place(plain, count)
        self.rows = first + count
        if grow_index:
            self._widen_index(first, self.rows)
        numbers = np.arange(first, self.rows, dtype=np.int32)
        hash_index.link_rows(hashes, self.buckets_of(hashes), numbers, self._entries.array, self._heads, 1)
        return numbers

    def _place(self, columns: list[pa.Array], count: int) -> None:
        """Describe the blocks that rows fall into; only rows that share a block with others are copied."""
        filled = self.rows & (self._block_rows - 1)
        start = 0
        if filled:
            start = min(count, self._block_rows - filled)
            assert self._tail is not None
            joined = [
                pa.concat_arrays([old, new.slice(0, start)]) for old, new in zip(self._tail, columns, strict=True)
            ]
            self._describe(joined, 0, self.rows >> self._shift, 1)
            self._tail = joined
            if filled + start == self._block_rows:
                self._kept.append(joined)
                self._tail = None
        whole, rest = divmod(count - start, self._block_rows)
        block = (self.rows + start) >> self._shift
        if whole:
            self._describe(columns, start, block, whole)
            self._kept.append(columns)
        if rest:
            self._tail = [column.slice(count - rest, rest) for column in columns]
            self._describe(self._tail, 0, block + whole, 1)

    def _describe(self, columns: Sequence[pa.Array], start: int, block: int, blocks: int) -> None:
        width = WORDS * len(self.types)
        words = self._words.array[block * width : (block + blocks) * width].reshape(blocks, len(self.types), WORDS)
        steps = start + (np.arange(blocks) << self._shift)
        for number, column in enumerate(columns):
            kind = int(self.widths[number])
            if kind == OTHER:
                pieces = self._others[number]
                del pieces[block:]
                pieces += [column.slice(int(step), self._block_rows) for step in steps]
                continue
            values, strings, validity = words_of(column, kind)
            # Booleans are told by bits, strings by their offsets: a step is a bit, or as wide as an offset.
            words[:, number, 0] = values + steps * (kind if kind > 0 else 1 if kind > STRINGS else -kind)
            words[:, number, 1] = strings
            words[:, number, 2] = (validity + steps) if validity else 0
            if validity:
                self._nullable[number] = True

    def buckets_of(self, hashes: Int64) -> Int32:
        """In which bucket each hash is."""
        buckets = np.empty(len(hashes), np.int32)
        hash_index.partitions_of(hashes, self._bits, buckets)
        return buckets

    def _widen_index(self, linked: int, rows: int) -> None:
        """Have as many buckets as rows, if there is room for them; without, chains are longer."""
        bits = max(self._bits, (rows - 1).bit_length())
        while bits > self._bits and not self._index_claim.try_grow((4 << bits) - self._heads.nbytes):
            bits -= 1
        if bits > self._bits:
            self._bits = bits
            self._heads = np.zeros(1 << bits, np.int32)
            sorted_walk.relink(self._entries.array, linked, self._heads, bits)

    def fit_index(self) -> None:
        """Rows were brought back: give them the index that they should have."""
        self._widen_index(self.rows, self.rows)

    def have_bits(self, bits: int) -> None:
        """Have at least as many buckets as a place in the index was noted with."""
        self._widen_index(self.rows, 1 << bits)
        if self._bits < bits:
            raise BudgetError("the snapshot does not fit into the memory that it was taken with; allow a little more")

    @property
    def bits(self) -> int:
        """There are two to this power buckets."""
        return self._bits

    # --- look-ups, and rows in order ---

    def probe(self, probe: Probe, stop: int, out_probe: Int32, out_row: Numbers, found: int) -> tuple[int, int]:
        """Go on with a look-up, up to hash `stop` or until the buffers are full; returns pairs and entries visited."""
        found, probe.next, probe.link, visited = hash_index.probe(
            probe.hashes, probe.parts, probe.next, stop, probe.link, self._entries.array, self._heads, 1,
            out_probe, out_row, found,
        )  # fmt: skip
        return found, visited

    def next_sorted(self, walk: Walk, hashes: Uint64, rows: Numbers) -> int:
        """Fill arrays with the next rows in the order of their hashes; returns how many."""
        if not walk.sorting:
            self.bring_up(walk)
            args = self._entries.array, self._heads, walk.low, walk.high, walk.cursor, hashes, rows
            return int(sorted_walk.walk(*args))
        start = int(walk.cursor[0])
        count = max(0, min(len(rows), walk.high - start)) if start >= 0 else 0
        found = self._entries.array[2 * start : 2 * (start + count) : 2].view(np.uint64)
        order = np.argsort(found, kind="stable")
        hashes[:count] = found[order]
        rows[:count] = order
        rows[:count] += start
        walk.cursor[0] = start + count if start + count < walk.high else -1
        return count

    def walk(self, low: int, high: int) -> Walk:
        """The rows from `low` up to `high` in the order of their hashes: few are sorted, many read off the index."""
        walk = Walk(low, high, _FEW * (high - low) < len(self._heads), self._bits)
        if low >= high:
            walk.cursor[0] = -1
        elif walk.sorting:
            walk.cursor[0] = low
        return walk

    def bring_up(self, walk: Walk) -> None:
        """The index may have more buckets than when a place in it was noted: the same place among those."""
        assert walk.bits <= self._bits
        if walk.cursor[0] >= 0 and not walk.sorting:
            if walk.cursor[1]:
                walk.cursor[0] = int(walk.cursor[2:3].view(np.uint64)[0]) >> (64 - self._bits)
            else:
                walk.cursor[0] <<= self._bits - walk.bits
        walk.bits = self._bits

    # --- rows that go ---

    def clear(self) -> None:
        """Forget all rows."""
        size = ENTRY_BYTES * self.rows
        if size > _RELEASED_FROM:
            self._entries.release(0, 2 * self.rows)
            self._ticks.release(0, self.rows)
        self._claim.clear()
        self._begin()

    def check(self) -> None:
        """Assert the invariants."""
        filled = self.rows & (self._block_rows - 1)
        assert (self._tail is None) == (filled == 0), (self.rows, filled)
        assert self._tail is None or all(len(column) == filled for column in self._tail)
        assert len(self._heads) == 1 << self._bits

    # --- snapshots ---

    def drop(self, part: int) -> None:
        """The same as `clear`: all rows are one partition."""
        self.clear()

    def parts_of(self, hashes: Int64) -> Int32:
        """All rows are one partition."""
        return np.zeros(len(hashes), np.int32)

    def latest_tick(self, part: int) -> int:
        """When the last row arrived."""
        return int(self._ticks.array[self.rows - 1]) if self.rows else 0

    def brought_back(self, part: int) -> bool:
        """No row comes back from disk."""
        return False

    def rows_of(self, part: int) -> Int32:
        """All rows."""
        return np.arange(self.rows, dtype=np.int32)

    def ordinals(self, rows: Int32) -> Int64:
        """No row lies on disk, too."""
        return np.full(len(rows), -1, np.int64)

    def ticks(self, rows: Int32) -> Int64:
        """When some rows arrived."""
        return self._ticks.array[rows]
