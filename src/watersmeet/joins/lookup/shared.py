"""Several streams, one relation: what one stream's rows have read from the disk answers those of all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.cost import Cost
from watersmeet.core.errors import BudgetError, ProtocolError
from watersmeet.core.lookup import LookupSpec
from watersmeet.core.many_lookups import SharedSpec
from watersmeet.core.protocol import Arrive, End, Event, PlainOperator, Snapshot, Stall, Status, Step
from watersmeet.core.report import Report
from watersmeet.engine.lookup_answers import MappedIndex, sum_of_figures
from watersmeet.engine.snapshot import FORMAT, check_snapshot
from watersmeet.joins.lookup.join_memory import JoinMemory
from watersmeet.joins.lookup.partitioned import Partitioned
from watersmeet.memory import Budget, JointBudget, format_bytes
from watersmeet.relation.relation import RelationReader, RelationSegment, Version
from watersmeet.spill.shared_store import SharedStore
from watersmeet.spill.store import Store

_OWN_SHARE = 0.4
"""Of the memory beyond the least, what the streams have each for itself: buffers, and rows that wait."""


class _Together:
    """What the streams have in common: the partitions in memory, and each read of the disk."""

    def __init__(self, room: int) -> None:
        self.budget = Budget(room)
        self.budget.reservation("join memory").grow(room)
        self.members: list[_Member] = []
        self.memory: JoinMemory | None = None
        self.settled: dict[int, NDArray[np.bool_] | None] = {}
        """By stream: it waits for the others to be done with the version at hand; which partitions change then."""

    def memory_of(self, version: Version, rho: float, alpha: float, epoch: int | None) -> JoinMemory:
        """The partitions in memory, of this version."""
        if self.memory is None or self.memory.version.number != version.number:
            columns = range(len(version.design.schema))
            self.memory = JoinMemory(self.budget.total, columns, version, rho=rho, alpha=alpha, epoch=epoch)
        return self.memory

    def hand_on(self, part: int, segments: list[RelationSegment]) -> bool:
        """Let a stream whose rows wait for a partition that was read, or is in memory now, have its turn."""
        for member in self.members:
            if member.waits_for(part):
                member.take_over(part, segments)
                return True
        return False

    def go_on(self) -> bool:
        """Go to the next version, all at once, if all are done with this one."""
        moving = [number for number, member in enumerate(self.members) if member.phase != "done"]
        if not self.settled or any(number not in self.settled for number in moving):
            return False
        changed, self.settled = next(iter(self.settled.values())), {}
        for member in self.members:
            member.go_on(changed)
        return True


class _Member(Partitioned):
    """One stream's look-up, which shares its join memory and its reads with others."""

    def __init__(
        self,
        spec: LookupSpec,
        memory: int,
        store: Store,
        relation: RelationReader,
        *,
        together: _Together,
        number: int,
        **options: Any,
    ) -> None:
        self._together = together
        self._number = number
        self._handed_on = False
        super().__init__(spec, memory, store, relation, **options)

    def _wait_room(self, left: int, least: int) -> int:
        return left

    def _make_memory(self, room: int) -> JoinMemory:
        return self._together.memory_of(self.version, self._rho, self._alpha, self._epoch)

    def share(self) -> None:
        """Use the join memory that all use."""
        self._use(self._make_memory(0))

    def waits_for(self, part: int) -> bool:
        """Whether rows of this stream wait for a partition."""
        return bool(self._wait.part_rows[part] > 0)

    def take_over(self, part: int, segments: list[RelationSegment]) -> None:
        """Answer what waits for a partition that another stream has read."""
        assert self._unit is None and self._part is None, "one stream works at a time, until it is done"
        mapped = [] if self.memory.slot_of[part] >= 0 else [MappedIndex(each, self.answers) for each in segments]
        self._begin(part, mapped)
        self._unit = self._probe(part)

    def _let_go(self, part: int, segments: list[RelationSegment]) -> None:
        in_memory = self.memory.slot_of[part] >= 0
        self._handed_on = (in_memory or bool(segments)) and self._together.hand_on(part, [] if in_memory else segments)
        if in_memory or not self._handed_on:
            super()._let_go(part, segments)

    def _gives_way(self) -> bool:
        handed_on, self._handed_on = self._handed_on, False
        return handed_on

    def _worth_keeping(self) -> bool:
        return any(member.expects_more for member in self._together.members)

    def _settled(self, changed: NDArray[np.bool_] | None) -> bool:
        """Wait for the others: nobody may put a partition of the next version into memory as long as one of this
        version may be asked for.
        """
        self._together.settled[self._number] = changed
        return False

    def go_on(self, changed: NDArray[np.bool_] | None) -> None:
        """Go to the next version, with all others."""
        self._go_on(changed)
        if self.status is not Status.HAS_OUTPUT:
            self._must_poll = False
            self._received_at = None

    def note_time(self, now: float) -> None:
        """Rows have arrived before this time, though another stream is polled first."""
        if self._received_at is None and self._arrivals_wait:
            self._received_at = round(now * 1e6)

    @property
    def at_work(self) -> bool:
        """Whether this stream's rows are being answered."""
        return self._unit is not None


