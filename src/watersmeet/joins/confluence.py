"""Confluence: debts to the disk are settled by merging sorted hashes, while rows still arrive.

Our own join. See `Confluence`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Bytes, Int32, Int64, Numbers, Uint64
from watersmeet.core.delays import Delays, Marks
from watersmeet.core.errors import BudgetError
from watersmeet.core.kinds import KINDS
from watersmeet.core.protocol import Snapshot, Step
from watersmeet.core.report import Lateness, Report
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import parse_seconds
from watersmeet.engine.arrival import Arrival, Task
from watersmeet.engine.merging import MergeTask
from watersmeet.engine.room_first import RoomFirst
from watersmeet.engine.shell import Operator
from watersmeet.engine.sizing import Grain, Sizing
from watersmeet.engine.tracked_arrival import TrackedArrival
from watersmeet.joins.wear import Wear
from watersmeet.kernels.addressed import OTHER
from watersmeet.matching.debts import MERGED_AT_ONCE, Debts, RunEntry
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.matching.lookup import Condition, Lookup
from watersmeet.matching.matched import Matched
from watersmeet.matching.range_lookup import ChainedLookup, RangeLookup, RangePlan
from watersmeet.matching.reach import BandKeys, keys_of
from watersmeet.matching.reading import Pages
from watersmeet.matching.settlement import OwingRows, OwingRuns, Settlement, Slice
from watersmeet.matching.time_keys import TimeReach
from watersmeet.matching.unmatched import Unmatched, UnmatchedTask, among
from watersmeet.matching.upkeep import Upkeep
from watersmeet.memory import format_bytes
from watersmeet.policies.keeping import Keeping, Staying
from watersmeet.policies.settling import Settling
from watersmeet.records.addressed import AddressedRows
from watersmeet.records.intake import Received
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan
from watersmeet.runs.flush import write_run
from watersmeet.runs.matched_bits import LEAST_BYTES, MatchedBits, left_out_of
from watersmeet.runs.sorted_run import OpenRun, SortedRun, let_go
from watersmeet.runs.spine import Merge
from watersmeet.runs.stretches import StringRoom
from watersmeet.spill.store import Store
from watersmeet.tables.hash_table import Probe, row_bytes
from watersmeet.tables.memtable import Memtable
from watersmeet.tables.memtable_index import HashIndex, RangeIndex

_RUN_BYTES = 512
"""What is remembered of a run."""
_LEAST_SLICE = 64
_MOST_SLICE = 1 << 16
_BUFFER_SHARE = 16
_LEAST_FAN_IN = 3
_MOST_FAN_IN = 512
"""Runs that are read through cost about as much as the one that they would be merged into; what is remembered of them
is a small share of the memory."""
_MOST_BLOCK = 256 << 10
"""Bytes of rows of a run that share a description and a checksum, and are written at once."""
FLOOR = 2 << 20
"""Bytes that buffers have in any memory, so that batches are of a useful size."""
_LEAST_RESULT = 64
"""Bytes of a narrow result: more of them at once than fit into a batch would wait for nothing."""
_MOST_ARRIVING = 2 << 20
_LEAST_PAIRS = 64
_MOST_PAIRS = 1 << 16
_PAIR_BYTES = 32
"""Of each place in the buffer: the pair, its width where widths differ, and whether it is one."""
_MOST_ALIKE = 8
"""Of a join of batches: runs of about as many rows that become one. Each batch meets all runs, so they must be few."""
_FIRST = np.zeros(1, np.int32)
_BITS_SHARE = 64
"""One part in so many of the memory is for bits of rows on disk, where it matters who has found a partner."""


def _pairs_for(output_bytes: int) -> int:
    """How many pairs may wait that become batches of so many bytes."""
    return max(_LEAST_PAIRS, min(_MOST_PAIRS, output_bytes // _LEAST_RESULT))


class SettlementTask:
    """A settlement at work. What must be settled before anything else does not give way to arrivals."""

    def __init__(self, join: Confluence, settlement: Settlement, urgent: bool) -> None:
        self._join = join
        self.settlement = settlement
        self.urgent = urgent

    @property
    def lookup(self) -> Any:
        """Where pairs in the buffer come from."""
        return self.settlement

    @property
    def done(self) -> bool:
        """Whether all pairs were found."""
        return self.settlement.done

    def work(self, fuel: int) -> int:
        """Fill the empty buffer with pairs; returns the fuel that took."""
        return self._join.settle(self.settlement, fuel)

    def finish(self) -> None:
        """All pairs were handed out: nothing is owed any more."""
        self._join.settled_now(self.settlement)

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        return {"kind": "settlement", "urgent": self.urgent, **self.settlement.to_state(self._join.pairs)}


def _marked(table: Memtable) -> Callable[[Uint64, Numbers], Bool]:
    """Which rows of a memtable have a partner."""
    marks = table.marks
    return lambda hashes, numbers: marks[numbers] != 0


class Stayed(NamedTuple):
    """Copies of rows that stay in memory while the others of their memtable leave it."""

    hashes: Int64
    columns: list[pa.Array]
    marks: Bytes | None
    """Whether each has a partner, where that matters."""


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
        of some hundred rows costs about as much as one of some thousands; half as much comes on top for strings of rows
        on disk. What a sixteenth of the budget for each of them does not cover is beyond it. 0: everything is within
        the budget.
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
        most_slice: int = _MOST_SLICE,
        most_mapped: int | None = None,
        open_run: OpenRun | None = None,
    ) -> None:
        self.refuse_unfit(spec)
        least = self.least_memory(spec)
        if memory < least:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for the {self.name} join of these rows; allow at "
                f"least {format_bytes(least)}"
            )
        self._floor = floor
        self._least = least
        self._most_mapped = most_mapped
        super().__init__(spec, memory, store, grain)
        share = memory // _BUFFER_SHARE
        by_range = isinstance(self.codec, BandKeys)
        slice_rows = max(_LEAST_SLICE, min(most_slice, max(share, floor // 4) // Slice.bytes_for(1, by_range)))
        self._slice = Slice(slice_rows, by_range)
        for table in self.tables:
            if isinstance(table.index, HashIndex):
                table.index.scratch = self._slice.scratch
        self._block_bytes = max(self.sizing.page_bytes, min(_MOST_BLOCK, max(share, floor // 8)))
        self.beyond = self.sizing.beyond
        sizes = {"sorting": (Slice.bytes_for(slice_rows, by_range), share), "writing": (self._block_bytes, share)}
        self._strings: StringRoom | None = None
        if floor and most_mapped is None:
            self._strings = StringRoom(self.sizing.output_bytes)
            sizes["strings"] = self._strings.size, share
        for name, (size, covered) in sizes.items():
            counted = size if not floor else min(size, covered)
            self.budget.reservation(name).grow(counted)
            self.beyond += size - counted
        self._catalogue = self.budget.reservation("catalogue of runs")
        self._fan_in = fan_in or max(_LEAST_FAN_IN, min(_MOST_FAN_IN, memory // (16 * _RUN_BYTES)))
        records = min(grain.records or 0, 2 * self._fan_in * _RUN_BYTES) if grain is not None else 0
        self._catalogue.set_aside(max(records, self.least_runs * _RUN_BYTES))
        self.debts = self._make_debts()
        self.keeping = self._make_keeping() if keeping else None
        self._open_run = open_run or partial(SortedRun, store)
        self.wear = Wear(self)
        """Which rows on disk are of no more use."""
        fan_in = min(self._fan_in, _MOST_ALIKE)
        self.upkeep = Upkeep(self.debts, store, self._new_run, self._block_bytes, fan_in, self.wear)
        self._batch_began = 0
        """Of a join of batches: the tick at which the last one ended. Older runs are merged between batches."""
        self._batch_ends = False
        """Whether all rows are to settle and to leave memory."""
        self._settled_at = [0, 0]
        """The tick at which each side's last settlement began."""
        self._settling: list[Settlement | None] = [None, None]
        """Settlements that have begun; one that gave way to arrivals goes on later."""
        self._runs_changed = False
        """Whether runs may be ready to be merged that were not before."""
        self._written = 0
        self._delay = None if delay is None else parse_seconds(delay, "delay")
        self._policy = settling or Settling()
        self._pages = pages
        self._now = 0.0
        self._idle_share = self._policy.idle_hashes_per_row
        """Hashes that a row may go through in idle time."""
        self._idle = False
        """Whether this poll found nothing to do."""
        self._came: tuple[Marks, Marks] = (Marks(), Marks())
        self.lateness = Delays()
        """How long pairs waited that were not found as their later row came."""
        self.longest_wait = 0.0
        """Seconds, of all of them."""
        self.matched: Matched | None = None
        """Who has found a partner; None if only pairs matter."""
        if any(spec.kind.tracked):
            self._track(memory)

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        tracked = any(spec.kind.tracked)
        return 2 * cls._least_for_rows(spec) + cls.least_runs * _RUN_BYTES + 2 * LEAST_BYTES * tracked

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
        """Results go out in batches of a useful size, however little memory there is."""
        usual = super()._divide(memory, widths, partitioned, grain)
        output = max(usual.output_bytes, self._floor // 2)
        pairs = grain.pairs if grain is not None and grain.pairs else _pairs_for(output)
        counted = min(output + pairs * _PAIR_BYTES, usual.output_bytes + _pairs_for(usual.output_bytes) * _PAIR_BYTES)
        beyond = output + pairs * _PAIR_BYTES - counted
        # Rows that arrive are not copied: of theirs, only hashes and numbers are held until they are in a memtable.
        arriving = max(usual.input_bytes, min(_MOST_ARRIVING, memory // 8))
        beyond += 2 * (arriving - usual.input_bytes)
        return replace(
            usual, output_bytes=output, pairs=pairs, pair_bytes=_PAIR_BYTES, input_bytes=arriving, beyond=beyond
        )

    def _make_pairs(self) -> PairBuffer:
        return PairBuffer(self.spec, self.codec, self.plans, self.sizing.pairs, wide=True)

    def _make_table(self, side: int) -> Any:
        by_range, marked = self.spec.asks_for_close, self.spec.kind.tracked[side]
        name = self.spec.names[side]
        return Memtable(self.plans[side].types, self.budget, self.sizing.layout, name, by_range, marked=marked)

    def _make_debts(self) -> Debts:
        return Debts(self.tables)

    def _track(self, memory: int) -> None:
        """From now on it is known who has found a partner."""
        size = max(LEAST_BYTES, memory // _BITS_SHARE)
        self.budget.reservation("bits of rows on disk").grow(size)
        bits = MatchedBits(self.store, size, partial(self._new_name, "bits"), lambda names: self.saver.discard(names))
        self.pairs.matched = self.matched = Matched(self.spec.kind, self.tables, bits)
        self.debts.on_replace = self._carry_bits

    def _carry_bits(self, side: int, runs: Sequence[SortedRun], merged: Sequence[SortedRun]) -> None:
        """Rows of runs that became one have the bits that they had."""
        assert self.matched is not None
        if self.spec.kind.tracked[side]:
            self.matched.bits.replace(runs, merged)

    def _make_keeping(self) -> Keeping | None:
        """Where rows are found by hash, and there is enough memory to count what is asked for."""
        by_hash = not self.spec.asks_for_close and self.budget.total >= 2 * self._least
        return Keeping.within(self.budget) if by_hash else None

    def _reach(self, side: int) -> BandKeys | TimeReach | None:
        """Which sort keys rows of a side look for; None: their own."""
        return self.codec if isinstance(self.codec, BandKeys) else None

    def _condition(self, side: int) -> Callable[[AddressedRows, Int64], Condition] | None:
        """What rows of a side that settle ask of others besides equal keys; None: nothing."""
        return None

    # --- the protocol ---

    def poll(self, now: float, fuel: int) -> Step:
        """Work a little, and hand out at most one batch."""
        self._now = now
        self._idle = self._task is None and not self.pairs.waiting and not self._arrivals_wait
        return super().poll(now, fuel)

    def wake_at(self) -> float | None:
        """When the oldest row that owes something has owed it for as long as it may; at once, if idle time pays."""
        if isinstance(self._task, SettlementTask) or self._idling_pays():
            return self._now
        if self._delay is None:
            return None
        firsts = [self._came[side].first for side in (0, 1) if self.debts.owes(side)]
        return min((first + self._delay for first in firsts if first is not None), default=None)

    def report(self) -> Report:
        """How late pairs were, and how many rows have yet to settle."""
        if not any(self.debts.runs) and not self.longest_wait:
            return Report()
        owing = sum(self.debts.owing(side) for side in (0, 1)) if self.tables else 0
        return Report(lateness=Lateness(*self.lateness.median_and_p99(), self.longest_wait, owing))

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        self.debts.check(self.clock)
        self.upkeep.check()
        if self.matched is not None:
            merge = self._task.merge if isinstance(self._task, MergeTask) else None
            at_hand = [left_out_of(merge.name)] if isinstance(merge, Merge) else []
            self.matched.bits.check({*self._bits_to_keep, *(name for name in at_hand if name in self.matched.bits)})

    def close(self) -> None:
        """Let go of everything."""
        self._abort_merge()
        super().close()
        self.debts.close()
        self._settling = [None, None]

    @property
    def runs(self) -> list[list[SortedRun]]:
        """Those of each side, without pieces of merged ones that nobody meets yet."""
        return [[entry.run for entry in entries] for entries in self.debts.runs]

    # --- rows that arrive ---

    def _arrival(self, side: int, batch: pa.RecordBatch, numbers: Int64) -> Arrival:
        return (TrackedArrival if self.spec.kind.tracked[side] else Arrival)(self, side, batch, numbers)

    def must_keep(self, side: int) -> bool:
        """Unless the other input has ended and has nothing on disk."""
        return not self.exhausted(1 - side) or bool(self.debts.runs[1 - side])

    def rows_kept(self, side: int, parts: Int32) -> None:
        """Note when rows came, which may have to wait."""
        if self.debts.runs[1 - side]:
            self._came[side].add(self.tables[side].rows, self._now)

    def arrival_lookup(self, side: int, hashes: Int64, parts: Int32, columns: list[Any], source: Any) -> Lookup:
        """The look-up of rows that arrived on one side in the memtable of the other."""
        other, reach = self.tables[1 - side], self._reach(side)
        between = Between(side, source, other)
        if reach is not None:
            shifts = reach.shifts
            if shifts is None:
                return RangeLookup(reach.probe(hashes, columns), other, between)
            keys = hashes.view(np.uint64)

            def under(number: int) -> Lookup:
                return RangeLookup(reach.probe((keys + shifts[number]).view(np.int64), columns), other, between)

            return ChainedLookup(len(shifts), under)
        return Lookup(Probe(hashes, other.buckets_of(hashes)), other, between)

    # --- work ---

    def _is_due(self, side: int) -> bool:
        """Whether rows of a side should settle before more arrive."""
        if not self.debts.owes(side):
            return False
        first = self._came[side].first
        if self._delay is not None and first is not None and self._now >= first + self._delay:
            return True
        return self._is_worth_settling(side)

    def _is_worth_settling(self, side: int) -> bool:
        # A slow input's rows are few, and each owes a lot: what came of both inputs since makes up for a pass, too.
        arrived = self.clock - self._settled_at[side]
        return self._policy.is_worth_it(max(self.debts.owing(side), arrived // 2), self.debts.hashes_owed(side))

    def _next_task(self) -> Task | None:
        task = self._urgent_task() or super()._next_task()
        if task is None and self._idle and not self._done and self._idling_pays():
            return self._reactive_task()
        return task

    def _idling_pays(self) -> bool:
        """Whether rows that owe are enough to settle while there is nothing else to do."""
        return bool(self.tables) and not self._done and any(map(self._pays_in_idle_time, (0, 1)))

    def _pays_in_idle_time(self, side: int) -> bool:
        owing = self.debts.owing(side)
        return owing > 0 and owing * self._idle_share >= self.debts.hashes_owed(side)

    def _urgent_task(self) -> Task | None:
        if self._batch_ends and not self._arrivals_wait:
            return self._end_of_batch()
        for side in (0, 1):
            if self._is_due(side):
                return self._settle_task(side, "in passing", urgent=True)
        if self.matched is not None and not all(self._ended):
            unmatched = self._unmatched_task(0) or self._unmatched_task(1)
            if unmatched is not None:
                return unmatched
        if self._runs_changed:
            for side in (0, 1):
                if self._has_too_many_runs(side):
                    return self._settle_task(1 - side, "before a merge", urgent=True)
            task = self._merge_task()
            if task is not None:
                return task
        if self.full:
            task = self._make_room()
            self.full = task is not None
            return task or self._urgent_task()
        return None

    def _has_too_many_runs(self, side: int) -> bool:
        """Whether runs wait to be merged for rows of the other side that owe some of them and not others."""
        owed = self.debts.owes(1 - side) or self._settling[1 - side] is not None
        return owed and self.debts.waiting_to_merge(side, self._fan_in, self._batch_began)

    def _has_urgent_work(self) -> bool:
        if self.full or self._batch_ends or any(self._is_due(side) for side in (0, 1)):
            return True
        if self.matched is not None and any(self._is_settled(side) for side in (0, 1)):
            return True
        return self._runs_changed and any(self._has_too_many_runs(side) or self._runs_to_merge(side) for side in (0, 1))

    def _make_room(self) -> Task | None:
        """Let rows leave memory; or what must be done before."""
        if all(self._had_better_wait(side) for side in (0, 1)):
            apart = [side for side in (0, 1) if not self.debts.rows_owe_alike(side)]
            if apart:
                return self._settle_task(apart[0], "before a flush", urgent=True)
            self._flush_owing()
            return None
        side = self._victim()
        for each in (side, 1 - side):
            must_settle = each == side or self.debts.keeps_runs_apart(each, self._fan_in) or self._is_last(side)
            if self.debts.owing_runs(each) or (must_settle and self.debts.rows_owe(each)):
                if self._ends_early(each):
                    return self._make_room()
                return self._settle_task(each, "before a flush", urgent=True)
        task = self._unmatched_task(side)
        if task is None:
            self._flush(side)
        return task

    def _ends_early(self, side: int) -> bool:
        """All rows of a side must settle: if more came since a settlement began, it ends with the run at hand.

        The others, and those that came since, then go through the runs together. True if it has ended at once.
        """
        settling = self._settling[side]
        if settling is None or settling.met is not None or not isinstance(settling.debtor, OwingRows):
            return False
        if settling.debtor.high == self.tables[side].rows or not settling.cut_short():
            return False
        self.events["cut short"] += settling.met is not None
        if settling.done:
            self.settled_now(settling)
        return settling.done

    def _victim(self) -> int:
        """Whose rows leave memory: those that would be forgotten, else the larger part."""
        forgotten = [side for side in (0, 1) if self.exhausted(1 - side) and self.tables[side].rows]
        return forgotten[0] if forgotten else int(self.tables[1].held > self.tables[0].held)

    def _had_better_wait(self, side: int) -> bool:
        """Whether rows of a memtable should be written before they have settled, to settle together with others."""
        if any(map(self.exhausted, (0, 1))) or self._settling[side] is not None:
            return False
        most = min(self._policy.most_runs, self.budget.total // (32 * _RUN_BYTES))
        if len(self.debts.owing_runs(side)) >= most:
            return False
        return self._policy.can_wait(self.debts.owing(side), self.debts.hashes_owed(side))

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        return False

    # --- settling ---

    def _settle_task(self, side: int, why: str, urgent: bool = False) -> SettlementTask:
        """Go on with the settlement of a side, or begin one: of runs that owe, or else of rows in memory."""
        settling = self._settling[side]
        if settling is None:
            owing = self.debts.owing_runs(side)
            table, room = self.tables[side], len(self._slice.rows)
            debtor = OwingRuns(owing) if owing else OwingRows(table, self.debts.settled[side], table.rows, room=room)
            settling = self._settling[side] = self._settlement(side, debtor)
            self._settled_at[side] = self.clock
            self.events[f"settled {why}"] += 1
            self.events["runs settled"] += len(owing)
        return SettlementTask(self, settling, urgent)

    def _settlement(self, side: int, debtor: OwingRows | OwingRuns, names: Sequence[str] | None = None) -> Settlement:
        """A settlement with all runs that are owed, or with those of these names."""
        entries = self.debts.owed(side)
        if names is not None:
            named = {entry.run.name: entry for entry in self.debts.runs[1 - side]}
            entries = [named[name] for name in names]
        elif isinstance(debtor, OwingRows):
            # Runs that most rows have yet to meet come first: a settlement that is cut short left them for later.
            entries = sorted((entry for entry in entries if entry.since < debtor.high), key=lambda entry: entry.since)
        how = self._slice, self.sizing.page_bytes, self._pages, self._reach(side), self._condition(side)
        settlement = Settlement(side, debtor, entries, *how)
        settlement.most_mapped = self._most_mapped or settlement.most_mapped
        if self._strings is not None:
            settlement.have_room(self._strings)
        return settlement

    def settle(self, settlement: Settlement, fuel: int) -> int:
        """Go on with a settlement; returns the fuel that took."""
        settlement.let_go()
        used = settlement.work(self.pairs, fuel, self.meter)
        if settlement.ends_slice and settlement.found and isinstance(settlement.debtor, OwingRows):
            self._note_lateness(self._came[settlement.side], settlement)
        return used

    def settled_now(self, settlement: Settlement) -> None:
        """All rows of a settlement have met all runs there were when it began."""
        side, debtor = settlement.side, settlement.debtor
        self._settling[side] = None
        self._runs_changed = True
        settlement.let_go(all_of_it=self._most_mapped is None)
        if isinstance(debtor, OwingRuns):
            self.debts.runs_settled(debtor.entries)
        elif settlement.met is not None:
            assert isinstance(debtor, OwingRows)
            self.debts.have_met(side, settlement.met, debtor.high)
        else:
            assert isinstance(debtor, OwingRows)
            self.debts.have_settled(side, debtor.high)
            self._came[side].forget(debtor.high)
        self._idle_share = self._policy.idle_share(self._idle_share, self._pays_in_idle_time(side))

    def _note_lateness(self, came: Marks, settlement: Settlement) -> None:
        """How long the pairs of a slice have waited: of a few rows, which stand for all, and of the oldest."""
        times = came.times(settlement.some_rows + 1)
        if times is None:
            return
        waited = self._now - times
        self.longest_wait = max(self.longest_wait, float(waited[-1]))
        self.lateness.add((waited[:-1] * 1e6).astype(np.int64), -(-settlement.found // (len(waited) - 1)))

    def _is_urgent(self, task: Task) -> bool:
        if isinstance(task, SettlementTask):
            return task.urgent
        return isinstance(task, MergeTask | UnmatchedTask)

    def _give_way(self, task: Task) -> int:
        self._task = None  # what was settled stays so, and the rest goes on later
        return 1

    def _can_react(self) -> bool:
        return any(self.debts.owes(side) for side in (0, 1))

    def _reactive_task(self) -> Task | None:
        owing = [side for side in (0, 1) if self.debts.owes(side)]
        # What has begun goes on; else the side whose rows will likely find most, so that neither waits for the other.
        owing.sort(
            key=lambda side: (self._settling[side] is None, -self.debts.owing(side) * self.debts.hashes_owed(side))
        )
        return self._settle_task(owing[0], "in a silence" if self._stalled else "in idle time") if owing else None

    def _clean_up_task(self) -> Task | None:
        owing = [side for side in (0, 1) if self.debts.owes(side)]
        if owing:
            return self._settle_task(owing[0], "at the end")
        return None if self.matched is None else self._unmatched_task(0) or self._unmatched_task(1)

    # --- rows without a partner ---

    def _is_last(self, side: int) -> bool:
        """Whether rows of a side that find nobody come out, and no more partners will come."""
        return self.spec.kind.preserved[side] and self.exhausted(1 - side)

    def _is_settled(self, side: int) -> bool:
        """Whether rows of a side are there whose partners have all been found, and no more will come."""
        if not self._is_last(side) or any(self.debts.owes(each) for each in (0, 1)):
            return False
        return bool(self.tables[side].rows or self.debts.runs[side]) and self._settling == [None, None]

    def _unmatched_task(self, side: int) -> UnmatchedTask | None:
        """Hand out the rows of a side that have no partner, if all have settled."""
        if not self._is_settled(side):
            return None
        self.events["rows without a partner settled"] += 1
        return UnmatchedTask(self, side, self._unmatched_parts(side))

    def _unmatched_parts(self, side: int) -> list[Unmatched]:
        assert self.matched is not None
        table, bits = self.tables[side], self.matched.bits
        return [
            Unmatched(side, table, table.rows, among(table.marks)),
            *(
                Unmatched(side, run, run.rows, partial(bits.unmarked_from, run.name), partial(let_go, [run]))
                for run in self.runs[side]
            ),
        ]

    def side_is_over(self, side: int) -> None:
        """All rows of a side have found their partners or come out without: nobody needs them any more."""
        self.clock += 1
        self._forget_rows(side)
        self._forget_runs(side)
        self.full = False
        self._count_runs()

    def _forget_runs(self, side: int) -> None:
        """Runs of a side wait for nobody."""
        names = self.debts.forget(side)
        if self.matched is not None and self.spec.kind.tracked[side]:
            self.matched.bits.forget(names)
        pieces = self.upkeep.forget(side)
        if self.matched is not None:
            self.matched.bits.forget([left_out_of(name) for name in pieces if left_out_of(name) in self.matched.bits])
        self.saver.discard([*pieces, *names])

    # --- rows that leave memory ---

    def _flush(self, side: int, *, all_of_it: bool = False) -> None:
        """Write a memtable that owes nothing as a run, unless its rows wait for nobody; some may stay in memory."""
        self.clock += 1
        self.events["flushed"] += 1
        stayed: Stayed | None = None
        if not self.exhausted(1 - side):
            chosen = None if all_of_it or self._forgets_matched(side) else self._choose_to_stay(side)
            run = self._write_run(side, self.tables[side], chosen)
            if run is not None:
                self.debts.add(side, self._entry(side, run, self.tables[1 - side].rows))
            stayed = None if chosen is None else self._copied(side, chosen.numbers)
        self._forget_rows(side)
        if stayed is not None:
            self._bring_back(side, stayed)
        self._count_runs()

    def end_batch(self) -> None:
        """All rows of a batch have come: let them settle and leave memory, which the next polls do.

        A snapshot then lists runs and holds no row, and whoever goes on from it reads nothing. Runs are merged between
        batches, a little with each (`matching.upkeep`).
        """
        self._batch_ends = True

    def _end_of_batch(self) -> Task | None:
        for side in (0, 1):
            if self.debts.owes(side):
                return self._settle_task(side, "at the end of a batch", urgent=True)
            if self.tables[side].rows and not self._is_last(side):
                self._flush(side, all_of_it=True)
        for side in (0, 1):
            task = self._unmatched_task(side)
            if task is not None:
                return task
        for side in (0, 1):
            if self.exhausted(1 - side):
                self._forget_runs(side)
        self.saver.discard(self.upkeep.go_on([self.debts.rows_since(side, self._batch_began) for side in (0, 1)]))
        self._count_runs()
        self._batch_began = self.clock
        self._batch_ends = self._runs_changed = False
        return None

    def _flush_owing(self) -> None:
        """Write both memtables as they are: that they owe is said by their runs. They owe each other nothing."""
        self.clock += 1
        self.events["flushed owing"] += 1
        entries: list[RunEntry | None] = [None, None]
        try:
            for side, table in enumerate(self.tables):
                if table.rows:
                    before = int(table.ticks(_FIRST)[0]) if self.debts.rows_owe(side) else None
                    run = self._write_run(side, table)
                    entries[side] = None if run is None else self._entry(side, run, 0, before)
        except BaseException:
            self._drop_written([entry.run.name for entry in entries if entry is not None])
            raise
        for side, entry in enumerate(entries):
            if entry is not None:
                self.debts.add(side, entry)
        for side in (0, 1):
            self._forget_rows(side)
        self._count_runs()

    def _entry(self, side: int, run: SortedRun, since: int, owes_before: int | None = None) -> RunEntry:
        """What is to be known of a memtable that was written now."""
        return RunEntry(run, self.clock, since, owes_before=owes_before)

    def _forget_rows(self, side: int) -> None:
        """A memtable is empty now; whatever comes owes all that is on disk."""
        self.forget(side, 0)
        self._came[side].clear()
        self.debts.rows_left(side)
        if self.keeping is not None:
            self.keeping.rows_left(side)

    def _choose_to_stay(self, side: int) -> Staying | None:
        """Which rows of a memtable had better stay when the others leave; they fit into the buffer for writing."""
        table = self.tables[side]
        if self.keeping is None:
            return None
        most = min(table.rows // 4, self._block_bytes * table.rows // max(1, table.row_nbytes))
        chosen = self.keeping.choose(side, self.tables, most)
        return chosen if chosen is not None and self._fit_into_buffer(table, chosen.numbers) else None

    def _fit_into_buffer(self, table: Memtable, numbers: Int32) -> bool:
        """Whether copies of some rows do: those of frequent keys may be wider than others."""
        if OTHER in table.widths:
            return False  # what single nested values take is not known
        widths = np.full(len(numbers), len(table.types), np.int64)  # for offsets and bitmaps
        for column in range(len(table.types)):
            table.widen(column, numbers, widths)
        return int(widths.sum()) <= min(self._block_bytes, table.held // 4)

    def _copied(self, side: int, numbers: Int32) -> Stayed:
        table = self.tables[side]
        marks = table.marks[numbers] if self.spec.kind.tracked[side] else None
        return Stayed(table.hashes(numbers), table.gather_all(tuple(range(len(table.types))), numbers), marks)

    def _bring_back(self, side: int, stayed: Stayed) -> None:
        """Rows that have settled take their places anew, as if they had come right after the flush."""
        table, count = self.tables[side], len(stayed.hashes)
        self.events["rows that stayed"] += count
        parts = np.zeros(count, np.int32)
        if not table.reserve(parts, stayed.columns):
            raise AssertionError("rows do not fit into the memory that they just left")
        ticks = np.arange(self.clock + 1, self.clock + 1 + count)
        self.clock += count
        table.append(stayed.hashes, parts, stayed.columns, ticks)
        if stayed.marks is not None:
            table.marks[:] = stayed.marks
        self.debts.rows_left(side, stayed=count)
        assert self.keeping is not None
        self.keeping.rows_left(side, stayed=count)

    def _write_run(self, side: int, table: Memtable, chosen: Staying | None = None) -> SortedRun | None:
        """Write rows of a memtable as a run; None if none of them is of any use."""
        there, self._slice.owner = self._slice.holds(table), None
        buffers = self._slice.hashes, self._slice.rows
        staying: tuple[int, Callable[[Uint64, Numbers], Bool]] | None = None
        if chosen is not None:
            staying = len(chosen.numbers), chosen.stay
        if self._forgets_matched(side):
            staying = int(np.count_nonzero(table.marks)), _marked(table)
        rows = table.rows - (0 if staying is None else staying[0])
        if not rows:
            return None
        name = self._new_run(side)
        write = partial(
            write_run, self.store, name, table, *buffers, self._block_bytes, sorted_already=there, staying=staying
        )
        run = self._write_marked(name, table, rows, write) if self.spec.kind.tracked[side] else write()
        self.meter.pages_written += self._pages_of(run.rows, run.nbytes)
        self.meter.seeks += 1
        return run

    def _write_marked(self, name: str, table: Memtable, rows: int, write: Callable[..., SortedRun]) -> SortedRun:
        """Write a run of rows, and their marks beside it."""
        assert self.matched is not None
        bits, marks = self.matched.bits, table.marks
        filling = bits.begin(name, rows)
        written = []
        try:
            run = write(note=lambda numbers: filling.add(marks[numbers] != 0))
            written.append(name)
            filling.end()
        except BaseException:
            bits.forget([name])
            self._drop_written(written)
            raise
        return run

    def _drop_written(self, names: Sequence[str]) -> None:
        """Something has failed before runs that were written counted."""
        for name in names:
            self.store.remove(name)
            if self.matched is not None and name in self.matched.bits:
                self.matched.bits.forget([name])

    def _forgets_matched(self, side: int) -> bool:
        """Whether rows of a side are of no more use once they have a partner."""
        return self.matched is not None and self.matched.forgotten(side)

    def _pages_of(self, rows: int, nbytes: int) -> int:
        """Pages of so many rows of a run."""
        return -(-nbytes // self.sizing.page_bytes) if self._pages is None else self._pages.of(rows)

    def _new_name(self, what: str) -> str:
        self._written += 1
        return f"{what}-{self._written}"

    def _new_run(self, side: int) -> str:
        return self._new_name(f"run-{side}")

    def _count_runs(self) -> None:
        """Memory for what is remembered of runs, which never become many."""
        self._runs_changed = True
        self._catalogue.shrink(self._catalogue_runs * _RUN_BYTES)
        self._catalogue_runs = self.debts.count + len(self.upkeep.names)
        self._catalogue.grow(self._catalogue_runs * _RUN_BYTES)

    _catalogue_runs = 0

    # --- runs that become one ---

    def _merge_task(self) -> Task | None:
        for side in (0, 1):
            runs = self._runs_to_merge(side)
            if runs:
                left_out = self.wear.left_out(side)
                merge = Merge(self.store, self._new_run(side), runs, self._block_bytes, left_out=left_out)
                return MergeTask(self, side, merge)
        self._runs_changed = False
        return None

    def _runs_to_merge(self, side: int) -> list[SortedRun]:
        """Runs of a side that are to become one, if there are any."""
        if self._settling[1 - side] is not None:
            return []  # rows are on their way through these runs
        worn = partial(self.wear.run_is_worn, side) if self.wear.wears(side) else None
        return self.debts.to_merge(side, self._fan_in, self._batch_began, worn)

    def merge_some(self, merge: Merge) -> int:
        """Go on with a merge; returns the fuel that took."""
        passed = merge.work()
        # All rows are passed twice: for their hashes, then for the rest.
        pages = -(-passed * self._pages_of(merge.rows, merge.nbytes) // (2 * merge.rows))
        self.meter.pages_read += pages
        self.meter.pages_written += pages
        if self._pages is not None:
            # Memory that waits for results, a quarter, is divided among the runs that are read.
            at_once = max(1, 4 * self._pages.at_once // len(merge.runs))
            self.meter.seeks += -(-pages // at_once) - (-pages // self._pages.at_once)
        return max(1, passed)

    def merged(self, side: int, merge: Merge) -> None:
        """A merged run takes the place of the runs that it was made of."""
        assert merge.merged is not None
        self.events["merged"] += 1
        self.events["rows left out of a merge"] += merge.rows - merge.merged.rows
        self.debts.replace(side, merge.runs, merge.merged, higher=self._makes_a_level(merge))
        let_go(merge.runs)
        self.saver.discard(sorted(run.name for run in merge.runs))
        self._count_runs()

    def _makes_a_level(self, merge: Merge) -> bool:
        """Whether runs became one for being many: levels must fall from the oldest run to the youngest."""
        return len(merge.runs) >= min(self._fan_in, MERGED_AT_ONCE)

    def _abort_merge(self) -> None:
        if isinstance(self._task, MergeTask) and not self._task.done:
            self._task.merge.abort()
            self._task = None

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        """The state as of now; without rows in memory, it can be gone on from with any budget."""
        taken = super().snapshot()
        if any(table.rows for table in self.tables) or self._task is not None or self._arrivals_wait:
            return taken
        return replace(taken, state={**taken.state, "memory": self._least})

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        settling = [None if each is None or self._at_work(each) else each.to_state(None) for each in self._settling]
        matched = None if self.matched is None else self.matched.to_state(self._bits_to_keep)
        bits = [] if self.matched is None or matched is None else self.matched.versions(matched)
        return self.debts.names + self.upkeep.names + bits, {
            "matched": matched,
            **self.debts.to_state(),
            "upkeep": self.upkeep.to_state(),
            "batch": [self._batch_began, self._batch_ends],
            "settled_at": list(self._settled_at),
            "settling": settling,
            "idle_share": self._idle_share,
            "full": self.full,
            "written": self._written,
            "built": [table.index.built for table in self.tables],
            "origin": self.codec.to_state() if isinstance(self.codec, BandKeys) else None,
        }

    @property
    def _bits_to_keep(self) -> list[str]:
        """Of which runs bits are kept, and of which pieces it is noted what was left out."""
        tracked = [runs for side, runs in enumerate(self.debts.runs) if self.spec.kind.tracked[side]]
        runs = [entry.run.name for runs in tracked for entry in runs]
        assert self.matched is not None
        without = map(left_out_of, self.upkeep.names)
        return [*runs, *(name for name in without if name in self.matched.bits)]

    def _at_work(self, settlement: Settlement) -> bool:
        return isinstance(self._task, SettlementTask) and self._task.settlement is settlement

    def _load_own(self, state: dict[str, Any]) -> None:
        self.debts.load(state, self._opened)
        self.upkeep.load(state["upkeep"], self._opened)
        if self.matched is not None:
            rows = {entry.run.name: entry.run.rows for runs in self.debts.runs for entry in runs}
            without = {left_out_of(name): passed for name, passed in self.upkeep.passed.items()}
            self.matched.bits.load(state["matched"]["bits"], {**rows, **without})
        self._batch_began, self._batch_ends = state["batch"]
        self._settled_at = list(state["settled_at"])
        self._idle_share = state["idle_share"]
        self.full, self._written = state["full"], state["written"]
        for table, built in zip(self.tables, state["built"], strict=True):
            table.built = built
        if isinstance(self.codec, BandKeys):
            self.codec.load(state["origin"])
        self._count_runs()

    def _opened(self, side: int, name: str) -> SortedRun:
        return self._open_run(name, self.plans[side].types)

    def _load_rows(self, snapshot: Snapshot) -> None:
        super()._load_rows(snapshot)
        if self.matched is not None:
            self.matched.load(snapshot.state["matched"])

    def _load_tasks(self, state: dict[str, Any], waiting: list[list[Received]]) -> None:
        for saved in state["settling"]:
            if saved is not None:
                self._load_settlement(saved)
        if state["task"] is None or state["task"]["kind"] != "merge":
            super()._load_tasks(state, waiting)

    def _load_settlement(self, saved: dict[str, Any]) -> Settlement:
        side = saved["side"]
        debtor: OwingRows | OwingRuns
        if "owing" in saved:
            named = {entry.run.name: entry for entry in self.debts.runs[side]}
            debtor = OwingRuns([named[name] for name in saved["owing"]])
        else:
            table = self.tables[side]
            table.have_bits(max(saved["slice"][0], saved["behind"][0]))
            debtor = OwingRows(table, saved["low"], saved["high"], saved["sorting"])
        settlement = self._settling[side] = self._settlement(side, debtor, saved["runs"])
        settlement.load(saved, self.pairs)
        return settlement

    def _load_task(self, state: dict[str, Any]) -> Task:
        if state["kind"] == "unmatched":
            task = UnmatchedTask(self, state["side"], self._unmatched_parts(state["side"]))
            task.resume(state)
            return task
        if state["kind"] != "settlement":
            return super()._load_task(state)
        return SettlementTask(self, self._load_settlement(state), state["urgent"])
