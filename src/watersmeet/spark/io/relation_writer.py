"""A batch DataFrame as a relation on disk: Spark's tasks write its rows in one pass, and they are laid out by key."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from watersmeet.api.relation import Relation
from watersmeet.core.errors import RelationError
from watersmeet.relation.relation import THETA
from watersmeet.spark.plan.types import arrow_schema
from watersmeet.spark.task.worker import portable

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
    rows.mkdir(parents=True)
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
