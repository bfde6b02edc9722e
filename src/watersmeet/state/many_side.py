"""What an operator remembers of one of several inputs: rows that are found again by any of their join attributes.

```
rows in partitions by attribute 0  ── index 0, a part of the table
                                   ── index 1 ─▶ chains over all partitions, newest row first
                                   ── index 2 ─▶ ...
```

The hashes of the attributes beyond the first are stored as the table's last columns, so that rows carry them to disk
and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.kernels import chains, hash_index
from watersmeet.kernels.sorted_runs import RangeProbe
from watersmeet.memory import Budget, Reservation
from watersmeet.state.arena import Arena
from watersmeet.state.attributes import Reach
from watersmeet.state.side import Layout, Probe, SideTable

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

INDEX_BYTES = 16
"""Of each row in each index beyond the first, heads not counted."""
_FIRST_BUCKETS = 64


class _Chains:
    """One more index: chains over all rows of a table, whatever their partitions."""

    def __init__(self, capacity: int, claim: Reservation) -> None:
        self._entries = Arena(np.int64, 2 * capacity)
        self._claim = claim
        self._claim.grow(4 * _FIRST_BUCKETS)
        self._heads = np.zeros(_FIRST_BUCKETS, np.int32)
        self._scratch = np.zeros(hash_index.GROUP, np.int64)
        self._no_parts = np.zeros(0, np.int32)

    def add(self, rows: Int32, hashes: Int64) -> None:
        """Link new rows."""
        hash_index.link_rows(hashes, self._zeros(len(rows)), rows, self._entries.array, self._heads, len(self._heads))

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
            chains.spread(self._entries.array, self._heads, wider, np.empty(buckets // len(self._heads), np.int64))
            self._claim.shrink(self._heads.nbytes)
            self._heads = wider

    def probe(self, probe: Probe, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        found, probe.next, probe.link, visited = hash_index.probe(
            probe.hashes, self._zeros(len(probe.hashes)), probe.next, len(probe.hashes), probe.link,
            self._entries.array, self._heads, len(self._heads), out_probe, out_row, 0, self._scratch,
        )  # fmt: skip
        return found, visited

    def _zeros(self, count: int) -> Int32:
        """All rows are of one partition here."""
        if len(self._no_parts) < count:
            self._no_parts = np.zeros(count, np.int32)
        return self._no_parts[:count]

    def hashes(self, rows: Int32) -> Int64:
        return self._entries.array[2 * rows.astype(np.int64)]

    def drop(self, gone: NDArray[np.bool_], block_rows: int) -> None:
        chains.unlink_blocks(self._entries.array, self._heads, gone, block_rows)

    def sort(self, ticks: Int64) -> None:
        chains.sort_chains(self._entries.array, self._heads, ticks)

    def release(self, start: int, stop: int) -> None:
        self._entries.release(2 * start, 2 * stop)

    def check(self, rows: Int32, ticks: Int64) -> None:
        entries = self._entries.array
        linked = np.concatenate([self._heads, entries[2 * rows.astype(np.int64) + 1]])
        assert np.array_equal(np.sort(linked[linked > 0] - 1), np.sort(rows)), "each row is linked exactly once"
        following = entries[2 * rows.astype(np.int64) + 1]
        inner = following > 0
        assert (ticks[rows[inner]] > ticks[following[inner] - 1]).all(), "newest first"


class ManySide(SideTable):
    """A table with an index for each join attribute; the hashes of all but the first are its last columns."""

    def __init__(
        self, types: Sequence[pa.DataType], attributes: int, budget: Budget, layout: Layout, name: str
    ) -> None:
        self._others: list[_Chains] = []
        hashes = [pa.int64()] * (attributes - 1)
        super().__init__([*types, *hashes], budget, layout, name, INDEX_BYTES * (attributes - 1))
        claim = budget.reservation(f"{name} more indexes")
        capacity = self._blocks.slots * layout.block_rows
        self._others = [_Chains(capacity, claim) for _ in hashes]

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

    def seek(self, hashes: Int64, reach: Reach | None = None) -> Probe:
        """The look-up of some hashes."""
        assert reach is None, "a hash index finds what is equal, not what is close"
        return Probe(hashes, self.parts_of(hashes))

    def look_up(self, attribute: int, probe: Probe | RangeProbe, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        """Go on with a look-up by one attribute until the buffers are full; returns pairs found, entries visited."""
        assert isinstance(probe, Probe)
        if attribute:
            return self._others[attribute - 1].probe(probe, out_probe, out_row)
        return self.probe(probe, len(probe.hashes), out_probe, out_row, 0)

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

    def _release_blocks(self, first: int, beyond: int) -> None:
        super()._release_blocks(first, beyond)
        for index in self._others:
            index.release(first * self.layout.block_rows, beyond * self.layout.block_rows)

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        rows = np.concatenate([self.rows_of(part) for part in range(self.layout.partitions)])
        for number, index in enumerate(self._others):
            index.check(rows, self._ticks.array)
            stored = self.gather(len(self.types) - len(self._others) + number, rows).to_numpy()
            assert np.array_equal(stored, index.hashes(rows))
