"""Tasks of a join whose partitions leave memory whole: rows in memory meet runs, runs meet runs, and all that at once.

An md-task looks the other side's runs up among rows in memory. A dd-task is a blocked loop: runs that no dd-task has
seen are loaded a cluster at a time, and the other side's older runs are looked up in each. Both can stop between any
two pairs, be set aside while rows arrive, and go on later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from watersmeet.core.arrays import Bool, Int32
from watersmeet.core.errors import BudgetError
from watersmeet.joins.window.blocks import claim_to_restore
from watersmeet.matching.disk_lookup import DiskIndex, DiskLookup, filter_of
from watersmeet.matching.ledger import Meetings
from watersmeet.matching.lookup import Lookup
from watersmeet.memory import format_bytes
from watersmeet.runs.page import Page
from watersmeet.runs.scan import ScannedRows
from watersmeet.runs.window_segments import FOREVER, Piece
from watersmeet.tables.window_table import WindowTable

if TYPE_CHECKING:
    from watersmeet.joins.window.rpwj import RPWJ


class _RunLookup(DiskLookup):
    """One side's runs of a partition, looked up among rows of the other side that came later."""

    def __init__(
        self, join: RPWJ, side: int, part: int, table: WindowTable, ticks: tuple[int, int], floor: int
    ) -> None:
        disk = join.disks[1 - side]
        rows = ScannedRows(disk, join.plans[1 - side].types, ticks[1], floor, join.spilled.runs[1 - side][part])
        # A table of runs read back has one partition.
        blocks = np.array(table.queues[part if table is join.tables[side] else 0], np.int64)
        blocks = blocks[table.last_tick[blocks] > ticks[0]]
        partners = np.full(join.sizing.layout.partitions, table.sizes(blocks).sum())
        self._index = DiskIndex(table, disk, rows, ticks, join.timed.timing.words(side), partners)
        super().__init__(side, table, self._index, rows)
        self._join = join
        if rows.rows:
            self._index.wanted = filter_of(table, blocks, join.spilled.filter_claim)

    def not_met(self, probes: Int32, rows: Int32) -> Bool:
        """Those whose later row came when the run had left memory."""
        left = self.rows.block_left[self.rows.blocks_of(probes)]
        return ~Meetings.together(left, self.table.ticks(rows))

    def found(self, probes: Int32, rows: Int32) -> None:
        """Take note of how long they took."""
        self._join.waits.add(self.table.ticks(rows))

    def end(self) -> None:
        """Let go of everything."""
        self._index.close()
        self.rows.release()
        self._join.spilled.filter_claim.clear()


class MemoryTask:
    """Rows of one side and partition that are in memory meet the other side's runs."""

    def __init__(self, join: RPWJ, side: int, part: int, until: int, floor: int | None = None) -> None:
        self._join = join
        self.side, self.part, self._until = side, part, until
        self._since = join.spilled.meetings.met_disk(side, part)
        table = join.tables[side]
        if floor is None:
            fresh = [block for block in table.queues[part] if table.last_tick[block] > self._since]
            floor = int(table.least_floor[fresh].min(initial=FOREVER))
        self._floor = floor
        self.lookup = _RunLookup(join, side, part, table, (self._since, until), floor)
        self._place: list[int] | None = None

    @property
    def done(self) -> bool:
        """Whether all pairs were found."""
        return self.lookup.done

    @property
    def held(self) -> frozenset[tuple[int, int]]:
        """Partitions that must stay in memory meanwhile."""
        return frozenset({(self.side, self.part)})

    def set_aside(self) -> None:
        """Wait; all pairs found so far have been handed out."""
        self._place = self.lookup.place(self._join.pairs)

    def take_up(self) -> None:
        """Go on."""
        self._place = None

    def work(self, fuel: int) -> int:
        """Go on."""
        return self.lookup.work(self._join.pairs, fuel, self._join.meter) if not self.done else 1

    def finish(self) -> None:
        """The rows have met the runs."""
        self.lookup.end()
        join, table = self._join, self._join.tables[self.side]
        if join.waits.perhaps_delayed(self.side):
            rows = table.rows_of(self.part)
            ticks = table.ticks(rows)
            mine = (ticks > self._since) & (ticks <= self._until)
            join.waits.rows_settled(self.side, table.times(rows[mine]), ticks[mine])
        join.md_ended(self.side, self.part, self._until)

    def to_state(self) -> dict[str, Any]:
        """The task for a snapshot."""
        place = self._place or self.lookup.place(self._join.pairs)
        return {
            "kind": "md", "side": self.side, "part": self.part, "until": self._until, "floor": self._floor,
            "place": place, "done": self.done,
        }  # fmt: skip

    @classmethod
    def resumed(cls, join: RPWJ, state: dict[str, Any]) -> MemoryTask:
        """Go on where a snapshot was taken."""
        task = cls(join, state["side"], state["part"], state["until"], state["floor"])
        task.lookup.resume(join.pairs, state["place"])
        if state["done"]:
            task.lookup.probe.next = task.lookup.length
        return task


