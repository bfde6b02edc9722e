"""Windows larger than memory by partitions that leave it whole, and meet the disk where that pays most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.errors import BudgetError
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.joins.run_tasks import DiskTask, Invalidation, MemoryTask
from watersmeet.joins.suspending import SuspendingWindowJoin
from watersmeet.joins.tasks import Arrival, Task
from watersmeet.memory import format_bytes
from watersmeet.policies.reactive import BestRate, ExpectedResults, ReactiveTask
from watersmeet.policies.window_rates import Granularity, LoopCosts, PartitionFrequency, rarely_met
from watersmeet.spill.store import Store
from watersmeet.state.intake import Received
from watersmeet.state.pages import Page
from watersmeet.state.run_meetings import Meetings
from watersmeet.state.side import Layout
from watersmeet.state.sizing import Grain
from watersmeet.state.window_disk import Piece, WindowDisk
from watersmeet.state.window_rows import NEVER
from watersmeet.state.window_table import WindowTable

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

_INDEX_BYTES = 32


@dataclass(frozen=True, slots=True)
class Stages:
    """The thesis' parameters."""

    flush: float = 0.4
    """So much of the rows in memory goes to disk at once (N_flush)."""
    decay: float = 0.4
    """Of arrival frequencies, at the end of an epoch of as many rows as memory holds (alpha)."""
    read: float = 0.1
    """The memory for runs that are read back to meet other runs (M_read), as a share of what is not buffers."""
    invalidate: float = 0.1
    """Rows that have expired go whenever the window has moved by so much of its length (tau')."""
    high: int = 64
    """From so many waiting rows on, they are looked up in blocks (H_mark)."""
    low: int = 16
    """Below so many they are looked up one by one (L_mark)."""
    access: float = 40.0
    """What finding a place on disk takes, in page transfers."""
    pause: float = 0.0
    """Seconds between two reactive stages, at least."""


