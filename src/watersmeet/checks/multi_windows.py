"""The conformance suite for windows of several inputs: the cases of `multi_cases`, with times and windows.

>>> from watersmeet.joins.window.windowed_mjoin import WindowedMJoin
>>> conform_multi_windows(WindowedMJoin, cases=2).cases
2
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.checks.cases import PLENTY, moves_of, random_fuel
from watersmeet.checks.multi_cases import MultiCase, make_multi_case
from watersmeet.checks.oracle.windows import reference_window_combinations
from watersmeet.checks.run import ConformanceError, run_case
from watersmeet.checks.windows import (
    WindowSummary,
    conform_timed,
    looks_at,
    random_ticks,
    time_columns,
    with_silences,
)
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
        return reference_window_combinations(tables, self.spec, order, looks_at(self.moves))

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
    silences = np.random.default_rng([seed, 0x1D7E])
    silent = not counted and bool(silences.random() < 0.3)
    if silent:
        window = replace(window, idle=1.0)
    spec = replace(base.spec, schemas=tuple(table.schema for table in tables), window=window)
    least = int(operator_class.least_memory(spec, **options))
    memory = least + base.memory - base.least
    moves = moves_of(tables, rng, memory)
    if silent:  # some inputs no longer hold back the others, for so long
        idle, paused = with_silences(silences, moves)
        spec, moves = replace(spec, window=replace(window, idle=idle)), tuple(paused)
    kinds = (*base.kinds, "windows of rows" if counted else "windows of time", *(("silences",) if silent else ()))
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


def conform_multi_windows(operator_class: type[Any], cases: int = 500, seed: int = 0, **options: Any) -> WindowSummary:
    """Put a join of several inputs by windows through so many cases; the first that fails is a `ConformanceError`."""
    numbers = range(seed, seed + cases)
    return conform_timed(operator_class, numbers, make_multi_window_case, check_multi_window_metamorphic, **options)
