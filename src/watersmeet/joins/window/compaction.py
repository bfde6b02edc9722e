"""What is on disk must be remembered: where that takes too much memory, many small segments become few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from watersmeet.core.arrays import Int64
from watersmeet.runs.window_runs import JOINED_BYTES
from watersmeet.runs.window_segments import Piece

if TYPE_CHECKING:
    from watersmeet.joins.window.exact import ExactWindowJoin


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
