"""The conformance suite for as-of joins: the same cases, with times that tie, repeat, are NULL and come out of order.

A case is one of the other suite's (keys and payload of every type, any chunking, fuel, budget, stalls and snapshots)
whose inputs got a column of times: in order, out of order within the lateness and now and then beyond it, or in no
order at all.

>>> from watersmeet.joins.asof.join import AsofJoin
>>> conform_asof(AsofJoin, cases=2).cases
2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.checks.cases import PLENTY, Case, make_case, random_fuel, random_moves
from watersmeet.checks.oracle.windows import reference_asof_pairs
from watersmeet.checks.run import ConformanceError, run_case
from watersmeet.checks.windows import WindowSummary, conform_timed, random_ticks, time_columns
from watersmeet.core.arrays import Int64
from watersmeet.core.asof import DIRECTIONS, AsofSpec, AsofTimes
from watersmeet.core.spec import Output

Rng: TypeAlias = np.random.Generator

_TYPES = ("integer", "timestamp", "float", "decimal", "date")
_TYPE_SHARES = (0.35, 0.4, 0.1, 0.1, 0.05)


@dataclass(frozen=True, eq=False)
class AsofCase(Case):
    """An as-of join, its inputs and the script by which they arrive."""

    @cached_property
    def pairs(self) -> list[Any]:
        """What the oracle says."""
        assert isinstance(self.spec, AsofSpec)
        left, right = (pa.Table.from_batches([batch]) for batch in (self.left, self.right))
        return reference_asof_pairs(left, right, self.spec)

    def __str__(self) -> str:
        assert isinstance(self.spec, AsofSpec)
        return f"{super().__str__()}\n  how={self.spec.how!r} {self.spec.times}"


def make_asof_case(seed: int, operator_class: type[Any], **options: Any) -> AsofCase:
    """The case of this seed for this operator."""
    rng = np.random.default_rng([seed, 0xA50F])
    plain = type("Plain", (operator_class,), {"joins_ranges": False, "least_memory": classmethod(_some_memory)})
    base = make_case(seed, plain, **options)
    tables = [_repeated(base.table(side), int(rng.choice([1, 2]))) for side in (0, 1)]
    times, columns = _timed(rng, [table.num_rows for table in tables])
    tables = [table.append_column(times.time[side], columns[side]) for side, table in enumerate(tables)]
    on = () if rng.random() < 0.1 else base.spec.on
    spec = AsofSpec(
        tables[0].schema, tables[1].schema, on, str(rng.choice(["inner", "left"])), base.spec.output, ("_l", "_r"),
        times=times,
    )  # fmt: skip
    case = _case(base, spec, tables, rng, operator_class, options)
    if spec.times.late == "drop" and rng.random() < 0.5 and not _any_late(case):
        case = replace(case, spec=replace(spec, times=replace(times, late="error")))
    order = "no order" if None in times.lateness else "an order"
    return replace(case, kinds=(*base.kinds, f"{times.direction}, {spec.how}", order))


def _some_memory(cls: type[Any], /, spec: Any, **options: Any) -> int:
    """As much as an as-of join of rows like these needs at least."""
    return 64 * 1024


def _case(
    base: Case,
    spec: AsofSpec,
    tables: list[pa.RecordBatch],
    rng: Rng,
    operator_class: type[Any],
    options: Mapping[str, Any],
) -> AsofCase:
    least = int(operator_class.least_memory(spec, **options))
    memory = least + base.memory - base.least
    moves = random_moves(rng, tables[0], tables[1], memory)
    restores = tuple(sorted(rng.integers(0, 3 * len(moves), 2).tolist())) if rng.random() < 0.12 else ()
    return AsofCase(base.seed, spec, tables[0], tables[1], moves, base.fuel, memory, least, restores)


def _repeated(table: pa.RecordBatch, times: int) -> pa.RecordBatch:
    columns = [pa.concat_arrays([column] * times) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _timed(rng: Rng, counts: list[int]) -> tuple[AsofTimes, list[pa.Array]]:
    """What is told of time, and a column of times for each input in the order of arrival."""
    kind = str(rng.choice(_TYPES, p=_TYPE_SHARES))
    lateness = 0 if kind in ("float", "decimal") else int(rng.choice([0, 0, 1, 3, 20]))
    late_share = float(rng.choice([0.0, 0.0, 0.0, 0.1]))
    ticks = [random_ticks(rng, count, lateness, late_share) for count in counts]
    known = [True, True]
    for side in (0, 1):
        if rng.random() < 0.3:  # in no order at all
            known[side] = False
            ticks[side] = rng.permutation(ticks[side])
    one, columns = _columns(rng, kind, ticks)
    span = int(rng.choice([0, 1, 2, 5, 30]))
    tolerance = span * one if rng.random() < 0.5 else None
    names = ("when", "when") if rng.random() < 0.5 else ("since", "until")
    late = str(rng.choice(["keep", "keep", "drop"]))
    allowed = tuple(lateness * one if known[side] else None for side in (0, 1))
    return AsofTimes(names, str(rng.choice(DIRECTIONS)), tolerance, (allowed[0], allowed[1]), late), columns


def _columns(rng: Rng, kind: str, ticks: list[Int64]) -> tuple[Any, list[pa.Array]]:
    """A unit of time, and the times as columns of a kind."""
    if kind in ("integer", "timestamp"):
        one = 1 if kind == "integer" else timedelta(seconds=1)
        return one, time_columns(rng, ticks, kind == "integer")
    masks = [rng.random(len(each)) < rng.choice([0.0, 0.0, 0.05]) for each in ticks]
    if kind == "date":
        return timedelta(days=1), [
            pa.array(each.astype(np.int32), pa.int32(), mask=mask).cast(pa.date32())
            for each, mask in zip(ticks, masks, strict=True)
        ]
    if kind == "float":
        values = [np.where(rng.random(len(each)) < 0.02, np.nan, each / 4) for each in ticks]
        if rng.random() < 0.3:  # the ends of time, which are in order wherever the others are
            for told, each in zip(values, ticks, strict=True):
                if len(each):
                    told[each == each.min()], told[each == each.max()] = -np.inf, np.inf
        return 0.25, [pa.array(each, pa.float64(), mask=mask) for each, mask in zip(values, masks, strict=True)]
    decimals = [
        pa.array([None if gone else Decimal(tick) / 4 for tick, gone in zip(each.tolist(), mask, strict=True)],
                 pa.decimal128(12, 2 + side))
        for side, (each, mask) in enumerate(zip(ticks, masks, strict=True))
    ]  # fmt: skip
    return Decimal("0.25"), decimals


def _any_late(case: AsofCase) -> bool:
    """Whether a row of either input comes late."""
    assert isinstance(case.spec, AsofSpec)
    times = replace(case.spec.times, late="drop")
    told = [pa.table({"t": case.table(side).column(times.time[side])}) for side in (0, 1)]
    for side in (0, 1):
        spec = AsofSpec(
            told[side].schema, told[side].schema, (), "left", Output.PAIRS,
            times=replace(times, time=("t", "t"), lateness=(times.lateness[side], None)),
        )  # fmt: skip
        if len(reference_asof_pairs(told[side], told[side].slice(0, 0), spec)) < told[side].num_rows:
            return True
    return False


def check_asof_metamorphic(operator_class: type[Any], case: AsofCase, **options: Any) -> None:
    """Neither fuel, budget, chunking nor interleaving change the multiset of rows, whatever comes late."""
    rng = np.random.default_rng([case.seed, 0x3E7C])
    spec = replace(case.spec, output=Output.ROWS)
    least = int(operator_class.least_memory(spec, **options))  # rows take more than pairs of numbers
    case = replace(case, spec=spec, restores=(), memory=least + case.memory - case.least, least=least)
    rows = run_case(operator_class, case, **options).rows
    scarce = case.memory <= 4 * case.least
    moves = random_moves(rng, case.left, case.right, case.memory)
    changes = {
        "fuel, chunking and interleaving": replace(case, fuel=random_fuel(rng), moves=moves),
        "budget": replace(case, memory=case.least + (PLENTY if scarce else 200_000)),
    }
    for change, changed in changes.items():
        if run_case(operator_class, changed, **options).rows != rows:
            raise ConformanceError(f"{operator_class.__name__}: {change} changed the results of\n{case}")


def conform_asof(operator_class: type[Any], cases: int = 500, seed: int = 0, **options: Any) -> WindowSummary:
    """Put an as-of join through so many cases; the first that fails is a `ConformanceError`."""
    numbers = range(seed, seed + cases)
    return conform_timed(operator_class, numbers, make_asof_case, check_asof_metamorphic, **options)
