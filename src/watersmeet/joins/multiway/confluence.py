"""Confluence of several inputs: debts to the disk are settled by merging sorted hashes, while rows still arrive.

Our own join. See `ManyConfluence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Snapshot, Step
from watersmeet.core.report import Report
from watersmeet.engine.merging import MergeTask
from watersmeet.engine.multi_arrival import Arrival
from watersmeet.engine.multi_sizing import ManySizing
from watersmeet.engine.multiway import MultiwayJoin
from watersmeet.engine.owed_since import OwedSince
from watersmeet.engine.room_first import RoomFirst
from watersmeet.engine.sizing import Grain
from watersmeet.engine.snapshot import check_snapshot
from watersmeet.joins.multiway.expiry import Expiry
from watersmeet.joins.multiway.flushing import LEAST_SETS, RUN_BYTES, Flushing
from watersmeet.joins.multiway.many_settlement import ManySettlement
from watersmeet.joins.multiway.preserved import AloneTask, Preserved, PreservedArrival
from watersmeet.matching.found_combinations import TABLE, Together
from watersmeet.matching.many_rows import MOST_RESIDENT, ManyRows
from watersmeet.matching.multi_windows import Reached, SettledFilter
from watersmeet.matching.owing import Slice
from watersmeet.matching.reading import Pages
from watersmeet.policies.probing import SteadyOrder
from watersmeet.policies.settling import Settling
from watersmeet.records.intake import Received
from watersmeet.records.plan import RowPlan
from watersmeet.runs.matched_bits import LEAST_BYTES
from watersmeet.runs.run_set import RunSet, RunSets
from watersmeet.runs.sorted_run import OpenRun, SortedRun
from watersmeet.runs.stretches import GatheringRoom
from watersmeet.spill.store import Store
from watersmeet.tables.hash_table import Layout, row_bytes
from watersmeet.tables.memtables import ManyMemtable, ManyWindowMemtable, hash_columns

_BUFFER_SHARE = 32
_FLOOR = 6 << 20
_MOST_BLOCK = 256 << 10
"""Bytes of rows of a run that share a description and a checksum, and are written at once."""
_LEAST_PLACES = 32
_MOST_PLACES = 1 << 15
_MOST_ARRIVING = 2 << 20
_HASHES_A_PASS = 16
"""That may be gone through for each row that settles, over the number of inputs."""
_LEAST_BLOCK_ROWS = 8
_MOST_BLOCK_ROWS = 4096
_BLOCKS = 128
"""Into so many blocks memory is divided, or more."""
_SAMPLED = 256
"""Combinations, of those found at a time, of which it is told how long they waited: they stand for all."""


class ManyConfluence(RoomFirst, MultiwayJoin):
    """Every row that arrives meets the memory of all other inputs at once, and owes what they have on disk.

    It is `Confluence` for several inputs. Rows are kept as they came, with an index for each join attribute. When
    memory is full, all of it is written, sorted, once for each attribute; what arrives afterwards owes what is there::

        arrival ──▶ memtable r ──▶ looked up in the memtables of s, t, ... ──▶ combinations at once
                      │ full, silence, delay, or many owe
                      ▼
                    settle: owing rows of r, sorted, merged with the runs of s; what matches, sorted again, with
                      │     those of t, ...; then those of s, and of t ──▶ combinations
                      │ full
                      ▼
                    flush: all memtables become runs, for each attribute in the order of its hashes

    A combination is found in memory, if all its rows were there at once, or else when the last of its rows settle:
    once, without a history of what has met what (`many_settlement` has the argument). The order in which the other
    inputs are looked up is MJoin's: the one whose rows match least comes first.

    Rows settle before memory is flushed; and sooner, as soon as they are so many that going through the hashes on disk
    pays for itself (`policies.settling`), in idle time, in silences, and, with `delay`, when the oldest has owed for so
    long. Where memory is so small that a memory-full is not worth a pass over the disk, rows are written as they are,
    and settle later, with others. Rows that wait for nothing but inputs that have ended are not kept once they have
    settled.

    Where one input is preserved, there is a bit for each of its rows, by its number (`preserved`). Once the others have
    ended and nothing is owed any more, its rows that are in no result come out.

    With windows, rows are forgotten when they have expired, in memory and on disk (`expiry`).

    :param delay: how long a combination may wait after its last row came, `"1 s"` or seconds; None: for the next
        settlement, whenever it is.
    :param settling: when rows settle, and when they wait for others.
    :param pages: what a page of a run holds, for experiments that charge each page that is read, and each seek.
        Without, work on the disk is counted by bytes.
    :param fan_in: so many runs become one; None: by the memory.
    :param floor: bytes that the buffers through which rows and combinations pass have in all, whatever the budget: a
        few hundred at a time take about as long as some thousands. What a sixteenth of the budget for each kind of
        buffer does not cover comes on top of it. 0: everything is within it.
    :param open_run: opens a run that a snapshot names, for those who have some open; unless given, from the store.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import Arrive, End, Status
    >>> from watersmeet.spill.store import MemoryStore
    >>> schema = pa.schema({"a": pa.int64(), "note": pa.string()})
    >>> spec = MultiSpec.of({name: schema for name in "rst"}, ["r.a = s.a", "s.a = t.a"])
    >>> join = ManyConfluence(spec, ManyConfluence.least_memory(spec), MemoryStore())
    >>> rows, notes = 0, [str(i) * 500 for i in range(100)]
    >>> for number in range(3):
    ...     join.receive(Arrive(number, pa.record_batch({"a": range(30 * number, 30 * number + 100), "note": notes})))
    ...     join.receive(End(number))
    ...     while (step := join.poll(0.0, fuel=1000)).status is Status.HAS_OUTPUT:
    ...         rows += step.out.num_rows if step.out else 0
    >>> rows, join.cost.pages_written > 0, step.status.value
    (40, True, 'done')
    """

    name: ClassVar[str] = "confluence"
    SAVED: ClassVar[tuple[str, ...]] = ("settled", "full", "_idle_share", "expiry")
    preserves: ClassVar[bool] = True
    settles_windows: ClassVar[bool] = True
    tables: tuple[ManyMemtable, ...]  # type: ignore[assignment]
    disks: tuple[RunSets, ...]  # type: ignore[assignment]
    inputs: tuple[ManyRows, ...]  # type: ignore[assignment]

    def __init__(
        self,
        spec: MultiSpec,
        memory: int,
        store: Store,
        *,
        delay: float | str | timedelta | None = None,
        settling: Settling | None = None,
        pages: Pages | None = None,
        fan_in: int | None = None,
        floor: int = _FLOOR,
        grain: Grain | None = None,
        open_run: OpenRun | None = None,
    ) -> None:
        self.refuse_too_little(spec, memory)
        self._floor = floor
        self._open_run = open_run or partial(SortedRun, store)
        self.pages = pages
        super().__init__(spec, memory, store, order=SteadyOrder(spec), grain=grain)
        if floor:
            room = GatheringRoom(self.sizing.output_bytes)
            for each in self.inputs:
                each.resident.room = room
        self.combinations.gather_together = Together(self.inputs, [plan.outputs for plan in self.plans]).gather
        self.slice = Slice(self.sizing.combinations)
        """Through which rows go that settle, or are written."""
        share = memory // _BUFFER_SHARE
        block_bytes = max(self.sizing.page_bytes, min(_MOST_BLOCK, max(share, floor // 12)))
        self.beyond = self.sizing.beyond
        for name, size in (("sorting", Slice.bytes_for(len(self.slice.rows))), ("writing", block_bytes)):
            counted = min(size, share) if floor else size
            self.budget.reservation(name).grow(counted)
            self.beyond += size - counted
        self.flushing = Flushing(self, memory, fan_in, block_bytes)
        # Each settlement goes through what is on disk once for every two inputs: so more rows wait for each other.
        hashes = max(1, _HASHES_A_PASS // len(spec.names))
        self._policy = settling or Settling(hashes_per_row=hashes, passes_saved=hashes)
        self.owed_since = OwedSince(delay, counts=1)
        """When rows came that owe, by their ticks, and how long they may; all of them settle at once."""
        self.settled = [0 for _ in spec.names]
        """Rows of each memtable with smaller numbers have settled."""
        self.settling: ManySettlement | None = None
        """The settlement that has begun; if it gave way to arrivals, it goes on later."""
        self._idle_share = self._policy.idle_hashes_per_row
        """Hashes that a row may go through in idle time."""
        self._idle = False
        """Whether this poll found nothing to do."""
        self.batch_ends = False
        """Whether all rows are to settle and leave memory."""
        self.preserved = Preserved(self, memory) if spec.preserved is not None else None
        """Which rows of the preserved input are in results, if there is one."""
        self.expiry = None if self.windows is None else Expiry(self, self.windows)
        """What has left its window, if there are windows."""

    # --- what rows are kept in ---

    @classmethod
    def least_memory(cls, spec: MultiSpec, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        runs = sum(map(len, spec.attributes))
        bits = 2 * LEAST_BYTES if spec.preserved is not None else 0
        return super().least_memory(spec) + LEAST_SETS * runs * RUN_BYTES + bits

    @classmethod
    def _row_bytes(cls, spec: MultiSpec, plans: Sequence[RowPlan]) -> list[int]:
        return [
            row_bytes([*plan.types, *([pa.int64()] * len(each) if len(each) > 1 else [])]) + 32 * len(each)
            for plan, each in zip(plans, spec.attributes, strict=True)
        ]

    def _make_sizing(self, memory: int) -> ManySizing:
        """Many at a time go through settlements, and results go out in batches of a useful size."""
        usual = super()._make_sizing(memory)
        inputs, share = len(self.plans), memory // _BUFFER_SHARE
        # At each level rows, hashes and buckets of them; then what is found at the deepest, and what is sorted.
        place = 4 * inputs * (inputs - 1) + 32 * (inputs - 1) + 40 * inputs + 32
        fitting = max(_LEAST_PLACES, min(_MOST_PLACES, max(2 * share, 2 * self._floor // 3) // place))
        places = self._grain.pairs or fitting
        output = max(usual.output_bytes, self._floor // 6)
        # Rows that arrive are not copied: of theirs, only hashes and numbers are held until they are in a memtable.
        arriving = max(usual.input_bytes, min(_MOST_ARRIVING, memory // 8)) if self._floor else usual.input_bytes
        beyond = output - usual.output_bytes + inputs * (arriving - usual.input_bytes)
        if self._floor:
            beyond += max(0, places * place - 2 * share) + output  # for strings of runs
        fitting = memory // _BLOCKS // max(self._row_bytes(self.spec, self.plans))
        block_rows = 1 << (max(_LEAST_BLOCK_ROWS, min(_MOST_BLOCK_ROWS, fitting)).bit_length() - 1)
        return replace(
            usual, combinations=places, place_bytes=place, run_rows=0, output_bytes=output, input_bytes=arriving,
            layout=Layout(0, block_rows, usual.layout.chunk_bytes), beyond=beyond,
        )  # fmt: skip

    def _make_table(self, number: int) -> Any:
        attributes = len(self.spec.attributes[number])
        return (ManyMemtable if self.spec.window is None else ManyWindowMemtable)(
            self.plans[number].types, attributes, self.budget, self.sizing.layout, self.spec.names[number]
        )  # fmt: skip

    def _make_disk(self, number: int) -> RunSets:
        return RunSets(self._open_run, self.tables[number].types)

    def _make_input(self, number: int) -> ManyRows:
        return ManyRows(self.tables[number], self.disks[number])

    def hash_columns(self, hashes: Sequence[Int64]) -> list[pa.Array]:
        """The columns that carry rows' hashes beside what the plan keeps of them."""
        return hash_columns(hashes)

    # --- the protocol ---

    def poll(self, now: float, fuel: int) -> Step:
        """Work a little, and hand out at most one batch."""
        self._idle = self._task is None and not self.found.waiting and not self._arrivals_wait
        return super().poll(now, fuel)

    def wake_at(self) -> float | None:
        """When the oldest row that owes something has owed it for as long as it may, or an input that says nothing no
        longer holds back the others; at once, if idle time pays.
        """
        if isinstance(self._task, ManySettlement) or self._idling_pays():
            return self.now
        wanted = self.owed_since.wake_at([0]) if self.tables and self.owes else None, super().wake_at()
        return min((at for at in wanted if at is not None), default=None)

    def report(self) -> Report:
        """How late results were, and how many rows have yet to settle."""
        report, late = super().report(), self.owed_since
        if self.windows is not None:
            delays = self.windows.delays.plus(late.lateness)
            report = replace(report, window=self.windows.figures(self.window_rows, delays))
        if not self.flushing.on_disk and not late.longest:
            return report
        return replace(report, lateness=late.figures(self.owing if self.tables else 0))

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        for settled, table in zip(self.settled, self.tables, strict=True):
            assert 0 <= settled <= table.rows
        self.flushing.check()
        if self.expiry is not None:
            self.expiry.check()

    def close(self) -> None:
        """Let go of everything."""
        if isinstance(self._task, MergeTask) and not self._task.done:
            self._task.merge.abort()
        self.settling = None
        super().close()

    @property
    def runs(self) -> list[list[SortedRun]]:
        """Those of each input, in the order of one of its attributes."""
        return [[each.runs[0] for each in disk.sets] for disk in self.disks]

    # --- who owes ---

    @property
    def owes(self) -> bool:
        """Whether rows have yet to meet what is on disk."""
        return self.owing > 0

    @property
    def owing(self) -> int:
        """How many rows have."""
        if not self.flushing.on_disk:
            return 0
        owing = self.flushing.owing_on_disk - sum(self.settled)
        for table in self.tables:
            owing += table.rows
        return owing

    def _arrival(self, number: int, batch: pa.RecordBatch, numbers: Int64) -> Arrival:
        if number == self.spec.preserved:
            return PreservedArrival(self, number, batch, numbers)
        return super()._arrival(number, batch, numbers)

    def rows_kept(self, side: int, parts: Int32) -> None:
        """Note when rows came, which may have to wait."""
        if self.flushing.on_disk:
            self.owed_since.came[0].add(self.clock, self.now)

    def settled_filter(self) -> SettledFilter | None:
        """What else combinations of rows that settle must fulfil: they must be in all windows. None: nothing."""
        return None if self.windows is None else SettledFilter(self.windows.clock, self.inputs)

    def is_of_no_use(self, number: int) -> bool:
        """Whether an input's rows, once they have settled, wait for nobody."""
        return all(self.exhausted(other) for other in range(len(self.disks)) if other != number)

    def _alone_task(self) -> AloneTask | None:
        return None if self.preserved is None else self.preserved.task()

    # --- work ---

    def _make_room(self) -> bool:
        return False

    def _is_due(self, number: int = 0) -> bool:
        """Whether rows should settle before more arrive."""
        owing = self.owing
        if not owing:
            return False
        return self._is_overdue() or self._policy.is_worth_it(owing, self.flushing.on_disk)

    def _is_overdue(self) -> bool:
        """Whether the oldest row that owes has owed for as long as it may."""
        return self.owed_since.is_overdue(0, self.now)

    def _next_task(self) -> Any:
        task = self._urgent_task() or super()._next_task()
        if task is None and self._idle and self._idling_pays():
            return self._reactive_task()
        return task

    def _idling_pays(self) -> bool:
        """Whether rows that owe are enough to settle while there is nothing else to do."""
        if not self.tables or self._done:
            return False
        owing = self.owing
        return owing > 0 and owing * self._idle_share >= self.flushing.on_disk

    def _urgent_task(self) -> Any:
        if self.batch_ends and not self._arrivals_wait:
            return self._end_of_batch()
        if self._is_due():
            return self._settle_task("by delay" if self._is_overdue() else "in passing", urgent=True)
        if not all(self._ended):
            alone = self._alone_task()
            if alone is not None:
                return alone
        if self.flushing.changed and self.settling is None:
            task = self.flushing.merge_task()
            if task is not None:
                return task
        if self.full and self.expiry is not None and self.expiry.make_room():
            self.full = False
        if self.full:
            if self.owes and not self._may_leave_owing():
                return self._settle_task("before a flush", urgent=True)
            alone = self._alone_task()
            if alone is not None:
                return alone
            self.flushing.flush()
            self.full = False
            return self._urgent_task()
        return None

    def _has_urgent_work(self) -> bool:
        if self.full or self.batch_ends or self._is_due() or (self.preserved is not None and self.preserved.has_come()):
            return True
        if self._task is not None and self._is_urgent(self._task):
            return True
        runs = self.flushing
        return runs.changed and self.settling is None and any(map(runs.to_merge, range(len(self.disks))))

    def _is_urgent(self, task: Any) -> bool:
        return isinstance(task, MergeTask | AloneTask) or (isinstance(task, ManySettlement) and task.urgent)

    def _give_way(self, task: Any) -> None:
        if isinstance(task, ManySettlement) and task.waiting:
            task.put_into_buffer()
        self._task = None  # what was found stays so, and the rest goes on later

    def _can_react(self) -> bool:
        return self.owes

    def _reactive_task(self) -> Any:
        return self._settle_task("in a silence" if self._stalled else "in idle time") if self.owes else None

    def _clean_up_task(self) -> Any:
        return self._settle_task("at the end") if self.owes else self._alone_task()

    def end_batch(self) -> None:
        """All rows of a batch have come: let them settle and leave memory, which the next polls do.

        A snapshot then lists runs and holds no row, and whoever goes on from it reads nothing.
        """
        self.batch_ends = True

    def _end_of_batch(self) -> Any:
        task = self._settle_task("at the end of a batch", urgent=True) if self.owes else self._alone_task()
        if task is not None:
            return task
        if any(table.rows for table in self.tables):
            self.flushing.flush()
        self.flushing.forget_useless()
        merge = self.flushing.merge_task()
        self.batch_ends = merge is not None
        return merge

    # --- windows ---

    def window_of(self, number: int) -> int | None:
        """How long rows of an input are remembered; None: to the end."""
        return None if self.windows is None else self.windows.clock.spans[number]

    def expired_before(self, number: int) -> int:
        """Rows of an input that are older than this meet nothing that is still to come, or that owes."""
        assert self.expiry is not None
        return self.expiry.expired_before(number)

    def expire(self) -> bool:
        """Let go of what has expired: of rows in memory if they are many, and of runs."""
        return self.expiry is not None and self.expiry.expire()

    @property
    def merges(self) -> bool:
        """Whether runs are becoming one."""
        return isinstance(self._task, MergeTask)

    @property
    def is_busy(self) -> bool:
        """Whether something is at hand, or rows wait."""
        return self._task is not None or self._arrivals_wait

    def put_away(self) -> None:
        """Between two batches: with windows, all rows that owe nothing become runs."""
        if self.expiry is not None:
            self.expiry.put_away()

    # --- settling ---

    def _settle_task(self, why: str, urgent: bool = False) -> ManySettlement:
        """Go on with the settlement, or begin one of all rows that owe."""
        if self.settling is None:
            if self.expiry is not None:
                self.expiry.settlement_begins()
            self.settling = ManySettlement(self, self.settled, [table.rows for table in self.tables], urgent)
            self.events[f"settled {why}"] += 1
            self.events["runs settled"] += sum(disk.owing for disk in self.disks)
        self.settling.urgent = urgent
        return self.settling

    def settled_now(self, settlement: ManySettlement) -> None:
        """All rows that owed when a settlement began have met everything."""
        self.settling = None
        self.flushing.changed = True
        self.settled = list(settlement.highs)
        self.owed_since.came[0].forget(settlement.began)
        self.flushing.owing_on_disk = 0
        for disk in self.disks:
            disk.settle()
        self._idle_share = self._policy.idle_share(self._idle_share, self._idling_pays())
        if self.expiry is not None:
            self.expiry.settled()

    def note_settled(self, ids: Int64) -> None:
        """These combinations were found by rows that settle: count how long the last rows of some of them have waited.

        It is in memory, if any is, and else on disk: nobody noted when which of those came, but when the first did.
        """
        first, count = self.owed_since.first(0), ids.shape[1]
        if first is None or not count:
            return
        some = ids[:, :: -(-count // _SAMPLED)]
        last = np.full(some.shape[1], first)
        for table, own in zip(self.tables, some, strict=True):
            places = np.flatnonzero(own >> 32 == TABLE)
            times = self.owed_since.came[0].times(table.ticks(own[places].astype(np.int32)))
            assert times is not None
            last[places] = np.maximum(last[places], times)
        self.owed_since.note(self.now - last, -(-count // len(last)))

    def let_go(self) -> None:
        """Let mapped pages of runs leave memory, once they are many."""
        each = [rows.resident for rows in self.inputs]
        while sum(resident.nbytes for resident in each) > MOST_RESIDENT:
            max(each, key=lambda resident: resident.nbytes).let_go()

    def _may_leave_owing(self) -> bool:
        """Whether all memtables may be written before their rows have settled: if that pays, and none has."""
        if self.settling is not None or any(self.settled) or any(map(self.is_of_no_use, range(len(self.disks)))):
            return False
        most = min(self._policy.most_runs, self.budget.total // (8 * RUN_BYTES * self.flushing.runs_a_flush))
        if max(disk.owing for disk in self.disks) >= most:
            return False
        return self._policy.can_wait(self.owing, self.flushing.on_disk)

    # --- runs of others ---

    def adopt(self, number: int, sets: Sequence[RunSet], named: int) -> None:
        """Take over sets of runs of an input that others of this join have put away; they owe nothing.

        `named`: the numbers up to this one are taken in names of segments.
        """
        # As where runs are its own: levels fall, and with windows, which merge what is close in time, times rise.
        self.disks[number].sets += sorted(sets, key=lambda each: (each.span.latest, -each.level))
        self.flushing.written = max(self.flushing.written, named)
        self.flushing.count()

    def know(self, ended: Sequence[bool], widest: Sequence[int]) -> None:
        """Which inputs have ended, and how wide rows are, as others of this join know whose runs were taken over."""
        self._ended, self._closed = list(ended), list(ended)
        for number, size in enumerate(widest):
            self._allow_widest(number, max(size, self.found.widest[number]))

    def know_times(self, at: Reached, late: Sequence[int]) -> None:
        """With windows: how far the inputs have come, and which had late rows, as others of this join know.

        Rows to come are numbered behind those that were given to any of the others, so that they count as later ones.
        """
        assert self.expiry is not None
        self.timed.clock.take_over(at, late)
        for intake, rows in zip(self._intakes, at.rows, strict=True):
            intake.numbered = rows
        self.expiry.since = self.expiry.began = self.timed.clock.at

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        """The state as of now; without rows in memory, it can be gone on from with any budget."""
        taken = super().snapshot()
        if any(table.rows for table in self.tables) or self.is_busy:
            return taken
        return replace(taken, state={**taken.state, "memory": self.least_memory(self.spec)})

    @classmethod
    def restore(cls, spec: MultiSpec, snapshot: Snapshot, memory: int, store: Store, **options: Any) -> Self:
        """An operator that goes on where the snapshot was taken."""
        check_snapshot(cls.name, spec.fingerprint, snapshot, memory)
        state = snapshot.state
        at_rest = state["task"] is None and state["settling"] is None
        # A settlement goes on with slices as large as before.
        join = cls(spec, memory if at_rest else state["memory"], store, **options)
        join._load(snapshot)
        return join

    def _own_segments(self) -> list[str]:
        return [] if self.preserved is None else self.preserved.save()

    def _own_state(self) -> dict[str, Any]:
        aside = self.settling if self.settling is not self._task else None
        waiting = self.combinations.waiting if self._task is None else 0  # it has just given way
        return {
            **self.declared_state(),
            "matched": None if self.preserved is None else self.preserved.saved,
            "epoch": self.flushing.epoch,
            "settling": None if aside is None else aside.state(waiting),
            "written": self.flushing.written,
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        super()._load_own(state)
        self.flushing.epoch, self.flushing.written = state["epoch"], state["written"]
        if self.preserved is not None:
            self.preserved.load(state["matched"])
        self.flushing.count()

    def _load_tasks(self, state: dict[str, Any], waiting: list[list[Received]]) -> None:
        if state["settling"] is not None:
            self.settling = ManySettlement.load(self, state["settling"])
        if state["task"] is None or state["task"]["kind"] != "merge":
            super()._load_tasks(state, waiting)

    def _load_task(self, state: dict[str, Any]) -> Any:
        if state["kind"] == "alone":
            assert self.preserved is not None
            return AloneTask(self, self.preserved, state["part"], *state["place"])
        self.settling = ManySettlement.load(self, state)
        return self.settling
