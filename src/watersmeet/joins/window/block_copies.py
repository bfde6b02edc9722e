"""Copies of blocks on disk in memory: those whose rows are part of most results, and others that a join asks for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.runs.page import Page
from watersmeet.runs.window_segments import Piece
from watersmeet.tables.window_table import WindowTable

if TYPE_CHECKING:
    from watersmeet.joins.window.spilling import SpillingWindowJoin


class Frequent:
    """Copies of one side's blocks: arrivals of the other side meet them in memory, and scans pass them over."""

    def __init__(self, join: SpillingWindowJoin, side: int, capacity: int) -> None:
        layout = join.sizing.layout
        name = f"copies of {join.spec.names[side]}"
        self.table = WindowTable(join.plans[side].types, join.budget, layout, name)
        self.capacity = capacity
        """How many blocks it may hold."""
        self._join = join
        self._side = side
        self._count = 0
        self._least: int | None = None

    def __len__(self) -> int:
        return self._count

    def blocks(self) -> Int64:
        """Its blocks, the oldest copy first."""
        return self.table.by_age(self.table.live())

    def numbers(self) -> list[int]:
        """The numbers on disk of its blocks."""
        numbers: list[int] = self.table.disk[self.table.live()].tolist()
        return numbers

    def least(self) -> int:
        """The results of the least frequent block, if there is no room for another; -1 if there is.

        They may be more by now: that is looked at when blocks come and go.
        """
        if self._count < self.capacity:
            return -1
        if self._least is None:
            self._least = int(self.table.results[self._least_frequent()]) if self._count else -1
        return self._least

    def _least_frequent(self) -> int:
        live = self.table.live()
        results = self.table.results[live]
        fewest = live[results == results.min()]
        return int(fewest[self.table.disk[fewest].argmin()])

    def try_add(self, number: int, part: int, results: int, pages: Sequence[Page]) -> bool:
        """Copy a block that is on disk, and let the least frequent go if there is no room; False if that is too
        little.
        """
        join, table = self._join, self.table
        if not self.capacity:
            return False
        if len(self) >= self.capacity:
            self.drop(self._least_frequent())
        table.close_block(part)
        hashes = np.concatenate([page.hashes for page in pages])
        ticks = np.concatenate([page.ticks for page in pages])
        columns = [pa.concat_arrays(arrays) for arrays in zip(*(page.columns for page in pages), strict=True)]
        parts = np.full(len(hashes), part, np.int32)
        encounters = join.encounters[1 - self._side]
        if not table.reserve(parts, columns):
            for each in join.tables:  # a block that has just left is still kept ready for the next arrivals
                each.trim(join.budget.total)
            if not table.reserve(parts, columns):
                table.trim(join.budget.total)
                return False
        if not encounters.try_come(number, join.clock + 1):
            return False
        join.clock += 1
        rows = table.append(hashes, parts, columns, ticks)
        table.close_block(part)
        block = int(rows[0]) >> table.shift
        table.disk[block], table.results[block] = number, results
        self._count += 1
        self._least = None
        join.events["blocks made frequent"] += 1
        return True

    def drop(self, block: int) -> None:
        """Let a block go."""
        join = self._join
        join.clock += 1
        join.encounters[1 - self._side].go(int(self.table.disk[block]), join.clock)
        self.table.drop(int(self.table.part_of[block]), block)
        self.table.trim(join.budget.total)
        self.table.shrink_index()
        self._count -= 1
        self._least = None
        join.events["blocks no longer frequent"] += 1

    def drop_all(self) -> bool:
        """Let all blocks go; False if there are none."""
        return self._drop(self.blocks())

    def drop_expired(self, before: int) -> bool:
        """Let blocks go whose rows are all older than this."""
        if not self._count:
            return False
        live = self.table.live()
        return self._drop(self.table.by_age(live[self.table.latest[live] < before]))

    def _drop(self, blocks: Int64) -> bool:
        for block in blocks.tolist():
            self.drop(block)
        return len(blocks) > 0

    def decay(self, factor: float) -> None:
        """Let results of long ago count less."""
        self.table.results[:] = (self.table.results * factor).astype(np.int64)
        self._least = None

    def to_state(self) -> list[list[int]]:
        """For a snapshot: the numbers of its blocks, and how many results they were part of."""
        table = self.table
        return [[int(table.disk[block]), int(table.results[block])] for block in self.blocks()]

    def load(self, state: list[list[int]]) -> None:
        """Take over a snapshot's blocks, from disk."""
        for number, results in state:
            piece, place = self._join.disks[self._side].find(number)
            block = load_block(self._join, self._side, self.table, piece, place)
            self.table.results[block] = results
            self._count += 1

    def check(self) -> None:
        """Assert the invariants."""
        self.table.check()
        assert self._count == sum(len(queue) for queue in self.table.queues) <= self.capacity


def load_block(join: SpillingWindowJoin, side: int, table: WindowTable, piece: Piece, place: int) -> int:
    """Bring a block back from disk, as a block of its own; returns it."""
    part = int(piece.parts[place])
    table.close_block(part)
    pages = list(join.disks[side].pages_of(piece, int(piece.firsts[place]), piece.stop(place)))
    rows: list[Any] = []
    for page in pages:
        parts = np.full(len(page), part, np.int32)
        join.claim_to_restore(partial(table.reserve, parts, page.columns))
        rows.append(table.append(page.hashes, parts, page.columns, page.ticks, grow_index=False))
    table.close_block(part)
    block = int(rows[0][0]) >> table.shift
    table.disk[block] = piece.number + place
    return block
