"""What tables have in common: columns of rows by number, in blocks of memory that can be given back.

How rows are found is what tells tables apart: by the hash of an attribute or of several (`hash_table`,
`multi_hash_table`), by ranges of words (`range_table`, `multi_range_table`), or by hash and time, the oldest blocks
forgotten first (`window_table`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.memory import Budget
from watersmeet.records.arena import Arena, Heap, Pool
from watersmeet.records.columns import BytesColumn, Column, make_column

if TYPE_CHECKING:
    from watersmeet.tables.hash_table import Layout

_MOST_ROWS = 2**31 - 2


class StoredRows:
    """Rows in blocks, their strings in a heap of chunks. Which row is in which block is a table's own business."""

    def __init__(
        self,
        types: Sequence[pa.DataType],
        budget: Budget,
        layout: Layout,
        name: str,
        row_bytes: int,
        owners: int | None = None,
    ) -> None:
        """A row takes `row_bytes`, strings and nested values not counted. These go when all of their owner do, of which
        there are so many: the rows' blocks, unless told.
        """
        self.layout = layout
        self.types = tuple(types)
        self.row_bytes = row_bytes
        self.rows = 0
        self.block_bytes = layout.block_rows * row_bytes
        self._most_blocks = min(max(1, budget.total // self.block_bytes), _MOST_ROWS // layout.block_rows)
        self._arenas: list[tuple[Arena, int]] = []
        self._ticks = self._arena(np.int64)
        self._claims = [budget.reservation(f"{name} {what}") for what in ("blocks", "strings", "nested values")]
        self._blocks = Pool(self.block_bytes, self._most_blocks, self._claims[0], self._release_blocks)
        # Longer strings need adjoining chunks beyond all used ones, also when rows move: address space is cheap.
        plenty = 16 if owners is None else 4
        owners = self._most_blocks if owners is None else owners
        self._heap = Heap(plenty * budget.total, layout.chunk_bytes, owners, self._claims[1])
        capacity = self._most_blocks * layout.block_rows
        self._columns: list[Column] = [
            make_column(type_, capacity, owners, self._heap, self._claims[2]) for type_ in types
        ]
        self._has_strings = any(column.in_heap for column in self._columns)

    def _arena(self, dtype: Any, per_row: int = 1) -> Arena:
        """So many values of each row, which go with its block."""
        arena = Arena(dtype, per_row * self._most_blocks * self.layout.block_rows)
        self._arenas.append((arena, per_row))
        return arena

    def _release_blocks(self, first: int, beyond: int) -> None:
        start, stop = first * self.layout.block_rows, beyond * self.layout.block_rows
        for arena, per_row in self._arenas:
            arena.release(per_row * start, per_row * stop)
        for column in self._columns:
            column.release(start, stop)

    def ticks(self, rows: Int32) -> Int64:
        """When some rows arrived."""
        return self._ticks.array[rows]

    def gather(self, column: int, rows: Int32) -> pa.Array:
        """One column's values for some rows."""
        return self._columns[column].gather(rows)

    def widen(self, column: int, rows: Int32, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in an output batch."""
        self._columns[column].widen(rows, widths)

    def trim(self, size: int) -> int:
        """Give free memory back to the budget, at least `size` bytes or all there is; returns how much."""
        freed = self._blocks.trim(size)
        if freed < size:
            freed += self._heap.trim(size - freed)
        for column in self._columns:
            if freed < size:
                freed += column.trim(size - freed)
        return freed

    def _reserve_values(self, columns: Sequence[pa.Array], owners: Int32) -> bool:
        """Claim memory for the strings and nested values of new rows, whose owners they are told with."""
        lengths = np.zeros(len(owners), np.int64)
        claimed = all(
            column.reserve(array, owners, lengths) for column, array in zip(self._columns, columns, strict=True)
        )
        return claimed and (not self._has_strings or self._heap.reserve(lengths, owners))

    def _drop_values(self, owner: int) -> None:
        """Free the strings and nested values of one owner: a partition, or a block."""
        self._heap.drop(owner)
        for column in self._columns:
            column.drop(owner)

    def _keep_values(self, owner: int, rows: Int32) -> None:
        """Free the strings and nested values of one owner's rows, but for these."""
        strings = [column.chunks(rows) for column in self._columns if isinstance(column, BytesColumn)]
        if strings:
            self._heap.keep(owner, np.unique(np.concatenate(strings)))
        for column in self._columns:
            column.keep(owner, rows)