class RPWJ(SuspendingWindowJoin):
    """The rate-based progressive window join [1]_: RPJ for windows.

    ```
    arriving ──stall──▶ reactive: the best of 2n md-tasks (memory with disk) and n dd-tasks (disk with disk)
       │  ◀──arrival──────┘
       ├─ no room ──▶ whole partitions go to disk, as runs: those whose partners come least often
       └─ the window has moved on ──▶ all tasks of all partitions; then what has expired goes
    ```

    - *Arriving*: a row is kept in its partition and looked up in the other side's memory; one by one while few rows
      wait, a block at once from the high mark on until fewer than the low mark wait.
    - *Flushing*: partitions leave memory whole, until `flush` of it is free, those first whose other side has the
      lowest arrival frequency.
    - *Reactive*: the task with the most expected results for its time. How many results a task will give is counted in
      pairs that have not met, and kept up to date by arrivals and flushes; its time follows from the runs and pages
      that it reads. A dd-task is a blocked loop: runs stay in the order of their arrival, so they cannot be merged.
    - *Invalidation*: rows may go only when they have met everything. So all tasks are done first, in every partition,
      and arrivals wait for that; which is why it comes now and then, and not with every row.

    Which pairs were found before is for `state.run_meetings` to say.

    Different from the thesis:

    - New arrivals wait for one row's matches at most: a reactive task is set aside, and goes on in the next silence.
      The partition that it is about stays in memory meanwhile.
    - Times of arrival are those of rows, also where a block was looked up at once; the marks count rows, not blocks.
    - In a dd-task only runs that no dd-task has seen are loaded, and only older runs are looked up in them: nothing
      else can be new (see lastDD there). The thesis reads all of both partitions again.
    - Partitions that hold next to nothing are flushed last, whatever their frequency: their runs would cost more than
      they free.
    - While nothing of the other side's partition is on disk, its rows go as soon as they expire.

    >>> import pyarrow as pa
    >>> from watersmeet.core.events import LEFT, RIGHT, Arrive, End
    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.core.windows import parse_windows
    >>> from watersmeet.spill.store import MemoryStore
    >>> left = pa.record_batch({"id": range(2000), "t": range(2000)})
    >>> right = pa.record_batch({"id": range(1500), "t": range(500, 2000)})
    >>> spec = WindowJoinSpec(left.schema, right.schema, parse_on("id"), window=parse_windows(1000, "t"))
    >>> join = RPWJ(spec, 64 * 1024, MemoryStore())
    >>> rows = 0
    >>> for event in (Arrive(LEFT, left), End(LEFT), Arrive(RIGHT, right), End(RIGHT)):
    ...     join.receive(event)
    >>> while not join.phase == "done":
    ...     step = join.poll(0.0, fuel=1000)
    ...     rows += step.out.num_rows if step.out else 0
    >>> rows, join.events["dumps"] > 0, join.events["invalidations"] > 0
    (1500, True, True)

    .. [1] A. Chakraborty. Processing exact results for queries over data streams. PhD thesis, University of Waterloo,
       2010, chapter 4.
    """

    name: ClassVar[str] = "rpwj"
    paths: ClassVar[tuple[str, ...]] = (
        "dumps", "md-tasks", "dd-tasks", "invalidations", "expired segments", "blocks at once", "rows one by one"
    )  # fmt: skip
    """Events that a run which spills goes through."""

    def __init__(
        self,
        spec: WindowJoinSpec,
        memory: int,
        store: Store,
        *,
        stages: Stages | None = None,
        reactive: str = "both",
        grain: Grain | None = None,
    ) -> None:
        least = self.least_memory(spec)
        if memory < least:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for the {self.name} join of these rows; allow at "
                f"least {format_bytes(least)}"
            )
        super().__init__(spec, memory, store, grain)
        self.stages = stages or Stages()
        partitions, claim = self.sizing.layout.partitions, self.budget.reservation
        self.disks = tuple(
            WindowDisk(
                store,
                ("left", "right")[side],
                self.plans[side].types,
                claim(f"{name} on disk"),
                self.meter,
                self.sizing.page_bytes,
            )
            for side, name in enumerate(spec.names)
        )
        self.runs: list[list[list[Piece]]] = [[[] for _ in range(partitions)] for _ in (0, 1)]
        """What is on disk of each side and partition, the oldest first."""
        self.disk_rows = np.zeros((2, partitions), np.int64)
        self.meetings = Meetings(partitions, claim("md times"))
        self.filter_claim = claim("filter of a task")
        layout = Layout(0, self.sizing.layout.block_rows, self.sizing.layout.chunk_bytes)
        self.clusters = tuple(
            WindowTable(self.plans[side].types, self.budget, layout, f"runs of {name} read back")
            for side, name in enumerate(spec.names)
        )
        self._rest = memory - self.sizing.buffers
        self._reading = claim("room for runs read back")
        self._reading.grow(int(self.stages.read * self._rest))
        self._spare = claim("room for the entries of runs")
        self._keep_spare()
        epoch = max(1, self._rest // max(table.row_bytes for table in self.tables))
        self.frequency = PartitionFrequency(partitions, epoch, self.stages.decay)
        self.expected = ExpectedResults(partitions)
        read = max(1.0, self.stages.read * self._rest / self.sizing.page_bytes)
        self._best_rate = BestRate(reactive, LoopCosts(self.stages.access, read))
        self._granularity = Granularity(self.stages.high, self.stages.low)
        self._invalidated = [NEVER, NEVER]
        """Up to which time each side's rows have gone."""
        self._last_reactive: float | None = None
        self._aside: MemoryTask | DiskTask | None = None

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget: what is on disk must be remembered, too, and runs be read back."""
        return super().least_memory(spec, **options) * 3 // 2

    @property
    def window_rows(self) -> int:
        """How many rows are remembered, in memory and on disk."""
        return super().window_rows + int(self.disk_rows.sum())

    # --- arriving ---

    def must_keep(self, side: int) -> bool:
        """As long as the other input may bring rows, or has runs that are to be met."""
        return not self.exhausted(1 - side) or self.disks[1 - side].absent > 0

    def rows_kept(self, side: int, parts: Int32) -> None:
        """Count arrivals, and what they leave unmet."""
        super().rows_kept(side, parts)
        counts = np.bincount(parts, minlength=self.sizing.layout.partitions)
        self.frequency.add(side, counts)
        self.expected.arrived(side, counts, self.disk_rows[1 - side])

    def admit(self, arrival: Arrival, count: int) -> int:
        """Make room for rows, one or a block of them, unless an invalidation comes first."""
        if self._invalidation_due():
            self._suspend_for(self._invalidation())
            return 0
        waiting = count + sum(intake.rows for intake in self._intakes)
        in_blocks = self._granularity.blocks(waiting)
        self.events["blocks at once" if in_blocks else "rows one by one"] += 1
        return super().admit(arrival, count if in_blocks else 1)

    def _must_wait(self) -> bool:
        if self._aside is None:
            return False
        task, self._aside = self._aside, None
        task.take_up()
        self._suspend_for(task)
        return True

    # --- making room ---

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        if self.expire():
            return True
        for task in (self._task, self._aside):
            if isinstance(task, MemoryTask | DiskTask | Invalidation):
                spared |= task.held
        sizes = np.array([table.part_rows * table.row_bytes for table in self.tables])
        victims = rarely_met(self.frequency.counts, sizes, int(self.stages.flush * sizes.sum()), spared)
        for side, part in victims:
            self._flush(side, part)
        while victims and not self._keep_spare():
            sizes = np.array([table.part_rows * table.row_bytes for table in self.tables])
            more = rarely_met(self.frequency.counts, sizes, 1, spared)
            if not more:
                break
            self._flush(*more[0])
        return bool(victims) or any([table.shrink_index() for table in self.tables])  # noqa: C419 (of both)

    def _flush(self, side: int, part: int) -> None:
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
            self._keep_spare()
            raise
        rows = int(table.part_rows[part])
        while table.queues[part]:
            self.drop_oldest(side, part)
        self.meetings.leave(side, part, self.clock)
        self.runs[side][part].append(disk.pieces[-1])
        self.disk_rows[side, part] += rows
        self.expected.flushed(side, part)
        self.events["dumps"] += 1
        self._keep_spare()

    def _keep_spare(self) -> bool:
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

    # --- tasks ---

    def _has_md(self, side: int, part: int) -> bool:
        others = self.runs[1 - side][part]
        return bool(others) and self.tables[side].latest_tick(part) > self.meetings.met_disk(side, part)

    def _has_dd(self, part: int) -> bool:
        return any(
            not self.meetings.merged(side, part, int(run.left[0]))
            and any(other.left[0] < run.left[0] for other in self.runs[1 - side][part])
            for side in (0, 1)
            for run in self.runs[side][part]
        )

    def md_task(self, side: int, part: int) -> MemoryTask | None:
        """The md-task of a side and partition; None if it would find nothing."""
        if not self._has_md(side, part):
            return None
        self.clock += 1
        return MemoryTask(self, side, part, self.clock)

    def dd_task(self, part: int) -> DiskTask | None:
        """The dd-task of a partition; None if it would find nothing."""
        if not self._has_dd(part):
            return None
        self.clock += 1
        return DiskTask(self, part, self.clock)

    def md_ended(self, side: int, part: int, until: int) -> None:
        """Rows of a partition in memory have met the other side's runs."""
        self.meetings.record_md(side, part, until)
        self.expected.visited(side, part, 1.0)
        self.events["md-tasks"] += 1

    def dd_ended(self, part: int, until: int) -> None:
        """A partition's runs have met each other."""
        self.meetings.record_dd(part, until)
        self.expected.merged(part, 1.0)
        missing = int(self.stages.read * self._rest) - self._reading.held
        if missing > 0:
            self._reading.try_grow(missing)
        self.events["dd-tasks"] += 1

    def cluster_rows(self, side: int) -> int:
        """How many rows of a run are read back at once: a half of the room for it."""
        half = self.stages.read * self._rest / 2
        return max(1, int(half / (self.tables[side].row_bytes + _INDEX_BYTES)))

    def claim_reading_room(self) -> None:
        """Let runs be read back into the room that is kept for them, which must be there first."""
        missing = int(self.stages.read * self._rest) - self._reading.held
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

    # --- reactive ---

    def _choose(self) -> ReactiveTask | None:
        last = self._last_reactive
        if not self.disk_rows.any() or (last is not None and self.now < last + self.stages.pause):
            return None
        runs = np.array([[len(pieces) for pieces in side] for side in self.runs])
        pages = np.array([[sum(len(piece.ends) for piece in pieces) for pieces in side] for side in self.runs])
        for task in self._best_rate.choose(self.expected, runs, pages, 0):
            if self._has_md(task.side, task.part) if task.kind == "md" else self._has_dd(task.part):
                return task
        return None

    def _can_react(self) -> bool:
        return self._aside is not None or self._choose() is not None

    def _reactive_task(self) -> Task | None:
        if self._aside is not None:
            aside, self._aside = self._aside, None
            aside.take_up()
            return aside
        task = self._choose()
        if task is None:
            return None
        self._last_reactive = self.now
        return self.md_task(task.side, task.part) if task.kind == "md" else self.dd_task(task.part)

    def _give_way(self, task: Task) -> int:
        assert isinstance(task, MemoryTask | DiskTask)
        task.set_aside()
        self._aside, self._task = task, None
        return 1

    # --- invalidation ---

    def _invalidation_due(self) -> bool:
        for side, bounds in enumerate(self.spec.bounds):
            before = self.expired_before(side)
            if before < self._invalidated[side] + max(1, int(self.stages.invalidate * bounds.span)):
                continue
            if any(run.newest < before for run in self.disks[side].pieces) or any(
                queue and self.tables[side].latest[queue[0]] < before for queue in self.tables[side].queues
            ):
                return True
        return False

    def _invalidation(self) -> Invalidation:
        aside, self._aside = self._aside, None
        if aside is not None:
            aside.take_up()
        return Invalidation(self, aside)

    def invalidated(self) -> None:
        """All rows have met: what has expired goes, in memory and on disk."""
        self.events["invalidations"] += 1
        self._invalidated = [self.expired_before(side) for side in (0, 1)]
        self.marks.forget(self.clock)
        self.expire()
        for side, disk in enumerate(self.disks):
            before = self.expired_before(side)
            for part, runs in enumerate(self.runs[side]):
                for run in [run for run in runs if run.newest < before]:
                    runs.remove(run)
                    disk.forget(run)
                    self.saver.discard([disk.name(run.number)])
                    self.disk_rows[side, part] -= run.rows
                    self.events["expired segments"] += 1

    def _may_drop(self, side: int, part: int, block: int) -> bool:
        met = self.meetings.met_disk(side, part)
        return not self.runs[1 - side][part] or bool(self.tables[side].last_tick[block] <= met)

    def _input_closed(self, side: int) -> None:
        self.expire()

    def _clean_up_task(self) -> Task | None:
        if self._aside is not None or self.disks[0].absent or self.disks[1].absent:
            return self._invalidation()
        self.expire()
        return None

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

    def close(self) -> None:
        """Let go of everything."""
        super().close()
        for disk in self.disks:
            disk.close()

    def claim_to_restore(self, claim: Callable[[], bool]) -> None:
        """Claim memory for what a snapshot holds."""
        if not claim():
            for table in self.tables:
                table.trim(self.budget.total)
            if not claim():
                raise BudgetError("the snapshot does not fit into this memory; allow a little more")

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        return [name for disk in self.disks for name in disk.segments()], {
            "disks": [disk.to_state() for disk in self.disks],
            "meetings": self.meetings.to_state(),
            "frequency": self.frequency.to_state(),
            "expected": self.expected.to_state(),
            "in_blocks": self._granularity.in_blocks,
            "invalidated": list(self._invalidated),
            "last_reactive": self._last_reactive,
            "aside": None if self._aside is None else self._aside.to_state(),
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        self._spare.shrink(self._spare.held)
        self._reading.shrink(self._reading.held)
        self.meetings.load(state["meetings"])
        self.frequency.load(state["frequency"])
        self.expected.load(state["expected"])
        self._granularity.in_blocks = state["in_blocks"]
        self._invalidated, self._last_reactive = list(state["invalidated"]), state["last_reactive"]
        for side, disk in enumerate(self.disks):
            disk.load(state["disks"][side])
            for piece in disk.pieces:
                part = int(piece.parts[0])
                self.runs[side][part].append(piece)
                self.disk_rows[side, part] += piece.rows

    def _load_tasks(self, state: dict[str, Any], waiting: list[list[Received]]) -> None:
        if state["aside"] is not None:
            self._aside = self._resumed_task(state["aside"])
            self._aside.set_aside()
        super()._load_tasks(state, waiting)
        self._keep_spare()

    def _load_task(self, state: dict[str, Any]) -> Task:
        if state["kind"] != "invalidation":
            return self._resumed_task(state)
        inner = None if state["task"] is None else self._resumed_task(state["task"])
        return Invalidation.resumed(self, state, inner)

    def _resumed_task(self, state: dict[str, Any]) -> MemoryTask | DiskTask:
        return MemoryTask.resumed(self, state) if state["kind"] == "md" else DiskTask.resumed(self, state)
