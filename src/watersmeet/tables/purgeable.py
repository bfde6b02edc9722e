"""A table out of which single rows can be taken, in any order.

```
partition 0:  block 3 [· x · x x x · x] ─ block 7 [· · x ·] ─ block 8(open)        x: taken out
                       └────────────── few are left: they move to the open block, and block 3 is free
```

A row that is taken out leaves its chain at once; its place is free when the block is. A block of which less than half
is left is given up, its rows moving to the partition's end, so that at most about half of the memory is idle. A moved
row keeps its place in its chain: candidates come from the newest to the oldest, wherever they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels import hash_index
from watersmeet.kernels.gather import scatter
from watersmeet.memory import Budget
from watersmeet.tables.hash_table import Layout, SideTable

_LEAST_CHUNK = 256
_CHUNK_BYTES_A_ROW = 16
DEAD_BYTES = 1
"""Of each row, beyond what a `SideTable` needs: whether it was taken out."""


class PurgeableTable(SideTable):
    """Rows by number, in partitions, with a hash index; `discard` takes rows out.

    >>> table = PurgeableTable([pa.int64()], Budget(1 << 20), Layout(0, 8, 256), "left")
    >>> parts, values = np.zeros(20, np.int32), pa.array(range(20))
    >>> table.reserve(parts, [values])
    True
    >>> rows = table.append(np.arange(20), parts, [values], np.arange(1, 21))
    >>> table.discard(rows[:7]); table.discard(rows[8:16]); table.rows, table.blocks
    (5, 1)
    >>> table.gather(0, table.rows_of(0)).to_pylist()
    [7, 16, 17, 18, 19]
    """

    values_by_block: ClassVar[bool] = True

    def __init__(self, types: Sequence[pa.DataType], budget: Budget, layout: Layout, name: str) -> None:
        # Chunks belong to blocks here: large ones would mostly be empty.
        chunk = max(_LEAST_CHUNK, min(layout.chunk_bytes, _CHUNK_BYTES_A_ROW * layout.block_rows))
        fine = replace(layout, chunk_bytes=1 << (chunk.bit_length() - 1))
        super().__init__(types, budget, fine, name, DEAD_BYTES)
        self._dead = self._arena(np.uint8)
        self._dead_rows = np.zeros(self._most_blocks, np.int32)
        self._moved = np.zeros(layout.partitions, np.bool_)
        self._newest = np.zeros(layout.partitions, np.int64)

    @property
    def blocks(self) -> int:
        """How many blocks hold rows."""
        return self._blocks.in_use

    def append(
        self, hashes: Int64, parts: Int32, columns: Sequence[pa.Array], ticks: Int64, grow_index: bool = True
    ) -> Int32:
        """Put in rows whose memory was reserved; returns their numbers."""
        rows = super().append(hashes, parts, columns, ticks, grow_index)
        np.maximum.at(self._newest, parts, ticks)
        return rows

    def discard(self, rows: Int32) -> None:
        """Take rows out; none twice."""
        if not len(rows):
            return
        dead, block_rows = self._dead.array, self.layout.block_rows
        dead[rows] = 1
        parts = self.parts_of(self.hashes(rows))
        hash_index.unlink_rows(rows, parts, dead, self._entries.array, self._heads, self._buckets)
        self.part_rows -= np.bincount(parts, minlength=self.layout.partitions)
        self.rows -= len(rows)
        blocks, first, counts = np.unique(rows // block_rows, return_index=True, return_counts=True)
        self._dead_rows[blocks] += counts.astype(np.int32)
        for block, part in zip(blocks.tolist(), parts[first].tolist(), strict=True):
            self._give_up(block, part)

    def _give_up(self, block: int, part: int) -> None:
        """Free a block of which little is left, if what is left finds room elsewhere."""
        filled = self._filled_of(part, block)
        live = filled - int(self._dead_rows[block])
        is_tail = block == self._tails[part]
        if not live:
            self._free(block, part)
        elif not is_tail and 2 * live < filled:
            first = block * self.layout.block_rows
            rows = np.arange(first, first + filled, dtype=np.int32)
            rows = rows[self._dead.array[rows] == 0]
            if self._move(rows, part):
                self._free(block, part)

    def _move(self, olds: Int32, part: int) -> bool:
        """Let rows go to the end of their partition; False, with nothing changed, if there is no memory for that."""
        parts = np.full(len(olds), part, np.int32)
        columns = [column.gather(olds) for column in self._columns]
        if not self.reserve(parts, columns):
            return False
        ticks = self.ticks(olds)
        before = int(self.part_rows[part])
        news = self._place(parts, columns)
        self.part_rows[part] = before
        scatter(ticks, news, self._ticks.array)
        hash_index.replace_rows(olds, news, parts, self._entries.array, self._heads, self._buckets)
        self._moved[part] = True
        return True

    def _free(self, block: int, part: int) -> None:
        if block == self._tails[part]:
            self._tails[part], self._used[part] = -1, 0
        self._owned[part].remove(block)
        self._clear_marks([block])
        self._blocks.give_back([block])
        self._drop_values(block)

    def _clear_marks(self, blocks: Sequence[int]) -> None:
        block_rows = self.layout.block_rows
        for block in blocks:
            if self._dead_rows[block]:
                self._dead.array[block * block_rows : (block + 1) * block_rows] = 0
                self._dead_rows[block] = 0

    def drop(self, part: int) -> None:
        """Forget a partition's rows."""
        self._clear_marks(self._owned[part])
        super().drop(part)
        self._moved[part] = False
        self._newest[part] = 0

    def _filled_of(self, part: int, block: int) -> int:
        closed = int(self._filled[block])
        return closed or (int(self._used[part]) if block == self._tails[part] else self.layout.block_rows)

    def rows_of(self, part: int) -> Int32:
        """A partition's row numbers, in the order of their arrival."""
        rows = super().rows_of(part)
        if self._dead_rows[self._owned[part]].any():
            rows = rows[self._dead.array[rows] == 0]
        return rows[np.argsort(self.ticks(rows), kind="stable")] if self._moved[part] else rows

    def oldest(self, part: int, count: int) -> Int32:
        """All of a partition's row numbers: where rows may have been taken out, it leaves whole."""
        return self.rows_of(part)

    def all_rows(self) -> tuple[Int32, Int64]:
        """All row numbers, block by block, and of each its partition."""
        rows, parts = super().all_rows()
        alive = self._dead.array[rows] == 0
        return rows[alive], parts[alive]

    def latest_tick(self, part: int) -> int:
        """When a partition's newest row arrived, if it has not been taken out since; 0 if there are none."""
        return int(self._newest[part]) if self.part_rows[part] else 0

    def _relink(self, part: int) -> None:
        if not self._moved[part] and not self._dead_rows[self._owned[part]].any():
            super()._relink(part)
            return
        rows = self.rows_of(part)
        parts = np.full(len(rows), part, np.int32)
        hash_index.link_rows(self.hashes(rows), parts, rows, self._entries.array, self._heads, self._buckets)

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        marked = self._dead.array[: self._blocks.slots * self.layout.block_rows].reshape(-1, self.layout.block_rows)
        owned = [block for blocks in self._owned for block in blocks]
        assert np.array_equal(np.count_nonzero(marked[owned], axis=1), self._dead_rows[owned])
        assert not np.delete(self._dead_rows, owned).any(), "free blocks have no marks"
        for part in np.flatnonzero(self._moved).tolist():
            in_order = (np.diff(self.ticks(self.rows_of(part))) > 0).all()
            assert in_order or self.brought_back(part), "rows are told in the order of their arrival"
