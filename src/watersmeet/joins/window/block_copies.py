"""Copies of blocks on disk in memory: those whose rows are part of most results, and others that a join asks for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.joins.window.blocks import claim_to_restore
from watersmeet.runs.page import Page
from watersmeet.runs.scan import ScannedRows
from watersmeet.runs.window_segments import Piece
from watersmeet.tables.window_table import WindowTable

if TYPE_CHECKING:
    from watersmeet.joins.window.exact import ExactWindowJoin


class Frequent:
    """Copies of one side's blocks: arrivals of the other side meet them in memory, and scans pass them over."""

    def __init__(self, join: ExactWindowJoin, side: int, capacity: int) -> None:
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


class Copies:
    """All copies of blocks on disk, by what they are for: those that are met most often, and what a paper adds."""

    def __init__(self, join: ExactWindowJoin, share: float) -> None:
        self._join = join
        rest = join.budget.total - join.sizing.buffers
        capacity = [int(rest * share / 2 / table.indexed_block_bytes) for table in join.tables]
        self.frequent = (Frequent(join, 0, capacity[0]), Frequent(join, 1, capacity[1]))
        self._kinds: list[tuple[Frequent, Frequent]] = [self.frequent]

    def add_kind(self, capacity: int) -> tuple[Frequent, Frequent]:
        """Copies for another purpose, by side: at most so many."""
        self._kinds.append((Frequent(self._join, 0, capacity), Frequent(self._join, 1, capacity)))
        return self._kinds[-1]

    @property
    def tables(self) -> list[WindowTable]:
        """What holds them."""
        return [each.table for kind in self._kinds for each in kind]

    def in_use(self, side: int) -> list[WindowTable]:
        """What holds those of a side, if there are any."""
        return [kind[side].table for kind in self._kinds if len(kind[side])]

    def numbers(self, side: int) -> set[int]:
        """The numbers of a side's blocks of which there are copies."""
        return {number for kind in self._kinds for number in kind[side].numbers()}

    def drop_all(self) -> bool:
        """Let all copies of blocks go; False if there are none."""
        return any([each.drop_all() for kind in self._kinds for each in kind])  # noqa: C419 (of both sides)

    def drop_expired(self, side: int, before: int) -> bool:
        """Let copies of a side go whose rows are all older than this; False if there are none."""
        return any([kind[side].drop_expired(before) for kind in self._kinds])  # noqa: C419 (of all kinds)

    def page_to_keep(self, side: int, part: int, results: int) -> Page | None:
        """The rows of a partition's oldest block, if it is to become a frequent one; None if it is not."""
        join, table = self._join, self._join.tables[side]
        if not self.frequent[side].capacity or not join.worth_keeping(side, results):
            return None
        rows = table.rows_in(part, table.queues[part][0])
        columns = [table.gather(column, rows) for column in range(len(table.types))]
        return Page(table.hashes(rows), table.ticks(rows), columns, -1, -1)

    def consider(self, side: int, scanned: ScannedRows) -> None:
        """A scan came by some blocks: those with most results may become frequent ones."""
        join, frequent = self._join, self.frequent[side]
        if not frequent.capacity:
            return
        present = self.numbers(side)
        counts = [piece.results[places] for piece, places in scanned.chosen]
        results = np.concatenate([*counts, np.empty(0, np.int64)])
        ends = np.cumsum([len(each) for each in counts])
        for at in np.argsort(-results, kind="stable")[: frequent.capacity].tolist():
            if not join.worth_keeping(side, int(results[at])):
                break
            segment = int(np.searchsorted(ends, at, side="right"))
            piece, places = scanned.chosen[segment]
            place = int(places[at - ends[segment]])
            if piece.number + place not in present and self.lives(side, piece, place):
                pages = list(join.disks[side].pages_of(piece, int(piece.firsts[place]), piece.stop(place)))
                frequent.try_add(piece.number + place, int(piece.parts[place]), int(results[at]), pages)

    def lives(self, side: int, piece: Piece, place: int) -> bool:
        """Whether a block on disk may still be met."""
        return bool(piece.latest[place] >= self._join.expired_before(side))

    def let_fade(self, side: int, factor: float) -> None:
        """Let results of long ago count less, of blocks in memory, on disk and in copies."""
        join = self._join
        for results in (join.tables[side].results, *(piece.results for piece in join.disks[side].pieces)):
            results[:] = (results * factor).astype(results.dtype)
        self.frequent[side].decay(factor)

    def to_state(self) -> list[list[list[list[int]]]]:
        """For a snapshot."""
        return [[each.to_state() for each in kind] for kind in self._kinds]

    def load(self, side: int, state: list[list[list[list[int]]]]) -> None:
        """Bring one side's copies back from disk."""
        for kind, saved in zip(self._kinds, state, strict=True):
            kind[side].load(saved[side])

    def check(self, side: int) -> None:
        """Assert the invariants."""
        for kind in self._kinds:
            kind[side].check()
        assert len(self.numbers(side)) == sum(len(kind[side]) for kind in self._kinds), "one copy of a block"


def load_block(join: ExactWindowJoin, side: int, table: WindowTable, piece: Piece, place: int) -> int:
    """Bring a block back from disk, as a block of its own; returns it."""
    part = int(piece.parts[place])
    table.close_block(part)
    pages = list(join.disks[side].pages_of(piece, int(piece.firsts[place]), piece.stop(place)))
    rows: list[Any] = []
    for page in pages:
        parts = np.full(len(page), part, np.int32)
        claim_to_restore(join, partial(table.reserve, parts, page.columns))
        rows.append(table.append(page.hashes, parts, page.columns, page.ticks, grow_index=False))
    table.close_block(part)
    block = int(rows[0][0]) >> table.shift
    table.disk[block] = piece.number + place
    return block
