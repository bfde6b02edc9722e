"""What a window join of micro-batches must give: that of the oracle, rows coming in the order that the docs tell.

And what its tests need besides: cases, micro-batches, and a way to kill a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.checks.asof import AsofCase, make_asof_case
from watersmeet.checks.canonical import Row, canonical_rows
from watersmeet.checks.multi_cases import MultiCase
from watersmeet.checks.oracle.nested_loops import comparable_values
from watersmeet.checks.oracle.windows import (
    asof_times,
    reference_asof_pairs,
    reference_window_combinations,
    reference_window_pairs,
)
from watersmeet.checks.windows import WindowCase, make_window_case
from watersmeet.core.asof import AsofSpec
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import JoinSpec, Output
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.joins.asof.join import AsofJoin
from watersmeet.planner import WINDOW_ALGORITHMS
from watersmeet.records.asof_times import AsofCodec, AsofPlan
from watersmeet.spark.rebalance import master_task
from watersmeet.spark.state import directory as state_directory
from watersmeet.spark.state import store as versioned_store
from watersmeet.spark.state import watermarks as marks
from watersmeet.spark.task.row_hashes import row_hashes
from watersmeet.spill import file_store


def arrival_order(spec: WindowJoinSpec, batches: list[list[pa.RecordBatch]]) -> tuple[list[pa.Table], list[int]]:
    """Both inputs in the order in which their rows count as having come, and the order of the inputs of all rows.

    Within a batch, that is: late rows of the left input, late rows of the right one, then all others; each in the order
    of their times. What is late is told by the batches before. Rows without a key never reach a task, unless they come
    out alone: they tell no time.
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
            left_out = () if spec.kind.preserved[side] else [tables[side].column(name) for name in spec.keys(side)]
            known = [i for i, time in enumerate(times) if time is not None and all(key[i].is_valid for key in left_out)]
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
    return spec.output is Output.ROWS and all(is_plain(field.type) for side in (0, 1) for field in spec.input(side))


def is_plain(type_: pa.DataType) -> bool:
    """Whether columns of this type hold their values as they are."""
    odd = (
        pa.types.is_dictionary, pa.types.is_run_end_encoded, pa.types.is_union,
        pa.types.is_string_view, pa.types.is_binary_view, pa.types.is_list_view, pa.types.is_large_list_view,
    )  # fmt: skip
    if isinstance(type_, pa.BaseExtensionType) or any(test(type_) for test in odd):
        return False
    return all(is_plain(type_.field(i).type) for i in range(type_.num_fields))


def expected_pairs(spec: WindowJoinSpec, batches: list[list[pa.RecordBatch]]) -> Counter[Any]:
    """The results of these batches."""
    tables, order = arrival_order(spec, batches)
    kept = [rows_of(table, spec.kept[side]) for side, table in enumerate(tables)]
    return Counter((*kept[0][i], *kept[1][j]) for i, j in reference_window_pairs(tables[0], tables[1], spec, order))


def rows_of(table: pa.Table, columns: Sequence[int]) -> list[Row]:
    """A table's rows, of which there may be none."""
    return [row for batch in table.to_batches() for row in canonical_rows(batch, columns)]


def rows_in_all(batches: list[pa.RecordBatch]) -> Counter[Any]:
    """The rows of all of these."""
    return Counter(row for batch in batches for row in canonical_rows(batch))


def spark_cases(name: str, count: int, first: int = 0) -> Iterator[WindowCase]:
    """So many cases for an algorithm that Spark could have, from a seed on."""
    seed = first
    while count:
        case = make_window_case(seed, WINDOW_ALGORITHMS[name])
        assert isinstance(case.spec, WindowJoinSpec)
        if not case.spec.counted and is_sparks(case.spec):
            count -= 1
            # Silences, and when results are final or rows come alone, are a matter of Spark's batches.
            spec = replace(case.spec, how="inner", window=replace(case.spec.window, idle=None, emit="early"))
            # It may keep columns that a semi or an anti join would not, and so need more.
            least = WINDOW_ALGORITHMS[name].least_memory(spec)
            yield replace(case, spec=spec, memory=max(case.memory, least), least=least)
        seed += 1


