"""A sink that keeps the rows of a stream as Arrow files in a directory, every batch once.

A task writes a file under a name of its own. When all tasks of a batch are done, their files' names are published under
the batch's number: what failed or repeated attempts wrote is never listed. Types are Spark's own, without the detours
of a file format.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.ipc
from pyspark.sql.datasource import DataSource, WriterCommitMessage

from watersmeet.spark.task.worker import use_own_python

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # before Spark 4.1
    DataSourceStreamArrowWriter = object  # type: ignore[assignment, misc]

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = "watersmeet-arrow"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The file of one task."""

    file: str
    rows: int


class ArrowDirectory(DataSource):
    """`writeStream.format("watersmeet-arrow")`."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> ArrowWriter:  # noqa: N802, as Spark names it
        """A writer into the directory of the option `path`."""
        return ArrowWriter(Path(self.options["path"]))


class ArrowWriter(DataSourceStreamArrowWriter):
    """Writes the files, and the list of each batch."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One task's rows."""
        name, rows = f"rows-{uuid.uuid4().hex}", 0
        first = next(iterator, None)
        if first is None:
            return Written("", 0)
        with pa.OSFile(str(self._path / name), "wb") as file, pyarrow.ipc.new_stream(file, first.schema) as writer:
            batch: pa.RecordBatch | None = first
            while batch is not None:
                writer.write_batch(batch)
                rows += batch.num_rows
                batch = next(iterator, None)
        return Written(name, rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """List the files of a batch; one that was listed before a failure keeps its list."""
        files = [each.file for each in messages if isinstance(each, Written) and each.rows]
        target = _list_of(self._path, batchId)
        if not target.exists():
            hidden = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
            hidden.write_text(json.dumps(files))
            hidden.replace(target)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is listed, so nothing is to be taken back."""


def _list_of(path: Path, batch: int) -> Path:
    return path / f"batch-{batch:012d}"


def listed_files(path: Path) -> list[Path]:
    """The files of all batches, in order."""
    return [path / name for each in sorted(path.glob("batch-*")) for name in json.loads(each.read_text())]


def read_listed(path: Path) -> Iterator[pa.RecordBatch]:
    """All rows, batch by batch, mapped rather than loaded."""
    for file in listed_files(path):
        with pa.memory_map(str(file)) as mapped, pyarrow.ipc.open_stream(mapped) as reader:
            yield from reader


def register_sink(spark: Any) -> None:
    """Let a session write `format("watersmeet-arrow")`."""
    use_own_python(spark)
    spark.dataSource.register(ArrowDirectory)
