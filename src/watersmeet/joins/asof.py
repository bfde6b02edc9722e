"""As-of joins of two streams: each left row meets the right row that is nearest by time, as soon as that is known.

Our own join. See `AsofJoin`.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.asof import AsofSpec
from watersmeet.core.errors import BudgetError, LateRowError, SpecError
from watersmeet.core.report import Report, WindowFigures
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.arrival import Arrival, Arriving, Task
from watersmeet.engine.merging import MergeTask
from watersmeet.engine.room_first import RoomFirst
from watersmeet.engine.shell import Operator
from watersmeet.engine.sizing import Grain, Sizing
from watersmeet.kernels.asof import WAITS
from watersmeet.kernels.radix import sorted_order
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.matching.nearest import Forgetting, Nearest, Nulls, RightRows, TimedOrder, Wanted
from watersmeet.memory import format_bytes, no_room_for
from watersmeet.records.asof_times import HASH, TIME, AsofCodec, AsofPlan, AsofTiming
from watersmeet.records.bands import HIGHEST, LOWEST
from watersmeet.records.intake import Received
from watersmeet.records.times import NEVER
from watersmeet.runs.sorted_run import OpenRun, SortedRun, let_go
from watersmeet.runs.spine import Merge, to_merge
from watersmeet.runs.timed_run import TimedMerge, TimedRun, write_run_in_order, write_timed_run
from watersmeet.spill.store import Store
from watersmeet.tables.arrival_index import ArrivalIndex, TimedIndex, WaitingIndex
from watersmeet.tables.hash_table import row_bytes
from watersmeet.tables.memtable import Memtable

_RUN_BYTES = 1024
"""What is remembered of a run and of the times beside it."""
_LEAST_RUNS = 16
_LEAST_FAN_IN = 3
_MOST_FAN_IN = 16
_SLICE_BYTES = 128
"""Of each left row that is looked up: hash, time, floor, what was found, and the room to sort them."""
_LEAST_SLICE = 64
_MOST_SLICE = 1 << 16
_BUFFER_SHARE = 16
_SIGN = np.int64(LOWEST)
_LEFT, _RIGHT = 0, 1


@dataclass
class LeftRun:
    """Left rows on disk, in the order of their floors; those before `place` are back in memory."""

    run: SortedRun
    level: int
    place: int = 0

    def first_floor(self) -> int:
        """The lowest floor of its rows."""
        self.run.check_hashes(self.place, self.place + 1)
        return int(self.run.hashes()[self.place : self.place + 1].view(np.int64)[0] ^ _SIGN)

    def count_upto(self, bound: int) -> int:
        """How many of its rows have a floor up to this."""
        self.run.check_hashes(self.place, self.run.rows)
        last = (np.int64(bound) ^ _SIGN).view(np.uint64)
        return int(np.searchsorted(self.run.hashes()[self.place :], last, "right"))


@dataclass
class RightRun:
    """Right rows on disk."""

    timed: TimedRun
    level: int
    latest: int
    """The last of their times."""


class AsofArrival(Arrival):
    """A batch on its way into memory, each row with its time."""

    def __init__(self, join: AsofJoin, side: int, batch: pa.RecordBatch, numbers: Int64, newest: int) -> None:
        hashes, valid = join.codec.hash(side, join.plans[side].key_arrays(batch))
        timed = join.timing.read(side, batch, newest)
        known = timed.known if valid is None else valid if timed.known is None else valid & timed.known
        drops = timed.late is not None and (side == _RIGHT or join.spec.times.late == "drop")
        in_time = ~timed.late if drops and timed.late is not None else None
        if side == _RIGHT or join.spec.how == "inner":
            fit = known if in_time is None else in_time if known is None else known & in_time
        else:  # a row without a key or a time comes without a partner
            fit = in_time
        if side == _RIGHT:
            keys, moments = hashes, [pa.array(timed.times)]
        else:
            keys = timed.floors if known is None else np.where(known, timed.floors, LOWEST)
            moments = [pa.array(timed.times, mask=None if known is None else ~known), pa.array(hashes)]
        Arriving.__init__(self, join, side, batch, numbers, [keys], fit, moments)
        self.lookup = None
        self.timed = timed
        self._reached = timed.newest if self.positions is None else timed.newest[self.positions]
        self._asof = self._join = join

    @property
    def at_hand(self) -> int:
        """Rows are not looked up as they arrive."""
        return 0

    def work(self, fuel: int) -> int:
        """Take the next rows."""
        join = self._asof
        if self.next == self.rows:
            return 1
        self.kept = join.must_keep(self.input)
        count = join.admit(self, min(fuel, self.rows - self.next))
        self.take_slice(count)
        return count

    def take_slice(self, count: int) -> None:
        """Move the next rows into memory, and let their times count."""
        keys, parts, columns = self.piece(count)
        join = self._asof
        self.next += count
        if self.kept:
            join.tables[self.input].append(keys, parts, columns, join.ticks(count))
            join.meter.inserts += count
        join.rows_taken(self.input, keys, int(self._reached[self.next - 1]))

    def finish(self) -> None:
        """The times of rows that match nothing count, too."""
        if len(self.timed.newest):
            self._asof.has_reached(self.input, int(self.timed.newest[-1]))

    def to_state(self) -> dict[str, Any]:
        """What was known before the rows that wait."""
        return {**super().to_state(), "newest": self.newest_before(self.unfinished().start)}

    def newest_before(self, row: int) -> int:
        """The newest time of the input before a row of the batch."""
        return int(self.timed.newest[row - 1]) if row else self.timed.before


class SettlementTask:
    """Left rows that the right input has passed, looked up slice by slice."""

    lookup = None

    def __init__(self, join: AsofJoin) -> None:
        self._join = join
        self.place = 0
        self.done = False
        self.mark, self.ended = join.right_mark
        self.loading = list(join.left_runs)
        """Runs that may have rows which the right input has passed."""
        self.right = join.begin_settlement()

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
    >>> join.poll(0.0, fuel=100).out.to_pylist()
    [{'sym': 'a', 't': 5, 't_right': 4}]
    """

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
        self._block_bytes = max(self.sizing.page_bytes, memory // _BUFFER_SHARE)
        self.budget.reservation("writing").grow(self._block_bytes)
        self._catalogue = self.budget.reservation("catalogue of runs")
        self._catalogue.set_aside(_LEAST_RUNS * _RUN_BYTES)
        self._catalogue_runs = 0
        self._fan_in = fan_in or max(_LEAST_FAN_IN, min(_MOST_FAN_IN, memory // (64 * _RUN_BYTES)))
        self._open_run = open_run or partial(SortedRun, store)
        self.left_runs: list[LeftRun] = []
        self.right_runs: list[RightRun] = []
        self.order = TimedOrder(self.tables[_RIGHT], self.sizing.pairs)
        self._answered: NDArray[np.uint8] = np.zeros(1024, np.uint8)
        """Of each left row in memory, whether it was handed out, or has no partner and need not be."""
        self._waiting = 0
        """How many left rows in memory were not."""
        self.lowest = HIGHEST
        """No left row that waits has a floor below this."""
        self._fresh_low = HIGHEST
        """Nor has one that came since the last settlement a floor below this."""
        self._settled = NEVER
        """The time that the right input had passed at the last settlement."""
        self._dirty = False
        """Whether something came since then that may settle rows."""
        self._written = 0
        self._nearest = Nearest(spec, self.timing, self.codec, self.plans)
        self._nulls = Nulls(self.plans[_RIGHT].types) if spec.how == "left" else None
        self.events: Counter[str] = Counter()
        """What happened how often: settlements, flushes, merges."""

    # --- memory ---

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        return 2 * cls._least_for_rows(spec) + _LEAST_RUNS * _RUN_BYTES

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
                row = int(numbers[np.flatnonzero(late)[0]])
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
        return side == _LEFT or not self.exhausted(_LEFT) or self.waiting_rows > 0

    @property
    def waiting_rows(self) -> int:
        """How many left rows wait, in memory and on disk."""
        return self._waiting + sum(each.run.rows - each.place for each in self.left_runs)

    @property
    def window_rows(self) -> int:
        """How many rows are remembered, in memory and on disk."""
        return self.waiting_rows + self.order.live + sum(each.timed.rows for each in self.right_runs)

    def rows_taken(self, side: int, keys: Int64, newest: int) -> None:
        """Rows have come into memory."""
        if side == _LEFT and len(keys):
            self._note_waiting(self.tables[_LEFT].rows, len(keys))
            low = int(keys.min())
            self.lowest, self._fresh_low = min(self.lowest, low), min(self._fresh_low, low)
        self.has_reached(side, newest)
        self._dirty = True

    def has_reached(self, side: int, newest: int) -> None:
        """An input has told a time."""
        if newest > self.newest[side]:
            self.newest[side] = newest
            self._dirty = True

    def _note_waiting(self, rows: int, count: int) -> None:
        if rows > len(self._answered):
            more = np.zeros(max(rows, 2 * len(self._answered)), np.uint8)
            more[: rows - count] = self._answered[: rows - count]
            self._answered = more
        self._answered[rows - count : rows] = 0
        self._waiting += count

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
        return self._dirty and self.waiting_rows > 0 and self.lowest <= self._eligible_upto(self.right_mark[0])

    def _asked_from(self) -> list[int]:
        """Times before which nobody asks as of: left rows that come are not before the horizon; those that wait were
        all looked up at the last settlement, or came since.

        One that waits to be nearest may be before the mark of that settlement; but then whatever comes right at the
        mark is nearer than what it has found before it, for else it would have been answered.
        """
        return [self._horizon, self._settled, self._fresh_low]

    def _forgetting(self) -> Forgetting:
        """What of the right input nobody asks for any more."""
        bound = min(self._asked_from())
        return Forgetting(self.spec, self.timing, self.plans[_RIGHT], self.codec.exact, bound)

    # --- work ---

    def _next_task(self) -> Task | None:
        if self.full:
            task = self._make_room()
            if task is not None:
                return task
        task = self._next_arrival()
        if task is not None:
            return task
        if self._can_settle():
            return SettlementTask(self)
        task = self._merge_task()
        if task is None and all(self._closed):
            self._done = True
        return task

    def _is_due(self, number: int) -> bool:
        return False

    def _is_urgent(self, task: Any) -> bool:
        return True

    def _has_urgent_work(self) -> bool:
        working = self._task is not None and not isinstance(self._task, Arriving)
        return working or self.full or self._can_settle() or bool(self._to_merge())

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

    def begin_settlement(self) -> RightRows:
        """Right rows in their order, to be looked up."""
        self.events["settled"] += 1
        exact = self.codec.exact  # else whatever is forgotten must be compared first, which had better wait
        self.order.bring_up(self._forgetting() if exact else None)
        return self._right_rows()

    def _right_rows(self) -> RightRows:
        return RightRows(self.tables[_RIGHT], [each.timed for each in self.right_runs], self._nulls)

    def settle(self, task: SettlementTask, fuel: int) -> int:
        """Look up the next left rows; returns the fuel that took."""
        numbers = self._next_slice(task, min(fuel, len(self.pairs.probes)))
        if not len(numbers):
            loaded = self._load_some(task, fuel)
            task.done = not loaded
            return max(1, loaded)
        left = self.tables[_LEFT]
        times, hashes = left.gather_all((TIME, HASH), numbers)
        known = times.is_valid().to_numpy(zero_copy_only=False) if times.null_count else None
        found = np.full(len(numbers), -1, np.int64)
        told = slice(None) if known is None else np.flatnonzero(known)
        wanted = Wanted(
            numbers[told],
            np.ascontiguousarray(hashes.to_numpy()[told]),
            np.ascontiguousarray(times.fill_null(0).to_numpy()[told]),
            np.ascontiguousarray(left.hashes(numbers[told])),
        )
        found[told] = self._nearest.find(wanted, left, task.right, list(self._sources()), task.mark, task.ended)
        self._note_found(numbers, found, task.right)
        self.meter.probes += len(numbers)
        self.meter.pages_read += len(self.right_runs)
        return len(numbers)

    def _sources(self) -> Iterator[tuple[Any, Int64, Int32, int]]:
        """What is looked up in, the oldest rows first: hashes, times, numbers of rows, and a code of the source."""
        none = np.empty(0, np.int32)
        for number, each in enumerate(self.right_runs):
            yield each.timed.hashes(), each.timed.times(), none, number + 1 << 32
        for stretch in self.order.stretches:
            yield *stretch, 0

    def _next_slice(self, task: SettlementTask, most: int) -> Int32:
        """Left rows in memory that wait and may be answered, from the task's place on."""
        table = self.tables[_LEFT]
        bound = self._eligible_upto(task.mark)
        found: list[Int64] = []
        count = 0
        while task.place < table.rows and count < most:
            stop = min(table.rows, task.place + 4 * most)
            floors = self._floors(task.place, stop)
            some = np.flatnonzero((self._answered[task.place : stop] == 0) & (floors <= bound))[: most - count]
            found.append(some + task.place)
            count += len(some)
            task.place = stop if count < most else int(found[-1][-1]) + 1
        return np.concatenate([np.empty(0, np.int64), *found]).astype(np.int32)

    def _floors(self, start: int, stop: int) -> Int64:
        index = self.tables[_LEFT].index
        assert isinstance(index, ArrivalIndex)
        return index.stretch(start, stop)

    def _note_found(self, numbers: Int32, found: Int64, right: RightRows) -> None:
        """Let rows be handed out that have a partner, or are wanted without."""
        nobody = found == -1
        if self.spec.how == "left":
            found = np.where(nobody, right.nobody, found)
            out = np.flatnonzero(found != WAITS)
        else:
            self._mark_answered(numbers[nobody])
            out = np.flatnonzero(found >= 0)
        self.pairs.probes[: len(out)] = numbers[out]
        self.pairs.rows[: len(out)] = found[out]
        self.pairs.count = len(out)

    def _mark_answered(self, numbers: Int32) -> None:
        self._answered[numbers] = 1
        self._waiting -= len(numbers)

    def _hand_out(self) -> tuple[pa.RecordBatch | None, int, int]:
        assert isinstance(self._task, SettlementTask)
        first, behind = self.pairs.first, self.pairs.count
        between = Between(_LEFT, self.tables[_LEFT], self._task.right)
        out, count = self.pairs.take(between, self.sizing.output_bytes)
        self._mark_answered(self.pairs.probes[first : self.pairs.first or behind])
        return out, count, count

    def settled(self, task: SettlementTask) -> None:
        """All left rows that could be answered were; what of the others is known now."""
        self._settled = task.mark
        self._fresh_low = HIGHEST
        self._dirty = False
        self._compact_left()
        self.lowest = self._lowest_floor()
        let_go([run for each in self.right_runs for run in each.timed.both])
        if self.exhausted(_LEFT) and not self.waiting_rows:
            self._forget_right()
        else:
            self._expire_runs()

    def _lowest_floor(self) -> int:
        rows = self.tables[_LEFT].rows
        waiting = self._floors(0, rows)[self._answered[:rows] == 0]
        return min(
            [HIGHEST, *(each.first_floor() for each in self.left_runs), *([int(waiting.min())] if len(waiting) else [])]
        )

    # --- left rows that leave memory, and come back ---

    def _compact_left(self) -> None:
        """Let left rows go that were answered: all of them, or the first, in whole blocks."""
        table = self.tables[_LEFT]
        if not table.rows:
            return
        if not self._waiting:
            self.forget(_LEFT, 0)
            return
        waiting = self._answered[: table.rows] == 0
        count = table.whole_blocks(int(np.argmax(waiting)))
        if count:
            self.gone[_LEFT][0] = int(table.ticks(np.array([count - 1], np.int32))[0])
            left = table.rows - count
            table.drop_first(count)
            self._answered[:left] = self._answered[count : count + left].copy()

    def _load_some(self, task: SettlementTask, fuel: int) -> int:
        """Bring left rows back that the right input has passed; returns how many."""
        bound = self._eligible_upto(task.mark)
        while task.loading:
            each = task.loading[0]
            count = each.count_upto(bound) if each.place < each.run.rows else 0
            if count:
                wide = max(1, each.run.nbytes // each.run.rows)
                return self._bring_back(task, each, min(count, max(1, fuel), max(1, self.sizing.page_bytes // wide)))
            task.loading.pop(0)
        return 0

    def _bring_back(self, task: SettlementTask, each: LeftRun, count: int) -> int:
        table = self.tables[_LEFT]
        rows = np.arange(each.place, each.place + count, dtype=np.int32)
        columns = each.run.gather_all(tuple(range(len(table.types))), rows)
        parts = np.zeros(count, np.int32)
        while not self.secure(lambda: table.reserve(parts, columns)):
            if table.rows > self._waiting:
                self._compact_left()
                task.place = min(task.place, table.rows)
                if table.rows > self._waiting:
                    self._write_left()
                    task.place = 0
            elif self._write_out():
                task.place = min(task.place, table.rows)
                task.right = self._right_rows()
            elif count > 1:
                return self._bring_back(task, each, count // 2)
            else:
                raise no_room_for(f"a row of {self.spec.names[_LEFT]}", sum(c.nbytes for c in columns), self.budget)
        keys = each.run.hashes()[each.place : each.place + count].view(np.int64) ^ _SIGN
        table.append(keys, parts, columns, self.ticks(count))
        self._note_waiting(table.rows, count)
        each.place += count
        self.events["left rows read back"] += 1
        self.meter.pages_read += self._pages_of(each.run, count)
        if each.place == each.run.rows:
            self.left_runs.remove(each)
            self.saver.discard([each.run.name])
            self._count_runs()
        return count

    def _write_left(self) -> None:
        """Write left rows that wait as a run, in the order of their floors."""
        table = self.tables[_LEFT]
        numbers = np.flatnonzero(self._answered[: table.rows] == 0).astype(np.int32)
        if len(numbers):
            floors = table.hashes(numbers)
            order = sorted_order(floors)
            keys = (floors[order] ^ _SIGN).view(np.uint64)
            name, width = self._new_name(_LEFT), self._row_bytes(_LEFT)
            run = write_run_in_order(self.store, name, table, keys, numbers[order], width, self._block_bytes)
            self.left_runs.append(LeftRun(run, 0))
            self._count_written(run)
            self.events["left rows written"] += 1
        self.forget(_LEFT, 0)
        self._waiting = 0

    def _row_bytes(self, side: int) -> int:
        table = self.tables[side]
        return max(1, table.row_nbytes // max(1, table.rows))

    # --- right rows that leave memory ---

    def _make_room(self) -> Task | None:
        """Let rows leave memory; or what must be done before."""
        self.full = False
        if self._can_settle():
            return SettlementTask(self)
        if not self._compact_right():
            self._write_out()
        return None

    def _compact_right(self) -> bool:
        """Copy right rows that are asked for to new blocks, if they are few: then the others go."""
        table = self.tables[_RIGHT]
        if not table.rows:
            return False
        stretch = self.order.whole(self._forgetting())
        count = len(stretch.rows)
        if 2 * count > table.rows or count * self._row_bytes(_RIGHT) > self._block_bytes // 2:
            return False
        numbers = stretch.rows
        columns = table.gather_all(tuple(range(len(table.types))), numbers)
        if sum(column.nbytes for column in columns) > self._block_bytes:
            return False
        hashes = stretch.hashes.view(np.int64)
        self.clock += 1
        self._forget_memory(_RIGHT)
        if count:
            parts = np.zeros(count, np.int32)
            if not table.reserve(parts, columns):
                raise AssertionError("rows do not fit into the memory that they just left")
            table.append(hashes, parts, columns, self.ticks(count))
        self.events["right rows stayed"] += 1
        return True

    def _write_out(self) -> bool:
        """Write rows of the side that holds more as a run; False if there are none."""
        left, right = self.tables
        if not self._waiting and left.rows:
            self.forget(_LEFT, 0)
            return True
        if not left.rows and not right.rows:
            return False
        if right.rows and (not left.rows or right.held >= left.held):
            self._write_right()
        else:
            self.clock += 1
            self._write_left()
        return True

    def _write_right(self) -> None:
        table = self.tables[_RIGHT]
        stretch = self.order.whole(self._forgetting())
        self.clock += 1
        if len(stretch.rows):
            name, width = self._new_name(_RIGHT), self._row_bytes(_RIGHT)
            timed = write_timed_run(self.store, name, table, stretch, width, self._block_bytes)
            self.right_runs.append(RightRun(timed, 0, int(stretch.times.max())))
            self._count_written(timed)
            self.events["right rows written"] += 1
        self._forget_memory(_RIGHT)

    def _forget_memory(self, side: int) -> None:
        self.forget(side, 0)
        if side == _RIGHT:
            self.order.clear()

    def _forget_right(self) -> None:
        """No left row waits or comes: nothing is asked for any more."""
        self._forget_memory(_RIGHT)
        self._drop_right(self.right_runs)

    def _expire_runs(self) -> None:
        """Runs whose rows are asked for no more go as a whole."""
        if self.right_runs:
            forgetting = self._forgetting()
            gone = [each for each in self.right_runs if forgetting.all_gone(each.latest)]
            self.events["expired runs"] += len(gone)
            self._drop_right(gone)

    def _drop_right(self, gone: Sequence[RightRun]) -> None:
        if gone:
            names = [name for each in gone for name in each.timed.names]
            self.right_runs = [each for each in self.right_runs if each not in gone]
            self.saver.discard(names)
            self._count_runs()

    def put_away(self) -> None:
        """Write all rows in memory as runs, if nothing is at hand: then the state is a list of runs."""
        if self._task is None and not self._arrivals_wait:
            self.clock += 1
            if self.tables[_RIGHT].rows:
                self._write_right()
            if self.tables[_LEFT].rows:
                self._write_left()

    def _new_name(self, side: int) -> str:
        self._written += 1
        return f"run-{side}-{self._written}"

    def _count_written(self, run: SortedRun | TimedRun) -> None:
        self.meter.pages_written += -(-run.nbytes // self.sizing.page_bytes)
        self.meter.seeks += 1
        self._count_runs()

    def _pages_of(self, run: Any, rows: int) -> int:
        pages: int = -(-run.nbytes * rows // (max(1, run.rows) * self.sizing.page_bytes))
        return pages

    def _count_runs(self) -> None:
        self._catalogue.shrink(self._catalogue_runs * _RUN_BYTES)
        self._catalogue_runs = len(self.left_runs) + len(self.right_runs)
        self._catalogue.grow(self._catalogue_runs * _RUN_BYTES)

    # --- runs that become one ---

    def _to_merge(self) -> tuple[int, int] | None:
        for side, runs in ((_RIGHT, self.right_runs), (_LEFT, self.left_runs)):
            count = to_merge([each.level for each in runs], self._fan_in)
            if count:
                return side, count
        return None

    def _merge_task(self) -> Task | None:
        found = self._to_merge()
        if found is None:
            return None
        side, count = found
        name = self._new_name(side)
        if side == _LEFT:
            some = self.left_runs[-count:]
            start = [each.place for each in some]
            left = Merge(self.store, name, [each.run for each in some], self.sizing.page_bytes, start)
            return MergeTask(self, side, left)
        runs = [each.timed for each in self.right_runs[-count:]]
        return MergeTask(
            self, side, TimedMerge(self.store, name, runs, self.sizing.page_bytes, self._forgetting().kept)
        )

    def merge_some(self, merge: Any) -> int:
        """Go on with a merge; returns the fuel that took."""
        passed: int = merge.work()
        pages = -(-passed * -(-merge.nbytes // self.sizing.page_bytes) // (2 * max(1, merge.rows)))
        self.meter.pages_read += pages
        self.meter.pages_written += pages
        return max(1, passed)

    def merged(self, number: int, merge: Any) -> None:
        """A merged run takes the place of those that it was made of."""
        count = len(merge.runs)
        self.events["merged"] += 1
        if number == _LEFT:
            level = self.left_runs[-1].level + 1
            names = [run.name for run in merge.runs]
            let_go(merge.runs)
            self.left_runs[-count:] = [LeftRun(merge.merged, level)]
        else:
            some = self.right_runs[-count:]
            names = [name for run in merge.runs for name in run.names]
            let_go([each for run in merge.runs for each in run.both])
            self.right_runs[-count:] = [RightRun(merge.merged, some[-1].level + 1, max(each.latest for each in some))]
            if not merge.merged.rows:
                self._drop_right(self.right_runs[-1:])
        self.saver.discard(names)
        self._count_runs()

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
            rows = self.tables[_LEFT].rows
            assert self._waiting == int(np.count_nonzero(self._answered[:rows] == 0))
            self.order.check()
            assert self._catalogue_runs == len(self.left_runs) + len(self.right_runs)
            assert self.lowest <= self._lowest_floor()

    def close(self) -> None:
        """Let go of everything."""
        if isinstance(self._task, MergeTask) and not self._task.done:
            self._task.merge.abort()
        super().close()
        self.left_runs, self.right_runs = [], []
        self.order.stretches = []

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        names = [each.run.name for each in self.left_runs]
        names += [name for each in self.right_runs for name in each.timed.names]
        answered: Bool = self._answered[: self.tables[_LEFT].rows] != 0
        return names, {
            "newest": list(self.newest),
            "late": list(self.late),
            "left_runs": [[each.run.name, each.level, each.place] for each in self.left_runs],
            "right_runs": [[each.timed.name, each.level, each.latest] for each in self.right_runs],
            "answered": base64.b64encode(np.packbits(answered).tobytes()).decode(),
            "known": [self.lowest, self._fresh_low, self._settled, self._dirty],
            "full": self.full,
            "written": self._written,
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        self.newest, self.late = list(state["newest"]), list(state["late"])
        left, right = (plan.types for plan in self.plans)
        self.left_runs = [
            LeftRun(self._open_run(name, left), level, place) for name, level, place in state["left_runs"]
        ]
        self.right_runs = [
            RightRun(TimedRun.open(self._open_run, name, right), level, latest)
            for name, level, latest in state["right_runs"]
        ]
        self.lowest, self._fresh_low, self._settled, self._dirty = state["known"]
        self.full, self._written = state["full"], state["written"]
        self._count_runs()

    def _load_rows(self, snapshot: Any) -> None:
        super()._load_rows(snapshot)
        rows = self.tables[_LEFT].rows
        packed = np.frombuffer(base64.b64decode(snapshot.state["answered"]), np.uint8)
        self._answered = np.zeros(max(1024, rows), np.uint8)
        self._answered[:rows] = np.unpackbits(packed, count=rows)
        self._waiting = int(np.count_nonzero(self._answered[:rows] == 0))

    def _load_tasks(self, state: dict[str, Any], waiting: list[list[Received]]) -> None:
        if state["task"] is not None and state["task"]["kind"] == "arrival":
            super()._load_tasks(state, waiting)
