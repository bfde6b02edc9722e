"""One case, driven strictly by the protocol: every answer is checked, and in the end all of them against the oracle."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.checks.canonical import Row, canonical_column, canonical_null, canonical_rows
from watersmeet.checks.cases import Case
from watersmeet.checks.multi_cases import MultiCase
from watersmeet.core.cost import Cost
from watersmeet.core.errors import BudgetError
from watersmeet.core.promises import Among, Punctuation, Range
from watersmeet.core.protocol import End, Event, Snapshot, Stall, Status
from watersmeet.core.spec import JoinSpec, Output
from watersmeet.spill.store import MemoryStore, Store

AnyCase: TypeAlias = "Case | MultiCase"

FUEL_DOUBLES_AFTER = 20
"""Polls after which the fuel doubles: one unit at a time is worth trying, but not ten thousand times."""
MOST_POLLS = 4_000
"""With fuel that doubles, whoever is not done by now never will be; but wide results may come out one at a time, and
each of those that there are has a poll of its own."""
MOST_IDLE_POLLS = 20
"""An operator that says it has something to do, and this often in a row does nothing, is stuck."""
CHECKED_STEPS = 8
"""So many first steps of an operator are followed by its own check, which goes through all that it holds; then one in
so many is, which one is by the seed, and every restore."""
REPEATED_SNAPSHOT_BYTES = 1_024
"""What a snapshot may write when nothing happened since the last one."""
MOST_SPILLED = 6
"""Times its memory that a join of several inputs must be able to spill, intermediate results included: it remembers
every page, and with the least memory and wide rows a page may be a row."""
_FIRST_SHOWN = 4


class ConformanceError(AssertionError):
    """An operator broke the protocol, its budget, or the join; the message has the case and its seed."""


@dataclass(frozen=True, slots=True)
class TracedStep:
    """Everything one step showed to the outside, for comparing two runs."""

    rows: tuple[Row, ...]
    status: Status
    cost: Cost
    phase: str
    used: int


@dataclass(frozen=True)
class CaseReport:
    """What a case went through, so that a suite can prove which paths it took."""

    case: AnyCase
    results: int
    polls: int
    cost: Cost
    peak: int
    """The most memory that was reserved at once."""
    reactive: bool
    """Pages were read in the reactive phase, after a stall and before the inputs ended."""
    cleaned_up: bool
    """It worked in the clean-up phase."""
    restored: int
    """How often it was restored from a snapshot."""
    rows: Counter[Row] = field(repr=False)
    """The output as a multiset; empty if only counts were asked for."""
    trace: tuple[TracedStep, ...] = field(repr=False)
    """Every step, if that was asked for."""
    events: Counter[str] = field(default_factory=Counter, repr=False)
    """What the operator says it did, those included that were given up for one made of their snapshot."""
    late: bool = False
    """Rows came later than was allowed."""
    asked_for_more: bool = False
    """It had spilled so much that it asked for more memory; this is of the run that had it."""

    @property
    def spilled(self) -> bool:
        """Whether anything was written to disk."""
        return self.cost.pages_written > 0


def run_case(
    operator_class: type[Any], case: AnyCase, store: Store | None = None, *, trace: bool = False, **options: Any
) -> CaseReport:
    """Drive an operator through a case; whatever it does wrong is a `ConformanceError` that shows the case.

    >>> from watersmeet.checks import make_case
    >>> from watersmeet.checks.oracle.nested_loops import ReferenceJoin
    >>> case = make_case(3, ReferenceJoin)
    >>> run_case(ReferenceJoin, case).results == len(case.pairs)
    True
    """
    own = MemoryStore() if store is None else None
    try:
        return CaseRun(operator_class, case, store or own or MemoryStore(), trace, options).report()
    except Exception as error:
        spilled = 0 if own is None else own.bytes_written
        if isinstance(error, BudgetError) and isinstance(case, MultiCase) and spilled > MOST_SPILLED * case.memory:
            # It may say so; but with the memory that it asks for it must find everything.
            more = replace(case, memory=4 * case.memory)
            return replace(run_case(operator_class, more, trace=trace, **options), asked_for_more=True)
        raise ConformanceError(
            f"{operator_class.__name__}: {str(error) or type(error).__name__}\n{case}\n"
            f"  again: run_case({operator_class.__name__}, {case.maker}({case.seed}, {operator_class.__name__}))"
        ) from error
    finally:
        if own is not None:
            own.close()


class CaseRun:
    """The driver of one case: knows what the protocol allows next, and notes what it saw."""

    def __init__(
        self, operator_class: type[Any], case: AnyCase, store: Store, trace: bool, options: dict[str, Any]
    ) -> None:
        self._class, self._case, self._store, self._options = operator_class, case, store, options
        self._operator = operator_class(case.spec, case.memory, store, **options)
        self._status = Status.NEED_INPUT
        self._ended = [False] * case.inputs
        self._stalled = False
        self._polls = self._steps = self._idle = self._restored = 0
        self._paused = 0.0
        self._cost = Cost()
        self._peak = 0
        self._phases: set[str] = set()
        self._reactive = False
        self._tried_idle_poll = False
        self._events: Counter[str] = Counter()
        self._late = False
        self._out: list[pa.RecordBatch] = []
        self.punctuations: list[Punctuation] = []
        self._trace: list[TracedStep] | None = [] if trace else None

    def report(self) -> CaseReport:
        """Play the whole script."""
        _expect(self._operator.phase == "arriving", f"begins in phase {self._operator.phase!r}, not 'arriving'")
        self._after_step()
        for move in self._case.moves:
            while self._status is Status.HAS_OUTPUT:
                self._poll()
            self._paused += move.pause
            self._receive(move.event)
            for _ in range(move.polls):
                self._poll()
                if self._status is Status.NEED_INPUT or self._status is Status.DONE:
                    break
            if self._status is Status.NEED_INPUT and move.polls and not self._tried_idle_poll:
                self._poll_without_need()
        while self._status is not Status.DONE:
            self._poll()
        self._poll_when_done()
        rows = self._compare()
        return CaseReport(
            case=self._case,
            results=self._cost.results,
            polls=self._polls,
            cost=self._cost,
            peak=self._peak,
            reactive=self._reactive,
            cleaned_up="clean-up" in self._phases,
            restored=self._restored,
            rows=rows,
            trace=tuple(self._trace or ()),
            events=self._events,
            late=self._late,
        )

    def _receive(self, event: Event) -> None:
        self._operator.receive(event)
        if isinstance(event, End):
            self._ended[event.input] = True
        self._stalled = isinstance(event, Stall)
        self._after_step()

    def _poll(self) -> pa.RecordBatch | None:
        fuel = self._case.fuel[self._polls % len(self._case.fuel)] << min(30, self._polls // FUEL_DOUBLES_AFTER)
        before = self._operator.phase
        step = self._operator.poll(self._paused + self._polls * 0.001, fuel)
        phase = self._operator.phase
        self._polls += 1
        self._status = step.status
        self._cost += step.cost
        self._phases.add(phase)
        if step.cost.pages_read and self._stalled and not all(self._ended) and "reactive" in (before, phase):
            self._reactive = True
        if step.out is not None:
            self._check_batch(step.out)
            self._out.append(step.out)
        self.punctuations += step.punctuations
        self._check_status(step.status, phase)
        busy = step.out is not None or step.cost != Cost() or step.status in (Status.NEED_INPUT, Status.DONE)
        self._idle = 0 if busy else self._idle + 1
        _expect(self._idle <= MOST_IDLE_POLLS, f"says {step.status.value!r} but does nothing, poll after poll")
        enough = self._polls <= MOST_POLLS or self._polls <= MOST_POLLS + len(self._case.pairs)
        _expect(enough, f"is not done after {self._polls - 1} polls")
        if self._trace is not None:
            rows = () if step.out is None else tuple(canonical_rows(step.out))
            self._trace.append(TracedStep(rows, step.status, step.cost, phase, self._operator.budget.used))
        self._after_step()
        return step.out

    def _after_step(self) -> None:
        operator, case = self._operator, self._case
        if self._steps < CHECKED_STEPS or self._steps % CHECKED_STEPS == case.seed % CHECKED_STEPS:
            operator.check()
        operator.budget.check()
        _expect(operator.budget.total <= case.memory, f"has a budget of {operator.budget.total}, not {case.memory}")
        _expect(
            operator.budget.peak <= case.memory, f"used {operator.budget.peak} of {case.memory} bytes of memory at once"
        )
        self._peak = max(self._peak, operator.budget.peak)
        wake = operator.wake_at()
        _expect(wake is None or isinstance(wake, int | float), f"wants to wake at {wake!r}, which is no time")
        if self._steps in case.restores:
            self._restore()
        self._steps += 1

    def _restore(self) -> None:
        """Snapshot, forget the operator without closing anything, and go on with one made from the snapshot."""
        case = self._case
        snapshot = self._operator.snapshot()
        written = self._store.bytes_written
        snapshot = self._operator.snapshot()
        repeated = self._store.bytes_written - written
        _expect(
            repeated <= REPEATED_SNAPSHOT_BYTES,
            f"wrote {repeated} bytes for a second snapshot, though nothing had happened since the first",
        )
        self._operator.check()
        self._operator.budget.check()
        _expect(snapshot.fingerprint == case.spec.fingerprint, "gave a snapshot with the fingerprint of another join")
        missing = set(snapshot.segments) - set(self._store.names())
        _expect(not missing, f"names segments in a snapshot that its store does not have: {sorted(missing)}")
        phase = self._operator.phase
        self._note_events()
        self._operator = None
        carried = Snapshot(
            snapshot.algorithm, snapshot.fingerprint, json.loads(json.dumps(snapshot.state)), snapshot.segments
        )
        self._operator = self._class.restore(case.spec, carried, case.memory, self._store, **self._options)
        self._operator.check()
        self._operator.budget.check()
        _expect(self._operator.phase == phase, f"is in phase {self._operator.phase!r} after restore, not {phase!r}")
        self._restored += 1

    def _check_batch(self, batch: pa.RecordBatch) -> None:
        spec = self._case.spec
        _expect(spec.output is not Output.COUNTS, "handed out a batch, though only counts were asked for")
        _expect(
            batch.schema.equals(spec.schema, check_metadata=True),
            f"handed out a batch of schema {batch.schema}, not {spec.schema}",
        )
        _expect(batch.num_rows > 0, "handed out an empty batch")
        _expect(
            batch.nbytes <= self._case.memory + self._operator.beyond or batch.num_rows == 1,
            f"handed out {batch.nbytes} bytes at once, more than the {self._case.memory} it may hold",
        )
        batch.validate(full=True)
        for punctuation in self.punctuations:
            found = covered_rows(batch, punctuation)
            _expect(not found, f"handed out {len(found)} rows behind {punctuation!r}, the first of them {found[:1]}")

    def _check_status(self, status: Status, phase: str) -> None:
        if all(self._ended):
            _expect(status is not Status.NEED_INPUT, "needs input after all inputs have ended: it would wait for ever")
        else:
            _expect(status is not Status.DONE, "is done before all inputs have ended")
        _expect((status is Status.DONE) == (phase == "done"), f"says {status.value!r} in phase {phase!r}")

    def _poll_without_need(self) -> None:
        if self._operator.wake_at() is not None:
            return  # it may have something to do on its own
        self._tried_idle_poll = True
        out = self._poll()
        _expect(out is None and self._status is Status.NEED_INPUT, "needed input, but went on without any")

    def _poll_when_done(self) -> None:
        emitted = self._cost
        for _ in range(2):
            out = self._poll()
            _expect(out is None and self._status is Status.DONE, "went on after it was done")
        _expect(self._cost.results == emitted.results, "counted results after it was done")
        if not self._restored:
            _expect(
                self._operator.cost == self._cost,
                f"cost {self._operator.cost} in all, but its steps add up to {self._cost}",
            )
        self._note_events()
        self._operator.close()

    def _note_events(self) -> None:
        """What an operator says it did, before it is given up."""
        self._events.update(getattr(self._operator, "events", {}))
        window = self._operator.report().window
        self._late |= window is not None and any(window.late)

    def _compare(self) -> Counter[Row]:
        """With the oracle: the number of results, and the multiset of rows or pairs."""
        case = self._case
        found: Counter[Row] = Counter()
        for batch in self._out:
            found.update(canonical_rows(batch))
        if isinstance(case, Case):
            case.check_order(self._out)
        if case.spec.output is not Output.COUNTS:
            expected = expected_rows(case)
            if found != expected:
                missing, extra = expected - found, found - expected
                raise ConformanceError(
                    f"lost {missing.total()} and invented or repeated {extra.total()} of {expected.total()} results\n"
                    f"  lost: {_shown(missing)}\n  too many: {_shown(extra)}"
                )
        _expect(
            self._cost.results == len(case.pairs),
            f"counted {self._cost.results} results, but there are {len(case.pairs)}",
        )
        return found


def expected_rows(case: AnyCase) -> Counter[Row]:
    """The oracle's answer, in the form in which outputs are compared."""
    if isinstance(case, Case) and case.tags is not None:
        return Counter((*row, tag) for row, tag in zip(_expected(case), case.tags, strict=True))
    return Counter(_expected(case))


