"""`watersmeet.spark.asof_join`: each row of a stream with the nearest by time of another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql import types as st

from watersmeet.core.asof import UNLIMITED, AsofSpec, Lateness, parse_asof
from watersmeet.core.bands import Width
from watersmeet.core.errors import SpecError
from watersmeet.core.spec import On, parse_on
from watersmeet.memory import parse_memory
from watersmeet.spark.plan.control_rows import has_signs, signs_last
from watersmeet.spark.plan.inputs import (
    NAMES,
    group_count,
    is_streaming,
    key_columns,
    output_schema,
    plain_schemas,
    retained_batches,
    state_path,
    with_measures,
)
from watersmeet.spark.plan.recipe import AsofFactory
from watersmeet.spark.plan.tagging import Tagging, places_by_id
from watersmeet.spark.plan.types import arrow_schema
from watersmeet.spark.state.remote import CACHE_BYTES
from watersmeet.spark.task.figures import figure_names, observed
from watersmeet.spark.task.operator_group import Shares
from watersmeet.spark.task.window_task import AsofTask
from watersmeet.spark.task.worker import portable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def asof_join(
    left: DataFrame,
    right: DataFrame,
    on: On | None = None,
    *,
    time: str | Sequence[str],
    direction: str = "backward",
    tolerance: Width | str | None = None,
    how: str = "inner",
    lateness: Lateness | tuple[Lateness, Lateness] = None,
    late: str = "keep",
    memory: str | int = "512 MiB",
    state: str | os.PathLike[str] | None = None,
    partitions: int | None = None,
    suffixes: tuple[str, str] = ("", "_right"),
    cache: str | int = CACHE_BYTES,
) -> DataFrame:
    """Join each row of the left DataFrame with the one row of the right that is nearest by time, among its key's.

    The words mean what they mean in `watersmeet.asof_join`. In streams, a left row is answered in the batch in which
    the right input is known to have passed it: by rows of its own group in the same batch, or by any rows of the
    batches before. In batch DataFrames everything is known, and nothing is late.

    The rows of a batch have no order but that of their times. Of right rows of one key and time the last batch's count,
    looking forward the first's, and within a batch one that their values decide.

    :param on: a column of both inputs, `"left_column = right_column"`, or a list of these; None: all rows are on one
        timeline, and go to one task.
    :param time: the column that tells the time, `"left_column = right_column"` if they have different names:
        timestamps, dates, integers, floats or decimals.
    :param direction: `"backward"`, `"forward"` or `"nearest"`.
    :param tolerance: right rows further away than this do not count: `"5 s"`, or a number where times are numbers.
    :param how: `"inner"`, or `"left"`: left rows without a partner come with NULLs.
    :param lateness: of streams: by so much a row may be older than the newest of its input in the batches before, 0
        unless given; one for both inputs, or two.
    :param late: what becomes of left rows that are later still: `"keep"` answers them if what is remembered proves the
        answer, else as rows without a partner; `"drop"` ignores them, `"error"` ends the query. Right rows that are
        later are never used. They are counted in the progress, as `left_late` and `right_late`.
    :param memory: bytes, or words such as `"512 MiB"`, that each task may hold; the rest is on disk.
    :param state: a directory that all workers reach under this path, or an address that PyArrow has a file system for,
        such as `s3://bucket/state`; streams need one, batch DataFrames none. `{query}` in it stands for the query's id:
        a query that begins anew, with a new checkpoint, begins with an empty state then.
    :param partitions: how many tasks share the keys, for good; `spark.sql.shuffle.partitions` unless given.
    :param suffixes: added to columns that both inputs have and that are not joined on.
    :param cache: of state at an address: how much of it a machine keeps on its own disk, in Spark's local directory.
    """
    times = parse_asof(time, direction, tolerance, lateness, late)
    streaming = is_streaming(left, right)
    if streaming and (lateness == UNLIMITED or (isinstance(lateness, tuple) and UNLIMITED in lateness)):
        raise SpecError("a stream has no end for a row of any age to wait for; say by how much rows may come late")
    # Batches are sorted by time, so nothing of a batch DataFrame is late.
    allowed = tuple(0 if span is None or not streaming else span for span in times.lateness)
    times = replace(times, lateness=(allowed[0], allowed[1]))
    left, right = (
        signs_last(frame, keep=False) if has_signs(frame, name) else frame
        for frame, name in zip((left, right), NAMES, strict=True)
    )
    schemas = plain_schemas(left, right)
    arrow = [arrow_schema(schema, name) for schema, name in zip(schemas, NAMES, strict=True)]
    spec = AsofSpec(arrow[0], arrow[1], parse_on(on), how, suffixes=suffixes, names=NAMES, times=times)
    budget, factory = parse_memory(memory), AsofFactory(spec)
    Shares.check(budget, factory.least_memory())
    place = state_path(state, streaming)
    keys, moments = key_columns(spec, schemas), _time_columns(spec, schemas)
    groups = group_count(left, partitions, spec)
    tagging = Tagging(schemas, keys, groups, needed=moments, wakes=place is not None)
    task = AsofTask(
        factory, tagging.layout, budget, groups, place, retained_batches(left), None, parse_memory(cache),
        numbered=places_by_id(),
    )  # fmt: skip
    frames = [_told(frame, schemas[side], moments[side]) for side, frame in enumerate((left, right))]
    rows = tagging.shuffled(*frames, carry_sign=False)
    run, results = portable(task, left.sparkSession), output_schema(spec, schemas)
    if place is None:
        answered = rows.mapInArrow(run, results)
    else:
        measured = rows.mapInArrow(run, with_measures(results))
        answered = observed(measured, place, budget, figure_names(late=True), ())
    if how == "inner":
        return answered
    return answered.union(_without_partner(left, schemas[0], [*keys[0], *moments[0]], results))


def _time_columns(spec: AsofSpec, schemas: Sequence[st.StructType]) -> tuple[list[int], ...]:
    return tuple([schema.names.index(name)] for schema, name in zip(schemas, spec.times.time, strict=True))


def _is_number(schema: st.StructType, column: int) -> bool:
    return isinstance(schema.fields[column].dataType, st.DoubleType | st.FloatType)


def _told(frame: DataFrame, schema: st.StructType, moments: Sequence[int]) -> DataFrame:
    """Rows whose time is not NaN: that is no time."""
    for column in moments:
        if _is_number(schema, column):
            frame = frame.where(~fn.isnan(_column(frame, schema, column)))
    return frame


def _column(frame: DataFrame, schema: st.StructType, column: int) -> Column:
    return frame[f"`{schema.names[column]}`"]


def _without_partner(
    left: DataFrame, schema: st.StructType, needed: Sequence[int], results: st.StructType
) -> DataFrame:
    """Left rows that have no key or no time, and so no partner: they need no task."""
    lacking = [_column(left, schema, column).isNull() for column in dict.fromkeys(needed)]
    if _is_number(schema, needed[-1]):
        lacking.append(fn.isnan(_column(left, schema, needed[-1])))
    alone = left.where(reduce(lambda one, other: one | other, lacking))
    own = [_column(alone, schema, i) for i in range(len(schema.fields))]
    others = [fn.lit(None).cast(field.dataType) for field in results.fields[len(schema.fields) :]]
    named = zip([*own, *others], results.names, strict=True)
    return alone.select(*(column.alias(name) for column, name in named))
