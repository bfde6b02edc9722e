"""Generated cases for joins of several inputs: a random graph, small tables, and all that could happen meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.checks.bands import random_band
from watersmeet.checks.cases import Move, moves_of, random_fuel, random_memory
from watersmeet.checks.keys import KeyColumns, random_key
from watersmeet.checks.oracle.nested_loops import reference_combinations
from watersmeet.checks.payload import WIDE_TYPES, random_payload, wide_column
from watersmeet.core.bands import Width
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import Band, Output
from watersmeet.memory import format_bytes

Rng: TypeAlias = np.random.Generator

_MOST_COMBINATIONS = 1_500
_MOST_OUTPUT_BYTES = 150_000
_LONGEST = 8_000


@dataclass(frozen=True, eq=False)
class MultiCase:
    """A join, its inputs, and the script by which they arrive; `print` it, or make it again from its seed."""

    seed: int
    spec: MultiSpec
    tables: tuple[pa.RecordBatch, ...]
    moves: tuple[Move, ...]
    fuel: tuple[int, ...]
    memory: int
    least: int
    restores: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    """What shape the graph has, and what kinds of keys it joins on."""

    maker: ClassVar[str] = "make_multi_case"

    @property
    def inputs(self) -> int:
        """How many inputs there are."""
        return len(self.tables)

    @cached_property
    def pairs(self) -> Sequence[tuple[int | None, ...]]:
        """What the oracle says: the row numbers of all combinations, and of rows that come out alone."""
        found = reference_combinations([pa.Table.from_batches([table]) for table in self.tables], self.spec)
        preserved = self.spec.preserved
        if preserved is None:
            return [*found]
        have = {numbers[preserved] for numbers in found}
        alone = (row for row in range(self.tables[preserved].num_rows) if row not in have)
        nobody: list[tuple[int | None, ...]] = [
            tuple(row if number == preserved else None for number in range(self.inputs)) for row in alone
        ]
        return [*found, *nobody]

    def table(self, number: int) -> pa.RecordBatch:
        """All the rows of one input."""
        return self.tables[number]

    def __str__(self) -> str:
        names = self.spec.names
        on = ", ".join(
            f"{names[e.first]}.{e.first_column} {self.spec.key_field(e.first, e.first_column).type} = "
            f"{names[e.second]}.{e.second_column} {self.spec.key_field(e.second, e.second_column).type}"
            + ("" if e.width is None else f" within {e.width!r}")
            for e in self.spec.edges
        )
        return (
            f"case {self.seed}: {' x '.join(str(table.num_rows) for table in self.tables)} rows, {len(self.pairs)} "
            f"results as {self.spec.output.value}, on {on}\n"
            f"  data {format_bytes(sum(table.nbytes for table in self.tables))}, memory {format_bytes(self.memory)} "
            f"(least {format_bytes(self.least)}), fuel {list(self.fuel)}, restores after steps {list(self.restores)}\n"
            f"  moves {' '.join(map(str, self.moves))}"
        )


def make_multi_case(seed: int, operator_class: type[Any], **options: Any) -> MultiCase:
    """The case of this seed for this operator; one that joins ranges is also given bands.

    >>> from watersmeet.joins.multiway.mjoin import MJoin
    >>> str(make_multi_case(7, MJoin)) == str(make_multi_case(7, MJoin))
    True
    """
    return _make_case(seed, operator_class, False, options)


def make_preserving_case(seed: int, operator_class: type[Any], **options: Any) -> MultiCase:
    """The same, where one of the inputs is preserved."""
    return _make_case(seed, operator_class, True, options)


def _make_case(seed: int, operator_class: type[Any], preserving: bool, options: dict[str, Any]) -> MultiCase:
    rng = np.random.default_rng([seed, 0x3317])
    inputs = int(rng.choice([2, 3, 4, 5, 6], p=[0.15, 0.35, 0.3, 0.15, 0.05]))
    shape, edges = _graph(rng, inputs)
    variables = 1 + max(variable for _, _, variable in edges)
    distinct = [int(np.exp(rng.random() ** 0.5 * np.log(300))) for _ in range(variables)]
    keys = [random_key(rng, size) for size in distinct]
    widths: list[Width | None] = [None] * variables
    if getattr(operator_class, "joins_ranges", False):
        _put_bands(np.random.default_rng([seed, 0xBA4D]), distinct, keys, widths)
    sides = rng.integers(0, 2, (inputs, variables))
    columns = _key_columns(rng, inputs, edges, keys, sides)
    on = [_condition(f"{_name(a)}.k{v}", f"{_name(b)}.k{v}", widths[v]) for a, b, v in edges]
    rows = _few_enough(columns, on, int(rng.choice([40, 120, _MOST_COMBINATIONS], p=[0.6, 0.35, 0.05])))
    payload = [[random_payload(rng, rows[i]) for _ in range(int(rng.integers(0, 3)))] for i in range(inputs)]
    wide = [WIDE_TYPES[int(rng.integers(len(WIDE_TYPES)))] if rng.random() < 0.9 else None for _ in range(inputs)]
    schemas = {_name(i): _schema(i, columns[i], payload[i], wide[i]) for i in range(inputs)}
    output = [Output.ROWS, Output.PAIRS, Output.COUNTS][int(rng.choice(3, p=[0.9, 0.05, 0.05]))]
    spec = MultiSpec.of(schemas, on, output)
    if preserving:
        spec = replace(spec, preserved=int(np.random.default_rng([seed, 0x41D5]).integers(inputs)))
    least = int(operator_class.least_memory(spec, **options))
    memory = random_memory(rng, least)
    results = len(
        reference_combinations([_cut(each, n) for each, n in zip(columns, rows, strict=True)], _bare(on, columns))
    )
    widest = int(operator_class.widest_row(spec, memory))
    target = min(1_500_000, int(memory * rng.choice([0.3, 1.5, 2.5, 4.0], p=[0.06, 0.3, 0.4, 0.24])))
    width = min(target // max(1, sum(rows)), widest, _LONGEST // 2, _MOST_OUTPUT_BYTES // (1 + results))
    tables = []
    for i in range(inputs):
        arrays = [*_cut(columns[i], rows[i]).columns, *payload[i]]
        if (kind := wide[i]) is not None:
            arrays.append(wide_column(rng, rows[i], width, min(_LONGEST, widest), kind))
        arrays = [array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array for array in arrays]
        tables.append(pa.RecordBatch.from_arrays(arrays, schema=spec.input(i)))
    moves = moves_of(tables, rng, memory)
    restores = tuple(sorted(rng.integers(0, 3 * len(moves), 2).tolist())) if rng.random() < 0.12 else ()
    bands = ["bands"] if spec.has_bands else []
    kinds = (shape, f"{inputs} inputs", *bands, *(key.kind for key in keys))
    return MultiCase(seed, spec, tuple(tables), moves, random_fuel(rng), memory, least, restores, kinds)


def _name(number: int) -> str:
    return "rstuvw"[number]


def _put_bands(rng: Rng, distinct: list[int], keys: list[KeyColumns], widths: list[Width | None]) -> None:
    """Let some variables be compared by ranges, in a third of all cases."""
    if rng.random() < 2 / 3:
        return
    for variable, size in enumerate(distinct):
        if rng.random() < 0.5:
            band = random_band(rng, size)
            while band.columns.kind == "nothing":  # of two columns that are not null it may not be a band
                band = random_band(rng, size)
            keys[variable], widths[variable] = band.columns, band.width


def _condition(left: str, right: str, width: Width | None) -> str | Band:
    return f"{left} = {right}" if width is None else Band(left, right, width)


def _graph(rng: Rng, inputs: int) -> tuple[str, list[tuple[int, int, int]]]:
    """Edges (input, input, variable): a tree, perhaps with cycles, on one attribute or on several."""
    shape = str(rng.choice(["one attribute", "chain", "star", "tree", "cycle"]))
    order = rng.permutation(inputs).tolist()
    if shape == "one attribute":
        return shape, [(order[int(rng.integers(i))], order[i], 0) for i in range(1, inputs)]
    edges: list[tuple[int, int, int]] = []
    for i in range(1, inputs):
        before = {"chain": i - 1, "star": 0}.get(shape, int(rng.integers(i)))
        # Now and then an edge goes on with an attribute that is joined on already.
        variable = edges[-1][2] if edges and rng.random() < 0.2 else len(edges)
        edges.append((order[before], order[i], variable))
    if shape == "cycle":
        for _ in range(int(rng.integers(1, 3))):
            a, b = rng.permutation(inputs)[:2].tolist()
            edges.append((a, b, 1 + max(variable for _, _, variable in edges)))
    used = sorted({variable for _, _, variable in edges})
    return shape, [(a, b, used.index(variable)) for a, b, variable in edges]


def _key_columns(
    rng: Rng, inputs: int, edges: list[tuple[int, int, int]], keys: list[KeyColumns], sides: np.ndarray
) -> list[pa.Table]:
    tables = []
    for i in range(inputs):
        rows = 0 if rng.random() < 0.01 else int(rng.integers(20, 90))
        nulls = float(rng.choice([0.0, 0.05, 0.3], p=[0.5, 0.4, 0.1]))
        skew = float(rng.choice([1.0, 1.0, 2.0]))
        arrays, names = [], []
        for variable, key in enumerate(keys):
            if any(variable == v and i in (a, b) for a, b, v in edges):
                places = (len(key.values[0]) * rng.random(rows) ** skew).astype(np.int64)
                arrays.append(key.column(int(sides[i, variable]), places, rng.random(rows) < nulls))
                names.append(f"k{variable}")
        tables.append(pa.Table.from_arrays(arrays, names=names))
    return tables


def _cut(table: pa.Table, rows: int) -> pa.Table:
    return table.slice(0, rows)


def _bare(on: list[str | Band], columns: list[pa.Table]) -> MultiSpec:
    """The join of the keys alone."""
    return MultiSpec.of({_name(i): table.schema for i, table in enumerate(columns)}, on, Output.COUNTS)


def _few_enough(columns: list[pa.Table], on: list[str | Band], most: int) -> list[int]:
    """How many rows of each input give no more than so many results."""
    spec = _bare(on, columns)
    rows = [table.num_rows for table in columns]
    while (
        len(reference_combinations([_cut(each, n) for each, n in zip(columns, rows, strict=True)], spec, 4 * most))
        > most
    ):
        rows = [int(n * 0.7) for n in rows]
    return rows


def _schema(number: int, keys: pa.Table, payload: list[pa.Array], wide: pa.DataType | None) -> pa.Schema:
    fields = [*keys.schema, *(pa.field(f"p{c}", array.type) for c, array in enumerate(payload))]
    if wide is not None:
        fields.append(pa.field(f"wide_{_name(number)}", wide))
    return pa.schema(fields)