def micro_batches(case: WindowCase, rng: np.random.Generator, most: int = 6) -> list[list[pa.RecordBatch]]:
    """A case's rows, cut into batches."""
    count = int(rng.integers(1, most + 1))
    cuts = [
        [0, *sorted(rng.integers(0, rows.num_rows + 1, count - 1)), rows.num_rows] for rows in (case.left, case.right)
    ]
    return [
        [case.table(side).slice(cuts[side][i], cuts[side][i + 1] - cuts[side][i]) for side in (0, 1)]
        for i in range(count)
    ]


def many_micro_batches(case: MultiCase, rng: np.random.Generator, most: int = 6) -> list[list[pa.RecordBatch]]:
    """A case's rows, cut into batches."""
    count = int(rng.integers(1, most + 1))
    cuts = [[0, *sorted(rng.integers(0, t.num_rows + 1, count - 1)), t.num_rows] for t in case.tables]
    return [
        [table.slice(own[i], own[i + 1] - own[i]) for table, own in zip(case.tables, cuts, strict=True)]
        for i in range(count)
    ]


def is_sparks_multi(spec: MultiSpec) -> bool:
    """Whether Spark could hand such rows to Python."""
    plain = all(is_plain(column.type) for schema in spec.schemas for column in schema)
    return plain and spec.output is Output.ROWS and not spec.has_bands


def without_silences(case: MultiCase) -> MultiCase:
    """The case on Spark, where silences are a matter of its batches."""
    if case.spec.window is None or case.spec.window.idle is None:
        return case
    return replace(case, spec=replace(case.spec, window=replace(case.spec.window, idle=None)))


def expected_in_windows(spec: MultiSpec, batches: list[list[pa.RecordBatch]]) -> Counter[Any]:
    """What the oracle gives if rows come as the docs tell: of each batch first what is late, input by input.

    Rows without all that their input is joined on never reach a task: they tell no time.
    """
    assert spec.window is not None and spec.window.time is not None
    inputs, lateness = range(len(spec.names)), _units(spec.window.lateness)
    newest: list[int | None] = [None for _ in inputs]
    pieces: list[list[pa.RecordBatch]] = [[] for _ in inputs]
    order: list[int] = []
    finest = spec.time_types[0]
    for tables in batches:
        late_rows, rest = [], []
        for number in inputs:
            times = comparable_values(tables[number].column(spec.window.time[number]), finest)
            keys = [tables[number].column(name) for name in spec.keys(number)]
            known = [i for i, time in enumerate(times) if time is not None and all(key[i].is_valid for key in keys)]
            known.sort(key=lambda i: times[i])
            pieces[number].append(tables[number].take(pa.array(known, pa.int64())))
            mark = newest[number]
            late = 0 if mark is None else sum(times[i] < mark - lateness for i in known)
            late_rows += [number] * late
            rest += [number] * (len(known) - late)
            if known:
                newest[number] = max(times[known[-1]], mark if mark is not None else times[known[-1]])
        order += late_rows + rest
    tables = [pa.Table.from_batches(pieces[number], spec.input(number)).combine_chunks() for number in inputs]
    kept = [
        [row for batch in table.to_batches() for row in canonical_rows(batch, spec.kept[number])]
        for number, table in enumerate(tables)
    ]
    return Counter(
        tuple(value for number, row in enumerate(found) for value in kept[number][row])
        for found in reference_window_combinations(tables, spec, order)
    )


def asof_order(spec: AsofSpec, batches: list[list[pa.RecordBatch]]) -> list[pa.Table]:
    """Both inputs in the order that the docs tell: batch by batch by time, and within a time by the rows' values.

    Rows without a key or a time go to no task.
    """
    codec = AsofCodec(spec)
    plans = [AsofPlan(spec, side, codec.exact) for side in (0, 1)]
    pieces: list[list[pa.RecordBatch]] = [[], []]
    for tables in batches:
        times = asof_times(*(pa.Table.from_batches([table]) for table in tables), spec)
        for side, table in enumerate(tables):
            _, valid = codec.hash(side, plans[side].key_arrays(table))
            known = [i for i, time in enumerate(times[side]) if time is not None and (valid is None or valid[i])]
            hashes = row_hashes(table)
            known.sort(key=lambda i: (times[side][i], int(hashes[i])))
            pieces[side].append(table.take(pa.array(known, pa.int64())))
    return [pa.Table.from_batches(pieces[side], spec.input(side)).combine_chunks() for side in (0, 1)]


