"""Whole suites: an operator against the oracle, against itself, and under changes that must not matter."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.checks.canonical import Row
from watersmeet.checks.cases import PLENTY, ROOM_FOR_LONGEST, Case, make_case, moves_of, random_fuel, random_moves
from watersmeet.checks.multi_cases import MultiCase
from watersmeet.checks.run import MOST_POLLS, AnyCase, CaseReport, ConformanceError, run_case, with_restores
from watersmeet.core.errors import BudgetError, ProtocolError, SnapshotError, WatersmeetError
from watersmeet.core.protocol import Arrive, End
from watersmeet.core.spec import JoinSpec, Output
from watersmeet.records.types import put_together
from watersmeet.spill.store import MemoryStore


def check_determinism(operator_class: type[Any], case: AnyCase, **options: Any) -> CaseReport:
    """The same case twice gives the same steps: batches, statuses, costs, phases and memory."""
    first = run_case(operator_class, case, trace=True, **options)
    second = run_case(operator_class, case, trace=True, **options)
    for number, (one, other) in enumerate(zip(first.trace, second.trace, strict=False)):
        if one != other:
            raise ConformanceError(f"{operator_class.__name__}: poll {number} differs between two runs of\n{case}")
    if len(first.trace) != len(second.trace):
        raise ConformanceError(f"{operator_class.__name__}: two runs differ in their number of polls for\n{case}")
    return first


def check_snapshot(operator_class: type[Any], case: AnyCase, points: int = 4, **options: Any) -> CaseReport:
    """Snapshots at some steps, each restored into a new operator that goes on, lose and repeat nothing.

    There are about so many `points` in a case of a hundred steps, and some more in one of a thousand.
    """
    rng = np.random.default_rng([case.seed, 0x54A9])
    return run_case(operator_class, with_restores(case, spread_steps(rng, points)), **options)


def spread_steps(rng: np.random.Generator, points: int) -> tuple[int, ...]:
    """Steps from the first to the last that any case may have, with gaps that grow with what lies before them.

    How many steps a case takes is known only when it has been run. These are in the beginning of a short one and also
    in the tail of a long one.

    >>> spread_steps(np.random.default_rng(2), points=4)[:6]
    (6, 11, 15, 27, 56, 171)
    """
    steps = [int(rng.integers(0, 2 + 24 // points))]
    while steps[-1] < 2 * MOST_POLLS:
        steps.append(steps[-1] + 1 + int(rng.integers(0, 1 + 10 * steps[-1] // points)))
    return tuple(steps)


def check_refusals(operator_class: type[Any], case: AnyCase, **options: Any) -> None:
    """What cannot be is refused with the right error: too little memory, rows after the end, a foreign snapshot."""
    spec, store = case.spec, MemoryStore()

    def refuse(what: str, kind: type[Exception], act: Callable[[], object]) -> None:
        try:
            act()
        except kind:
            return
        raise ConformanceError(f"{operator_class.__name__}: did not refuse {what} with {kind.__name__}\n{case}")

    def fresh() -> Any:
        return operator_class(spec, case.memory, store, **options)

    refuse("less than its least memory", BudgetError, lambda: operator_class(spec, case.least - 1, store, **options))
    ended = fresh()
    ended.receive(End(0))
    refuse("rows after the end", ProtocolError, lambda: ended.receive(Arrive(0, case.table(0))))
    refuse("a second end", ProtocolError, lambda: ended.receive(End(0)))
    foreign = pa.record_batch({"some other column": pa.array([1])})
    refuse("a batch of another schema", WatersmeetError, lambda: fresh().receive(Arrive(0, foreign)))
    snapshot = replace(ended.snapshot(), fingerprint="of another join")
    refuse(
        "a snapshot of another join",
        SnapshotError,
        lambda: operator_class.restore(spec, snapshot, case.memory, store, **options),
    )


def _rebudgeted(case: AnyCase, rng: np.random.Generator) -> AnyCase:
    scarce = case.memory <= 4 * case.least
    # In a tree, joins share the memory, and a row has the columns of several inputs.
    room = ROOM_FOR_LONGEST * (case.inputs * (case.inputs - 1) // 2) * getattr(case, "parts", 1)
    return replace(case, memory=case.least + (PLENTY if scarce else room))


def _rescripted(case: AnyCase, rng: np.random.Generator) -> AnyCase:
    fuel = random_fuel(rng)
    if isinstance(case, MultiCase):
        tables = tuple(_shuffled(table, rng) for table in case.tables)
        return replace(case, tables=tables, moves=moves_of(tables, rng, case.memory), fuel=fuel)
    left, right = (_shuffled(case.table(side), rng) for side in (0, 1))
    return replace(case, left=left, right=right, moves=random_moves(rng, left, right, case.memory), fuel=fuel)


def _shuffled(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    """The rows from a random place on, then those before it: new order, and no need of a take kernel."""
    middle = int(rng.integers(batch.num_rows + 1))
    return put_together([batch.slice(middle), batch.slice(0, middle)]) or batch


CHANGES: Mapping[str, Callable[[AnyCase, np.random.Generator], AnyCase]] = {
    "order of rows, chunking, interleaving and fuel": _rescripted,
    "budget": _rebudgeted,
}
"""What must not change the multiset of results; the budget only for operators that spill."""


def check_metamorphic(operator_class: type[Any], case: AnyCase, **options: Any) -> CaseReport:
    """Neither chunking, fuel, budget and order of rows nor swapping the sides (of two) change the multiset of rows.

    The report is of the case before it was changed, with all columns in the output.
    """
    rng = np.random.default_rng([case.seed, 0x3E7A])
    if isinstance(case, MultiCase):
        case = replace(case, spec=replace(case.spec, output=Output.ROWS), memory=case.memory + ROOM_FOR_LONGEST)
    else:
        case = _of_spec(operator_class, case, _distinctly_named(case), (0, 1), options)
    report = run_case(operator_class, case, **options)
    rows = report.rows
    for change, changed in CHANGES.items():
        if change == "budget" and not getattr(operator_class, "spills", True):
            continue
        _same(operator_class, case, change, rows, run_case(operator_class, changed(case, rng), **options).rows)
    if isinstance(case, MultiCase) or case.spec.kind.one_sided:
        return report
    width = len(case.spec.right)
    swapped = _of_spec(operator_class, case, _swapped(case.spec), (1, 0), options)
    rows_of_swapped = run_case(operator_class, swapped, **options).rows
    back = Counter({row[width:] + row[:width]: count for row, count in rows_of_swapped.items()})
    _same(operator_class, case, "swapping the sides", rows, back)
    return report


def _same(operator_class: type[Any], case: AnyCase, change: str, rows: Counter[Row], other: Counter[Row]) -> None:
    if rows != other:
        raise ConformanceError(f"{operator_class.__name__}: {change} changed the results of\n{case}")


def _distinctly_named(case: Case) -> JoinSpec:
    """The join asked for rows, with every column named differently, so that all of them reach the output."""
    spec = case.spec
    left, right = (
        pa.schema([field.with_name(f"{'lr'[side]}_{field.name}") for field in spec.input(side)]) for side in (0, 1)
    )
    on = tuple(replace(each, left=_prefixed("l", each.left), right=_prefixed("r", each.right)) for each in spec.on)
    return replace(spec, left=left, right=right, on=on, output=Output.ROWS)


def _prefixed(side: str, names: Any) -> Any:
    """A column's name, or those of several."""
    return f"{side}_{names}" if isinstance(names, str) else tuple(f"{side}_{name}" for name in names)