def _expected(case: AnyCase) -> Iterable[Row]:
    """The rows of the oracle's results, one after the other."""
    if case.spec.output is Output.PAIRS:
        return case.pairs
    if isinstance(case.spec, JoinSpec):
        columns = _output_columns(case)
        nulls = [canonical_null(case.spec.schema.field(place).type) for place in range(len(columns))]
        return [
            tuple(_value(places, numbers, null) for places, null in zip(columns, nulls, strict=True))
            for numbers in case.pairs
        ]
    rows = [canonical_rows(case.table(i), case.spec.kept[i]) for i in range(case.inputs)]
    absent = [[canonical_null(case.spec.input(i).field(k).type) for k in case.spec.kept[i]] for i in range(case.inputs)]
    return [
        tuple(
            value
            for table, nobody, row in zip(rows, absent, numbers, strict=True)
            for value in (nobody if row is None else table[row])
        )
        for numbers in case.pairs
    ]


def _output_columns(case: AnyCase) -> list[list[tuple[int, list[Any]]]]:
    """Of each column of the output of two inputs, which of them have it, and its values there."""
    assert isinstance(case.spec, JoinSpec)
    return [
        [
            (side, canonical_column(_as(case.table(side).column(place), field.type)))
            for side, place in enumerate(column)
            if place is not None
        ]
        for column, field in zip(case.spec.columns, list(case.spec.schema)[: len(case.spec.columns)], strict=True)
    ]