class SharedLookup(PlainOperator):
    """Look-ups of several streams in one relation, which share its reads and the partitions in memory [1]_.

    ```
    orders  ──▶ wait buffer ─┐                         ┌─▶ orders, enriched
                             ├─▶ one read of partition ┤
    returns ──▶ wait buffer ─┘        or join memory   └─▶ returns, enriched
    ```

    Each stream is joined as by `partitioned`: rows for partitions in memory are answered at once, others wait by
    partition. When a partition is read for one stream, the rows of all streams that wait for it are answered before it
    is let go; and how often all streams together ask for a partition decides whether it stays in memory.

    All streams meet the same versions of the relation. When it changes, the rows of all streams that wait for changed
    partitions are answered first, and then all go on together.

    >>> import pyarrow as pa
    >>> from watersmeet.core.lookup import lookup_conditions
    >>> from watersmeet.spill.store import MemoryStore
    >>> from watersmeet.relation.changes import StoredRelation
    >>> products = StoredRelation.in_memory(pa.table({"sku": [1, 2], "name": ["cup", "pot"]}), on=("sku",))
    >>> sold, returned = pa.record_batch({"sku": [2], "n": [5]}), pa.record_batch({"sku": [1], "why": ["blue"]})
    >>> specs = [LookupSpec(each.schema, products.schema, lookup_conditions("sku", products.on))
    ...          for each in (sold, returned)]
    >>> shared = SharedLookup(SharedSpec(("sold", "returned"), tuple(specs)), 1 << 20, MemoryStore(), products.reader)
    >>> for number, batch in enumerate((sold, returned)):
    ...     shared.receive(Arrive(number, batch)); shared.receive(End(number))
    >>> step = shared.poll(0.0, 100); shared.spec.names[shared.answered], step.out.to_pylist()
    ('sold', [{'sku': 2, 'n': 5, 'name': 'pot'}])
    >>> step = shared.poll(0.0, 100); shared.spec.names[shared.answered], step.out.to_pylist(), shared.cost.seeks
    ('returned', [{'sku': 1, 'why': 'blue', 'name': 'cup'}], 1)

    .. [1] Abhirup Chakraborty. Processing exact results for sliding window joins and hybrid joins over data streams
       with limited memory. Dissertation, University of Waterloo, 2010; section 8.2.3 asks for it and leaves it open.
    """

    name: ClassVar[str] = "shared"
    spills: ClassVar[bool] = False

    def __init__(self, spec: SharedSpec, memory: int, store: Store, relation: RelationReader, **options: Any) -> None:
        """The options are those of `partitioned`, for each of the streams."""
        self.spec = spec
        self.store = store
        self.reader = relation
        least = [Partitioned.least_memory(each, relation) for each in spec.streams]
        spare = memory - sum(least)
        if spare < 0:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for {len(least)} streams that are looked up in this "
                f"relation; allow at least {format_bytes(sum(least))}"
            )
        own = int(spare * _OWN_SHARE) // len(least)
        self._together = _Together(memory - sum(least) - own * len(least))
        self._members: list[_Member] = []
        self._take_in(self._made([need + own for need in least], options))
        self.budget = JointBudget(memory, [self._together.budget, *(member.budget for member in self._members)])
        self.answered = 0
        """Which stream the last batch of results is of."""
        self._next = 0

    def _made(self, memory: list[int], options: dict[str, Any]) -> list[_Member]:
        """A look-up for each stream, all with the same version of the relation."""
        while True:
            members = [
                _Member(spec, size, SharedStore(self.store, f"n{number}-"), self.reader,
                        together=self._together, number=number, **options)
                for number, (spec, size) in enumerate(zip(self.spec.streams, memory, strict=True))
            ]  # fmt: skip
            if len({member.newest for member in members}) == 1:
                return members
            for member in members:  # the relation has changed meanwhile
                member.close()

    def _take_in(self, members: Sequence[_Member]) -> None:
        self._members = self._together.members = list(members)
        for member in members:
            member.follow(member.newest)
            member.share()

    @classmethod
    def least_memory(cls, spec: SharedSpec, relation: RelationReader, **options: Any) -> int:
        """The smallest budget these look-ups can work in, if no row of a stream is large."""
        return sum(Partitioned.least_memory(each, relation) for each in spec.streams)

    # --- the protocol ---

    def receive(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, Stall):
            for member in self._members:
                member.receive(event)
        elif isinstance(event, Arrive | End):
            if isinstance(event, Arrive):
                self._follow()
            self._members[event.input].receive(event)
        else:
            raise ProtocolError(f"{self.name} does not take {type(event).__name__}")

    def _follow(self) -> None:
        """Let rows meet the newest version, those of all streams the same."""
        if self.reader.latest(pinned=True).number != self._members[0].newest:
            pinned = self.reader.pin()
            for member in self._members:
                member.follow(pinned.version.number)
            pinned.release()

    def poll(self, now: float, fuel: int) -> Step:
        """Let one stream after the other work a little, and hand out at most one batch: see `answered`."""
        before = self.cost
        left = max(1, fuel)
        out = None
        for member in self._members:
            member.note_time(now)
        while left > 0 and out is None:
            number = self._next_to_work()
            if number is None:
                break
            step = self._members[number].poll(now, left)
            left -= max(1, step.cost.probes + step.cost.inserts + step.cost.results)
            out = step.out
            self.answered = number
            if not self._members[number].at_work:
                self._next = (number + 1) % len(self._members)
        return Step(out, self._status(), self.cost - before)

    def _next_to_work(self) -> int | None:
        """Whoever is at work goes on; then, in turn, those who must work, and those who can."""
        for number, member in enumerate(self._members):
            if member.at_work:
                return number
        self._together.go_on()
        turn = [(self._next + i) % len(self._members) for i in range(len(self._members))]
        for wanted in (Status.HAS_OUTPUT, Status.HAS_WORK):
            for number in turn:
                if self._members[number].status is wanted and number not in self._together.settled:
                    return number
        return None

    def _status(self) -> Status:
        statuses = [member.status for member in self._members]
        if all(status is Status.DONE for status in statuses):
            return Status.DONE
        for status in (Status.HAS_OUTPUT, Status.HAS_WORK):
            if status in statuses:
                return status
        return Status.NEED_INPUT

    def wake_at(self) -> float | None:
        """When a row of some stream has waited for long enough."""
        return min((at for member in self._members if (at := member.wake_at()) is not None), default=None)

    @property
    def cost(self) -> Cost:
        """All work so far."""
        total = Cost()
        for member in self._members:
            total += member.cost
        return total

    @property
    def phase(self) -> str:
        """Arriving, reactive, clean-up or done."""
        phases = {member.phase for member in self._members}
        for phase in ("arriving", "reactive", "clean-up"):
            if phase in phases:
                return phase
        return "done"

    @property
    def hits(self) -> int:
        """Rows that found their partition in memory."""
        return sum(member.hits for member in self._members)

    def report(self) -> Report:
        """How the rows of all streams fared so far."""
        delays = self._members[0].answers.delays.plus(*(member.answers.delays for member in self._members[1:]))
        return Report(lookup=sum_of_figures([member.figures() for member in self._members], delays))

    def close(self) -> None:
        """Let go of all rows and of the relation; the store belongs to whoever made it."""
        for member in self._members:
            member.close()

    def check(self) -> None:
        """Assert the invariants."""
        self.budget.check()
        for member in self._members:
            member.check()
            assert member.memory is self._together.memory
        assert sum(member.at_work for member in self._members) <= 1
        assert len({(member.version.number, member.newest) for member in self._members}) == 1

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        """The state as of now: that of all streams."""
        parts = [member.snapshot() for member in self._members]
        state = {
            "format": FORMAT,
            "memory": self.budget.total,
            "next": self._next,
            "streams": [
                {**part.to_json(), "memory": member.budget.total}
                for part, member in zip(parts, self._members, strict=True)
            ],
        }  # fmt: skip
        segments = [f"n{number}-{name}" for number, part in enumerate(parts) for name in part.segments]
        return Snapshot(self.name, self.spec.fingerprint, state, tuple(segments))

    @classmethod
    def restore(
        cls, spec: SharedSpec, snapshot: Snapshot, memory: int, store: Store, relation: RelationReader, **options: Any
    ) -> Self:
        """Look-ups that go on where the snapshot was taken; the relation must still have those versions."""
        check_snapshot(cls.name, spec.fingerprint, snapshot, memory)
        shared = cls(spec, memory, store, relation, **options)
        saved = snapshot.state["streams"]
        own = sum(part["memory"] for part in saved)
        together = shared._together = _Together(memory - own)
        members = []
        for number, (member, part) in enumerate(zip(shared._members, saved, strict=True)):
            member.close()
            taken = Snapshot.from_json(part)
            members.append(_Member.restore(member.spec, taken, part["memory"], member.store, relation,
                                           together=together, number=number, **options))  # fmt: skip
        shared._take_in(members)
        shared.budget = JointBudget(memory, [together.budget, *(member.budget for member in members)])
        shared._next = snapshot.state["next"]
        return shared
