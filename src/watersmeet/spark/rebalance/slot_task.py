"""What runs in a slot of a parallel join: the rows of all its groups of one micro-batch in, their results out.

The groups are joined one after the other, each from the state of the batch before to that of this one, as a task of
`window_join` does it with its only group; at the end all of them are published, and the slot tells how long it took.

Spark delivers the rows of all groups mixed. What exceeds the memory is written to disk in parts, each in the order of
groups, a page for every group and kind of rows; what is read back of them is one group's at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32
from watersmeet.records.times import NEVER, Timing
from watersmeet.records.types import put_together
from watersmeet.spark.plan.recipe import WindowFactory
from watersmeet.spark.plan.row_layout import RowLayout
from watersmeet.spark.rebalance.master_task import RoutingFiles
from watersmeet.spark.rebalance.reorganizing import GroupLoad, SlotLoad, TopKey
from watersmeet.spark.rebalance.routing import INPUTS, WAKE, Role, Routing
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
from watersmeet.spill.segment import Segment, SegmentWriter
from watersmeet.spill.store import Store

_PAGE_ROWS = 4096
_MOST_BYTES = 1 << 30
"""Of strings in one array: their offsets have 32 bits."""


class SlotRows:
    """Rows by their tags, which are in the first column; in memory at most twice `limit` bytes of them.

    >>> from watersmeet.spill.store import MemoryStore
    >>> rows = SlotRows(kinds=2, limit=1 << 20, scratch=MemoryStore)
    >>> rows.add(pa.record_batch({"tag": pa.array([7, 4, 7], pa.int32()), "id": [1, 2, 3]}))
    >>> rows.groups(), [(kind, piece["id"].to_pylist()) for kind, piece in rows.of(3)]
    ([2, 3], [(1, [1, 3])])
    """

    def __init__(self, kinds: int, limit: int, scratch: Callable[[], Store]) -> None:
        self._kinds = kinds
        self._limit = min(limit, _MOST_BYTES)
        self._scratch = scratch
        self._store: Store | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._held = 0
        self.peak = 0
        """The most bytes that were in memory at once."""
        self._segments: dict[str, Segment] = {}
        self._pieces: dict[int, list[tuple[int, pa.RecordBatch | tuple[str, int]]]] = {}
        """Of each group: the kind, and the rows, or the segment and page where they are."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows of any groups."""
        if not batch.num_rows:
            return
        if self._held and self._held + batch.nbytes > self._limit:
            self._settle(to_disk=True)
        self._waiting.append(batch)
        self._held += batch.nbytes
        self.peak = max(self.peak, 2 * self._held)

    def groups(self) -> list[int]:
        """Those that have rows, in their order; all rows have come."""
        self._settle(to_disk=self._store is not None)
        return sorted(self._pieces)

    def of(self, group: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """A group's rows, each piece of one kind; they are gone then."""
        for kind, where in self._pieces.pop(group):
            if isinstance(where, pa.RecordBatch):
                yield kind, where
            else:
                yield kind, self._segments[where[0]].read_page(where[1])
                self._segments[where[0]].release(where[1])

    def close(self) -> None:
        """Let go of everything."""
        self._waiting, self._pieces, self._segments = [], {}, {}
        if self._store is not None:
            self._store.close()

    def _settle(self, to_disk: bool) -> None:
        """Put the rows at hand into the order of their tags."""
        if not self._waiting:
            return
        whole = put_together(self._waiting)
        assert whole is not None, "types that Spark hands to Python can be put together"
        self._waiting, self._held = [], 0
        tags: Int32 = whole.column(0).to_numpy()
        order = np.argsort(tags, kind="stable")
        bounds = np.flatnonzero(np.diff(tags[order], prepend=-1, append=-1))
        ordered = whole.take(pa.array(order))
        spans = [(int(tags[order[start]]), start, end) for start, end in pairwise(bounds.tolist())]
        if to_disk:
            self._write(ordered, spans)
        else:
            for tag, start, end in spans:
                self._note(tag, ordered.slice(start, end - start))

    def _write(self, ordered: pa.RecordBatch, spans: list[tuple[int, int, int]]) -> None:
        if self._store is None:
            self._store = self._scratch()
        name = f"slot-{len(self._segments)}"
        page = 0
        with SegmentWriter(self._store, name, ordered.schema) as writer:
            for tag, start, end in spans:
                for first in range(start, end, _PAGE_ROWS):
                    writer.write_page(ordered.slice(first, min(_PAGE_ROWS, end - first)))
                    self._note(tag, (name, page))
                    page += 1
            self._segments[name] = writer.seal()

    def _note(self, tag: int, where: pa.RecordBatch | tuple[str, int]) -> None:
        self._pieces.setdefault(tag // self._kinds, []).append((tag % self._kinds, where))


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
    """The function of `mapInArrow` of a parallel join."""

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
        describe = partial(task.factory.described, "parallel_join")
        owner = Owner(task.factory.fingerprint, task.groups, query, "groups", task.factory.spec.tick, describe)
        self._directory = StateDirectory(place, owner, batch, task.retain, task.cache_bytes)
        self._files = RoutingFiles(self._directory)
        self._routing = self._files.current()
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
        if self._routing is not None:
            lag = max(0.0, self._began[0] - self._routing.settled)
            self._files.tell(SlotLoad(self._slot, seconds, self._loads, self._directory.batch.number, lag))
        yield figures_row(self._task.factory.output, self._told(seconds))

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
        if self._routing is None:
            return
        turn = self._directory.batch.number
        # Rows that come out alone are waited for; what has expired, nobody asks for.
        every = 1 if self._task.factory.waits_for_time else _LOOK_EVERY
        for number in sorted(set(self._routing.groups_of(self._slot)) - set(self._loads)):
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
        """The figures of `FIGURES`, and delays."""
        delays = self._delays.counts if self._task.times else ()
        usual = replace(self._figures, task_ms=round(seconds * 1000), delays=delays).as_list()
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


_FROM_EACH_PIECE = 256
_MOST = 4096
"""Of each side: with more, every second one goes."""


class KeySample:
    """The hashes of some rows' keys, by side.

    >>> sample = KeySample()
    >>> for side in (0, 1):
    ...     sample.add(side, np.array([7, 7, 7, 1 + side], np.int32))
    >>> top = sample.top([40, 40], results=9000)
    >>> top.key, round(top.share, 3), top.rows
    (7, 0.998, (30, 30))
    """

    def __init__(self) -> None:
        self._drawn: list[list[Int32]] = [[], []]

    def add(self, side: int, keys: Int32) -> None:
        """Draw from some rows of a side."""
        drawn = self._drawn[side]
        drawn.append(keys[:: -(-len(keys) // _FROM_EACH_PIECE)].copy())
        if sum(map(len, drawn)) > _MOST:
            drawn[:] = [np.concatenate(drawn)[::2]]

    def top(self, rows: Sequence[int], results: int) -> TopKey | None:
        """The heaviest key, if so many rows of each side led to so many results; None without rows."""
        if not sum(rows):
            return None
        counts = []
        keys = np.unique(np.concatenate([part for drawn in self._drawn for part in drawn]))
        for side, drawn in enumerate(self._drawn):
            places = np.searchsorted(keys, np.concatenate(drawn)) if drawn else np.zeros(0, np.int64)
            found = np.bincount(places, minlength=len(keys))
            counts.append(found * (rows[side] / max(1, len(places))))
        pairs = counts[0] * counts[1]
        of_rows = (counts[0] + counts[1]) / sum(rows)
        of_pairs = pairs / max(1.0, float(pairs.sum()))
        # A row that comes and a result that is found take about the same time.
        shares = (of_rows * sum(rows) + of_pairs * results) / (sum(rows) + results)
        best = int(np.argmax(shares))
        return TopKey(int(keys[best]), float(shares[best]), (int(counts[0][best]), int(counts[1][best])))
