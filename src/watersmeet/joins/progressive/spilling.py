"""What progressive joins of two inputs share that spill: runs on disk, the ledger, flushing by a policy.

```
arrival ──▶ partitions in memory ──no room: the policy names victims──▶ runs, by partition
                                                                          │
                silences, and the end: `Stages` bring rows together ◀─────┘   who met before: `matching.ledger`
```

A paper chooses a policy and its stages: visits of memory partitions to the other side's disk (`disk_visits`), merges of
sorted runs (`run_merging`), or both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.arrival import Task
from watersmeet.engine.shell import Operator
from watersmeet.engine.sizing import Grain
from watersmeet.joins.progressive.run_merging import least_for_merging
from watersmeet.matching.ledger import Ledger
from watersmeet.policies.flush import FlushPolicy, flush_policy
from watersmeet.policies.statistics import PartitionStatistics
from watersmeet.runs.catalogue import DiskSide
from watersmeet.runs.presence import FOREVER, Stay
from watersmeet.spill.store import Store

_LEAST_HISTORY = 768
"""Bytes set aside for the history of visits: when all memory is taken by rows, reactive work can still begin."""


class Stages(Protocol):
    """What a join does in silences and at the end."""

    def can_react(self) -> bool:
        """Whether there is reactive work."""
        ...

    def react(self) -> Task | None:
        """The next reactive work; None if there is none."""
        ...

    def patience(self, task: Any) -> int:
        """How many rows may wait while a task is at hand."""
        ...

    def give_way(self, task: Any) -> tuple[int, bool]:
        """Rows have arrived: the fuel that it took to end the task at the next boundary, and whether it has ended."""
        ...

    def clean_up(self) -> Task | None:
        """The next work after all inputs have ended; None when all is done."""
        ...

    def resumed(self, state: dict[str, Any]) -> Task | None:
        """A task that a snapshot was taken of; None if it is none of these."""
        ...

    def to_state(self, task: Any) -> tuple[list[str], dict[str, Any]]:
        """For a snapshot, with a task at hand: segments, and what to go on with."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        ...

    def close(self, task: Any) -> None:
        """Leave nothing unfinished behind."""
        ...


