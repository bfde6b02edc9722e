"""`watersmeet.spark.window_join`: endless streams joined by windows of time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from watersmeet.core.errors import SpecError
from watersmeet.core.spec import On, parse_on
from watersmeet.core.windows import Span, WindowJoinSpec, parse_windows
from watersmeet.memory import parse_memory
from watersmeet.spark.arrow_types import arrow_schema
from watersmeet.spark.metrics import figure_names, observed
from watersmeet.spark.operator_group import Shares
from watersmeet.spark.planning import (
    NAMES,
    SIDES,
    group_count,
    is_streaming,
    key_columns,
    output_schema,
    plain_schemas,
    retained_batches,
    state_path,
    time_columns,
    with_measures,
)
from watersmeet.spark.remote_files import CACHE_BYTES
from watersmeet.spark.signs import has_signs, signs_last
from watersmeet.spark.tagging import Tagging
from watersmeet.spark.window_factory import WindowFactory
from watersmeet.spark.window_task import WindowTask
from watersmeet.spark.workers import portable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def window_join(
    left: DataFrame,
    right: DataFrame,
    on: On,
    *,
    time: str | Sequence[str],
    window: object,
    slide: Span | None = None,
    lateness: Span | None = None,
    late: str = "keep",
    memory: str | int = "512 MiB",
    state: str | os.PathLike[str] | None = None,
    partitions: int | None = None,
    suffixes: tuple[str, str] = ("", "_right"),
    algorithm: str = "auto",
    delays: bool = False,
    cache: str | int = CACHE_BYTES,
) -> DataFrame:
    """Join two streaming DataFrames, or two batch ones, by windows: every pair whose times lie close enough, once.

    The words mean what they mean in `watersmeet.window_join`: with `window=("10 min", "1 min")`, a left row meets right
    rows that are at most ten minutes younger or one minute older. A pair is found in the batch that brings its second
    row. What has left its window is forgotten, so state stays bounded; what does not fit into `memory` is on disk.

    The rows of a batch have no order but that of their times. Before each batch, an input has come as far as its newest
    row in all batches before; a row that is older than that by more than `lateness` is late. Rows without a time meet
    nothing. In batch DataFrames nothing is late.

    :param on: a column of both inputs, `"left_column = right_column"`, or a list of these; a band may stand beside
        them.
    :param time: the column that tells the time, `"left_column = right_column"` if they have different names: dates,
        timestamps or integers.
    :param window: `"10 min"`, or for a column of integers a number; `watersmeet.landmark("1 day")`, all rows since the
        last midnight (UTC); `watersmeet.age("1 min", "10 min")`, rows that are so old. Two of them, for the left and
        the right input, if they differ. Windows of so many rows are not for Spark.
    :param slide: windows move by so much at once, and keep rows until then.
    :param lateness: by so much a row may be older than the newest of its input in the batches before.
    :param late: what becomes of rows that are later still: `"keep"` lets them meet what has not expired, `"drop"`
        ignores them, `"error"` ends the query. They are counted in the progress, as `left_late` and `right_late`.
    :param memory: bytes, or words such as `"512 MiB"`, that each task may hold; windows that are larger are on disk,
        and are read once in every batch.
    :param state: a directory that all workers reach under this path, or an address that PyArrow has a file system for,
        such as `s3://bucket/state`; streams need one, batch DataFrames none.
    :param partitions: how many tasks share the keys, for good; `spark.sql.shuffle.partitions` unless given.
    :param suffixes: added to columns that both inputs have and that are not joined on.
    :param algorithm: `"auto"`, `"ah_ewj"`, `"ewj"` or, for windows that fit into memory, `"symmetric_window"`.
    :param delays: of timestamps: the progress has the delays of results, from the time of the later row to when the
        pair was found (`left_delay_p50_ms` and so on, by that row's input).
    :param cache: of state at an address: how much of it a machine keeps on its own disk, in Spark's local directory.
    """
    streaming = is_streaming(left, right)
    left, right = (
        signs_last(frame, keep=False) if has_signs(frame, name) else frame
        for frame, name in zip((left, right), NAMES, strict=True)
    )
    schemas = plain_schemas(left, right)
    arrow = [arrow_schema(schema, name) for schema, name in zip(schemas, NAMES, strict=True)]
    windows = parse_windows(window, time, slide, lateness, late)
    spec = WindowJoinSpec(arrow[0], arrow[1], parse_on(on), suffixes=suffixes, names=NAMES, window=windows)
    budget = parse_memory(memory)
    factory = WindowFactory.of(spec, Shares.of(budget).operator, algorithm)
    Shares.check(budget, factory.least_memory())
    directory = state_path(state, streaming)
    groups = group_count(left, partitions, spec)
    told = windows.time
    assert told is not None, "windows of rows were refused"
    times = [[schema.names.index(name)] for schema, name in zip(arrow, told, strict=True)]
    tagging = Tagging(schemas, key_columns(spec, schemas), groups, needed=tuple(times), wakes=streaming)
    results = output_schema(spec, schemas)
    delayed = _delay_columns(spec, told) if delays else None
    task = WindowTask(
        factory, tagging.layout, budget, groups, directory, retained_batches(left), delayed, parse_memory(cache)
    )
    rows = tagging.shuffled(left, right, carry_sign=False)
    run = portable(task, left.sparkSession)
    if directory is None:
        return rows.mapInArrow(run, results)
    measured = rows.mapInArrow(run, with_measures(results))
    return observed(measured, Path(directory).name, budget, figure_names(late=True), SIDES if delayed else ())


def _delay_columns(spec: WindowJoinSpec, time: tuple[str, str]) -> tuple[str, str] | None:
    if not all(pa.types.is_timestamp(type_) for type_ in spec.time_types):
        raise SpecError(f"delays are told by timestamps, and the times are {spec.time_types[0]}; leave delays= out")
    return time_columns(spec, time)
