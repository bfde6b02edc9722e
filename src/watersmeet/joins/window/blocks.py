"""Windows in blocks, which go one by one, the oldest of a partition first: look-ups, expiry, and how long rows took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Float64, Int32, Int64
from watersmeet.core.delays import Marks
from watersmeet.core.errors import BudgetError
from watersmeet.engine.shell import Operator
from watersmeet.engine.windows import TimedLookup
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.records.plan import Rows
from watersmeet.records.times import FLOOR, TIME
from watersmeet.runs.window_runs import WindowDisk
from watersmeet.tables.hash_table import Probe
from watersmeet.tables.window_table import WindowProbe, WindowTable


class WindowLookup(TimedLookup):
    """Rows looked up in a table that counts which of its blocks were part of results."""

    def __init__(self, probe: Probe, table: WindowTable, between: Between, join: Operator) -> None:
        super().__init__(probe, table, between, join, partners=table.part_rows)
        self._counted = table

    def work(self, pairs: PairBuffer, fuel: int, meter: Any) -> int:
        """Fill the empty buffer with pairs; returns the fuel that took."""
        used = super().work(pairs, fuel, meter)
        if pairs.count:
            self._counted.count_results(pairs.rows[: pairs.count])
        return used


def make_table(join: Operator, side: int) -> WindowTable:
    """One input's rows in memory."""
    return WindowTable(join.plans[side].types, join.budget, join.sizing.layout, join.spec.names[side])


def make_disks(join: Operator) -> tuple[WindowDisk, WindowDisk]:
    """What each input has on disk."""

    def disk(side: int, name: str) -> WindowDisk:
        claim = join.budget.reservation(f"catalogue of {join.spec.names[side]} on disk")
        return WindowDisk(join.store, name, join.plans[side].types, claim, join.meter, join.sizing.page_bytes)

    return disk(0, "left"), disk(1, "right")


def lookup_in(
    join: Operator, table: WindowTable, side: int, hashes: Int64, parts: Int32, columns: list[pa.Array], source: Rows
) -> WindowLookup:
    """The look-up of rows that arrived on one side in a table of the other."""
    times, timing = columns[TIME].to_numpy(), join.timed.timing
    behind, ahead = timing.least_ages(side)
    probe = WindowProbe(
        hashes, parts, times=times, lows=columns[FLOOR].to_numpy(), highs=timing.meets(side, times),
        least_behind=behind, least_ahead=ahead,
    )  # fmt: skip
    return WindowLookup(probe, table, Between(side, source, table), join)


def drop_oldest(join: Operator, side: int, part: int) -> None:
    """Drop a partition's oldest block from memory."""
    table = join.tables[side]
    join.gone[side][part] = table.last_tick[table.queues[part][0]]
    table.drop_oldest(part)


def expire_blocks(
    join: Operator,
    may_go: Callable[[int, int, int], bool] = lambda side, part, block: True,
    drop: Callable[[int, int], None] | None = None,
) -> bool:
    """Let go of blocks whose rows have all expired, of those that may go; False if there are none."""
    some = False
    for side, table in enumerate(join.tables):
        bound = join.expired_before(side)
        for part in table.expired(bound).tolist():
            queue = table.queues[part]
            while queue and table.latest[queue[0]] < bound and may_go(side, part, queue[0]):
                if drop is None:
                    drop_oldest(join, side, part)
                else:
                    drop(side, part)
                join.events["expired blocks"] += 1
                some = True
    return some


def claim_to_restore(join: Operator, claim: Callable[[], bool]) -> None:
    """Claim memory for what a snapshot holds."""
    if not claim():
        for table in join.tables:
            table.trim(join.budget.total)
        if not claim():
            raise BudgetError("the snapshot does not fit into this memory; allow a little more")


class Waits:
    """How long rows wait that must meet the disk, too, and which of them do so for too long."""

    def __init__(self, join: Operator) -> None:
        self._join = join
        self._lengths = join.spec.seconds(0), join.spec.seconds(1)
        self.marks = Marks()
        """When the rows of which ticks came."""
        self.came_at: Callable[[Int64], Float64] | None = None
        """When rows of these times came, where that is known better than from the first poll after it."""

    def rows_came(self) -> None:
        """Take note of when rows came."""
        self.marks.add(self._join.clock, self._join.now)

    def add(self, ticks: Int64) -> None:
        """Results were found now whose later rows arrived at these ticks."""
        arrived = self.marks.times(ticks)
        if arrived is not None:
            self._join.timed.delays.add(((self._join.now - arrived) * 1e6).astype(np.int64))

    def perhaps_delayed(self, side: int) -> bool:
        """Whether rows that have met everything by now may have done so too late."""
        length, first, now = self._lengths[side], self.marks.first, self._join.now
        return length is not None and (self.came_at is not None or (first is not None and now - first > length))

    def rows_settled(self, side: int, times: Int64, ticks: Int64) -> None:
        """Rows have met everything that came before them."""
        length = self._lengths[side]
        if length is None:
            return
        came = self.marks.times(ticks) if self.came_at is None else self.came_at(times)
        if came is not None:
            self._join.timed.delayed += int(np.count_nonzero(self._join.now - came > length))
