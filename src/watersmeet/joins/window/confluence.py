"""Confluence for windows: runs carry their span of time and expire whole, and what is owed is merged, not scanned.

Our own join. See `WindowConfluence`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.errors import ProtocolError
from watersmeet.core.kinds import KINDS
from watersmeet.core.protocol import AddQuery, Event, RemoveQuery, Snapshot
from watersmeet.core.queries import QueriesSpec
from watersmeet.core.report import Report
from watersmeet.core.spec import JoinSpec, Output
from watersmeet.core.windows import TimeSpan, WindowJoinSpec
from watersmeet.engine.arrival import Arrival, Task
from watersmeet.engine.held_results import LEAST_HELD, EmitTask, FoundOrHeld, HeldResults
from watersmeet.engine.sizing import Sizing
from watersmeet.engine.windows import ALWAYS, TimedArrival, TimedLookup, TimedRangeLookup
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.window.queries import EVENT, QueriedArrival, Queries, least_for
from watersmeet.joins.window.settled_rows import SettledRows, TrackedTimedArrival
from watersmeet.matching.debts import RunEntry, SettlingWithinWindow, WindowDebts, WithinWindow
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.matching.lookup import Condition, Lookup
from watersmeet.matching.owing import OwingRows
from watersmeet.matching.query_sets import TaggedPairs, WantedPairs
from watersmeet.matching.reach import BandKeys
from watersmeet.matching.settlement import Settlement
from watersmeet.matching.time_keys import TimeKeys, TimeReach
from watersmeet.memory import Budget
from watersmeet.records.addressed import AddressedRows
from watersmeet.records.times import CLASS, FLOOR, TIME, ResultTimes, WindowCodec, WindowPlan
from watersmeet.runs.sorted_run import let_go
from watersmeet.spill.store import Store
from watersmeet.tables.hash_table import Probe, row_bytes
from watersmeet.tables.memtable_index import HashIndex, RangeIndex
from watersmeet.tables.memtables import WindowMemtable

_EXPIRED = 2
"""Expired rows leave memory when they are so many: one in two. Until then nobody asks for them, and those that stay
have to be put into the index anew."""
_EXPIRED_WHEN_FULL = 8
"""One in so many, where memory is full."""
_HELD_SHARE = 4
"""Results that wait for their time have one part in so many of the memory, beyond what there must be."""
_PUT_AWAY_FAN_IN = 16
"""So many runs of single batches become one."""


def _codec(spec: JoinSpec) -> WindowCodec | BandKeys:
    """By which keys rows are found: hashes of equal values; else the values that are to be close; else the times."""
    if spec.equalities:
        return WindowCodec(spec)
    if spec.band is not None:
        return BandKeys(spec)
    assert isinstance(spec, WindowJoinSpec)
    return WindowCodec(spec) if spec.counted else TimeKeys(spec)


class WindowConfluence(Confluence):
    """The same join for endless inputs: what has left its window is forgotten, in memory and on disk.

    As long as the windows fit, rows are looked up in memory as they arrive, and those that have expired go. When memory
    is full, it goes as with `watersmeet.joins.confluence.Confluence`, but that time tells what need not be met::

        time ──────────────────────────────────────────────────────────────────────▶
        runs of R     [· · · ·][· · · · ·][· · · ·][· · · · ·][· · · ·]  memtable R
                       expired  ╰──────────── met by ───────────╯
        rows of L                  that owe: ╰ floor of the oldest ╯    memtable L

    - A run knows from when until when its rows are. Rows that settle are merged with the hashes of those runs that are
      within their reach, and of all pairs with equal hashes those stay whose times are close enough.
    - A run whose rows can meet nobody any more goes as a whole, and nothing of it is read.
    - Runs become one only where together they span a quarter of the window or less, so that they still go in time.

    Where nothing but the time tells which rows meet, rows are sorted by time in place of hashes, in memory and in runs,
    and a row looks for the times that its windows reach (`matching.time_keys`); with a band alone, by its values.

    `matching.debts` has the argument. Times of rows, or their numbers if windows count rows, lie with the rows;
    so do their floors, which say how far a row that came late may still look back.

    Where many queries share the join (`core.queries`), rows carry the class of queries that want them, rows that nobody
    wants end where they arrive, and pairs come with the names of their queries (`joins.window.queries`).

    :param delay: how long a pair may wait after its later row came, `"1 s"` or seconds; None: for the next settlement.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import LEFT, RIGHT, Arrive, Stall
    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.core.windows import parse_windows
    >>> from watersmeet.spill.store import MemoryStore
    >>> schema = pa.schema({"id": pa.int64(), "t": pa.int64()})
    >>> spec = WindowJoinSpec(schema, schema, parse_on("id"), window=parse_windows(1000, "t"))
    >>> join = WindowConfluence(spec, WindowConfluence.least_memory(spec), MemoryStore())
    >>> rows = 0
    >>> for start in range(0, 8000, 500):
    ...     for side in (LEFT, RIGHT):
    ...         numbers = pa.array(range(start, start + 500))
    ...         join.receive(Arrive(side, pa.record_batch([numbers, numbers], schema)))
    ...         while (step := join.poll(0.0, fuel=1000)).status.name == "HAS_OUTPUT":
    ...             rows += step.out.num_rows if step.out else 0
    >>> join.receive(Stall())
    >>> while (step := join.poll(0.0, fuel=1000)).status.name != "NEED_INPUT":
    ...     rows += step.out.num_rows if step.out else 0
    >>> rows, join.events["flushed"] > 0, join.events["expired runs"] > 0, join.window_rows < 6000
    (8000, True, True, True)
    """

    name: ClassVar[str] = "confluence"
    windowed: ClassVar[bool] = True
    joins_points: ClassVar[bool] = False
    takes_punctuations: bool = True
    emits: ClassVar[tuple[str, ...]] = ("early", "final")
    needs_keys: ClassVar[bool] = False
    takes_queries: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = tuple(KINDS)
    least_runs: ClassVar[int] = 28
    paths: ClassVar[tuple[str, ...]] = (
        "flushed", "settled before a flush", "settled in a silence", "expired runs"
    )  # fmt: skip
    """Events that a run which spills goes through."""
    spec: WindowJoinSpec
    plans: tuple[WindowPlan, WindowPlan]
    tables: tuple[WindowMemtable, ...]
    debts: WindowDebts
    alone: SettledRows

    def __init__(self, spec: WindowJoinSpec, memory: int, store: Store, **options: Any) -> None:
        self.passed_by_batches: list[int] | None = None
        """Where rows come in batches: how far the inputs had come before this one."""
        self._for_queries = least_for(spec) if isinstance(spec, QueriesSpec) else 0
        """Bytes of the memory that the rest is not divided from."""
        super().__init__(spec, memory - self._for_queries, store, **options)
        self.queries: Queries | None = None
        """The queries of which pairs are results; None: there is one join."""
        if isinstance(self.pairs, TaggedPairs):
            assert isinstance(spec, QueriesSpec)
            self.queries = Queries(self, spec, memory - self._least)
            self.pairs.queries = self.queries.sets
        self.held: HeldResults | None = None
        """Results that wait until their time has passed; None: they go out as they are found."""
        if spec.window.emit == "final" and spec.output is Output.ROWS:
            most = max(0, memory - self._least) // _HELD_SHARE
            # A batch goes out of a page of each segment: small pages would make small batches.
            page = max(self.sizing.page_bytes, self.sizing.output_bytes // 4)
            self.held = HeldResults(spec.schema, self.budget, most, store, page, self.saver.discard)
            self._result_times = ResultTimes(spec, self.timed.timing)
            self.found = FoundOrHeld(self.pairs, self.held)

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        final = isinstance(spec, WindowJoinSpec) and spec.window.emit == "final"
        queries = least_for(spec) if isinstance(spec, QueriesSpec) else 0
        return super().least_memory(spec, **options) + (LEAST_HELD if final else 0) + queries

    @classmethod
    def refuse_too_little(cls, spec: Any, memory: int) -> None:
        """An error if so much memory, beside what the queries of a spec take, is not enough."""
        super().refuse_too_little(spec, memory + (least_for(spec) if isinstance(spec, QueriesSpec) else 0))

    def _make_budget(self, memory: int) -> Budget:
        return super()._make_budget(memory + self._for_queries)

    @classmethod
    def _least_for_rows(cls, spec: JoinSpec) -> int:
        codec = _codec(spec)
        more = RangeIndex.row_bytes - HashIndex.row_bytes if isinstance(codec, BandKeys) else 0
        return Sizing.least([row_bytes(WindowPlan(spec, side, codec).types) + more for side in (0, 1)])

    def _make_codec(self) -> WindowCodec | BandKeys:
        return _codec(self.spec)

    def _make_plans(self) -> tuple[WindowPlan, WindowPlan]:
        assert isinstance(self.codec, WindowCodec | BandKeys)
        return WindowPlan(self.spec, 0, self.codec), WindowPlan(self.spec, 1, self.codec)

    def _make_pairs(self) -> PairBuffer:
        if isinstance(self.spec, QueriesSpec):
            return TaggedPairs(self.spec, self.codec, self.plans, self.sizing.pairs, wide=True)
        return super()._make_pairs()

    def _make_table(self, side: int) -> WindowMemtable:
        by_range, marked = isinstance(self.codec, BandKeys), self.spec.kind.tracked[side]
        name = self.spec.names[side]
        return WindowMemtable(self.plans[side].types, self.budget, self.sizing.layout, name, by_range, marked=marked)

    def _make_keeping(self) -> None:
        """Rows stay for as long as others may come within their window, in the order of their times."""

    def _make_alone(self) -> SettledRows:
        return SettledRows(self)

    def _make_debts(self) -> WindowDebts:
        return WindowDebts(self.tables, self.timed.timing)

    def reach(self, side: int) -> BandKeys | TimeReach | None:
        return self.codec.of(side) if isinstance(self.codec, TimeKeys) else super().reach(side)

    def condition(self, side: int) -> Callable[[AddressedRows, Int64], Condition]:
        """Their times are to be close enough."""
        within = partial(SettlingWithinWindow, self.timed.timing, side)
        queries = self.queries
        if queries is None:
            return within
        return lambda rows, numbers: WantedPairs(within(rows, numbers), queries.sets, side, rows, numbers)

    def arrival_lookup(self, side: int, hashes: Int64, parts: Int32, columns: list[Any], source: Any) -> Lookup:
        """The look-up of rows that arrived on one side in the memtable of the other."""
        other = self.tables[1 - side]
        times, floors = columns[TIME].to_numpy(), columns[FLOOR].to_numpy()
        within = WithinWindow.arrived(self.timed.timing, side, times, floors)
        queries = self.queries

        def close_enough(probes: Int32, rows: Int32) -> Bool:
            close = within.holds(probes, other, rows)
            if queries is not None and (places := np.flatnonzero(close)).size:
                who = probes[places]
                looking = times[who], floors[who], columns[CLASS].to_numpy()[who]
                close[places] = queries.sets.wanted(side, looking, other, rows[places])
            return close

        between, reach = Between(side, source, other), self.reach(side)
        if reach is not None:
            return TimedRangeLookup(reach.probe(hashes, columns), other, between, self, close_enough)
        return TimedLookup(Probe(hashes, other.buckets_of(hashes)), other, between, self, close_enough)

    def receive(self, event: Event) -> None:
        """Take note of an event."""
        if self.queries is None or not isinstance(event, AddQuery | RemoveQuery):
            super().receive(event)
            return
        assert self._order is not None
        if all(self._ended):
            raise ProtocolError("all inputs have ended; no row can follow that a query could have")
        self.queries.receive(event)
        self._order.tell(EVENT, 0)

    def _heed(self, number: int, time: int) -> bool:
        if number != EVENT:
            return super()._heed(number, time)
        assert self.queries is not None
        return self.queries.change() or self._wait_for_room()

    def _wait_for_room(self) -> bool:
        """Queries need memory: something has to leave it first. False, or an error if nothing can."""
        assert self.queries is not None
        if not any(table.rows for table in self.tables):
            raise self.queries.no_room()
        self.full = True
        return False

    def _next_arrival(self) -> Task | None:
        task = super()._next_arrival()
        return self._urgent_task() if task is None and self.full else task

    def _arrival(self, side: int, batch: pa.RecordBatch, numbers: Int64) -> Task | None:
        assert self.windows is not None and self._order is not None
        if self.queries is not None and not self.queries.tell_classes(side, batch):
            self._intakes[side].put_back(batch, numbers)
            self._order.put_back(side, batch.num_rows)
            self._wait_for_room()
            return None
        kind = self._arrival_kind(side)
        return self.windows.arrival(self, side, batch, numbers, self._intakes[1 - side].numbered, kind)

    def _arrival_kind(self, side: int) -> type[TimedArrival]:
        if self.queries is not None:
            return QueriedArrival
        return TrackedTimedArrival if self.spec.kind.tracked[side] else TimedArrival

    def span_of(self, side: int) -> TimeSpan:
        """From when until when the rows of a memtable are."""
        return self.tables[side].span_from(0)

    @property
    def window_rows(self) -> int:
        """How many rows are remembered, in memory and on disk."""
        return super().window_rows + sum(entry.run.rows for runs in self.debts.runs for entry in runs)

    def report(self) -> Report:
        """Where it is, and how late pairs were."""
        delays = self.timed.delays.plus(self.owed_since.lateness)
        return replace(super().report(), window=self.timed.figures(self.window_rows, delays))

    def wake_at(self) -> float | None:
        """When rows should settle, or an input that says nothing will no longer hold back the other."""
        wanted = super().wake_at(), self.timed.wake_at(self._ended)
        return min((at for at in wanted if at is not None), default=None)

    # --- results that wait ---

    @property
    def final_before(self) -> int:
        """No result of an earlier time than this will be found any more.

        A row that is still to come is not older than its input's mark, unless it is dropped; and a pair is as late as
        the later of its rows. So is a pair that a row which owes has yet to find.
        """
        newest = self.timed.newest if self.passed_by_batches is None else self.passed_by_batches
        marks = [self.timed.timing.late_before(newest[side]) for side in (0, 1) if not self.exhausted(side)]
        owing = [self.debts.span_of_owing(side).earliest for side in (0, 1) if self.debts.owes(side)]
        return min([*marks, *owing], default=ALWAYS)

    @property
    def due(self) -> list[int | None] | None:
        """Times that something waits for: see `Operator.due`."""
        final = self.held.first if self.held is not None and self.held.rows else None
        waiting = [final, self.alone.earliest(0), self.alone.earliest(1)]
        return None if waiting == [None, None, None] else waiting

    def advance(self, newest: Sequence[int]) -> None:
        """Learn, between two batches, how far the inputs have come in all operators: so far results are final.

        What the rows of a batch tell counts from the next one on, so that results of a batch are later than those of
        all batches before it, whatever operator they come from.
        """
        super().advance(newest)
        self.passed_by_batches = list(self.timed.newest)

    def _can_emit(self) -> bool:
        """Whether the time of some results has passed, and nothing is at hand that might lead to earlier ones."""
        held = self.held
        if held is None or not held.rows or self._arrivals_wait or not held.first < self.final_before:
            return False
        return not any(self.alone.has_come(side) for side in (0, 1))

    def _urgent_task(self) -> Task | None:
        task = super()._urgent_task()
        return EmitTask(self, self.final_before) if task is None and self._can_emit() else task

    def _has_urgent_work(self) -> bool:
        if isinstance(self._task, Arrival):
            # When it ends, rows may be settled, and results final: no fuel was left for that.
            return self._task.done or super()._has_urgent_work()
        return super()._has_urgent_work() or self._can_emit()

    def _clean_up_task(self) -> Task | None:
        task = super()._clean_up_task()
        return EmitTask(self, self.final_before) if task is None and self._can_emit() else task

    def emit_some(self, before: int) -> int:
        """Make results ready that are before a time; returns the fuel that took."""
        assert self.held is not None
        self.held.prepare(before, self.sizing.output_bytes)
        self.events["emitted"] += 1
        return 1

    def _hand_out(self) -> tuple[pa.RecordBatch | None, int, int]:
        held = self.held
        if held is not None and held.ready is not None:
            out = held.hand_out()
            if isinstance(self._task, EmitTask) and self._task.done:
                self._task = None
            return out, out.num_rows, out.num_rows
        out, count, used = super()._hand_out()
        if held is None or out is None:
            return out, count, used
        before = held.pages_written
        held.add(self._result_times.of(out), out)
        self.meter.pages_written += held.pages_written - before
        self.events["held on disk"] += held.pages_written > before
        return None, 0, used

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        if self.held is not None:
            self.held.check()
        if self.queries is not None:
            self.queries.check()

    # --- runs of others ---

    def adopt(self, side: int, entries: Sequence[RunEntry], named: int) -> None:
        """Take over runs that others of this join have put away; here they are merged as those of its own are."""
        super().adopt(side, entries, named)
        self.catalogue.batch_began = 0

    def adopt_results(self, others: HeldResults) -> None:
        """Results that wait with another operator wait here from now on."""
        assert self.held is not None
        while others.rows:
            others.prepare(ALWAYS, self.sizing.output_bytes)
            found = others.hand_out()
            self.held.add(self._result_times.of(found), found)

    # --- snapshots ---

    def put_away(self) -> None:
        """Write both memtables as runs, if they owe nothing: then the state is a list of runs."""
        if self._task is not None or self._arrivals_wait or any(self.debts.owes(side) for side in (0, 1)):
            return
        # Such runs are small, and are opened again if another worker goes on.
        self.catalogue.fan_in = min(self.catalogue.fan_in, _PUT_AWAY_FAN_IN)
        for side, table in enumerate(self.tables):
            if table.rows:
                self.flushing.flush(side)
                self.events["put away"] += 1

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        segments, state = super()._own_state()
        held = None if self.held is None else self.held.to_state()
        names = [] if self.held is None else self.held.names
        return [*segments, *names], {
            **state,
            "firsts": [table.first for table in self.tables],
            "held": held,
            "passes": self.alone.to_state(),
            "queries": None if self.queries is None else self.queries.to_state(),
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        super()._load_own(state)
        self.alone.load(state["passes"])
        if self.queries is not None:
            self.queries.load(state["queries"])
        if self.held is not None:
            self.held.load(state["held"])

    def _load_task(self, state: dict[str, Any]) -> Task:
        return EmitTask(self, state["before"]) if state["kind"] == "emit" else super()._load_task(state)

    def _load_rows(self, snapshot: Snapshot) -> None:
        super()._load_rows(snapshot)
        for table, first in zip(self.tables, snapshot.state["firsts"], strict=True):
            table.first = first

    # --- expiry ---

    def _make_room(self) -> Task | None:
        if self._expire_rows(_EXPIRED_WHEN_FULL) or not any(table.rows for table in self.tables):
            return None
        return super()._make_room()

    def settled_now(self, settlement: Settlement) -> None:
        """All rows of a settlement have met all runs that they owed."""
        self._count_delayed(settlement)
        super().settled_now(settlement)
        self.expire()

    def _input_closed(self, side: int) -> None:
        self.expire()

    def expire(self) -> bool:
        """Let go of what has expired: of rows in memory if they are many, and of runs."""
        rows, runs = self._expire_rows(_EXPIRED), [self._expire_runs(side) for side in (0, 1)]
        return rows or any(runs)

    def _expire_rows(self, share: int) -> bool:
        """Let the first rows of each memtable go if one in so many has expired, or all."""
        some = False
        for side, table in enumerate(self.tables):
            if not table.rows or self.settlements.begun[side] is not None:
                continue  # rows on their way through runs are known by their numbers
            most = self.alone.may_expire(side, self.debts.settled[side] if self.debts.rows_owe(side) else table.rows)
            count = table.let_expire(self.expired_before(side), most)
            if count and share * count >= table.rows:
                self.gone[side][0] = int(table.ticks(np.array([count - 1], np.int32))[0])
                table.drop_first(count)
                self.debts.rows_dropped(side, count)
                self.alone.rows_dropped(side, count)
                self.owed_since.came[side].count_from(count)
                self.events["expired blocks"] += -(-count // self.sizing.layout.block_rows)
                some = True
        return some

    def _expire_runs(self, side: int) -> bool:
        gone = self.debts.drop_expired(side, self.expired_before(side), partial(self.alone.run_may_expire, side))
        if gone:
            names = [entry.run.name for entry in gone]
            let_go([entry.run for entry in gone])
            self.catalogue.forget_bits(side, names)
            self.alone.runs_dropped(side, names)
            self.saver.discard(names)
            self.events["expired runs"] += len(gone)
            self.catalogue.count()
        return bool(gone)

    def _count_delayed(self, settlement: Settlement) -> None:
        """Count rows that had left their own window when they had met the last of what they had to meet."""
        length, came = self.spec.seconds(settlement.side), self.owed_since.came[settlement.side]
        if settlement.met is not None:
            return  # they have yet to meet others
        if length is None or came.first is None or self.now - came.first <= length:
            return
        if isinstance(settlement.debtor, OwingRows):
            times = came.times(np.arange(settlement.debtor.low, settlement.debtor.high) + 1)
            if times is not None:
                self.timed.delayed += int(np.count_nonzero(self.now - times > length))
