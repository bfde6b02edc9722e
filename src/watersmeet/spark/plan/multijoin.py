"""`watersmeet.spark.multijoin`: several inputs joined in one operator."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as st

from watersmeet.core.errors import SpecError
from watersmeet.core.many_windows import ManyWindows, parse_many_windows
from watersmeet.core.multi_spec import ManyOn, MultiSpec, input_names
from watersmeet.core.windows import Span
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.memory import parse_memory
from watersmeet.spark.io.source import EVENT
from watersmeet.spark.plan.control_rows import has_signs, signs_last
from watersmeet.spark.plan.grid import MOST_COPIES, Grid, grid_for, values_of
from watersmeet.spark.plan.grouping import check_collation
from watersmeet.spark.plan.inputs import (
    FUEL,
    checked_fuel,
    checked_partitions,
    plain_schemas,
    retained_batches,
    state_path,
    with_measures,
)
from watersmeet.spark.plan.multi_recipe import MultiFactory
from watersmeet.spark.plan.tagging import Tagging, places_by_id
from watersmeet.spark.plan.types import arrow_schema
from watersmeet.spark.state.remote import CACHE_BYTES
from watersmeet.spark.task.figures import figure_names, observed
from watersmeet.spark.task.operator_group import Shares
from watersmeet.spark.task.operator_task import OperatorTask
from watersmeet.spark.task.settled_group import check_memory
from watersmeet.spark.task.window_task import WindowTask
from watersmeet.spark.task.worker import portable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def multijoin(
    inputs: Mapping[str, DataFrame],
    on: ManyOn,
    *,
    window: object = None,
    time: object = None,
    lateness: Span | None = None,
    late: str = "keep",
    idle: Span | float | None = None,
    how: Mapping[str, str] | str = "inner",
    memory: str | int = "512 MiB",
    state: str | os.PathLike[str] | None = None,
    partitions: int | None = None,
    algorithm: str = "auto",
    fuel: int = FUEL,
    cache: str | int = CACHE_BYTES,
) -> DataFrame:
    """Join several DataFrames in one operator, without intermediate results: all batch ones, or all streams.

    Every result comes once, in the batch that brings the last of its rows. Without windows all rows are kept, on disk,
    however far apart those of a result come; *streams that end*, each with a column `watersmeet_event` (see
    `watersmeet.spark.with_events`), forget rows that wait for nothing but inputs that have ended. With an `algorithm`
    of the literature, and by bands, streams that end are joined progressively: rows stay in memory as long as they fit
    and wait on disk when they do not; what they lead to is found with what is left of each batch's `fuel`, and the rest
    in the batch that brings the last end.

    With `window`, a combination of rows is a result if its conditions hold and, at the time of its newest row, each of
    its rows is in its input's window; what has left its window is forgotten. Before each batch, an input has come as
    far as its newest row in all batches before; a row that is older than that by more than `lateness` is late. Rows
    without a time meet nothing. In batch DataFrames nothing is late.

    Rows are sent to tasks by the value that all inputs are joined on, such as an id. Where they are joined on several
    values, tasks are a grid with an axis for each; a row is copied along the axes whose value its input has not, so
    that few tasks are made unless `partitions` says how many. Where no value is shared (bands alone), all rows go to
    one task.

    A column keeps its name in the result if no other input has one of that name; else it is called `input_column`.
    Columns of one name that must be equal come out once.

    :param inputs: by name.
    :param on: conditions such as `"orders.id = items.order_id"` or `watersmeet.band("trades.at = quotes.at", width)`,
        enough of them to hold all inputs together. Bands are for batch DataFrames and for streams that end.
    :param window: `"10 min"`, or for columns of integers a number; one for all inputs, or a dict with one for each.
    :param time: of windows: the column that tells the time, or a dict with one for each input: dates, timestamps or
        integers.
    :param lateness: by so much a row may be older than the newest of its input in the batches before.
    :param late: what becomes of rows that are later still: `"keep"` lets them meet what has not expired, `"drop"`
        ignores them, `"error"` ends the query. They are counted in the progress, as `NAME_late`.
    :param idle: after so long, `"30 s"` or seconds, an input that says nothing while another does no longer holds back
        the others: it counts as having come as far as the one of them that had come least far before the batch, until
        it speaks. What it then says may be late. Time is that of the micro-batches, when each began.
    :param how: of batch DataFrames and streams that end: `{"orders": "left"}` for one input whose rows come out in any
        case, with NULLs beside those that are in no result, as soon as the other inputs have ended; `"inner"`: for
        none.
    :param memory: bytes, or words such as `"512 MiB"`, that each task may hold; more rows in a batch go to disk.
    :param state: of streams: a directory that all workers reach under this path, or an address that PyArrow has a file
        system for.
    :param partitions: how many tasks share the rows at most, for good; `spark.sql.shuffle.partitions` unless given. Of
        the grids with so many it is the one whose tasks have the fewest rows if all inputs are equally large. Where
        rows are copied and it is not given, it is no more than keeps a row one and a half times, on average.
    :param algorithm: of streams that end, and of batch DataFrames: one of `watersmeet.multijoin`'s.
    :param fuel: with an algorithm of the literature: units of work (a row probed, inserted or emitted) that a group may
        use in a batch; rows that arrive and the work after the last end are done in any case.
    :param cache: of state at an address: how much of it a machine keeps on its own disk, in Spark's local directory.
    """
    names, frames = input_names(inputs), list(inputs.values())
    streaming = _are_streams(names, frames)
    windows = None
    if window is not None:
        windows = parse_many_windows(window, names, time, lateness, late, idle)
    elif any(given is not None for given in (time, lateness, idle)):
        raise SpecError("time=, lateness= and idle= are for joins by windows; add window=, or leave them out")
    signs = tuple(has_signs(frame, name) for name, frame in inputs.items())
    # Of windows, ends are none of their concern, and signs of life tell how far an input has come.
    ends = windows is None and _all_end(names, signs, streaming)
    keep = streaming and (ends or windows is not None)
    frames = [signs_last(frame, keep=keep) if has else frame for frame, has in zip(frames, signs, strict=True)]
    schemas = plain_schemas(*frames)
    arrow = {name: arrow_schema(schema, name) for name, schema in zip(names, schemas, strict=True)}
    spec = MultiSpec.of(arrow, on, window=windows, how=how)
    if streaming and not ends and windows is None:
        _refuse_endless(spec, algorithm)
    plan = _Plan(schemas, MultiFactory.of(spec, algorithm), parse_memory(memory), state_path(state, streaming))
    grid = _grid(spec, frames[0], partitions)
    groups = grid.groups
    if windows is None:
        tagging = plan.tagging(grid, signs=ends)
        check_memory(plan.memory, plan.factory)
        task: Any = OperatorTask(
            plan.factory, tagging.layout, plan.memory, groups, checked_fuel(fuel), plan.state,
            retained_batches(frames[0]), None, parse_memory(cache), ends, places_by_id(),
        )  # fmt: skip
    else:
        ticks = signs if streaming else ()
        timed = streaming and windows.idle is not None
        tagging = plan.tagging(grid, wakes=streaming, ticks=ticks, needed=plan.needed(windows), timed=timed)
        Shares.check(plan.memory, plan.factory.least_memory())
        task = WindowTask(
            plan.factory, tagging.layout, plan.memory, groups, plan.state, retained_batches(frames[0]), None,
            parse_memory(cache), numbered=places_by_id(),
        )  # fmt: skip
    rows, results = tagging.shuffled(*frames, carry_sign=ends), plan.results
    run = portable(task, frames[0].sparkSession)
    if plan.state is None:
        return rows.mapInArrow(run, results)
    measured, told = rows.mapInArrow(run, with_measures(results)), figure_names(names, late=windows is not None)
    return observed(measured, plan.state, plan.memory, told)


@dataclass(frozen=True)
class _Plan:
    """A join of several DataFrames, checked."""

    schemas: tuple[st.StructType, ...]
    factory: MultiFactory
    memory: int
    state: str | None

    def tagging(self, grid: Grid, **told: Any) -> Tagging:
        """How rows are tagged and sent to their groups."""
        spec = self.factory.spec
        keys = tuple(
            [column for axis in grid.axes for column in axis.columns[number]] for number in range(len(spec.names))
        )
        for name, schema, positions in zip(spec.names, self.schemas, keys, strict=True):
            for position in positions:
                check_collation(schema.fields[position].dataType, schema.names[position], name)
        preserved = tuple(number == spec.preserved for number in range(len(spec.names)))
        return Tagging(self.schemas, keys, grid.groups, preserved=preserved, grid=grid, **told)

    def needed(self, windows: ManyWindows) -> tuple[list[int], ...]:
        """The columns of each input without which a row is in no result: its time, and all that it is joined on.

        Such rows are left out before they are sent, so that which rows tell the time does not depend on the grid.
        """
        assert windows.time is not None
        names = ([time, *self.factory.spec.keys(number)] for number, time in enumerate(windows.time))
        return tuple(
            [schema.names.index(name) for name in own] for schema, own in zip(self.schemas, names, strict=True)
        )

    @property
    def results(self) -> st.StructType:
        """The schema of what comes out."""
        spec = self.factory.spec
        types = [self.schemas[number].fields[i].dataType for number, kept in enumerate(spec.kept) for i in kept]
        return st.StructType(
            [st.StructField(name, type_) for name, type_ in zip(spec.schema.names, types, strict=True)]
        )


def _are_streams(names: Sequence[str], frames: Sequence[DataFrame]) -> bool:
    streams = [name for name, frame in zip(names, frames, strict=True) if frame.isStreaming]
    if streams and len(streams) < len(names):
        others = [name for name in names if name not in streams]
        raise SpecError(
            f"{', '.join(streams)}: read with readStream, and {', '.join(others)}: with read; read all in one way"
        )
    return bool(streams)


def _all_end(names: Sequence[str], signs: Sequence[bool], streaming: bool) -> bool:
    """Whether streams say when they end, all of them or none."""
    if streaming and any(signs) and not all(signs):
        without = ", ".join(name for name, has in zip(names, signs, strict=True) if not has)
        ending = ", ".join(name for name, has in zip(names, signs, strict=True) if has)
        raise SpecError(
            f"{ending}: says when it ends, in a column {EVENT!r}, and {without}: does not; give all of them the column "
            f"(watersmeet.spark.with_events does), or drop it from {ending}"
        )
    return streaming and all(signs)


def _refuse_endless(spec: MultiSpec, algorithm: str) -> None:
    """An error if streams that do not end cannot be joined this way."""
    instead = f"give all inputs a column {EVENT!r} that says when they end, or read them as batch DataFrames"
    if spec.preserved is not None:
        name = spec.names[spec.preserved]
        raise SpecError(
            f"how= would hold back each row of {name} that is in no result for ever, because a later row may bring "
            f"one; {instead}, or leave how= out"
        )
    if spec.has_bands:
        raise SpecError(f"bands join several inputs that end, and these streams do not say when they do; {instead}")
    if algorithm not in ("auto", ManyConfluence.name):
        raise SpecError(
            f"algorithm={algorithm!r} joins inputs that end, and these streams do not say when they do; leave "
            f"algorithm= out, or {instead}"
        )


def _grid(spec: MultiSpec, frame: DataFrame, partitions: int | None) -> Grid:
    if not values_of(spec):
        if partitions not in (None, 1):
            raise SpecError(
                f"partitions={partitions!r} cannot be: bands alone do not say which rows can meet, so all go to one "
                f"task; leave partitions= out, or add an equality"
            )
        return grid_for(spec, 1)
    return grid_for(spec, checked_partitions(frame, partitions), MOST_COPIES if partitions is None else None)
