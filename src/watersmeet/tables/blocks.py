"""What tables have in common: columns of rows by number, in blocks of memory that can be given back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.records.arena import Arena, Heap, Pool
from watersmeet.records.columns import BytesColumn, Column


class StoredRows:
    """Rows in blocks, their strings in a heap of chunks. Which row is in which block is a table's own business."""

    _blocks: Pool
    _heap: Heap
    _columns: Sequence[Column]
    _ticks: Arena

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
