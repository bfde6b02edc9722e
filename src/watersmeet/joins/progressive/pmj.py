"""Collect, sort, join, spill; then merge the sorted runs, with results on the way."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.protocol import LEFT, RIGHT
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.arrival import Arrival, Task
from watersmeet.engine.sizing import Grain, Sizing
from watersmeet.joins.progressive.run_merging import Merges
from watersmeet.joins.progressive.spilling import SpillingJoin
from watersmeet.matching.found_pairs import Between
from watersmeet.matching.ledger import FlushLedger
from watersmeet.matching.lookup import Lookup
from watersmeet.matching.range_lookup import RangeCodec, RangeLookup, RangePlan
from watersmeet.matching.sorted_lookup import CloseValues, Meeting, SameHash, SortedRows
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan, Rows, TableRows
from watersmeet.spill.store import Store
from watersmeet.tables.hash_table import Probe
from watersmeet.tables.range_table import SortedSide, sorted_layout, sorted_row_bytes


class PMJ(SpillingJoin):
    """Sort-merge join that does not wait for the end of its inputs [1]_.

    ```
    collecting ──memory full──▶ sort both sides, join them, write both as runs ──▶ collecting
        └─ stall, or both ended ─▶ merging, F runs of each side at a time ─▶ done
    ```

    - *Collecting*: a row is kept, and not looked up. When memory is full, both sides are sorted and joined in it, and
      leave it as a pair of runs.
    - *Merging*: runs of both sides are merged at once, and pairs come out on the way. Rows of one pair of runs have met
      in memory: a pair is new exactly if its rows left memory at different times.

    Equalities and a band (`wm.band`) can be joined on, also together. With a band rows are sorted by its column, and a
    merge keeps in reach the rows that the next ones may be close to; rows must agree in their equalities, too. Without
    one they are sorted by the hash of the key, partition by partition, which is as good as any order where keys are
    compared for equality only. The original merges after both inputs have ended; here it also uses silences, and gives
    way to arrivals between any two pairs (`prompt=False`: at the end of a merging operation).

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import Arrive, End
    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.spill.store import MemoryStore
    >>> left, right = pa.record_batch({"id": range(2000)}), pa.record_batch({"id": range(1990, 4000)})
    >>> join = PMJ(JoinSpec(left.schema, right.schema, parse_on("id")), 80 * 1024, MemoryStore())
    >>> for event in (Arrive(LEFT, left), End(LEFT), Arrive(RIGHT, right), End(RIGHT)):
    ...     join.receive(event)
    >>> rows = 0
    >>> while not join.phase == "done":
    ...     step = join.poll(0.0, fuel=1000)
    ...     rows += step.out.num_rows if step.out else 0
    >>> rows, join.cost.pages_written > 0
    (10, True)

    .. [1] J.-P. Dittrich, B. Seeger, D. S. Taylor and P. Widmayer. Progressive merge join: A generic and non-blocking
       sort-based join algorithm. VLDB 2002; as described in section 2.2 of Y. Tao et al. RPJ: Producing fast join
       results on streams through rate-based optimization. SIGMOD 2005.
    """

    name: ClassVar[str] = "pmj"
    sorted_runs: ClassVar[bool] = True
    joins_ranges: ClassVar[bool] = True

    def __init__(
        self, spec: JoinSpec, memory: int, store: Store, *, prompt: bool = True, grain: Grain | None = None
    ) -> None:
        super().__init__(spec, memory, store, "all", grain)
        self._meeting: Meeting = CloseValues(self.codec) if isinstance(self.codec, RangeCodec) else SameHash()
        self.stages = Merges(self, prompt, grain, self._meeting)
        self.ledger = FlushLedger(self.sizing.layout.partitions, self.budget.reservation("history of merges"))

    @classmethod
    def _least_for_rows(cls, spec: JoinSpec) -> int:
        if spec.band is None:
            return super()._least_for_rows(spec)
        codec = RangeCodec(spec)
        return Sizing.least([sorted_row_bytes(RangePlan(spec, side, codec).types, codec.tagged) for side in (0, 1)])

    def _make_codec(self) -> KeyCodec:
        return super()._make_codec() if self.spec.band is None else RangeCodec(self.spec)

    def _make_plans(self) -> tuple[RowPlan, RowPlan]:
        if not isinstance(self.codec, RangeCodec):
            return super()._make_plans()
        return RangePlan(self.spec, 0, self.codec), RangePlan(self.spec, 1, self.codec)

    def _make_table(self, side: int) -> Any:
        if not isinstance(self.codec, RangeCodec):
            return super()._make_table(side)
        types, tagged = self.plans[side].types, self.codec.tagged
        layout = sorted_layout(self.budget.total - self.sizing.buffers, sorted_row_bytes(types, tagged))
        name = self.spec.names[side]
        return SortedSide(types, self.budget, layout, name, tagged=tagged, sorted_late=True)

    # --- collecting ---

    def must_keep(self, side: int) -> bool:
        """Unless the other input has ended without any row."""
        other = 1 - side
        return not self.exhausted(other) or self.disks[other].total_rows > 0 or self.tables[other].rows > 0

    def arrival_lookup(self, side: int, hashes: Int64, parts: Int32, columns: list[pa.Array], source: Rows) -> Lookup:
        """None: rows are just kept."""
        other = self.tables[1 - side]
        return Lookup(Probe(hashes[:0], parts[:0]), SortedRows(hashes[:0]), Between(side, source, other))

    def _input_closed(self, side: int) -> None:
        """Rows of the other side whose partition this input has nothing in find no partners."""
        self.statistics.ended(side)
        for part in range(self.sizing.layout.partitions):
            if not self.disks[side].rows[part] and not self.tables[side].part_rows[part]:
                self.forget(1 - side, part)

    def _work(self, fuel: int) -> int:
        task = self._task
        if isinstance(task, Arrival) and task.waits and not self._has_room(task, 1) and self._rows_in_tables:
            self._hold_up_for(MemoryJoin(self))
        return super()._work(fuel)

    @property
    def _rows_in_tables(self) -> int:
        return sum(table.rows for table in self.tables)

    def admit(self, arrival: Arrival, count: int) -> int:
        """Take as many rows as there is room for."""
        while count > 1 and not self._has_room(arrival, count):
            count //= 2
        return super().admit(arrival, count)

    def _has_room(self, arrival: Arrival, count: int) -> bool:
        table = self.tables[arrival.input]
        _, parts, columns = arrival.piece(count)
        if table.reserve(parts, columns):
            return True
        for each in self.tables:
            each.trim(self.budget.total)
        return bool(table.reserve(parts, columns))

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        """The last resort, where not even one row has room: rows leave without having been joined, at times that
        differ.
        """
        if not self._rows_in_tables:
            return False
        self.bring_to_disk(range(self.sizing.layout.partitions))
        return True

    @property
    def portions(self) -> int:
        """In how many portions memory is joined: partitions, or with a band as many left rows as a buffer has room
        for, so that what the look-up needs beside them is small.
        """
        if self.spec.band is None:
            return self.sizing.layout.partitions
        return -(-self.tables[LEFT].rows // self.sizing.pairs) if self.tables[RIGHT].rows else 0

    def memory_lookup(self, portion: int) -> Lookup | None:
        """The left rows of a portion, looked up among the right rows; None if there are none of one side."""
        left, right = self.tables
        if self.spec.band is not None:
            return self._range_lookup(portion)
        if not left.part_rows[portion] or not right.part_rows[portion]:
            return None
        sides = [TableRows(table, table.in_order(table.rows_of(portion))) for table in (left, right)]
        words = [table.hashes(side.numbers) for table, side in zip((left, right), sides, strict=True)]
        return self._meeting.lookup((words[LEFT], []), (words[RIGHT], []), Between(LEFT, sides[LEFT], sides[RIGHT]))

    def _range_lookup(self, portion: int) -> Lookup:
        assert isinstance(self.codec, RangeCodec)
        left, right = (self._sorted_side(side) for side in (LEFT, RIGHT))
        right.in_order(right.rows_of())  # sorts it
        start = portion * self.sizing.pairs
        rows = left.in_order(left.rows_of())[start : start + self.sizing.pairs]
        tags = [left.gather(len(left.types) - 1, rows)] if self.codec.tagged else []
        between = Between(LEFT, TableRows(left, rows), right)
        return RangeLookup(self.codec.probe(left.hashes(rows), tags), right, between)

    def _sorted_side(self, side: int) -> SortedSide:
        table: Any = self.tables[side]
        assert isinstance(table, SortedSide)
        return table

    def memory_joined(self) -> None:
        """All pairs in memory were emitted: let both sides leave as runs of one number."""
        parts = range(self.sizing.layout.partitions)
        if any(disk.total_rows for disk in self.disks) or not all(self._closed):
            self.flush_together(parts)
            return
        for part in parts:
            for side in (LEFT, RIGHT):
                self.forget(side, part)

    # --- merging ---

    def _clean_up_task(self) -> Task | None:
        return MemoryJoin(self) if self._rows_in_tables else super()._clean_up_task()

    # --- snapshots ---

    def _load_task(self, state: dict[str, Any]) -> Task:
        return MemoryJoin.resumed(self, state) if state["kind"] == "memory-join" else super()._load_task(state)


class MemoryJoin:
    """What is in memory, sorted and joined, portion by portion; at the end it leaves memory."""

    def __init__(self, join: PMJ) -> None:
        self._join = join
        self._portion = 0
        self.lookup: Lookup | None = None

    @property
    def done(self) -> bool:
        """Whether all portions were joined."""
        return self._portion == self._join.portions

    def work(self, fuel: int) -> int:
        """Go on with the portion at hand, or with the next."""
        if self.lookup is None and not self.done:
            self.lookup = self._join.memory_lookup(self._portion)
        if self.lookup is None:
            self._portion += not self.done
            return 1
        if self.lookup.done:
            self.lookup = None
            self._portion += 1
            return 1
        return self.lookup.work(self._join.pairs, fuel, self._join.meter)

    def finish(self) -> None:
        """Write the runs."""
        self._join.memory_joined()

    def to_state(self) -> dict[str, Any]:
        """The task for a snapshot."""
        place = None if self.lookup is None else self.lookup.place(self._join.pairs)
        return {"kind": "memory-join", "portion": self._portion, "place": place}

    @classmethod
    def resumed(cls, join: PMJ, state: dict[str, Any]) -> MemoryJoin:
        """A task that a snapshot was taken of."""
        task = cls(join)
        task._portion = state["portion"]
        if state["place"] is not None:
            task.lookup = join.memory_lookup(task._portion)
            assert task.lookup is not None
            task.lookup.resume(join.pairs, state["place"])
        return task
