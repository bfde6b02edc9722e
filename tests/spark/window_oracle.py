"""What a window join of micro-batches must give: that of the oracle, rows coming in the order that the docs tell."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from watersmeet.core.spec import JoinSpec, Output
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.joins.reference import comparable_values


def arrival_order(spec: WindowJoinSpec, batches: list[list[pa.RecordBatch]]) -> tuple[list[pa.Table], list[int]]:
    """Both inputs in the order in which their rows count as having come, and the order of the inputs of all rows.

    Within a batch, that is: late rows of the left input, late rows of the right one, then all others; each in the order
    of their times. What is late is told by the batches before.
    """
    assert spec.window.time is not None
    names = spec.window.time
    lateness = _units(spec.window.lateness)
    newest: list[int | None] = [None, None]
    pieces: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
    order: list[int] = []
    for tables in batches:
        columns = [table.column(name) for table, name in zip(tables, names, strict=True)]
        counts = []
        for side in (0, 1):
            times = comparable_values(columns[side], columns[1 - side].type)
            known = [i for i, time in enumerate(times) if time is not None]
            known.sort(key=lambda i: times[i])
            pieces[side].append(tables[side].take(pa.array(known, pa.int64())))
            mark = newest[side]
            late = 0 if mark is None else sum(times[i] < mark - lateness for i in known)
            counts.append((late, len(known) - late))
            if known:
                newest[side] = max(times[known[-1]], mark if mark is not None else times[known[-1]])
        order += [0] * counts[0][0] + [1] * counts[1][0] + [0] * counts[0][1] + [1] * counts[1][1]
    tables = [pa.Table.from_batches(pieces[side], spec.input(side)).combine_chunks() for side in (0, 1)]
    return tables, order


def _units(span: Any) -> int:
    if isinstance(span, int):
        return span
    return int(((span.days * 86_400 + span.seconds) * 10**6 + span.microseconds) * 1000)


def is_sparks(spec: JoinSpec) -> bool:
    """Whether Spark could hand such rows to Python."""
    odd = (
        pa.types.is_dictionary, pa.types.is_run_end_encoded, pa.types.is_union,
        pa.types.is_string_view, pa.types.is_binary_view, pa.types.is_list_view, pa.types.is_large_list_view,
    )  # fmt: skip

    def plain(type_: pa.DataType) -> bool:
        if isinstance(type_, pa.BaseExtensionType) or any(test(type_) for test in odd):
            return False
        return all(plain(type_.field(i).type) for i in range(type_.num_fields))

    return spec.output is Output.ROWS and all(plain(field.type) for side in (0, 1) for field in spec.input(side))
