"""How window joins make room that dump blocks: expired blocks go, stale ones are dumped, dumped ones leave memory.

```
fresh ──scan──▶ stale ──dump: one segment of many blocks──▶ dumped, and in memory still ──no room──▶ gone from memory
```

A block is dumped only when its rows have met all of the other side's disk, so rows on disk never have to meet each
other.

What is on disk must be remembered: where that takes too much memory, many small segments become few (`Books`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.errors import BudgetError
from watersmeet.joins.window.blocks import drop_oldest
from watersmeet.runs.window_runs import JOINED_BYTES
from watersmeet.runs.window_segments import Piece

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


_ROOM = 0.25
"""Of the memory that is not for buffers: what becomes one segment at a time must fit."""


class Books:
    """The entries of both sides' segments.

    Segments may become one when all that is known of single blocks is of no use any more: no row that is still to meet
    the disk arrived before one of them had left memory, no copy of them is in memory, and none was when such a row
    arrived. The rows of a partition stay in their order, in full blocks.
    """

    def __init__(self, join: ExactWindowJoin, share: float) -> None:
        self._join = join
        self._share = share
        self._rest = join.budget.total - join.sizing.buffers
        self._room = join.budget.reservation("room to join segments")
        self.most = int(share * self._rest)
        """When entries take more than this, it is time to look what can become one."""

    @property
    def held(self) -> int:
        """Memory that the entries take."""
        return sum(disk.held for disk in self._join.disks)

    def look(self) -> None:
        """Let segments become one if their entries take too much memory, and become much fewer by that."""
        if self.held <= self.most:
            return
        groups = [(side, group) for side in (0, 1) for group in self._groups(side, self._rest)]
        if sum(self._saved(side, group) for side, group in groups) > self._share * self.held:
            self.shorten()
        self.most = max(int(self._share * self._rest), 3 * self.held // 2)

    def shorten(self) -> bool:
        """Let segments become one, as many as there is memory to do it; False if none can."""
        join, before = self._join, self.held
        wanted = sum(self._needed(piece) for disk in join.disks for piece in disk.pieces)
        self._room.grow(join.dumps.make_free(min(wanted, int(_ROOM * self._rest))))
        try:
            for side in (0, 1):
                self._shorten(side, self._room.held)
        finally:
            self._room.clear()
        return self.held < before

    def _shorten(self, side: int, room: int) -> None:
        join, disk = self._join, self._join.disks[side]
        for group in list(self._groups(side, room)):
            self._room.shrink(sum(piece.claimed for piece in group))  # for the new entry
            joined = disk.try_join(group, join.still_met(side), join.tables[side].layout.block_rows)
            if joined is not None:
                join.saver.discard([disk.name(piece.number) for piece in group])
                join.events["segments joined"] += len(group)
            self._room.grow(min(room - self._room.held, join.budget.free))

    def settled(self, side: int) -> int:
        """Blocks of a side that left memory up to this tick had all left when rows came that are still to meet them."""
        other = 1 - side
        waiting = self._join.last_kept[other] > self._join.probed[other]
        return self._join.probed[other] if waiting else self._join.clock

    def copied(self, side: int) -> Int64:
        """Blocks of a side that some rows, but not all, have met as copies, by their numbers."""
        numbers: Int64 = self._join.encounters[1 - side].stays[0]
        return numbers

    def _groups(self, side: int, room: int) -> Iterator[list[Piece]]:
        """Segments that may become one, by age, as many at a time as there is room for."""
        if self._join.is_aside(1 - side):
            return
        settled, copied = self.settled(side), self.copied(side)
        group: list[Piece] = []
        needed = 0
        for piece in self._join.disks[side].by_age():
            stays = np.searchsorted(copied, [piece.number, piece.number + len(piece.left)])
            alone = bool(piece.left.max() > settled or stays[0] < stays[1])
            if alone or needed + self._needed(piece) > room:
                if len(group) > 1:
                    yield group
                group, needed = [], 0
            if not alone and self._needed(piece) <= room:
                group.append(piece)
                needed += self._needed(piece)
        if len(group) > 1:
            yield group

    def _needed(self, piece: Piece) -> int:
        """Memory to let a segment become part of another one."""
        return JOINED_BYTES * piece.rows + piece.claimed

    def _saved(self, side: int, group: list[Piece]) -> int:
        """By how much entries become less, about."""
        rows: Counter[int] = Counter()
        for piece in group:
            for part, size in zip(piece.parts.tolist(), np.diff(np.append(piece.firsts, piece.rows)), strict=True):
                rows[part] += int(size)
        full = self._join.tables[side].layout.block_rows
        blocks, pages = sum(-(-count // full) for count in rows.values()), sum(len(piece.ends) for piece in group)
        return sum(piece.claimed for piece in group) - self._join.disks[side].entry_bytes(blocks, pages)
