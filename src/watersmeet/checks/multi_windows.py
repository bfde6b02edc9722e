"""The conformance suite for windows of several inputs: the cases of `multi_cases`, with times and windows.

>>> from watersmeet.joins.window.windowed_mjoin import WindowedMJoin
>>> conform_multi_windows(WindowedMJoin, cases=2).cases
2
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.checks.cases import PLENTY, moves_of, random_fuel
from watersmeet.checks.conformance import check_determinism, check_refusals, check_snapshot, events_of
from watersmeet.checks.multi_cases import MultiCase, make_multi_case
from watersmeet.checks.oracle.windows import reference_window_combinations
from watersmeet.checks.run import CaseReport, ConformanceError, run_case
from watersmeet.checks.windows import random_ticks, time_columns
from watersmeet.core.many_windows import ManyWindows
from watersmeet.core.protocol import Arrive
from watersmeet.core.spec import Output
from watersmeet.core.windows import Rows
from watersmeet.joins.multiway.mjoin import MJoin

Rng: TypeAlias = np.random.Generator

_TIME = "when"


@dataclass(frozen=True, eq=False)
class MultiWindowCase(MultiCase):
    """A join by windows, its inputs and the script by which they arrive."""

    maker: ClassVar[str] = "make_multi_window_case"

    @cached_property
    def pairs(self) -> list[tuple[int, ...]]:
        """What the oracle says."""
        tables = [pa.Table.from_batches([table]) for table in self.tables]
        arrivals = [move.event for move in self.moves if isinstance(move.event, Arrive)]
        order = [arrival.input for arrival in arrivals for _ in range(arrival.batch.num_rows)]
        return reference_window_combinations(tables, self.spec, order)

    def __str__(self) -> str:
        return f"{super().__str__()}\n  {self.spec.window}"


def make_multi_window_case(seed: int, operator_class: type[Any], **options: Any) -> MultiWindowCase:
    """The case of this seed."""
    rng = np.random.default_rng([seed, 0x71D3])
    base = make_multi_case(seed, MJoin)
    tables = list(base.tables)
    counted = rng.random() < 0.4
    if counted:
        most = max(table.num_rows for table in tables)
        sizes = [1, 2, 1 + most // 6, 1 + most // 2, 1 + most]
        window = ManyWindows(tuple(Rows(int(rng.choice(sizes))) for _ in tables))
    else:
        window, times = _timed(rng, [table.num_rows for table in tables])
        tables = [table.append_column(_TIME, column) for table, column in zip(tables, times, strict=True)]
    spec = replace(base.spec, schemas=tuple(table.schema for table in tables), window=window)
    least = int(operator_class.least_memory(spec, **options))
    memory = least + base.memory - base.least
    moves = moves_of(tables, rng, memory)
    kinds = (*base.kinds, "windows of rows" if counted else "windows of time")
    return MultiWindowCase(
        seed, spec, tuple(tables), moves, base.fuel, memory, least, base.restores, kinds
    )  # fmt: skip


def _timed(rng: Rng, counts: list[int]) -> tuple[ManyWindows, list[pa.Array]]:
    lateness = int(rng.choice([0, 0, 1, 3, 20]))
    late_share = float(rng.choice([0.0, 0.0, 0.0, 0.1]))
    ticks = [random_ticks(rng, count, lateness, late_share) for count in counts]
    reach = max([1, *(int(each.max(initial=0) - each.min(initial=0)) for each in ticks)])
    as_integers = rng.random() < 0.4
    one: Any = 1 if as_integers else timedelta(seconds=1)
    spans = [int(rng.choice([0, 2, 1 + reach // 10, 1 + reach // 4, 2 * reach, 2 * reach])) for _ in counts]
    if rng.random() < 0.4:
        spans = [max(spans)] * len(counts)
    late = str(rng.choice(["keep", "keep", "drop"]))
    window = ManyWindows(tuple(span * one for span in spans), (_TIME,) * len(counts), lateness * one, late)
    return window, time_columns(rng, ticks, as_integers)


def check_multi_window_metamorphic(operator_class: type[Any], case: MultiWindowCase, **options: Any) -> None:
    """Neither fuel nor budget change the multiset of rows."""
    rng = np.random.default_rng([case.seed, 0x3E7C])
    spec = replace(case.spec, output=Output.ROWS)
    least = int(operator_class.least_memory(spec, **options))
    memory = least + case.memory - case.least
    case = replace(case, spec=spec, least=least, memory=memory, restores=())
    rows = run_case(operator_class, case, **options).rows
    other = case.least + PLENTY if case.memory <= 4 * case.least else case.least + 200_000
    for change, changed in {
        "fuel": replace(case, fuel=random_fuel(rng)),
        "budget": replace(case, memory=other),
    }.items():
        if run_case(operator_class, changed, **options).rows != rows:
            raise ConformanceError(f"{operator_class.__name__}: {change} changed the results of\n{case}")


@dataclass(frozen=True, slots=True)
class MultiWindowSummary:
    """How many cases there were, and which paths they took."""

    cases: int
    spilled: int
    read: int
    """How many looked something up on disk."""
    restored: int
    results: int
    late: int
    events: tuple[tuple[str, int], ...]
    """What the operators say they did, and in how many cases."""
    kinds: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        events = ", ".join(f"{count} {name}" for name, count in self.events)
        return (
            f"{self.cases} cases, {self.results} results: {self.spilled} spilled, {self.read} read that again, "
            f"{self.restored} were restored, {self.late} had late rows; cases with {events}"
        )


def conform_multi_windows(
    operator_class: type[Any], cases: int = 500, seed: int = 0, **options: Any
) -> MultiWindowSummary:
    """Put a join of several inputs by windows through so many cases; the first that fails is a `ConformanceError`."""
    reports: list[CaseReport] = []
    for number in range(seed, seed + cases):
        case = make_multi_window_case(number, operator_class, **options)
        match number % 20:
            case 0:
                check_refusals(operator_class, case, **options)
                reports.append(check_determinism(operator_class, case, **options))
            case 5 | 10 | 15:
                reports.append(check_snapshot(operator_class, case, **options))
            case 7:
                check_multi_window_metamorphic(operator_class, case, **options)
                reports.append(run_case(operator_class, case, **options))
            case _:
                reports.append(run_case(operator_class, case, **options))
    kinds = Counter(kind for report in reports for kind in set(report.case.kinds))
    return MultiWindowSummary(
        cases=len(reports),
        spilled=sum(report.spilled for report in reports),
        read=sum(report.cost.pages_read > 0 for report in reports),
        restored=sum(report.restored > 0 for report in reports),
        results=sum(report.results for report in reports),
        late=sum(report.late for report in reports),
        events=events_of(reports),
        kinds=tuple(sorted(kinds.items())),
    )
