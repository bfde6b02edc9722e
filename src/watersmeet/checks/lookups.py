"""The conformance suite of joins with a relation: every row against the relation as it is when the row arrives."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.checks.canonical import Row, canonical_rows
from watersmeet.checks.lookup_cases import PLENTY, LookupCase, LookupMove, make_lookup_case
from watersmeet.checks.many_lookup_cases import ChainCase, SharedCase
from watersmeet.checks.run import (
    FUEL_DOUBLES_AFTER,
    MOST_IDLE_POLLS,
    MOST_POLLS,
    REPEATED_SNAPSHOT_BYTES,
    ConformanceError,
)
from watersmeet.core.cost import Cost
from watersmeet.core.errors import BudgetError, ProtocolError, SnapshotError, WatersmeetError
from watersmeet.core.many_lookups import SharedSpec
from watersmeet.core.protocol import Arrive, End, Event, Snapshot, Stall, Status
from watersmeet.core.spec import Output
from watersmeet.spill.store import MemoryStore

AnyLookupCase: TypeAlias = "LookupCase | ChainCase | SharedCase"
_SHOWN = 4


@dataclass(frozen=True)
class LookupReport:
    """What a case went through."""

    case: AnyLookupCase
    cost: Cost
    restored: int
    versions: int
    """How many versions of the relation the rows met."""
    hits: int
    """Rows that were answered from memory."""
    cuts: bool
    """Whether partitions were cut while rows arrived."""
    rows: Counter[Row]
    steps: tuple[tuple[Any, ...], ...]


def run_lookup_case(operator_class: type[Any], case: AnyLookupCase, **options: Any) -> LookupReport:
    """Drive an operator through a case; whatever it does wrong is a `ConformanceError` that shows the case."""
    try:
        return _Run(operator_class, case, options).report()
    except Exception as error:
        raise ConformanceError(
            f"{operator_class.__name__}: {str(error) or type(error).__name__}\n{case}\n"
            f"  again: run_lookup_case({operator_class.__name__}, {case.maker}({case.seed}))"
        ) from error


class _Run:
    def __init__(self, operator_class: type[Any], case: AnyLookupCase, options: dict[str, Any]) -> None:
        self._class, self._case, self._options = operator_class, case, options
        self._store = MemoryStore()
        self._relations = case.make_relations()
        self._readers = case.readers(self._relations)
        # Changes may make the largest segment larger, up to what one row more than twice theta can.
        least = operator_class.least_memory(case.spec, self._readers, **options)
        self._memory = least + case.spare + (_room_to_grow(case) if _changes(case) else 0) + _stream_room(case)
        self._operator = operator_class(case.spec, self._memory, self._store, self._readers, **options)
        self._status = Status.NEED_INPUT
        self._open = sum(move.what == "end" for move in case.moves)
        self._polls = self._steps = self._idle = self._restored = 0
        self._cost = Cost()
        self._found: Counter[Row] = Counter()
        self._trace: list[tuple[Any, ...]] = []
        self._versions: set[tuple[int, ...]] = set()
        self._hits = 0

    def report(self) -> LookupReport:
        """Play the whole script."""
        self._after_step()
        for move in self._case.moves:
            if move.what in ("upsert", "delete"):
                getattr(self._relations[move.which], move.what)(move.batch)
                self._after_step()
                continue
            while self._status is Status.HAS_OUTPUT:
                self._poll()
            self._receive(self._event(move))
            for _ in range(move.polls):
                self._poll()
                if self._status in (Status.NEED_INPUT, Status.DONE):
                    break
        while self._status is not Status.DONE:
            self._poll()
        for _ in range(2):
            before = self._cost
            self._poll()
            _expect(self._status is Status.DONE and self._cost == before, "went on after it was done")
        rows = self._compare()
        self._hits += self._operator.hits
        self._operator.close()
        return LookupReport(
            self._case, self._cost, self._restored, len(self._versions), self._hits,
            any(relation.latest.cut_in > 1 for relation in self._relations), rows, tuple(self._trace),
        )  # fmt: skip

    def _event(self, move: LookupMove) -> Event:
        if move.what == "arrive":
            assert move.batch is not None
            self._versions.add(tuple(relation.version for relation in self._relations))
            return Arrive(move.which, move.batch)
        return Stall() if move.what == "stall" else End(move.which)

    def _receive(self, event: Event) -> None:
        self._operator.receive(event)
        self._open -= isinstance(event, End)
        self._after_step()

    def _poll(self) -> None:
        fuel = self._case.fuel[self._polls % len(self._case.fuel)] << min(30, self._polls // FUEL_DOUBLES_AFTER)
        step = self._operator.poll(self._polls * 0.01, fuel)
        self._polls += 1
        self._status = step.status
        self._cost += step.cost
        if step.out is not None:
            spec = self._case.spec
            _expect(spec.output is not Output.COUNTS, "handed out a batch, though only counts were asked for")
            shared = isinstance(spec, SharedSpec)
            schema = spec.schemas[self._operator.answered] if isinstance(spec, SharedSpec) else spec.schema
            _expect(step.out.schema.equals(schema), f"handed out {step.out.schema}, not {schema}")
            _expect(step.out.num_rows > 0, "handed out an empty batch")
            _expect(step.out.nbytes <= self._memory, f"handed out {step.out.nbytes} bytes at once")
            step.out.validate(full=True)
            rows = canonical_rows(step.out)
            self._found.update([(self._operator.answered, *row) for row in rows] if shared else rows)
        if not self._open:
            _expect(step.status is not Status.NEED_INPUT, "needs input after the end: it would wait for ever")
        else:
            _expect(step.status is not Status.DONE, "is done before the stream has ended")
        phase = self._operator.phase
        _expect((step.status is Status.DONE) == (phase == "done"), f"says {step.status.value!r} in phase {phase!r}")
        busy = step.out is not None or step.cost != Cost() or step.status in (Status.NEED_INPUT, Status.DONE)
        self._idle = 0 if busy else self._idle + 1
        _expect(self._idle <= MOST_IDLE_POLLS, f"says {step.status.value!r} but does nothing, poll after poll")
        _expect(self._polls <= MOST_POLLS, f"is not done after {MOST_POLLS} polls")
        self._trace.append((step.status, step.cost, phase, None if step.out is None else step.out.num_rows))
        self._after_step()

    def _after_step(self) -> None:
        operator = self._operator
        operator.check()
        operator.budget.check()
        _expect(operator.budget.total <= self._memory, "has a larger budget than it was given")
        if self._steps in self._case.restores:
            self._restore()
        self._steps += 1

    def _restore(self) -> None:
        self._operator.snapshot()
        written = self._store.bytes_written
        snapshot = self._operator.snapshot()
        _expect(
            self._store.bytes_written - written <= REPEATED_SNAPSHOT_BYTES,
            "wrote a second snapshot though nothing changed",
        )
        _expect(snapshot.fingerprint == self._case.spec.fingerprint, "gave a snapshot of another join")
        missing = set(snapshot.segments) - set(self._store.names())
        _expect(not missing, f"names segments that its store does not have: {sorted(missing)}")
        phase = self._operator.phase
        self._hits += self._operator.hits
        self._operator = None
        state = json.loads(json.dumps(snapshot.state))
        carried = Snapshot(snapshot.algorithm, snapshot.fingerprint, state, snapshot.segments)
        self._operator = self._class.restore(
            self._case.spec, carried, self._memory, self._store, self._readers, **self._options
        )
        self._hits -= self._operator.hits
        _expect(self._operator.phase == phase, f"is in phase {self._operator.phase!r} after restore, not {phase!r}")
        self._operator.check()
        self._restored += 1

    def _compare(self) -> Counter[Row]:
        found, expected = self._found, Counter(self._case.expected)
        if self._case.spec.output is not Output.COUNTS and found != expected:
            lost, extra = expected - found, found - expected
            raise ConformanceError(
                f"lost {lost.total()} and invented or repeated {extra.total()} of {expected.total()} results\n"
                f"  lost: {list(lost.items())[:_SHOWN]}\n  too many: {list(extra.items())[:_SHOWN]}"
            )
        _expect(
            self._cost.results == expected.total(),
            f"counted {self._cost.results} results, but there are {expected.total()}",
        )
        return found


def _changes(case: AnyLookupCase) -> bool:
    return any(move.what in ("upsert", "delete") for move in case.moves)


def _room_to_grow(case: AnyLookupCase) -> int:
    """Bytes that partitions may grow by: all that is upserted could come to one of them, and make more of them."""
    came: int = sum(
        move.batch.nbytes + 256 * move.batch.num_rows for move in case.moves if move.what == "upsert" and move.batch
    )
    return (4 * came + 4096) * (1 if isinstance(case, LookupCase) else 2 * len(case.relations))


def _stream_room(case: AnyLookupCase) -> int:
    """Rows of the stream may be wider than the least memory allows for."""
    widest = max((move.batch.slice(i, 1).nbytes for move in case.moves if move.what == "arrive" and move.batch
                  for i in range(move.batch.num_rows)), default=0)  # fmt: skip
    return 64 * max(0, widest - 1024)


@dataclass(frozen=True, slots=True)
class LookupSummary:
    """How many cases there were, and which paths they took."""

    cases: int
    results: int
    read: int
    hits: int
    changed: int
    cut: int
    restored: int
    kinds: tuple[tuple[str, int], ...]
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.cases} cases, {self.results} results: {self.read} read the disk, {self.hits} answered from memory, "
            f"{self.changed} met several versions, {self.cut} with partitions cut meanwhile, {self.restored} were "
            f"restored; {1000 * self.seconds / max(1, self.cases):.1f} ms a case"
        )


def conform_lookup(
    operator_class: type[Any],
    cases: int = 500,
    seed: int = 0,
    make: Callable[[int], AnyLookupCase] = make_lookup_case,
    **options: Any,
) -> LookupSummary:
    """Put a join with a relation through so many cases; the first that fails is a `ConformanceError`.

    Every case is compared with the oracle; some are run again for determinism, with snapshots at many steps, with other
    fuel and with plenty of memory.
    """
    began = time.perf_counter()
    reports = []
    for number in range(seed, seed + cases):
        case = make(number)
        report = run_lookup_case(operator_class, case, **options)
        match number % 10:
            case 0:
                check_lookup_refusals(operator_class, case, **options)
                if run_lookup_case(operator_class, case, **options).steps != report.steps:
                    raise ConformanceError(f"{operator_class.__name__}: two runs differ for\n{case}")
            case 3 | 6:
                rng = np.random.default_rng([number, 0x54A9])
                points = tuple(sorted(rng.integers(0, len(report.steps) + len(case.moves), 5).tolist()))
                report = run_lookup_case(operator_class, replace(case, restores=points), **options)
            case 9:
                changed = replace(case, fuel=(17, 3), spare=PLENTY if case.spare < PLENTY else 0, restores=())
                run_lookup_case(operator_class, changed, **options)
        reports.append(report)
    kinds = Counter(kind for report in reports for kind in set(report.case.kinds))
    return LookupSummary(
        cases=len(reports),
        results=sum(report.cost.results for report in reports),
        read=sum(report.cost.pages_read > 0 for report in reports),
        hits=sum(report.hits > 0 for report in reports),
        changed=sum(report.versions > 1 for report in reports),
        cut=sum(report.cuts for report in reports),
        restored=sum(report.restored > 0 for report in reports),
        kinds=tuple(sorted(kinds.items())),
        seconds=time.perf_counter() - began,
    )


def check_lookup_refusals(operator_class: type[Any], case: AnyLookupCase, **options: Any) -> None:
    """What cannot be is refused with the right error."""
    readers, store = case.readers(case.make_relations()), MemoryStore()
    least = operator_class.least_memory(case.spec, readers, **options)

    def refuse(what: str, kind: type[Exception], act: Callable[[], object]) -> None:
        try:
            act()
        except kind:
            return
        raise ConformanceError(f"{operator_class.__name__}: did not refuse {what} with {kind.__name__}\n{case}")

    def fresh(memory: int) -> Any:
        return operator_class(case.spec, memory, store, readers, **options)

    refuse("less than its least memory", BudgetError, lambda: fresh(least - 1))
    ended = fresh(least)
    ended.receive(End(0))
    stream = case.spec.input(0)
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, type_) for type_ in stream.types], schema=stream)
    refuse("rows after the end", ProtocolError, lambda: ended.receive(Arrive(0, empty)))
    refuse("a second end", ProtocolError, lambda: ended.receive(End(0)))
    foreign = pa.record_batch({"some other column": pa.array([1])})
    refuse("a batch of another schema", WatersmeetError, lambda: fresh(least).receive(Arrive(0, foreign)))
    snapshot = replace(ended.snapshot(), fingerprint="of another join")
    refuse(
        "a snapshot of another join",
        SnapshotError,
        lambda: operator_class.restore(case.spec, snapshot, least, store, readers, **options),
    )


def _expect(holds: bool, sentence: str) -> None:
    if not holds:
        raise ConformanceError(sentence)
