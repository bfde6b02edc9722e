"""What Confluence decides: when rows settle, when they leave memory, and what comes before what. See `Confluence`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.kinds import KINDS
from watersmeet.core.protocol import Arrive, Event, Punctuate, Snapshot, Step
from watersmeet.core.report import Report
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import NOWHERE, TimeSpan
from watersmeet.engine.arrival import Arrival, Task
from watersmeet.engine.merging import MergeTask
from watersmeet.engine.owed_since import OwedSince
from watersmeet.engine.room_first import RoomFirst
from watersmeet.engine.shell import Operator
from watersmeet.engine.sizing import Grain, Sizing
from watersmeet.engine.tracked_arrival import TrackedArrival
from watersmeet.joins.confluence.alone import Alone
from watersmeet.joins.confluence.catalogue import RUN_BYTES, Catalogue, load_own_state, own_state
from watersmeet.joins.confluence.flushing import Flushing
from watersmeet.joins.confluence.settlements import Settlements, SettlementTask
from watersmeet.joins.confluence.workspace import FLOOR, MOST_SLICE, Workspace, divided
from watersmeet.matching.debts import Debts, RunEntry
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.matching.lookup import Condition, Lookup
from watersmeet.matching.matched import Matched
from watersmeet.matching.range_lookup import ChainedLookup, RangeLookup, RangePlan
from watersmeet.matching.reach import BandKeys, keys_of
from watersmeet.matching.reading import Pages
from watersmeet.matching.settlement import Settlement
from watersmeet.matching.time_keys import TimeReach
from watersmeet.matching.unmatched import UnmatchedTask
from watersmeet.policies.keeping import Keeping
from watersmeet.policies.settling import Settling
from watersmeet.records.addressed import AddressedRows
from watersmeet.records.intake import Received
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan
from watersmeet.runs.matched_bits import LEAST_BYTES
from watersmeet.runs.sorted_run import OpenRun, SortedRun
from watersmeet.spill.store import Store
from watersmeet.tables.hash_table import Probe, row_bytes
from watersmeet.tables.memtable import Memtable
from watersmeet.tables.memtable_index import HashIndex, RangeIndex

if TYPE_CHECKING:
    from watersmeet.joins.confluence.foretold import Foretold

_LEAST_KNOWN = 4096
"""Bytes that there must be to remember promises in."""


class Confluence(RoomFirst, Operator):
    """Every row that arrives meets the other input's memory at once, and owes what that input has on disk.

    The joins of the literature shun the disk while rows arrive: rows that missed each other in memory wait for a
    silence, or for the end. But what is on disk can be sorted by hash, with the hashes apart from the rows; and a
    memory-full of rows that owe, sorted too, is then merged with all of it in one pass over a tenth of its bytes::

        arrival ──▶ memtable L ──▶ looked up in memtable R ──▶ pairs at once
                      │ full, silence, delay, or many owe
                      ▼
                    settle: owing rows, sorted, merged with the hashes of R's runs ──▶ pairs
                      │ full
                      ▼
                    flush: the memtable, read off its index in sorted order, becomes a run of L

    Each pair is found in memory, if both rows are there when the later one comes, or else when the later one settles:
    once, without a history of what has met what (`matching.settlement` has the argument). Runs are merged as they
    become too many (`runs.spine`), so what must be remembered of them does not grow.

    Rows settle before memory is flushed; and sooner, as soon as they are so many that going through the other input's
    hashes pays for itself (`policies.settling`), in silences, and, with `delay`, when the oldest has owed for so long.
    Where memory is so small that a memory-full is not worth a pass over the disk, rows are written as they are, and
    their runs owe: several of them settle together. Rows that wait for nothing but an input that has ended are not kept
    once they have settled.

    Where rows without a partner matter (`how`), each row of that input has a mark, which goes with it wherever it goes
    (`matching.matched`). Once the other input has ended and nothing is owed any more, those without a mark come out.

    With a band, rows are sorted by their values in place of hashes, or by half a hash and the value if there are
    equalities beside it; and a row looks for all keys from one to another (`matching.reach`). Points that are near each
    other lie in the same strip of a grid or in neighbours, and a row asks under the keys of each.

    :param settling: when rows settle, and when they wait for others.
    :param keeping: whether some rows stay in memory when others leave it, where they are asked for much more often
        (`policies.keeping`).
    :param pages: what a page of a run holds, for experiments that charge each page that is read, and each seek; rows of
        one hash then meet a run page by page. Without, work on the disk is counted by bytes.
    :param fan_in: so many runs become one; None: by the memory.
    :param floor: bytes that the buffers through which rows and results pass have in all, whatever the budget: a batch
        of some hundred rows costs about as much as one of some thousands; about as much comes on top for what is read
        of runs, strings, blocks and hashes. What a sixteenth of the budget for each of them does not cover is beyond
        it. 0: everything is within the budget.
    :param delay: how long a pair may wait after its later row came, `"1 s"` or seconds; None: for the next settlement,
        whenever it is.
    :param most_slice: rows that are sorted and settle at a time, at most; memory may allow fewer.
    :param most_mapped: bytes of runs that may stay mapped, and count as the process's own; None: few, and none once
        rows have settled.
    :param open_run: opens a run that a snapshot names, for those who have some open; unless given, from the store.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import Arrive, End, Status
    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.spill.store import MemoryStore
    >>> schema = pa.schema({"id": pa.int64(), "note": pa.string()})
    >>> spec = JoinSpec(schema, schema, parse_on("id"))
    >>> join = Confluence(spec, Confluence.least_memory(spec), MemoryStore())
    >>> rows, notes = 0, [str(i) * 500 for i in range(100)]
    >>> for side, ids in ((0, range(100)), (1, range(90, 190))):
    ...     join.receive(Arrive(side, pa.record_batch({"id": list(ids), "note": notes}, schema)))
    ...     join.receive(End(side))
    ...     while (step := join.poll(0.0, fuel=1000)).status is Status.HAS_OUTPUT:
    ...         rows += step.out.num_rows if step.out else 0
    >>> rows, join.cost.pages_written > 0, step.status.value
    (10, True, 'done')
    """

    name: ClassVar[str] = "confluence"
    partitioned: ClassVar[bool] = False
    joins_ranges: ClassVar[bool] = True
    joins_points: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = tuple(KINDS)
    least_runs: ClassVar[int] = 16
    """That there is always memory to remember."""
    tables: tuple[Memtable, ...]

    def __init__(
        self,
        spec: JoinSpec,
        memory: int,
        store: Store,
        *,
        delay: float | str | timedelta | None = None,
        settling: Settling | None = None,
        keeping: bool = True,
        pages: Pages | None = None,
        fan_in: int | None = None,
        floor: int = FLOOR,
        grain: Grain | None = None,
        most_slice: int = MOST_SLICE,
        most_mapped: int | None = None,
        open_run: OpenRun | None = None,
    ) -> None:
        self._floor = floor
        super().__init__(spec, memory, store, grain)
        self._least = self.least_memory(spec)
        self.workspace = Workspace(
            self.budget, memory, self.sizing, floor=floor, most_slice=most_slice,
            by_range=isinstance(self.codec, BandKeys), copies_strings=most_mapped is None,
        )  # fmt: skip
        self.beyond = self.workspace.beyond
        for table in self.tables:
            if isinstance(table.index, HashIndex):
                table.index.scratch = self.workspace.slice.scratch
        self.debts = self._make_debts()
        """Who owes what to whom."""
        self.catalogue = Catalogue(self, memory, fan_in, grain, pages)
        self.keeping = self._make_keeping() if keeping else None
        """Which rows had better stay in memory when others leave it; None: none of them."""
        self.owed_since = OwedSince(delay, counts=2)
        """When rows of each side came that owe, and how long they may."""
        self.settlements = Settlements(self, pages, most_mapped, self.owed_since)
        self.flushing = Flushing(self)
        self.alone = self._make_alone()
        self.matched: Matched | None = None
        """Who has found a partner; None if only pairs matter."""
        if any(spec.kind.tracked):
            self.pairs.matched = self.matched = self.catalogue.track(memory)
        self.foretold: Foretold | None = None
        """What inputs promise of their keys; None: nothing that is of any use here."""
        if not self.windowed and spec.foretells:
            from watersmeet.joins.confluence.foretold import Foretold

            self.foretold = Foretold(self, self.budget)
            self.takes_punctuations = True
        self._open_run = open_run or partial(SortedRun, store)
        self._policy = settling or Settling()
        self.idle_share = self._policy.idle_hashes_per_row
        """Hashes that a row may go through in idle time."""
        self._idle = False
        """Whether this poll found nothing to do."""
        self.batch_ends = False
        """Whether all rows are to settle and to leave memory."""

    # --- what rows are kept in ---

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        more = 2 * LEAST_BYTES * any(spec.kind.tracked) + (_LEAST_KNOWN if spec.foretells else 0)
        return 2 * cls._least_for_rows(spec) + cls.least_runs * RUN_BYTES + more

    @classmethod
    def _least_for_rows(cls, spec: JoinSpec) -> int:
        if not spec.asks_for_close:
            return super()._least_for_rows(spec)
        codec = keys_of(spec)
        more = RangeIndex.row_bytes - HashIndex.row_bytes
        return Sizing.least([row_bytes(RangePlan(spec, side, codec).types) + more for side in (0, 1)])

    def _make_codec(self) -> KeyCodec:
        return keys_of(self.spec) if self.spec.asks_for_close else KeyCodec(self.spec)

    def _make_plans(self) -> tuple[RowPlan, RowPlan]:
        if not isinstance(self.codec, BandKeys):
            return super()._make_plans()
        return RangePlan(self.spec, 0, self.codec), RangePlan(self.spec, 1, self.codec)

    def _divide(self, memory: int, widths: list[int], partitioned: bool, grain: Grain | None) -> Sizing:
        return divided(super()._divide(memory, widths, partitioned, grain), memory, self._floor, grain)

    def _make_pairs(self) -> PairBuffer:
        return PairBuffer(self.spec, self.codec, self.plans, self.sizing.pairs, wide=True)

    def _make_table(self, side: int) -> Any:
        by_range, marked = self.spec.asks_for_close, self.spec.kind.tracked[side]
        name = self.spec.names[side]
        return Memtable(self.plans[side].types, self.budget, self.sizing.layout, name, by_range, marked=marked)

    def _make_debts(self) -> Debts:
        return Debts(self.tables)

    def _make_alone(self) -> Alone:
        return Alone(self)

    def _make_keeping(self) -> Keeping | None:
        """Where rows are found by hash, and there is enough memory to count what is asked for."""
        by_hash = not self.spec.asks_for_close and self.budget.total >= 2 * self._least
        return Keeping.within(self.budget) if by_hash else None

    # --- what the parts ask ---

    def reach(self, side: int) -> BandKeys | TimeReach | None:
        """Which sort keys rows of a side look for; None: their own."""
        return self.codec if isinstance(self.codec, BandKeys) else None

    def condition(self, side: int) -> Callable[[AddressedRows, Int64], Condition] | None:
        """What rows of a side that settle ask of others besides equal keys; None: nothing."""
        return None

    def span_of(self, side: int) -> TimeSpan:
        """From when until when the rows of a memtable are, where that matters."""
        return NOWHERE

    def is_last(self, side: int) -> bool:
        """Whether rows of a side that find nobody come out, and no more partners will come."""
        return self.spec.kind.preserved[side] and self.exhausted(1 - side)

    # --- the protocol ---

    def receive(self, event: Event) -> None:
        """Take note of an event."""
        if self.foretold is not None and isinstance(event, Punctuate):
            self._check_open(event.input)
            self.foretold.punctuated(event.input, event.pattern)
            return
        super().receive(event)
        if self.foretold is not None and isinstance(event, Arrive):
            self.foretold.rows_received(event.input, event.batch.num_rows)

    def poll(self, now: float, fuel: int) -> Step:
        """Work a little, and hand out at most one batch."""
        self._idle = self._task is None and not self.pairs.waiting and not self._arrivals_wait
        return super().poll(now, fuel)

    def wake_at(self) -> float | None:
        """When the oldest row that owes something has owed it for as long as it may; at once, if idle time pays."""
        if isinstance(self._task, SettlementTask) or self._idling_pays():
            return self.now
        return self.owed_since.wake_at([side for side in (0, 1) if self.debts.owes(side)])

    def report(self) -> Report:
        """How late pairs were, and how many rows have yet to settle."""
        return self.settlements.report()

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        self.catalogue.check(self._task)

    def close(self) -> None:
        """Let go of everything."""
        if isinstance(self._task, MergeTask) and not self._task.done:
            self._task.merge.abort()
        super().close()
        self.debts.close()
        self.settlements.begun = [None, None]

    @property
    def runs(self) -> list[list[SortedRun]]:
        """Those of each side, without pieces of merged ones that nobody meets yet."""
        return [[entry.run for entry in entries] for entries in self.debts.runs]

    # --- rows that arrive ---

    def _arrival(self, side: int, batch: pa.RecordBatch, numbers: Int64) -> Task | None:
        if self.foretold is not None:
            return self.foretold.arrival_kind(side)(self, side, batch, numbers)
        return (TrackedArrival if self.spec.kind.tracked[side] else Arrival)(self, side, batch, numbers)

    @property
    def _arrivals_wait(self) -> bool:
        return super()._arrivals_wait or (self.foretold is not None and self.foretold.waits)

    def _next_arrival(self) -> Task | None:
        if self.foretold is None:
            return super()._next_arrival()
        for side, intake in enumerate(self._intakes):
            most = self.foretold.before_mark(side, intake.rows)
            if intake.rows:
                return self._arrival(side, *intake.next(most))
            self._close_if_ended(side)
        return None

    def _input_closed(self, number: int) -> None:
        if self.foretold is not None:
            self.foretold.input_closed(number)

    def must_keep(self, side: int) -> bool:
        """Unless the other input has ended and has nothing on disk."""
        return not self.exhausted(1 - side) or bool(self.debts.runs[1 - side])

    def rows_kept(self, side: int, parts: Int32) -> None:
        """Note when rows came, which may have to wait."""
        if self.debts.runs[1 - side]:
            self.owed_since.came[side].add(self.tables[side].rows, self.now)

    def arrival_lookup(self, side: int, hashes: Int64, parts: Int32, columns: list[Any], source: Any) -> Lookup:
        """The look-up of rows that arrived on one side in the memtable of the other."""
        other, reach = self.tables[1 - side], self.reach(side)
        between = Between(side, source, other)
        if reach is None:
            return Lookup(Probe(hashes, other.buckets_of(hashes)), other, between)
        shifts = reach.shifts
        if shifts is None:
            return RangeLookup(reach.probe(hashes, columns), other, between)
        keys = hashes.view(np.uint64)

        def under(number: int) -> Lookup:
            return RangeLookup(reach.probe((keys + shifts[number]).view(np.int64), columns), other, between)

        return ChainedLookup(len(shifts), under)

    # --- when rows settle ---

    def _is_due(self, side: int) -> bool:
        """Whether rows of a side should settle before more arrive."""
        if not self.debts.owes(side):
            return False
        if self.owed_since.is_overdue(side, self.now):
            return True
        # A slow input's rows are few, and each owes a lot: what came of both inputs since makes up for a pass, too.
        arrived = self.clock - self.settlements.began_at[side]
        return self._policy.is_worth_it(max(self.debts.owing(side), arrived // 2), self.debts.hashes_owed(side))

    def _idling_pays(self) -> bool:
        """Whether rows that owe are enough to settle while there is nothing else to do."""
        return bool(self.tables) and not self._done and any(map(self._pays_in_idle_time, (0, 1)))

    def _pays_in_idle_time(self, side: int) -> bool:
        owing = self.debts.owing(side)
        return owing > 0 and owing * self.idle_share >= self.debts.hashes_owed(side)

    def _had_better_wait(self, side: int) -> bool:
        """Whether rows of a memtable should be written before they have settled, to settle together with others."""
        if any(map(self.exhausted, (0, 1))) or self.settlements.begun[side] is not None:
            return False
        most = min(self._policy.most_runs, self.budget.total // (32 * RUN_BYTES))
        if len(self.debts.owing_runs(side)) >= most:
            return False
        return self._policy.can_wait(self.debts.owing(side), self.debts.hashes_owed(side))

    def settled_now(self, settlement: Settlement) -> None:
        """All rows of a settlement have met all runs there were when it began."""
        self.settlements.end(settlement)
        self.catalogue.changed = True
        self.idle_share = self._policy.idle_share(self.idle_share, self._pays_in_idle_time(settlement.side))

    # --- what comes next ---

    def _next_task(self) -> Task | None:
        task = self._urgent_task() or super()._next_task()
        if task is None and self._idle and not self._done and self._idling_pays():
            return self._reactive_task()
        return task

    def _urgent_task(self) -> Task | None:
        if self.batch_ends and not self._arrivals_wait:
            return self._end_of_batch()
        for side in (0, 1):
            if self._is_due(side):
                why = "by delay" if self.owed_since.is_overdue(side, self.now) else "in passing"
                return self.settlements.task(side, why, urgent=True)
        if self.matched is not None and not all(self._ended):
            unmatched = self.alone.task(0) or self.alone.task(1)
            if unmatched is not None:
                return unmatched
        if self.foretold is not None and any(map(self.foretold.is_due, (0, 1))):
            return self._foretold_task(self.foretold)
        if self.catalogue.changed:
            for side in (0, 1):
                if self.catalogue.are_too_many(side):
                    return self.settlements.task(1 - side, "before a merge", urgent=True)
            merge = self.catalogue.merge_task()
            if merge is not None:
                return merge
        if self.full:
            task = self._make_room()
            self.full = task is not None
            return task or self._urgent_task()
        return None

    def _foretold_task(self, foretold: Foretold) -> Task | None:
        """Hand out rows that are settled by what inputs have promised; or what must be done before."""
        for side in (0, 1):
            if self.debts.owes(side) or self.settlements.begun[side] is not None:
                return self.settlements.task(side, "before rows come out", urgent=True)
        return next(foretold.task(side, at_any_cost=True) for side in (0, 1) if foretold.is_due(side))

    def _has_urgent_work(self) -> bool:
        if self.full or self.batch_ends or any(self._is_due(side) for side in (0, 1)):
            return True
        if self.matched is not None and any(self.alone.has_come(side) for side in (0, 1)):
            return True
        if self.foretold is not None and any(map(self.foretold.is_due, (0, 1))):
            return True
        runs = self.catalogue
        return runs.changed and any(runs.are_too_many(side) or runs.to_merge(side) for side in (0, 1))

    def _is_urgent(self, task: Task) -> bool:
        if isinstance(task, SettlementTask):
            return task.urgent
        return isinstance(task, MergeTask | UnmatchedTask)

    def _give_way(self, task: Task) -> int:
        self._task = None  # what was settled stays so, and the rest goes on later
        return 1

    def _can_react(self) -> bool:
        if self.foretold is not None and any(map(self.foretold.can_look, (0, 1))):
            return True
        return any(self.debts.owes(side) for side in (0, 1))

    def _reactive_task(self) -> Task | None:
        owing = [side for side in (0, 1) if self.debts.owes(side)]
        begun = self.settlements.begun
        # What has begun goes on; else the side whose rows will likely find most, so that neither waits for the other.
        owing.sort(key=lambda side: (begun[side] is None, -self.debts.owing(side) * self.debts.hashes_owed(side)))
        if owing:
            return self.settlements.task(owing[0], "in a silence" if self._stalled else "in idle time")
        return None if self.foretold is None else self.foretold.task(0) or self.foretold.task(1)

    def _clean_up_task(self) -> Task | None:
        owing = [side for side in (0, 1) if self.debts.owes(side)]
        if owing:
            return self.settlements.task(owing[0], "at the end")
        return None if self.matched is None else self.alone.task(0) or self.alone.task(1)

    # --- rows that leave memory ---

    def _make_room(self) -> Task | None:
        """Let rows leave memory; or what must be done before."""
        if all(self._had_better_wait(side) for side in (0, 1)):
            apart = [side for side in (0, 1) if not self.debts.rows_owe_alike(side)]
            if apart:
                return self.settlements.task(apart[0], "before a flush", urgent=True)
            self.flushing.flush_owing()
            return None
        side = self._victim()
        for each in (side, 1 - side):
            apart_from = self.debts.keeps_runs_apart(each, self.catalogue.fan_in)
            must_settle = each == side or apart_from or self.is_last(side)
            if self.debts.owing_runs(each) or (must_settle and self.debts.rows_owe(each)):
                if self.settlements.ends_early(each):
                    return self._make_room()
                return self.settlements.task(each, "before a flush", urgent=True)
        task = self.alone.task(side)
        if task is None and self.foretold is not None:
            task = self.foretold.task(side)
        if task is None:
            self.flushing.flush(side)
        return task

    def _victim(self) -> int:
        """Whose rows leave memory: those that would be forgotten, else the larger part."""
        forgotten = [side for side in (0, 1) if self.exhausted(1 - side) and self.tables[side].rows]
        return forgotten[0] if forgotten else int(self.tables[1].held > self.tables[0].held)

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        return False

    def end_batch(self) -> None:
        """All rows of a batch have come: let them settle and leave memory, which the next polls do.

        A snapshot then lists runs and holds no row, and whoever goes on from it reads nothing. Runs are merged between
        batches, a little with each (`upkeep`).
        """
        self.batch_ends = True

    def _end_of_batch(self) -> Task | None:
        if self.foretold is not None:
            for side in (0, 1):
                if self.debts.owes(side):
                    return self.settlements.task(side, "at the end of a batch", urgent=True)
            settled = self.foretold.task(0, at_any_cost=True) or self.foretold.task(1, at_any_cost=True)
            if settled is not None:
                return settled
        for side in (0, 1):
            if self.debts.owes(side):
                return self.settlements.task(side, "at the end of a batch", urgent=True)
            if self.tables[side].rows and not self.is_last(side):
                self.flushing.flush(side, all_of_it=True)
        for side in (0, 1):
            task = self.alone.task(side)
            if task is not None:
                return task
        for side in (0, 1):
            if self.exhausted(1 - side):
                self.catalogue.forget(side)
        self.catalogue.merge_between_batches()
        self.batch_ends = False
        return None

    # --- runs of others ---

    def adopt(self, side: int, entries: Sequence[RunEntry], named: int) -> None:
        """Take over runs that others of this join have put away, the oldest first; they owe nothing, nor are owed.

        `named`: the numbers up to this one are taken in names of segments.
        """
        for entry in entries:
            self.debts.add(side, entry)
        self.clock = max([self.clock, *(entry.birth for entry in entries)])
        self.catalogue.adopted(named, self.clock)

    def know(self, ended: Sequence[bool], widest: Sequence[int]) -> None:
        """Which inputs have ended, and how wide rows are, as others of this join know whose runs were taken over."""
        self._ended, self._closed = list(ended), list(ended)
        for side in (0, 1):
            self._allow_widest(side, max(widest[side], self.found.widest[side]))

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        """The state as of now; without rows in memory, it can be gone on from with any budget."""
        taken = super().snapshot()
        if any(table.rows for table in self.tables) or self._task is not None or self._arrivals_wait:
            return taken
        return replace(taken, state={**taken.state, "memory": self._least})

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        return own_state(self, self._task)

    def _load_own(self, state: dict[str, Any]) -> None:
        load_own_state(self, state, self._open_run)

    def _load_rows(self, snapshot: Snapshot) -> None:
        super()._load_rows(snapshot)
        if self.matched is not None:
            self.matched.load(snapshot.state["matched"])

    def _load_tasks(self, state: dict[str, Any], waiting: list[list[Received]]) -> None:
        for saved in state["settling"]:
            if saved is not None:
                self.settlements.load(saved)
        if state["task"] is None or state["task"]["kind"] != "merge":
            super()._load_tasks(state, waiting)

    def _load_task(self, state: dict[str, Any]) -> Task:
        if state["kind"] == "unmatched":
            return self.alone.resumed(state)
        if state["kind"] == "foretold":
            assert self.foretold is not None
            return self.foretold.resumed(state)
        if state["kind"] != "settlement":
            return super()._load_task(state)
        return SettlementTask(self, self.settlements.load(state), state["urgent"])
