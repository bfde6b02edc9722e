"""How window joins make room that dump blocks: expired blocks go, stale ones are dumped, dumped ones leave memory.

```
fresh ──scan──▶ stale ──dump: one segment of many blocks──▶ dumped, and in memory still ──no room──▶ gone from memory
```

A block is dumped only when its rows have met all of the other side's disk, so rows on disk never have to meet each
other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.errors import BudgetError
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.engine.sizing import Grain
from watersmeet.joins.window.waiting_arrivals import SuspendingWindowJoin
from watersmeet.spill.store import Store
from watersmeet.tables.window_table import WindowTable


class DumpingWindowJoin(SuspendingWindowJoin):
    """The frame of a window join that dumps blocks."""

    def __init__(self, spec: WindowJoinSpec, memory: int, store: Store, grain: Grain | None = None) -> None:
        super().__init__(spec, memory, store, grain)
        self.probed = [0, 0]
        """Rows of a side that arrived up to this tick have met all of the other side's disk."""
        self.dumped = np.zeros_like(self.gone)
        """Rows of a side and partition that arrived up to this tick are on disk."""
        self._spare = self.budget.reservation("room for the entry of a dump")
        self._spare.grow(self._spare_bytes)
        self._none_stale_at: tuple[int, ...] = ()
        """When it was last seen that no block is stale."""
        self._arriving = 0
        """The side of the arrival at hand."""

    # --- what the operators differ in ---

    @abstractmethod
    def victim(self) -> tuple[int, int] | None:
        """The side and the partition whose oldest block is on disk and is to leave memory; None if there is none."""

    @abstractmethod
    def to_dump(self) -> tuple[int, list[tuple[int, int]]]:
        """A side and those of its stale blocks, as (partition, block), that are to be dumped next; none if there are
        none.
        """

    def drop_copies(self) -> bool:
        """Let all copies of blocks on disk go; False if there are none."""
        return False

    def join_segments(self) -> bool:
        """Let entries of what is on disk become fewer; False if they cannot."""
        return False

    @property
    def all_tables(self) -> list[WindowTable]:
        """Everything that holds rows."""
        return list(self.tables)

    # --- making room ---

    def secure(self, claim: Callable[[], bool], spared: frozenset[tuple[int, int]] = frozenset()) -> bool:
        """Make room until a claim succeeds; False if it does not with all gone that may go."""
        own = self.tables[self._arriving]
        others = [table for table in self.all_tables if table is not own]
        while not claim():
            for table in others:
                table.trim(self.budget.total)
            if claim():
                break
            flushed = self._flush_one(spared)
            if claim():
                break
            # Most claims are of the side that rows arrive on, and can use what is free there without this.
            own.trim(self.budget.total)
            if not flushed:
                return claim()
        return True

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        some = self.expire() or self._evict_some()
        if not some and self._dump():
            self._evict_some()
            some = True
        if some:
            while not self._keep_spare() and (self._evict() or self.drop_copies()):
                pass
            return True
        return self.drop_copies() or self.join_segments()

    def _keep_spare(self) -> bool:
        """Have memory for the entry of the next dump."""
        missing = self._spare_bytes - self._spare.held
        if not missing or self._spare.try_grow(missing):
            return True
        for table in self.all_tables:
            table.trim(missing)
        return self._spare.try_grow(missing)

    @property
    def _spare_bytes(self) -> int:
        pages = self.budget.total // self.sizing.page_bytes
        return max(disk.entry_bytes(self.blocks_of_a_dump, pages) for disk in self.disks)

    @property
    def blocks_of_a_dump(self) -> int:
        """How many blocks go to disk together, at most: a third of the memory."""
        widest = max(table.block_bytes for table in self.tables)
        return max(1, (self.budget.total - self.sizing.buffers) // 3 // widest)

    @property
    def recent_bytes(self) -> int:
        """Memory for recent rows: what they have, and what nobody has."""
        return self.budget.free + sum(table.blocks_held * table.block_bytes for table in self.tables)

    def _evict_some(self) -> bool:
        """Let a few blocks that are on disk leave memory: one after the other would be slow."""
        count = 1 + self.blocks_of_a_dump // 8
        return sum(1 for _ in takewhile(bool, (self._evict() for _ in range(count)))) > 0

    def _evict(self) -> bool:
        """Let a block that is on disk leave memory."""
        victim = self.victim()
        if victim is None:
            return False
        self.evict(*victim)
        return True

    def make_free(self, size: int) -> int:
        """Let blocks that are on disk leave memory until so many bytes are free; returns how many are, at most that."""
        while self.budget.free < size:
            for table in self.all_tables:
                table.trim(size)
            if self.budget.free < size and not self._evict():
                break
        return min(size, self.budget.free)

    def evict(self, side: int, part: int) -> None:
        """Let a partition's oldest block, which is on disk, leave memory."""
        self.drop_oldest(side, part)
        self.events["evicted blocks"] += 1

    def drop_oldest(self, side: int, part: int) -> None:
        """Drop a partition's oldest block from memory, and note when, if it is on disk."""
        table = self.tables[side]
        block = table.queues[part][0]
        if table.disk[block] >= 0:
            self.clock += 1
            self.disks[side].leave(int(table.disk[block]), self.clock, int(table.results[block]))
        super().drop_oldest(side, part)

    def stale(self, side: int) -> Int64:
        """The blocks whose rows have met all of the other side's disk, and are not on disk themselves."""
        table = self.tables[side]
        blocks = table.live()
        stale: Int64 = blocks[(table.last_tick[blocks] <= self.probed[side]) & (table.disk[blocks] < 0)]
        return stale

    def _dump(self) -> bool:
        """Write stale blocks; they stay in memory until others need it."""
        now = (self.clock, *self.probed)
        if now == self._none_stale_at:
            return False
        side, blocks = self.to_dump()
        if not blocks:
            self._none_stale_at = now
            return False
        table = self.tables[side]
        for part, block in blocks:
            if table.queues[part][-1] == block:
                table.close_block(part)
        self._spare.shrink(self._spare.held)
        while not self.disks[side].try_dump(table, blocks):
            if len(blocks) == 1:
                freed = [each.trim(self.budget.total) for each in self.all_tables]
                if not any(freed) and not self.drop_copies() and not self.join_segments():
                    raise BudgetError("what was spilled is too much to be remembered; allow more memory")
                self._spare.shrink(self._spare.held)
            blocks = blocks[: max(1, len(blocks) // 2)]
        for part, block in blocks:
            self.dumped[side][part] = max(self.dumped[side][part], int(table.last_tick[block]))
        self.events["dumps"] += 1
        return True

    def _may_drop(self, side: int, part: int, block: int) -> bool:
        return bool(self.tables[side].last_tick[block] <= self.probed[side]) or not self.disks[1 - side].absent

    def still_in_memory(self, side: int, parts: Int32, ticks: Int64) -> NDArray[np.bool_]:
        """Which rows of a snapshot have neither left memory nor come to the disk since they were written."""
        not_dumped: NDArray[np.bool_] = ticks > self.dumped[side][parts]
        return not_dumped & super().still_in_memory(side, parts, ticks)