def _swapped(spec: JoinSpec) -> JoinSpec:
    conditions: tuple[Any, ...] = spec.on
    on = tuple(replace(each, left=each.right, right=each.left) for each in conditions)
    how = {"left": "right", "right": "left"}.get(spec.how, spec.how)
    return replace(spec, left=spec.right, right=spec.left, on=on, how=how)


def _of_spec(
    operator_class: type[Any], case: Case, spec: JoinSpec, sides: tuple[int, int], options: Mapping[str, Any]
) -> Case:
    """The case's tables under another spec and with new moves; its least memory may be another, too."""
    columns = [case.table(side).columns for side in sides]
    left, right = (pa.RecordBatch.from_arrays(columns[side], schema=spec.input(side)) for side in (0, 1))
    least = int(operator_class.least_memory(spec, **options))
    memory = least if case.memory == case.least else max(least, case.memory)
    moves = random_moves(np.random.default_rng([case.seed, 0x5A0B]), left, right, memory)
    return replace(case, spec=spec, left=left, right=right, moves=moves, memory=memory, least=least, restores=())


@dataclass(frozen=True, slots=True)
class Summary:
    """How many cases there were, and which paths they took."""

    cases: int
    spilled: int
    reactive: int
    cleaned_up: int
    restored: int
    results: int
    rows: int
    kinds: tuple[tuple[str, int], ...]
    """Kinds of keys, and in how many cases they were."""
    seconds: float
    events: tuple[tuple[str, int], ...] = ()
    """What the operators say they did, and in how many cases."""
    asked_for_more: int = 0
    """Cases that were run again with more memory, because the operator had asked for it."""

    def __str__(self) -> str:
        return (
            f"{self.cases} cases, {self.rows} rows, {self.results} results: {self.spilled} spilled, {self.reactive} "
            f"went through the reactive stage, {self.cleaned_up} through clean-up, {self.restored} were restored; "
            f"{1000 * self.seconds / max(1, self.cases):.1f} ms a case"
            + "".join(f"; {count} {name}" for name, count in self.events)
        )


