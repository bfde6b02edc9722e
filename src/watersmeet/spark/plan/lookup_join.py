"""`watersmeet.spark.lookup_join`: a DataFrame enriched from a relation on disk, or from another DataFrame that is laid
out as one: Spark's tasks write its rows in one pass, and they are laid out by key.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as st

from watersmeet import planner
from watersmeet.api.relation import Relation
from watersmeet.core.errors import BudgetError, RelationError, SpecError
from watersmeet.core.lookup import LookupSpec, lookup_conditions, settle_how
from watersmeet.core.spec import Equal, On, parse_on
from watersmeet.memory import format_bytes, parse_memory
from watersmeet.relation.relation import THETA
from watersmeet.spark.plan.control_rows import has_signs, signs_last
from watersmeet.spark.plan.grouping import check_collation
from watersmeet.spark.plan.inputs import retained_batches, state_path, with_measures
from watersmeet.spark.plan.types import arrow_schema, spark_schema
from watersmeet.spark.state.remote import CACHE_BYTES, is_remote
from watersmeet.spark.task.context import QUERY
from watersmeet.spark.task.figures import observed
from watersmeet.spark.task.lookup_task import FIGURES, LookupTask
from watersmeet.spark.task.worker import portable
from watersmeet.spill.private import make_private

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class _Writer:
    """The function of `mapInArrow`: a partition's rows into a file of its own, whose name is all that comes out."""

    directory: str
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write one partition."""
        path = Path(self.directory) / f"{uuid.uuid4().hex}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, self.schema) as writer:
            for batch in batches:
                columns = [column.cast(field.type) for column, field in zip(batch.columns, self.schema, strict=True)]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        yield pa.record_batch({"file": [path.name]})


def lay_out(frame: DataFrame, on: Sequence[str], path: Path, partition: str, memory: int) -> Relation:
    """The relation at a path; if there is none yet, a DataFrame's rows are laid out there.

    Attempts that failed may have left files: only those that Spark says are whole and wanted are read.
    """
    schema = arrow_schema(frame.schema, "the relation")
    if Relation.is_at(path):
        relation = Relation.open(path)
        if relation.schema != schema or list(relation.on) != list(on):
            raise RelationError(
                f"the relation that was laid out in {path} has other columns or keys than the DataFrame now; start "
                f"again with a new state directory and checkpoint"
            )
        return relation
    rows = path.with_name(f"{path.name}-rows-{uuid.uuid4().hex[:12]}")
    make_private(rows)
    try:
        written = frame.mapInArrow(portable(_Writer(str(rows), schema), frame.sparkSession), "file string").collect()
        batches = pa.RecordBatchReader.from_batches(schema, _read(rows, [row["file"] for row in written]))
        segment = max(4096, min(THETA, memory // 32))
        return Relation.build(
            batches, list(on), path, partition=partition, memory=memory, segment=segment, replace=True
        )
    finally:
        shutil.rmtree(rows, ignore_errors=True)


def _read(directory: Path, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for file in sorted(files):
        with pa.OSFile(str(directory / file), "rb") as source, pa.ipc.open_stream(source) as reader:
            yield from reader


_NAMES = ("the stream", "the relation")


def lookup_join(
    stream: DataFrame,
    relation: object,
    on: On | None = None,
    *,
    how: str = "inner",
    on_miss: str | None = None,
    memory: str | int = "512 MiB",
    state: str | os.PathLike[str] | None = None,
    suffixes: tuple[str, str] = ("", "_right"),
    algorithm: str = "auto",
    partition: str = "range",
    cache: str | int = CACHE_BYTES,
) -> DataFrame:
    """Join a streaming or batch DataFrame with a relation on disk that may be many times larger than memory.

    All rows of a batch meet one version of the relation, the newest when the batch is begun; a batch that is repeated
    meets the version that it met before, which the relation keeps until then. So the relation can be changed, by any
    process, while the query runs. Nothing is shuffled and no rows are kept: each worker answers the rows it has, and
    keeps the parts of the relation that are asked for most in memory from batch to batch.

    :param relation: a `watersmeet.Relation`, or the path of one, that all workers reach; or, for a stream, a batch
        DataFrame, which is laid out in the state directory when the query is first made, and never looked at again.
    :param on: the stream's and the relation's key columns, as in `watersmeet.lookup_join`; the relation's own key
        unless given.
    :param how: `"inner"`: all pairs; `"left"`: also the rows that find nothing, with NULLs beside them; `"semi"`: the
        rows that find something; `"anti"`: those that do not.
    :param on_miss: `"keep"` or `"drop"` rows that find nothing: another way to say left or inner.
    :param memory: bytes, or words such as `"512 MiB"`, that each worker may hold.
    :param state: of a stream, where it is noted which version each batch has met: a directory that all workers reach,
        or an address that PyArrow has a file system for.
    :param suffixes: added to columns that both have and that are not joined on.
    :param algorithm: `"auto"`, or one of `watersmeet.lookup_join`'s.
    :param partition: how a DataFrame is laid out: `"range"` keeps neighbouring keys together, `"hash"` spreads them.
    :param cache: unused where the state is at a path.
    """
    if has_signs(stream, _NAMES[0]):
        stream = signs_last(stream, keep=False)
    budget = parse_memory(memory)
    directory = state_path(state, bool(stream.isStreaming))
    known = _relation(relation, on, directory, partition, budget)
    conditions = lookup_conditions(on, known.on, f"the relation in {known.path}")
    own = arrow_schema(stream.schema, _NAMES[0])
    spec = LookupSpec(own, known.schema, conditions, settle_how(how, on_miss), suffixes=suffixes, names=_NAMES)
    for condition in conditions:
        field = stream.schema[condition.left]
        check_collation(field.dataType, field.name, _NAMES[0])
    reader = known.reading()
    least = planner.least_for_lookup(spec, [reader], algorithm)
    if budget < least:
        raise BudgetError(
            f"{format_bytes(budget)} of memory are too little for a task of this join; allow at least {least} bytes "
            f"({format_bytes(least)})"
        )
    results = _output_schema(spec, stream.schema)
    task = LookupTask(
        spec, arrow_schema(results, "the result"), str(known.path), budget, algorithm,
        -1 if stream.isStreaming else reader.latest().number, directory, retained_batches(stream), parse_memory(cache),
    )  # fmt: skip
    run = portable(task, stream.sparkSession)
    if directory is None:
        return stream.mapInArrow(run, results)
    return observed(stream.mapInArrow(run, with_measures(results)), str(directory), budget, FIGURES)


def _relation(relation: object, on: On | None, directory: str | None, partition: str, budget: int) -> Relation:
    if isinstance(relation, Relation):
        return relation
    if isinstance(relation, str | os.PathLike):
        return Relation.open(relation)
    if not hasattr(relation, "mapInArrow"):
        raise SpecError(
            f"a {type(relation).__name__} cannot be looked up in; give a watersmeet.Relation, the path of one, or a "
            f"batch DataFrame"
        )
    frame: Any = relation
    if frame.isStreaming:
        raise SpecError("the relation is a stream; read it as a batch DataFrame, or join the streams with wms.join")
    if directory is None or is_remote(directory):
        raise RelationError(
            "a DataFrame is laid out in the state directory, and there is none at a path; make a relation of it first, "
            "with watersmeet.Relation.build, or take Spark's own join"
        )
    if QUERY in directory:
        raise SpecError(
            f"a DataFrame is laid out before there is a query, so its state directory cannot be named by one; leave "
            f"{QUERY} out of state=, or make a relation of it first, with watersmeet.Relation.build"
        )
    keys = [condition.right for condition in parse_on(on) if isinstance(condition, Equal)] if on is not None else []
    if not keys:
        raise SpecError("say on=..., the columns to join on: only a watersmeet.Relation knows its own")
    return lay_out(frame, keys, Path(directory) / "relation", partition, budget)


def _output_schema(spec: LookupSpec, stream: st.StructType) -> st.StructType:
    """The results: the stream's columns as they are, the relation's in the types that Spark has for them."""
    own = [st.StructField(name, field.dataType) for name, field in zip(spec.schema.names, stream.fields, strict=False)]
    rest = pa.schema(list(spec.schema)[len(own) :])
    return st.StructType([*own, *spark_schema(rest, _NAMES[1]).fields])
