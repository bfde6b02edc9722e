"""What an operator remembers of one of several inputs: rows that are found again by any of their join attributes.

```
rows in partitions by attribute 0  ── index 0, a part of the table
                                   ── index 1 ─▶ chains over all partitions, newest row first
                                   ── index 2 ─▶ ...
```

The hashes and links of all indexes lie side by side for each row: whoever finds a row by one attribute looks it up
further by another. The hashes of the attributes beyond the first are also the table's last columns, so that rows carry
them to disk and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels import hash_index
from watersmeet.kernels.sorted_runs import RangeProbe
from watersmeet.memory import Budget, Reservation
from watersmeet.records.attributes import Reach
from watersmeet.tables.hash_table import Layout, Probe, SideTable

_FIRST_BUCKETS = 64


class _Chains:
    """One more index: chains over all rows of a table, whatever their partitions."""

    def __init__(self, entries: Int64, step: int, claim: Reservation) -> None:
        """`entries` begins with the first row's hash, and goes on with the next row's after so many words."""
        self.entries = entries
        self.step = step
        self._claim = claim
        self._claim.grow(4 * _FIRST_BUCKETS)
        self._heads = np.zeros(_FIRST_BUCKETS, np.int32)
        self._no_parts = np.zeros(0, np.int32)

    def add(self, rows: Int32, hashes: Int64) -> None:
        """Link new rows."""
        parts = self.parts_of(len(rows))
        hash_index.link_rows(hashes, parts, rows, self.entries, self._heads, len(self._heads), self.step)

    def fit(self, held: int) -> None:
        """Have about as many buckets as rows are held, if there is memory for that."""
        buckets = len(self._heads)
        if held <= buckets:
            return
        while buckets < 2 * held:
            buckets *= 2
        while buckets > len(self._heads) and not self._claim.try_grow(4 * buckets):
            buckets //= 2
        if buckets > len(self._heads):
            wider = np.zeros(buckets, np.int32)
            tails = np.empty(buckets // len(self._heads), np.int64)
            hash_index.spread(self.entries, self._heads, wider, tails, self.step)
            self._claim.shrink(self._heads.nbytes)
            self._heads = wider

    def probe(self, probe: Probe, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        found, probe.next, probe.link, visited = hash_index.probe(
            probe.hashes, probe.parts, probe.next, len(probe.hashes), probe.link,
            self.entries, self._heads, len(self._heads), out_probe, out_row, 0, self.step,
        )  # fmt: skip
        return found, visited

    def parts_of(self, count: int) -> Int32:
        """All rows are of one partition here."""
        if len(self._no_parts) < count:
            self._no_parts = np.zeros(count, np.int32)
        return self._no_parts[:count]

    def hashes(self, rows: Int32) -> Int64:
        hashes = np.empty(len(rows), np.int64)
        hash_index.hashes_of(rows, self.entries, hashes, self.step)
        return hashes

    def drop(self, gone: NDArray[np.bool_], block_rows: int) -> None:
        hash_index.unlink_blocks(self.entries, self._heads, gone, block_rows, self.step)

    def sort(self, ticks: Int64) -> None:
        hash_index.sort_chains(self.entries, self._heads, ticks, self.step)

    def check(self, rows: Int32, ticks: Int64) -> None:
        following = self.entries[self.step * rows.astype(np.int64) + 1]
        linked = np.concatenate([self._heads, following])
        assert np.array_equal(np.sort(linked[linked > 0] - 1), np.sort(rows)), "each row is linked exactly once"
        inner = following > 0
        assert (ticks[rows[inner]] > ticks[following[inner] - 1]).all(), "newest first"


class _HashColumn:
    """The hashes of an index, as a column of the table."""

    in_heap = False
    row_bytes = 0

    def __init__(self, index: _Chains) -> None:
        self._index = index

    def reserve(self, array: pa.Array, parts: Int32, lengths: Int64) -> bool:
        return True

    def append(self, array: pa.Array, rows: Int32, parts: Int32, starts: Int64) -> None:
        """They are put in place with their links."""

    def gather(self, rows: Int32) -> pa.Array:
        return pa.array(self._index.hashes(rows))

    def widen(self, rows: Int32, widths: Int64) -> None:
        widths += 8

    def drop(self, part: int) -> None:
        pass

    def keep(self, part: int, rows: Int32) -> None:
        pass

    def release(self, start: int, stop: int) -> None:
        pass

    def trim(self, size: int) -> int:
        return 0


class ManySide(SideTable):
    """A table with an index for each join attribute; the hashes of all but the first are its last columns."""

    def __init__(
        self, types: Sequence[pa.DataType], attributes: int, budget: Budget, layout: Layout, name: str
    ) -> None:
        super().__init__(types, budget, layout, name, indexes=attributes)
        claim = budget.reservation(f"{name} more indexes")
        entries: Int64 = self._entries.array
        self._others = [_Chains(entries[2 * i :], 2 * attributes, claim) for i in range(1, attributes)]
        self._columns += map(_HashColumn, self._others)
        self.types += (pa.int64(),) * len(self._others)

    def append(
        self, hashes: Int64, parts: Int32, columns: Sequence[pa.Array], ticks: Int64, grow_index: bool = True
    ) -> Int32:
        """Put in rows whose memory was reserved; returns their numbers."""
        rows = super().append(hashes, parts, columns, ticks, grow_index)
        own = len(columns) - len(self._others)
        for index, column in zip(self._others, columns[own:], strict=True):
            index.add(rows, column.to_numpy())
        return rows

    def fit_index(self) -> None:
        """Let the indexes have as many buckets as pay, if there is memory for them."""
        super().fit_index()
        for index in self._others:
            index.fit(self.rows)

    def sort_indexes(self) -> None:
        """After rows were put in out of the order of their arrival."""
        for index in self._others:
            index.sort(self._ticks.array)

    def attribute_hashes(self, attribute: int, rows: Int32) -> Int64:
        """One attribute's hashes of some rows."""
        return self._others[attribute - 1].hashes(rows) if attribute else self.hashes(rows)

    def seek(self, attribute: int, hashes: Int64, reach: Reach | None = None) -> Probe:
        """The look-up of some hashes of one attribute."""
        assert reach is None, "a hash index finds what is equal, not what is close"
        return Probe(hashes, self._others[attribute - 1].parts_of(len(hashes)) if attribute else self.parts_of(hashes))

    def look_up(self, attribute: int, probe: Probe | RangeProbe, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        """Go on with a look-up by one attribute until the buffers are full; returns pairs found, entries visited."""
        assert isinstance(probe, Probe)
        if attribute:
            return self._others[attribute - 1].probe(probe, out_probe, out_row)
        return self.probe(probe, len(probe.hashes), out_probe, out_row)

    def drop(self, part: int) -> None:
        """Forget a partition's rows."""
        self.drop_all([part])

    def drop_all(self, parts: Sequence[int]) -> None:
        """Forget the rows of some partitions: the chains are gone through once for all of them."""
        blocks = [block for part in parts for block in self._owned[part]]
        if self._others and blocks:
            gone = np.zeros(self._blocks.slots, np.bool_)
            gone[blocks] = True
            for index in self._others:
                index.drop(gone, self.layout.block_rows)
        for part in parts:
            super().drop(part)

    def drop_oldest_of(self, counts: Mapping[int, int]) -> None:
        """Forget so many of the oldest rows of some partitions, which are whole blocks of them."""
        whole = [part for part, count in counts.items() if count == self.part_rows[part]]
        self.drop_all(whole)
        begun = {part: count for part, count in counts.items() if part not in whole}
        if self._others and begun:
            gone = np.zeros(self._blocks.slots, np.bool_)
            for part, count in begun.items():
                gone[np.unique(self.oldest(part, count) // self.layout.block_rows)] = True
            for index in self._others:
                index.drop(gone, self.layout.block_rows)
        for part, count in begun.items():
            super().drop_oldest(part, count)

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        rows = np.concatenate([self.rows_of(part) for part in range(self.layout.partitions)])
        for number, index in enumerate(self._others):
            index.check(rows, self._ticks.array)
            stored = self.gather(len(self.types) - len(self._others) + number, rows).to_numpy()
            assert np.array_equal(stored, index.hashes(rows))
