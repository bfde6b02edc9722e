"""What an operator remembers of one of several inputs when any of its rows may leave: sorted by every join attribute.

```
rows in blocks ── index 0, a part of the table     sorted runs of (word of attribute 0, row)
               ── index 1                          sorted runs of (word of attribute 1, row), the same rows in each
```

The words of the attributes beyond the first are stored as the table's last columns, so that rows carry them to disk
and back. A row that leaves is taken out of all indexes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels import sorted_runs
from watersmeet.kernels.sorted_runs import RangeProbe, SortedRuns
from watersmeet.memory import Budget
from watersmeet.records.attributes import Reach
from watersmeet.records.columns import FixedColumn
from watersmeet.tables.hash_table import Layout, Probe
from watersmeet.tables.range_table import LooseRows, SortedSide, sorted_row_bytes

_EVERYTHING = np.iinfo(np.int64).max


def many_sorted_row_bytes(types: Sequence[pa.DataType], attributes: int) -> int:
    """What a row takes, the bytes of its strings and nested values not counted."""
    return sorted_row_bytes([*types, *[pa.int64()] * (attributes - 1)], False, attributes - 1)


class ManySorted(SortedSide):
    """A table with a sorted index for each join attribute; the words of all but the first are its last columns."""

    def __init__(
        self, types: Sequence[pa.DataType], attributes: int, budget: Budget, layout: Layout, name: str
    ) -> None:
        self._others = [SortedRuns() for _ in range(attributes - 1)]
        words = [pa.int64()] * (attributes - 1)
        super().__init__([*types, *words], budget, layout, name, more_indexes=len(words))

    @property
    def indexes(self) -> list[SortedRuns]:
        """One for each attribute."""
        return [self.index, *self._others]

    def words(self, attribute: int) -> Int64:
        """One attribute's words, by row number."""
        if not attribute:
            words: Int64 = self._words.array
            return words
        column = self._columns[len(self.types) - len(self._others) + attribute - 1]
        assert isinstance(column, FixedColumn)
        return column.words

    def append(
        self, words: Int64, parts: Int32, columns: Sequence[pa.Array], ticks: Int64, grow_index: bool = True
    ) -> Int32:
        """Put in rows whose memory was reserved; returns their numbers. Without `grow_index`, `fit_index` follows."""
        rows = super().append(words, parts, columns, ticks, grow_index)
        if grow_index:
            for number, index in enumerate(self._others, 1):
                index.insert(self.words(number)[rows], rows)
        return rows

    def fit_index(self) -> None:
        """Build the indexes of rows that were appended without them."""
        rows = self.rows_of()
        lengths = self.run_lengths or ([len(rows)] if len(rows) else [])
        super().fit_index()
        for number, index in enumerate(self._others, 1):
            index.build(self.words(number)[rows], rows, lengths)

    def sort_indexes(self) -> None:
        """Rows are put in in the order of their arrival, and indexes built of all of them."""

    def _renumber(self, numbers: Int32) -> None:
        for index in self.indexes:
            index.renumber(numbers)

    def drop(self, part: int = 0) -> None:
        """Forget all rows."""
        super().drop(part)
        for index in self._others:
            index.clear()

    # --- look-ups ---

    def attribute_hashes(self, attribute: int, rows: Int32) -> Int64:
        """One attribute's words of some rows."""
        return self.words(attribute)[rows]

    def seek(self, attribute: int, words: Int64, reach: Reach | None = None) -> RangeProbe:
        """The look-up of some words of one attribute, or of all that is within their reach."""
        if reach is None:
            return RangeProbe(words, words, words)
        return RangeProbe(words, reach.low, reach.high, in_doubles=reach.in_doubles, width=reach.width)

    def look_up(self, attribute: int, probe: Probe | RangeProbe, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        """Go on with a look-up by one attribute until the buffers are full; returns pairs found, entries visited."""
        assert isinstance(probe, RangeProbe)
        return self.indexes[attribute].probe(probe, _EVERYTHING, out_probe, out_row)

    def note_results(self, rows: Int32, regions: Sequence[tuple[int, int, Int64]]) -> None:
        """Set the join bits of rows that results were made of, and count each in its region of every attribute.

        Regions are told by the last word of the lower one, the first word of the upper one, and the counts.
        """
        for number, (lower, upper, counts) in enumerate(regions):
            sorted_runs.count_by_region(self.words(number), rows, lower, upper, self._joined.array, counts)

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        if self.run_lengths is not None:
            return
        rows = self.rows_of()
        for number, index in enumerate(self._others, 1):
            assert index.lengths == self.index.lengths
            index.check(self.words(number)[rows], rows)


class LooseAttributes:
    """Rows that are in no table any more, with the words of all their attributes."""

    def __init__(self, rows: LooseRows, attributes: int) -> None:
        self._rows = rows
        self._first = len(rows.types) - (attributes - 1)
        self.types = rows.types
        self.hashes, self.ticks, self.gather, self.widen = rows.hashes, rows.ticks, rows.gather, rows.widen

    def __len__(self) -> int:
        return len(self._rows.words)

    def attribute_hashes(self, attribute: int, rows: Int32) -> Int64:
        """One attribute's words of some rows."""
        if not attribute:
            return self._rows.words[rows]
        words: Int64 = self._rows.columns[self._first + attribute - 1].to_numpy()[rows]
        return words
