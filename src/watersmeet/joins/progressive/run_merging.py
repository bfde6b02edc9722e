"""What joins that merge sorted runs have in common: merging operations that give way to arrivals, and the clean-up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from watersmeet.core.errors import BudgetError
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.arrival import UNIT_OF_WORK, Task
from watersmeet.engine.sizing import Grain
from watersmeet.joins.progressive.spilling import SpillingJoin
from watersmeet.matching.lookup import Lookup
from watersmeet.matching.merge import Group, Merge, group_to_merge
from watersmeet.matching.sorted_lookup import Meeting, SameHash
from watersmeet.memory import format_bytes
from watersmeet.policies.flush import FlushPolicy
from watersmeet.runs.catalogue import DiskSide, Run
from watersmeet.runs.sort import RunWriter
from watersmeet.spill.store import Store

_LEAST_FAN_IN = 2
_MOST_FAN_IN = 8
_MOST_FAN_IN_AT_LAST = 128
"""Of runs so short that all their pages fit, or with all memory."""
_ROW_BYTES = 24
"""Of a row on a page beyond its columns: hash, arrival, ordinal."""
_SMALL = 1 << 20
"""Below this budget the windows of a merge are smaller."""
_SLACK = 4096
"""Bytes left free for the records of what is merged with all memory."""
_LEAST_PAGE = 2048
_LEAST_CATALOGUE = 18 * 1024
"""So much memory for the records of runs, that merging them, which makes them fewer, can begin."""
_LEAST_FOR_WIDE_ROWS = 16 * 1024
"""More pages in memory are more rows that may each be wider than a page."""


@dataclass(frozen=True, slots=True)
class _Tails:
    """What a merge holds of rows that were merged before: nothing where only equal ones meet; with a band the page
    before each run's and another window, or in little memory one page that is read again.
    """

    depth: int = 1
    pages_again: int = 0

    @classmethod
    def of(cls, spec: JoinSpec, memory: int) -> _Tails:
        if spec.band is None:
            return cls()
        return cls(pages_again=1) if memory < _SMALL else cls(depth=2)

    def pages(self, fan_in: int, window_pages: int) -> int:
        """Pages in memory of each side: one of each run, a window, and one on its way out, and what is held beyond."""
        return self.depth * (fan_in + window_pages) + 1 + self.pages_again


class MergingJoin(SpillingJoin):
    """A progressive join whose runs are sorted, and merged with their pairs found on the way."""

    sorted_runs: ClassVar[bool] = True
    _meeting: Meeting = SameHash()

    def __init__(
        self,
        spec: JoinSpec,
        memory: int,
        store: Store,
        flush: FlushPolicy | str,
        prompt: bool,
        grain: Grain | None = None,
        patience: int = 0,
    ) -> None:
        least = self.least_memory(spec)
        if memory < least:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for the {self.name} join of these rows; allow at "
                f"least {format_bytes(least)}"
            )
        super().__init__(spec, memory, store, flush, grain)
        self._tails = _Tails.of(spec, memory)
        eighth = memory // 8 // self.sizing.page_bytes
        self.fan_in = max(_LEAST_FAN_IN, min(eighth // (2 * self._tails.depth) - 1, _MOST_FAN_IN))
        self._most_fan_in = _MOST_FAN_IN_AT_LAST
        if grain is not None and grain.fan_in is not None:
            self.fan_in = self._most_fan_in = grain.fan_in
        self._window_pages = 1 if memory < _SMALL else 2
        pages = self._tails.pages(self.fan_in, self._window_pages)
        self.rows_buffered = 2 + pages
        self._merge_buffers = self.budget.reservation("merge buffers")
        self._merge_buffers.grow(2 * pages * self.sizing.page_bytes)
        self._prompt = prompt
        self._patience = patience
        self._suspended: MergeTask | None = None
        self._to_clean: list[int] | None = None

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        tails = _Tails.of(spec, 0)
        merge_buffers = 2 * tails.pages(_LEAST_FAN_IN, 1) * _LEAST_PAGE
        wide_rows = tails.pages_again * _LEAST_FOR_WIDE_ROWS
        return cls._least_for_rows(spec) + merge_buffers + _LEAST_CATALOGUE + wide_rows

    # --- merging ---

    def unmerged(self, part: int) -> bool:
        """Whether rows on both sides' disks may not have met each other."""
        return not self.ledger.all_merged(part, self.disks[0].rows[part], self.disks[1].rows[part])

    def may_merge(self) -> bool:
        """Whether there is memory to remember a merge."""
        return self.ledger.try_reserve_merge()

    def begin_merge(self, part: int) -> MergeTask:
        """The next merging operation on a partition; `may_merge` was asked."""
        self.clock += 1
        pages_room, window = (count * self.sizing.page_bytes for count in (self.fan_in, self._window_pages))
        # At last all the memory that is free serves the merge: half of it the runs' pages, the rest larger windows.
        spare = max(0, self.budget.free - _SLACK) // (2 * self._tails.depth) if all(self._closed) else 0
        groups, more = [], 0
        for side, disk in enumerate(self.disks):
            sizes = self._page_sizes(side, part)
            room = pages_room + spare // 2
            most = _MOST_FAN_IN_AT_LAST if all(self._closed) else self._most_fan_in
            first, count = group_to_merge(disk.levels(part), self.fan_in, sizes, room, most)
            groups.append((first, count))
            if count > self.fan_in:  # as many have their room, however wide their rows are
                more = max(more, sum(sizes[first : first + count]) - pages_room)
        larger = max(0, min(spare - more, pages_room + more))
        # The last operation of the clean-up meets everything and so need not write anything.
        last = all(self._closed) and all(
            count == disk.run_count(part) for disk, (_, count) in zip(self.disks, groups, strict=True)
        )
        buffers = 2 * self._tails.depth * (more + larger)
        return self._merge(part, groups, self.clock, last, window + larger, buffers)

    def _page_sizes(self, side: int, part: int) -> list[int]:
        """What the longest page of each run may take."""
        widest = self.pairs.widest[side]
        most = max(self.sizing.page_bytes, widest)
        return [min(most, rows * (widest + _ROW_BYTES)) for rows in self.disks[side].longest_pages(part).tolist()]

    def _merge(
        self, part: int, groups: list[tuple[int, int]], tick: int, last: bool, window_bytes: int, buffers: int
    ) -> MergeTask:
        self._merge_buffers.grow(buffers)
        left, right = (
            Group(first, tuple(disk.runs(part)[first : first + count]))
            for disk, (first, count) in zip(self.disks, groups, strict=True)
        )
        writers = [
            None
            if last or len(group.runs) == 1
            else RunWriter(self.store, disk, part, tick, plan.types, self.sizing.page_bytes)
            for disk, group, plan in zip(self.disks, (left, right), self.plans, strict=True)
        ]
        out = (writers[0], writers[1])
        keeps_tails = self._tails.depth > 1
        merge = Merge(
            self.disks, self.ledger, part, (left, right), out, self.meter, window_bytes, self._meeting, keeps_tails
        )
        return MergeTask(self, merge, tick, last, buffers)

    def end_merge(self, task: MergeTask) -> None:
        """Put the merged runs in the place of those they were made of, and record who has met."""
        merge, part = task.merge, task.merge.part
        self._merge_buffers.shrink(task.buffers)
        merge.seal()
        for disk, group, writer in zip(self.disks, merge.groups, merge.writers, strict=True):
            if writer is not None:
                run = writer.run(group.ordinals[0], group.level)
                self._claim_entry(disk, part, group, run)
                self.saver.discard(disk.replace(part, group.first, len(group.runs), run))
        left, right = merge.groups
        self.ledger.record_merge(part, left.ordinals, right.ordinals)
        self.merge_ended(part, left.ordinals, right.ordinals)

    def _claim_entry(self, disk: DiskSide, part: int, group: Group, run: Run) -> None:
        self._insist(lambda: disk.try_claim(part, group.first, len(group.runs), run))

    def _insist(self, claim: Callable[[], bool]) -> None:
        """Claim memory for the records of a merge, which must not fail."""
        if not self.secure(claim):
            raise BudgetError(
                f"{format_bytes(self.budget.total)} of memory are too little to remember all runs that were spilled; "
                f"allow more memory"
            )

    def merge_ended(self, part: int, left: tuple[int, int], right: tuple[int, int]) -> None:
        """These ordinals of both sides' disks have met."""

    def take_suspended(self) -> Task | None:
        """The merge that gave way to arrivals, to go on with."""
        task, self._suspended = self._suspended, None
        return task

    @property
    def patience(self) -> int:
        """None, what it was given, or that of a task which is not to be interrupted."""
        uninterrupted = not self._prompt and self._task is not None and not self._task.done
        return sys.maxsize if uninterrupted else self._patience

    def _give_way(self, task: Task) -> int:
        if not self._prompt:
            return task.work(UNIT_OF_WORK)
        assert isinstance(task, MergeTask)
        task.merge.suspend(self.pairs)
        self._suspended, self._task = task, None
        return 1

    # --- reactive, where there is nothing to choose from but the next merge ---

    def _can_react(self) -> bool:
        return self._suspended is not None or (self._choose_merge() is not None and self.may_merge())

    def _choose_merge(self) -> int | None:
        return next((part for part in range(self.sizing.layout.partitions) if self.unmerged(part)), None)

    def _reactive_task(self) -> Task | None:
        if not self._can_react():
            return None
        if self._suspended is not None:
            return self.take_suspended()
        part = self._choose_merge()
        assert part is not None
        return self.begin_merge(part)

    # --- clean-up ---

    def _clean_up_task(self) -> Task | None:
        if self._suspended is not None:
            return self.take_suspended()
        if self._to_clean is None:
            self._to_clean = self._bring_memory_to_disk()
            for table in self.tables:
                table.trim(self.budget.total)
        while self._to_clean:
            part = self._to_clean[0]
            if self.unmerged(part):
                self._insist(self.may_merge)
                return self.begin_merge(part)
            self.drop_partition(self._to_clean.pop(0))
        return None

    def _bring_memory_to_disk(self) -> list[int]:
        """Let rows in memory join their partitions' runs, and forget partitions that have nothing more to give; returns
        the others.
        """
        parts = []
        for part in range(self.sizing.layout.partitions):
            on_disk = [disk.rows[part] for disk in self.disks]
            held = [rows + int(table.part_rows[part]) for rows, table in zip(on_disk, self.tables, strict=True)]
            if any(on_disk) and all(held):
                parts.append(part)
            else:
                self.drop_partition(part)
        self._bring_all_to_disk(parts)
        return parts

    def _bring_all_to_disk(self, parts: Sequence[int]) -> None:
        for side in (0, 1):
            held = self.whole(side, parts)
            if held:
                self.flush(side, held)

    # --- snapshots ---

    def close(self) -> None:
        """Let go of everything."""
        for task in (self._task, self._suspended):
            if isinstance(task, MergeTask):
                task.abort()
        self._suspended = None
        super().close()

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        merges = [task for task in (self._task, self._suspended) if isinstance(task, MergeTask)]
        for task in merges:
            task.merge.seal()
        segments, state = super()._own_state()
        for task in merges:
            segments += [name for writer in task.merge.writers if writer is not None for name in writer.segments()]
        suspended = None if self._suspended is None else self._suspended.to_state()
        return segments, {**state, "suspended": suspended, "to_clean": self._to_clean}

    def _load_own(self, state: dict[str, Any]) -> None:
        super()._load_own(state)
        self._to_clean = None if state["to_clean"] is None else list(state["to_clean"])
        if state["suspended"] is not None:
            self._suspended = self._load_merge(state["suspended"])

    def _load_task(self, state: dict[str, Any]) -> Task:
        return self._load_merge(state) if state["kind"] == "merge" else super()._load_task(state)

    def _load_merge(self, state: dict[str, Any]) -> MergeTask:
        groups = [(first, count) for first, count in state["groups"]]
        task = self._merge(state["part"], groups, state["tick"], state["last"], state["window_bytes"], state["buffers"])
        task.resume(state)
        return task


class MergeTask:
    """A merging operation as a task of a join."""

    def __init__(self, join: MergingJoin, merge: Merge, tick: int, last: bool, buffers: int) -> None:
        self.merge = merge
        self.buffers = buffers
        """Bytes that it holds beyond what is set aside for merging."""
        self._join = join
        self._tick = tick
        self._last = last

    @property
    def lookup(self) -> Lookup | None:
        """The look-up at hand."""
        return self.merge.lookup

    @property
    def done(self) -> bool:
        """Whether all pairs were found."""
        return self.merge.done

    def work(self, fuel: int) -> int:
        """Go on."""
        return self.merge.work(self._join.pairs, fuel)

    def finish(self) -> None:
        """Record what was achieved."""
        self._join.end_merge(self)

    def abort(self) -> None:
        """Leave no unfinished run behind."""
        for writer in self.merge.writers:
            if writer is not None:
                writer.abort()

    def to_state(self) -> dict[str, Any]:
        """The merge for a snapshot."""
        own = {"kind": "merge", "tick": self._tick, "last": self._last, "buffers": self.buffers}
        return {**own, **self.merge.to_state(self._join.pairs)}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        self.merge.go_to(state, self._join.pairs)
