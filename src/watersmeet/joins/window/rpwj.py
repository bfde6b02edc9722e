"""Windows larger than memory by partitions that leave it whole, and meet the disk where that pays most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from watersmeet.core.arrays import Int32
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.engine.arrival import Arrival, Task
from watersmeet.engine.shell import Operator
from watersmeet.engine.sizing import Grain
from watersmeet.joins.window.blocks import Waits, expire_blocks, lookup_in, make_disks, make_table
from watersmeet.joins.window.partition_runs import PartitionRuns
from watersmeet.joins.window.run_tasks import DiskTask, Invalidation, MemoryTask
from watersmeet.matching.lookup import Lookup
from watersmeet.policies.reactive import BestRate, ExpectedResults, ReactiveTask
from watersmeet.policies.window import Granularity, LoopCosts, PartitionFrequency, rarely_met
from watersmeet.records.intake import Received
from watersmeet.records.times import NEVER
from watersmeet.spill.store import Store
from watersmeet.tables.window_table import WindowTable


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
    books: float = 0.25
    """When the entries of runs take so much of the memory, runs become fewer: see *Invalidation*."""
    access: float = 40.0
    """What finding a place on disk takes, in page transfers."""
    pause: float = 0.0
    """Seconds between two reactive stages, at least."""
    reread: bool = False
    """Whether a dd-task reads all of both partitions, also runs that a dd-task before has seen, as in the thesis. They
    can bring nothing new, and are not looked up."""


class RPWJ(Operator):
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
      and arrivals wait for that; which is why it comes now and then, and not with every row. After it, nothing that
      is on disk has to be told apart: if there are too many runs to remember, those of a partition become one.

    Which pairs were found before is for `matching.ledger` to say.

    Different from the thesis:

    - New arrivals wait for one row's matches at most: a reactive task is set aside, and goes on in the next silence.
      The partition that it is about stays in memory meanwhile.
    - Times of arrival are those of rows, also where a block was looked up at once; the marks count rows, not blocks.
    - In a dd-task only runs that no dd-task has seen are loaded, and only older runs are looked up in them: nothing
      else can be new (see lastDD there). The thesis reads all of both partitions again, as `reread` does.
    - Partitions that hold next to nothing are flushed last, whatever their frequency: their runs would cost more than
      they free.
    - While nothing of the other side's partition is on disk, its rows go as soon as they expire.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End
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
    SAVED: ClassVar[tuple[str, ...]] = ("frequency", "expected", "_invalidated", "_most_books", "_last_reactive")
    windowed: ClassVar[bool] = True
    takes_punctuations: bool = True
    settles_in_silence: ClassVar[bool] = False
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
        self.stages = stages or Stages()
        super().__init__(spec, memory, store, grain)
        self.waits = Waits(self)
        """When rows came, and how long their results took."""
        self.disks = make_disks(self)
        """The runs of each side."""
        self.rest = memory - self.sizing.buffers
        """Memory that is not for buffers."""
        self.spilled = PartitionRuns(self, self.stages.read)
        """What has left memory."""
        partitions = self.sizing.layout.partitions
        epoch = max(1, self.rest // max(table.row_bytes for table in self.tables))
        self.frequency = PartitionFrequency(partitions, epoch, self.stages.decay)
        self.expected = ExpectedResults(partitions)
        read = max(1.0, self.stages.read * self.rest / self.sizing.page_bytes)
        self._best_rate = BestRate(reactive, LoopCosts(self.stages.access, read))
        self._granularity = Granularity(self.stages.high, self.stages.low)
        self._invalidated = [NEVER, NEVER]
        """Up to which time each side's rows have gone."""
        self._most_books = int(self.stages.books * self.rest)
        """What the entries of runs may take before runs become fewer."""
        self._last_reactive: float | None = None
        self._aside: MemoryTask | DiskTask | None = None

    # --- what rows are kept in ---

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget: what is on disk must be remembered, too, and be read back."""
        return super().least_memory(spec, **options) * 3 // 2

    def _make_table(self, side: int) -> WindowTable:
        return make_table(self, side)

    @property
    def window_rows(self) -> int:
        """How many rows are remembered, in memory and on disk."""
        return super().window_rows + int(self.spilled.rows.sum())

    # --- arriving ---

    def must_keep(self, side: int) -> bool:
        """As long as the other input may bring rows, or has rows on disk that are to be met."""
        return not self.exhausted(1 - side) or self.disks[1 - side].absent > 0

    def arrival_lookup(self, side: int, *rows: Any) -> Lookup:
        """The look-up of rows that arrived on one side in the memory of the other."""
        return lookup_in(self, self.tables[1 - side], side, *rows)

    def rows_kept(self, side: int, parts: Int32) -> None:
        """Count arrivals, and what they leave unmet."""
        self.waits.rows_came()
        counts = np.bincount(parts, minlength=self.sizing.layout.partitions)
        self.frequency.add(side, counts)
        self.expected.arrived(side, counts, self.spilled.rows[1 - side])

    def admit(self, arrival: Arrival, count: int) -> int:
        """Make room for rows, one or a block of them, unless an invalidation comes first."""
        if self._invalidation_due():
            self._hold_up_for(self._invalidation())
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
        self._hold_up_for(task)
        return True

    # --- making room ---

    def flush(self, side: int, part: int) -> None:
        """Write a partition as a run, and let it leave memory."""
        self.spilled.flush(side, part)
        self.expected.flushed(side, part)

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        if self.expire():
            return True
        for task in (self._task, self._aside):
            if isinstance(task, MemoryTask | DiskTask | Invalidation):
                spared |= task.held
        sizes = np.array([table.part_rows * table.row_bytes for table in self.tables])
        victims = rarely_met(self.frequency.counts, sizes, int(self.stages.flush * sizes.sum()), spared)
        for side, part in victims:
            self.flush(side, part)
        while victims and not self.spilled.keep_spare():
            sizes = np.array([table.part_rows * table.row_bytes for table in self.tables])
            more = rarely_met(self.frequency.counts, sizes, 1, spared)
            if not more:
                break
            self.flush(*more[0])
        return bool(victims) or any([table.shrink_index() for table in self.tables])  # noqa: C419 (of both)

    # --- tasks ---

    def md_task(self, side: int, part: int) -> MemoryTask | None:
        """The md-task of a side and partition; None if it would find nothing."""
        if not self.spilled.has_md(side, part):
            return None
        self.clock += 1
        return MemoryTask(self, side, part, self.clock)

    def dd_task(self, part: int) -> DiskTask | None:
        """The dd-task of a partition; None if it would find nothing."""
        if not self.spilled.has_dd(part):
            return None
        self.clock += 1
        return DiskTask(self, part, self.clock)

    def md_ended(self, side: int, part: int, until: int) -> None:
        """Rows of a partition in memory have met the other side's runs."""
        self.spilled.meetings.record_md(side, part, until)
        self.expected.visited(side, part, 1.0)
        self.events["md-tasks"] += 1

    def dd_ended(self, part: int, until: int) -> None:
        """A partition's runs have met each other."""
        self.spilled.meetings.record_dd(part, until)
        self.expected.merged(part, 1.0)
        self.spilled.keep_reading_room()
        self.events["dd-tasks"] += 1

    # --- reactive ---

    def _choose(self) -> ReactiveTask | None:
        last = self._last_reactive
        if not self.spilled.rows.any() or (last is not None and self.now < last + self.stages.pause):
            return None
        runs = np.array([[len(pieces) for pieces in side] for side in self.spilled.runs])
        pages = np.array([[sum(len(piece.ends) for piece in pieces) for pieces in side] for side in self.spilled.runs])
        for task in self._best_rate.choose(self.expected, runs, pages, 0):
            if self.spilled.has_md(task.side, task.part) if task.kind == "md" else self.spilled.has_dd(task.part):
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
        if not self.spilled.any:
            return False
        if self.spilled.books > self._most_books:
            return True
        due = False
        for side, bounds in enumerate(self.spec.bounds):
            before = self.expired_before(side)
            if self._invalidated[side] == NEVER:
                self._invalidated[side] = before  # nothing can have expired before the first row
            due |= before >= self._invalidated[side] + max(1, int(self.stages.invalidate * bounds.span))
        return due

    def _invalidation(self) -> Invalidation:
        aside, self._aside = self._aside, None
        if aside is not None:
            aside.take_up()
        return Invalidation(self, aside)

    def invalidated(self, began: int) -> None:
        """All rows have met what had left memory by a tick: what has expired goes, in memory and on disk."""
        self.events["invalidations"] += 1
        self._invalidated = [self.expired_before(side) for side in (0, 1)]
        self.waits.marks.forget(self.clock)
        self.expire()
        self.spilled.forget_expired()
        if self.spilled.books > self._most_books:
            for side in (0, 1):
                for part in range(self.sizing.layout.partitions):
                    self.spilled.join_runs(side, part, began)
            self._most_books = max(int(self.stages.books * self.rest), 3 * self.spilled.books // 2)
            self.spilled.keep_spare()

    def expire(self) -> bool:
        """Let go of blocks in memory whose rows have all expired, and have met the disk."""
        return expire_blocks(self, self.spilled.may_go)

    def _input_closed(self, side: int) -> None:
        self.expire()

    def _clean_up_task(self) -> Task | None:
        if self._aside is not None or self.spilled.any:
            return self._invalidation()
        self.expire()
        return None

    # --- checks and snapshots ---

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        self.spilled.check()

    def close(self) -> None:
        """Let go of everything."""
        super().close()
        self.spilled.close()

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        return self.spilled.segments, {
            **self.spilled.to_state(),
            **self.declared_state(),
            "in_blocks": self._granularity.in_blocks,
            "aside": None if self._aside is None else self._aside.to_state(),
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        self.spilled.load(state)
        super()._load_own(state)
        self._granularity.in_blocks = state["in_blocks"]

    def _load_tasks(self, state: dict[str, Any], waiting: list[list[Received]]) -> None:
        if state["aside"] is not None:
            self._aside = self._resumed_task(state["aside"])
            self._aside.set_aside()
        super()._load_tasks(state, waiting)
        self.spilled.keep_spare()

    def _load_task(self, state: dict[str, Any]) -> Task:
        if state["kind"] != "invalidation":
            return self._resumed_task(state)
        inner = None if state["task"] is None else self._resumed_task(state["task"])
        return Invalidation.resumed(self, state, inner)

    def _resumed_task(self, state: dict[str, Any]) -> MemoryTask | DiskTask:
        return MemoryTask.resumed(self, state) if state["kind"] == "md" else DiskTask.resumed(self, state)