class DiskTask:
    """The runs of a partition meet each other."""

    held: frozenset[tuple[int, int]] = frozenset()

    def __init__(self, join: RPWJ, part: int, until: int) -> None:
        self._join = join
        self.part, self._until = part, until
        self._outer: list[tuple[int, Piece]] = [
            (side, run)
            for side in (0, 1)
            for run in join.spilled.runs[side][part]
            if run.left[0] < until and (join.stages.reread or not self._merged(side, run))
        ]
        self._at = 0
        self._start = self._stop = 0
        self._loaded = (0, 0, 0)
        """Of the cluster at hand: the place of its run among all, its first row, and the row behind its last."""
        self._run_lookup: _RunLookup | None = None
        self._place: list[int] | None = None
        self._find_next()

    @property
    def lookup(self) -> Lookup | None:
        """The look-up in the cluster at hand."""
        return self._run_lookup

    @property
    def done(self) -> bool:
        """Whether all pairs were found."""
        return self._at == len(self._outer) and (self._run_lookup is None or self._run_lookup.done)

    def set_aside(self) -> None:
        """Wait; all pairs found so far have been handed out."""
        if self._run_lookup is not None:
            self._place = self._run_lookup.place(self._join.pairs)

    def take_up(self) -> None:
        """Go on."""
        self._place = None

    def work(self, fuel: int) -> int:
        """Go on with the cluster at hand, or load the next."""
        if self.done:
            return 1
        if self._run_lookup is not None and not self._run_lookup.done:
            return self._run_lookup.work(self._join.pairs, fuel, self._join.meter)
        self._end_cluster()
        return self._load_cluster()

    def _find_next(self) -> None:
        """Pass over runs before which nothing of the other side had left memory."""
        join = self._join
        while self._at < len(self._outer):
            side, run = self._outer[self._at]
            others = join.spilled.runs[1 - side][self.part]
            older = any(other.left[0] < run.left[0] for other in others)
            if self._stop < run.rows and (older or join.stages.reread):
                return
            self._at += 1
            self._stop = 0

    def _load_cluster(self) -> int:
        join = self._join
        side, run = self._outer[self._at]
        self._start = self._stop
        self._stop = min(run.rows, self._start + join.spilled.cluster_rows(side))
        join.spilled.claim_reading_room()
        # Rows of any width may need more than the room that is kept for them: then fewer are loaded.
        while not join.spilled.load_rows(side, self._pages(side, run)):
            if self._stop > self._start + 1:
                self._stop = self._start + (self._stop - self._start) // 2
            elif join.secure(lambda: join.spilled.load_rows(side, self._pages(side, run))):
                break
            else:
                raise BudgetError(
                    f"a row of {join.spec.names[side]} does not fit beside others into "
                    f"{format_bytes(join.budget.total)} of memory; allow more memory"
                )
        self._begin_lookup(side)
        return self._loaded[2] - self._loaded[1]

    def _pages(self, side: int, run: Piece) -> list[Page]:
        """The rows from start to stop that have not met the other side's disk."""
        met = self._join.spilled.meetings.met_disk(side, self.part, int(run.left[0]))
        found = []
        for page in self._join.disks[side].pages_of(run, self._start, self._stop):
            first = int(np.searchsorted(page.ticks, met, side="right"))
            if first < len(page):
                found.append(page.slice(first, len(page) - first))
        return found

    def _merged(self, side: int, run: Piece) -> bool:
        """Whether a dd-task before this one has seen the run: it is read again only where the thesis does."""
        return self._join.spilled.meetings.merged(side, self.part, int(run.left[0]))

    def _begin_lookup(self, side: int) -> None:
        table = self._join.spilled.clusters[side]
        if self._merged(*self._outer[self._at]):
            table.reset()
        if table.rows:
            blocks = list(table.queues[0])
            floor, last = int(table.least_floor[blocks].min()), int(table.last_tick[blocks].max())
            self._run_lookup = _RunLookup(self._join, side, self.part, table, (0, last), floor)
        self._loaded = (self._at, self._start, self._stop)
        self._find_next()

    def _end_cluster(self) -> None:
        if self._run_lookup is None:
            return
        self._run_lookup.end()
        self._run_lookup = None
        join = self._join
        side = self._outer[self._loaded[0]][0]
        table = join.spilled.clusters[side]
        if join.waits.perhaps_delayed(side):
            rows = table.rows_of(0)
            join.waits.rows_settled(side, table.times(rows), table.ticks(rows))
        table.reset()

    def finish(self) -> None:
        """The runs have met each other."""
        self._end_cluster()
        self._join.dd_ended(self.part, self._until)

    def to_state(self) -> dict[str, Any]:
        """The task for a snapshot."""
        state: dict[str, Any] = {"kind": "dd", "part": self.part, "until": self._until}
        state["outer"] = [[side, run.number] for side, run in self._outer]
        state["next"] = [self._at, self._stop]
        state["lookup"] = None
        if self._run_lookup is not None:
            place = self._place or self._run_lookup.place(self._join.pairs)
            state["lookup"] = {"cluster": list(self._loaded), "place": place, "done": self._run_lookup.done}
        return state

    @classmethod
    def resumed(cls, join: RPWJ, state: dict[str, Any]) -> DiskTask:
        """Go on where a snapshot was taken."""
        task = cls(join, state["part"], state["until"])
        assert [[side, run.number] for side, run in task._outer] == state["outer"]
        at_hand = state["lookup"]
        if at_hand is not None:
            task._at, task._start, task._stop = at_hand["cluster"]
            side, run = task._outer[task._at]
            claim_to_restore(join, lambda: join.spilled.load_rows(side, task._pages(side, run)))
            task._begin_lookup(side)
            assert task._run_lookup is not None
            task._run_lookup.resume(join.pairs, at_hand["place"])
            if at_hand["done"]:
                task._run_lookup.probe.next = task._run_lookup.length
        task._at, task._stop = state["next"]
        return task


