"""What a window join is made of whose partitions leave memory whole: runs on disk, and the memory to read them back.

```
memory, by partitions ──flush: a whole partition──▶ run ─ run ─ run      on disk, the oldest first
                                                     ╰── a cluster at a time ──▶ memory for runs read back
```

Which pairs were found before is for `matching.ledger_runs` to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from watersmeet.core.errors import BudgetError
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.engine.sizing import Grain
from watersmeet.joins.window.waiting_arrivals import SuspendingWindowJoin
from watersmeet.matching.ledger_runs import Meetings
from watersmeet.runs.page import Page
from watersmeet.runs.window_runs import JOINED_BYTES
from watersmeet.runs.window_segments import Piece
from watersmeet.spill.store import Store
from watersmeet.tables.window_table import WindowTable

_INDEX_BYTES = 32


class RunSpillingJoin(SuspendingWindowJoin):
    """The frame of a window join whose partitions leave memory whole."""

    def __init__(
        self, spec: WindowJoinSpec, memory: int, store: Store, grain: Grain | None = None, *, reading: float
    ) -> None:
        super().__init__(spec, memory, store, grain)
        partitions, claim = self.sizing.layout.partitions, self.budget.reservation
        self.runs: list[list[list[Piece]]] = [[[] for _ in range(partitions)] for _ in (0, 1)]
        """What is on disk of each side and partition, the oldest first."""
        self.disk_rows = np.zeros((2, partitions), np.int64)
        self.meetings = Meetings(partitions, claim("md times"))
        self.filter_claim = claim("filter of a task")
        layout = replace(self.sizing.layout, partition_bits=0)
        self.clusters = tuple(
            WindowTable(self.plans[side].types, self.budget, layout, f"runs of {name} read back")
            for side, name in enumerate(spec.names)
        )
        self.rest = memory - self.sizing.buffers
        """Memory that is not for buffers."""
        self._room = int(reading * self.rest)
        self._reading = claim("room for runs read back")
        self._reading.grow(self._room)
        self._spare = claim("room for the entries of runs")
        self.keep_spare()

    @property
    def window_rows(self) -> int:
        """How many rows are remembered, in memory and on disk."""
        return super().window_rows + int(self.disk_rows.sum())

    @property
    def books(self) -> int:
        """Memory for the entries of all runs."""
        return sum(disk.held for disk in self.disks)

    # --- leaving memory ---

    def flush(self, side: int, part: int) -> None:
        """Write a partition as a run, and let it leave memory."""
        table, disk = self.tables[side], self.disks[side]
        self.clock += 1
        self._spare.shrink(self._spare.held)
        try:
            while not (self.meetings.try_reserve() and disk.try_dump_run(table, part, self.clock)):
                freed = [each.trim(self.budget.total) for each in self.tables]
                if not any(freed):
                    raise BudgetError("what was spilled is too much to be remembered; allow more memory")
        except BaseException:
            self.keep_spare()
            raise
        rows = int(table.part_rows[part])
        while table.queues[part]:
            self.drop_oldest(side, part)
        self.meetings.leave(side, part, self.clock)
        self.runs[side][part].append(disk.pieces[-1])
        self.disk_rows[side, part] += rows
        self.events["dumps"] += 1
        self.keep_spare()

    def keep_spare(self) -> bool:
        """Have memory for the entry of the next run."""
        pages = self.budget.total // self.sizing.page_bytes
        missing = max(disk.entry_bytes(1, pages) for disk in self.disks) - self._spare.held

        def claim() -> bool:
            return self.meetings.try_reserve() and (missing <= 0 or self._spare.try_grow(missing))

        if claim():
            return True
        for table in self.tables:
            table.trim(self.budget.total)
        return claim()

    def _may_drop(self, side: int, part: int, block: int) -> bool:
        met = self.meetings.met_disk(side, part)
        return not self.runs[1 - side][part] or bool(self.tables[side].last_tick[block] <= met)

    def forget_expired(self) -> None:
        """Let go of runs whose rows have all expired; they have met everything."""
        for side, disk in enumerate(self.disks):
            before = self.expired_before(side)
            for part, runs in enumerate(self.runs[side]):
                for run in [run for run in runs if run.newest < before]:
                    runs.remove(run)
                    disk.forget(run)
                    self.saver.discard([disk.name(run.number)])
                    self.disk_rows[side, part] -= run.rows
                    self.events["expired segments"] += 1

    def join_runs(self, side: int, part: int, began: int) -> None:
        """Let the runs of a partition become one, as many as there is memory to do it.

        They may, because every row that came before the invalidation began has met all runs that had left by then: for
        rows to come it makes no difference when in the past a run left.
        """
        disk = self.disks[side]
        most = self._room / JOINED_BYTES
        together: list[Piece] = []
        self._spare.shrink(self._spare.held)
        for run in [*self.runs[side][part], None]:
            if run is not None and run.left[0] <= began and sum(each.rows for each in together) + run.rows <= most:
                together.append(run)
                continue
            if len(together) > 1:
                joined = disk.try_join(together, self.expired_before(side))
                if joined is not None:
                    place = self.runs[side][part].index(together[0])
                    self.runs[side][part][place : place + len(together)] = [joined]
                    self.saver.discard([disk.name(each.number) for each in together])
                    self.disk_rows[side, part] += joined.rows - sum(each.rows for each in together)
                    self.events["runs joined"] += len(together)
            together = [run] if run is not None and run.left[0] <= began else []

    # --- what is left to meet ---

    def has_md(self, side: int, part: int) -> bool:
        """Whether rows of a partition in memory may have something to meet on disk."""
        others = self.runs[1 - side][part]
        return bool(others) and self.tables[side].latest_tick(part) > self.meetings.met_disk(side, part)

    def has_dd(self, part: int) -> bool:
        """Whether runs of a partition may have something to meet among each other."""
        return any(
            not self.meetings.merged(side, part, int(run.left[0]))
            and any(other.left[0] < run.left[0] for other in self.runs[1 - side][part])
            for side in (0, 1)
            for run in self.runs[side][part]
        )

    # --- reading back ---

    def cluster_rows(self, side: int) -> int:
        """How many rows of a run are read back at once: a half of the room for it."""
        half = self._room / 2
        return max(1, int(half / (self.tables[side].row_bytes + _INDEX_BYTES)))

    def claim_reading_room(self) -> None:
        """Let runs be read back into the room that is kept for them, which must be there first."""
        missing = self._room - self._reading.held
        if missing > 0:
            self.secure(lambda: self._reading.try_grow(missing))
        self._reading.shrink(self._reading.held)

    def load_rows(self, side: int, pages: Sequence[Page]) -> bool:
        """Read rows back; False if they do not fit."""
        table = self.clusters[side]
        table.reset()
        for page in pages:
            parts = np.zeros(len(page), np.int32)
            if not table.reserve(parts, page.columns):
                return False
            table.append(page.hashes, parts, page.columns, page.ticks, grow_index=False)
        table.fit_index()
        return True

    def keep_reading_room(self) -> None:
        """Have the room for runs that are read back again, if nobody else has it."""
        missing = self._room - self._reading.held
        if missing > 0:
            self._reading.try_grow(missing)

    # --- snapshots ---

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        self.meetings.check(self.clock)
        for side, disk in enumerate(self.disks):
            disk.check()
            self.clusters[side].check()
            assert self.disk_rows[side].tolist() == [sum(run.rows for run in runs) for runs in self.runs[side]]
            assert sum(len(runs) for runs in self.runs[side]) == len(disk.pieces) == disk.absent
            for runs in self.runs[side]:
                left = [int(run.left[0]) for run in runs]
                assert left == sorted(left), "runs lie in the order in which they left memory"

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        return [name for disk in self.disks for name in disk.segments()], {
            "disks": [disk.to_state() for disk in self.disks],
            "meetings": self.meetings.to_state(),
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        self._spare.shrink(self._spare.held)
        self._reading.shrink(self._reading.held)
        self.meetings.load(state["meetings"])
        for side, disk in enumerate(self.disks):
            disk.load(state["disks"][side])
            for piece in disk.pieces:
                part = int(piece.parts[0])
                self.runs[side][part].append(piece)
                self.disk_rows[side, part] += piece.rows
            for runs in self.runs[side]:
                runs.sort(key=lambda run: int(run.left[0]))
