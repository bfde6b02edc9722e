"""Rows of one input in memory, as they came: batches are not copied, only indexed.

```
batch of 8,192 rows      ──▶  blocks 3 .. 10, each described by addresses into the batch's own buffers
batch of 40 rows         ──▶  copied to the end of the last block, until that is full
index                         by hash, or by ranges of sort keys (`tables.memtable_index`)
```

Rows are numbered as they come, without gaps. An index also tells the order of their keys: what a settlement or a run
needs is read off it. All rows go at once, or the first of them, in whole blocks: then the others get smaller numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bytes, Int32, Int64, Numbers, Uint64
from watersmeet.kernels.addressed import OTHER, STRINGS, WORDS
from watersmeet.memory import Budget
from watersmeet.records.addressed import AddressedRows, Sources, gathered_by_block, with_values, words_of
from watersmeet.records.arena import Arena
from watersmeet.tables.arrival_index import ArrivalIndex
from watersmeet.tables.hash_table import Layout
from watersmeet.tables.memtable_index import HashIndex, MemtableIndex, RangeIndex, Walk, move_down

STRETCH_BYTES = 32
"""Of each stretch at most: its first row and tick, in arrays that may be twice as long as needed."""
_FEW = 64


class ArrivalTicks:
    """Ticks by row number, of rows that are numbered as they come.

    >>> ticks = ArrivalTicks()
    >>> ticks.append(0, np.array([5, 6, 7])), ticks.append(3, np.array([8, 12]))
    (1, 1)
    >>> ticks.of(np.array([0, 3, 4])).tolist(), ticks.stretches
    ([5, 8, 12], 2)
    >>> ticks.drop_first(4)
    >>> ticks.of(np.array([0])).tolist(), ticks.stretches
    ([12], 1)
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._rows = np.empty(_FEW, np.int64)
        self._less = np.empty(_FEW, np.int64)
        """A row's tick is its number and this."""
        self.stretches = 0

    def append(self, first: int, ticks: Int64) -> int:
        """Rows from number `first` on arrived at these ticks, which increase; returns how many stretches that added."""
        count = len(ticks)
        if not count:
            return 0
        before = self.stretches
        if int(ticks[-1]) - int(ticks[0]) == count - 1:
            self._add(first, int(ticks[0]) - first)
        else:
            less = ticks - np.arange(first, first + count)
            for at in (0, *(np.flatnonzero(np.diff(less)) + 1).tolist()):
                self._add(first + at, int(less[at]))
        return self.stretches - before

    def _add(self, row: int, less: int) -> None:
        last = self.stretches - 1
        if last >= 0 and int(self._less[last]) == less:
            return
        if self.stretches == len(self._rows):
            self._rows, self._less = (np.concatenate((each, each)) for each in (self._rows, self._less))
        self._rows[self.stretches], self._less[self.stretches] = row, less
        self.stretches += 1

    def of(self, rows: Numbers) -> Int64:
        """The ticks of some rows."""
        which = np.searchsorted(self._rows[: self.stretches], rows, "right") - 1
        ticks: Int64 = rows + self._less[which]
        return ticks

    def drop_first(self, count: int) -> None:
        """Forget the first rows; the others get smaller numbers."""
        gone = int(np.searchsorted(self._rows[: self.stretches], count, "right")) - 1
        kept = slice(max(0, gone), self.stretches)
        rows, less = np.maximum(0, self._rows[kept] - count), self._less[kept] + count
        self.clear()
        self.stretches = len(rows)
        room = max(_FEW, len(rows))
        self._rows, self._less = np.resize(rows, room), np.resize(less, room)


_MOST_ROWS = 2**31 - 2
_RELEASED_FROM = 1 << 16
"""Bytes of marks that are given back to the system when rows go, so that others can have them."""
_POOLED_FROM = 512 << 10
"""Bytes of rows that are worth the fraction of a millisecond in which Arrow gives them back to the system."""


