"""What joins of several finite streams share beyond the shell: combinations, and the disk's part of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.errors import SpecError
from watersmeet.core.kinds import KINDS, refuse_kind
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Snapshot
from watersmeet.core.report import Report
from watersmeet.engine.multi_arrival import Arrival
from watersmeet.engine.multi_sizing import ManySizing
from watersmeet.engine.multi_windows import MultiWindows, WindowedArrival
from watersmeet.engine.pipeline import Scope
from watersmeet.engine.shell import Operator
from watersmeet.engine.sizing import Grain
from watersmeet.engine.snapshot import Saver, check_snapshot
from watersmeet.matching.found_combinations import CombinationBuffer, InputRows, ManyTable
from watersmeet.matching.multi_windows import MomentPlan, words_known
from watersmeet.policies.probing import ProbingOrder
from watersmeet.records.attributes import AttributeCodec
from watersmeet.records.plan import RowPlan
from watersmeet.runs.multi_catalogue import ManyRuns
from watersmeet.spill.store import Store
from watersmeet.tables.hash_table import row_bytes
from watersmeet.tables.multi_hash_table import ManySide


class MultiwayJoin(Operator):
    """The shell of an operator for several finite streams."""

    preserves: ClassVar[bool] = False
    """Whether it can give rows of one input that are in no result."""
    settles_windows: ClassVar[bool] = False
    """Whether it joins by windows if the spec has some, and its rows may meet later than they come."""
    spec: MultiSpec
    sizing: ManySizing  # type: ignore[assignment]
    codec: AttributeCodec
    plans: tuple[RowPlan, ...]
    tables: tuple[ManyTable, ...]
    disks: tuple[ManyRuns, ...]
    inputs: tuple[InputRows, ...]
    windows: MultiWindows | None  # type: ignore[assignment]

    def __init__(
        self,
        spec: MultiSpec,
        memory: int,
        store: Store,
        *,
        order: ProbingOrder | None = None,
        grain: Grain | None = None,
    ) -> None:
        if spec.preserved is not None and (spec.window is not None or not self.preserves):
            refuse_kind(KINDS["left"], self.name, ("inner",))
        self.spec = spec
        self._grain = grain or Grain()
        self.order = order or ProbingOrder(spec)
        self.codec = self._codec_of(spec)
        self.plans = self._plans_of(spec, self.codec)
        self._set_up(self._make_sizing(memory), memory, store)
        numbers = range(len(spec.names))
        self.catalogue = self.budget.reservation("catalogue of spilled runs")
        self.catalogue.set_aside(self._grain.records or 0)
        self.tables = tuple(self._make_table(i) for i in numbers)
        self.disks = tuple(self._make_disk(i) for i in numbers)
        self.inputs = tuple(self._make_input(i) for i in numbers)
        self.found = self.combinations = CombinationBuffer(spec, self.codec, self.plans)
        self.saver = Saver(self)

    @classmethod
    def least_memory(cls, spec: MultiSpec, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        return ManySizing.least(cls._row_bytes(spec, cls._plans_of(spec, cls._codec_of(spec))))

    @classmethod
    def widest_row(cls, spec: MultiSpec, memory: int) -> int:
        """Bytes that a row may take for certain in so much memory, beyond the usual."""
        return memory // (16 * len(spec.names))

    # --- what rows are kept in ---

    @classmethod
    def _codec_of(cls, spec: MultiSpec) -> AttributeCodec:
        if spec.has_bands:
            raise SpecError(f"{cls.name} joins on equal values only; for a band choose algorithm='miner'")
        return AttributeCodec(spec)

    @classmethod
    def _plans_of(cls, spec: MultiSpec, codec: AttributeCodec) -> tuple[RowPlan, ...]:
        inexact = {
            edge.input(side)
            for edge, exact in zip(spec.edges, codec.exact, strict=True)
            if not exact
            for side in (0, 1)
        }
        return tuple(cls._make_plan(spec, number, number not in inexact) for number in range(len(spec.names)))

    @classmethod
    def _make_plan(cls, spec: MultiSpec, number: int, exact_hash: bool) -> RowPlan:
        if spec.window is None:
            if cls.windowed:
                raise SpecError("a join by windows needs window=...")
            return RowPlan(spec, number, exact_hash)
        if not cls.windowed and not cls.settles_windows:
            raise SpecError(f"{cls.__name__} knows no windows; build the join with planner.build_multiway")
        return MomentPlan(spec, number, exact_hash, 1 + (words_known(spec) if cls.settles_windows else 0))

    def _make_windows(self) -> MultiWindows | None:
        return None if self.spec.window is None else MultiWindows(self.spec, self.settles_windows, self.events)

    @classmethod
    def _row_bytes(cls, spec: MultiSpec, plans: Sequence[RowPlan]) -> list[int]:
        return [row_bytes(plan.types, len(attributes)) for plan, attributes in zip(plans, spec.attributes, strict=True)]

    def _make_sizing(self, memory: int) -> ManySizing:
        row_bytes = self._row_bytes(self.spec, self.plans)
        return ManySizing.divide(memory, row_bytes, f"the {self.name} join", self._grain)

    def _make_table(self, number: int) -> ManyTable:
        attributes = len(self.spec.attributes[number])
        return ManySide(
            self.plans[number].types, attributes, self.budget, self.sizing.layout, self.spec.names[number]
        )  # fmt: skip

    def _make_disk(self, number: int) -> Any:
        """What an input has on disk."""
        attributes = len(self.spec.attributes[number])
        return ManyRuns(self.store, f"run-{number}", attributes, self.catalogue, self.meter)

    def _make_input(self, number: int) -> Any:
        """All rows of an input that combinations can be made of."""
        return InputRows(self.tables[number], self.disks[number])

    def hash_columns(self, hashes: Sequence[Int64]) -> list[pa.Array]:
        """The columns that carry rows' hashes beside what the plan keeps of them."""
        return [pa.array(each) for each in hashes[1:]]

    def close(self) -> None:
        """Let go of all rows; the store belongs to whoever made it."""
        super().close()
        for disk in self.disks:
            disk.close()
        self.inputs = ()

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        for number, table in enumerate(self.tables):
            self.disks[number].check()
            for part in range(self.sizing.layout.partitions):
                assert (table.ticks(table.rows_of(part)) > self.gone[number][part]).all()
        assert self._order is None or self._order.rows == sum(intake.rows for intake in self._intakes)

    # --- work ---

    def _work(self, fuel: int) -> int:
        """One stretch of work with an empty buffer; returns the fuel used, 0 if there is nothing to do."""
        if self._task is not None and self._task.done:
            self._task.finish()
            self._task = None
        if self._task is None:
            self._task = self._next_task()
        elif not isinstance(self._task, Arrival) and self._arrivals_wait and not self._is_urgent(self._task):
            self._give_way(self._task)
            if self.combinations.waiting:
                return 1
            if self._task is None:
                self._task = self._next_task()
        if self._task is None:
            return 0
        return 1 if self._put_off(self._task) else self._task.work(fuel)

    def _hand_out(self) -> tuple[pa.RecordBatch | None, int, int]:
        return self.combinations.take(self.inputs, self.sizing.output_bytes)

    def _arrival(self, number: int, batch: pa.RecordBatch, numbers: Int64) -> Arrival:
        if self.windows is not None:
            return self.windows.arrival(self, number, batch, numbers)
        return Arrival(self, number, batch, numbers)

    def _resumed_arrival(self, state: dict[str, Any], batch: pa.RecordBatch, numbers: Int64) -> Arrival:
        if self.windows is not None:
            return WindowedArrival(self, self.windows, state["input"], batch, numbers, state["newest"])
        return self._arrival(state["input"], batch, numbers)

    def arrival_scope(self) -> Scope:
        """Where rows that arrive are looked up."""
        return Scope.memory(len(self.inputs))

    def _input_closed(self, number: int) -> None:
        if self.windows is not None:
            self.windows.clock.close(self._closed)
            self.arrival_done()

    def must_keep(self, number: int) -> bool:
        """Whether a row that arrives on this input can still find partners later."""
        others = [i for i in range(len(self.inputs)) if i != number]
        return any(not self.exhausted(i) or self.disks[i].rows for i in others)

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        return self._make_room()

    def note_results(self, ids: Int64) -> None:
        """These results were found by rows that arrive."""

    # --- windows ---

    @property
    def timed(self) -> MultiWindows:  # type: ignore[override]
        """The windows of an operator that has them."""
        assert self.windows is not None
        return self.windows

    @property
    def window_rows(self) -> int:
        """How many rows are remembered, in memory and on disk."""
        return super().window_rows + sum(disk.rows for disk in self.disks)

    def expired_before(self, number: int) -> int:
        """Rows of an input that are older than this meet nothing that is still to come."""
        return self.timed.expired_before(number)

    # --- what the operators differ in ---

    @abstractmethod
    def _make_room(self) -> bool:
        """Move something out of memory; False if nothing is left to move."""

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        """The state as of now; writes the rows that arrived since the last one."""
        segments = [name for disk in self.disks for name in disk.segments] + self._own_segments()
        return self.saver.save(segments, {"runs": [disk.to_state() for disk in self.disks], **self._own_state()})

    @classmethod
    def restore(cls, spec: MultiSpec, snapshot: Snapshot, memory: int, store: Store, **options: Any) -> Self:
        """An operator that goes on where the snapshot was taken."""
        check_snapshot(cls.name, spec.fingerprint, snapshot, memory)
        # With more memory there would be other partitions than the rows were spilled by: go on with as much as before.
        join = cls(spec, snapshot.state["memory"], store, **options)
        join._load(snapshot)
        return join

    def _own_segments(self) -> list[str]:
        """The segments that only this operator has."""
        return []

    def _own_state(self) -> dict[str, Any]:
        """The state that only this operator has."""
        return self.declared_state()

    def report(self) -> Report:
        return replace(super().report(), probing=self.order.figures())

    def frame_state(self) -> dict[str, Any]:
        """The shell's own state."""
        return {**super().frame_state(), "order": self.order.to_state()}

    def _load_all(self, snapshot: Snapshot) -> None:
        self.order.load(snapshot.state["order"])
        for disk, runs in zip(self.disks, snapshot.state["runs"], strict=True):
            disk.load(runs)
        super()._load_all(snapshot)

    def _load_rows(self, snapshot: Snapshot) -> None:
        super()._load_rows(snapshot)
        for table in self.tables:
            table.sort_indexes()
