"""`watersmeet.spark.window_join`: endless streams joined by windows of time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as st

from watersmeet.core.errors import SpecError
from watersmeet.core.spec import Condition, On, parse_on
from watersmeet.core.windows import Span, WindowJoinSpec, WindowSpec, parse_windows
from watersmeet.memory import parse_memory
from watersmeet.spark.plan.control_rows import has_signs, signs_last
from watersmeet.spark.plan.inputs import (
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
from watersmeet.spark.plan.recipe import WindowFactory
from watersmeet.spark.plan.splitting import RoutedTagging, answered, splits_keys
from watersmeet.spark.plan.tagging import Tagging, places_by_id
from watersmeet.spark.plan.types import arrow_schema
from watersmeet.spark.rebalance.master_task import MasterTask
from watersmeet.spark.rebalance.slot_task import SlotTask
from watersmeet.spark.state.remote import CACHE_BYTES
from watersmeet.spark.task.figures import figure_names, observed
from watersmeet.spark.task.operator_group import Shares
from watersmeet.spark.task.window_task import WindowTask
from watersmeet.spark.task.worker import portable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def window_join(
    left: DataFrame,
    right: DataFrame,
    on: On | None = None,
    *,
    time: str | Sequence[str],
    window: object,
    how: str = "inner",
    slide: Span | None = None,
    lateness: Span | None = None,
    late: str | None = None,
    idle: Span | float | None = None,
    emit: str = "early",
    memory: str | int = "512 MiB",
    state: str | os.PathLike[str] | None = None,
    partitions: int | None = None,
    suffixes: tuple[str, str] = ("", "_right"),
    algorithm: str = "auto",
    delays: bool = False,
    cache: str | int = CACHE_BYTES,
    split: bool = True,
    **options: Any,
) -> DataFrame:
    """Join two streaming DataFrames, or two batch ones, by windows: every pair whose times lie close enough, once.

    The words mean what they mean in `watersmeet.window_join`: with `window=("10 min", "1 min")`, a left row meets right
    rows that are at most ten minutes younger or one minute older. A pair is found in the batch that brings its second
    row. What has left its window is forgotten, so state stays bounded; what does not fit into `memory` is on disk.

    The rows of a batch have no order but that of their times. Before each batch, an input has come as far as its newest
    row in all batches before; a row that is older than that by more than `lateness` is late. Rows without a time meet
    nothing. In batch DataFrames nothing is late.

    :param on: a column of both inputs, `"left_column = right_column"`, or a list of these; a band may stand beside
        them, or alone. Without an equality, all rows are one group, and go to one task: any two of them may meet.
    :param time: the column that tells the time, `"left_column = right_column"` if they have different names: dates,
        timestamps or integers.
    :param window: `"10 min"`, or for a column of integers a number; `watersmeet.landmark("1 day")`, all rows since the
        last midnight (UTC); `watersmeet.age("1 min", "10 min")`, rows that are so old. Two of them, for the left and
        the right input, if they differ. Windows of so many rows are not for Spark.
    :param how: `"inner"`, `"left"`, `"right"`, `"full"`, `"semi"` or `"anti"`, with columns as Spark's `join(on=...)`
        has them. A row without a partner comes with the first batch before which the other input had come so far that
        none can come any more; one without a time or a key comes at once.
    :param slide: windows move by so much at once, and keep rows until then.
    :param lateness: by so much a row may be older than the newest of its input in the batches before.
    :param late: what becomes of rows that are later still: `"keep"` lets them meet what has not expired, `"drop"`
        ignores them, `"error"` ends the query. They are counted in the progress, as `left_late` and `right_late`.
        Unless given, they are kept, or dropped if results are to be final.
    :param idle: after so long, `"30 s"` or seconds, an input that says nothing while the other does no longer holds it
        back: it counts as having come as far as the other, until it speaks. Time is that of the micro-batches: when
        each began. A row that is a `"tick"` (see `with_events`) is a sign of life, and may tell the time.
    :param emit: `"early"`: results come in the batch that brings the later row; `"final"`: in the order of their times,
        with the first batch before which both inputs had passed that time. A batch's results are later than those of
        all batches before it, and within a task they are in order.
    :param memory: bytes, or words such as `"512 MiB"`, that each task may hold; windows that are larger are on disk,
        as sorted runs: the hashes of those within a batch's reach are read, and of the rest what matches.
    :param state: a directory that all workers reach under this path, or an address that PyArrow has a file system for,
        such as `s3://bucket/state`; streams need one, batch DataFrames none. `{query}` in it stands for the query's id:
        a query that begins anew, with a new checkpoint, begins with an empty state then.
    :param partitions: how many tasks share the keys, for good; `spark.sql.shuffle.partitions` unless given.
    :param suffixes: added to columns that both inputs have and that are not joined on.
    :param algorithm: `"auto"`, which is `"confluence"`, `"ah_ewj"`, `"ewj"` or, for windows that fit into memory,
        `"symmetric_window"`.
    :param delays: of timestamps: the progress has the delays of results, from the time of the later row to when the
        pair was found (`left_delay_p50_ms` and so on, by that row's input).
    :param cache: of state at an address: how much of it a machine keeps on its own disk, in Spark's local directory.
    :param split: whether a key that outgrows its task is split from the next batch on: the rows of one side are spread
        over several tasks, those of the other are copied to all of them; of kinds of joins other than inner, after the
        length of its window. Streams joined on equalities do so on Spark 4.1 and later, but for `"full"` joins, and
        those with `idle=`, ticks or `emit="final"`.
    :param options: the algorithm's own; they are part of the state, and cannot change when the query is started again.
    """
    windows = parse_windows(window, time, slide, lateness, late, idle, emit)
    plan = PlannedWindowJoin.of(
        left, right, parse_on(on), windows, suffixes, algorithm, memory, state, options, takes_ticks=True, how=how
    )
    groups = group_count(plan.frames[0], partitions, plan.spec)
    delayed = plan.delay_columns() if delays else None
    streaming, session = plan.state is not None, left.sparkSession
    ticks = plan.ticks if streaming else ()
    if plan.state is not None and not any(ticks) and plan.gives_at_once and splits_keys(plan.spec, groups, split):
        measured = _split(plan, session, groups, delayed, parse_memory(cache))
        return observed(measured, plan.state, plan.memory, figure_names(late=True), SIDES if delayed else ())
    tagging = Tagging(
        plan.schemas, plan.keys, groups, needed=plan.times, wakes=streaming, ticks=ticks,
        timed=streaming and windows.idle is not None, preserved=plan.spec.kind.preserved,
    )  # fmt: skip
    task = WindowTask(
        plan.factory, tagging.layout, plan.memory, groups, plan.state, plan.retain, delayed, parse_memory(cache),
        numbered=places_by_id(),
    )  # fmt: skip
    rows = tagging.shuffled(*plan.frames, carry_sign=False)
    run = portable(task, session)
    if plan.state is None:
        return rows.mapInArrow(run, plan.results)
    measured = rows.mapInArrow(run, with_measures(plan.results))
    return observed(measured, str(plan.state), plan.memory, figure_names(late=True), SIDES if delayed else ())


def _split(
    plan: PlannedWindowJoin, session: Any, groups: int, delayed: tuple[str, str] | None, cache: int
) -> DataFrame:
    """The same with hot keys split, and figures."""
    assert plan.state is not None
    master = MasterTask(
        plan.spec, plan.factory.fingerprint, groups, (groups, groups), 0.0, plan.state, plan.retain,
        plan.factory.described(), moves=False, grows=plan.factory.grows,
    )  # fmt: skip
    tagging = RoutedTagging(
        plan.schemas, plan.keys, groups, needed=plan.times, wakes=True, preserved=plan.spec.kind.preserved
    )
    task = SlotTask(
        plan.factory, tagging.layout, plan.memory, groups, plan.state, plan.retain, delayed, cache, numbered=True,
        moves=False, made=master.made,
    )  # fmt: skip
    rows = tagging.routed(*plan.frames, answered(master, session), groups, moves=False)
    return rows.mapInArrow(portable(task, session), with_measures(plan.results))


@dataclass(frozen=True)
class PlannedWindowJoin:
    """A window join of two DataFrames, checked: what any way to run it on Spark needs to know."""

    frames: tuple[DataFrame, DataFrame]
    schemas: tuple[st.StructType, ...]
    factory: WindowFactory
    memory: int
    state: str | None
    """Where state is kept; None for batch DataFrames, which keep none."""
    retain: int
    ticks: tuple[bool, ...] = (False, False)
    """Which inputs have a column of signs behind all others."""

    @classmethod
    def of(
        cls,
        left: DataFrame,
        right: DataFrame,
        on: tuple[Condition, ...],
        windows: WindowSpec,
        suffixes: tuple[str, str],
        algorithm: str,
        memory: str | int,
        state: str | os.PathLike[str] | None,
        options: Mapping[str, Any],
        takes_ticks: bool = False,
        how: str = "inner",
    ) -> PlannedWindowJoin:
        """Check what was asked for."""
        streaming = is_streaming(left, right)
        signs = tuple(has_signs(frame, name) for frame, name in zip((left, right), NAMES, strict=True))
        takes_ticks = takes_ticks and streaming
        left, right = (
            signs_last(frame, keep=takes_ticks) if signed else frame
            for frame, signed in zip((left, right), signs, strict=True)
        )
        ticks = signs if takes_ticks else (False, False)
        schemas = plain_schemas(left, right)
        arrow = [arrow_schema(schema, name) for schema, name in zip(schemas, NAMES, strict=True)]
        spec = WindowJoinSpec(arrow[0], arrow[1], on, how, suffixes=suffixes, names=NAMES, window=windows)
        budget = parse_memory(memory)
        factory = WindowFactory.of(spec, Shares.of(budget).operator, algorithm, options)
        Shares.check(budget, factory.least_memory())
        path = state_path(state, streaming)
        return cls((left, right), schemas, factory, budget, path, retained_batches(left), ticks)

    @property
    def spec(self) -> WindowJoinSpec:
        """What is joined."""
        return self.factory.spec

    @property
    def gives_at_once(self) -> bool:
        """Whether results come as they are found, and no clock matters."""
        return self.spec.window.emit == "early" and self.spec.window.idle is None

    @property
    def keys(self) -> tuple[list[int], list[int]]:
        """The key columns of each side, by position."""
        return key_columns(self.spec, self.schemas)

    @property
    def times(self) -> tuple[list[int], ...]:
        """The column of each side that tells the time."""
        return tuple([schema.names.index(name)] for schema, name in zip(self.schemas, self._time, strict=True))

    @property
    def results(self) -> st.StructType:
        """The schema of what comes out."""
        return output_schema(self.spec, self.schemas)

    @property
    def _time(self) -> tuple[str, str]:
        found = self.spec.window.time
        assert found is not None, "windows of rows were refused"
        return found

    def delay_columns(self) -> tuple[str, str] | None:
        """The columns of the results from which delays are counted; an error if they are not timestamps."""
        types = self.spec.time_types
        if not all(pa.types.is_timestamp(type_) for type_ in types):
            raise SpecError(f"delays are told by timestamps, and the times are {types[0]}; leave delays= out")
        return time_columns(self.spec, self._time)
