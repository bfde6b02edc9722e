"""What an operator remembers of one input: rows in partitions, found again by the hash of their key.

```
partition 0:  block 3 ─ block 7 ─ block 8(open)        each block: `block_rows` rows of every column
partition 1:  block 0 ─ block 5(open)                  rows of a partition lie in the order of their arrival
```

A partition is dropped whole, or its oldest blocks are, and the blocks are used again by any partition. Nothing is ever
copied to make room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels import hash_index
from watersmeet.kernels.gather import scatter
from watersmeet.memory import Budget
from watersmeet.records.columns import estimated_width
from watersmeet.tables.blocks import StoredRows

ENTRY_BYTES = 24
"""Of each row, beyond its columns: hash, link, arrival tick."""
_MORE_ENTRY_BYTES = 16
"""Of each row in every index beyond the first: hash, link."""
_FIRST_BUCKETS = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table divides its memory."""

    partition_bits: int
    block_rows: int
    chunk_bytes: int
    bucket_rows: int = 1
    """Rows that a bucket of the index may hold, on average."""

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        return 1 << self.partition_bits

    @property
    def first_buckets(self) -> int:
        """Of each partition, as long as there are few rows."""
        return _FIRST_BUCKETS if self.bucket_rows == 1 else 1

    def fitting_buckets(self, rows: int, buckets: int) -> int:
        """How many buckets each partition should have for so many rows in all, where it has some; twice as many as
        needed, once these are too few.

        >>> layout = Layout(1, 256, 4096, bucket_rows=10)
        >>> layout.fitting_buckets(20, 1), layout.fitting_buckets(21, 1)
        (1, 4)
        """
        if rows <= self.bucket_rows * self.partitions * buckets:
            return buckets
        while self.bucket_rows * self.partitions * buckets < 2 * rows:
            buckets *= 2
        return buckets


def row_bytes(types: Sequence[pa.DataType], indexes: int = 1) -> int:
    """What a row takes in a table, the bytes of its strings and nested values not counted."""
    return ENTRY_BYTES + _MORE_ENTRY_BYTES * (indexes - 1) + sum(estimated_width(type_) for type_ in types)


@dataclass(slots=True)
class Probe:
    """A look-up of a batch of hashes that can stop at any pair and go on from there."""

    hashes: Int64
    parts: Int32
    next: int = 0
    link: int = -1

    @property
    def done(self) -> bool:
        """Whether every hash has been looked up."""
        return self.next >= len(self.hashes)

    @property
    def looked_up(self) -> int:
        """How many hashes have met all their matches."""
        return self.next

    def rewind(self) -> None:
        """Begin anew, in another index."""
        self.next, self.link = 0, -1

    def mark(self) -> list[int]:
        """Where it stopped, to be gone to in an index that has not changed."""
        return [self.next, self.link]

    def go_to(self, mark: Sequence[int]) -> None:
        """Go on from a mark."""
        self.next, self.link = mark


