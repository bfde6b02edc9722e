"""DINER's loop over blocks on disk: it can stop after any inner block and go on later.

And blocks of an input that has ended, loaded again so that the other input's rows meet them as they arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from watersmeet.core.arrays import Bool, Int32
from watersmeet.core.errors import BudgetError
from watersmeet.core.saved import Saved
from watersmeet.matching.found_pairs import Between
from watersmeet.matching.lookup import Lookup
from watersmeet.matching.loop_counters import LoopCounters
from watersmeet.matching.range_lookup import RangeLookup
from watersmeet.memory import format_bytes
from watersmeet.records.plan import BatchRows
from watersmeet.runs.block_catalogue import SortedBlocks
from watersmeet.runs.page import Page
from watersmeet.runs.presence import FOREVER, NOT_ON_DISK, Stay

if TYPE_CHECKING:
    from watersmeet.joins.progressive.diner import Diner
    from watersmeet.tables.range_table import SortedSide

_BLOCKS_LEFT_FREE = 3


class Loop(Saved, LoopCounters):
    """The counters of blocks, and one for the inner blocks that those at hand have met.

    ```
                        joined[inner] ┐
    inner blocks  ├───────────────────┤ ······ came later
                  │ met               │
    joined[outer] ├─────────┬─────────┤
                  │ met     │         │        `loaded` outer blocks have met the first `current` inner ones
                  ├─────────┘ current │
                  :                   :
    ```
    """

    SAVED: ClassVar[tuple[str, ...]] = ("outer", "joined", "current", "loaded", "_met")

    def __init__(self, disks: Sequence[SortedBlocks]) -> None:
        super().__init__(lambda: [len(disk) for disk in disks])
        self.current = 0
        """Inner blocks that the outer blocks at hand have met."""
        self.in_memory: tuple[int, int, int] | None = None
        """Which blocks of which side lie in memory: side, first block, number of blocks."""

    @property
    def inner(self) -> int:
        """The side whose blocks are read again for each load of outer blocks."""
        return 1 - self.outer

    def inner_block_met(self) -> None:
        """The outer blocks at hand have met one more inner block."""
        self.current += 1
        if self.current == self.joined[self.inner]:
            self.all_met()
            self.current = 0

    def forget_loaded(self, outers: Sequence[SortedSide]) -> bool:
        """Drop the outer blocks from memory; they are still on disk. False if there are none."""
        if self.in_memory is None:
            return False
        table = outers[self.in_memory[0]]
        table.drop()
        table.trim(table.nbytes)
        self.in_memory = None
        return True

    def check(self) -> None:
        """Assert that the counters tell what has met, and those at hand have met fewer inner blocks than there are."""
        super().check()
        assert not self.current or (self.loaded and self.current < self.joined[self.inner])


def load_block(join: Diner, side: int, table: SortedSide, number: int, needed: bool, may_flush: bool = False) -> bool:
    """Bring a block back into a table, whose index must then be built; False, and nothing changed, if it does not fit.

    For a block that is needed room is made, as it is where rows may be flushed for it; an error says so if even that is
    not enough for a block that is needed.
    """
    disk = join.disks[side]
    before = table.rows
    for page_number in range(disk.pages(number)):
        page = disk.read(number, page_number)
        start, count = 0, len(page)
        while start < len(page):
            some = page.slice(start, min(count, len(page) - start))
            parts = np.zeros(len(some), np.int32)
            claim = partial(table.reserve, parts, some.columns)
            if join.secure(claim) if needed or may_flush else claim():
                rows = table.append(some.hashes, parts, some.columns, some.ticks, grow_index=False)
                table.set_departed(rows, page.departed)
                join.meter.inserts += len(some)
                start += len(some)
            elif not needed:
                table.remove_last(table.rows - before)
                return False
            elif count > 1:
                count //= 2
            else:
                raise BudgetError(
                    f"{format_bytes(join.budget.total)} of memory are too little to bring a block of "
                    f"{join.spec.names[side]} back from disk; allow more memory"
                )
    return True


class NestedLoop:
    """The loop at work: outer blocks are loaded and sorted together, and inner blocks are looked up in them by pages.

    With a limit, so many outer blocks are loaded at once; without one, as many as fit into memory. An inner block whose
    values are all too far from those of the outer blocks has met them without being read.
    """

    def __init__(self, join: Diner, most_blocks: int | None, pages_at_once: int = 1) -> None:
        self._join = join
        self._most_blocks = most_blocks
        self._pages_at_once = pages_at_once
        """Inner pages that are looked up together; memory for them was claimed."""
        self._page = 0
        self._loading: int | None = None
        """Outer blocks that are in memory while others are still to come."""
        self._read: Page | None = None
        self.lookup: Lookup | None = None

    @property
    def done(self) -> bool:
        """Whether all blocks have met."""
        return not self._join.loop.unmet

    @property
    def between_blocks(self) -> bool:
        """Whether the inner block at hand has not begun."""
        return self.lookup is None and not self._page

    def work(self, fuel: int) -> int:
        """Go on with the page at hand, or load what comes next."""
        join, loop = self._join, self._join.loop
        if self.lookup is not None and not self.lookup.done:
            return self.lookup.work(join.pairs, fuel, join.meter)
        if self.lookup is not None:
            self.lookup = None
            self._page += self._pages
            if self._page == join.disks[loop.inner].pages(loop.current):
                self._end_inner_block()
            return 1
        if not self._page:
            loop.choose_roles()
            used = self._load()
            if used:
                return used
            if self._out_of_reach():
                self._end_inner_block()
                return 1
        self._open_page()
        return 1

    def _end_inner_block(self) -> None:
        self._page = 0
        self._join.loop.inner_block_met()

    # --- outer blocks ---

    def _load(self) -> int:
        """Bring one more outer block into memory; returns the fuel that took, 0 if all are there."""
        join, loop = self._join, self._join.loop
        first, table = loop.joined[loop.outer], join.outers[loop.outer]
        if self._loading is None:
            if loop.loaded and loop.in_memory == (loop.outer, first, loop.loaded):
                return 0
            loop.forget_loaded(join.outers)
            join.trim_all()
            loop.in_memory = (loop.outer, first, 0)
            self._loading = 0
        most = loop.loaded or len(join.disks[loop.outer]) - first
        if not loop.loaded and self._most_blocks is not None:
            most = min(most, self._most_blocks)
        rows = table.rows
        needed = not self._loading or loop.loaded > 0
        # As many as are allowed, even if rows in memory have to go for them: what they meet is read once for all. But
        # not beyond half of the memory, or next to nothing would be left for arrivals to meet.
        may_flush = self._most_blocks is not None and 2 * table.nbytes < join.budget.total - join.sizing.buffers
        if self._loading < most and load_block(join, loop.outer, table, first + self._loading, needed, may_flush):
            self._loading += 1
            return table.rows - rows
        table.fit_index()
        loop.loaded = self._loading
        loop.in_memory = (loop.outer, first, loop.loaded)
        self._loading = None
        return 1

    def _out_of_reach(self) -> bool:
        """Whether no value of the inner block is close to one of the outer blocks."""
        join, loop = self._join, self._join.loop
        words, _ = join.outers[loop.outer].index.sorted()
        ends = np.array(join.disks[loop.inner].span(loop.current))
        low, high = (ends, ends) if join.codec.band is None else join.codec.band.bounds(ends)
        return bool(high[1] < words[0] or low[0] > words[-1])

    # --- inner pages ---

    @property
    def _pages(self) -> int:
        """How many inner pages are at hand."""
        loop = self._join.loop
        left = self._join.disks[loop.inner].pages(loop.current) - self._page
        return min(left, self._pages_at_once)

    def _open_page(self) -> None:
        join, loop = self._join, self._join.loop
        page = join.disks[loop.inner].read_some(loop.current, self._page, self._pages)
        table = join.outers[loop.outer]
        self._read = page
        probe = join.codec.probe(page.hashes, page.columns)
        # Pairs that were in memory together, most of all, are not even found.
        probe.arrived, probe.departed = np.array(page.ticks), np.full(len(page), page.departed)
        fresh = self._fresh if join.resident.was_used else None
        self.lookup = RangeLookup(probe, table, Between(loop.inner, BatchRows(page.columns), table), fresh)

    def _fresh(self, probes: Int32, rows: Int32) -> Bool:
        """Which pairs did not meet after one of them had come back."""
        page = self._read
        assert page is not None
        table = self._join.outers[self._join.loop.outer]
        nowhere = np.full(len(probes), NOT_ON_DISK)
        stays = [Stay(table.ticks(rows), table.departed(rows), nowhere)] * 2
        stays[self._join.loop.inner] = Stay(page.ticks[probes], np.full(len(probes), page.departed), nowhere)
        return ~self._join.resident.met(*stays)

    def finish(self) -> None:
        """Nothing has to be read for now."""
        self._join.loop.forget_loaded(self._join.outers)
        for disk in self._join.disks:
            disk.release()

    def to_state(self) -> dict[str, Any]:
        """The loop for a snapshot."""
        place = None if self.lookup is None else self.lookup.place(self._join.pairs)
        at_once = self._pages_at_once
        return {"kind": "loop", "most": self._most_blocks, "at_once": at_once, "page": self._page, "place": place}

    @classmethod
    def resumed(cls, join: Diner, state: dict[str, Any]) -> NestedLoop:
        """A loop that a snapshot was taken of."""
        task = cls(join, state["most"], state["at_once"])
        task._page = state["page"]
        if state["page"] or state["place"] is not None:
            join._task = task  # making room must not take the blocks that are being loaded
            if not join.claim_inner_pages(state["at_once"]):
                raise BudgetError(
                    f"{format_bytes(join.budget.total)} of memory are too little to go on with the pages of "
                    f"{join.spec.names[join.loop.inner]} that were at hand; allow more memory"
                )
            while task._load():
                pass
            if state["place"] is not None:
                task._open_page()
                assert task.lookup is not None
                task.lookup.resume(join.pairs, state["place"])
        return task


class Resident:
    """The first blocks of one side, which are in memory from a tick on, for a while or until the end.

    Blocks lie on disk in the order in which they left memory, so the departure of the last one tells which rows came
    back, and two ticks tell which rows of the other side have met them.
    """

    def __init__(self, join: Diner) -> None:
        self._join = join
        self.table: SortedSide | None = None
        self._side = 0
        self._blocks = 0
        self._departed = -1
        self._since = self._until = FOREVER

    def covers(self, side: int) -> bool:
        """Whether all that one side has on disk is in memory."""
        return self.table is not None and self._side == side and self._blocks == len(self._join.disks[side])

    def is_of(self, side: int) -> bool:
        """Whether blocks of one side are in memory."""
        return self.table is not None and self._side == side

    @property
    def was_used(self) -> bool:
        """Whether any blocks have ever come back."""
        return self._departed >= 0

    def load(self, side: int) -> None:
        """Bring back as many blocks as fit, and leave some room for arrivals and for the loop."""
        join = self._join
        assert self.table is None and self._departed < 0, "only one input ends while the other goes on"
        self._side = side
        self.table = join.new_table(side, from_disk=True)
        disk, left_free = join.disks[side], _BLOCKS_LEFT_FREE * join.block_bytes
        join.trim_all()
        while self._blocks < len(disk) and join.budget.free >= left_free + join.block_bytes:
            if not load_block(join, side, self.table, self._blocks, needed=False):
                break
            self._blocks += 1
        self.table.trim(join.budget.total)
        self.table.fit_index()
        if self._blocks:
            self._departed = disk[self._blocks - 1].departed
            self._since = join.clock
        else:
            self.drop()

    def drop(self) -> bool:
        """Give the memory back; False if there is nothing."""
        if self.table is None:
            return False
        self.table.drop()
        self.table.trim(self._join.budget.total)
        self.table = None
        self._until = self._join.clock + 1
        return True

    def met(self, left: Stay, right: Stay) -> Bool:
        """Which pairs met because one of them had come back."""
        ended, other = (right, left) if self._side else (left, right)
        met: Bool = (ended.departed <= self._departed) & (other.arrived > self._since) & (other.arrived < self._until)
        return met

    def to_state(self) -> list[Any]:
        """For a snapshot."""
        return [self.table is not None, self._side, self._blocks, self._departed, self._since, self._until]

    def restore(self, state: list[Any]) -> None:
        """Take over a snapshot's state, and load the same blocks."""
        loaded, self._side, self._blocks, self._departed, self._since, self._until = state
        if loaded:
            self.table = self._join.new_table(self._side, from_disk=True)
            for number in range(self._blocks):
                load_block(self._join, self._side, self.table, number, needed=True)
            self.table.fit_index()

    def check(self) -> None:
        """Assert the invariants."""
        if self.table is not None:
            self.table.check()
            assert 0 < self._blocks <= len(self._join.disks[self._side])
            assert self._until == FOREVER and self._since <= self._join.clock
