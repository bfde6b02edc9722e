"""What progressive joins of two finite streams share beyond the frame: pairs, and who gives way to arrivals."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.errors import SnapshotError, SpecError
from watersmeet.core.kinds import refuse_kind
from watersmeet.core.protocol import Snapshot
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.arrival import Arrival, Task
from watersmeet.engine.shell import JoinFrame
from watersmeet.engine.sizing import Grain, Sizing
from watersmeet.engine.snapshot import Saver, check_snapshot
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.matching.lookup import Lookup
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import BatchRows, RowPlan, Rows
from watersmeet.spill.store import Store
from watersmeet.tables.hash_table import Probe, SideTable, row_bytes


class ProgressiveJoin(JoinFrame[Task]):
    """The frame of an operator for two finite streams."""

    partitioned: ClassVar[bool] = True
    joins_ranges: ClassVar[bool] = False
    """Whether it takes a band among its conditions."""
    kinds: ClassVar[tuple[str, ...]] = ("inner",)
    """What it can be asked for by `how`."""
    spec: JoinSpec
    sizing: Sizing
    codec: KeyCodec
    plans: tuple[RowPlan, RowPlan]
    tables: tuple[SideTable, ...]

    def __init__(self, spec: JoinSpec, memory: int, store: Store, grain: Grain | None = None) -> None:
        self.refuse_unfit(spec)
        self.spec = spec
        self.codec = self._make_codec()
        self.plans = self._make_plans()
        widths = [row_bytes(plan.types) for plan in self.plans]
        # Values that are close to each other may have any hashes: a band leaves nothing to divide rows by.
        partitioned = self.partitioned and spec.band is None
        sizing = self._divide(memory, widths, partitioned, grain)
        super().__init__(spec, sizing, memory, store)
        self.tables = tuple(self._make_table(side) for side in (0, 1))
        self.found = self.pairs = self._make_pairs()
        self.saver = Saver(self)

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        return cls._least_for_rows(spec)

    @classmethod
    def _least_for_rows(cls, spec: JoinSpec) -> int:
        exact = KeyCodec(spec).exact
        return Sizing.least([row_bytes(RowPlan(spec, side, exact).types) for side in (0, 1)])

    @classmethod
    def refuse_unfit(cls, spec: JoinSpec) -> None:
        """An error if this join cannot carry out what the spec asks for."""
        refuse_kind(spec.kind, cls.name, cls.kinds)
        if spec.band is not None and not cls.joins_ranges:
            raise SpecError(
                f"{cls.name} joins on equal values only, and a band of {spec.band.left!r} asks for close ones; use "
                f"algorithm='confluence', 'diner' or 'pmj'"
            )

    # --- what an operator may hold its rows in ---

    def _make_codec(self) -> KeyCodec:
        return KeyCodec(self.spec)

    def _make_plans(self) -> tuple[RowPlan, RowPlan]:
        return RowPlan(self.spec, 0, self.codec.exact), RowPlan(self.spec, 1, self.codec.exact)

    def _make_table(self, side: int) -> Any:
        return SideTable(self.plans[side].types, self.budget, self.sizing.layout, self.spec.names[side])

    def _divide(self, memory: int, widths: list[int], partitioned: bool, grain: Grain | None) -> Sizing:
        return Sizing.divide(memory, widths, partitioned, f"the {self.name} join", grain)

    def _make_pairs(self) -> PairBuffer:
        return PairBuffer(self.spec, self.codec, self.plans, self.sizing.pairs)

    def arrival_lookup(self, side: int, hashes: Int64, parts: Int32, columns: list[pa.Array], source: Rows) -> Lookup:
        """The look-up of rows that arrived on one side in the memory of the other."""
        other = self.tables[1 - side]
        return Lookup(Probe(hashes, parts), other, Between(side, source, other), partners=other.part_rows)

    def loose_rows(self, columns: list[pa.Array]) -> Rows:
        """Rows that are in no table, by their places among those that arrive."""
        return BatchRows(columns)

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        assert not self.pairs.waiting or self._task is not None

    # --- work ---

    def _work(self, fuel: int) -> int:
        """One stretch of work with an empty pair buffer; returns the fuel used, 0 if there is nothing to do."""
        if self._task is not None and self._task.done:
            reactive = not isinstance(self._task, Arrival) and not all(self._closed)
            self._task.finish()
            self._task = None
            if reactive:
                return fuel  # the driver may have rows that wait for the end of the task
        if self._task is None:
            self._task = self._next_task()
        elif self._arrivals_wait and not isinstance(self._task, Arrival) and not self._is_urgent(self._task):
            return self._give_way(self._task)
        if self._task is None:
            return 0
        return 1 if self._put_off(self._task) else self._task.work(fuel)

    def _is_urgent(self, task: Task) -> bool:
        """Whether arrivals have to wait for the end of a task."""
        return False

    def _put_off(self, task: Task) -> bool:
        """Whether something else has to be done first, and the task was put aside for it."""
        return False

    def _hand_out(self) -> tuple[pa.RecordBatch | None, int, int]:
        assert self._task is not None and self._task.lookup is not None
        out, count = self.pairs.take(self._task.lookup.between, self.sizing.output_bytes)
        return out, count, count

    def _arrival(self, side: int, batch: pa.RecordBatch, numbers: Int64) -> Arrival:
        return Arrival(self, side, batch, numbers)

    def secure(self, claim: Callable[[], bool], spared: frozenset[tuple[int, int]] = frozenset()) -> bool:
        """Make room until a claim succeeds; False if it does not with all but the spared partitions gone."""
        return self._secure_by(lambda: self._flush_one(spared), claim)

    def forget(self, side: int, part: int) -> None:
        """Drop a partition from memory: its rows are on disk, or can find no more partners."""
        self.tables[side].drop(part)
        self.gone[side][part] = self.clock

    # --- what the operators differ in ---

    def rows_kept(self, side: int, parts: Int32) -> None:
        """Rows of these partitions have arrived and are in memory now."""

    @abstractmethod
    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        """Move something out of memory, but no spared partition; False if nothing is left to move."""

    @abstractmethod
    def _give_way(self, task: Task) -> int:
        """Rows have arrived: end the reactive task at the next boundary; returns the fuel that took."""

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        """The state as of now; writes the rows that arrived since the last one."""
        return self.saver.save(*self._own_state())

    @classmethod
    def restore(cls, spec: JoinSpec, snapshot: Snapshot, memory: int, store: Store, **options: Any) -> Self:
        """An operator that goes on where the snapshot was taken."""
        check_snapshot(cls.name, spec.fingerprint, snapshot, memory)
        join = cls(spec, memory, store, **options)
        if join.sizing.layout.partitions != len(snapshot.state["gone"][0]):
            # More memory would make more partitions than the rows were spilled by: go on with as much as before.
            join = cls(spec, snapshot.state["memory"], store, **options)
        join._load(snapshot)
        return join

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        """The segments and the state that only this operator has."""
        return [], {}

    def _load_own(self, state: dict[str, Any]) -> None:
        """Take over the state that only this operator has."""

    def _load_task(self, state: dict[str, Any]) -> Task:
        """The task that was at hand, if it is none of the frame's own."""
        raise SnapshotError(f"the snapshot has work of an unknown kind: {state['kind']!r}")