class Memtable(AddressedRows):
    """Rows by number, found by their sort keys, in the order of their arrival or of their keys.

    With `by_range` rows are found by all keys from one to another, else by their own; or an `index` is told. Without
    `ticked`, somebody else knows when they came. With `marked`, there is a mark for each row, which says whether it has
    found a partner.
    """

    def __init__(
        self,
        types: Sequence[pa.DataType],
        budget: Budget,
        layout: Layout,
        name: str,
        by_range: bool = False,
        ticked: bool = True,
        index: type[ArrivalIndex] | None = None,
        marked: bool = False,
    ) -> None:
        super().__init__(types)
        self._ticked = ticked
        self.layout = layout
        block_rows = layout.block_rows
        self._shift = block_rows.bit_length() - 1
        self._block_rows = block_rows
        self._budget = budget
        self._claim = budget.reservation(f"rows of {name}")
        self._index_claim = budget.reservation(f"index of {name}")
        kind: type[HashIndex] | type[RangeIndex] | type[ArrivalIndex] = RangeIndex if by_range else HashIndex
        kind = kind if index is None else index
        self._entry_bytes = kind.row_bytes + marked
        capacity = min(_MOST_ROWS, budget.most // self._entry_bytes + block_rows)
        self.index: MemtableIndex = kind(capacity, self._index_claim)
        self.capacity = capacity
        """So many rows fit at most."""
        self._ticks = ArrivalTicks()
        self._marks = Arena(np.uint8, capacity) if marked else None
        self._stride = 8 * WORDS * len(self.types)
        blocks = capacity // block_rows + 2
        self._words = Arena(np.int64, blocks * WORDS * max(1, len(self.types)))
        self._sources = np.array([[0, self._words.array.ctypes.data, self._shift, self._stride, 0]], np.int64)
        self.row_bytes = self._entry_bytes + 8
        self.built: Sequence[int] | None = None
        """How the index of rows that are brought back was built; None: as it would be of so many."""
        self._begin()

    generation: int = 0
    """Rows are numbered anew with each."""

    def _begin(self) -> None:
        self.generation += 1
        self.rows = 0
        self.first = 0
        """Rows before this number are of no use to anybody, and are not found by look-ups by hash."""
        self._reserved = 0
        self._nullable = [False] * len(self.types)
        self._kept: deque[tuple[int, list[pa.Array]]] = deque()
        """Arrays that blocks lie in, with the number behind the last row that does."""
        self._portions: deque[tuple[int, int]] = deque()
        """Bytes that were claimed for rows, with the number behind the last of them."""
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

    @property
    def in_blocks(self) -> int:
        """How many rows lie in blocks that are described here: all."""
        return self.rows

    def hashes(self, rows: Int32) -> Int64:
        """The keys of some rows."""
        return self.index.keys(rows)

    @property
    def hash_address(self) -> int:
        """Where the first row's hash lies; those of the others follow, each with its link behind it."""
        assert isinstance(self.index, HashIndex)
        return self.index.hash_address

    @property
    def marks(self) -> Bytes:
        """Of each row, whether it has found a partner: 1 if it has, else 0."""
        assert self._marks is not None
        return self._marks.array[: self.rows]

    @property
    def held(self) -> int:
        """Bytes that would be free without these rows."""
        return self._claim.held + self._index_claim.held

    @property
    def row_nbytes(self) -> int:
        """Bytes of the rows themselves, without what is known of them."""
        return max(0, self._claim.held - self._reserved - self._entry_bytes * self.rows)

    # --- rows that come ---

    def reserve(self, parts: Int32, columns: Sequence[pa.Array]) -> bool:
        """Claim all that `append` of these rows needs; False if there is no room. Asking again replaces the claim."""
        return self._claim_for(len(parts), sum(column.nbytes for column in columns), self.in_blocks)

    def _claim_for(self, count: int, size: int, rows: int) -> bool:
        """Claim what so many rows of this size need, in blocks behind so many others."""
        self.trim(0)
        filled = rows & (self._block_rows - 1)
        copied = min(count, self._block_rows - filled) if filled else 0
        whole = (count - copied) >> self._shift
        if whole:
            # The batch stays for its whole blocks, and what goes to the ends of others is there twice.
            size += size * (copied + ((count - copied) & (self._block_rows - 1))) // count
        blocks = -(-(rows + count) // self._block_rows) - -(-rows // self._block_rows)
        size += self._entry_bytes * count + self._stride * blocks + (STRETCH_BYTES if self._ticked else 0)
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
        count, first = len(hashes), self.rows
        size, self._reserved = self._reserved, 0
        if self._ticked:
            # Rows may follow those before them, and rows that are brought back come in several stretches.
            size += self._settle_stretches(self._ticks.append(first, ticks))
        self._note_portion(first + count, size)
        if self._marks is not None:
            self._marks.array[first : first + count] = 0
        self._place(self._plain(columns), count)
        self.rows = first + count
        return self.index.append(first, hashes, grow_index)

    def _settle_stretches(self, added: int) -> int:
        """Claim what stretches of ticks take beyond the one that was reserved for; returns how much that is."""
        more = (added - 1) * STRETCH_BYTES
        if more > 0:
            self._claim.grow(more)
        else:
            self._claim.shrink(-more)
        return more

    def _plain(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return [column if self.widths[i] == OTHER else with_values(column) for i, column in enumerate(columns)]

    def _note_portion(self, end: int, size: int) -> None:
        """Rows up to a number take so many bytes; those of a few rows are counted together."""
        portions = self._portions
        start = portions[-2][0] if len(portions) > 1 else 0
        if portions and end - start <= self._block_rows:
            size += portions.pop()[1]
        portions.append((end, size))

    def _place(self, columns: list[pa.Array], count: int) -> None:
        """Describe the blocks that rows fall into; only rows that share a block with others are copied."""
        first = self.in_blocks
        filled = first & (self._block_rows - 1)
        start = 0
        if filled:
            start = min(count, self._block_rows - filled)
            assert self._tail is not None
            joined = [
                pa.concat_arrays([old, new.slice(0, start)]) for old, new in zip(self._tail, columns, strict=True)
            ]
            self._describe(joined, 0, first >> self._shift, 1)
            self._tail = joined
            if filled + start == self._block_rows:
                self._kept.append((first + start, joined))
                self._tail = None
        whole, rest = divmod(count - start, self._block_rows)
        block = (first + start) >> self._shift
        if whole:
            self._describe(columns, start, block, whole)
            self._kept.append(((block + whole) << self._shift, columns))
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

    def fit_index(self) -> None:
        """Rows were brought back: give them the index that they should have, or the one that they had."""
        built, self.built = self.built, None
        self.index.fit(self.rows, built)

    def have_bits(self, bits: int) -> None:
        """Have an index at least as large as a place in it was noted with."""
        self.index.have_bits(self.rows, bits)

    @property
    def bits(self) -> int:
        """How large the index is."""
        return self.index.bits

    # --- look-ups, and rows in order ---

    def buckets_of(self, hashes: Int64) -> Int32:
        """In which bucket each hash is, where rows are found by hash."""
        assert isinstance(self.index, HashIndex)
        return self.index.buckets_of(hashes)

    def probe(self, probe: Any, limit: int, out_probe: Int32, out_row: Numbers) -> tuple[int, int]:
        """Go on with a look-up; returns the pairs found and the entries visited."""
        return self.index.probe(probe, limit, out_probe, out_row, self.first)

    def next_sorted(self, walk: Walk, hashes: Uint64, rows: Numbers) -> int:
        """Fill arrays with the next rows in the order of their keys; returns how many."""
        return self.index.next_sorted(walk, hashes, rows)

    def walk(self, low: int, high: int, room: int = 0) -> Walk:
        """The rows from `low` up to `high` in the order of their keys, so many at a time."""
        return self.index.walk(low, high, room)

    # --- rows that go ---

    def clear(self) -> None:
        """Forget all rows."""
        self._ticks.clear()
        if self._marks is not None and self.rows > _RELEASED_FROM:
            self._marks.release(0, self.rows)
        held = self._claim.held
        self.index.clear(self.rows)
        self._claim.clear()
        self._begin()
        if held >= _POOLED_FROM:
            # Arrow would keep what batches lay in for others of its own, while a settlement or a run takes as much.
            pa.default_memory_pool().release_unused()

    def whole_blocks(self, count: int) -> int:
        """How many of the first so many rows can be dropped: those in blocks that have no others."""
        return count if count == self.rows else count >> self._shift << self._shift

    def drop_first(self, count: int) -> None:
        """Forget the first rows, as many as whole blocks hold; the others get smaller numbers."""
        assert 0 < count <= self.rows and count == self.whole_blocks(count)
        if count == self.rows:
            self.clear()
            return
        left, blocks = self.rows - count, count >> self._shift
        width = WORDS * len(self.types)
        self.index.drop_first(count, self.rows)
        if self._ticked:
            self._ticks.drop_first(count)
        if self._marks is not None:
            move_down(self._marks.array, count, self.rows)
        if width:
            move_down(self._words.array, width * blocks, width * -(-self.rows // self._block_rows))
        for pieces in self._others:
            del pieces[:blocks]
        while self._kept and self._kept[0][0] <= count:
            self._kept.popleft()
        while self._portions and self._portions[0][0] <= count:
            self._claim.shrink(self._portions.popleft()[1])
        self._kept = deque((end - count, columns) for end, columns in self._kept)
        self._portions = deque((end - count, size) for end, size in self._portions)
        self.generation += 1
        self.rows = left
        self.first = max(0, self.first - count)

    def check(self) -> None:
        """Assert the invariants."""
        assert sum(size for _, size in self._portions) + self._reserved == self._claim.held
        assert 0 <= self.first <= self.rows
        filled = self.in_blocks & (self._block_rows - 1)
        assert (self._tail is None) == (filled == 0), (self.in_blocks, filled)
        assert self._tail is None or all(len(column) == filled for column in self._tail)
        self.index.check(self.rows)

    # --- snapshots ---

    def drop(self, part: int) -> None:
        """The same as `clear`: all rows are one partition."""
        self.clear()

    def parts_of(self, hashes: Int64) -> Int32:
        """All rows are one partition."""
        return np.zeros(len(hashes), np.int32)

    def latest_tick(self, part: int) -> int:
        """When the last row arrived."""
        return int(self._ticks.of(np.array([self.rows - 1]))[0]) if self.rows else 0

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
        return self._ticks.of(rows)