def _as(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """The same values in another type; Arrow casts neither runs nor dictionaries of all that they may hold."""
    if column.type == type_:
        return column
    if pa.types.is_dictionary(type_):
        return _as(column, type_.value_type)
    if pa.types.is_run_end_encoded(column.type):
        return _as(pc.run_end_decode(column), type_)
    if pa.types.is_dictionary(column.type):
        return _as(column.dictionary, type_).take(column.indices)
    return column.cast(type_, safe=False)


def _value(places: Sequence[tuple[int, list[Any]]], numbers: Sequence[int | None], null: Any) -> Any:
    """From the first row that has it; NULL if there is no such row."""
    for side, values in places:
        number = numbers[side]
        if number is not None:
            return values[number]
    return null


def with_restores(case: AnyCase, steps: tuple[int, ...]) -> AnyCase:
    """The same case, with the operator snapshot and restored after these steps."""
    return replace(case, restores=steps)


def _expect(holds: bool, sentence: str) -> None:
    if not holds:
        raise ConformanceError(sentence)


def _shown(rows: Counter[Row]) -> str:
    first = [f"{count} x {_short(row)}" for row, count in list(rows.items())[:_FIRST_SHOWN]]
    return ", ".join(first) + (", ..." if len(rows) > _FIRST_SHOWN else "") or "none"


def _short(row: Row) -> str:
    texts = (repr(value) for value in row)
    return "(" + ", ".join(text if len(text) <= 30 else text[:27] + "..." for text in texts) + ")"


def covered_rows(batch: pa.RecordBatch, punctuation: Punctuation) -> list[int]:
    """The numbers of the rows that match a punctuation's pattern.

    >>> covered_rows(pa.record_batch({"id": [3, None, 5, 3]}), Punctuation({"id": 3}))
    [0, 3]
    """
    rows = range(batch.num_rows)
    for name, wanted in punctuation.pattern.items():
        values = batch.column(name).to_pylist()
        rows = [row for row in rows if values[row] is not None and value_matches(values[row], wanted)]  # type: ignore[assignment]
    return list(rows)


def value_matches(value: Any, wanted: object) -> bool:
    """Whether a value is what a pattern has for its column.

    >>> value_matches(float("nan"), float("nan")), value_matches(4, Range(1, 4, high_open=True))
    (True, False)
    """
    if isinstance(wanted, Among):
        return any(value_matches(value, each) for each in wanted.values)
    if not isinstance(wanted, Range):
        return bool(value == wanted) or (value != value and wanted != wanted)
    above = wanted.low is None or _less(wanted.low, value, wanted.low_open)
    return above and (wanted.high is None or _less(value, wanted.high, wanted.high_open))


def _less(one: Any, other: Any, strictly: bool) -> bool:
    """In an order in which NaN is the largest."""
    if one != one or other != other:
        return bool(one == one) if strictly else bool(other != other)
    return bool(one < other) if strictly else bool(one <= other)
