"""Nested loops over the rows of several inputs: the oracle of every join of more than two.

Whether two values are equal, or close, is asked of the oracle of two inputs, edge by edge; the rest is loops.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from watersmeet.core.multi_spec import Edge, MultiSpec
from watersmeet.core.spec import Band, Equal, JoinSpec
from watersmeet.joins.reference import reference_pairs


def reference_combinations(
    tables: Sequence[pa.Table], spec: MultiSpec, most: int | None = None
) -> list[tuple[int, ...]]:
    """The row numbers of all combinations in which every edge holds.

    With `most`, it gives up once there are more partial combinations, and returns that many numbers of nothing.

    >>> schema = pa.schema({"a": pa.int64()})
    >>> spec = MultiSpec.of({"r": schema, "s": schema, "t": schema}, ["r.a = s.a", "s.a = t.a"])
    >>> reference_combinations([pa.table({"a": [1, 2]}), pa.table({"a": [2, 1]}), pa.table({"a": [2, 2]})], spec)
    [(1, 0, 0), (1, 0, 1)]
    """
    matching = [_matching_rows(tables, spec, number) for number in range(len(spec.edges))]
    order = _order(spec)
    found: list[dict[int, int]] = [{}]
    for at, number in enumerate(order):
        met = set(order[: at + 1])
        edges = [
            (edge, pairs)
            for edge, pairs in zip(spec.edges, matching, strict=True)
            if number in (edge.first, edge.second) and {edge.first, edge.second} <= met
        ]
        found = [
            {**rows, number: row}
            for rows in found
            for row in range(tables[number].num_rows)
            if all(_ends(edge, {**rows, number: row}) in pairs for edge, pairs in edges)
        ]
        if most is not None and len(found) > most:
            return [()] * len(found)
    return sorted(tuple(rows[number] for number in range(len(tables))) for rows in found)


def _order(spec: MultiSpec) -> list[int]:
    """Each input after one that it is joined with, so that the loops are not over cross products."""
    order = [0]
    for at in range(len(spec.names)):
        order += [other for other in spec.neighbours(order[at]) if other not in order]
    return order


def _ends(edge: Edge, rows: dict[int, int]) -> tuple[int, int]:
    return rows[edge.first], rows[edge.second]


def _matching_rows(tables: Sequence[pa.Table], spec: MultiSpec, edge: int) -> set[tuple[int, int]]:
    ends = spec.edges[edge]
    left, right = (tables[ends.input(side)].select([ends.column(side)]) for side in (0, 1))
    columns = (ends.first_column, ends.second_column)
    on = Equal(*columns) if ends.width is None else Band(*columns, ends.width)
    return set(reference_pairs(left, right, JoinSpec(left.schema, right.schema, (on,))))
