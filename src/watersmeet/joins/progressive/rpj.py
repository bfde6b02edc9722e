"""Statistics of arrivals decide what leaves memory, and what to do in a silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from watersmeet.core.arrays import Int32
from watersmeet.core.errors import SpecError
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.arrival import Task
from watersmeet.engine.sizing import Grain
from watersmeet.joins.progressive.disk_visits import Visit, Visits
from watersmeet.joins.progressive.run_merging import Merges
from watersmeet.joins.progressive.spilling import SpillingJoin
from watersmeet.policies.flush import FlushPolicy
from watersmeet.policies.reactive import AccessCosts, BestRate, ExpectedResults, ReactiveTask
from watersmeet.spill.store import Store


class RPJ(SpillingJoin):
    """Keep in memory what the next arrivals will most likely meet, and spend silences where they pay most [1]_.

    ```
    arriving ──stall──▶ reactive: the best of 2n visits (memory with disk) and n merges (disk with disk)
       ▲  ◀──arrival──────┘
       └─ both ended ─▶ clean-up: flush, and merge each partition ─▶ done
    ```

    - *Arriving*: a row is kept in its partition and looked up in the other side's memory. Without room, the rows go
      that the next arrivals will least likely meet: those whose partition on the other side the next row least likely
      falls into. `flush` may name another policy, or be one.
    - *Reactive*: of all visits and merges the one with the most expected new results per cost; `reactive="md"` allows
      visits only, `"dd"` merges only. How many results a task will give is not estimated from scratch but kept up to
      date by each arrival and flush.
    - *Clean-up*: what is in memory joins its partition's runs, and these are merged to the end.

    Which pairs were emitted before is the ledger's to say: those that were in memory together, those of a visit, and
    those of a merging operation (the paper's matching runs).

    Different from the paper:

    - New arrivals wait for one row's matches at most. A visit ends there, and the next one goes on in the same place; a
      merge is set aside and goes on in the next silence, unless a visit of another partition is better then.
      `patience=1000` lets as many rows wait first. In the paper an arrival waits for the whole task: `prompt=False`
      does that.
    - Of a partition that is flushed in part, the oldest rows go, in blocks of the table: a few more than asked for.
    - Runs are sorted by the hash of the key, not by the key, and a time unit of the statistics is a number of arrivals.
    - A merging operation is a task of its own: after each one the best task is chosen anew.
    - A row that is flushed takes from its partition's visit what it had added, the rows that lay on the other side's
      disk when it came. By the paper (section 5, case 2) it takes all that lie there now, so that visits promise less
      than they give: `er="paper"` does that.
    - In figure 7, line 7, each visit's own time must be compared with the departure, not the last one's.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End
    >>> from watersmeet.core.spec import JoinSpec, parse_on
    >>> from watersmeet.spill.store import MemoryStore
    >>> left, right = pa.record_batch({"id": range(2000)}), pa.record_batch({"id": range(1990, 4000)})
    >>> join = RPJ(JoinSpec(left.schema, right.schema, parse_on("id")), 80 * 1024, MemoryStore(), reactive="dd")
    >>> for event in (Arrive(LEFT, left), End(LEFT), Arrive(RIGHT, right), End(RIGHT)):
    ...     join.receive(event)
    >>> rows = 0
    >>> while not join.phase == "done":
    ...     step = join.poll(0.0, fuel=1000)
    ...     rows += step.out.num_rows if step.out else 0
    >>> rows, join.cost.pages_written > 0
    (10, True)

    .. [1] Y. Tao, M. L. Yiu, D. Papadias, M. Hadjieleftheriou and N. Mamoulis. RPJ: Producing fast join results on
       streams through rate-based optimization. SIGMOD 2005.
    """

    SAVED: ClassVar[tuple[str, ...]] = ("_visits", "expected")
    name: ClassVar[str] = "rpj"
    sorted_runs: ClassVar[bool] = True

    def __init__(
        self,
        spec: JoinSpec,
        memory: int,
        store: Store,
        *,
        flush: FlushPolicy | str = "optimal",
        reactive: str = "both",
        prompt: bool = True,
        patience: int = 0,
        grain: Grain | None = None,
        costs: AccessCosts | None = None,
        er: str = "exact",
    ) -> None:
        if er not in ("exact", "paper"):
            raise SpecError(f"er={er!r} is not understood; write 'exact' or 'paper'")
        self._er_by_paper = er == "paper"
        super().__init__(spec, memory, store, flush, grain)
        self.stages = self._merges = Merges(self, prompt, grain, patience=patience)
        self._visits = Visits(self)
        self._best_rate = BestRate(reactive, costs)
        self.expected = ExpectedResults(self.sizing.layout.partitions)

    # --- what changes the expectations ---

    def rows_kept(self, side: int, parts: Int32) -> None:
        """Count arrivals, and what they leave unmet."""
        counts = np.bincount(parts, minlength=self.sizing.layout.partitions)
        self.statistics.arrived(side, counts)
        self.expected.arrived(side, counts, np.array(self.disks[1 - side].rows))

    def flush(self, side: int, portions: Sequence[tuple[int, int]]) -> None:
        """Move the oldest rows of partitions from memory to disk, and with them what is expected of them."""
        shares = [self._share_of_unmet(side, part, count) for part, count in portions]
        told = [self._told_by_paper(side, part, count) if self._er_by_paper else None for part, count in portions]
        super().flush(side, portions)
        for (part, _), share, by_paper in zip(portions, shares, told, strict=True):
            self.expected.flushed(side, part, share, by_paper)

    def _told_by_paper(self, side: int, part: int, count: int) -> tuple[int, int]:
        """Of a partition's oldest rows that no visit has seen: pairs with what lay on disk when they came, and now."""
        table, disk = self.tables[side], self.disks[1 - side]
        ticks = table.ticks(table.oldest(part, count))
        unseen = ticks[ticks > self._visits.last_around(side, part)]
        return int(disk.rows_before(part, unseen).sum()), len(unseen) * int(disk.rows[part])

    def _share_of_unmet(self, side: int, part: int, count: int) -> float:
        """What part of the pairs that a memory partition has not found on disk are those of its oldest rows.

        A row has not met what had left the other side's memory before it came, unless a visit has come around since.
        """
        table = self.tables[side]
        if count >= table.part_rows[part]:
            return 1.0
        ticks = table.ticks(table.rows_of(part))
        unmet = self.disks[1 - side].rows_before(part, ticks) * (ticks > self._visits.last_around(side, part))
        everything = int(unmet.sum())
        return float(unmet[: len(table.oldest(part, count))].sum() / everything) if everything else 1.0

    def forget(self, side: int, part: int) -> None:
        """Drop a partition from memory."""
        super().forget(side, part)
        self.expected.forgotten(side, part)

    def visit_ended(self, side: int, part: int, covered: int, rows: int) -> None:
        """Results that were found are no longer expected."""
        self.expected.visited(side, part, covered / rows)

    def merge_ended(self, part: int, left: tuple[int, int], right: tuple[int, int]) -> None:
        """Results that were found are no longer expected."""
        met = (left[1] - left[0]) * (right[1] - right[0])
        self.expected.merged(part, met / (self.disks[0].rows[part] * self.disks[1].rows[part]))

    # --- reactive ---

    def _can_react(self) -> bool:
        return self._merges.suspended is not None or self._choose() is not None

    def _choose(self) -> ReactiveTask | None:
        """The best task that there is memory to remember; None if there is none, or none better than the merge that was
        set aside: visits of other partitions may go first, and no other merge may.
        """
        suspended = self._merges.suspended
        aside = None if suspended is None else suspended.merge.part
        partitions = range(self.sizing.layout.partitions)
        runs = np.array([[disk.run_count(part) for part in partitions] for disk in self.disks])
        pages = np.array([[disk.pages(part) for part in partitions] for disk in self.disks])
        for task in self._best_rate.choose(self.expected, runs, pages, self._merges.fan_in):
            if aside is not None and task.part == aside:
                if task.kind == "dd":
                    return None
            elif task.kind == "md":
                if self._visits.has_news(task.side, task.part) and self._visits.may_begin(task.side, task.part):
                    return task
            elif aside is None and self._merges.unmerged(task.part) and self._merges.may_begin():
                return task
        return None

    def _reactive_task(self) -> Task | None:
        task = self._choose()
        if task is None:
            return self._merges.take_suspended()
        return self._visits.begin(task.side, task.part) if task.kind == "md" else self._merges.begin(task.part)

    def _give_way(self, task: Task) -> int:
        if not (self._merges.prompt and isinstance(task, Visit)):
            return super()._give_way(task)
        used, ended = task.give_way()
        if ended:
            self._task = None
        return used

    # --- checks and snapshots ---

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        assert (self.expected.md >= 0).all() and (self.expected.dd >= 0).all()
        for side, table in enumerate(self.tables):
            assert not self.expected.md[side][table.part_rows == 0].any(), "nothing is expected of empty memory"

    def _load_task(self, state: dict[str, Any]) -> Task:
        return self._visits.resumed(state) if state["kind"] == "visit" else super()._load_task(state)
