"""What an operator remembers of one input when any of its rows may leave: rows in blocks, found by ranges of words.

```
blocks   [3: full] ─ [7: full] ─ [1: part, open]      rows lie in the order of their arrival
index    sorted runs of (word, row)
```

Rows that leave are scattered over the blocks. The rows that stay move together, block by block, so that whole blocks
become free for either side; a block of which nothing leaves stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels import sorted_runs
from watersmeet.kernels.sorted_runs import RangeProbe, SortedRuns
from watersmeet.memory import Budget
from watersmeet.records.columns import estimated_width
from watersmeet.records.plan import value_widths
from watersmeet.tables.blocks import StoredRows
from watersmeet.tables.hash_table import Layout

_FIXED_BYTES = 17 + sorted_runs.ENTRY_BYTES
"""Of each row, beyond its columns: word, arrival tick, join bit, and its place in the index."""
_TAG_BYTES = 8
_SLOT_BYTES = 2
_MOST_SLOTS = 1 << 16
_NO_SLOTS = np.zeros(0, np.uint16)
_NONE = np.zeros(0, np.int64)
_BLOCKS = 40
_LEAST_BLOCK_ROWS, _MOST_BLOCK_ROWS = 8, 65_536
_LEAST_CHUNK, _MOST_CHUNK = 256, 64 * 1024


def sorted_layout(memory: int, row_bytes: int, most_rows: int | None = None) -> Layout:
    """How tables of such rows divide the memory that they share; memory is freed for others by so many rows at most.

    >>> sorted_layout(1 << 20, 48)
    Layout(partition_bits=0, block_rows=512, chunk_bytes=8192, bucket_rows=1)
    >>> sorted_layout(1 << 20, 48, most_rows=51).block_rows
    32
    """
    share = memory // _BLOCKS
    rows = _power(max(_LEAST_BLOCK_ROWS, min(share // row_bytes, most_rows or _MOST_BLOCK_ROWS, _MOST_BLOCK_ROWS)))
    return Layout(0, rows, _power(max(_LEAST_CHUNK, min(share // 2, _MOST_CHUNK))))


def _power(value: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (value.bit_length() - 1)


def sorted_row_bytes(types: Sequence[pa.DataType], tagged: bool, more_indexes: int = 0) -> int:
    """What a row takes, the bytes of its strings and nested values not counted."""
    fixed = _FIXED_BYTES + tagged * _TAG_BYTES + more_indexes * sorted_runs.ENTRY_BYTES
    return fixed + sum(estimated_width(type_) for type_ in types)


@dataclass(frozen=True, slots=True)
class LooseRows:
    """Rows that are in no table any more."""

    types: tuple[pa.DataType, ...]
    words: Int64
    arrived: Int64
    columns: list[pa.Array]

    def hashes(self, rows: Int32) -> Int64:
        """The words of some rows."""
        return self.words[rows]

    def ticks(self, rows: Int32) -> Int64:
        """When some rows arrived."""
        return self.arrived[rows]

    def gather(self, column: int, rows: Int32) -> pa.Array:
        """One column's values for some rows."""
        return self.columns[column].take(pa.array(rows))

    def widen(self, column: int, rows: Int32, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in a batch."""
        widths += value_widths(self.columns[column])[rows]


class SortedSide(StoredRows):
    """Rows by number, with a sorted index over a word each has.

    Like a `SideTable` it takes rows in two steps, `reserve` and `append`. If it is tagged, the last of its columns
    holds each row's tag, and a look-up finds rows of the same tag only. With `sorted_late` rows are not put into the
    index one by one: `fit_index` sorts all of them.
    """

    def __init__(
        self,
        types: Sequence[pa.DataType],
        budget: Budget,
        layout: Layout,
        name: str,
        *,
        tagged: bool = False,
        from_disk: bool = False,
        sorted_late: bool = False,
        more_indexes: int = 0,
    ) -> None:
        super().__init__(
            types, budget, layout, name, sorted_row_bytes(types, tagged, more_indexes) + from_disk * _SLOT_BYTES
        )
        self._sorted_late = sorted_late
        self.index = SortedRuns()
        self.run_lengths: list[int] | None = None
        """In which runs `fit_index` is to build the index; None: one."""
        self._words = self._arena(np.int64)
        self._joined = self._arena(np.uint8)
        self._tags = self._arena(np.int64) if tagged else None
        self._slots = self._arena(np.uint16) if from_disk else None
        """Which of the departures is each row's: those of a block left together, and a row that was brought back should
        take hardly more memory than one that has to leave for it."""
        self._departures = _NONE
        self._order: list[int] = []
        self._filled = np.zeros(self._most_blocks, np.int64)

    # --- what a progressive join and its snapshots ask of any table ---

    def parts_of(self, words: Int64) -> Int32:
        """All rows are in one partition."""
        return np.zeros(len(words), np.int32)

    def brought_back(self, part: int) -> bool:
        """No row comes back from disk into this table."""
        return False

    def ordinals(self, rows: Int32) -> Int64:
        """No row comes back from disk into this table."""
        return np.full(len(rows), -1)

    def latest_tick(self, part: int) -> int:
        """When the newest row arrived; 0 if there is none."""
        if not self._order:
            return 0
        block = self._order[-1]
        return int(self._ticks.array[block * self.layout.block_rows + self._filled[block] - 1])

    # --- rows in ---

    def reserve(self, parts: Int32, columns: Sequence[pa.Array]) -> bool:
        """Claim memory for new rows; False, with nothing but free memory claimed, if there is not enough."""
        needed = -(-max(0, len(parts) - self._room) // self.layout.block_rows)
        if len(self._departures) == _MOST_SLOTS or not self._blocks.reserve(needed):
            return False
        return self._reserve_values(columns, self._owners(len(parts)))

    @property
    def _room(self) -> int:
        return self.layout.block_rows - int(self._filled[self._order[-1]]) if self._order else 0

    def _owners(self, count: int) -> Int32:
        """The block of each of the next rows, once there are enough blocks."""
        block_rows, room = self.layout.block_rows, self._room
        needed = -(-max(0, count - room) // block_rows)
        blocks = ([self._order[-1]] if room else []) + self._blocks.peek()[:needed]
        sizes = ([room] if room else []) + [block_rows] * needed
        return np.repeat(np.array(blocks, np.int32), sizes)[:count]

    def append(
        self, words: Int64, parts: Int32, columns: Sequence[pa.Array], ticks: Int64, grow_index: bool = True
    ) -> Int32:
        """Put in rows whose memory was reserved; returns their numbers. Without `grow_index`, `fit_index` follows."""
        rows = self._put(words, columns, ticks)
        if self._sorted_late:
            self.index.clear()
        elif grow_index:
            self.index.insert(words, rows)
        return rows

    def _put(self, words: Int64, columns: Sequence[pa.Array], ticks: Int64) -> Int32:
        count, block_rows = len(words), self.layout.block_rows
        owners = self._owners(count)
        rows = np.empty(count, np.int32)
        start = 0
        while start < count:
            if not self._room:
                self._order += self._blocks.take(1)
                self._filled[self._order[-1]] = 0
            block, size = self._order[-1], min(count - start, self._room)
            first = block * block_rows + int(self._filled[block])
            rows[start : start + size] = np.arange(first, first + size)
            self._filled[block] += size
            start += size
        lengths = np.zeros(count, np.int64)
        strings = [(column, array) for column, array in zip(self._columns, columns, strict=True) if column.in_heap]
        for column, array in strings:
            column.reserve(array, owners, lengths)
        starts = self._heap.place(lengths, owners) if strings else lengths
        for column, array in zip(self._columns, columns, strict=True):
            column.append(array, rows, owners, starts)
        self._words.array[rows] = words
        self._ticks.array[rows] = ticks
        self._joined.array[rows] = 0
        if self._tags is not None:
            self._tags.array[rows] = columns[-1].to_numpy()
        self.rows += count
        return rows

    def fit_index(self) -> None:
        """Build the index of rows that were appended without it."""
        rows = self.rows_of()
        self.index.build(self._words.array[rows], rows, self.run_lengths or ([len(rows)] if len(rows) else []))
        self.run_lengths = None

    # --- rows out ---

    def rows_of(self, part: int = 0) -> Int32:
        """All row numbers, in the order of their arrival."""
        spans = [
            np.arange(block * self.layout.block_rows, block * self.layout.block_rows + self._filled[block])
            for block in self._order
        ]
        return np.concatenate(spans).astype(np.int32) if spans else np.empty(0, np.int32)

    def all_rows(self) -> tuple[Int32, Int64]:
        """All row numbers, and of each its partition."""
        rows = self.rows_of()
        return rows, np.zeros(len(rows), np.int64)

    @property
    def part_rows(self) -> Int64:
        """How many rows there are, as one partition."""
        return np.array([self.rows])

    def oldest(self, part: int, count: int) -> Int32:
        """All row numbers: they leave together."""
        return self.rows_of()

    def in_order(self, rows: Int32) -> Int32:
        """All row numbers in the order of their words; those of one word in the order of their arrival."""
        if self.rows and not self.index.lengths:
            self.fit_index()
        return self.index.sorted()[1]

    def remove(self, rows: Int32) -> list[LooseRows]:
        """Forget rows, and move the others together. What then finds no room is handed back: it is in memory no more.

        That is hardly ever anything: a block is freed before its rows that stay are put somewhere else.
        """
        block_rows = self.layout.block_rows
        leave = np.zeros(len(self._words.array), np.bool_)
        leave[rows] = True
        numbers = np.full(len(leave), -1, np.int32)
        before, self._order = self._order, []
        loose: list[LooseRows] = []
        for block in before:
            filled = int(self._filled[block])
            old = np.arange(block * block_rows, block * block_rows + filled, dtype=np.int32)
            stay = old[~leave[old]]
            if len(stay) == block_rows:
                self._order.append(block)
                numbers[old] = old
                continue
            words, ticks, joined = self._words.array[stay], self._ticks.array[stay], self._joined.array[stay]
            columns = [column.gather(stay) for column in self._columns] if len(stay) else []
            self._free([block])
            self.rows -= filled
            if not len(stay):
                continue
            parts = np.zeros(len(stay), np.int32)
            if self.reserve(parts, columns) or (self.trim(self._heap_bytes) >= 0 and self.reserve(parts, columns)):
                new = self._put(words, columns, ticks)
                self._joined.array[new] = joined
                numbers[stay] = new
            else:
                loose.append(LooseRows(self.types, words, ticks, columns))
        self._renumber(numbers)
        return loose

    def _renumber(self, numbers: Int32) -> None:
        """Rows have got other numbers, or -1 if they are gone."""
        self.index.renumber(numbers)

    @property
    def _heap_bytes(self) -> int:
        return len(self._heap.bytes)

    def remove_last(self, count: int) -> None:
        """Forget the rows put in last, before the index is built; no more may follow until all are dropped."""
        while count:
            block = self._order[-1]
            size = min(count, int(self._filled[block]))
            self._filled[block] -= size
            self.rows -= size
            count -= size
            if not self._filled[block]:
                self._free([self._order.pop()])

    def drop(self, part: int = 0) -> None:
        """Forget all rows."""
        self._free(self._order)
        self._order = []
        self.rows = 0
        self._departures = _NONE
        self.index.clear()

    def drop_oldest(self, part: int, count: int) -> None:
        """Forget all rows."""
        assert count == self.rows, "rows leave together"
        self.drop()

    def _free(self, blocks: list[int]) -> None:
        self._blocks.give_back(blocks)
        for block in blocks:
            self._filled[block] = 0
            self._drop_values(block)

    # --- rows looked at ---

    def hashes(self, rows: Int32) -> Int64:
        """The words of some rows."""
        return self._words.array[rows]

    def set_departed(self, rows: Int32, tick: int) -> None:
        """Note when rows that were brought back from disk had left memory."""
        assert self._slots is not None
        if not len(self._departures) or self._departures[-1] != tick:
            self._departures = np.append(self._departures, tick)
        self._slots.array[rows] = len(self._departures) - 1

    def departed(self, rows: Int32) -> Int64:
        """When some rows that were brought back from disk had left memory."""
        assert self._slots is not None
        departed: Int64 = self._departures[self._slots.array[rows]]
        return departed

    def probe(self, probe: RangeProbe, limit: int, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        """Go on with a look-up, visiting about `limit` entries; returns the pairs found and the entries visited."""
        tags = _NONE if self._tags is None else self._tags.array
        slots = _NO_SLOTS if self._slots is None else self._slots.array
        return self.index.probe(probe, limit, out_probe, out_row, tags, self._ticks.array, slots, self._departures)

    def joined(self, rows: Int32) -> NDArray[np.bool_]:
        """Which of some rows have their join bit set."""
        return self._joined.array[rows] > 0

    def clear_joined(self, rows: Int32) -> None:
        """Reset the join bits of some rows."""
        self._joined.array[rows] = 0

    def note_joined(self, rows: Int32, lower: int, upper: int, counts: Int64) -> None:
        """Set the join bits of some rows, and count them by region."""
        sorted_runs.count_by_region(self._words.array, rows, lower, upper, self._joined.array, counts)

    @property
    def nbytes(self) -> int:
        """What the rows take, with blocks and chunks that are free or only partly filled."""
        return sum(claim.held for claim in self._claims)

    def check(self) -> None:
        """Assert the invariants."""
        self._blocks.check()
        self._heap.check()
        rows = self.rows_of()
        assert len(rows) == self.rows
        assert len(self._order) == len(set(self._order)) == self._blocks.in_use
        if self._slots is None:
            assert (np.diff(self._ticks.array[rows]) > 0).all(), "rows lie in the order of their arrival"
        follows = self._slots is not None or self._sorted_late
        if self.run_lengths is not None or (follows and not self.index.lengths):
            return  # rows are being loaded or collected: the index follows
        self.index.check(self._words.array[rows], rows)