def expected_asof(spec: AsofSpec, batches: list[list[pa.RecordBatch]]) -> Counter[Any]:
    """The results of an as-of join of these batches."""
    tables = asof_order(spec, batches)
    kept = [rows_of(table, spec.kept[side]) for side, table in enumerate(tables)]
    nulls = pa.record_batch(
        [pa.nulls(1, spec.right.field(i).type) for i in spec.kept[1]], [spec.right.field(i).name for i in spec.kept[1]]
    )
    nobody = canonical_rows(nulls)[0]
    pairs = reference_asof_pairs(tables[0], tables[1], spec)
    return Counter((*kept[0][i], *(nobody if j is None else kept[1][j])) for i, j in pairs)


def asof_cases(count: int, first: int = 0) -> Iterator[AsofCase]:
    """Cases that Spark could have: rows without a key or a time are left to the plan, and inputs have an order."""
    seed = first
    while count:
        case = make_asof_case(seed, AsofJoin)
        seed += 1
        assert isinstance(case.spec, AsofSpec)
        times = case.spec.times
        dated = case.spec.tick is not None or pa.types.is_integer(case.spec.time_types[0])
        if not is_sparks(case.spec) or not case.spec.on or not dated:
            continue
        one: Any = 1 if case.spec.tick is None else timedelta(seconds=1)
        lateness = tuple(3 * one if span is None else span for span in times.lateness)
        tolerance = times.tolerance if times.direction == "backward" or times.tolerance is not None else 5 * one
        late = "drop" if times.late == "error" else times.late
        told = replace(times, lateness=(lateness[0], lateness[1]), tolerance=tolerance, late=late)
        count -= 1
        yield replace(case, spec=replace(case.spec, times=told))


def far_ahead(case: AsofCase) -> pa.RecordBatch | None:
    """A right row beyond everything, so that whatever waits is passed; None if no row has a key to be routed by."""
    spec = case.spec
    assert isinstance(spec, AsofSpec)
    codec = AsofCodec(spec)
    _, valid = codec.hash(1, AsofPlan(spec, 1, codec.exact).key_arrays(case.right))
    keyed = np.arange(case.right.num_rows) if valid is None else np.flatnonzero(valid)
    if not len(keyed):
        return None
    row = case.right.slice(int(keyed[-1]), 1)
    name, type_ = spec.times.time[1], spec.time_types[1]
    if pa.types.is_timestamp(type_):  # of one moment in any unit, so that it has a place in the finer one of both
        beyond = pa.array([{"s": 10**9, "ms": 10**12, "us": 10**15, "ns": 10**18}[type_.unit]]).view(type_)
    elif pa.types.is_date(type_):
        beyond = pa.array([10**4], pa.int32()).view(type_)
    else:
        beyond = pa.array([10**6], pa.int64())
    return row.set_column(row.schema.get_field_index(name), row.schema.field(name), beyond.cast(type_))


class Killed(BaseException):
    """What a SIGKILL looks like to a test: nothing is cleaned up."""


@contextmanager
def killed_after(writes: int) -> Iterator[None]:
    """What is done here is killed at a write to the disk, after so many, and leaves what it has written."""
    left = writes

    def count_down(real: Any) -> Any:
        def act(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return real(*args, **kwargs)

        return act

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_store._FileWriter, "commit", count_down(file_store._FileWriter.commit))
        for module in (state_directory, marks, master_task):
            patch.setattr(module, "publish", count_down(module.publish))
        patch.setattr(versioned_store.VersionedStore, "abandon", lambda self: None)
        yield
