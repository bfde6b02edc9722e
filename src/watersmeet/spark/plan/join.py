"""`watersmeet.spark.join`: the plan of a join, made of Spark's own steps around one of ours."""

from __future__ import annotations

import os
import time as clock
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from watersmeet.core.errors import SpecError
from watersmeet.core.kinds import refuse_endless
from watersmeet.core.promises import Promises
from watersmeet.core.spec import JoinSpec, On, parse_on
from watersmeet.joins.confluence import Confluence
from watersmeet.memory import parse_memory
from watersmeet.spark.io.source import EVENT
from watersmeet.spark.plan.control_rows import has_signs, signs_last
from watersmeet.spark.plan.inputs import (
    FUEL,
    NAMES,
    SIDES,
    checked_fuel,
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
from watersmeet.spark.plan.recipe import JoinFactory
from watersmeet.spark.plan.splitting import RoutedTagging, answered, splits_keys
from watersmeet.spark.plan.tagging import Tagging, places_by_id
from watersmeet.spark.plan.types import arrow_schema
from watersmeet.spark.rebalance.master_task import MasterTask
from watersmeet.spark.state.remote import CACHE_BYTES
from watersmeet.spark.task.figures import figure_names, observed
from watersmeet.spark.task.operator_task import OperatorTask, SplitTask
from watersmeet.spark.task.punctuations import read_promises
from watersmeet.spark.task.settled_group import check_memory
from watersmeet.spark.task.worker import portable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def join(
    left: DataFrame,
    right: DataFrame,
    on: On,
    *,
    how: str = "inner",
    memory: str | int = "512 MiB",
    state: str | os.PathLike[str] | None = None,
    partitions: int | None = None,
    suffixes: tuple[str, str] = ("", "_right"),
    algorithm: str = "auto",
    fuel: int = FUEL,
    time: str | tuple[str, str] | None = None,
    promises: Mapping[str, Mapping[str, Any]] | None = None,
    cache: str | int = CACHE_BYTES,
    split: bool = True,
) -> DataFrame:
    """Join two streaming DataFrames, or two batch DataFrames: every pair exactly once.

    All rows are kept, on disk, and a pair is found in the batch that brings its second row, however far apart the two
    come. *Streams that end*, each with a column `watersmeet_event` (see `wms.with_events`), forget rows that wait for
    nothing but an input that has ended; and with an `algorithm` of the literature they are joined progressively: rows
    stay in memory as long as they fit and wait on disk when they do not; their pairs are found with what is left of
    each batch's `fuel`, and the rest in the batch that brings the last end. How many rows a batch takes is the sources'
    part: `maxFilesPerTrigger` of Spark's file source, `rowsPerBatch` of ours.

    State is written before a batch ends and is tied to the query's checkpoint: a query that is started again goes on
    where it was, and one that is started without its state, or with another one, says so.

    What each batch of a stream did is in its progress: `watersmeet.spark.figures` takes the rows of each input,
    results, memory, bytes written and spilled, the rows and bytes of the state (of the groups that had rows in the
    batch), and more out of `observedMetrics["watersmeet NAME"]["figures"]`, NAME being the state directory's,
    and `watersmeet.spark.Watch` draws it.

    :param how: `"inner"`, `"left"`, `"right"`, `"full"`, `"semi"` or `"anti"`, with columns as Spark's `join(on=...)`
        has them. A row without a partner comes in the batch that brings the other input's end, and later ones at once;
        or, with `promises`, in the batch that brings a punctuation of its key. Of streams without a column
        `watersmeet_event` only `"inner"` and `"semi"` can be had.
    :param on: a column of both inputs, `"left_column = right_column"`, a `watersmeet.band`, a `watersmeet.near`, or a
        list of these. With a band or near alone, all rows go to one task; add an equality where there is one.
    :param memory: bytes, or words such as `"512 MiB"`, that each task may hold; more rows in a batch go to disk.
    :param state: a directory that all workers reach under this path, or an address that PyArrow has a file system for,
        such as `s3://bucket/state`; streams need one, batch DataFrames none. `{query}` in it stands for the query's id:
        a query that begins anew, with a new checkpoint, begins with an empty state then.
    :param partitions: how many tasks share the keys, for good; `spark.sql.shuffle.partitions` unless given.
    :param suffixes: added to columns that both inputs have and that are not joined on.
    :param algorithm: of streams that end, and of batch DataFrames: one of `watersmeet.join`'s.
    :param fuel: with an algorithm of the literature: units of work (a row probed, inserted or emitted) that a group may
        use in a batch; rows that arrive and the work after the last end are done in any case.
    :param time: a timestamp column of both inputs, or one of each: the progress then has the delays of results, from
        the time of the later row to when the pair was found (`left_delay_p50_ms` and so on, by that row's input).
    :param promises: of streams with a column `watersmeet_event`: what the inputs promise, such as
        `{"left": {"unique": "id"}, "right": {"punctuated": True}}`, in the words of `watersmeet.source`. Rows that will
        find no more partners are then forgotten.
    :param cache: of state at an address: how much of it a machine keeps on its own disk, in Spark's local directory.
    :param split: whether a key that outgrows its task is split from the next batch on, and for good: the rows of one
        side are spread over several tasks, those of the other are copied to all of them. Streams joined on equalities
        by our own algorithm, without promises, do so on Spark 4.1 and later, but for `"full"` joins.
    """
    streaming = is_streaming(left, right)
    ends = _both_end(left, right)
    if ends:
        left, right = (signs_last(frame, keep=streaming) for frame in (left, right))
    schemas = plain_schemas(left, right)
    arrow = [arrow_schema(schema, name) for schema, name in zip(schemas, NAMES, strict=True)]
    told = _checked_promises(promises, streaming and ends)
    spec = JoinSpec(arrow[0], arrow[1], parse_on(on), how=how, suffixes=suffixes, names=NAMES, promises=told)
    if streaming and not ends:
        refuse_endless(
            spec.kind,
            "streams that do not end",
            f"batch DataFrames, or streams with a column {EVENT!r} that say when they end",
        )
    factory = _factory(spec, algorithm, streaming, ends)
    budget = parse_memory(memory)
    directory = state_path(state, streaming)
    groups = group_count(left, partitions, spec)
    signed = ends and streaming
    splits = directory is not None and factory.settles and not any(told) and splits_keys(spec, groups, split)
    kind = RoutedTagging if splits else Tagging
    tagging = kind(schemas, key_columns(spec, schemas), groups, signed, preserved=spec.kind.preserved)
    times = time_columns(spec, time)
    check_memory(budget, factory)
    retain, session, made = retained_batches(left), left.sparkSession, clock.time_ns()
    task = (SplitTask if splits else OperatorTask)(
        factory, tagging.layout, budget, groups, checked_fuel(fuel), directory, retain, times, parse_memory(cache),
        signed, places_by_id(), made,
    )  # fmt: skip
    if splits:
        assert isinstance(tagging, RoutedTagging)
        assert directory is not None
        master = MasterTask(
            spec, factory.fingerprint, groups, (groups, groups), 0.0, directory, retain, factory.described(),
            moves=False, grows=True, made=made,
        )  # fmt: skip
        rows = tagging.routed(left, right, answered(master, session), groups, moves=False)
    else:
        rows = tagging.shuffled(left, right, carry_sign=signed)
    results, run = output_schema(spec, schemas), portable(task, session)
    if directory is None:
        return rows.mapInArrow(run, results)
    measured = rows.mapInArrow(run, with_measures(results))
    return observed(measured, str(directory), budget, figure_names(), SIDES if times else ())


def _both_end(left: DataFrame, right: DataFrame) -> bool:
    """Whether the inputs say when they end."""
    found = [has_signs(frame, name) for frame, name in zip((left, right), NAMES, strict=True)]
    if found[0] != found[1]:
        one, other = NAMES if found[0] else NAMES[::-1]
        raise SpecError(
            f"{one} says when it ends, in its column {EVENT!r}, and {other} does not; give both the column "
            f"(watersmeet.spark.with_events does), or drop it from {one}"
        )
    return found[0]


def _checked_promises(promises: Mapping[str, Mapping[str, Any]] | None, are_told: bool) -> tuple[Promises, Promises]:
    found = read_promises(promises)
    if any(found) and not are_told:
        raise SpecError(
            f"promises are for streams with a column {EVENT!r}, which brings punctuations and ends; give both inputs "
            f"the column (watersmeet.spark.with_events and with_punctuations do), or leave promises= out"
        )
    return found


def _factory(spec: JoinSpec, algorithm: str, streaming: bool, ends: bool) -> JoinFactory:
    """What makes the operators of a join."""
    if streaming and not ends and algorithm not in ("auto", Confluence.name):
        raise SpecError(
            f"algorithm={algorithm!r} joins inputs that end, and these streams do not say when they do; leave "
            f"algorithm= out, or give both a column {EVENT!r}"
        )
    return JoinFactory.of(spec, algorithm)
