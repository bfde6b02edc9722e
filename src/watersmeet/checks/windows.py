"""The conformance suite for window joins: the same cases, with times, windows and arrivals out of order.

A case is one of the other suite's (keys and payload of every type, any chunking, fuel, budget, stalls and snapshots)
whose inputs got a column of times. Rows arrive out of order within the lateness, now and then beyond it; one input may
run far ahead of the other.

>>> from watersmeet.planner import WINDOW_ALGORITHMS
>>> conform_windows(WINDOW_ALGORITHMS["ah_ewj"], cases=2).cases
2
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.checks.cases import PLENTY, Case, Move, make_case, random_fuel, random_moves
from watersmeet.checks.conformance import check_determinism, check_refusals, check_snapshot, events_of
from watersmeet.checks.oracle.kinds import Result
from watersmeet.checks.oracle.nested_loops import comparable_values
from watersmeet.checks.oracle.windows import Look, reference_result_times, reference_window_results
from watersmeet.checks.run import CaseReport, ConformanceError, run_case
from watersmeet.core.arrays import Int64
from watersmeet.core.errors import SpecError
from watersmeet.core.promises import Range
from watersmeet.core.protocol import Arrive, Punctuate
from watersmeet.core.spec import Output
from watersmeet.core.windows import Age, Landmark, Rows, Window, WindowJoinSpec, WindowSpec

Rng: TypeAlias = np.random.Generator

KINDS = ("time", "slide", "rows", "landmark", "since", "age")
_SHARES = (0.5, 0.15, 0.15, 0.06, 0.04, 0.1)
_UNITS = ("s", "ms", "us", "ns")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FUEL_FOR_SCANS = 20
_SILENCE = 100.0
_WITHOUT_CONDITION = 0.12
_MOST_WITHOUT_CONDITION = 90


@dataclass(frozen=True, eq=False)
class WindowCase(Case):
    """A window join, its inputs and the script by which they arrive."""

    @cached_property
    def pairs(self) -> Sequence[Result]:
        """What the oracle says."""
        assert isinstance(self.spec, WindowJoinSpec)
        left, right = (pa.Table.from_batches([batch]) for batch in (self.left, self.right))
        return reference_window_results(left, right, self.spec, self.order, self.looks)

    def check_order(self, out: Sequence[pa.RecordBatch]) -> None:
        """An error if results that were to come in the order of their times do not."""
        spec = self.spec
        assert isinstance(spec, WindowJoinSpec)
        if spec.window.emit != "final" or spec.output is not Output.ROWS or not out:
            return
        times = reference_result_times(pa.Table.from_batches(out), spec)
        for sort in ("pair", "left", "right"):
            of_sort = [time for each, time in times if each == sort]
            for one, other in pairwise(of_sort):
                if other >= one:
                    continue
                raise ConformanceError(f"a result of time {other} comes after one of time {one}")

    @property
    def speaks_or_falls_silent(self) -> bool:
        """Whether more than its rows tells how far an input has come."""
        assert isinstance(self.spec, WindowJoinSpec)
        punctuated = any(isinstance(move.event, Punctuate) for move in self.moves)
        return self.spec.window.idle is not None or punctuated

    @property
    def order(self) -> list[int]:
        """The inputs of the rows, in the order of their arrival."""
        arrivals = [move.event for move in self.moves if isinstance(move.event, Arrive)]
        return [arrival.input for arrival in arrivals for _ in range(arrival.batch.num_rows)]

    @property
    def looks(self) -> list[Look]:
        """What the operator is shown at each poll after something has come, and when."""
        return looks_at(self.moves, self._bound)

    def _bound(self, side: int, pattern: Mapping[str, object]) -> int:
        ((name, bound),) = pattern.items()
        assert isinstance(bound, Range)
        column = pa.chunked_array([pa.array([bound.high], self.table(side).schema.field(name).type)])
        assert isinstance(self.spec, WindowJoinSpec)
        (value,) = comparable_values(column, self.spec.time_types[1 - side])
        assert isinstance(value, int)
        return value

    def __str__(self) -> str:
        assert isinstance(self.spec, WindowJoinSpec)
        return f"{super().__str__()}\n  {self.spec.window}"


def looks_at(moves: Sequence[Move], bound: Callable[[int, Mapping[str, object]], int] | None = None) -> list[Look]:
    """What an operator is shown at each poll after something has come, and when; `bound` reads punctuations."""
    looks: list[Look] = []
    items: list[tuple[int, int | None]] = []
    now = 0.0
    for move in moves:
        now += move.pause
        match move.event:
            case Arrive(input=side, batch=batch):
                items += [(side, None)] * batch.num_rows
            case Punctuate(input=side, pattern=pattern):
                assert bound is not None
                items.append((side, bound(side, pattern)))
        if move.polls:
            looks.append((now + 1e-6 * len(looks), items))
            items = []
    return [*looks, (now + 1e-6 * len(looks), items)]


def with_silences(rng: Rng, moves: Sequence[Move]) -> tuple[float, list[Move]]:
    """How long an input may be silent, and the same script with silences, some of them longer than that."""
    # Polls take a moment: silences and what is waited for differ by far more than all of them together.
    idle = _SILENCE * (int(rng.integers(0, 3)) + 0.5)
    pauses = _SILENCE * rng.choice([0, 0, 0, 1, 2], len(moves))
    return idle, [replace(move, pause=float(pause)) for move, pause in zip(moves, pauses, strict=True)]


def make_window_case(seed: int, operator_class: type[Any], **options: Any) -> WindowCase:
    """The case of this seed for this operator."""
    rng = np.random.default_rng([seed, 0x71DE])
    base = make_case(seed, _with_bands(operator_class), **options)
    needs_keys = getattr(operator_class, "needs_keys", True)
    if not base.spec.equalities and needs_keys:
        base = make_case(seed, _without_bands(operator_class), **options)
    kind = str(rng.choice(KINDS, p=_SHARES))
    on = base.spec.on
    if not needs_keys and np.random.default_rng([seed, 0x0FF]).random() < _WITHOUT_CONDITION:
        on = ()
    # Windows let fewer pairs through: most cases have their rows twice. Without a condition more rows meet.
    often = 2 if on and len(base.pairs) < 200 else 1
    tables = [_repeated(base.table(side), often) for side in (0, 1)]
    if not on:
        tables = [table.slice(0, _MOST_WITHOUT_CONDITION) for table in tables]
    if kind == "rows":
        most = max(1, max(table.num_rows for table in tables))
        windows = tuple(Rows(int(rng.choice([1, 2, 1 + most // 20, 1 + most // 6, 1 + most // 2]))) for _ in (0, 1))
        window = WindowSpec((windows[0], windows[1]))
    else:
        window, times = _timed(rng, kind, [table.num_rows for table in tables])
        names = window.time or ("", "")
        tables = [table.append_column(names[side], times[side]) for side, table in enumerate(tables)]
    spec = WindowJoinSpec(
        tables[0].schema, tables[1].schema, on, output=base.spec.output, suffixes=base.spec.suffixes,
        window=window,
    )  # fmt: skip
    spec = _of_some_kind(seed, spec, getattr(operator_class, "kinds", ("inner",)))
    case = _case(base, spec, tables, rng, operator_class, options)
    if kind != "rows":
        case = _perhaps_silent(seed, case)
    if window.late == "drop" and not _any_late(case) and rng.random() < 0.5:
        spec = replace(spec, window=replace(window, late="error"))
        case = replace(case, spec=spec)
    final = np.random.default_rng([seed, 0xF17A]).random() < 0.2 and "final" in getattr(operator_class, "emits", ())
    if final and kind != "rows":
        assert isinstance(case.spec, WindowJoinSpec)
        late = case.spec.window.late if case.spec.window.late != "keep" else "drop"
        spec = replace(case.spec, window=replace(case.spec.window, late=late, emit="final"))
        least = int(operator_class.least_memory(spec, **options))
        case = replace(case, spec=spec, least=least, memory=least + case.memory - case.least)
    silences = ("silences",) if case.speaks_or_falls_silent else ()
    kinds_of_join = () if spec.how == "inner" else (spec.how,)
    keys = base.kinds if spec.equalities else ("band alone",) if on else ("no condition",)
    emits = ("final",) if final and kind != "rows" else ()
    return replace(case, kinds=(*keys, *kinds_of_join, *silences, *emits, f"window of {kind}"))


def _case(
    base: Case,
    spec: WindowJoinSpec,
    tables: list[pa.RecordBatch],
    rng: Rng,
    operator_class: type[Any],
    options: Mapping[str, Any],
) -> WindowCase:
    least = int(operator_class.least_memory(spec, **options))
    memory = least + base.memory - base.least
    if not getattr(operator_class, "spills", True):
        memory = least + PLENTY
    moves = random_moves(rng, tables[0], tables[1], memory)
    restores = tuple(sorted(rng.integers(0, 3 * len(moves), 2).tolist())) if rng.random() < 0.12 else ()
    return WindowCase(base.seed, spec, tables[0], tables[1], moves, base.fuel, memory, least, restores)


def _of_some_kind(seed: int, spec: WindowJoinSpec, kinds: Sequence[str]) -> WindowJoinSpec:
    """Half of the cases are no inner joins."""
    rng = np.random.default_rng([seed, 0x41D5])
    if rng.random() < 0.5 or len(kinds) == 1:
        return spec
    how = str(rng.choice([kind for kind in kinds if kind != "inner"]))
    try:
        return replace(spec, how=how)
    except SpecError:  # keys of one name that no type has room for
        return replace(spec, how="left")


def _perhaps_silent(seed: int, case: WindowCase) -> WindowCase:
    """Some cases have silences, after which an input no longer holds back the other, and inputs that tell the time."""
    rng = np.random.default_rng([seed, 0x1D7E])
    assert isinstance(case.spec, WindowJoinSpec)
    moves = list(case.moves)
    if rng.random() < 0.3:
        idle, moves = with_silences(rng, moves)
        case = replace(case, spec=replace(case.spec, window=replace(case.spec.window, idle=idle)))
    if rng.random() < 0.2:
        moves = _with_punctuations(rng, case, moves)
    return replace(case, moves=tuple(moves))


def _with_punctuations(rng: Rng, case: WindowCase, moves: list[Move]) -> list[Move]:
    """Some rows tell their time once more, in a punctuation."""
    found: list[Move] = []
    assert isinstance(case.spec, WindowJoinSpec) and case.spec.window.time is not None
    for move in moves:
        found.append(move)
        if not isinstance(move.event, Arrive) or rng.random() < 0.6:
            continue
        side, name = move.event.input, case.spec.window.time[move.event.input]
        times = move.event.batch.column(name).drop_null()
        if len(times):
            bound = Range(None, times[int(rng.integers(len(times)))].as_py())
            found.append(Move(Punctuate(side, {name: bound}), int(rng.integers(0, 3))))
    return found


def _repeated(table: pa.RecordBatch, times: int) -> pa.RecordBatch:
    columns = [pa.concat_arrays([column] * times) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _with_bands(operator_class: type[Any]) -> type[Any]:
    """The operator as a join that takes bands, since a window join takes them as a residual."""
    return type(operator_class.__name__, (operator_class,), {"joins_ranges": True})


def _without_bands(operator_class: type[Any]) -> type[Any]:
    return type(operator_class.__name__, (operator_class,), {"joins_ranges": False})


def _any_late(case: WindowCase) -> bool:
    spec = case.spec
    assert isinstance(spec, WindowJoinSpec) and spec.window.time is not None
    if case.speaks_or_falls_silent:
        return True
    for side in (0, 1):
        column = case.table(side).column(spec.window.time[side])
        unit = timedelta(microseconds=1)
        values = [value for value in column.to_pylist() if value is not None]
        lateness: Any = spec.window.lateness or (0 if not values or isinstance(values[0], int) else 0 * unit)
        newest = values[0] if values else None
        for value in values:
            if value < newest - lateness:
                return True
            newest = max(newest, value)
    return False


def _timed(rng: Rng, kind: str, counts: list[int]) -> tuple[WindowSpec, list[pa.Array]]:
    """Windows of a kind, and a column of times for each input in the order of arrival."""
    lateness = int(rng.choice([0, 0, 1, 3, 20]))
    late_share = float(rng.choice([0.0, 0.0, 0.0, 0.1]))
    ticks = [random_ticks(rng, count, lateness, late_share) for count in counts]
    reach = max([1, *(int(each.max(initial=0) - each.min(initial=0)) for each in ticks)])
    as_integers = rng.random() < 0.4
    one: Any = 1 if as_integers else timedelta(seconds=1)

    def span() -> int:
        return int(rng.choice([0, 1, 2, 1 + reach // 30, 1 + reach // 10, 1 + reach // 4, 2 * reach]))

    def window() -> Window:
        if kind == "landmark":
            return Landmark(max(1, span()) * one)
        if kind == "since" and as_integers:
            return Landmark(since=int(rng.integers(-5, max(1, reach // 2))))
        if kind == "age":
            ends = sorted((span(), span()))
            return Age(ends[0] * one, ends[1] * one)
        return span() * one  # type: ignore[no-any-return]

    windows = window(), window()
    if rng.random() < 0.4:
        windows = windows[0], windows[0]
    slide = int(rng.choice([1, 2, 5, 1 + reach // 8])) * one if kind == "slide" else None
    names = ("when", "when") if rng.random() < 0.5 else ("since", "until")
    late = str(rng.choice(["keep", "keep", "drop"]))
    spec = WindowSpec(windows, names, slide, lateness * one, late)
    return spec, time_columns(rng, ticks, as_integers)


def random_ticks(rng: Rng, count: int, lateness: int, late_share: float) -> Int64:
    """Times that grow by leaps and bounds, in an order that differs from theirs by the lateness, but for some rows."""
    leaps = rng.choice([[0, 1], [0, 0, 0, 3], [1], [0, 0, 0, 0, 0, 12]][int(rng.integers(4))], count)
    times = np.cumsum(leaps).astype(np.int64) + int(rng.choice([0, -30, 50]))
    order = np.argsort(times + rng.uniform(0, lateness + 1e-9, count), kind="stable")
    times = times[order]
    late = rng.random(count) < late_share
    times[late] -= rng.integers(1, 60, int(late.sum()))
    return times


def time_columns(rng: Rng, ticks: list[Int64], as_integers: bool) -> list[pa.Array]:
    """Times as columns of any type that can tell them, now and then NULL."""
    nulls = float(rng.choice([0.0, 0.0, 0.05]))
    found = []
    zone = "UTC" if rng.random() < 0.5 else None
    for each in ticks:
        mask = rng.random(len(each)) < nulls
        if as_integers:
            found.append(pa.array(each, pa.int64() if rng.random() < 0.7 else pa.int32(), mask=mask))
            continue
        unit = _UNITS[int(rng.integers(4))]
        factor = _PER_SECOND[unit]
        finer = rng.choice([0, 0, factor // 2, factor - 1], len(each)) if rng.random() < 0.3 else 0
        found.append(pa.array(each * factor + finer, pa.int64(), mask=mask).cast(pa.timestamp(unit, zone)))
    return found


def check_window_metamorphic(operator_class: type[Any], case: WindowCase, **options: Any) -> None:
    """Neither fuel nor budget change the multiset of rows; nor, if no row is late, do chunking and interleaving."""
    rng = np.random.default_rng([case.seed, 0x3E7B])
    spec = replace(case.spec, output=Output.ROWS)
    least = int(operator_class.least_memory(spec, **options))  # rows take more than pairs of numbers
    case = replace(case, spec=spec, restores=(), memory=least + case.memory - case.least, least=least)
    rows = run_case(operator_class, case, **options).rows
    changes = {"fuel": replace(case, fuel=random_fuel(rng))}
    assert isinstance(spec, WindowJoinSpec)
    if not spec.counted and not _any_late(case):
        moves = random_moves(rng, case.left, case.right, case.memory)
        changes = {"fuel, chunking and interleaving": replace(changes["fuel"], moves=moves)}
    if getattr(operator_class, "spills", True):
        scarce = case.memory <= 4 * case.least
        changes["budget"] = replace(case, memory=case.least + (PLENTY if scarce else 200_000))
    for change, changed in changes.items():
        if run_case(operator_class, changed, **options).rows != rows:
            raise ConformanceError(f"{operator_class.__name__}: {change} changed the results of\n{case}")


@dataclass(frozen=True, slots=True)
class WindowSummary:
    """How many cases there were, and which paths they took."""

    cases: int
    spilled: int
    read: int
    """How many read something from disk."""
    reactive: int
    cleaned_up: int
    restored: int
    late: int
    """How many had rows that came too late."""
    results: int
    events: tuple[tuple[str, int], ...]
    """What the operators say they did, and in how many cases: dumps, probes, expired blocks and the like."""
    kinds: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, reports: Sequence[CaseReport]) -> WindowSummary:
        """Of some cases."""
        kinds = Counter(kind for report in reports for kind in set(report.case.kinds))
        return cls(
            cases=len(reports),
            spilled=sum(report.spilled for report in reports),
            read=sum(report.cost.pages_read > 0 for report in reports),
            reactive=sum(report.reactive for report in reports),
            cleaned_up=sum(report.cleaned_up for report in reports),
            restored=sum(report.restored > 0 for report in reports),
            late=sum(report.late for report in reports),
            results=sum(report.results for report in reports),
            events=events_of(reports),
            kinds=tuple(sorted(kinds.items())),
        )

    def __str__(self) -> str:
        events = ", ".join(f"{count} {name}" for name, count in self.events)
        return (
            f"{self.cases} cases, {self.results} results: {self.spilled} spilled, {self.read} read that again, "
            f"{self.reactive} worked in silences, {self.cleaned_up} cleaned up, {self.restored} were restored, "
            f"{self.late} had late rows; cases with {events}"
        )


def conform_windows(operator_class: type[Any], cases: int = 500, seed: int = 0, **options: Any) -> WindowSummary:
    """Put a window join through so many cases; the first that fails is a `ConformanceError`."""
    numbers = range(seed, seed + cases)
    return conform_timed(operator_class, numbers, make_window_case, check_window_metamorphic, **options)


def conform_timed(
    operator_class: type[Any],
    numbers: Iterable[int],
    make: Callable[..., Any],
    vary: Callable[..., None] | None,
    **options: Any,
) -> WindowSummary:
    """Put a join by times through the cases of some numbers: some of them twice, some with snapshots, and some varied
    in what must not matter.
    """
    reports: list[CaseReport] = []
    for number in numbers:
        case = make(number, operator_class, **options)
        match number % 20:
            case 0:
                check_refusals(operator_class, case, **options)
                reports.append(check_determinism(operator_class, case, **options))
            case 5 | 10 | 15:
                reports.append(check_snapshot(operator_class, case, **options))
            case 7 if vary is not None:
                vary(operator_class, case, **options)
                reports.append(run_case(operator_class, case, **options))
            case _:
                reports.append(run_case(operator_class, case, **options))
    return WindowSummary.of(reports)
