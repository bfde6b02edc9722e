"""Rely on what the inputs promise: keep only rows that can still find partners, and take rows in a good order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.errors import BudgetError, ProtocolError, SpecError
from watersmeet.core.protocol import Event, Punctuate, Status, Step
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.arrival import Arrival, Task
from watersmeet.engine.sizing import Grain
from watersmeet.joins.progressive.knowledge import Knowledge
from watersmeet.joins.progressive.promised_arrival import PromisedArrival
from watersmeet.joins.progressive.promised_state import PromisedState
from watersmeet.joins.progressive.propagation import Propagation
from watersmeet.memory import format_bytes
from watersmeet.policies.flush import FlushPolicy
from watersmeet.policies.purging import Goal, PurgePolicy
from watersmeet.policies.scheduling import stream_schedule
from watersmeet.records.intake import Received
from watersmeet.records.patterns import KeyPattern, read_pattern
from watersmeet.records.punctuated import ranges_can_be_told
from watersmeet.spill.store import Store

_MOST_AT_ONCE = 1024
"""Punctuations that are heeded together, at most."""
_RARELY_MORE = 2048
"""Bytes that a punctuation takes at most, unless it has many values."""
_RANGE_SHARE = 16
"""The punctuated ranges may take one part in so many of the memory, each."""


class MetadataMJoin(PromisedState):
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
    takes_punctuations: ClassVar[bool] = True

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
        least = self.least_memory(spec)
        if memory < least:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for the {self.name} join of these rows; allow at "
                f"least {format_bytes(least)}"
            )
        goal = Goal.named(optimize)
        for what, chosen, known in (
            ("search", search, ("index", "scan")),
            ("broken", broken, ("error", "count")),
            ("tuples", tuples or goal.tuples, ("sequential", "value")),
        ):
            if chosen not in known:
                raise SpecError(f"{what}={chosen!r} is not known; choose {' or '.join(map(repr, known))}")
        super().__init__(spec, memory, store, flush=flush, prompt=prompt, grain=grain)
        most = memory // _RANGE_SHARE
        claims = [self.budget.reservation(f"promises of {name}") for name in spec.names]
        self.known = tuple(Knowledge(spec, side, self.codec, claims[side], most) for side in (0, 1))
        self.lenient = broken == "count"
        self.policy = PurgePolicy(goal.purge_every if purge_every is None else purge_every)
        self.by_index = search == "index"
        unique = [known.unique for known in self.known]
        preferred = 1 if unique[1] and not unique[0] else 0
        streams = streams or ("priority" if any(unique) else "random")
        self._schedule = stream_schedule(streams, preferred, quotas, seed, turn)
        self._by_value = [
            (tuples or goal.tuples) == "value" and not known.in_order and _can_be_taken(spec.input(side))
            for side, known in enumerate(self.known)
        ]
        self._pools: tuple[list[Received], list[Received]] = ([], [])
        """Rows that wait for their turn to end, by input."""
        self._marks: tuple[deque[tuple[int, KeyPattern]], deque[tuple[int, KeyPattern]]] = (deque(), deque())
        """Punctuations that wait, each with the rows that come before it and after the last one."""
        self._behind = [0, 0]
        """Rows behind the last punctuation that waits."""
        self.unused = [0, 0]
        """Punctuations by input that say nothing about the keys."""
        self.propagation = Propagation(
            self, self.budget.reservation("punctuations on their way"), most, propagate and not self.lenient
        )
        self._tells_ranges = all(
            self.codec.exact or ranges_can_be_told(spec.left.field(one).type, spec.right.field(other).type)
            for one, other in zip(spec.keys(0)[:1], spec.keys(1)[:1], strict=True)
        )

    # --- the protocol ---

    def receive(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, Punctuate):
            self._receive_punctuation(event)
            return
        before = [intake.rows for intake in self._intakes]
        super().receive(event)
        for side, intake in enumerate(self._intakes):
            self._behind[side] += intake.rows - before[side]

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
        self._marks[side].append((self._behind[side], pattern))
        self._behind[side] = 0

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
        return super()._arrivals_wait or any(self._marks) or any(self._pools)

    def exhausted(self, side: int) -> bool:
        """Whether an input has ended and all its rows have been worked off."""
        return super().exhausted(side) and not self._pools[side]

    # --- whose rows come next ---

    def _next_task(self) -> Task | None:
        while True:
            self._close_inputs()
            if self.propagation.any:
                self.propagation.look()
            waiting = [
                intake.rows + sum(each.batch.num_rows for each in pool) + len(marks)
                for intake, pool, marks in zip(self._intakes, self._pools, self._marks, strict=True)
            ]
            if not any(waiting):
                break
            side, most = self._choose(waiting)
            task = self._take(side, most)
            if task is not None:
                return task
        if all(self._closed):
            task = self._clean_up_task()
            self._done = task is None
            if self._done:
                self.propagation.look()
            return task
        if not self._stalled:
            return None
        self.purge_now()
        return self._reactive_task()

    def _close_inputs(self) -> None:
        for side, intake in enumerate(self._intakes):
            idle = not intake.rows and not self._marks[side] and not self._pools[side]
            if self._ended[side] and not self._closed[side] and idle:
                self._closed[side] = True
                self._input_closed(side)

    def _choose(self, waiting: list[int]) -> tuple[int, int]:
        for side, known in enumerate(self.known):
            if known.clustered and self._intakes[side].rows and self._in_met_cluster(side):
                return side, self._rows_of_cluster
        chosen, most = self._schedule.choose(waiting)
        other = 1 - chosen
        # The choice of another input ends the turn, and with it the wait of those in the pool.
        return (other, 0) if self._pools[other] and not self._pools[chosen] else (chosen, most)

    def _in_met_cluster(self, side: int) -> bool:
        """Whether the next rows belong to a cluster whose partner, the only one, has come."""
        if not self.known[1 - side].unique or not self.met_last[side]:
            return False
        batch, numbers = self._intakes[side].next(self._ahead(side))
        self._intakes[side].put_back(batch, numbers)
        hashes, valid = self.codec.hash(side, self.plans[side].key_arrays(batch))
        if valid is not None:
            return False
        self._rows_of_cluster = self.known[side].in_open_cluster(hashes)
        return self._rows_of_cluster > 0

    def _ahead(self, side: int) -> int:
        """Rows before the next punctuation."""
        marks = self._marks[side]
        return marks[0][0] if marks else self._behind[side]

    def _take(self, side: int, most: int) -> Task | None:
        """The next rows of an input; None after a punctuation."""
        pool, intake = self._pools[side], self._intakes[side]
        ahead = self._ahead(side)
        if pool and (not most or not ahead or not self.propagation.waits(1 - side)):
            received = pool.pop(0)
            assert received.numbers is not None
            return PromisedArrival(self, side, received.batch, received.numbers)
        if not ahead:
            self.heed(side, self._at_head(side))
            return None
        pooled = sum(each.batch.nbytes for each in pool)
        by_value = self._by_value[side] and self.propagation.waits(1 - side) and pooled < self.sizing.input_bytes
        # Where purging can wait, so can the punctuations between rows that are taken together.
        rows_at_once = ahead if by_value or self.policy.immediate else intake.rows
        batch, numbers = intake.next(min(most, rows_at_once))
        self._schedule.took(side, batch.num_rows)
        passed = self._pass_marks(side, batch.num_rows)
        if by_value:
            batch, numbers = self._those_waited_for(side, batch, numbers)
        return PromisedArrival(self, side, batch, numbers, passed) if batch.num_rows else None

    def _at_head(self, side: int) -> list[KeyPattern]:
        """The punctuations that stand before the next row; they are taken."""
        marks = self._marks[side]
        taken = [marks.popleft()[1]]
        while marks and not marks[0][0] and len(taken) < _MOST_AT_ONCE:
            taken.append(marks.popleft()[1])
        return taken

    def _pass_marks(self, side: int, rows: int) -> list[tuple[int, KeyPattern]]:
        """The punctuations among the next so many rows, each with the rows before it; all of them are taken."""
        marks, passed, before = self._marks[side], [], 0
        while marks and before + marks[0][0] < rows:
            gap, pattern = marks.popleft()
            before += gap
            passed.append((before, pattern))
        if marks:
            marks[0] = (marks[0][0] - (rows - before), marks[0][1])
        else:
            self._behind[side] -= rows - before
        return passed

    def _those_waited_for(self, side: int, batch: pa.RecordBatch, numbers: Int64) -> tuple[pa.RecordBatch, Int64]:
        """The rows that a punctuation of the other input waits for; the others go to the pool."""
        keys = self.plans[side].key_arrays(batch)
        hashes, _ = self.codec.hash(side, keys)
        urgent = self.known[1 - side].range.contains(hashes, lambda: keys)
        if urgent.all():
            return batch, numbers
        later = np.flatnonzero(~urgent)
        self._pools[side].append(Received(batch.take(pa.array(later)), numbers[later]))
        now = np.flatnonzero(urgent)
        return batch.take(pa.array(now)), numbers[now]

    def _arrival(self, side: int, batch: pa.RecordBatch, numbers: Int64) -> Arrival:
        return PromisedArrival(self, side, batch, numbers)

    # --- punctuations ---

    def heed(self, side: int, patterns: Sequence[KeyPattern]) -> None:
        """Punctuations stand at the head of their input."""
        if self.budget.free < _RARELY_MORE:  # what is not needed any more makes room for what is to be remembered
            self.purge_now()
        values = [pattern.values for pattern in patterns if pattern.values is not None]
        if values:
            together = KeyPattern(side, [pa.concat_arrays(column) for column in zip(*values, strict=True)])
            self.known[side].add(together, len(values))
        for pattern in patterns:
            if pattern.values is None:
                self.known[side].add(pattern)
        self.propagation.add(patterns)
        self.promises_made(side)

    def is_over(self, side: int, hashes: Int64, keys: Callable[[], list[pa.Array]]) -> Bool:
        """Which of some keys an input will not send any more."""
        if self._closed[side]:
            return np.ones(len(hashes), np.bool_)
        over = self.known[side].range.contains(hashes, keys)
        if self.known[side].unique:
            over |= self.in_memory(side, hashes, self.tables[side].parts_of(hashes), keys)
        return over

    def range_is_over(self, side: int, pattern: KeyPattern) -> bool:
        """Whether an input will send no key of a range any more, and none of its results is still to be found."""
        over = self._closed[side] or self.known[side].range.covers(pattern)
        return over and not any(disk.total_rows for disk in self.disks)

    # --- snapshots ---

    def waiting(self, side: int) -> list[Received]:
        """One input's rows that were received and are not in memory yet."""
        waiting = super().waiting(side)
        at_hand = isinstance(self._task, Arrival) and self._task.input == side
        return [*waiting[:at_hand], *self._pools[side], *waiting[at_hand:]]

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        segments, state = super()._own_state()
        marks = []
        for side in (0, 1):
            # In a snapshot the rows of the pool stand in the queue again.
            pooled = sum(each.batch.num_rows for each in self._pools[side])
            gaps = [[gap, pattern.to_state()] for gap, pattern in self._marks[side]]
            behind = self._behind[side]
            if gaps:
                gaps[0][0] += pooled
            else:
                behind += pooled
            marks.append([gaps, behind])
        return segments, {
            **state,
            "marks": marks,
            "schedule": self._schedule.to_state(),
            "unused": list(self.unused),
            "known": [known.to_state() for known in self.known],
            "propagation": self.propagation.to_state(),
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        super()._load_own(state)
        for side, (gaps, behind) in enumerate(state["marks"]):
            self._marks[side].extend((gap, KeyPattern.of_state(saved)) for gap, saved in gaps)
            self._behind[side] = behind
        self._schedule.load(state["schedule"])
        self.unused = list(state["unused"])
        for known, saved in zip(self.known, state["known"], strict=True):
            known.load(saved)
        self.propagation.load(state["propagation"])

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        for side, intake in enumerate(self._intakes):
            counted = self._behind[side] + sum(gap for gap, _ in self._marks[side])
            assert counted == intake.rows, "every row stands before or behind a punctuation"


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