def events_of(reports: Iterable[CaseReport]) -> tuple[tuple[str, int], ...]:
    """What operators say they did, and in how many cases."""
    return tuple(sorted(Counter(name for report in reports for name in +report.events).items()))


def conform(
    operator_class: type[Any],
    cases: int = 500,
    seed: int = 0,
    make: Callable[..., AnyCase] = make_case,
    **options: Any,
) -> Summary:
    """Put an operator through so many cases, from this seed on; the first that fails is a `ConformanceError`.

    Every case is compared with the oracle; some are also run again for determinism, with snapshots, and changed in
    ways that must not matter. An operator that cannot spill says so by a class attribute `spills = False`, and is
    given plenty of memory. `make` is `make_multi_case` for operators of several inputs.

    >>> from watersmeet.checks.oracle.nested_loops import ReferenceJoin
    >>> conform(ReferenceJoin, cases=3).cases
    3
    """
    began = time.perf_counter()
    reports = list(_reports(operator_class, range(seed, seed + cases), make, options))
    kinds = Counter(kind for report in reports for kind in set(report.case.kinds))
    return Summary(
        cases=len(reports),
        spilled=sum(report.spilled for report in reports),
        reactive=sum(report.reactive for report in reports),
        cleaned_up=sum(report.cleaned_up for report in reports),
        restored=sum(report.restored > 0 for report in reports),
        results=sum(report.results for report in reports),
        rows=sum(report.case.table(i).num_rows for report in reports for i in range(report.case.inputs)),
        kinds=tuple(sorted(kinds.items())),
        seconds=time.perf_counter() - began,
        events=events_of(reports),
        asked_for_more=sum(report.asked_for_more for report in reports),
    )


def _reports(
    operator_class: type[Any], seeds: range, make: Callable[..., AnyCase], options: Mapping[str, Any]
) -> Iterator[CaseReport]:
    for seed in seeds:
        case = make(seed, operator_class, **options)
        match seed % 20:
            case 0:
                check_refusals(operator_class, case, **options)
                yield check_determinism(operator_class, case, **options)
            case 5 | 10 | 15:
                yield check_snapshot(operator_class, case, **options)
            case 7:
                yield check_metamorphic(operator_class, case, **options)
            case _:
                yield run_case(operator_class, case, **options)
