"""How window joins make room that dump blocks: expired blocks go, stale ones are dumped, dumped ones leave memory.

```
fresh ──scan──▶ stale ──dump: one segment of many blocks──▶ dumped, and in memory still ──no room──▶ gone from memory
```

A block is dumped only when its rows have met all of the other side's disk, so rows on disk never have to meet each
other.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.errors import BudgetError
from watersmeet.joins.window.blocks import drop_oldest

if TYPE_CHECKING:
    from watersmeet.joins.window.exact import ExactWindowJoin


class Dumps:
    """Blocks on their way to disk, and out of memory; which are next is for the paper to say."""

    def __init__(self, join: ExactWindowJoin) -> None:
        self._join = join
        self.dumped = np.zeros_like(join.gone)
        """Rows of a side and partition that arrived up to this tick are on disk."""
        widest = max(table.block_bytes for table in join.tables)
        self.at_once = max(1, (join.budget.total - join.sizing.buffers) // 3 // widest)
        """How many blocks go to disk together, at most: a third of the memory."""
        pages = join.budget.total // join.sizing.page_bytes
        self._spare_bytes = max(disk.entry_bytes(self.at_once, pages) for disk in join.disks)
        self._spare = join.budget.reservation("room for the entry of a dump")
        self._spare.grow(self._spare_bytes)
        self._none_stale_at: tuple[int, ...] = ()
        """When it was last seen that no block is stale."""

    # --- making room ---

    def secure(self, claim: Callable[[], bool]) -> bool:
        """Make room until a claim succeeds; False if it does not with all gone that may go."""
        join = self._join
        own = join.tables[join.arriving]
        others = [table for table in join.all_tables if table is not own]
        while not claim():
            for table in others:
                table.trim(join.budget.total)
            if claim():
                break
            flushed = self.make_room()
            if claim():
                break
            # Most claims are of the side that rows arrive on, and can use what is free there without this.
            own.trim(join.budget.total)
            if not flushed:
                return claim()
        return True

    def make_room(self) -> bool:
        """Let something leave memory; False if nothing is left that can."""
        join = self._join
        some = join.expire() or self._evict_some()
        if not some and self._dump():
            self._evict_some()
            some = True
        if some:
            while not self.keep_spare() and (self._evict() or join.copies.drop_all()):
                pass
            return True
        return join.copies.drop_all() or self._join_segments()

    def make_free(self, size: int) -> int:
        """Let blocks that are on disk leave memory until so many bytes are free; returns how many are, at most that."""
        join = self._join
        while join.budget.free < size:
            for table in join.all_tables:
                table.trim(size)
            if join.budget.free < size and not self._evict():
                break
        return min(size, join.budget.free)

    def keep_spare(self) -> bool:
        """Have memory for the entry of the next dump."""
        missing = self._spare_bytes - self._spare.held
        if not missing or self._spare.try_grow(missing):
            return True
        for table in self._join.all_tables:
            table.trim(missing)
        return self._spare.try_grow(missing)

    def use_spare(self) -> None:
        """Let others have the memory for the entry of the next dump."""
        self._spare.shrink(self._spare.held)

    def _join_segments(self) -> bool:
        """Let segments become fewer; False if they cannot."""
        self.use_spare()
        fewer = self._join.books.shorten()
        self.keep_spare()
        return fewer

    # --- blocks that are on disk leave memory ---

    def _evict_some(self) -> bool:
        """Let a few blocks that are on disk leave memory: one after the other would be slow."""
        count = 1 + self.at_once // 8
        return sum(1 for _ in takewhile(bool, (self._evict() for _ in range(count)))) > 0

    def _evict(self) -> bool:
        """Let a block that is on disk leave memory; if it was part of many results, a copy of it may stay."""
        join = self._join
        victim = join.victim()
        if victim is None:
            return False
        side, part = victim
        table = join.tables[side]
        number, results = (int(each[table.queues[part][0]]) for each in (table.disk, table.results))
        page = join.copies.page_to_keep(side, part, results)
        self.drop_oldest(side, part)
        join.events["evicted blocks"] += 1
        join.block_left(side, results)
        if page is not None:
            join.copies.frequent[side].try_add(number, part, results, [page])
        return True

    def drop_oldest(self, side: int, part: int) -> None:
        """Drop a partition's oldest block from memory, and note when, if it is on disk."""
        join, table = self._join, self._join.tables[side]
        block = table.queues[part][0]
        if table.disk[block] >= 0:
            join.clock += 1
            join.disks[side].leave(int(table.disk[block]), join.clock, int(table.results[block]))
        drop_oldest(join, side, part)

    # --- blocks go to disk ---

    def stale(self, side: int) -> Int64:
        """The blocks whose rows have met all of the other side's disk, and are not on disk themselves."""
        table = self._join.tables[side]
        blocks = table.live()
        stale: Int64 = blocks[(table.last_tick[blocks] <= self._join.probed[side]) & (table.disk[blocks] < 0)]
        return stale

    def _dump(self) -> bool:
        """Write stale blocks; they stay in memory until others need it."""
        join = self._join
        now = (join.clock, *join.probed)
        if now == self._none_stale_at:
            return False
        side, blocks = join.to_dump()
        if not blocks:
            self._none_stale_at = now
            return False
        table = join.tables[side]
        for part, block in blocks:
            if table.queues[part][-1] == block:
                table.close_block(part)
        self.use_spare()
        while not join.disks[side].try_dump(table, blocks):
            if len(blocks) == 1:
                freed = [each.trim(join.budget.total) for each in join.all_tables]
                if not any(freed) and not join.copies.drop_all() and not self._join_segments():
                    raise BudgetError("what was spilled is too much to be remembered; allow more memory")
                self.use_spare()
            blocks = blocks[: max(1, len(blocks) // 2)]
        for part, block in blocks:
            self.dumped[side][part] = max(self.dumped[side][part], int(table.last_tick[block]))
        join.events["dumps"] += 1
        join.books.look()
        return True

    def not_dumped(self, side: int, parts: Int32, ticks: Int64) -> Bool:
        """Which rows, by their partitions and arrivals, have not come to the disk."""
        stayed: Bool = ticks > self.dumped[side][parts]
        return stayed
