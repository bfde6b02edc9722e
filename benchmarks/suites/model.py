"""A suite: tables that it makes, questions about them, and settings in which contestants answer them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.inputs import BATCH_ROWS
from benchmarks.spark_inputs import in_turn

OURS = "ours"
LEAST_MEMORY = 4 << 20
"""However small the scale is."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a contestant is given: tables on disk, or in memory already, and what it may use."""

    place: Path
    memory: int
    threads: int
    loaded: Mapping[str, Any] = field(default_factory=dict)

    def path(self, table: str) -> str:
        """The files of a table, as a glob."""
        return f"{self.place}/{table}/*.parquet"

    def source(self, table: str) -> object:
        """A whole table, as our verbs take it."""
        return self.loaded.get(table, self.path(table))

    def stream(self, table: str, columns: Sequence[str], where: Callable[[pa.RecordBatch], Any] | None = None) -> Any:
        """Some columns of a table, batch by batch, and of its rows those that pass."""
        schema = pa.schema([pq.read_schema(next(iter(self._files(table)))).field(name) for name in columns])
        return pa.RecordBatchReader.from_batches(schema, self._batches(table, schema, where))

    def _files(self, table: str) -> list[Path]:
        return sorted((self.place / table).glob("*.parquet"))

    def _batches(
        self, table: str, schema: pa.Schema, where: Callable[[pa.RecordBatch], Any] | None
    ) -> Iterator[pa.RecordBatch]:
        for path in self._files(table):
            with pq.ParquetFile(path, memory_map=True) as file:
                for batch in file.iter_batches(BATCH_ROWS):
                    yield (batch if where is None else batch.filter(where(batch))).select(schema.names)


@dataclass(frozen=True, slots=True)
class Question:
    """One join, in the words of those who are asked."""

    name: str
    tables: Sequence[str]
    sql: str
    """For engines that speak SQL; the tables have their names."""
    columns: Sequence[str]
    """Of the result: what is checked."""
    ours: Callable[[Inputs, str], Iterable[pa.RecordBatch]]
    """Batches of the result, by the algorithm of a name."""
    pandas: Callable[[Mapping[str, Any]], Any] | None = None
    """A frame from frames."""
    csv: str = ""
    """The columns of the tables where they are CSV, too, as SQL declares them."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a question is asked: how much memory there is, and whether the tables are in it before the clock runs."""

    name: str
    contestants: Sequence[str]
    share: float | None = None
    """Of the tables' size, as memory."""
    memory: int = 16 << 30
    """If no share is given."""
    scaled: bool = True
    """Whether memory shrinks with the tables."""
    loaded: bool = False

    def bytes_for(self, size: int, scale: float) -> int:
        """Memory, at this scale."""
        if self.share is not None:
            return max(LEAST_MEMORY, int(self.share * size))
        wanted = self.memory * min(scale, 1.0) if self.scaled else self.memory
        return max(LEAST_MEMORY, int(wanted))


@dataclass(frozen=True, slots=True)
class Suite:
    """Tables, questions, settings; and what of it was taken from where."""

    name: str
    title: str
    taken: str
    """What was taken from the published description, and what was not."""
    write: Callable[[Path, float], None]
    """Make the tables in a folder, at some scale."""
    questions: Sequence[Question]
    settings: Sequence[Setting]
    warm_scale: float = 0.001
    """Of the tables that each process goes through before it is measured."""
    unlimited: Sequence[str] = ("polars", "pandas", "spark", "symmetric")
    """Contestants that cannot be told how much memory they may use."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Rivals that are compared with another contestant of ours than `ours`."""
    lines: bool = False
    """Whether questions are sizes, so that their figures are drawn as lines."""

    def question(self, name: str) -> Question:
        """The one of this name."""
        return next(each for each in self.questions if each.name == name)

    def asked(self) -> Iterator[tuple[Question, Setting]]:
        """Every question in every setting."""
        return ((question, setting) for question in self.questions for setting in self.settings)


def write_table(place: Path, name: str, table: pa.Table, files: int = 1) -> None:
    """A table as so many files, in order."""
    folder = place / name
    folder.mkdir(parents=True, exist_ok=True)
    step = max(1, math.ceil(table.num_rows / files))
    for number in range(files):
        path = folder / f"{number:06d}.parquet"
        pq.write_table(table.slice(number * step, step), path, row_group_size=1 << 17, compression="snappy")
        in_turn(path, number)


def write_parts(place: Path, name: str, parts: Iterable[pa.Table]) -> None:
    """A table whose parts are made one after the other, so that it may be larger than memory."""
    folder = place / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(parts):
        write_table(place, f"{name}/.part", part)
        (folder / ".part" / "000000.parquet").rename(folder / f"{number:06d}.parquet")
    (folder / ".part").rmdir()


def size_of(place: Path, tables: Iterable[str]) -> int:
    """Bytes of tables as Arrow has them, by what Parquet says about them before it encodes."""
    total = 0
    for name in tables:
        for path in (place / name).glob("*.parquet"):
            with pq.ParquetFile(path) as file:
                total += sum(
                    int(np.int64(file.metadata.row_group(each).total_byte_size))
                    for each in range(file.metadata.num_row_groups)
                )
    return total
