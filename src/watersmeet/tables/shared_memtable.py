"""Rows of one shard in memory, many of which lie in batches that other shards have rows of, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Numbers
from watersmeet.kernels import split as kernels
from watersmeet.records.addressed import Sources
from watersmeet.records.arena import Arena
from watersmeet.records.split import Shared, Shelf, portion_of
from watersmeet.tables.memtable import Memtable

_PLACE_BYTES = 8
_RELEASED_FROM = 1 << 16


class SharedMemtable(Memtable):
    """A memtable that knows where each row is: in blocks of its own, or in a batch that stands on a shelf.

    Places count the table's own rows, and rows of batches with the batch's number in the upper half of a word, as
    kernels want them. The batches stay until the table is cleared; of their bytes, those of its own rows are counted.
    """

    def __init__(self, *args: Any, shelf: Shelf, **options: Any) -> None:
        self._shelf = shelf
        self._own_rows = 0
        self._batches: dict[int, Shared] = {}
        super().__init__(*args, **options)
        self._entry_bytes += _PLACE_BYTES
        self.row_bytes += _PLACE_BYTES
        self._places = Arena(np.int64, self.capacity)
        self._known = -1
        self._all_sources: Sources = self._sources

    def _begin(self) -> None:
        super()._begin()
        self._own_rows = 0
        self._batches = {}

    @property
    def in_blocks(self) -> int:
        """How many rows were copied into blocks of this table."""
        return self._own_rows

    @property
    def sources(self) -> Sources:
        if not self._batches:
            return self._sources
        shelf = self._shelf
        if self._known != shelf.version:
            self._known = shelf.version
            self._all_sources = shelf.sources.copy()
            self._all_sources[0] = self._sources[0]
        return self._all_sources

    def located(self, rows: Numbers) -> Numbers:
        if not self._batches:
            return rows
        places = np.empty(len(rows), np.int64)
        kernels.locate(rows, self._places.array, places)
        return places

    def may_be_null(self, column: int) -> bool:
        return self._nullable[column] or (bool(self._batches) and self._shelf.may_be_null[column])

    # --- rows that come ---

    def reserve(self, parts: Int32, columns: Sequence[pa.Array]) -> bool:
        """Claim all that `append` of these rows needs; False if there is no room. Asking again replaces the claim."""
        portion = portion_of(columns)
        if portion is None:
            return super().reserve(parts, columns)
        # As if they were copied: a snapshot brings them back as rows of the table's own.
        return self._claim_for(len(parts), portion.nbytes, self.rows)

    def _place(self, columns: list[pa.Array], count: int) -> None:
        portion = portion_of(columns)
        if portion is None:
            super()._place(columns, count)
            first = self._own_rows
            self._places.array[self.rows : self.rows + count] = np.arange(first, first + count)
            self._own_rows += count
        else:
            self._places.array[self.rows : self.rows + count] = portion.places
            self._batches.update(portion.batches)

    def _plain(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return list(columns) if portion_of(columns) is not None else super()._plain(columns)

    # --- rows that go ---

    def clear(self) -> None:
        """Forget all rows."""
        if _PLACE_BYTES * self.rows > _RELEASED_FROM:
            self._places.release(0, self.rows)
        super().clear()

    def drop_first(self, count: int) -> None:
        """Forget all rows; of fewer it knows nothing."""
        assert count == self.rows
        self.clear()
