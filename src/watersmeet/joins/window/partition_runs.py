"""What a window join is made of whose partitions leave memory whole: runs on disk, and the memory to read them back.

```
memory, by partitions ──flush: a whole partition──▶ run ─ run ─ run      on disk, the oldest first
                                                     ╰── a cluster at a time ──▶ memory for runs read back
```

Which pairs were found before is for `matching.ledger` to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from watersmeet.core.errors import BudgetError
from watersmeet.joins.window.blocks import drop_oldest
from watersmeet.matching.ledger import Meetings
from watersmeet.runs.page import Page
from watersmeet.runs.window_runs import JOINED_BYTES
from watersmeet.runs.window_segments import Piece
from watersmeet.tables.window_table import WindowTable

if TYPE_CHECKING:
    from watersmeet.joins.window.rpwj import RPWJ

_INDEX_BYTES = 32


class PartitionRuns:
    """What has left memory, a whole partition at a time."""

    def __init__(self, join: RPWJ, reading: float) -> None:
        """`reading` is the share of the memory for runs that are read back."""
        self._join = join
        self.disks = join.disks
        partitions, claim = join.sizing.layout.partitions, join.budget.reservation
        self.runs: list[list[list[Piece]]] = [[[] for _ in range(partitions)] for _ in (0, 1)]
        """What is on disk of each side and partition, the oldest first."""
        self.rows = np.zeros((2, partitions), np.int64)
        """How many rows these are."""
        self.meetings = Meetings(partitions, claim("md times"))
        """The ledger: which tasks have brought whom together."""
        self.filter_claim = claim("filter of a task")
        """For what a task knows of the rows that it looks for."""
        layout = replace(join.sizing.layout, partition_bits=0)
        self.clusters = tuple(
            WindowTable(join.plans[side].types, join.budget, layout, f"runs of {name} read back")
            for side, name in enumerate(join.spec.names)
        )
        """Rows of runs that were read back, by side."""
        self._room = int(reading * join.rest)
        self._reading = claim("room for runs read back")
        self._reading.grow(self._room)
        self._spare = claim("room for the entries of runs")
        self.keep_spare()

    @property
    def any(self) -> bool:
        """Whether there are runs."""
        return bool(self.disks[0].absent or self.disks[1].absent)

    @property
    def books(self) -> int:
        """Memory for the entries of all runs."""
        return sum(disk.held for disk in self.disks)

    # --- leaving memory ---

    def flush(self, side: int, part: int) -> None:
        """Write a partition as a run, and let it leave memory."""
        join = self._join
        table, disk = join.tables[side], self.disks[side]
        join.clock += 1
        self._spare.shrink(self._spare.held)
        try:
            while not (self.meetings.try_reserve() and disk.try_dump_run(table, part, join.clock)):
                freed = [each.trim(join.budget.total) for each in join.tables]
                if not any(freed):
                    raise BudgetError("what was spilled is too much to be remembered; allow more memory")
        except BaseException:
            self.keep_spare()
            raise
        rows = int(table.part_rows[part])
        while table.queues[part]:
            drop_oldest(join, side, part)
        self.meetings.leave(side, part, join.clock)
        self.runs[side][part].append(disk.pieces[-1])
        self.rows[side, part] += rows
        join.events["dumps"] += 1
        self.keep_spare()

    def keep_spare(self) -> bool:
        """Have memory for the entry of the next run."""
        join = self._join
        pages = join.budget.total // join.sizing.page_bytes
        missing = max(disk.entry_bytes(1, pages) for disk in self.disks) - self._spare.held

        def claim() -> bool:
            return self.meetings.try_reserve() and (missing <= 0 or self._spare.try_grow(missing))

        if claim():
            return True
        for table in join.tables:
            table.trim(join.budget.total)
        return claim()

    def may_go(self, side: int, part: int, block: int) -> bool:
        """Whether a block's rows have nothing left to look up."""
        met = self.meetings.met_disk(side, part)
        return not self.runs[1 - side][part] or bool(self._join.tables[side].last_tick[block] <= met)

    def forget_expired(self) -> None:
        """Let go of runs whose rows have all expired; they have met everything."""
        for side, disk in enumerate(self.disks):
            before = self._join.expired_before(side)
            for part, runs in enumerate(self.runs[side]):
                for run in [run for run in runs if run.newest < before]:
                    runs.remove(run)
                    disk.forget(run)
                    self._join.saver.discard([disk.name(run.number)])
                    self.rows[side, part] -= run.rows
                    self._join.events["expired segments"] += 1

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
                joined = disk.try_join(together, self._join.expired_before(side))
                if joined is not None:
                    place = self.runs[side][part].index(together[0])
                    self.runs[side][part][place : place + len(together)] = [joined]
                    self._join.saver.discard([disk.name(each.number) for each in together])
                    self.rows[side, part] += joined.rows - sum(each.rows for each in together)
                    self._join.events["runs joined"] += len(together)
            together = [run] if run is not None and run.left[0] <= began else []

    # --- what is left to meet ---

    def has_md(self, side: int, part: int) -> bool:
        """Whether rows of a partition in memory may have something to meet on disk."""
        others = self.runs[1 - side][part]
        return bool(others) and self._join.tables[side].latest_tick(part) > self.meetings.met_disk(side, part)

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
        return max(1, int(half / (self._join.tables[side].row_bytes + _INDEX_BYTES)))

    def claim_reading_room(self) -> None:
        """Let runs be read back into the room that is kept for them, which must be there first."""
        missing = self._room - self._reading.held
        if missing > 0:
            self._join.secure(lambda: self._reading.try_grow(missing))
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
        self.meetings.check(self._join.clock)
        for side, disk in enumerate(self.disks):
            disk.check()
            self.clusters[side].check()
            assert self.rows[side].tolist() == [sum(run.rows for run in runs) for runs in self.runs[side]]
            assert sum(len(runs) for runs in self.runs[side]) == len(disk.pieces) == disk.absent
            for runs in self.runs[side]:
                left = [int(run.left[0]) for run in runs]
                assert left == sorted(left), "runs lie in the order in which they left memory"

    def close(self) -> None:
        """Let go of everything."""
        for disk in self.disks:
            disk.close()

    @property
    def segments(self) -> list[str]:
        """What a snapshot needs of the disk."""
        return [name for disk in self.disks for name in disk.segments()]

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        return {"disks": [disk.to_state() for disk in self.disks], "meetings": self.meetings.to_state()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        self._spare.shrink(self._spare.held)
        self._reading.shrink(self._reading.held)
        self.meetings.load(state["meetings"])
        for side, disk in enumerate(self.disks):
            disk.load(state["disks"][side])
            for piece in disk.pieces:
                part = int(piece.parts[0])
                self.runs[side][part].append(piece)
                self.rows[side, part] += piece.rows
            for runs in self.runs[side]:
                runs.sort(key=lambda run: int(run.left[0]))
