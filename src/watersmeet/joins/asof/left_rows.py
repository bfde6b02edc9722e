"""Left rows of an as-of join that wait: in memory as they came, marked once they are answered, and on disk by time.

A row is marked as it is handed out. So whatever was found and not handed out when a snapshot is taken is simply looked
up again, and no row is answered twice.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.joins.asof.sides import Disk
from watersmeet.kernels.radix import sorted_order
from watersmeet.records.bands import HIGHEST, LOWEST
from watersmeet.runs.sorted_run import SortedRun, let_go
from watersmeet.runs.spine import Merge
from watersmeet.runs.timed_run import write_run_in_order
from watersmeet.tables.arrival_index import ArrivalIndex
from watersmeet.tables.memtable import Memtable

SIGN = np.int64(LOWEST)
"""Floors are signed words, and runs in the order of unsigned ones."""
_FEW = 1024


@dataclass
class LeftRun:
    """Left rows on disk, in the order of their floors; those before `place` are back in memory."""

    run: SortedRun
    level: int
    place: int = 0

    def first_floor(self) -> int:
        """The lowest floor of its rows."""
        self.run.check_hashes(self.place, self.place + 1)
        return int(self.run.hashes()[self.place : self.place + 1].view(np.int64)[0] ^ SIGN)

    def count_upto(self, bound: int) -> int:
        """How many of its rows have a floor up to this."""
        self.run.check_hashes(self.place, self.run.rows)
        last = (np.int64(bound) ^ SIGN).view(np.uint64)
        return int(np.searchsorted(self.run.hashes()[self.place :], last, "right"))

    def next_floors(self, count: int) -> Int64:
        """The floors of the next rows."""
        return self.run.hashes()[self.place : self.place + count].view(np.int64) ^ SIGN


class LeftRows:
    """Rows that wait, and those that were answered until they can go."""

    def __init__(self, table: Memtable, disk: Disk, forget: Callable[[], None], gone: Callable[[int], None]) -> None:
        """`forget` empties the table; `gone` is told up to which tick rows have left it."""
        self.table = table
        self.runs: list[LeftRun] = []
        self._disk = disk
        self._forget = forget
        self._gone = gone
        self._answered: NDArray[np.uint8] = np.zeros(_FEW, np.uint8)
        """Of each row in memory, whether it was handed out, or has no partner and need not be."""
        self.in_memory = 0
        """How many rows in memory were not."""
        self.lowest = HIGHEST
        """No row that waits has a floor below this."""
        self.fresh_low = HIGHEST
        """Nor has one that came since the last settlement a floor below this."""
        self._last_floor = LOWEST
        self.ascend = True
        """Whether the floors of all rows in memory ascend, each above the lowest word, which stands for none."""

    @property
    def count(self) -> int:
        """How many rows wait, in memory and on disk."""
        return self.in_memory + sum(each.run.rows - each.place for each in self.runs)

    def came(self, floors: Int64) -> None:
        """The last rows of the table have come."""
        if len(floors):
            self.note(len(floors))
            low = int(floors.min())
            self.lowest, self.fresh_low = min(self.lowest, low), min(self.fresh_low, low)
            self._note_order(floors)

    def _note_order(self, floors: Int64) -> None:
        """These are the floors of the last rows."""
        if self.ascend and len(floors):
            low = max(self._last_floor, LOWEST + 1)
            self.ascend = bool(floors[0] >= low and (floors[1:] >= floors[:-1]).all())
            self._last_floor = int(floors[-1])

    def _empty(self) -> None:
        """All rows leave memory."""
        self._forget()
        self._last_floor, self.ascend = LOWEST, True

    def note(self, count: int) -> None:
        """The last so many rows of the table wait."""
        rows = self.table.rows
        if rows > len(self._answered):
            more = np.zeros(max(rows, 2 * len(self._answered)), np.uint8)
            more[: rows - count] = self._answered[: rows - count]
            self._answered = more
        self._answered[rows - count : rows] = 0
        self.in_memory += count

    def next_slice(self, place: int, bound: int, most: int) -> tuple[Int32, int]:
        """The next rows in memory that wait, with floors up to a bound, from a place on; and where to go on."""
        found: list[Int64] = [np.empty(0, np.int64)]
        count = 0
        while place < self.table.rows and count < most:
            stop = min(self.table.rows, place + 4 * most)
            waits = (self._answered[place:stop] == 0) & (self._floors(place, stop) <= bound)
            some = np.flatnonzero(waits)[: most - count] + place
            found.append(some)
            count += len(some)
            place = stop if count < most else int(some[-1]) + 1
        return np.concatenate(found).astype(np.int32), place

    def _floors(self, start: int, stop: int) -> Int64:
        index = self.table.index
        assert isinstance(index, ArrivalIndex)
        return index.stretch(start, stop)

    @property
    def answered(self) -> NDArray[np.uint8]:
        """Of each row in memory, whether it waits no more."""
        return self._answered

    def mark_answered(self, numbers: Int32) -> None:
        """These rows wait no more."""
        count = len(numbers)
        if count and int(numbers[-1]) - int(numbers[0]) == count - 1 and self.ascend:
            self._answered[numbers[0] : numbers[-1] + 1] = 1
        else:
            self._answered[numbers] = 1
        self.in_memory -= len(numbers)

    def settled(self) -> None:
        """All that could be answered was."""
        self.compact()
        self.fresh_low = HIGHEST
        self.lowest = self.lowest_floor()

    def lowest_floor(self) -> int:
        """The lowest of those that wait."""
        rows = self.table.rows
        waiting = self._floors(0, rows)[self._answered[:rows] == 0]
        floors = [each.first_floor() for each in self.runs]
        return min([HIGHEST, *floors, *([int(waiting.min())] if len(waiting) else [])])

    # --- rows that leave memory, and come back ---

    def compact(self) -> None:
        """Let rows go that were answered: all of them, or the first, in whole blocks."""
        table = self.table
        if not table.rows:
            return
        if not self.in_memory:
            self._empty()
            return
        waiting = self._answered[: table.rows] == 0
        count = table.whole_blocks(int(np.argmax(waiting)))
        if count:
            self._gone(int(table.ticks(np.array([count - 1], np.int32))[0]))
            left = table.rows - count
            table.drop_first(count)
            self._answered[:left] = self._answered[count : count + left].copy()

    def write(self) -> None:
        """Write rows that wait as a run, in the order of their floors; those that were answered go."""
        table, disk = self.table, self._disk
        numbers = np.flatnonzero(self._answered[: table.rows] == 0).astype(np.int32)
        if not len(numbers):
            self._empty()
            return
        floors = table.hashes(numbers)
        order = sorted_order(floors)
        keys = (floors[order] ^ SIGN).view(np.uint64)
        width, name = max(1, table.row_nbytes // table.rows), disk.new_name(0)
        run = write_run_in_order(disk.store, name, table, keys, numbers[order], width, disk.block_bytes)
        self._empty()
        self.in_memory = 0
        self.runs.append(LeftRun(run, 0))
        disk.wrote(run)
        disk.count(1)
        disk.events["left rows written"] += 1

    def came_back(self, each: LeftRun, count: int) -> None:
        """The next rows of a run are in the table again."""
        self.note(count)
        self._note_order(self._floors(self.table.rows - count, self.table.rows))
        each.place += count
        self._disk.events["left rows read back"] += 1
        self._disk.meter.pages_read += self._disk.pages_of(each.run, count)
        if each.place == each.run.rows:
            self.runs.remove(each)
            self._disk.discard([each.run.name])
            self._disk.count(-1)

    def merge(self, count: int) -> Merge:
        """The last so many runs on their way to become one."""
        some, disk = self.runs[-count:], self._disk
        places = [each.place for each in some]
        return Merge(disk.store, disk.new_name(0), [each.run for each in some], disk.page_bytes, places)

    def merged(self, merge: Merge) -> None:
        """A merged run takes the place of those that it was made of."""
        assert merge.merged is not None
        count = len(merge.runs)
        let_go(merge.runs)
        self.runs[-count:] = [LeftRun(merge.merged, self.runs[-1].level + 1)]
        self._disk.discard([run.name for run in merge.runs])
        self._disk.count(1 - count)

    # --- snapshots ---

    def check(self) -> None:
        """Assert the invariants."""
        assert self.in_memory == int(np.count_nonzero(self._answered[: self.table.rows] == 0))
        assert self.lowest <= self.lowest_floor()

    @property
    def names(self) -> list[str]:
        """Of all segments."""
        return [each.run.name for each in self.runs]

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        answered: Bool = self._answered[: self.table.rows] != 0
        return {
            "runs": [[each.run.name, each.level, each.place] for each in self.runs],
            "answered": base64.b64encode(np.packbits(answered).tobytes()).decode(),
            "low": [self.lowest, self.fresh_low],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over a snapshot's runs; the rows in memory follow."""
        types: Sequence[Any] = self.table.types
        self.runs = [LeftRun(self._disk.open_run(name, types), level, place) for name, level, place in state["runs"]]
        self.lowest, self.fresh_low = state["low"]
        self._disk.count(len(self.runs))

    def load_answered(self, state: dict[str, Any]) -> None:
        """The rows in memory are there: take over which of them were answered."""
        rows = self.table.rows
        packed = np.frombuffer(base64.b64decode(state["answered"]), np.uint8)
        self._answered = np.zeros(max(_FEW, rows), np.uint8)
        self._answered[:rows] = np.unpackbits(packed, count=rows)
        self.in_memory = int(np.count_nonzero(self._answered[:rows] == 0))
        self._note_order(self._floors(0, rows))
