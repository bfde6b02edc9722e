"""Sorted runs that are merged, with their pairs found on the way: operations that give way to arrivals, and the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from watersmeet.core.errors import BudgetError
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.arrival import UNIT_OF_WORK, Task
from watersmeet.engine.sizing import Grain
from watersmeet.matching.found_pairs import PairBuffer
from watersmeet.matching.lookup import Lookup
from watersmeet.matching.merge import Group, Merge, group_to_merge
from watersmeet.matching.sorted_lookup import Meeting, SameHash
from watersmeet.memory import format_bytes
from watersmeet.runs.catalogue import DiskSide, Run
from watersmeet.runs.sort import MergedRunWriter

if TYPE_CHECKING:
    from watersmeet.joins.progressive.spilling import SpillingJoin

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


def least_for_merging(spec: JoinSpec) -> int:
    """Bytes without which runs cannot be merged."""
    tails = _Tails.of(spec, 0)
    merge_buffers = 2 * tails.pages(_LEAST_FAN_IN, 1) * _LEAST_PAGE
    return merge_buffers + _LEAST_CATALOGUE + tails.pages_again * _LEAST_FOR_WIDE_ROWS


class Merges:
    """Merges of sorted runs, in silences and at the end; their pairs are found on the way."""

    def __init__(
        self,
        join: SpillingJoin,
        prompt: bool,
        grain: Grain | None = None,
        meeting: Meeting | None = None,
        patience: int = 0,
        whole_stage: bool = False,
    ) -> None:
        """`meeting` says which rows of two sorted runs match: those of one hash, unless it is given. `patience` is how
        many rows may wait for a merge; without `prompt`, all do, and with `whole_stage` for all merges that there are.
        """
        memory, page_bytes = join.budget.total, join.sizing.page_bytes
        self._join = join
        self._meeting = meeting or SameHash()
        self._tails = _Tails.of(join.spec, memory)
        eighth = memory // 8 // page_bytes
        self.fan_in = max(_LEAST_FAN_IN, min(eighth // (2 * self._tails.depth) - 1, _MOST_FAN_IN))
        self._most_fan_in = _MOST_FAN_IN_AT_LAST
        if grain is not None and grain.fan_in is not None:
            self.fan_in = self._most_fan_in = grain.fan_in
        self._window_pages = 1 if memory < _SMALL else 2
        pages = self._tails.pages(self.fan_in, self._window_pages)
        join.rows_buffered = 2 + pages
        self._buffers = join.budget.reservation("merge buffers")
        self._buffers.grow(2 * pages * page_bytes)
        self.prompt = prompt
        self._patience = patience
        self._whole_stage = whole_stage
        self.suspended: MergeTask | None = None
        """The merge that gave way to arrivals; it goes on before any other."""
        self._to_clean: list[int] | None = None

    # --- merging ---

    def unmerged(self, part: int) -> bool:
        """Whether rows on both sides' disks may not have met each other."""
        left, right = self._join.disks
        return not self._join.ledger.all_merged(part, left.rows[part], right.rows[part])

    def may_begin(self) -> bool:
        """Whether there is memory to remember a merge."""
        return self._join.ledger.try_reserve_merge()

    def begin(self, part: int) -> MergeTask:
        """The next merging operation on a partition; `may_begin` was asked."""
        join = self._join
        join.clock += 1
        pages_room, window = (count * join.sizing.page_bytes for count in (self.fan_in, self._window_pages))
        # At last all the memory that is free serves the merge: half of it the runs' pages, the rest larger windows.
        spare = max(0, join.budget.free - _SLACK) // (2 * self._tails.depth) if join.all_ended else 0
        groups, more = [], 0
        for side, disk in enumerate(join.disks):
            sizes = self._page_sizes(side, part)
            room = pages_room + spare // 2
            most = _MOST_FAN_IN_AT_LAST if join.all_ended else self._most_fan_in
            first, count = group_to_merge(disk.levels(part), self.fan_in, sizes, room, most)
            groups.append((first, count))
            if count > self.fan_in:  # as many have their room, however wide their rows are
                more = max(more, sum(sizes[first : first + count]) - pages_room)
        larger = max(0, min(spare - more, pages_room + more))
        # The last operation of the clean-up meets everything and so need not write anything.
        last = join.all_ended and all(
            count == disk.run_count(part) for disk, (_, count) in zip(join.disks, groups, strict=True)
        )
        buffers = 2 * self._tails.depth * (more + larger)
        return self._task(part, groups, join.clock, last, window + larger, buffers)

    def _page_sizes(self, side: int, part: int) -> list[int]:
        """What the longest page of each run may take."""
        widest = self._join.pairs.widest[side]
        most = max(self._join.sizing.page_bytes, widest)
        return [min(most, rows * (widest + _ROW_BYTES)) for rows in self._join.disks[side].longest_pages(part).tolist()]

    def _task(
        self, part: int, groups: list[tuple[int, int]], tick: int, last: bool, window_bytes: int, buffers: int
    ) -> MergeTask:
        join = self._join
        self._buffers.grow(buffers)
        left, right = (
            Group(first, tuple(disk.runs(part)[first : first + count]))
            for disk, (first, count) in zip(join.disks, groups, strict=True)
        )
        writers = [
            None
            if last or len(group.runs) == 1
            else MergedRunWriter(join.store, disk, part, tick, plan.types, join.sizing.page_bytes)
            for disk, group, plan in zip(join.disks, (left, right), join.plans, strict=True)
        ]
        out = (writers[0], writers[1])
        keeps_tails = self._tails.depth > 1
        merge = Merge(
            join.disks, join.ledger, part, (left, right), out, join.meter, window_bytes, self._meeting, keeps_tails
        )
        return MergeTask(self, join.pairs, merge, tick, last, buffers)

    def ended(self, task: MergeTask) -> None:
        """Put the merged runs in the place of those they were made of, and record who has met."""
        join, merge, part = self._join, task.merge, task.merge.part
        self._buffers.shrink(task.buffers)
        merge.seal()
        for disk, group, writer in zip(join.disks, merge.groups, merge.writers, strict=True):
            if writer is not None:
                run = writer.run(group.ordinals[0], group.level)
                self._claim_entry(disk, part, group, run)
                join.saver.discard(disk.replace(part, group.first, len(group.runs), run))
        left, right = merge.groups
        join.ledger.record_merge(part, left.ordinals, right.ordinals)
        join.merge_ended(part, left.ordinals, right.ordinals)

    def _claim_entry(self, disk: DiskSide, part: int, group: Group, run: Run) -> None:
        self._insist(lambda: disk.try_claim(part, group.first, len(group.runs), run))

    def _insist(self, claim: Callable[[], bool]) -> None:
        """Claim memory for the records of a merge, which must not fail."""
        if not self._join.secure(claim):
            raise BudgetError(
                f"{format_bytes(self._join.budget.total)} of memory are too little to remember all runs that were "
                f"spilled; allow more memory"
            )

    # --- silences, where there is nothing to choose from but the next merge ---

    def can_react(self) -> bool:
        """Whether there is a merge to do, and memory to remember it."""
        return self.suspended is not None or (self._choose() is not None and self.may_begin())

    def react(self) -> Task | None:
        """The merge that gave way, or the next."""
        if self.suspended is not None:
            return self.take_suspended()
        part = self._choose()
        return self.begin(part) if part is not None and self.may_begin() else None

    def _choose(self) -> int | None:
        return next((part for part in range(self._join.sizing.layout.partitions) if self.unmerged(part)), None)

    def take_suspended(self) -> Task | None:
        """The merge that gave way to arrivals, to go on with."""
        task, self.suspended = self.suspended, None
        return task

    def patience(self, task: Any) -> int:
        """What it was given, or that of a task which is not to be interrupted."""
        busy = (task is not None and not task.done) or (self._whole_stage and self.can_react())
        return sys.maxsize if busy and not self.prompt else self._patience

    def give_way(self, task: Any) -> tuple[int, bool]:
        """Set the merge aside, unless rows are to wait for it."""
        if not self.prompt:
            return task.work(UNIT_OF_WORK), False
        assert isinstance(task, MergeTask)
        task.merge.suspend(self._join.pairs)
        self.suspended = task
        return 1, True

    # --- clean-up ---

    def clean_up(self) -> Task | None:
        """The next merge of a partition that has rows which have not met."""
        join = self._join
        if self.suspended is not None:
            return self.take_suspended()
        if self._to_clean is None:
            self._to_clean = self._bring_memory_to_disk()
            for table in join.tables:
                table.trim(join.budget.total)
        while self._to_clean:
            part = self._to_clean[0]
            if self.unmerged(part):
                self._insist(self.may_begin)
                return self.begin(part)
            join.drop_partition(self._to_clean.pop(0))
        return None

    def _bring_memory_to_disk(self) -> list[int]:
        """Let rows in memory join their partitions' runs, and forget partitions that have nothing more to give; returns
        the others.
        """
        join, parts = self._join, []
        for part in range(join.sizing.layout.partitions):
            on_disk = [disk.rows[part] for disk in join.disks]
            held = [rows + int(table.part_rows[part]) for rows, table in zip(on_disk, join.tables, strict=True)]
            if any(on_disk) and all(held):
                parts.append(part)
            else:
                join.drop_partition(part)
        join.bring_to_disk(parts)
        return parts

    # --- snapshots ---

    def close(self, task: Any) -> None:
        """Leave no unfinished runs behind."""
        for each in (task, self.suspended):
            if isinstance(each, MergeTask):
                each.abort()
        self.suspended = None

    def to_state(self, task: Any) -> tuple[list[str], dict[str, Any]]:
        """For a snapshot, with a task at hand."""
        segments = []
        for each in (task, self.suspended):
            if isinstance(each, MergeTask):
                each.merge.seal()
                for writer in each.merge.writers:
                    segments += [] if writer is None else writer.segments()
        suspended = None if self.suspended is None else self.suspended.to_state()
        return segments, {"suspended": suspended, "to_clean": self._to_clean}

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        self._to_clean = None if state["to_clean"] is None else list(state["to_clean"])
        if state["suspended"] is not None:
            self.suspended = self.resumed(state["suspended"])

    def resumed(self, state: dict[str, Any]) -> MergeTask | None:
        """A merge that a snapshot was taken of; None if it is none."""
        if state["kind"] != "merge":
            return None
        groups = [(first, count) for first, count in state["groups"]]
        task = self._task(state["part"], groups, state["tick"], state["last"], state["window_bytes"], state["buffers"])
        task.resume(state)
        return task


class MergeTask:
    """A merging operation as a task of a join."""

    def __init__(self, merges: Merges, pairs: PairBuffer, merge: Merge, tick: int, last: bool, buffers: int) -> None:
        self.merge = merge
        self.buffers = buffers
        """Bytes that it holds beyond what is set aside for merging."""
        self._merges = merges
        self._pairs = pairs
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
        return self.merge.work(self._pairs, fuel)

    def finish(self) -> None:
        """Record what was achieved."""
        self._merges.ended(self)

    def abort(self) -> None:
        """Leave no unfinished run behind."""
        for writer in self.merge.writers:
            if writer is not None:
                writer.abort()

    def to_state(self) -> dict[str, Any]:
        """The merge for a snapshot."""
        own = {"kind": "merge", "tick": self._tick, "last": self._last, "buffers": self.buffers}
        return {**own, **self.merge.to_state(self._pairs)}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        self.merge.go_to(state, self._pairs)
