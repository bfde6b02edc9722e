"""Blocks of an input that has ended, loaded again so that the other input's rows meet them as they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from watersmeet.core.arrays import Bool
from watersmeet.engine.block_loop import load_block
from watersmeet.runs.presence import FOREVER, Stay

if TYPE_CHECKING:
    from watersmeet.joins.progressive.diner import Diner
    from watersmeet.tables.range_table import SortedSide


_BLOCKS_LEFT_FREE = 3


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
