"""What a window join remembers of one input: blocks of rows in the order of their arrival, the oldest of which go.

```
partition 0:  block 3 ─ block 7 ─ block 8(open)        newest rows last; blocks leave from the front
partition 1:  block 0 ─ block 5(open)
```

Of each block it knows the first and the last time, the least floor, the last arrival, how many results its rows were
part of, and where it lies on disk, if it does: so a block expires, is skipped or is chosen without a look at its rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels import hash_index, window_index
from watersmeet.kernels.window_index import WORDS
from watersmeet.memory import Budget
from watersmeet.records.columns import BytesColumn, ObjectColumn, estimated_width
from watersmeet.records.times import FIRST_PAYLOAD, FLOOR, TIME
from watersmeet.tables.blocks import StoredRows
from watersmeet.tables.hash_table import Layout, Probe

ENTRY_BYTES = 8 * WORDS + 8
"""Of each row, beyond its columns: hash, link, time, floor, arrival tick."""
NOT_ON_DISK = -1
_MOST_BIRTHS = 2**31 - 2
_HEAD_BYTES = 8
_LATEST, _EARLIEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def window_row_bytes(types: Sequence[pa.DataType]) -> int:
    """What a row takes in a table, the bytes of its strings and nested values not counted; times and floors come
    first.
    """
    return ENTRY_BYTES + sum(estimated_width(type_) for type_ in types[FIRST_PAYLOAD:])


@dataclass(slots=True)
class WindowProbe(Probe):
    """A look-up of rows that have just arrived, each with the times that it meets."""

    times: Int64 = None  # type: ignore[assignment]
    lows: Int64 = None  # type: ignore[assignment]
    highs: Int64 = None  # type: ignore[assignment]
    least_behind: int = 0
    least_ahead: int = 0


class WindowTable(StoredRows):
    """Rows by number, in blocks, with a hash index. `reserve` claims all memory that `append` will need."""

    def __init__(self, types: Sequence[pa.DataType], budget: Budget, layout: Layout, name: str) -> None:
        super().__init__(types[FIRST_PAYLOAD:], budget, layout, name, window_row_bytes(types))
        self.types = tuple(types)
        self._of_any_width = any(isinstance(column, BytesColumn | ObjectColumn) for column in self._columns)
        self.shift = layout.block_rows.bit_length() - 1
        partitions, blocks = layout.partitions, self._most_blocks
        self._entries = self._arena(np.int64, WORDS)
        self._tails = np.full(partitions, -1, np.int32)
        self._used = np.zeros(partitions, np.int32)
        self._counts = np.zeros(partitions, np.int32)
        self._filled = np.zeros(blocks, np.int32)
        self.part_rows = np.zeros(partitions, np.int64)
        self.queues: list[deque[int]] = [deque() for _ in range(partitions)]
        """Each partition's blocks, the oldest first."""
        self.oldest = np.full(partitions, -1, np.int32)
        """Each partition's oldest block; -1 if it has none."""
        self.part_of = np.zeros(blocks, np.int32)
        """Of each block: its partition."""
        self._births = np.zeros(blocks, np.int64)
        self._born = 0
        self.latest, self.earliest = np.full(blocks, _LATEST), np.full(blocks, _EARLIEST)
        """Of each block: the last and the first time."""
        self.least_floor = np.full(blocks, _EARLIEST)
        self.last_tick = np.zeros(blocks, np.int64)
        self.results = np.zeros(blocks, np.int64)
        """Of each block: how many results its rows were part of lately."""
        self.disk = np.full(blocks, NOT_ON_DISK)
        """Of each block: its number on disk, or -1."""
        self._index_claim = budget.reservation(f"{name} index")
        self._buckets = layout.first_buckets
        self._index_claim.grow(partitions * self._buckets * _HEAD_BYTES)
        self._heads = np.zeros(partitions * self._buckets, np.int64)
        self._scratch = np.zeros(window_index.GROUP, np.int64)
        self._places = np.zeros(window_index.GROUP, np.int64)

    @property
    def indexed_block_bytes(self) -> int:
        """Of a block, and of as much of the index as its rows are best found by."""
        return self.block_bytes + 2 * _HEAD_BYTES * self.layout.block_rows

    @property
    def nbytes(self) -> int:
        """What all rows take, strings and nested values included."""
        return self.rows * self.row_bytes + self._heap.in_use + self._claims[2].held

    @property
    def mean_row_bytes(self) -> float:
        """What a row takes, strings and nested values included."""
        return self.nbytes / self.rows if self.rows else float(self.row_bytes)

    @property
    def held(self) -> int:
        """Memory for rows, used or not."""
        return self.blocks_held * self.block_bytes + sum(claim.held for claim in self._claims[1:])

    @property
    def blocks_held(self) -> int:
        """How many blocks there is memory for, used or not."""
        return self._blocks.in_use + self._blocks.warm

    def parts_of(self, hashes: Int64) -> Int32:
        """The partition of each hash."""
        parts = np.zeros(len(hashes), np.int32)
        if self.layout.partition_bits:
            hash_index.partitions_of(hashes, self.layout.partition_bits, parts)
        return parts

    # --- rows in ---

    def reserve(self, parts: Int32, columns: Sequence[pa.Array]) -> bool:
        """Claim memory for new rows; False, with nothing but free memory claimed, if there is not enough."""
        block_rows = self.layout.block_rows
        needed = hash_index.blocks_needed(parts, self._tails, self._used, block_rows, self._counts)
        if not self._blocks.reserve(int(needed)):
            return False
        if not self._of_any_width:
            return True
        blocks = self._place(parts, self._tails.copy(), self._used.copy(), self.part_rows.copy())[0] >> self.shift
        return self._reserve_values(columns[FIRST_PAYLOAD:], blocks)

    def _place(self, parts: Int32, tails: Int32, used: Int32, part_rows: Int64) -> tuple[Int32, int, Int32]:
        rows = np.empty(len(parts), np.int32)
        fresh = np.asarray(self._blocks.peek(len(parts)), np.int32)
        owners = np.empty(len(fresh), np.int32)
        taken = hash_index.place_rows(parts, tails, used, self.layout.block_rows, fresh, owners, rows, part_rows)
        return rows, int(taken), owners

    def append(
        self, hashes: Int64, parts: Int32, columns: Sequence[pa.Array], ticks: Int64, grow_index: bool = True
    ) -> Int32:
        """Put in rows whose memory was reserved; returns their numbers."""
        rows, taken, owners = self._place(parts, self._tails, self._used, self.part_rows)
        for block, owner in zip(self._blocks.take(taken), owners, strict=False):
            self._open(block, int(owner))
        blocks = rows >> self.shift if self._of_any_width else rows
        lengths = np.zeros(len(rows), np.int64)
        if self._of_any_width:
            for i, column in enumerate(self._columns):
                if column.in_heap:
                    column.reserve(columns[FIRST_PAYLOAD + i], blocks, lengths)
            lengths = self._heap.place(lengths, blocks)
        for column, array in zip(self._columns, columns[FIRST_PAYLOAD:], strict=True):
            column.append(array, rows, blocks, lengths)
        window_index.link_rows(
            hashes, parts, rows, columns[TIME].to_numpy(), columns[FLOOR].to_numpy(), ticks,
            self._entries.array, self._ticks.array, self._heads, self._buckets, self.shift, self._births,
            self.latest, self.earliest, self.least_floor, self.last_tick,
        )  # fmt: skip
        self.rows += len(rows)
        if grow_index:
            self.fit_index()
        return rows

    def _open(self, block: int, part: int) -> None:
        queue = self.queues[part]
        if queue:
            self._filled[queue[-1]] = self._filled[queue[-1]] or self.layout.block_rows
        else:
            self.oldest[part] = block
        queue.append(block)
        self.part_of[block] = part
        self._born = self._born % _MOST_BIRTHS + 1
        self._births[block] = self._born
        self._filled[block] = 0
        self.latest[block], self.earliest[block], self.least_floor[block] = _LATEST, _EARLIEST, _EARLIEST
        self.last_tick[block] = self.results[block] = 0
        self.disk[block] = NOT_ON_DISK

    def close_block(self, part: int) -> None:
        """Let the partition's next row begin a new block; harmless when repeated."""
        tail = self._tails[part]
        if tail >= 0 and not self._filled[tail]:
            self._filled[tail] = self._used[part]
            self._used[part] = self.layout.block_rows

    def fit_index(self) -> None:
        """Let the index have at least as many buckets as rows, if there is memory for them."""
        partitions, buckets = self.layout.partitions, self.layout.fitting_buckets(self.rows, self._buckets)
        while buckets > self._buckets and not self._index_claim.try_grow(buckets * partitions * _HEAD_BYTES):
            buckets //= 2
        if buckets == self._buckets:
            return
        before = self._heads.nbytes
        self._buckets = buckets
        self._heads = np.zeros(partitions * buckets, np.int64)
        for part in range(partitions):
            self._relink(part)
        self._index_claim.shrink(before)

    def _relink(self, part: int) -> None:
        blocks = np.array(self.queues[part], np.int64)
        window_index.relink_blocks(
            part, blocks, self.sizes(blocks), self.shift, self._births, self._entries.array, self._heads, self._buckets
        )

    # --- rows out ---

    def filled(self, part: int, block: int) -> int:
        """How many rows a block has."""
        closed = int(self._filled[block])
        return closed or (int(self._used[part]) if block == self._tails[part] else self.layout.block_rows)

    def drop_oldest(self, part: int) -> None:
        """Forget a partition's oldest block; its memory is free for other rows, and `trim` gives it back."""
        self.drop(part, self.queues[part][0])

    def drop(self, part: int, block: int) -> None:
        """Forget a block. If it is not the oldest, the partition's chains are tied anew."""
        queue = self.queues[part]
        count = self.filled(part, block)
        oldest = queue[0] == block
        if oldest:
            queue.popleft()
            self.oldest[part] = queue[0] if queue else -1
        else:
            queue.remove(block)
        self.rows -= count
        self.part_rows[part] -= count
        self._births[block] = 0
        if block == self._tails[part]:
            self._tails[part], self._used[part] = (queue[-1], self.layout.block_rows) if queue else (-1, 0)
        self._drop_values(block)
        self._blocks.give_back([block])
        if not oldest:
            self._heads[part * self._buckets : (part + 1) * self._buckets] = 0
            self._relink(part)

    def clear(self) -> None:
        """Forget all rows."""
        for part, queue in enumerate(self.queues):
            while queue:
                self.drop_oldest(part)

    def reset(self) -> None:
        """Forget all rows, and give all memory back but that of the smallest index."""
        self.clear()
        self.trim(np.iinfo(np.int64).max)
        self.shrink_index()

    def shrink_index(self) -> bool:
        """Give back the index of a table without rows, but the smallest; False if that is nothing."""
        if self.rows or self._buckets == self.layout.first_buckets:
            return False
        self._index_claim.shrink(self._heads.nbytes)
        self._buckets = self.layout.first_buckets
        self._heads = np.zeros(self.layout.partitions * self._buckets, np.int64)
        self._index_claim.grow(self._heads.nbytes)
        return True

    # --- looking ---

    def live(self, since: int = -1) -> Int64:
        """The blocks with rows that arrived after a tick."""
        used = self._blocks.ever_used
        living = self._births[:used] > 0
        if since >= 0:
            living &= self.last_tick[:used] > since
        blocks: Int64 = np.flatnonzero(living)
        return blocks

    def by_age(self, blocks: Int64) -> Int64:
        """Blocks, the oldest first."""
        ordered: Int64 = blocks[np.argsort(self._births[blocks])]
        return ordered

    def sizes(self, blocks: Int64) -> Int64:
        """How many rows some blocks have."""
        sizes = self._filled[blocks].astype(np.int64)
        parts = self.part_of[blocks]
        unfilled = np.where(self._tails[parts] == blocks, self._used[parts], self.layout.block_rows)
        return np.where(sizes > 0, sizes, unfilled)

    def rows_in_all(self, blocks: Int64) -> Int32:
        """The row numbers of some blocks, one block after the other."""
        sizes = self.sizes(blocks)
        before = np.cumsum(sizes) - sizes
        rows: Int32 = (np.repeat((blocks << self.shift) - before, sizes) + np.arange(sizes.sum())).astype(np.int32)
        return rows

    def expired(self, before: int) -> Int64:
        """The partitions whose oldest block has no rows from this time on."""
        parts = np.flatnonzero(self.oldest >= 0)
        expired: Int64 = parts[self.latest[self.oldest[parts]] < before]
        return expired

    def rows_in(self, part: int, block: int) -> Int32:
        """A block's row numbers."""
        first = block << self.shift
        return np.arange(first, first + self.filled(part, block), dtype=np.int32)

    def rows_of(self, part: int) -> Int32:
        """A partition's row numbers, in the order of their arrival."""
        spans = [self.rows_in(part, block) for block in self.queues[part]]
        return np.concatenate(spans) if spans else np.empty(0, np.int32)

    def latest_tick(self, part: int) -> int:
        """When a partition's newest row arrived; 0 if it has none."""
        queue = self.queues[part]
        return int(self.last_tick[queue[-1]]) if queue else 0

    def brought_back(self, part: int) -> bool:
        """Rows on disk are told by their ordinals; nothing else was brought back."""
        return False

    def ordinals(self, rows: Int32) -> Int64:
        """Not negative for rows that are on disk, too."""
        ordinals: Int64 = self.disk[rows >> self.shift]
        return ordinals

    def hashes(self, rows: Int32) -> Int64:
        """The hashes of some rows."""
        return self._word(0, rows)

    def times(self, rows: Int32) -> Int64:
        """The times of some rows."""
        return self._word(2, rows)

    def floors(self, rows: Int32) -> Int64:
        """The floors of some rows."""
        return self._word(3, rows)

    def _word(self, word: int, rows: Int32) -> Int64:
        out = np.empty(len(rows), np.int64)
        window_index.take_word(self._entries.array, word, rows, out)
        return out

    def gather(self, column: int, rows: Int32) -> pa.Array:
        """One column's values for some rows."""
        if column < FIRST_PAYLOAD:
            return pa.array(self._word(2 + column, rows))
        return super().gather(column - FIRST_PAYLOAD, rows)

    def widen(self, column: int, rows: Int32, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in an output batch."""
        if column < FIRST_PAYLOAD:
            widths += 8
        else:
            super().widen(column - FIRST_PAYLOAD, rows, widths)

    def probe(self, probe: Probe, limit: int, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        """Go on with a look-up of arrivals up to hash `limit` or until the buffers are full; returns pairs found,
        entries visited.
        """
        assert isinstance(probe, WindowProbe)
        found, probe.next, probe.link, visited = window_index.probe(
            probe.hashes, probe.parts, probe.times, probe.lows, probe.highs, probe.least_behind, probe.least_ahead,
            probe.next, limit, probe.link, self._entries.array, self._heads, self._buckets, self.shift, self._births,
            out_probe, out_row, 0, self._scratch,
        )  # fmt: skip
        return found, visited

    def scan(
        self,
        probe: Probe,
        times: Int64,
        stop: int,
        wanted: NDArray[np.uint64],
        ticks: tuple[int, int],
        window: Int64,
        out_probe: Int32,
        out_row: Int32,
        found: int,
    ) -> tuple[int, int]:
        """Go on with a look-up of rows that left memory among those that arrived after the first of two ticks."""
        found, probe.next, probe.link, visited = window_index.scan(
            probe.hashes, times, probe.next, stop, probe.link, wanted, self.layout.partition_bits,
            self._entries.array, self._ticks.array, self._heads, self._buckets, self.shift, self._births,
            ticks[0], ticks[1], window, out_probe, out_row, found, self._places, self._scratch,
        )  # fmt: skip
        return found, visited

    def want(self, block: int, wanted: NDArray[np.uint64]) -> None:
        """Set the bits of a block's hashes."""
        rows = self.filled(int(self.part_of[block]), block)
        window_index.want(block << self.shift, rows, self._entries.array, wanted)

    def count_results(self, rows: Int32) -> None:
        """These rows were part of results."""
        window_index.count_blocks(rows, self.shift, self.results)

    def check(self) -> None:
        """Assert the invariants."""
        self._blocks.check()
        self._heap.check()
        owned = [block for queue in self.queues for block in queue]
        assert len(owned) == len(set(owned)) == self._blocks.in_use
        assert self.rows == self.part_rows.sum()
        assert self.oldest.tolist() == [queue[0] if queue else -1 for queue in self.queues]
        assert sorted(self.live()) == sorted(owned)
        for part, queue in enumerate(self.queues):
            births = [int(self._births[block]) for block in queue]
            assert births == sorted(births), "blocks lie in the order of their birth"
            rows = self.rows_of(part)
            assert len(rows) == self.part_rows[part]
            if not len(rows):
                continue
            assert (self.parts_of(self.hashes(rows)) == part).all()
            for block in queue:
                inside = self.rows_in(part, block)
                assert self.part_of[block] == part and self.sizes(np.array([block]))[0] == len(inside)
                assert (np.diff(self.ticks(inside)) > 0).all(), "rows lie in the order of their arrival"
                times = self.times(inside)
                assert self.earliest[block] == times.min() and self.latest[block] == times.max()