class SpillingJoin(Operator):
    """A progressive join whose partitions have a part in memory and runs on disk."""

    SAVED: ClassVar[tuple[str, ...]] = ("disks", "ledger", "statistics", "left_at")
    sorted_runs: ClassVar[bool] = False
    """Whether the rows of a run are written in the order of their hashes, so that runs can be merged."""
    stages: Stages

    def __init__(
        self, spec: JoinSpec, memory: int, store: Store, flush: FlushPolicy | str, grain: Grain | None = None
    ) -> None:
        super().__init__(spec, memory, store, grain)
        partitions = self.sizing.layout.partitions
        catalogue = self.budget.reservation("catalogue of spilled runs")
        records = grain.records or 0 if grain is not None else 0
        catalogue.set_aside(records)
        self.disks = tuple(DiskSide(partitions, store, f"run-{side}", catalogue, self.meter) for side in (0, 1))
        """The runs of each side, by partition."""
        history = self.budget.reservation("history of visits")
        history.set_aside(max(_LEAST_HISTORY, memory // 256, records))
        self.ledger = Ledger(partitions, history)
        """Who has met: in memory, on a visit, or in a merge."""
        self.statistics = PartitionStatistics(partitions)
        """How many rows come, by side and partition."""
        self.left_at = np.zeros((2, partitions), np.int64)
        """When rows of a side and partition last left memory; `gone` says up to which arrival they have."""
        self._flush_policy = flush_policy(flush)

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        return cls._least_for_rows(spec) + (least_for_merging(spec) if cls.sorted_runs else 0)

    # --- arriving ---

    def must_keep(self, side: int) -> bool:
        """Unless the other input has ended and has nothing on disk."""
        return not self.exhausted(1 - side) or self.disks[1 - side].total_rows > 0

    def rows_kept(self, side: int, parts: Int32) -> None:
        """Count arrivals."""
        self.statistics.arrived(side, np.bincount(parts, minlength=self.sizing.layout.partitions))

    def _input_closed(self, side: int) -> None:
        """Rows of the other side that have met all of this input are done with."""
        self.statistics.ended(side)
        other = 1 - side
        for part in range(self.sizing.layout.partitions):
            if not self.disks[side].rows[part]:
                self.forget(other, part)

    # --- flushing ---

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        rows = self._rows_in_memory(spared)
        if not rows.any():
            return False
        leaving: tuple[list[tuple[int, int]], ...] = ([], [])
        for victim in self._flush_policy.victims(rows, self.statistics):
            leaving[victim.side].append((victim.part, victim.rows))
        for side, portions in enumerate(leaving):
            if portions:
                self.flush(side, portions)
        return True

    def _rows_in_memory(self, spared: frozenset[tuple[int, int]]) -> NDArray[np.int64]:
        rows = np.array([table.part_rows for table in self.tables])
        for side, part in spared:
            rows[side, part] = 0
        return rows

    def flush(self, side: int, portions: Sequence[tuple[int, int]]) -> None:
        """Move the oldest rows of partitions from memory to disk: at least so many of each, in whole blocks."""
        self.clock += 1
        self._flush_now(side, portions)

    def _flush_now(self, side: int, portions: Sequence[tuple[int, int]]) -> None:
        disk, table = self.disks[side], self.tables[side]
        latest = disk.flush(table, portions, self.clock, self.sizing.page_bytes, self.sorted_runs)
        for (part, _), arrived in zip(portions, latest, strict=True):
            self.gone[side][part] = arrived
            self.left_at[side][part] = self.clock

    def whole(self, side: int, parts: Sequence[int]) -> list[tuple[int, int]]:
        """All rows that partitions have in memory, for `flush`; empty ones are left out."""
        rows = self.tables[side].part_rows
        return [(part, int(rows[part])) for part in parts if rows[part]]

    def flush_together(self, parts: Sequence[int]) -> None:
        """Move both sides of partitions from memory to disk, at one tick."""
        self.clock += 1
        for side in (0, 1):
            held = self.whole(side, parts)
            if held:
                self._flush_now(side, held)

    def bring_to_disk(self, parts: Sequence[int]) -> None:
        """Move all that partitions have in memory to disk."""
        for side in (0, 1):
            held = self.whole(side, parts)
            if held:
                self.flush(side, held)

    def last_departure(self, side: int, part: int) -> int:
        """The last tick at which a row left this partition's memory for the disk."""
        return int(self.left_at[side][part])

    def forget(self, side: int, part: int) -> None:
        """Drop a partition from memory: its rows are on disk, or can find no more partners."""
        super().forget(side, part)
        self.left_at[side][part] = self.clock

    def drop_partition(self, part: int) -> None:
        """Forget a partition whose pairs have all been emitted."""
        for side in (0, 1):
            self.forget(side, part)
            self.saver.discard(self.disks[side].drop(part))
        self.ledger.drop(part)

    def stay_in_table(self, side: int, part: int, rows: Int32) -> Stay:
        """When rows of a table were in memory: until now, or until they were flushed if they were brought back."""
        table = self.tables[side]
        ordinals = table.ordinals(rows)
        departed = np.full(len(rows), FOREVER)
        back = ordinals >= 0
        if back.any():
            departed[back] = self.disks[side].departures(part, ordinals[back])
        return Stay(table.ticks(rows), departed, ordinals)

    # --- silences and the end ---

    @property
    def all_ended(self) -> bool:
        """Whether all rows of both inputs have been worked off."""
        return all(self._closed)

    @property
    def patience(self) -> int:
        """None, or that of a task which is not to be interrupted."""
        return self.stages.patience(self._task)

    def _can_react(self) -> bool:
        return self.stages.can_react()

    def _reactive_task(self) -> Task | None:
        return self.stages.react()

    def _give_way(self, task: Any) -> int:
        used, ended = self.stages.give_way(task)
        if ended:
            self._task = None
        return used

    def _clean_up_task(self) -> Task | None:
        return self.stages.clean_up()

    def visit_ended(self, side: int, part: int, covered: int, rows: int) -> None:
        """Memory of `side` has met `covered` of the `rows` on the other side's disk."""

    def merge_ended(self, part: int, left: tuple[int, int], right: tuple[int, int]) -> None:
        """These ordinals of both sides' disks have met."""

    # --- checks and snapshots ---

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        for disk in self.disks:
            disk.check()
        self.ledger.check(self.clock, [disk.rows for disk in self.disks])
        for side, table in enumerate(self.tables):
            if table.rows:
                rows, parts = table.all_rows()
                stayed = table.ordinals(rows) < 0
                assert (table.ticks(rows[stayed]) > self.gone[side][parts[stayed]]).all(), (
                    "rows in memory arrived after the last flush"
                )

    def close(self) -> None:
        """Let go of everything."""
        self.stages.close(self._task)
        super().close()
        for disk in self.disks:
            disk.release()

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        segments, stages = self.stages.to_state(self._task)
        return [*(name for disk in self.disks for name in disk.segments()), *segments], {
            **self.declared_state(),
            "stages": stages,
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        super()._load_own(state)
        self.stages.load(state["stages"])

    def _load_task(self, state: dict[str, Any]) -> Task:
        task = self.stages.resumed(state)
        return super()._load_task(state) if task is None else task