class Invalidation:
    """Every partition's tasks, one after the other: after them, whatever has expired can go."""

    def __init__(self, join: RPWJ, first: MemoryTask | DiskTask | None) -> None:
        self._join = join
        self._task = first
        self._step = 0
        self._began = join.clock
        self._go_on()

    @property
    def lookup(self) -> Lookup | None:
        """The look-up of the task at hand."""
        return None if self._task is None else self._task.lookup

    @property
    def held(self) -> frozenset[tuple[int, int]]:
        """Partitions that must stay in memory meanwhile."""
        return frozenset() if self._task is None else self._task.held

    @property
    def done(self) -> bool:
        """Whether all tasks are."""
        return self._task is None

    def work(self, fuel: int) -> int:
        """Go on."""
        if self._task is None:
            return 1
        if not self._task.done:
            return self._task.work(fuel)
        self._task.finish()
        self._task = None
        self._go_on()
        return 1

    def _go_on(self) -> None:
        steps = 3 * self._join.sizing.layout.partitions
        while self._task is None and self._step < steps:
            part, kind = divmod(self._step, 3)
            self._task = self._join.dd_task(part) if kind == 2 else self._join.md_task(kind, part)
            self._step += 1

    def finish(self) -> None:
        """What has expired goes."""
        self._join.invalidated(self._began)

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        task = None if self._task is None else self._task.to_state()
        return {"kind": "invalidation", "step": self._step, "began": self._began, "task": task}

    @classmethod
    def resumed(cls, join: RPWJ, state: dict[str, Any], task: MemoryTask | DiskTask | None) -> Invalidation:
        """Go on where a snapshot was taken."""
        invalidation = cls.__new__(cls)
        invalidation._join, invalidation._task = join, task
        invalidation._step, invalidation._began = state["step"], state["began"]
        return invalidation
