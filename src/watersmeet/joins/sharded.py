"""Shards: Confluence several times over, each with the rows of a part of all hashes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import pyarrow as pa

from watersmeet.core.cost import Cost
from watersmeet.core.errors import BudgetError, ProtocolError, SnapshotError, SpecError
from watersmeet.core.protocol import Arrive, End, Event, PlainOperator, Snapshot, Stall, Status, Step
from watersmeet.core.report import Lateness, Report
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.compose import member_prefix, member_snapshots
from watersmeet.engine.snapshot import FORMAT, check_snapshot
from watersmeet.joins.confluence import FLOOR, Confluence
from watersmeet.joins.shard import Shard
from watersmeet.memory import PooledBudget, format_bytes
from watersmeet.records.keys import KeyCodec
from watersmeet.records.split import ROW_BYTES, Splitter
from watersmeet.records.types import put_together
from watersmeet.spill.shared_store import SharedStore
from watersmeet.spill.store import Store

_SPLIT_SHARE = 64
"""One part in so many of the memory is for what is noted of rows on their way to shards."""
_LEAST_SPLIT = 64 * ROW_BYTES
_TOGETHER = 1024
"""Batches of fewer rows are split together."""
_RESULTS_SHARE = 16
"""One part in so many, at most, is for results that wait for whoever takes them."""


class Sharded(PlainOperator):
    """Confluence in shards: rows go by the hash of their key to joins that have nothing in common but the memory.

    ```
                       ┌─▶ shard 0: memtables, runs, settlement ─┐
    arrival ──split────┤                                         ├─▶ pairs
            by hash    └─▶ shard 1: memtables, runs, settlement ─┘
    ```

    Equal keys have equal hashes, so that a pair's rows are always in one shard, which finds the pair exactly once: that
    does not depend on when the shards work, or in which order. So a driver may run each in a thread of its own (see
    `drivers.crew`); `poll` runs them one after the other, in an order that can be chosen. A shard that is full takes
    memory that others have no use for before it flushes (`memory.PooledBudget`). One that has long to do, for a hot
    key, does not keep the others from going on, as long as what waits for it is within bounds.

    :param shards: how many.
    :param order: in which order `poll` runs shards: one after the other, or as if by chance, from a seed.
    :param stays: of which inputs batches stay in memory whatever becomes of them here, because they are parts of a
        table; shards do not copy their rows (`records.split`).

    Other options are those of `Confluence`.

    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.spill.store import MemoryStore
    >>> batch = pa.record_batch({"id": list(range(1000))})
    >>> spec = JoinSpec(batch.schema, batch.schema, parse_on("id"))
    >>> join = Sharded(spec, 1 << 20, MemoryStore(), shards=3)
    >>> for side in (0, 1):
    ...     join.receive(Arrive(side, batch)); join.receive(End(side))
    >>> rows = 0
    >>> while (step := join.poll(0.0, 1000)).status is Status.HAS_OUTPUT:
    ...     rows += step.out.num_rows if step.out else 0
    >>> rows, [shard.cost.results > 300 for shard in join.shards]
    (1000, [True, True, True])
    """

    name: ClassVar[str] = "confluence"
    spills: ClassVar[bool] = True
    joins_ranges: ClassVar[bool] = False
    kinds: ClassVar[tuple[str, ...]] = Confluence.kinds

    def __init__(
        self,
        spec: JoinSpec,
        memory: int,
        store: Store,
        *,
        shards: int = 2,
        order: int | None = None,
        stays: tuple[bool, bool] = (False, False),
        **options: Any,
    ) -> None:
        self.refuse_unfit(spec)
        if shards < 1:
            raise SpecError(f"there cannot be {shards} shards; ask for one or more")
        least = self.least_memory(spec, shards=shards)
        if memory < least:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for the {self.name} join of these rows in {shards} "
                f"shards; allow at least {format_bytes(least)}"
            )
        self.spec = spec
        self.store = store
        beside = max(_LEAST_SPLIT, memory // _SPLIT_SHARE)
        self.result_bytes = memory // _RESULTS_SHARE if memory >= 2 * least else 0
        """How many bytes of results may wait for whoever takes them."""
        self.budget = PooledBudget(memory, shards, beside + self.result_bytes)
        self.budget.beside.reservation("results").grow(self.result_bytes)
        self._pieces = self.budget.beside.reservation("rows on their way")
        codec = KeyCodec(spec)
        self._splitters = [Splitter(spec, side, codec, shards, stays[side]) for side in (0, 1)]
        shelves = [splitter.shelf for splitter in self._splitters]
        # What a join has in any memory, all of its shards have together.
        options.setdefault("floor", FLOOR // shards)
        self.shards = [
            Shard(
                spec,
                self.budget.fair,
                SharedStore(store, member_prefix(number)),
                share=share,
                shelves=shelves,
                **options,
            )
            for number, share in enumerate(self.budget.shares)
        ]
        self.beyond = sum(shard.beyond for shard in self.shards)
        self._received: deque[Arrive | Stall | End] = deque()
        """What no shard has been told yet."""
        self.outstanding = [0, 0]
        """Rows of each input that were received, and that not all shards have taken."""
        self._numbered = [0, 0]
        self._ended = [False, False]
        self._known_schemas = [spec.input(side) for side in (0, 1)]
        self._silent = False
        self._hashed = 0
        self._order = order
        self._turn = 0

    @classmethod
    def least_memory(cls, spec: JoinSpec, *, shards: int = 2, **options: Any) -> int:
        """The smallest budget that so many shards can work in, if no single row is large."""
        own = shards * Confluence.least_memory(spec, **options)
        return own + max(_LEAST_SPLIT, -(-own // (_SPLIT_SHARE - 1)))

    @classmethod
    def refuse_unfit(cls, spec: JoinSpec) -> None:
        """An error if this join cannot carry out what the spec asks for."""
        Confluence.refuse_unfit(spec)
        if spec.asks_for_close:
            names = ", ".join(spec.close_columns(0))
            raise SpecError(f"shards are of equal keys, and {names} need only be close; use one thread")

    # --- the protocol ---

    def receive(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, Arrive | End):
            if self._ended[event.input]:
                raise ProtocolError(f"{self.spec.names[event.input]} has ended; nothing can follow")
            if isinstance(event, End):
                self._ended[event.input] = True
            else:
                self._check_schema(event.input, event.batch.schema)
                self.outstanding[event.input] += event.batch.num_rows
        elif not isinstance(event, Stall):
            raise ProtocolError(f"{self.name} does not take {type(event).__name__}")
        self._received.append(event)

    def _check_schema(self, number: int, schema: pa.Schema) -> None:
        if schema is not self._known_schemas[number]:
            if schema != self.spec.input(number):
                raise SpecError(
                    f"a batch of {self.spec.names[number]} has other columns than announced: it has "
                    f"{', '.join(f'{field.name}: {field.type}' for field in schema)}"
                )
            self._known_schemas[number] = schema

    def hand_on(self) -> None:
        """Split what was received, and leave it for the shards: as much as may be on its way at once."""
        self._let_go()
        if len(self._received) > 2:
            self._put_together()
        while self._received:
            event = self._received[0]
            if isinstance(event, Arrive):
                rows = min(event.batch.num_rows, self._room)
                if not rows and event.batch.num_rows:
                    return
                self._received.popleft()
                if rows < event.batch.num_rows:
                    self._received.appendleft(Arrive(event.input, event.batch.slice(rows)))
                self._split(event.input, event.batch.slice(0, rows))
            else:
                self._received.popleft()
                self._silent = isinstance(event, Stall)
                for shard in self.shards:
                    shard.mail.append(event)

    def _put_together(self) -> None:
        """Many small batches become few, if they are the first; inputs' rows may come in any order to each other."""
        small: list[list[pa.RecordBatch]] = [[], []]
        while self._received and isinstance(event := self._received[0], Arrive) and event.batch.num_rows < _TOGETHER:
            small[event.input].append(event.batch)
            self._received.popleft()
        for number in (1, 0):
            one = put_together(small[number]) if len(small[number]) > 1 else None
            batches = small[number] if one is None else [one]
            self._received.extendleft(Arrive(number, batch) for batch in reversed(batches))

    @property
    def hungry(self) -> bool:
        """Whether more can come: all rows that could not be left for the shards yet are few."""
        return self.received < _TOGETHER

    @property
    def received(self) -> int:
        """Rows that were received, and have not been left for the shards."""
        return sum(event.batch.num_rows for event in self._received if isinstance(event, Arrive))

    @property
    def _room(self) -> int:
        return self.budget.beside.free // ROW_BYTES

    def _split(self, number: int, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._silent:
            self._silent = False
            for shard in self.shards:
                shard.mail.append(None)
        self._pieces.grow(ROW_BYTES * batch.num_rows)
        self._hashed += batch.num_rows
        pieces = self._splitters[number].split(batch, self._numbered[number])
        self._numbered[number] += batch.num_rows
        if not any(pieces):
            self._done_with(number, batch.num_rows)
        for shard, piece in zip(self.shards, pieces, strict=True):
            if piece is not None:
                shard.mail.append((number, piece))

    def _let_go(self) -> None:
        """Forget batches that all shards have taken."""
        for shard in self.shards:
            for number in (0, 1):
                taken = shard.taken(number)
                while taken:
                    batch = taken.popleft()
                    batch.left -= 1
                    if not batch.left:
                        self._done_with(number, batch.rows)

    def _done_with(self, number: int, rows: int) -> None:
        self._pieces.shrink(ROW_BYTES * rows)
        self.outstanding[number] -= rows

    def poll(self, now: float, fuel: int) -> Step:
        """Let shards work a little, one after the other, until one has found something."""
        before = self.cost
        left = max(1, fuel)
        out = None
        woken: list[Shard] = []
        while left > 0 and out is None:
            self.hand_on()
            shard = self._next_shard(now, woken)
            if shard is None:
                break
            step = shard.run(now, left)
            left -= max(1, step.cost.probes + step.cost.inserts + step.cost.results)
            out = step.out
        self.hand_on()
        return Step(out, self.status, self.cost - before)

    def _next_shard(self, now: float, woken: list[Shard]) -> Shard | None:
        """Whose turn it is: of those who must work, else of those who can, else of those who wanted to be woken."""
        candidates = [shard for shard in self.shards if shard.ready]
        if not candidates and not woken:
            candidates = [shard for shard in self.shards if shard.status is Status.HAS_WORK]
            candidates = candidates or [shard for shard in self.shards if shard.is_due(now)]
            woken += candidates
        if not candidates:
            return None
        if self._order is None:
            self._turn += 1
            return candidates[self._turn % len(candidates)]
        # A sequence that looks like chance, and is the same each time.
        self._turn = (self._turn * 6364136223846793005 + 2 * self._order + 1) % (1 << 64)
        return candidates[(self._turn >> 33) % len(candidates)]

    @property
    def status(self) -> Status:
        """What a poll would be good for."""
        statuses = {shard.status for shard in self.shards}
        if self._received or any(shard.ready for shard in self.shards):
            return Status.HAS_OUTPUT
        if statuses == {Status.DONE}:
            return Status.DONE
        if all(self._ended):
            return Status.HAS_OUTPUT
        return Status.HAS_WORK if Status.HAS_WORK in statuses else Status.NEED_INPUT

    def wake_at(self) -> float | None:
        """When a row of some shard has owed something for as long as it may."""
        return min((at for shard in self.shards if (at := shard.wake_at()) is not None), default=None)

    @property
    def cost(self) -> Cost:
        """All work so far; keys are hashed once."""
        total = Cost(hashes=self._hashed)
        for shard in self.shards:
            cost = shard.cost
            total += cost - Cost(hashes=cost.hashes)
        return total

    @property
    def phase(self) -> str:
        """Arriving, reactive, clean-up or done."""
        phases = {shard.phase for shard in self.shards}
        if phases == {"done"} and self.status is Status.DONE:
            return "done"
        return next((phase for phase in ("reactive", "arriving") if phase in phases), "clean-up")

    @property
    def events(self) -> Counter[str]:
        """What happened how often, in all shards."""
        total: Counter[str] = Counter()
        for shard in self.shards:
            total.update(dict(shard.events))  # taken at once: the shard may be at work
        return total

    def report(self) -> Report:
        """How late pairs were in all shards, and how many rows have yet to settle."""
        known = [lateness for shard in self.shards if (lateness := shard.report().lateness) is not None]
        if not known:
            return Report()
        delays = self.shards[0].owed_since.lateness.plus(*(shard.owed_since.lateness for shard in self.shards[1:]))
        most, owing = max(each.most for each in known), sum(each.owing for each in known)
        return Report(lateness=Lateness(*delays.median_and_p99(), most, owing))

    def close(self) -> None:
        """Let go of everything; the store belongs to whoever made it."""
        self._received.clear()
        for shard in self.shards:
            shard.mail.clear()
            shard.close()

    def check(self) -> None:
        """Assert the invariants."""
        self.budget.check()
        for shard in self.shards:
            shard.check()
        assert all(rows >= 0 for rows in self.outstanding)
        if not any(self.outstanding):
            assert self._pieces.held == 0

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        """The state as of now: that of all shards."""
        while True:
            self.hand_on()
            for shard in self.shards:
                shard.take_pieces()
            if not self._received:
                break
        self.hand_on()
        saved, segments = member_snapshots(self.shards)
        state = {
            "format": FORMAT,
            "memory": self.budget.total,
            "shares": [share.total for share in self.budget.shares],
            "shards": saved,
            "numbered": list(self._numbered),
            "ended": list(self._ended),
            "silent": self._silent,
        }
        return Snapshot(self.name, self.spec.fingerprint, state, tuple(segments))

    @classmethod
    def restore(cls, spec: JoinSpec, snapshot: Snapshot, memory: int, store: Store, **options: Any) -> Self:
        """An operator that goes on where the snapshot was taken, with as many shards."""
        saved: Sequence[dict[str, Any]] | None = snapshot.state.get("shards")
        if saved is None:
            raise SnapshotError("the snapshot is of a join without shards; restore it as that")
        check_snapshot(cls.name, spec.fingerprint, snapshot, memory)
        join = cls(spec, snapshot.state["memory"], store, **options)
        if len(saved) != len(join.shards):
            raise SnapshotError(f"the snapshot is of {len(saved)} shards; ask for as many, not for {len(join.shards)}")
        join._numbered = list(snapshot.state["numbered"])
        join._ended = list(snapshot.state["ended"])
        join._silent = snapshot.state["silent"]
        join.budget.divide(snapshot.state["shares"])
        for shard, state in zip(join.shards, saved, strict=True):
            shard.resume(Snapshot.from_json(state), Status(state["status"]))
        return join
