"""`watersmeet.spark.join`: the plan of a join, made of Spark's own steps around one of ours."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as st

from watersmeet.core.errors import SpecError
from watersmeet.core.spec import JoinSpec, On, parse_on
from watersmeet.memory import parse_memory
from watersmeet.spark.arrow_types import arrow_schema
from watersmeet.spark.grouping import check_collation
from watersmeet.spark.join_factory import JoinFactory
from watersmeet.spark.metrics import COLUMN, observed
from watersmeet.spark.operator_group import Shares
from watersmeet.spark.operator_task import OperatorTask
from watersmeet.spark.remote_files import CACHE_BYTES, RemotePath, is_remote
from watersmeet.spark.signs import has_signs, signs_last
from watersmeet.spark.sizes import Sizes
from watersmeet.spark.source import EVENT
from watersmeet.spark.tagging import Tagging
from watersmeet.spark.task import JoinTask
from watersmeet.spark.workers import portable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FUEL = 2_000_000
"""Units of work for one group in one batch: about a third of a second."""
_NAMES = ("the left input", "the right input")
_FIGURES = st.ArrayType(st.LongType())


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
    cache: str | int = CACHE_BYTES,
) -> DataFrame:
    """Join two streaming DataFrames, or two batch DataFrames: every pair exactly once.

    *Endless streams*: all rows are kept, on disk, and a pair is found in the batch that brings its second row, however
    far apart the two come. *Streams that end*, each with a column `watersmeet_event` (see `watersmeet.spark.signs`),
    are joined progressively: rows are kept in memory as long as they fit and wait on disk when they do not; their
    pairs are found with what is left of each batch's `fuel`, and the rest in the batch that brings the last end. How
    many rows a batch takes is the sources' part: `maxFilesPerTrigger` of Spark's file source, `rowsPerBatch` of ours.

    State is written before a batch ends and is tied to the query's checkpoint: a query that is started again goes on
    where it was, and one that is started without its state, or with another one, says so.

    What each batch of a stream did is in its progress: `watersmeet.spark.figures` takes the rows of each input,
    results, memory, bytes written and spilled, the rows and bytes of the state (of the groups that had rows in the
    batch), and more out of `observedMetrics["watersmeet NAME"]`, NAME being the state directory's, and
    `watersmeet.spark.Watch` draws it.

    :param on: a column of both inputs, `"left_column = right_column"`, a `watersmeet.band`, or a list of these. With a
        band alone, all rows go to one task; add an equality where there is one.
    :param memory: bytes, or words such as `"512 MiB"`, that each task may hold; more rows in a batch go to disk.
    :param state: a directory that all workers reach under this path, or an address that PyArrow has a file system for,
        such as `s3://bucket/state`; streams need one, batch DataFrames none.
    :param partitions: how many tasks share the keys, for good; `spark.sql.shuffle.partitions` unless given.
    :param suffixes: added to columns that both inputs have and that are not joined on.
    :param algorithm: of streams that end, and of batch DataFrames: one of `watersmeet.join`'s.
    :param fuel: of streams that end: units of work (a row probed, inserted or emitted) that a group may use in a batch;
        rows that arrive and the work after the last end are done in any case.
    :param time: a timestamp column of both inputs, or one of each: the progress then has the delays of results, from
        the time of the later row to when the pair was found (`left_delay_p50_ms` and so on, by that row's input).
    :param cache: of state at an address: how much of it a machine keeps on its own disk, in Spark's local directory.
    """
    streaming = _is_streaming(left, right)
    ends = _both_end(left, right)
    if ends:
        left, right = (signs_last(frame, keep=streaming) for frame in (left, right))
    schemas = _schemas(left, right)
    arrow = [arrow_schema(schema, name) for schema, name in zip(schemas, _NAMES, strict=True)]
    spec = JoinSpec(arrow[0], arrow[1], parse_on(on), how=how, suffixes=suffixes, names=_NAMES)
    factory = _factory(spec, algorithm, streaming, ends)
    budget = parse_memory(memory)
    directory = _state_path(state, streaming)
    groups = _groups(left, partitions, spec)
    tagging = Tagging(schemas, _keys(spec, schemas), groups, ends and streaming)
    retain = int(left.sparkSession.conf.get("spark.sql.streaming.minBatchesToRetain") or 100)
    times = _time_columns(spec, time)
    kept = parse_memory(cache)
    task: Any
    if factory is None:
        Sizes.divide(budget)
        task = JoinTask(spec, tagging.layout, budget, groups, directory, retain, times, kept)
    else:
        Shares.check(budget, factory.least_memory())
        task = OperatorTask(
            factory, tagging.layout, budget, groups, _checked_fuel(fuel), directory, retain, times, kept
        )
    rows, results = tagging.shuffled(left, right, carry_sign=factory is not None), _output_schema(spec, schemas)
    run = portable(task, left.sparkSession)
    if directory is None:
        return rows.mapInArrow(run, results)
    measured = rows.mapInArrow(run, st.StructType([*results.fields, st.StructField(COLUMN, _FIGURES)]))
    return observed(measured, Path(directory).name, budget, delays=times is not None)


def _both_end(left: DataFrame, right: DataFrame) -> bool:
    """Whether the inputs say when they end."""
    found = [has_signs(frame, name) for frame, name in zip((left, right), _NAMES, strict=True)]
    if found[0] != found[1]:
        one, other = _NAMES if found[0] else _NAMES[::-1]
        raise SpecError(
            f"{one} says when it ends, in its column {EVENT!r}, and {other} does not; give both the column "
            f"(watersmeet.spark.with_events does), or drop it from {one}"
        )
    return found[0]


def _schemas(left: DataFrame, right: DataFrame) -> tuple[st.StructType, st.StructType]:
    """The schemas without the column of signs."""
    one, other = (
        st.StructType([field for field in frame.schema.fields if field.name != EVENT]) for frame in (left, right)
    )
    return one, other


def _factory(spec: JoinSpec, algorithm: str, streaming: bool, ends: bool) -> JoinFactory | None:
    """What makes the operators of a progressive join; None where the join of micro-batches does better."""
    factory = JoinFactory.of(spec, algorithm)
    if streaming and not ends:
        if spec.band is not None:
            raise SpecError(
                f"a join of endless streams takes equalities only: filter its result by the band, or let both "
                f"inputs say when they end, in a column {EVENT!r}"
            )
        if algorithm != "auto":
            raise SpecError(
                f"algorithm={algorithm!r} joins inputs that end, and these streams do not say when they do; leave "
                f"algorithm= out, or give both a column {EVENT!r}"
            )
        return None
    return factory if streaming or algorithm != "auto" or spec.band is not None else None


def _keys(spec: JoinSpec, schemas: Sequence[st.StructType]) -> tuple[list[int], list[int]]:
    """The key columns of each side, by position."""
    found = ([schemas[side].names.index(name) for name in spec.keys(side)] for side in (0, 1))
    keys = next(found), next(found)
    for side in (0, 1):
        for key in keys[side]:
            check_collation(schemas[side].fields[key].dataType, schemas[side].names[key], _NAMES[side])
    return keys


def _groups(frame: DataFrame, partitions: int | None, spec: JoinSpec) -> int:
    """How many groups the keys are divided into."""
    if spec.equalities:
        return _partitions(frame, partitions)
    if partitions not in (None, 1):
        raise SpecError(
            f"partitions={partitions!r} cannot be: a band alone does not say which rows can meet, so all go to one "
            f"task; leave partitions= out, or add an equality"
        )
    return 1


def _checked_fuel(fuel: int) -> int:
    if isinstance(fuel, bool) or not isinstance(fuel, int) or fuel < 0:
        raise SpecError(f"fuel must be a whole number of units of work, 0 or more, not {fuel!r}")
    return fuel


def _time_columns(spec: JoinSpec, time: str | tuple[str, str] | None) -> tuple[str, str] | None:
    """The columns of the result that hold the time of each side's row."""
    if time is None:
        return None
    pair = (time, time) if isinstance(time, str) else time
    found = []
    place = 0
    for side, name in enumerate(pair):
        columns = [spec.input(side).names[i] for i in spec.kept[side]]
        if name not in columns or not pa.types.is_timestamp(spec.input(side).field(name).type):
            raise SpecError(
                f"time={time!r}: {name!r} is not a timestamp that {_NAMES[side]} brings into the result; its columns "
                f"there are {', '.join(columns)}"
            )
        found.append(spec.schema.names[place + columns.index(name)])
        place += len(columns)
    return found[0], found[1]


def _is_streaming(left: DataFrame, right: DataFrame) -> bool:
    if left.isStreaming != right.isStreaming:
        one, other = ("left", "right") if left.isStreaming else ("right", "left")
        raise SpecError(
            f"the {one} input is a stream and the {other} one is not; read both with readStream, or both with read"
        )
    return bool(left.isStreaming)


def _state_path(state: str | os.PathLike[str] | None, streaming: bool) -> str | None:
    if state is None:
        if streaming:
            raise SpecError("a join of streams keeps its rows on disk; say where: state='a directory of its own'")
        return None
    if not streaming:
        raise SpecError("a join of batch DataFrames keeps no state; leave out state=, or read the inputs as streams")
    text = re.sub(r"^file:(//)?(?=/)", "", os.fspath(state))
    if is_remote(text):
        RemotePath.of(text)  # an error now if there is no file system for it
        return text
    return str(Path(text).expanduser().absolute())


def _partitions(frame: DataFrame, partitions: int | None) -> int:
    if partitions is None:
        return int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 0 < partitions <= 1 << 20:
        raise SpecError(f"partitions must be a whole number from 1 on, not {partitions!r}")
    return partitions


def _output_schema(spec: JoinSpec, schemas: Sequence[st.StructType]) -> st.StructType:
    kept: list[Any] = [schemas[side].fields[i].dataType for side in (0, 1) for i in spec.kept[side]]
    return st.StructType([st.StructField(name, type_) for name, type_ in zip(spec.schema.names, kept, strict=True)])
