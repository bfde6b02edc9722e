"""As-of joins of two streams: each left row meets the right row that is nearest by time, as soon as that is known.

Our own join. See `AsofJoin`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.asof import AsofSpec
from watersmeet.core.errors import BudgetError, LateRowError, SpecError
from watersmeet.core.protocol import Step
from watersmeet.core.report import Report, WindowFigures
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.arrival import Arriving, Task
from watersmeet.engine.merging import MergeTask
from watersmeet.engine.room_first import RoomFirst
from watersmeet.engine.shell import Operator
from watersmeet.engine.sizing import Grain, Sizing
from watersmeet.joins.asof.left_rows import LeftRows, LeftRun
from watersmeet.joins.asof.right_side import RightSide
from watersmeet.joins.asof.sides import LEAST_RUNS, RUN_BYTES, AsofArrival, Disk, Known
from watersmeet.kernels.asof import NOBODY, WAITS
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.matching.nearest import Forgetting, Nearest, Nulls, RightRows, Wanted
from watersmeet.memory import format_bytes, no_room_for
from watersmeet.records.asof_times import HASH, TIME, AsofCodec, AsofPlan, AsofTiming
from watersmeet.records.bands import HIGHEST, LOWEST
from watersmeet.records.intake import Received
from watersmeet.records.times import NEVER
from watersmeet.runs.sorted_run import OpenRun, SortedRun
from watersmeet.runs.spine import to_merge
from watersmeet.spill.store import Store
from watersmeet.tables.arrival_index import ArrivalIndex, TimedIndex, WaitingIndex
from watersmeet.tables.hash_table import row_bytes
from watersmeet.tables.memtable import Memtable

_LEAST_FAN_IN = 3
_MOST_FAN_IN = 16
_SLICE_BYTES = 128
"""Of each left row that is looked up: hash, time, floor, what was found, and the room to sort them."""
_LEAST_SLICE = 64
_MOST_SLICE = 1 << 16
_BUFFER_SHARE = 16
_LEFT, _RIGHT = 0, 1


class SettlementTask:
    """Left rows that the right input has passed, looked up slice by slice."""

    lookup = None

    def __init__(self, join: AsofJoin) -> None:
        self._join = join
        self.place = 0
        self.done = False
        self.mark, self.ended = join.right_mark
        self.loading = list(join.left.runs)
        """Runs that may have rows which the right input has passed."""
        self.old = {each.run.name for each in join.left.runs}
        """Whatever is not among these was written since, behind them."""
        self.sweeps, self.right = join.begin_settlement()
        """Whether one pass over rows in the order of their times will do; and right rows to be looked up."""

    def work(self, fuel: int) -> int:
        """Look up the next rows."""
        return self._join.settle(self, fuel)

    def finish(self) -> None:
        """All rows that could be answered were."""
        self._join.settled(self)

    def to_state(self) -> dict[str, Any]:
        """What was handed out is marked so, and the rest is looked up again."""
        return {"kind": "settlement"}


class _Proven:
    """Pairs that were found are proven already."""

    exact = True


class AsofJoin(RoomFirst, Operator):
    """For each left row the right row that is nearest by time, among those of the same key.

    Right rows are kept in the order of hash and time; left rows wait until the right input has passed them::

        time ───────────────────────────────────────────────────────────────▶
        right   · ·  ·   · ·  · ·│· · ·  ·  ·│· ·  mark: no row before it comes any more
                 forgotten, but  │ kept      │
                 the last of each│           │
        left                     │▪ ▪  ▪ ▪ ▪ │▪ ▪  these wait
                        horizon: no left row before it comes any more

    A left row is *settled* when the right input has passed its time (looking forward: when a row at or after it has
    been passed, or the tolerance): it is looked up and handed out, with its partner or without, and no later row can
    change that. What of the right input nobody will ask for is forgotten (`matching.nearest` has the argument).

    When memory is full, right rows go to disk as runs in the order of hash and time, which are merged as they become
    many, and left rows that still wait go in the order of their times. Those come back when the right input has passed
    them.

    Of right rows of one time the last one of its input counts, looking forward the first. A right row that comes later
    than the lateness is never used: answers may have been given without it. A left row that does is answered if what
    is remembered proves the answer, else it has no partner.

    :param fan_in: so many runs become one; None: by the memory.
    :param open_run: opens a run that a snapshot names; unless given, from the store.

    >>> from watersmeet.core.asof import parse_asof
    >>> from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End
    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.spill.store import MemoryStore
    >>> schema = pa.schema({"sym": pa.string(), "t": pa.int64()})
    >>> spec = AsofSpec(schema, schema, parse_on("sym"), times=parse_asof("t", lateness=0))
    >>> join = AsofJoin(spec, 1 << 20, MemoryStore())
    >>> join.receive(Arrive(LEFT, pa.record_batch({"sym": ["a", "a"], "t": [5, 9]}, schema)))
    >>> join.receive(Arrive(RIGHT, pa.record_batch({"sym": ["a", "a", "b"], "t": [3, 4, 8]}, schema)))
    >>> _, step = join.poll(0.0, fuel=100), join.poll(0.0, fuel=100)
    >>> step.out.to_pylist()
    [{'sym': 'a', 't': 5, 't_right': 4}]
    """

    SAVED: ClassVar[tuple[str, ...]] = ("newest", "late", "left", "right", "_settled", "_dirty", "_since", "full")
    name: ClassVar[str] = "asof"
    partitioned: ClassVar[bool] = False
    settles_in_silence: ClassVar[bool] = True
    paths: ClassVar[tuple[str, ...]] = ("settled", "right rows written", "left rows written", "left rows read back")
    """Events that a run which spills goes through."""
    spec: AsofSpec
    codec: AsofCodec
    plans: tuple[AsofPlan, AsofPlan]
    tables: tuple[Memtable, ...]

    def __init__(
        self,
        spec: AsofSpec,
        memory: int,
        store: Store,
        *,
        fan_in: int | None = None,
        grain: Grain | None = None,
        open_run: OpenRun | None = None,
    ) -> None:
        self.refuse_unfit(spec)
        least = self.least_memory(spec)
        if memory < least:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for the {self.name} join of these rows; allow at "
                f"least {format_bytes(least)}"
            )
        self._least = least
        super().__init__(spec, memory, store, grain)
        self.timing = AsofTiming(spec)
        self.newest = [NEVER, NEVER]
        """Each input's newest time so far."""
        self.late = [0, 0]
        """How many rows of each input came too late."""
        self._fan_in = fan_in or max(_LEAST_FAN_IN, min(_MOST_FAN_IN, memory // (64 * RUN_BYTES)))
        opener = open_run or partial(SortedRun, store)
        self.disk = Disk(
            store, self.budget, self.sizing.page_bytes, self.meter, opener, self.saver.discard, self._fan_in
        )
        self.events = self.disk.events
        """What happened how often: settlements, flushes, merges."""
        self.left = LeftRows(self.tables[_LEFT], self.disk, partial(self.forget, _LEFT, 0), self._left_memory)
        nulls = Nulls(self.plans[_RIGHT].types) if spec.how == "left" else None
        self.right = RightSide(
            self.tables[_RIGHT], self.disk, self.sizing.pairs, nulls, partial(self.forget, _RIGHT, 0), self.ticks
        )
        self._nearest = Nearest(spec, self.timing, self.codec, self.plans)
        self._settled = NEVER
        """The time that the right input had passed at the last settlement."""
        self._dirty = False
        """Whether something came since then that may settle rows."""
        self._since = 0
        """How many rows came since then."""
        self._collide = False
        """Whether keys of one hash were found to differ."""
        self._now = 0.0
        self._idle = False
        """Whether this poll found nothing to do."""

    def _left_memory(self, tick: int) -> None:
        """Left rows that came up to a tick are no longer in memory."""
        self.gone[_LEFT][0] = tick

    # --- memory ---

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        return 2 * cls._least_for_rows(spec) + LEAST_RUNS * RUN_BYTES

    @classmethod
    def _least_for_rows(cls, spec: JoinSpec) -> int:
        assert isinstance(spec, AsofSpec)
        exact = AsofCodec(spec).exact
        indexes = (WaitingIndex, TimedIndex)
        return Sizing.least([row_bytes(AsofPlan(spec, side, exact).types) + indexes[side].row_bytes for side in (0, 1)])

    @classmethod
    def refuse_unfit(cls, spec: JoinSpec) -> None:
        """An error if the spec has no times."""
        if not isinstance(spec, AsofSpec):
            raise SpecError(
                f"{cls.name} joins each row with the nearest by time; use wm.asof_join, or another algorithm"
            )

    def _make_codec(self) -> AsofCodec:
        return AsofCodec(self.spec)

    def _make_plans(self) -> Any:
        return tuple(AsofPlan(self.spec, side, self.codec.exact) for side in (0, 1))

    def _divide(self, memory: int, widths: list[int], partitioned: bool, grain: Grain | None) -> Sizing:
        usual = super()._divide(memory, widths, partitioned, grain)
        pairs = max(_LEAST_SLICE, min(_MOST_SLICE, memory // _BUFFER_SHARE // _SLICE_BYTES))
        return replace(usual, pairs=pairs, pair_bytes=_SLICE_BYTES)

    def _make_table(self, side: int) -> Memtable:
        kinds: tuple[type[ArrivalIndex], ...] = (WaitingIndex, TimedIndex)
        name = self.spec.names[side]
        return Memtable(self.plans[side].types, self.budget, self.sizing.layout, name, index=kinds[side])

    def _make_pairs(self) -> PairBuffer:
        proven: Any = _Proven()
        return PairBuffer(self.spec, proven, self.plans, self.sizing.pairs, wide=True)

    # --- rows that arrive ---

    def _arrival(self, side: int, batch: pa.RecordBatch, numbers: Int64) -> AsofArrival:
        arrival = AsofArrival(self, side, batch, numbers, self.newest[side])
        late = arrival.timed.late
        if late is not None:
            if self.spec.times.late == "error":
                row = 1 + int(numbers[np.flatnonzero(late)[0]])
                raise LateRowError(
                    f"row {row:,} of {self.spec.names[side]} comes later than "
                    f"lateness={self.spec.times.lateness[side]!r} allows; allow more, or say late='keep' or late='drop'"
                )
            self.late[side] += int(late.sum())
        return arrival

    def _take_back(self, arrival: Any) -> None:
        assert isinstance(arrival, AsofArrival)
        side, (batch, numbers) = arrival.input, arrival.rest()
        self._intakes[side].put_back(batch, numbers)
        start = arrival.batch.num_rows - batch.num_rows
        self.newest[side] = max(self.newest[side], arrival.newest_before(start))
        if arrival.timed.late is not None:
            self.late[side] -= int(arrival.timed.late[start:].sum())

    def _resumed_arrival(self, state: dict[str, Any], batch: pa.RecordBatch, numbers: Int64) -> AsofArrival:
        return AsofArrival(self, state["input"], batch, numbers, state["newest"])

    def must_keep(self, side: int) -> bool:
        """Unless no left row waits or may come."""
        return side == _LEFT or not self.exhausted(_LEFT) or self.left.count > 0

    @property
    def waiting_rows(self) -> int:
        """How many left rows wait, in memory and on disk."""
        return self.left.count

    @property
    def window_rows(self) -> int:
        """How many rows are remembered, in memory and on disk."""
        return self.left.count + self.right.count

    @property
    def runs(self) -> list[list[SortedRun]]:
        """Those of each input; of the right one's with runs of their times."""
        right = [run for each in self.right.runs for run in each.timed.both]
        return [[each.run for each in self.left.runs], right]

    def rows_taken(self, side: int, keys: Int64, newest: int) -> None:
        """Rows have come into memory."""
        if side == _LEFT:
            self.left.came(keys)
        self.has_reached(side, newest)
        self._since += len(keys)
        self._dirty = True

    def has_reached(self, side: int, newest: int) -> None:
        """An input has told a time."""
        if newest > self.newest[side]:
            self.newest[side] = newest
            self._dirty = True

    def advance(self, newest: Sequence[int]) -> None:
        """Learn, between two batches, that the inputs have reached these times in rows that came to other operators."""
        assert not self._arrivals_wait, "rows that have come before are judged by what was known then"
        for side in (0, 1):
            self.has_reached(side, newest[side])

    def _input_closed(self, side: int) -> None:
        self._dirty = True

    # --- when a left row may be answered, and what may be forgotten ---

    @property
    def right_mark(self) -> tuple[int, bool]:
        """The time before which no right row comes any more, and whether none comes at all."""
        if self._closed[_RIGHT]:
            return HIGHEST, True
        return self.timing.mark(_RIGHT, self.newest[_RIGHT]), False

    @property
    def _horizon(self) -> int:
        """The time before which no left row comes any more, or comes late."""
        return HIGHEST if self._closed[_LEFT] else self.timing.mark(_LEFT, self.newest[_LEFT])

    def _eligible_upto(self, mark: int) -> int:
        """Left rows with floors up to this may be answered."""
        return mark if self.spec.times.direction == "forward" or mark in (HIGHEST, LOWEST) else mark - 1

    def _can_settle(self) -> bool:
        """Whether there are left rows that the right input may have passed since the last settlement."""
        return self._dirty and self.left.count > 0 and self.left.lowest <= self._eligible_upto(self.right_mark[0])

    def _asked_from(self) -> list[int]:
        """Times before which nobody asks as of: left rows that come are not before the horizon; those that wait were
        all looked up at the last settlement, or came since.

        One that waits to be nearest may be before the mark of that settlement; but then whatever comes right at the
        mark is nearer than what it has found before it, for else it would have been answered.
        """
        return [self._horizon, self._settled, self.left.fresh_low]

    def _forgetting(self) -> Forgetting:
        """What of the right input nobody asks for any more."""
        bound = min(self._asked_from())
        return Forgetting(self.spec, self.timing, self.plans[_RIGHT], self.codec.exact, bound)

    # --- work ---

    def poll(self, now: float, fuel: int) -> Step:
        """Work a little, and hand out at most one batch."""
        self._now = now
        self._idle = self._task is None and not self.pairs.waiting and not self._arrivals_wait
        return super().poll(now, fuel)

    def wake_at(self) -> float | None:
        """At once, if left rows can be answered: if more rows are there already, they can be answered together."""
        return self._now if self.tables and self._can_settle() else None

    @property
    def ahead(self) -> int | None:
        """The input that has come further in time, if as many of its rows wait for the other as are looked up together.

        Rows of the other would let them go; more of the same would only have to be kept, perhaps on disk.
        """
        left, right = self.newest
        if left == right or any(self._ended) or None in self.spec.latenesses:
            return None
        side = _LEFT if left > right else _RIGHT
        waiting = self.left.in_memory if side == _LEFT else self.right.not_passed
        return side if waiting >= self.sizing.pairs else None

    def _had_better_settle(self) -> bool:
        """Whether left rows are to be answered before more rows come: many together take less time than few."""
        if not self._can_settle():
            return False
        return self._since >= 2 * self.sizing.pairs or self._stalled or self._closed[_RIGHT]

    def _next_task(self) -> Task | None:
        # Runs become one before more are written: what is remembered of them has a place for a few.
        task = self._merge_task() or (self._make_room() if self.full else None) or self._next_arrival()
        if task is not None:
            return task
        if self._had_better_settle() or (self._idle and self._can_settle()):
            return SettlementTask(self)
        if all(self._closed):
            self._done = True
        return None

    def _is_due(self, number: int) -> bool:
        return False

    def _is_urgent(self, task: Any) -> bool:
        return True

    def _has_urgent_work(self) -> bool:
        working = self._task is not None and not isinstance(self._task, Arriving)
        return working or self.full or self._had_better_settle() or bool(self._to_merge())

    def _can_react(self) -> bool:
        return False

    def _reactive_task(self) -> Task | None:
        return None

    def _clean_up_task(self) -> Task | None:
        return None

    def _give_way(self, task: Task) -> int:
        raise AssertionError("whatever is at hand is urgent")

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        return False

    # --- settling ---

    def begin_settlement(self) -> tuple[bool, RightRows]:
        """Whether left rows can be looked up in one pass, see `Sweep`; and right rows to be looked up."""
        self.events["settled"] += 1
        sweeps = self._can_sweep()
        if sweeps:
            self.right.begin_sweep()
        else:
            exact = self.codec.exact  # else whatever is forgotten must be compared first, which had better wait
            self.right.bring_up(self._forgetting() if exact else None)
        return sweeps, self.right.rows()

    def _can_sweep(self) -> bool:
        """Whether left rows look back, and all rows are in memory in the order of their times."""
        left, right = self.left, self.right
        if self.spec.times.direction != "backward" or self._collide or left.runs or right.runs:
            return False
        return left.ascend and left.lowest >= right.sweep.reached and right.sweep.in_order()

    def settle(self, task: SettlementTask, fuel: int) -> int:
        """Look up the next left rows; returns the fuel that took."""
        bound = self._eligible_upto(task.mark)
        if task.sweeps:
            return self._sweep(task, bound, fuel)
        numbers, task.place = self.left.next_slice(task.place, bound, min(fuel, len(self.pairs.probes)))
        if not len(numbers):
            loaded = self._load_some(task, bound, fuel)
            task.done = not loaded
            return max(1, loaded)
        left = self.left.table
        times, hashes = left.gather_all((TIME, HASH), numbers)
        floors = left.hashes(numbers)
        sources = list(self.right.sources())
        if not times.null_count:
            wanted = Wanted(numbers, hashes.to_numpy(), times.to_numpy(), floors)
            found = self._nearest.find(wanted, left, task.right, sources, task.mark, task.ended)
        else:  # rows without a key or a time have no partner
            told = np.flatnonzero(times.is_valid().to_numpy(zero_copy_only=False))
            known = (hashes.to_numpy(), times.fill_null(0).to_numpy(), floors)
            wanted = Wanted(numbers[told], *(each[told] for each in known))
            found = np.full(len(numbers), NOBODY, np.int64)
            found[told] = self._nearest.find(wanted, left, task.right, sources, task.mark, task.ended)
        self._note_found(numbers, found, task.right)
        self.meter.probes += len(numbers)
        self.meter.pages_read += len(self.right.runs)
        return len(numbers)

    def _sweep(self, task: SettlementTask, bound: int, fuel: int) -> int:
        """Look up the next left rows in one pass over rows in the order of their times."""
        room = min(fuel, len(self.pairs.probes))
        probes, rows = self.pairs.probes[:room], self.pairs.rows[:room]
        tolerance = self.timing.tolerance is not None
        before = np.empty(room if tolerance else 0, np.int64)
        left = self.left
        place = task.place
        count, task.place = self.right.sweep.find(
            left.table, left.answered, place, bound, probes, rows.view(np.int64), before
        )
        task.done = not count
        found = rows[:count]
        if not self.codec.exact and not self._nearest.proven(left.table, probes[:count], task.right, found):
            task.sweeps, task.place, self._collide = False, place, True
            self.right.bring_up(None)
            return 1
        found[found == WAITS] = NOBODY
        if tolerance:
            floors = left.table.hashes(probes[:count])
            far = self.timing.beyond(self.timing.apart(floors, np.minimum(before[:count], floors)))
            found[far & (found >= 0)] = NOBODY
        if count and int(found.min()) >= 0:
            self.pairs.count = count
        else:
            self._note_found(probes[:count].copy(), found.copy(), task.right)
        self.meter.probes += count
        self.events["swept"] += count > 0
        return max(1, count)

    def _note_found(self, numbers: Int32, found: Int64, right: RightRows) -> None:
        """Let rows be handed out that have a partner, or are wanted without."""
        nobody = found == NOBODY
        if self.spec.how == "left":
            found = np.where(nobody, right.nobody, found)
            out = np.flatnonzero(found != WAITS)
        else:
            self.left.mark_answered(numbers[nobody])
            out = np.flatnonzero(found >= 0)
        self.pairs.probes[: len(out)] = numbers[out]
        self.pairs.rows[: len(out)] = found[out]
        self.pairs.count = len(out)

    def _hand_out(self) -> tuple[pa.RecordBatch | None, int, int]:
        assert isinstance(self._task, SettlementTask)
        first, behind = self.pairs.first, self.pairs.count
        between = Between(_LEFT, self.tables[_LEFT], self._task.right)
        out, count = self.pairs.take(between, self.sizing.output_bytes)
        self.left.mark_answered(self.pairs.probes[first : self.pairs.first or behind])
        return out, count, count

    def settled(self, task: SettlementTask) -> None:
        """All left rows that could be answered were; what of the others is known now."""
        self._settled = task.mark
        self._since = 0
        self._dirty = False
        self.left.settled()
        self.right.let_go()
        if self.exhausted(_LEFT) and not self.left.count:
            self.right.forget_all()
            return
        if self.right.runs:
            self.right.expire(self._forgetting())
        if self.right.may_be_untidy:
            self.clock += 1
            self.right.tidy(self._forgetting())

    def _load_some(self, task: SettlementTask, bound: int, fuel: int) -> int:
        """Bring left rows back that the right input has passed; returns how many."""
        while task.loading:
            each = task.loading[0]
            count = each.count_upto(bound) if each.place < each.run.rows else 0
            if count:
                wide = max(1, each.run.nbytes // each.run.rows)
                return self._bring_back(task, each, min(count, max(1, fuel), max(1, self.sizing.page_bytes // wide)))
            task.loading.pop(0)
        return 0

    def _bring_back(self, task: SettlementTask, each: LeftRun, count: int) -> int:
        """Bring rows of a run back; whatever is in memory was looked up already, and may leave it."""
        table = self.left.table
        rows = np.arange(each.place, each.place + count, dtype=np.int32)
        columns = each.run.gather_all(tuple(range(len(table.types))), rows)
        parts = np.zeros(count, np.int32)
        while not self.secure(lambda: table.reserve(parts, columns)):
            if table.rows > self.left.in_memory:
                self.left.compact()
                if table.rows > self.left.in_memory:
                    self.left.write()
            elif self._write_out():
                task.right = self.right.rows()
            elif count > 1:
                return self._bring_back(task, each, count // 2)
            else:
                raise no_room_for(f"a row of {self.spec.names[_LEFT]}", sum(c.nbytes for c in columns), self.budget)
            task.place = table.rows
            self._merge_new(task)
        table.append(each.next_floors(count), parts, columns, self.ticks(count))
        self.left.came_back(each, count)
        return count

    def _merge_new(self, task: SettlementTask) -> None:
        """Left rows that came back and have to wait go to disk again: their runs, too, must not become many."""
        new = [each.level for each in self.left.runs if each.run.name not in task.old]
        count = to_merge(new, self._fan_in)
        if count:
            merge = self.left.merge(count)
            while merge.merged is None:
                self.merge_some(merge)
            self.merged(_LEFT, merge)

    # --- rows that leave memory ---

    def _make_room(self) -> Task | None:
        """Let rows leave memory; or what must be done before."""
        self.full = False
        if self._can_settle():
            return SettlementTask(self)
        self.clock += 1
        if not self.right.compact(self._forgetting()):
            self._write_out()
        return None

    def _write_out(self) -> bool:
        """Write rows of the side that holds more as a run; False if there are none."""
        left, right = self.tables
        self.clock += 1
        if left.rows and not self.left.in_memory:
            self.left.compact()
        elif right.rows and (not left.rows or right.held >= left.held):
            self.right.write(self._forgetting())
        elif left.rows:
            self.left.write()
        else:
            return False
        return True

    def put_away(self) -> None:
        """Write all rows in memory as runs, if nothing is at hand: then the state is a list of runs."""
        if self._task is None and not self._arrivals_wait:
            self.clock += 1
            if self.tables[_RIGHT].rows:
                self.right.write(self._forgetting())
            if self.tables[_LEFT].rows:
                self.left.write()

    # --- runs that become one ---

    def _to_merge(self) -> tuple[int, int] | None:
        for side, levels in (
            (_RIGHT, [each.level for each in self.right.runs]),
            (_LEFT, [each.level for each in self.left.runs]),
        ):
            count = to_merge(levels, self._fan_in)
            if count:
                return side, count
        return None

    def _merge_task(self) -> Task | None:
        found = self._to_merge()
        if found is None:
            return None
        side, count = found
        return MergeTask(self, side, self.right.merge(count, self._forgetting()) if side else self.left.merge(count))

    def merge_some(self, merge: Any) -> int:
        """Go on with a merge; returns the fuel that took."""
        passed: int = merge.work()
        pages = -(-passed * -(-merge.nbytes // self.sizing.page_bytes) // (2 * max(1, merge.rows)))
        self.meter.pages_read += pages
        self.meter.pages_written += pages
        return max(1, passed)

    def merged(self, number: int, merge: Any) -> None:
        """A merged run takes the place of those that it was made of."""
        self.events["merged"] += 1
        (self.right if number else self.left).merged(merge)

    # --- rows of others ---

    def known(self) -> Known:
        """What it knows beside its rows: whoever takes these over has to know it, too."""
        return Known(tuple(self.newest), self._settled, self.left.fresh_low, tuple(self.found.widest))

    def adopt(self, left: Sequence[Sequence[Any]], right: Sequence[Sequence[Any]], known: Known, named: int) -> None:
        """Take over runs that others of this join have put away, each with its level, the oldest first.

        Of a left one follow the rows that are not in it any more, of a right one its last time. `named`: the numbers up
        to this one are taken in names of segments.
        """
        self.newest, self._settled = list(known.newest), known.settled
        for side in (_LEFT, _RIGHT):
            self._allow_widest(side, max(known.widest[side], self.found.widest[side]))
        self.right.load(list(right))
        self.left.load({"runs": left, "low": [HIGHEST, known.fresh_low]})
        self.left.lowest = self.left.lowest_floor()
        self._dirty, self.disk.written = True, named

    # --- the protocol ---

    def report(self) -> Report:
        """Where it is, and how many rows came late."""
        rows = self.window_rows if self.tables else 0
        reached, dated = self.timing.reached(self.newest), self.spec.tick is not None
        figures = WindowFigures(tuple(self.late), rows, (0.0, 0.0), reached=reached, dated=dated)
        return Report(window=figures)

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        if self.tables:
            self.left.check()
            self.right.check()
            assert self.disk.runs == len(self.left.runs) + len(self.right.runs)

    def close(self) -> None:
        """Let go of everything."""
        if isinstance(self._task, MergeTask) and not self._task.done:
            self._task.merge.abort()
        super().close()
        self.left.runs, self.right.runs = [], []
        self.right.order.stretches = []

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        return [*self.left.names, *self.right.names], {
            **self.declared_state(),
            "written": self.disk.written,
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        super()._load_own(state)
        self.disk.written = state["written"]

    def _load_rows(self, snapshot: Any) -> None:
        super()._load_rows(snapshot)
        self.left.load_answered(snapshot.state["left"])

    def _load_tasks(self, state: dict[str, Any], waiting: list[list[Received]]) -> None:
        if state["task"] is not None and state["task"]["kind"] == "arrival":
            super()._load_tasks(state, waiting)
