"""What the plans of all verbs have in common: inputs, keys, groups, and the state directory, checked."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as st

from watersmeet.core.errors import SpecError
from watersmeet.core.given import plain_number
from watersmeet.core.spec import JoinSpec
from watersmeet.spark.io.source import EVENT
from watersmeet.spark.plan.grouping import check_collation
from watersmeet.spark.plan.types import spark_schema
from watersmeet.spark.state.remote import RemotePath, is_remote
from watersmeet.spark.task.figures import COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FUEL = 2_000_000
"""Units of work for one group in one batch: about a third of a second."""
NAMES = ("the left input", "the right input")
"""What errors call the inputs of a join of two."""
SIDES = ("left", "right")
"""What figures call them."""


def plain_schemas(*frames: DataFrame) -> tuple[st.StructType, ...]:
    """The schemas without columns of signs."""
    return tuple(st.StructType([field for field in frame.schema.fields if field.name != EVENT]) for frame in frames)


def key_columns(spec: JoinSpec, schemas: Sequence[st.StructType]) -> tuple[list[int], list[int]]:
    """The key columns of each side, by position."""
    found = ([schemas[side].names.index(name) for name in spec.keys(side)] for side in (0, 1))
    keys = next(found), next(found)
    for side in (0, 1):
        for key in keys[side]:
            check_collation(schemas[side].fields[key].dataType, schemas[side].names[key], NAMES[side])
    return keys


def group_count(frame: DataFrame, partitions: int | None, spec: JoinSpec) -> int:
    """How many groups the keys are divided into."""
    if spec.equalities:
        return checked_partitions(frame, partitions)
    if partitions not in (None, 1):
        raise SpecError(
            f"partitions={partitions!r} cannot be: without an equality it is not known which rows can meet, so all go "
            f"to one task; leave partitions= out, or add an equality"
        )
    return 1


def time_columns(spec: JoinSpec, time: str | tuple[str, str] | None) -> tuple[str, str] | None:
    """The columns of the result that hold the time of each side's row."""
    if time is None:
        return None
    pair = (time, time) if isinstance(time, str) else time
    found = []
    for side, name in enumerate(pair):
        columns = [spec.input(side).names[i] for i in spec.kept[side]]
        if name not in columns or not pa.types.is_timestamp(spec.input(side).field(name).type):
            raise SpecError(
                f"time={time!r}: {name!r} is not a timestamp that {NAMES[side]} brings into the result; its columns "
                f"there are {', '.join(columns)}"
            )
        number = spec.input(side).names.index(name)
        found.append(next(out for out, of in zip(spec.schema.names, spec.columns, strict=True) if of[side] == number))
    return found[0], found[1]


def is_streaming(left: DataFrame, right: DataFrame) -> bool:
    """Whether the inputs are streams; an error if only one is."""
    if left.isStreaming != right.isStreaming:
        one, other = ("left", "right") if left.isStreaming else ("right", "left")
        raise SpecError(
            f"the {one} input is a stream and the {other} one is not; read both with readStream, or both with read"
        )
    return bool(left.isStreaming)


def state_path(state: str | os.PathLike[str] | None, streaming: bool) -> str | None:
    """Where the state is kept; None for batch DataFrames, which keep none."""
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


def checked_partitions(frame: DataFrame, partitions: int | None) -> int:
    """In how many tasks the rows are joined; as many as Spark is told to make unless given."""
    if partitions is None:
        return int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)
    partitions = plain_number(partitions)
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 0 < partitions <= 1 << 20:
        raise SpecError(f"partitions must be a whole number from 1 on, not {partitions!r}")
    return partitions


def output_schema(spec: JoinSpec, schemas: Sequence[st.StructType]) -> st.StructType:
    """The schema of the results, in Spark's types."""
    fields = []
    for column, field in zip(spec.columns, spec.schema, strict=True):
        types = [schemas[side].fields[i].dataType for side, i in enumerate(column) if i is not None]
        alike = all(found == types[0] for found in types)
        both = types[0] if alike else spark_schema(pa.schema([field]), field.name).fields[0].dataType
        fields.append(st.StructField(field.name, both))
    return st.StructType(fields)


def retained_batches(frame: DataFrame) -> int:
    """How many batches Spark may go back."""
    return int(frame.sparkSession.conf.get("spark.sql.streaming.minBatchesToRetain") or 100)


def with_measures(results: st.StructType) -> st.StructType:
    """What a task hands out: results, and a column for its figures."""
    return st.StructType([*results.fields, st.StructField(COLUMN, st.ArrayType(st.LongType()))])


def checked_fuel(fuel: int) -> int:
    """Units of work; an error if they are none."""
    fuel = plain_number(fuel)
    if isinstance(fuel, bool) or not isinstance(fuel, int) or fuel < 0:
        raise SpecError(f"fuel must be a whole number of units of work, 0 or more, not {fuel!r}")
    return fuel