class SideTable(StoredRows):
    """Rows by number, in partitions, with a hash index.

    Appending is in two steps: `reserve` claims all the memory that the rows will need, or answers False and leaves
    it to the caller to make room; `append` then cannot fail.
    """

    values_by_block: ClassVar[bool] = False
    """Whether strings and nested values belong to their rows' block, and go with it; else to the partition."""

    def __init__(
        self,
        types: Sequence[pa.DataType],
        budget: Budget,
        layout: Layout,
        name: str,
        more_bytes: int = 0,
        by_hash: bool = True,
        indexes: int = 1,
    ) -> None:
        """`more_bytes` of each row are counted beyond its columns and its entries in the indexes, of which the first is
        built here. With `by_hash` the partition of a row is that of its hash; without, it is whatever the caller says.
        """
        partitions = layout.partitions
        owners = None if self.values_by_block else partitions
        super().__init__(types, budget, layout, name, row_bytes(types, indexes) + more_bytes, owners)
        self._by_hash = by_hash
        self._step = 2 * indexes
        self._entries = self._arena(np.int64, self._step)
        self._tails = np.full(partitions, -1, np.int32)
        self._used = np.zeros(partitions, np.int32)
        self._counts = np.zeros(partitions, np.int32)
        self._filled = np.zeros(self._most_blocks, np.int32)
        self._first_ordinals = np.full(self._most_blocks, -1, np.int64)
        self._owned: list[list[int]] = [[] for _ in range(partitions)]
        self._index_claim = budget.reservation(f"{name} index")
        self._buckets = layout.first_buckets
        self._index_claim.grow(partitions * self._buckets * 4)
        self._heads = np.zeros(partitions * self._buckets, np.int32)
        self.part_rows = np.zeros(partitions, np.int64)

    def parts_of(self, hashes: Int64) -> Int32:
        """The partition of each hash."""
        parts = np.zeros(len(hashes), np.int32)
        if self.layout.partition_bits:
            hash_index.partitions_of(hashes, self.layout.partition_bits, parts)
        return parts

    def reserve(self, parts: Int32, columns: Sequence[pa.Array]) -> bool:
        """Claim memory for new rows; False, with nothing but free memory claimed, if there is not enough."""
        needed = hash_index.blocks_needed(parts, self._tails, self._used, self.layout.block_rows, self._counts)
        if not self._blocks.reserve(int(needed)):
            return False
        return self._reserve_values(columns, self._future_owners(parts))

    def _future_owners(self, parts: Int32) -> Int32:
        """To what the values of new rows will belong; blocks for them are reserved."""
        if not self.values_by_block:
            return parts
        rows, fresh = np.empty(len(parts), np.int32), np.asarray(self._blocks.peek(), np.int32)
        hash_index.place_rows(
            parts, self._tails.copy(), self._used.copy(), self.layout.block_rows, fresh,
            np.empty(len(fresh), np.int32), rows, self.part_rows.copy(),
        )  # fmt: skip
        return rows // np.int32(self.layout.block_rows)

    def append(
        self, hashes: Int64, parts: Int32, columns: Sequence[pa.Array], ticks: Int64, grow_index: bool = True
    ) -> Int32:
        """Put in rows whose memory was reserved; returns their numbers."""
        rows = self._place(parts, columns)
        scatter(ticks, rows, self._ticks.array)
        hash_index.link_rows(hashes, parts, rows, self._entries.array, self._heads, self._buckets, self._step)
        self.rows += len(rows)
        if grow_index:
            self.fit_index()
        return rows

    def _place(self, parts: Int32, columns: Sequence[pa.Array]) -> Int32:
        """Give new rows their slots and put their columns there."""
        rows = np.empty(len(parts), np.int32)
        fresh = self._blocks.peek()
        owners = np.empty(len(fresh), np.int32)
        block_rows = self.layout.block_rows
        taken = hash_index.place_rows(
            parts, self._tails, self._used, block_rows, np.asarray(fresh, np.int32), owners, rows, self.part_rows
        )
        for block, owner in zip(self._blocks.take(int(taken)), owners, strict=False):
            if self._owned[owner]:
                # The partition's last block before this one: full, unless it was closed early.
                last = self._owned[owner][-1]
                self._filled[last] = self._filled[last] or block_rows
            self._owned[owner].append(block)
            self._filled[block] = 0
            self._first_ordinals[block] = -1
        if self.values_by_block:
            parts = rows // np.int32(block_rows)
        starts = self._place_strings(parts, columns)
        for column, array in zip(self._columns, columns, strict=True):
            column.append(array, rows, parts, starts)
        return rows

    def _place_strings(self, parts: Int32, columns: Sequence[pa.Array]) -> Int64:
        lengths = np.zeros(len(parts), np.int64)
        strings = [(column, array) for column, array in zip(self._columns, columns, strict=True) if column.in_heap]
        for column, array in strings:
            column.reserve(array, parts, lengths)
        return self._heap.place(lengths, parts) if strings else lengths

    def append_from_disk(
        self, hashes: Int64, part: int, columns: Sequence[pa.Array], ticks: Int64, first_ordinal: int
    ) -> Int32:
        """Bring spilled rows of one partition back, remembering their places on disk; memory was reserved."""
        tail = self._tails[part]
        if (
            tail >= 0
            and self._used[part] < self.layout.block_rows
            and (self._first_ordinals[tail] < 0 or self._ordinal_after(part) != first_ordinal)
        ):
            raise AssertionError("close_block() first: a block holds rows from memory or from one stretch of disk")
        parts = np.full(len(hashes), part, np.int32)
        rows = self.append(hashes, parts, columns, ticks)
        starts = np.flatnonzero(rows % self.layout.block_rows == 0)
        self._first_ordinals[rows[starts] // self.layout.block_rows] = first_ordinal + starts
        return rows

    def brought_back(self, part: int) -> bool:
        """Whether some of a partition's rows were brought back from disk."""
        tail = self._tails[part]
        return bool(tail >= 0 and self._first_ordinals[tail] >= 0)

    def fit_index(self) -> None:
        """Let the index have at least as many buckets as rows, growing to twice as many: short chains are quick.

        Without memory for that the chains just get longer.
        """
        buckets = self.layout.fitting_buckets(self.rows, self._buckets)
        while buckets > self._buckets and not self._index_claim.try_grow(buckets * self.layout.partitions * 4):
            buckets //= 2
        if buckets == self._buckets:
            return
        before = self._heads.nbytes
        self._buckets = buckets
        self._heads = np.zeros(self.layout.partitions * buckets, np.int32)
        for part in range(self.layout.partitions):
            self._relink(part)
        self._index_claim.shrink(before)

    def _relink(self, part: int) -> None:
        """Put a partition's rows into the empty heads."""
        for first, count in self.spans(part):
            hash_index.relink_span(
                part, first, count, self._entries.array, self._heads, self._buckets, self._step
            )  # fmt: skip

    def close_block(self, part: int) -> None:
        """Let the partition's next row begin a new block; harmless when repeated."""
        tail = self._tails[part]
        if tail >= 0 and not self._filled[tail]:
            self._filled[tail] = self._used[part]
            self._used[part] = self.layout.block_rows

    def _ordinal_after(self, part: int) -> int:
        return int(self._first_ordinals[self._tails[part]] + self._used[part])

    def spans(self, part: int) -> list[tuple[int, int]]:
        """A partition's rows as (first row, count), one for each block, in the order of their arrival."""
        found = []
        for block in self._owned[part]:
            closed = int(self._filled[block])
            count = closed or (int(self._used[part]) if block == self._tails[part] else self.layout.block_rows)
            found.append((block * self.layout.block_rows, count))
        return found

    def rows_of(self, part: int) -> Int32:
        """A partition's row numbers, in the order of their arrival."""
        spans = [np.arange(first, first + count, dtype=np.int32) for first, count in self.spans(part)]
        return np.concatenate(spans) if spans else np.empty(0, np.int32)

    def all_rows(self) -> tuple[Int32, Int64]:
        """All row numbers, block by block, and of each its partition."""
        blocks: Any = np.asarray([block for owned in self._owned for block in owned], np.int64)
        owners: Any = np.repeat(np.arange(len(self._owned)), [len(owned) for owned in self._owned])
        closed = self._filled[blocks]
        open_rows = np.where(blocks == self._tails[owners], self._used[owners], self.layout.block_rows)
        counts: Any = np.where(closed > 0, closed, open_rows)
        before = np.cumsum(counts) - counts
        within = np.arange(counts.sum()) - np.repeat(before, counts)
        rows = np.repeat(blocks * self.layout.block_rows, counts) + within
        return rows.astype(np.int32), np.repeat(owners, counts)

    def oldest(self, part: int, count: int) -> Int32:
        """The row numbers of a partition's oldest rows, in the order of their arrival: as many whole blocks as have at
        least `count` of them.
        """
        found, rows = [np.empty(0, np.int32)], 0
        for first, size in self.spans(part):
            if rows >= count:
                break
            found.append(np.arange(first, first + size, dtype=np.int32))
            rows += size
        return np.concatenate(found)

    def in_order(self, rows: Int32) -> Int32:
        """Row numbers in the order of their hashes; those of one hash stay in theirs."""
        return rows[np.argsort(self.hashes(rows), kind="stable")]

    def latest_tick(self, part: int) -> int:
        """When a partition's newest row arrived; 0 if it has none."""
        if self._tails[part] < 0:
            return 0
        first, count = self.spans(part)[-1]
        return int(self._ticks.array[first + count - 1])

    def hashes(self, rows: Int32) -> Int64:
        """The hashes of some rows."""
        hashes = np.empty(len(rows), np.int64)
        hash_index.hashes_of(rows, self._entries.array, hashes, self._step)
        return hashes

    def ordinals(self, rows: Int32) -> Int64:
        """The places on disk of rows brought back from there; -1 for rows that never left."""
        first = self._first_ordinals[rows // self.layout.block_rows]
        return np.where(first < 0, -1, first + rows % self.layout.block_rows)

    def probe(self, probe: Probe, limit: int, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        """Go on with a look-up up to hash `limit` or until the buffers are full; returns pairs found, entries
        visited.
        """
        found, probe.next, probe.link, visited = hash_index.probe(
            probe.hashes, probe.parts, probe.next, limit, probe.link,
            self._entries.array, self._heads, self._buckets, out_probe, out_row, 0, self._step,
        )  # fmt: skip
        return found, visited

    def drop(self, part: int) -> None:
        """Forget a partition's rows; their memory is free for other rows, and `trim` gives it back."""
        self.rows -= int(self.part_rows[part])
        self.part_rows[part] = 0
        owners = self._owned[part] if self.values_by_block else [part]
        self._blocks.give_back(self._owned[part])
        self._owned[part] = []
        self._tails[part] = -1
        self._used[part] = 0
        self._heads[part * self._buckets : (part + 1) * self._buckets] = 0
        for owner in owners:
            self._drop_values(owner)

    def drop_oldest(self, part: int, count: int) -> None:
        """Forget the oldest rows of a partition, which are whole blocks of it."""
        if count == self.part_rows[part]:
            self.drop(part)
            return
        blocks = 0
        left = count
        for _, size in self.spans(part):
            if left <= 0:
                break
            left -= size
            blocks += 1
        assert left == 0, "a block leaves whole"
        self.rows -= count
        self.part_rows[part] -= count
        self._blocks.give_back(self._owned[part][:blocks])
        del self._owned[part][:blocks]
        # Chains go from the newest row to the oldest: where they are to be cut is known only by building them anew.
        self._heads[part * self._buckets : (part + 1) * self._buckets] = 0
        self._relink(part)
        self._keep_values(part, self.rows_of(part))

    def check(self) -> None:
        """Assert the invariants."""
        self._blocks.check()
        self._heap.check()
        assert self.rows == self.part_rows.sum()
        owned = [block for blocks in self._owned for block in blocks]
        assert len(owned) == len(set(owned)) == self._blocks.in_use
        entries: Any = self._entries.array
        # Most partitions of a small table are empty, and this is asked after every step of many tests.
        empty = self.part_rows == 0
        assert not self._heads.reshape(self.layout.partitions, self._buckets)[empty].any()
        assert not any(self._owned[part] for part in np.flatnonzero(empty).tolist())
        if not self.rows:
            return
        held = np.flatnonzero(~empty)
        rows, parts = self.all_rows()
        assert np.array_equal(np.bincount(parts, minlength=self.layout.partitions), self.part_rows)
        assert not self._by_hash or (self.parts_of(self.hashes(rows)) == parts).all()
        heads: Any = self._heads.reshape(self.layout.partitions, self._buckets)[held]
        linked = np.concatenate([heads.ravel(), entries[self._step * rows.astype(np.int64) + 1]]).astype(np.int64)
        linked_from = np.concatenate([np.repeat(held, self._buckets), parts])
        found = ((linked_from << 32) + linked - 1)[linked > 0]
        assert np.array_equal(np.sort(found), np.sort((parts << 32) + rows)), "each row is linked exactly once"
