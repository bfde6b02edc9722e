"""One stream, several relations: each row is looked up in all of them, as they are when it arrives."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from watersmeet.core.delays import Delays
from watersmeet.core.errors import BudgetError, ProtocolError, SpecError
from watersmeet.core.many_lookups import ChainSpec
from watersmeet.core.protocol import Arrive, End, Event, Snapshot, Stall, Status, Step
from watersmeet.core.report import Report
from watersmeet.engine.compose import Cascade, member_prefix
from watersmeet.engine.lookup_answers import sum_of_figures
from watersmeet.engine.lookup_operator import LookupJoin
from watersmeet.engine.phases import Phase, phase_of
from watersmeet.engine.snapshot import FORMAT, check_snapshot
from watersmeet.joins.lookup.partitioned import Partitioned
from watersmeet.memory import JointBudget, format_bytes
from watersmeet.records.intake import Intake
from watersmeet.relation.relation import Pinned, RelationReader
from watersmeet.spill.segment import Segment, SegmentWriter
from watersmeet.spill.shared_store import SharedStore
from watersmeet.spill.store import Store


@dataclass
class _Stage:
    """The look-up in one relation."""

    join: LookupJoin
    status: Status = Status.NEED_INPUT

    def receive(self, event: Event) -> None:
        self.join.receive(event)
        self.status = self.join.status


class _Epoch(Intake):
    """Rows that arrived while no relation changed."""

    def __init__(self, limit: int, versions: list[int], pins: Sequence[Pinned] = ()) -> None:
        super().__init__(limit)
        self.versions = versions
        self.pins = pins
        """They keep the versions readable until the look-ups themselves hold them."""

    def release(self) -> None:
        """The look-ups hold the versions, or nobody needs them."""
        for pin in self.pins:
            pin.release()
        self.pins = ()


class LookupChain(Cascade):
    """Look-ups that hand their rows on to each other, within one budget.

    ```
    rows ──▶ customers ──▶ products ──▶ warehouses ──▶ rows with all that was found
              v7            v3           v12             the versions that were the newest when a row arrived
    ```

    Each look-up is an operator of its own, with its own wait buffer and join memory, so that a row of which one
    relation is at hand waits for the other alone. All relations are taken as they are when a row arrives, not when
    the row gets there: when one changes, the rows on their way to it are answered by those before it first, and only
    then newer rows set out. So a relation that changes all the time had better be the first of the chain, for nothing
    lies before it.

    Of the memory beyond what each look-up needs, one half is divided evenly, so that small relations are soon in
    memory as a whole and have room to grow, and the other by the relations' sizes.

    >>> import pyarrow as pa
    >>> from watersmeet.core.many_lookups import Link
    >>> from watersmeet.core.spec import Equal
    >>> from watersmeet.spill.store import MemoryStore
    >>> from watersmeet.relation.changes import StoredRelation
    >>> buyers = StoredRelation.in_memory(pa.table({"id": [1, 2], "town": [10, 20]}), on=("id",))
    >>> towns = StoredRelation.in_memory(pa.table({"town": [20], "name": ["Ulm"]}), on=("town",))
    >>> sold = pa.record_batch({"buyer": [2, 1]})
    >>> links = (Link("buyers", buyers.schema, (Equal("buyer", "id"),), "inner"),
    ...          Link("towns", towns.schema, (Equal("town", "town"),), "left"))
    >>> chain = LookupChain(ChainSpec(sold.schema, links), 1 << 20, MemoryStore(), [buyers.reader, towns.reader])
    >>> chain.receive(Arrive(0, sold)); chain.receive(End(0))
    >>> found, status = [], Status.HAS_OUTPUT
    >>> while status is not Status.DONE:
    ...     step = chain.poll(0.0, 1000)
    ...     found, status = found + ([] if step.out is None else step.out.to_pylist()), step.status
    >>> sorted((row["buyer"], row["name"]) for row in found)
    [(1, None), (2, 'Ulm')]
    """

    name: ClassVar[str] = "chain"
    spills: ClassVar[bool] = False

    def __init__(
        self,
        spec: ChainSpec,
        memory: int,
        store: Store,
        relations: Sequence[RelationReader],
        *,
        kind: type[LookupJoin] = Partitioned,
        **options: Any,
    ) -> None:
        """`kind` is the look-up of each relation, and the options are its own."""
        self.spec = spec
        self.store = store
        shares = self._divide(spec, memory, relations, kind)
        self._stages = [
            _Stage(kind(stage, share, SharedStore(store, member_prefix(number)), relation, **options))
            for number, (stage, share, relation) in enumerate(zip(spec.stages, shares, relations, strict=True))
        ]
        self.budget = JointBudget(memory, [stage.join.budget for stage in self._stages])
        self._delays = Delays()
        """Of the rows that come out."""
        for stage in self._stages:
            stage.join.follow(stage.join.newest)
        self._epochs: deque[_Epoch] = deque([_Epoch(self._limit, [stage.join.newest for stage in self._stages])])
        self._stalled = self._ended = self._end_told = self._must_poll = False
        self._received_at: int | None = None
        self._steps = 0
        self._saved: tuple[int, Snapshot] | None = None

    @classmethod
    def least_memory(
        cls,
        spec: ChainSpec,
        relations: Sequence[RelationReader],
        *,
        kind: type[LookupJoin] = Partitioned,
        **options: Any,
    ) -> int:
        """The smallest budget this chain can work in, if no row of the stream is large."""
        return sum(kind.least_memory(stage, each) for stage, each in zip(spec.stages, relations, strict=True))

    @classmethod
    def _divide(
        cls, spec: ChainSpec, memory: int, relations: Sequence[RelationReader], kind: type[LookupJoin]
    ) -> list[int]:
        least = [kind.least_memory(stage, each) for stage, each in zip(spec.stages, relations, strict=True)]
        spare = memory - sum(least)
        if spare < 0:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for look-ups in these {len(least)} relations; allow "
                f"at least {format_bytes(sum(least))}"
            )
        sizes = [relation.latest().total_bytes + 1 for relation in relations]
        even = spare // 2 // len(least)
        return [need + even + spare // 2 * size // sum(sizes) for need, size in zip(least, sizes, strict=True)]

    @property
    def _limit(self) -> int:
        return max(1, self._stages[0].join.sizing.input_bytes // 2)

    # --- the protocol ---

    def receive(self, event: Event) -> None:
        """Take note of an event."""
        self._steps += 1
        if isinstance(event, Arrive):
            self._receive_batch(event.batch)
        elif isinstance(event, Stall):
            self._stalled = True
            for stage in self._stages:
                if stage.status is not Status.DONE:
                    stage.receive(event)
        elif isinstance(event, End):
            self._check_open()
            self._ended = True
        else:
            raise ProtocolError(f"{self.name} does not take {type(event).__name__}")

    def _check_open(self) -> None:
        if self._ended:
            raise ProtocolError(f"{self.spec.names[0]} has ended; nothing can follow")

    def _receive_batch(self, batch: pa.RecordBatch) -> None:
        self._check_open()
        if self._must_poll:
            raise ProtocolError("poll until what was received is worked off, before the next arrival")
        if batch.schema != self.spec.stream:
            raise SpecError(
                f"a batch of {self.spec.names[0]} has other columns than announced: it has "
                f"{', '.join(f'{field.name}: {field.type}' for field in batch.schema)}"
            )
        self._stalled = False
        readers = [stage.join.reader for stage in self._stages]
        if [reader.latest(pinned=True).number for reader in readers] != self._epochs[-1].versions:
            pins = [reader.pin() for reader in readers]
            self._epochs.append(_Epoch(self._limit, [pin.version.number for pin in pins], pins))
        self._epochs[-1].add(batch)

    def poll(self, now: float, fuel: int) -> Step:
        """Let the last look-up that has something to do work a little: what it finds are results."""
        self._steps += 1
        if self._received_at is None:
            self._received_at = round(now * 1e6)
        before = self.cost
        out = self._work(now, fuel)
        status = self._joint_status(self._ended or len(self._epochs) > 1 or self._epochs[0].rows > 0)
        self._must_poll = status is Status.HAS_OUTPUT
        if not self._must_poll:
            self._received_at = None
        return Step(out, status, self.cost - before)

    @property
    def _members(self) -> list[_Stage]:
        return self._stages

    def _next_to_work(self) -> int | None:
        """Those who have rows; then rows set out; then those who keep others from it; then those who can work."""
        found = self._last_with(Status.HAS_OUTPUT)
        while found is None and self._set_out():
            found = self._last_with(Status.HAS_OUTPUT)
        if found is None and len(self._epochs) > 1:
            return self._on_their_way()
        return self._last_with(Status.HAS_WORK) if found is None else found

    def _set_out(self) -> bool:
        """Let rows set out, or tell the first look-up that there are no more; False if there is nothing of that."""
        first, epoch = self._stages[0], self._epochs[0]
        if epoch.rows:
            batch, _ = epoch.next()
            assert self._received_at is not None
            arrived = pa.array(np.full(batch.num_rows, self._received_at, np.int64))
            rows = pa.RecordBatch.from_arrays([*batch.columns, arrived], schema=self.spec.stages[0].stream)
            first.receive(Arrive(0, rows))
            return True
        if len(self._epochs) > 1:
            return self._move_on()
        if self._ended and not self._end_told:
            self._end_told = True
            first.receive(End(0))
            return True
        return False

    def _move_on(self) -> bool:
        """Let the next rows meet relations that have changed; False as long as others are on their way to these."""
        if self._on_their_way() is not None:
            return False
        self._epochs.popleft()
        epoch = self._epochs[0]
        for stage, version in zip(self._stages, epoch.versions, strict=True):
            stage.join.follow(version)
            stage.status = stage.join.status
        epoch.release()
        return True

    def _on_their_way(self) -> int | None:
        """The first look-up that has rows for a relation further on which changes next, told not to let them wait."""
        pairs = zip(self._epochs[0].versions, self._epochs[1].versions, strict=True)
        last = max(number for number, (old, new) in enumerate(pairs) if old != new)
        for number, stage in enumerate(self._stages[:last]):
            if not stage.join.empty:
                stage.receive(Stall())
                return number
        return None

    def _hand_on(self, number: int, step: Step, now: float) -> pa.RecordBatch | None:
        if number == len(self._stages) - 1:
            return None if step.out is None else self._result(step.out, now)
        following = self._stages[number + 1]
        if step.out is not None:
            following.receive(Arrive(0, step.out))
            if self._stalled:
                following.receive(Stall())
        if step.status is Status.DONE:
            following.receive(End(0))
        return None

    def _result(self, batch: pa.RecordBatch, now: float) -> pa.RecordBatch:
        place = len(self.spec.stream)
        self._delays.add(round(now * 1e6) - batch.column(place).to_numpy())
        columns = [column for i, column in enumerate(batch.columns) if i != place]
        return pa.RecordBatch.from_arrays(columns, schema=self.spec.schema)

    def wake_at(self) -> float | None:
        """When a look-up wants to be polled."""
        return min((at for stage in self._stages if (at := stage.join.wake_at()) is not None), default=None)

    @property
    def phase(self) -> str:
        """Arriving, reactive, clean-up or done."""
        done = self._stages[-1].join.phase == Phase.DONE.value
        return phase_of(done=done, ended=self._end_told, reacting=self._stalled).value

    @property
    def hits(self) -> int:
        """Look-ups that were answered from memory."""
        return sum(stage.join.hits for stage in self._stages)

    def report(self) -> Report:
        """How the rows fared so far: a row counts once for each relation in which it was looked up."""
        return Report(lookup=sum_of_figures([stage.join.figures() for stage in self._stages], self._delays))

    def close(self) -> None:
        """Let go of all rows and relations; the store belongs to whoever made it."""
        for epoch in self._epochs:
            epoch.release()
        for stage in self._stages:
            stage.join.close()

    def check(self) -> None:
        """Assert the invariants."""
        self.budget.check()
        for stage in self._stages:
            stage.join.check()
        assert [stage.join.newest for stage in self._stages] == self._epochs[0].versions
        assert all(one.versions != other.versions for one, other in pairwise(self._epochs))

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        """The state as of now: that of all look-ups, and the rows that have not set out."""
        if self._saved is not None and self._saved[0] == self._steps:
            return self._saved[1]
        stages, segments = self._member_snapshots()
        rows = [(i, each.batch) for i, epoch in enumerate(self._epochs) for each in epoch.waiting()]
        own: tuple[str, ...] = ()
        if rows:
            own = (f"chain-{self._steps}",)
            with SegmentWriter(self.store, own[0], self.spec.stream) as writer:
                for _, batch in rows:
                    writer.write_page(batch)
                writer.seal({"epochs": [epoch for epoch, _ in rows]}).close()
        state = {
            "format": FORMAT,
            "memory": self.budget.total,
            "steps": self._steps,
            "epochs": [epoch.versions for epoch in self._epochs],
            "flags": [self._stalled, self._ended, self._end_told, self._must_poll],
            "received_at": self._received_at,
            "delays": self._delays.to_state(),
            "own": list(own),
            "stages": stages,
            "shares": [stage.join.budget.total for stage in self._stages],
        }
        taken = Snapshot(self.name, self.spec.fingerprint, state, (*own, *segments))
        before, self._saved = self._saved, (self._steps, taken)
        for name in before[1].state["own"] if before is not None else ():
            self.store.remove(name)
        return taken

    @classmethod
    def restore(
        cls,
        spec: ChainSpec,
        snapshot: Snapshot,
        memory: int,
        store: Store,
        relations: Sequence[RelationReader],
        *,
        kind: type[LookupJoin] = Partitioned,
        **options: Any,
    ) -> Self:
        """A chain that goes on where the snapshot was taken; the relations must still have those versions."""
        check_snapshot(cls.name, spec.fingerprint, snapshot, memory)
        chain = cls(spec, memory, store, relations, kind=kind, **options)
        state = snapshot.state
        for stage, saved, share in zip(chain._stages, state["stages"], state["shares"], strict=True):
            join = stage.join
            join.close()
            stage.join = kind.restore(join.spec, Snapshot.from_json(saved), share, join.store, join.reader, **options)
            stage.join.follow(stage.join.newest)
            stage.status = Status(saved["status"])
        chain.budget = JointBudget(memory, [stage.join.budget for stage in chain._stages])
        chain._load(snapshot)
        return chain

    def _load(self, snapshot: Snapshot) -> None:
        state: dict[str, Any] = dict(snapshot.state)
        self._steps, self._received_at = state["steps"], state["received_at"]
        self._stalled, self._ended, self._end_told, self._must_poll = state["flags"]
        self._delays.load(state["delays"])
        first, *later = state["epochs"]
        self._epochs = deque([_Epoch(self._limit, first)])
        for versions in later:
            pins = [stage.join.reader.pin(number) for stage, number in zip(self._stages, versions, strict=True)]
            self._epochs.append(_Epoch(self._limit, versions, pins))
        for name in state["own"]:
            segment = Segment.open(self.store, name)
            for page, epoch in enumerate(segment.meta["epochs"]):
                self._epochs[epoch].add(segment.read_page(page))
            segment.close()
        self._saved = (self._steps, snapshot)
