"""Confluence of several inputs by windows: what has left its window is forgotten, in memory and on disk.

Our own join. See `ManyWindowConfluence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.delays import Delays, Marks
from watersmeet.core.errors import SpecError
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.report import Report, WindowFigures
from watersmeet.engine.merging import MergeTask
from watersmeet.engine.multi_arrival import Arrival
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.joins.multiway.many_settlement import ManySettlement
from watersmeet.joins.window.windowed_mjoin import WindowedArrival
from watersmeet.matching.found_combinations import TABLE
from watersmeet.matching.multi_windows import MomentPlan, Reached, SettledFilter, WindowClock, words_known
from watersmeet.records.plan import RowPlan
from watersmeet.runs.sorted_run import let_go
from watersmeet.spill.store import Store
from watersmeet.tables.memtables import ManyWindowMemtable

_EXPIRED = 2
"""Expired rows leave memory when they are so many: one in two. Those that stay have to be put into the index anew."""
_EXPIRED_WHEN_FULL = 8
"""One in so many, where memory is full."""
_PUT_AWAY_FAN_IN = 8
"""Of a join of batches, each of which writes runs: so many become one."""


class ManyWindowConfluence(ManyConfluence):
    """Rows of several inputs meet in memory as they arrive, and what is on disk a little later; then they expire.

    It is `watersmeet.joins.multiway.confluence.ManyConfluence` for endless inputs::

        time ──────────────────────────────────────────────────────────────▶
        runs of r    [· · · ·][· · · ·][· · · ·][· · · ·]   memtable of r
        runs of s    [· · · ·][· · · ·][· · · ·][· · · ·]   memtable of s     rows that owe settle with all of these
                      expired: goes as a whole, unread

    Which combinations are results is told in `core.many_windows`. As long as the windows fit into memory, rows are
    looked up there alone, and those that have expired go, many at a time. When memory is full, all of it is written,
    sorted; rows that come after owe what is there, and settle with many others at once (`many_settlement`).

    **What may go.** A row is of no more use if all rows that may still meet it come too late for it. Those are rows to
    come, and rows that owe: they arrived, and have yet to meet what is on disk. So what has expired is judged by how
    far the inputs had come *before the first row that owes arrived*, which is noted when a settlement begins, and
    whenever nothing is owed. A row that owes stays until it has settled.
    (`tests/conformance/test_multi_windows.py` breaks both rules, and is noticed.)

    Runs become one only where together they span a quarter of the window or less, so that they still go in time.
    An input that has been silent keeps the others' rows alive, where windows measure time: it may still send old rows.

    Options are those of `ManyConfluence`.

    >>> from watersmeet.core.protocol import Arrive, Stall
    >>> from watersmeet.core.many_windows import parse_many_windows
    >>> from watersmeet.spill.store import MemoryStore
    >>> schema = pa.schema({"a": pa.int64(), "t": pa.int64()})
    >>> windows = parse_many_windows(20_000, "rsu", time="t")
    >>> spec = MultiSpec.of({name: schema for name in "rsu"}, ["r.a = s.a", "s.a = u.a"], window=windows)
    >>> join = ManyWindowConfluence(spec, ManyWindowConfluence.least_memory(spec), MemoryStore(), floor=0)
    >>> rows = 0
    >>> for start in range(0, 80_000, 5_000):
    ...     numbers = pa.array(range(start, start + 5_000))
    ...     for number in range(3):
    ...         join.receive(Arrive(number, pa.record_batch([numbers, numbers], schema)))
    ...         while (step := join.poll(0.0, 1000)).status.name == "HAS_OUTPUT":
    ...             rows += step.out.num_rows if step.out else 0
    >>> join.receive(Stall())
    >>> while (step := join.poll(0.0, fuel=1000)).status.name != "NEED_INPUT":
    ...     rows += step.out.num_rows if step.out else 0
    >>> rows, join.events["flushed"] > 0, join.events["expired runs"] > 0, join.window_rows < 120_000
    (80000, True, True, True)
    """

    windowed: ClassVar[bool] = True
    preserves: ClassVar[bool] = False
    tables: tuple[ManyWindowMemtable, ...]

    def __init__(self, spec: MultiSpec, memory: int, store: Store, **options: Any) -> None:
        self.window_clock = WindowClock(spec)
        self.parts: Sequence[Sequence[int]] = [(number,) for number in range(len(spec.names))]
        """By input, of which of the clock's inputs its rows have moments."""
        self.delays = Delays()
        """Of each result, the seconds from the first poll after its last row came until it was found."""
        self.since = self.window_clock.at
        """How far the inputs had come before the first row that owes arrived."""
        self._began = self.since
        """How far they had come when the settlement at hand began."""
        self._came = Marks()
        """When rows came, by their ticks."""
        super().__init__(spec, memory, store, **options)

    # --- what rows are kept in ---

    @classmethod
    def _make_plan(cls, spec: MultiSpec, number: int, exact_hash: bool) -> RowPlan:
        if spec.window is None:
            raise SpecError("a join by windows needs window=...")
        return MomentPlan(spec, number, exact_hash, 1 + words_known(spec))

    def _make_table(self, number: int) -> Any:
        attributes = len(self.spec.attributes[number])
        return ManyWindowMemtable(
            self.plans[number].types, attributes, self.budget, self.sizing.layout, self.spec.names[number]
        )  # fmt: skip

    @property
    def late(self) -> list[int]:
        """How many rows of each input came too late."""
        return self.window_clock.late

    @property
    def window_rows(self) -> int:
        """How many rows are remembered, in memory and on disk."""
        return sum(table.rows for table in self.tables) + sum(disk.rows for disk in self.disks)

    def report(self) -> Report:
        clock, delays = self.window_clock, self.delays.median_and_p99()
        figures = WindowFigures(
            tuple(self.late), self.window_rows, delays, reached=clock.reached(), dated=clock.tick is not None
        )
        return Report(window=figures, probing=self.order.figures())

    # --- arrivals ---

    def _input_closed(self, number: int) -> None:
        self.window_clock.close(self._closed)
        self.expire()

    def _arrival(self, number: int, batch: pa.RecordBatch, numbers: Int64) -> Arrival:
        arrival = SettlingArrival(self, number, batch, numbers, self.window_clock.newest[number])
        self.window_clock.count_late(number, arrival.moments, numbers)
        return arrival

    def _take_back(self, arrival: Any) -> None:
        super()._take_back(arrival)
        arrival.taken_back()

    def arrived(self) -> None:
        """Rows have just been taken into memory."""
        if self.flushing.on_disk:
            self._came.add(self.clock, self.now)

    def _resumed_arrival(self, state: dict[str, Any], batch: pa.RecordBatch, numbers: Int64) -> Arrival:
        return SettlingArrival(self, state["input"], batch, numbers, state["newest"])

    # --- settling ---

    def settled_filter(self) -> SettledFilter:
        """They must be in all windows."""
        return SettledFilter(self.window_clock, self.inputs)

    def _settle_task(self, why: str, urgent: bool = False) -> ManySettlement:
        if self.settling is None:
            self._began = self.window_clock.at
        return super()._settle_task(why, urgent)

    def settled_now(self, settlement: ManySettlement) -> None:
        """All rows that owed when a settlement began have met everything."""
        super().settled_now(settlement)
        self.since = self._began
        self.expire()

    def note_settled(self, ids: Int64) -> None:
        """These combinations were found by rows that settle: count how long the last of their rows that are still in
        memory have waited. Nobody noted when the others came.
        """
        last = np.full(ids.shape[1], -np.inf)
        for table, own in zip(self.tables, ids, strict=True):
            places = np.flatnonzero(own >> 32 == TABLE)
            times = self._came.times(table.ticks(own[places].astype(np.int32))) if len(places) else None
            if times is not None:
                last[places] = np.maximum(last[places], times)
        known = last[np.isfinite(last)]
        self.delays.add(((self.now - known) * 1e6).astype(np.int64))

    # --- expiry ---

    def advance(self, newest: Sequence[int]) -> None:
        """Learn, between two batches, that the inputs have reached these times in rows that came to other operators."""
        assert not self._arrivals_wait, "rows that have come before are judged by what was known then"
        self.window_clock.advance(newest)
        self.expire()

    def expired_before(self, side: int) -> int:
        """Rows of an input that are older than this meet nothing that is still to come, or that owes."""
        return self.window_clock.expired_before(side, (side,), self.since if self.owes else None)

    def window_of(self, number: int) -> int:
        """How long rows of an input are remembered."""
        return self.window_clock.spans[number]

    def rows_expire(self) -> bool:
        """Memory is full: let go of rows that nobody will ask for, if they are many."""
        return self._expire(_EXPIRED_WHEN_FULL)

    def expire(self) -> bool:
        """Let go of what has expired: of rows in memory if they are many, and of runs."""
        return self._expire(_EXPIRED)

    def _expire(self, share: int) -> bool:
        if self.settling is not None or isinstance(self._task, MergeTask) or not self.tables:
            return False  # rows on their way through runs are known by their numbers
        owes = self.owes
        if not owes:
            self.since = self.window_clock.at
        bounds = list(map(self.expired_before, range(len(self.tables))))
        some = [self._expire_rows(number, before, share, owes) for number, before in enumerate(bounds)]
        gone = [self._expire_runs(number, before) for number, before in enumerate(bounds)]
        if any(gone):
            self.flushing.count()
        return any(some)

    def _expire_rows(self, number: int, before: int, share: int, owes: bool) -> bool:
        """Let the first rows of a memtable go if one in so many has expired."""
        table = self.tables[number]
        count = table.let_expire(before, self.settled[number] if owes else table.rows) if table.rows else 0
        if not count or share * count < table.rows:
            return False
        self.gone[number] = int(table.ticks(np.array([count - 1], np.int32))[0])
        table.drop_first(count)
        self.settled[number] = max(0, self.settled[number] - count)
        self.events["expired rows"] += count
        return True

    def _expire_runs(self, number: int, before: int) -> bool:
        gone = self.disks[number].forget_before(before)
        for each in gone:
            let_go(each.runs)
            self.saver.discard([run.name for run in each.runs])
        self.events["expired runs"] += len(gone)
        return bool(gone)

    # --- snapshots ---

    def put_away(self) -> None:
        """Write all memtables as runs, if they owe nothing: then the state is a list of runs."""
        self.expire()
        if self._task is not None or self._arrivals_wait or self.owes:
            return
        # Such runs are small, and are opened again if another worker goes on.
        self.flushing.fan_in = min(self.flushing.fan_in, _PUT_AWAY_FAN_IN)
        if any(table.rows for table in self.tables):
            self.flushing.flush()
            self.events["put away"] += 1

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        assert self._order is not None and self._order.rows == sum(intake.rows for intake in self._intakes)
        assert all(not each.span.is_empty for disk in self.disks for each in disk.sets)

    def _own_state(self) -> dict[str, Any]:
        return {
            **super()._own_state(),
            "window": self.window_clock.to_state(),
            "since": self.since.to_state(),
            "began": self._began.to_state(),
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        super()._load_own(state)
        self.window_clock.load(state["window"])
        self.window_clock.close(self._closed)
        self.since, self._began = Reached.from_state(state["since"]), Reached.from_state(state["began"])


class SettlingArrival(WindowedArrival):
    """Rows carry with them what was known when they came, for they may meet others later."""

    join: ManyWindowConfluence

    def _known(self, driver: int) -> list[Int64]:
        return self._windowed.window_clock.known(driver, self.moments)

    def begin(self, fuel: int) -> None:
        """Take the next slice into memory, let its moments count, and begin to look it up."""
        super().begin(fuel)
        if self.kept:
            self.join.arrived()

    def finish(self) -> None:
        """The moments of rows that match nothing count, too; and what has expired by then goes."""
        super().finish()
        self.join.expire()

    def taken_back(self) -> None:
        """The rest was never looked at; rows before it that match nothing were."""
        start = self.batch.num_rows - self.rest()[0].num_rows
        late = self.moments.late
        if late is not None:
            self.join.late[self.driver] -= int(late[start:].sum())
        if start:
            self._reach(start - 1)
