"""`watersmeet.spark.join`: the plan of a join, made of Spark's own steps around one of ours."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as fn
from pyspark.sql import types as st

from watersmeet.core.errors import SpecError
from watersmeet.core.spec import JoinSpec, On, parse_on
from watersmeet.memory import parse_memory
from watersmeet.spark.arrow_types import arrow_schema
from watersmeet.spark.grouping import check_collation, group_of, grouping_key
from watersmeet.spark.metrics import COLUMN, observed
from watersmeet.spark.row_layout import TAG, RowLayout
from watersmeet.spark.sizes import Sizes
from watersmeet.spark.task import JoinTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEY_HASH = "key_hash"
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
) -> DataFrame:
    """Join two streaming DataFrames, or two batch DataFrames: every pair exactly once.

    All rows of the streams are kept, on disk: a pair is found however far apart its rows come. State is written before
    a batch ends and is tied to the query's checkpoint: a query that is started again goes on where it was, and one that
    is started without its state, or with another one, says so.

    What each batch of a stream did is in its progress: `observedMetrics["watersmeet NAME"]`, the state directory's name
    being NAME, has the rows of each input, results, memory, bytes written, and the rows and bytes of the state (of the
    groups that had rows in the batch).

    :param on: a column of both inputs, `"left_column = right_column"`, or a list of these.
    :param memory: bytes, or words such as `"512 MiB"`, that each task may hold; more rows in a batch go to disk.
    :param state: a directory that all workers reach under this path; streams need one, batch DataFrames none.
    :param partitions: how many tasks share the keys, for good; `spark.sql.shuffle.partitions` unless given.
    :param suffixes: added to columns that both inputs have and that are not joined on.
    """
    schemas = (left.schema, right.schema)
    names = ("the left input", "the right input")
    arrow = [arrow_schema(schema, name) for schema, name in zip(schemas, names, strict=True)]
    spec = JoinSpec(arrow[0], arrow[1], parse_on(on), how=how, suffixes=suffixes, names=names)
    if spec.band is not None:
        raise SpecError("a join on Spark takes equalities only; filter its result by the band")
    keys = [[schemas[side].names.index(name) for name in spec.keys(side)] for side in (0, 1)]
    for side in (0, 1):
        for key in keys[side]:
            check_collation(schemas[side].fields[key].dataType, schemas[side].names[key], names[side])
    budget = parse_memory(memory)
    Sizes.divide(budget)
    streaming = _is_streaming(left, right)
    directory = _state_path(state, streaming)
    groups = _partitions(left, partitions)
    layout = RowLayout.of(*(tuple(field.dataType for field in schema.fields) for schema in schemas))
    tagged = [_tagged(frame, side, schemas, keys, layout, groups) for side, frame in enumerate((left, right))]
    retain = int(left.sparkSession.conf.get("spark.sql.streaming.minBatchesToRetain") or 100)
    task = JoinTask(spec, layout, budget, groups, directory, retain)
    rows, results = _shuffled(tagged[0].union(tagged[1]), groups), _output_schema(spec, schemas)
    if directory is None:
        return rows.mapInArrow(task, results)
    measured = rows.mapInArrow(task, st.StructType([*results.fields, st.StructField(COLUMN, _FIGURES)]))
    return observed(measured, f"watersmeet {Path(directory).name}")


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
    if re.match(r"^[a-zA-Z][a-zA-Z0-9+.-]+:", text):
        raise SpecError(f"state={text!r} is not a path; state is mapped into memory, so mount it as a directory")
    return str(Path(text).expanduser().absolute())


def _partitions(frame: DataFrame, partitions: int | None) -> int:
    if partitions is None:
        return int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 0 < partitions <= 1 << 20:
        raise SpecError(f"partitions must be a whole number from 1 on, not {partitions!r}")
    return partitions


def _tagged(
    frame: DataFrame,
    side: int,
    schemas: Sequence[st.StructType],
    keys: Sequence[Sequence[int]],
    layout: RowLayout,
    groups: int,
) -> DataFrame:
    """One input's rows in the common layout, those without a key left out."""
    fields = schemas[side].fields
    plain = frame.toDF(*(f"c{i}" for i in range(len(fields))))  # by position: names may repeat
    comparable = []
    for own, other in zip(keys[side], keys[1 - side], strict=True):
        plain = plain.where(fn.col(f"c{own}").isNotNull())
        types = fields[own].dataType, schemas[1 - side].fields[other].dataType
        comparable.append(grouping_key(fn.col(f"c{own}"), *types))
    slots = []
    for slot in range(layout.count):
        column = layout.column_in(side, slot)
        if column is not None:
            value = fn.col(f"c{column}")
        else:
            value = fn.lit(None).cast(_type_at(schemas[1 - side], layout.column_in(1 - side, slot)))
        slots.append(value.alias(f"slot{slot}"))
    if _places_by_id():
        return plain.select((group_of(comparable, groups) * 2 + side).cast("int").alias(TAG), *slots)
    hashed = plain.withColumn(_KEY_HASH, fn.hash(*comparable))
    tag = (group_of([fn.col(_KEY_HASH)], groups) * 2 + side).cast("int").alias(TAG)
    return hashed.select(tag, *slots, fn.col(_KEY_HASH))


def _type_at(schema: st.StructType, column: int | None) -> st.DataType:
    assert column is not None, "every slot is some side's"
    return schema.fields[column].dataType


def _shuffled(rows: DataFrame, groups: int) -> DataFrame:
    """Each group's rows in a task of their own."""
    if _places_by_id():
        return rows.repartitionById(groups, fn.shiftright(fn.col(TAG), 1))
    # Spark sends a row where the hash of the expression says, and the tag was made with that same hash.
    return rows.repartition(groups, fn.col(_KEY_HASH)).drop(_KEY_HASH)


def _places_by_id() -> bool:
    """Whether rows can be sent to a task by its number, as from Spark 4.1 on."""
    from pyspark.sql import DataFrame

    return hasattr(DataFrame, "repartitionById")


def _output_schema(spec: JoinSpec, schemas: Sequence[st.StructType]) -> st.StructType:
    kept: list[Any] = [schemas[side].fields[i].dataType for side in (0, 1) for i in spec.kept[side]]
    return st.StructType([st.StructField(name, type_) for name, type_ in zip(spec.schema.names, kept, strict=True)])
