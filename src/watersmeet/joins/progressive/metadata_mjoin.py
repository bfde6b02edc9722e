"""Rely on what the inputs promise: keep only rows that can still find partners, and take rows in a good order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.errors import ProtocolError, SpecError
from watersmeet.core.protocol import Event, Punctuate, Status, Step
from watersmeet.core.report import Report
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.arrival import Arrival, Task
from watersmeet.engine.sizing import Grain
from watersmeet.joins.progressive.knowledge import Knowledge, Propagation
from watersmeet.joins.progressive.promised_arrival import PromisedArrival, Turns
from watersmeet.joins.progressive.promised_rows import PromisedRows
from watersmeet.joins.progressive.spilling import SpillingJoin
from watersmeet.joins.progressive.xjoin import VisitStages
from watersmeet.policies.flush import FlushPolicy
from watersmeet.policies.promises import Goal, PurgePolicy, stream_schedule
from watersmeet.records.intake import Received
from watersmeet.records.patterns import KeyPattern, read_pattern
from watersmeet.records.punctuated import ranges_can_be_told
from watersmeet.spill.store import Store
from watersmeet.tables.purgeable import PurgeableTable

_RARELY_MORE = 2048
"""Bytes that a punctuation takes at most, unless it has many values."""
_RANGE_SHARE = 16
"""The punctuated ranges may take one part in so many of the memory, each."""
_MORE_MEMORY = 4
"""The least memory is that of `xjoin` and one part in so many more, for what is known and for moving rows."""


class MetadataMJoin(SpillingJoin):
    """Drop rows as soon as the inputs' promises say that they will find no more partners [1]_.

    ```
    row ──▶ promised not to come? ──▶ look up on the other side ──▶ pairs
                                   └─▶ can partners still come, or lie on disk? ──yes──▶ keep
                                                                                └─no──▶ drop on the fly
    punctuation ──▶ punctuated range ──▶ purge the other side's rows in that range ──▶ hand it on when the other agrees
    ```

    What an input may promise: unique keys (of a one-to-many join, a row of the many side goes once it has met its one
    partner), rows clustered by key (a cluster that is over is a punctuation), rows sorted by key (all before is over),
    and punctuations among its rows: a value, some values, or a range of the key. Rows in memory that a promise makes
    useless are purged after `purge_every` promises, when memory is short, and when nothing arrives. A row stays that
    might have partners on disk; once it has visited them, it goes, too. When rows that are needed do not fit, they are
    spilled, as by `xjoin`.

    Where rows of both inputs wait, `streams` says whose come next: `"random"` turns, or `"priority"` for the side with
    unique keys, each up to its quota. With `tuples="value"` those rows of a turn come first that a punctuation of the
    other input waits for; the others go to a pool until the turn is over. If the many side is clustered, a turn does
    not end amid a cluster that has found its partner.

    A row that was promised not to come is an error that names it. With `broken="count"` it is counted, and joined like
    any other: then useless rows are moved to disk instead of being dropped, nothing is dropped on the fly, and no
    punctuations are handed on, as they might turn out to be wrong.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import LEFT, RIGHT, Arrive, Punctuate
    >>> from watersmeet.core.promises import Promises
    >>> from watersmeet.core.spec import JoinSpec, parse_on
    >>> from watersmeet.spill.store import MemoryStore
    >>> news = pa.record_batch({"sno": [79, 81], "keyword": ["Smart Card", "Vote"]})
    >>> hits = pa.record_batch({"sno": [79, 81, 79], "ip": ["64.58.76.224", "207.68.172.234", "202.112.39.8"]})
    >>> promises = (Promises(unique=("sno",)), Promises(punctuated=True))
    >>> spec = JoinSpec(news.schema, hits.schema, parse_on("sno"), promises=promises)
    >>> join = MetadataMJoin(spec, 1 << 20, MemoryStore(), optimize="memory")
    >>> for event in (Arrive(LEFT, news), Arrive(RIGHT, hits), Punctuate(RIGHT, {"sno": 79})):
    ...     join.receive(event)
    >>> step = join.poll(0.0, fuel=100)
    >>> step.out.num_rows, join.poll(0.0, fuel=100).punctuations, join.state_rows
    (3, (Punctuation(sno = 79),), (1, 0))

    Where this differs from the paper: it treats both inputs alike, so that any promise of either side is used, and
    many-to-many joins, too. A key of a unique input counts as punctuated when its row leaves memory, which is how one
    that comes twice is noticed. Rows that a punctuation concerns are found by their index (`search="index"`), or by a
    look at all rows where it is a range; `search="scan"` always looks at all, as the paper does.

    .. [1] L. Ding, E. A. Rundensteiner and G. T. Heineman. MJoin: A metadata-aware stream join operator. DEBS 2003.
    """

    name: ClassVar[str] = "metadata_mjoin"
    takes_punctuations: bool = True

    def __init__(
        self,
        spec: JoinSpec,
        memory: int,
        store: Store,
        *,
        optimize: str = "rate",
        purge_every: int | None = None,
        search: str = "index",
        streams: str | None = None,
        quotas: tuple[int, int] = (1024, 1024),
        tuples: str | None = None,
        broken: str = "error",
        propagate: bool = True,
        seed: int = 0,
        turn: int = 256,
        flush: FlushPolicy | str = "largest",
        prompt: bool = True,
        grain: Grain | None = None,
    ) -> None:
        """`turn` is how many rows a random turn takes."""
        goal = Goal.named(optimize)
        for what, chosen, known in (
            ("search", search, ("index", "scan")),
            ("broken", broken, ("error", "count")),
            ("tuples", tuples or goal.tuples, ("sequential", "value")),
        ):
            if chosen not in known:
                raise SpecError(f"{what}={chosen!r} is not known; choose {' or '.join(map(repr, known))}")
        super().__init__(spec, memory, store, flush, grain)
        self.stages: VisitStages = VisitStages(self, prompt)
        self.promised = PromisedRows(self)
        """Which rows are kept, which are purged, and when."""
        most = memory // _RANGE_SHARE
        claims = [self.budget.reservation(f"promises of {name}") for name in spec.names]
        self.known = tuple(Knowledge(spec, side, self.codec, claims[side], most) for side in (0, 1))
        self.lenient = broken == "count"
        self.policy = PurgePolicy(goal.purge_every if purge_every is None else purge_every)
        self.by_index = search == "index"
        unique = [known.unique for known in self.known]
        preferred = 1 if unique[1] and not unique[0] else 0
        streams = streams or ("priority" if any(unique) else "random")
        self.turns = Turns(
            self,
            self._intakes,
            stream_schedule(streams, preferred, quotas, seed, turn),
            [
                (tuples or goal.tuples) == "value" and not known.in_order and _can_be_taken(spec.input(side))
                for side, known in enumerate(self.known)
            ],
        )
        """Rows and punctuations that wait, and whose come next."""
        self.unused = [0, 0]
        """Punctuations by input that say nothing about the keys."""
        self.propagation = Propagation(
            self, self.budget.reservation("punctuations on their way"), most, propagate and not self.lenient
        )
        self._tells_ranges = all(
            self.codec.exact or ranges_can_be_told(spec.left.field(one).type, spec.right.field(other).type)
            for one, other in zip(spec.keys(0)[:1], spec.keys(1)[:1], strict=True)
        )

    # --- what rows are kept in ---

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        least = super().least_memory(spec, **options)
        return least + least // _MORE_MEMORY

    def _make_table(self, side: int) -> PurgeableTable:
        return PurgeableTable(self.plans[side].types, self.budget, self.sizing.layout, self.spec.names[side])

    @property
    def state_rows(self) -> tuple[int, int]:
        """Rows of each input that are in memory."""
        return self.promised.held

    def report(self) -> Report:
        """What was made of the promises, by input."""
        return Report(promises=self.promised.figures())

    # --- the protocol ---

    def receive(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, Punctuate):
            self._receive_punctuation(event)
            return
        before = [intake.rows for intake in self._intakes]
        super().receive(event)
        for side, intake in enumerate(self._intakes):
            self.turns.rows_came(side, intake.rows - before[side])

    def _receive_punctuation(self, event: Punctuate) -> None:
        side = event.input
        self._check_open(side)
        if self._must_poll:
            raise ProtocolError("poll until what was received is worked off, before the next punctuation")
        pattern = read_pattern(self.spec, side, event.pattern)
        if pattern is None or (pattern.values is None and not self._tells_ranges):
            self.unused[side] += 1
            return
        self._stalled = False
        self.turns.add_mark(side, pattern)

    def poll(self, now: float, fuel: int) -> Step:
        """Work a little, and hand out at most one batch, and the punctuations that hold beyond it."""
        step = super().poll(now, fuel)
        return replace(step, punctuations=self.propagation.take()) if self.propagation.ready else step

    def _status(self) -> Status:
        if isinstance(self._task, PromisedArrival) and self._task.done and not self.pairs.waiting:
            # What rows tell of the future counts from now on, not from the next poll.
            self._task.finish()
            self._task = None
            if self.propagation.any:
                self.propagation.look()
        return super()._status()

    @property
    def _arrivals_wait(self) -> bool:
        return super()._arrivals_wait or any(self.turns.marks) or any(self.turns.pools)

    def exhausted(self, side: int) -> bool:
        """Whether an input has ended and all its rows have been worked off."""
        return super().exhausted(side) and not self.turns.pools[side]

    # --- whose rows come next ---

    def turn_begins(self) -> None:
        """Before the next rows are chosen: inputs of which nothing is left are closed, punctuations handed on."""
        for side in (0, 1):
            if self._ended[side] and not self._closed[side] and self.turns.is_idle(side):
                self._closed[side] = True
                self._input_closed(side)
        if self.propagation.any:
            self.propagation.look()

    def _next_task(self) -> Task | None:
        arrival = self.turns.next()
        if arrival is not None:
            return arrival
        if all(self._closed):
            task = self._clean_up_task()
            self._done = task is None
            if self._done:
                self.propagation.look()
            return task
        if not self._stalled:
            return None
        self.promised.purge_now()
        return self._reactive_task()

    def _arrival(self, side: int, batch: pa.RecordBatch, numbers: Int64) -> Arrival:
        return PromisedArrival(self, side, batch, numbers)

    def is_closed(self, side: int) -> bool:
        """Whether an input has ended and nothing of it waits."""
        return self._closed[side]

    def admit(self, arrival: Arrival, count: int) -> int:
        """Make room for those of the next rows that are to be kept; returns for how many rows, at least one."""
        assert isinstance(arrival, PromisedArrival)
        table = self.tables[arrival.input]
        while True:
            hashes, parts, columns = arrival.piece(count)
            first = arrival.next
            clock = self.clock
            keep = self.promised.to_be_kept(arrival.input, hashes, parts, lambda: arrival.keys(first, count))  # noqa: B023
            rows = np.flatnonzero(keep)
            kept = columns if len(rows) == count else [column.take(pa.array(rows)) for column in columns]
            of_kept = parts[rows]
            wide_enough = self._allow_widest(arrival.input, arrival.widest)
            if wide_enough and self.secure(lambda: table.reserve(of_kept, kept)):  # noqa: B023
                if self.clock != clock:
                    continue  # what was flushed may be what these rows must wait for
                arrival.keep = keep
                return count
            if count == 1:
                raise self._no_room_for(arrival)
            count //= 2

    # --- punctuations ---

    def heed(self, side: int, patterns: Sequence[KeyPattern]) -> None:
        """Punctuations stand at the head of their input."""
        if self.budget.free < _RARELY_MORE:  # what is not needed any more makes room for what is to be remembered
            self.promised.purge_now()
        values = [pattern.values for pattern in patterns if pattern.values is not None]
        if values:
            together = KeyPattern(side, [pa.concat_arrays(column) for column in zip(*values, strict=True)])
            self.known[side].add(together, len(values))
        for pattern in patterns:
            if pattern.values is None:
                self.known[side].add(pattern)
        self.propagation.add(patterns)
        self.promised.promises_made(side)

    def is_over(self, side: int, hashes: Int64, keys: Callable[[], list[pa.Array]]) -> Bool:
        """Which of some keys an input will not send any more."""
        if self._closed[side]:
            return np.ones(len(hashes), np.bool_)
        over = self.known[side].range.contains(hashes, keys)
        if self.known[side].unique:
            over |= self.promised.in_memory(side, hashes, self.tables[side].parts_of(hashes), keys)
        return over

    def range_is_over(self, side: int, pattern: KeyPattern) -> bool:
        """Whether an input will send no key of a range any more, and none of its results is still to be found."""
        over = self._closed[side] or self.known[side].range.covers(pattern)
        return over and not any(disk.total_rows for disk in self.disks)

    # --- memory ---

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        # Clean-up has row numbers in its hands; and then there is nothing left to purge.
        if not all(self._closed) and self.promised.purge_now():
            return True
        return super()._flush_one(spared)

    def _flush_now(self, side: int, portions: Sequence[tuple[int, int]]) -> None:
        for part, _ in portions:
            self.promised.remember_part(side, part)
        super()._flush_now(side, portions)

    def forget(self, side: int, part: int) -> None:
        """Drop a partition from memory."""
        self.promised.remember_part(side, part)
        super().forget(side, part)

    def last_departure(self, side: int, part: int) -> int:
        """The last tick at which a row left this partition's memory for the disk."""
        return max(super().last_departure(side, part), self.promised.last_left(side, part))

    def visit_ended(self, side: int, part: int, covered: int, rows: int) -> None:
        """A memory partition has met rows of the other side's disk: if it met all, promises count for it again."""
        if covered == rows:
            self.promised.visit_ended(side, part)

    def _input_closed(self, side: int) -> None:
        super()._input_closed(side)
        # Nothing comes any more, whatever was promised; and the other input's rows need not be told apart by it.
        self.known[side].clear()

    # --- snapshots ---

    def still_in_memory(self, side: int, parts: Int32, ticks: Int64) -> Bool:
        """Which rows have not left memory since a snapshot wrote them."""
        return super().still_in_memory(side, parts, ticks) & ~self.promised.left_since(side, ticks)

    def waiting(self, side: int) -> list[Received]:
        """One input's rows that were received and are not in memory yet."""
        waiting = super().waiting(side)
        at_hand = isinstance(self._task, Arrival) and self._task.input == side
        return [*waiting[:at_hand], *self.turns.pools[side], *waiting[at_hand:]]

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        segments, state = super()._own_state()
        lists, promised = self.promised.to_state()
        return [*segments, *lists], {
            **state,
            "promised": promised,
            "turns": self.turns.to_state(),
            "unused": list(self.unused),
            "known": [known.to_state() for known in self.known],
            "propagation": self.propagation.to_state(),
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        super()._load_own(state)
        self.promised.load(state["promised"])
        self.turns.load(state["turns"])
        self.unused = list(state["unused"])
        for known, saved in zip(self.known, state["known"], strict=True):
            known.load(saved)
        self.propagation.load(state["propagation"])

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        self.turns.check()


def _can_be_taken(schema: pa.Schema) -> bool:
    """Whether rows of a batch can be picked; Arrow cannot do that with every type."""
    return all(_type_can_be_taken(field.type) for field in schema)


def _type_can_be_taken(type_: pa.DataType) -> bool:
    if pa.types.is_run_end_encoded(type_) or type_ in (pa.string_view(), pa.binary_view()) or pa.types.is_union(type_):
        return False
    if isinstance(type_, pa.BaseExtensionType):
        return _type_can_be_taken(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return _type_can_be_taken(type_.value_type)
    return all(_type_can_be_taken(type_.field(i).type) for i in range(type_.num_fields))
