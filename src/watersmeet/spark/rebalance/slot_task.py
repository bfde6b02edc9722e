"""What runs in a slot of a window join: the rows of all its groups of one micro-batch in, their results out.

The groups are joined one after the other, each from the state of the batch before to that of this one; at the end all
of them are published. Of a parallel join, groups move between slots, and each slot tells how long it took. Otherwise
each slot has a group of its own, and those of hot keys that have a home there: it tells of them, where there is one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from watersmeet.records.times import NEVER, Timing
from watersmeet.spark.plan.recipe import WindowFactory
from watersmeet.spark.plan.row_layout import RowLayout
from watersmeet.spark.rebalance.master_task import RoutingFiles
from watersmeet.spark.rebalance.reorganizing import GroupLoad, SlotLoad, is_hot
from watersmeet.spark.rebalance.routing import INPUTS, WAKE, Role, Routing
from watersmeet.spark.rebalance.slot_rows import KeySample, SlotRows
from watersmeet.spark.state.directory import Owner, StateDirectory
from watersmeet.spark.state.remote import CACHE_BYTES
from watersmeet.spark.state.watermarks import Marks
from watersmeet.spark.task import operator_cache as kept_operators
from watersmeet.spark.task.context import current_batch, current_partition, scratch_directory, state_place
from watersmeet.spark.task.delays import Delays
from watersmeet.spark.task.figures import Figures, figure_names, figures_row, with_figures
from watersmeet.spark.task.operator_group import Shares
from watersmeet.spark.task.timed_rows import TimedArrivals
from watersmeet.spark.task.window_group import WindowGroup
from watersmeet.spill.file_store import FileStore

FIGURES = [*figure_names(late=True), "slots", "moved", "hot_keys"]
"""What a slot tells of a batch."""
_MOST_AT_ONCE = 8
"""Groups that are published at once: the disk's journal takes several for the price of one."""
_FEWEST = 4
"""A slot's memory is divided among so many groups, even if it has fewer."""
_LOOK_EVERY = 8
"""Batches until a group without rows is looked at again."""


@dataclass(frozen=True)
class SlotTask:
    """The function of `mapInArrow` of a streaming window join whose hot keys are split, and of a parallel one."""

    factory: WindowFactory
    layout: RowLayout
    memory: int
    groups: int
    state: str
    retain: int = 100
    times: tuple[str, str] | None = None
    """The columns of the results from which delays are counted."""
    cache_bytes: int = CACHE_BYTES
    """Of state elsewhere: what may be kept of it on this machine."""
    numbered: bool = False
    """Whether a task's number is that of its slot."""
    moves: bool = True
    """Whether groups move between slots."""
    made: int = field(default_factory=time.time_ns, compare=False)
    """When the query was put together: see `state.lineage`."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the rows of one partition."""
        began = time.time(), time.monotonic()
        limit = Shares.of(self.memory).arrivals // 2  # as much again while they are sorted, and for the group at work
        with closing(SlotRows(self.layout.kinds, limit, lambda: FileStore(scratch_directory()))) as rows:
            for batch in batches:
                rows.add(batch)
            numbers = rows.groups()
            if numbers:
                yield from _Slot(self, rows, numbers, began).results()
            elif self.numbered and self.factory.waits_for_time:  # what waits for its time comes also without rows
                yield from _Slot(self, rows, numbers, began, current_partition()).results()


class _Slot:
    """A slot's work in one batch."""

    def __init__(
        self,
        task: SlotTask,
        rows: SlotRows,
        numbers: list[int],
        began: tuple[float, float],
        slot: int | None = None,
    ) -> None:
        """`slot` is its number, where no rows tell it."""
        self._task, self._rows, self._numbers, self._began = task, rows, numbers, began
        place = state_place(task.state)
        batch, query = current_batch()
        describe = partial(task.factory.described, "parallel_join" if task.moves else "window_join")
        owner = Owner(
            task.factory.fingerprint, task.groups, query, "groups" if task.moves else "partitions",
            task.factory.spec.tick, describe, grows=not task.moves and task.factory.grows, made=task.made,
        )  # fmt: skip
        self._directory = StateDirectory(place, owner, batch, task.retain, task.cache_bytes)
        self._files = RoutingFiles(self._directory)
        # Where groups stay, rows tell all that is to be done, unless something waits for its time.
        self._routing = self._files.current() if task.moves or task.factory.waits_for_time else None
        self._slot = -1 if slot is None else slot
        if self._routing is not None and numbers:
            self._slot = self._routing.owner[numbers[0]]
        self._marks = Marks(self._directory, INPUTS, NEVER)
        self._before = self._marks.before()
        self._newest = [NEVER] * INPUTS
        # Elsewhere, two attempts at once may both publish, and this one may not be the last.
        self._kept = kept_operators.WORKER if isinstance(place, Path) else kept_operators.forgetful()
        self._shares = self._shared()
        self._timing = Timing(task.factory.spec)
        self._delays = Delays(task.times)
        self._figures = Figures([0] * INPUTS, 0, 0, 0, 0, 0, late=[0] * INPUTS)
        self._loads: dict[int, GroupLoad] = {}
        self._done: list[WindowGroup] = []

    def results(self) -> Iterator[pa.RecordBatch]:
        """What all groups find; when all is handed out, their state is published."""
        woken = False
        for number in self._numbers:
            with closing(_GroupRows(self)) as found:
                for kind, piece in self._rows.of(number):
                    woken |= kind == WAKE
                    found.take(kind, piece)
                if found.any:
                    yield from self._of(number, found)
        if woken or self._task.factory.waits_for_time:
            yield from self._look_after_quiet_groups()
        if not self._numbers and not self._done:
            return
        with ThreadPoolExecutor(_MOST_AT_ONCE) as threads:
            list(threads.map(WindowGroup.publish, self._done))
        if any(own > known for own, known in zip(self._newest, self._before, strict=True)):
            self._marks.tell(self._numbers[0], self._newest)
        seconds = time.monotonic() - self._began[1]
        if not self._task.moves:
            self._tell_if_hot(seconds)
        elif self._routing is not None:
            lag = max(0.0, self._began[0] - self._routing.settled)
            self._files.tell(SlotLoad(self._slot, seconds, self._loads, self._directory.batch.number, lag))
        yield figures_row(self._task.factory.output, self._told(seconds))

    def _tell_if_hot(self, seconds: float) -> None:
        """What the master has to know where groups stay: of keys that are hot, or were."""
        groups = self._task.groups
        if any(number >= groups or is_hot(load, groups) for number, load in self._loads.items()):
            self._files.tell(SlotLoad(self._slot, seconds, self._loads, self._directory.batch.number))

    def _of(self, number: int, rows: _GroupRows) -> Iterator[pa.RecordBatch]:
        began = time.monotonic()
        group = self._group(number)
        for arrivals in rows.visitors:
            if arrivals is not None:
                yield from self._handed_out(group.visited(arrivals))
        if any(rows.arrivals.rows) or group.has_work:
            yield from self._handed_out(group.results(rows.arrivals))
            self._done.append(group)
        self._newest = [max(pair) for pair in zip(self._newest, rows.arrivals.newest, strict=True)]
        self._count(group, rows)
        count, results = sum(rows.arrivals.rows) + rows.visits, group.counts.results
        top = rows.sample.top(rows.arrivals.rows, results)
        self._loads[number] = GroupLoad(count, results, time.monotonic() - began, top)

    def _look_after_quiet_groups(self) -> Iterator[pa.RecordBatch]:
        """Let go of what has expired in groups that no rows came to."""
        known = self._numbers  # where groups stay, each of them is woken
        if self._routing is not None:
            known = self._routing.groups_of(self._slot)
        elif self._task.moves:
            return
        turn = self._directory.batch.number
        # Rows that come out alone are waited for; what has expired, nobody asks for.
        every = 1 if self._task.factory.waits_for_time or not self._task.moves else _LOOK_EVERY
        for number in sorted(set(known) - set(self._loads)):
            if (number + turn) % every == 0 and (group := self._group(number)).has_work:
                with closing(_GroupRows(self)) as rows:
                    yield from self._handed_out(group.results(rows.arrivals))
                    self._done.append(group)
                    self._count(group, rows)

    def _handed_out(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for results in with_figures(batches):
            self._delays.count(results, time.time())
            yield results

    def _group(self, number: int) -> WindowGroup:
        task = self._task
        return WindowGroup(task.factory, self._shares, self._directory.group(number), self._kept, self._before)

    def arrivals(self) -> TimedArrivals:
        """For rows of one group."""
        factory = self._task.factory
        return TimedArrivals(
            factory.inputs, self._timing, self._shares.arrivals, lambda: FileStore(scratch_directory())
        )

    @property
    def task(self) -> SlotTask:
        """Whose work it is."""
        return self._task

    def _shared(self) -> Shares:
        """What each of the groups may hold, as many as the slot has; what the others have kept stays beside it."""
        shares = Shares.of(self._task.memory)
        if not self._task.moves:
            return replace(shares, arrivals=shares.arrivals // 2)
        count = len(self._numbers) if self._routing is None else len(self._routing.groups_of(self._slot))
        # In powers of two, so that not every move makes all operators begin anew with a little more. An operator cannot
        # go on with less than it once had: a group that was alone in its slot may come into a crowd.
        own = max(self._task.factory.least_memory(), shares.operator >> max(_FEWEST - 1, count - 1).bit_length())
        return replace(shares, operator=own, arrivals=shares.arrivals // 2, kept=max(0, shares.operator - own))

    def _count(self, group: WindowGroup, rows: _GroupRows) -> None:
        counts, so_far = group.counts, self._figures
        own = [0 if side in rows.copied else count for side, count in enumerate(rows.arrivals.rows)]
        late = [0 if side in rows.copied else count for side, count in enumerate(counts.late)]
        self._figures = replace(
            so_far,
            rows=[a + b for a, b in zip(so_far.rows, own, strict=True)],
            late=[a + b for a, b in zip(so_far.late, late, strict=True)],
            results=so_far.results + counts.results,
            memory=max(so_far.memory, counts.peak + self._kept.held_beside(group.place) + self._rows.peak),
            written=so_far.written + counts.written,
            state_rows=so_far.state_rows + counts.state_rows,
            state_bytes=so_far.state_bytes + counts.state_bytes,
            spilled=so_far.spilled + counts.spilled,
        )

    def _told(self, seconds: float) -> list[int]:
        """The figures of `FIGURES`, or those of every window join where groups stay, and delays."""
        delays = self._delays.counts if self._task.times else ()
        usual = replace(self._figures, task_ms=round(seconds * 1000), delays=delays).as_list()
        if not self._task.moves:
            return usual
        routing = self._routing or Routing((), ())
        moved = sum(routing.owner[group] == self._slot for group in routing.moved)
        hot = sum(routing.owner[key.home.first] == self._slot for key in routing.hot if key.home.ways > 1)
        place = len(FIGURES) - 3
        return [*usual[:place], 1, moved, hot, *usual[place:]]


class _GroupRows:
    """The rows of one group: those that are its own, and those that visit it."""

    def __init__(self, slot: _Slot) -> None:
        self._slot = slot
        self._stack = ExitStack()
        self.arrivals = self._stack.enter_context(closing(slot.arrivals()))
        self.visitors: list[TimedArrivals | None] = [None] * INPUTS
        self.copied: set[int] = set()
        """Sides whose rows are counted in another group."""
        self.visits = 0
        self.sample = KeySample()

    @property
    def any(self) -> bool:
        """Whether there are rows."""
        return any(self.arrivals.rows) or self.visits > 0

    def take(self, kind: int, piece: pa.RecordBatch) -> None:
        """Rows of one kind, as they come from the shuffle."""
        if kind == WAKE:
            return
        role, side = Role(kind // INPUTS), kind % INPUTS
        task = self._slot.task
        rows = task.layout.rows_of(piece, side, task.factory.inputs)
        if role is Role.VISIT:
            visitors = self.visitors[side]
            if visitors is None:
                visitors = self.visitors[side] = self._stack.enter_context(closing(self._slot.arrivals()))
            visitors.add(side, rows)
            self.visits += rows.num_rows
            return
        if role is Role.COPY:
            self.copied.add(side)
        self.sample.add(side, piece.column(piece.num_columns - 1).to_numpy())
        self.arrivals.add(side, rows)

    def close(self) -> None:
        """Let go of everything."""
        self._stack.close()
