"""Finite tables whose rows are numbered, so that a range of numbers always names the same rows.

A table lives in Spark's driver and hands out parts: small descriptions of ranges that a task reads, wherever it runs.
Formats that can be entered anywhere (Parquet, Arrow IPC) and generated rows are read by the tasks. Text has to be read
from its start, so the driver reads it once, in order, and the parts carry the rows.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from watersmeet.core.errors import SourceError
from watersmeet.sources.base import BATCH_ROWS, first_line, pieces
from watersmeet.sources.conform import Mismatch, conform
from watersmeet.sources.files import FileSource
from watersmeet.sources.formats import PARQUET_BUFFER, format_of, map_ipc, open_parquet
from watersmeet.sources.generators import rows as with_payload
from watersmeet.sources.generators import zipf

BLOCK_ROWS = 8192
"""Generated rows are drawn by blocks, each with a seed of its own: any of them can be made without the others."""


class Part(ABC):
    """A range of rows as a task gets it; pickled."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in order, in batches of any size."""


class NumberedRows(ABC):
    """A finite table whose rows are numbered from 0."""

    schema: pa.Schema
    name: str
    """What errors call it."""
    held_by_driver = False
    """Whether rows stay in the driver's memory until they are forgotten."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Differs between tables that differ, as far as that can be told without reading them."""

    @abstractmethod
    def reach(self, row: int) -> int:
        """That row, or the number of all rows if there are fewer."""

    @abstractmethod
    def parts(self, start: int, stop: int, most: int) -> Iterator[Part]:
        """The rows of a range, in parts of at most so many."""

    def forget(self, row: int) -> None:  # noqa: B027, as most tables hold nothing
        """Rows before this one will not be asked for again."""

    def close(self) -> None:  # noqa: B027
        """Let go of files."""


# --- generated ---


@dataclass(frozen=True)
class Recipe:
    """What is needed to make up rows."""

    rows: int
    keys: int
    skew: float = 0.0
    width: int = 52
    seed: int = 0
    columns: tuple[str, ...] = ("key", "number", "measure", "text")

    def block(self, number: int) -> pa.RecordBatch:
        """One block of rows, the last one cut to what there is."""
        count = min(BLOCK_ROWS, self.rows - number * BLOCK_ROWS)
        seed = (self.seed << 40) + number
        table = with_payload(zipf(count, self.keys, self.skew, seed), self.width, seed)
        return table.rename_columns(list(self.columns)).combine_chunks().to_batches()[0]


class GeneratedRows(NumberedRows):
    """Rows that are made up when they are read.

    >>> rows = GeneratedRows(Recipe(rows=20_000, keys=100, seed=7))
    >>> parts = list(rows.parts(8_000, 20_000, most=10_000))
    >>> [sum(batch.num_rows for batch in part.batches()) for part in parts]
    [10000, 2000]
    """

    def __init__(self, recipe: Recipe) -> None:
        self.name = "the generated table"
        self._recipe = recipe
        self.schema = pa.schema(
            zip(recipe.columns, (pa.int64(), pa.int64(), pa.float64(), pa.string()), strict=True),
        )

    @property
    def identity(self) -> str:
        return _digest(self._recipe)

    def reach(self, row: int) -> int:
        return min(row, self._recipe.rows)

    def parts(self, start: int, stop: int, most: int) -> Iterator[Part]:
        for begin in range(start, stop, most):
            yield _GeneratedPart(self._recipe, begin, min(stop, begin + most))


@dataclass(frozen=True)
class _GeneratedPart(Part):
    recipe: Recipe
    start: int
    stop: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        for number in range(self.start // BLOCK_ROWS, -(-self.stop // BLOCK_ROWS)):
            first = number * BLOCK_ROWS
            begin = max(0, self.start - first)
            yield self.recipe.block(number).slice(begin, self.stop - first - begin)


# --- files ---


def rows_of_files(path: str, schema: pa.Schema | None) -> NumberedRows:
    """The rows of a file, or of all files that a glob matches, brought to a schema if one is given."""
    source = FileSource(path, schema=schema)
    found = source.schema()  # opens each file that has a schema, and says so where one does not fit
    if all(format_of(file).typed for file in source.files):
        source.close()
        return _TypedFiles(source, found)
    return _TextFiles(source, found)


class _TypedFiles(NumberedRows):
    """Files that can be entered at any row."""

    def __init__(self, source: FileSource, schema: pa.Schema) -> None:
        self.name, self.schema = source.name, schema
        self._files = [(file, _count_rows(file)) for file in source.files]

    @property
    def identity(self) -> str:
        return _digest([(file.name, file.stat().st_size, rows) for file, rows in self._files])

    def reach(self, row: int) -> int:
        return min(row, sum(rows for _, rows in self._files))

    def parts(self, start: int, stop: int, most: int) -> Iterator[Part]:
        first = 0
        for file, rows in self._files:
            begin, end = max(start - first, 0), min(stop - first, rows)
            for at in range(begin, end, most):
                yield _FilePart(file, self.schema, at, min(end, at + most))
            first += rows


@dataclass(frozen=True)
class _FilePart(Part):
    file: Path
    schema: pa.Schema
    start: int
    stop: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        is_parquet = _is_parquet(self.file)
        given = 0
        try:
            raw = _parquet_rows(self.file, self.start) if is_parquet else _ipc_rows(self.file, self.start)
            for batch in raw:
                piece = batch.slice(0, self.stop - self.start - given)
                given += piece.num_rows
                yield conform(piece, self.schema)
                if given == self.stop - self.start:
                    return
        except (OSError, pa.ArrowException, Mismatch) as error:
            reason = str(error) if isinstance(error, Mismatch) else first_line(error)
            raise SourceError(f"{self.file}, rows from {self.start} on, cannot be read: {reason}") from error
        raise SourceError(f"{self.file} has become shorter: row {self.start + given} is no longer there")


def _is_parquet(file: Path) -> bool:
    return format_of(file).open is open_parquet


def _count_rows(file: Path) -> int:
    if _is_parquet(file):
        return int(pq.read_metadata(file).num_rows)
    _, batches, _ = map_ipc(file)
    return sum(batch.num_rows for batch in batches)


def _parquet_rows(path: Path, start: int) -> Iterator[pa.RecordBatch]:
    """The rows from `start` on; row groups before it are not read."""
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=PARQUET_BUFFER) as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        ends = np.cumsum(sizes)
        first = int(np.searchsorted(ends, start, side="right"))
        skip = start - int(ends[first] - sizes[first]) if first < len(sizes) else 0
        groups = list(range(first, len(sizes)))
        yield from _after(skip, file.iter_batches(batch_size=BATCH_ROWS, row_groups=groups, use_threads=False))


def _ipc_rows(path: Path, start: int) -> Iterator[pa.RecordBatch]:
    """The rows from `start` on; those before it are mapped and passed over."""
    _, batches, _ = map_ipc(path)
    for batch in _after(start, batches):
        for piece in pieces(batch):
            piece.validate(full=True)  # what is sent on must be sound, as kernels trust offsets
            yield piece


def _after(skip: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows > skip:
            yield batch.slice(skip)
        skip = max(0, skip - batch.num_rows)


class _TextFiles(NumberedRows):
    """Files that are read from their start: by the driver, as far as rows are asked for."""

    held_by_driver = True

    def __init__(self, source: FileSource, schema: pa.Schema) -> None:
        self.name, self.schema = source.name, schema
        self._path = source.path
        self._files = source.files
        self._open(source)

    def _open(self, source: FileSource) -> None:
        self._batches = source.batches()
        self._held: deque[pa.RecordBatch] = deque()
        self._first = 0
        """The number of the first row held."""
        self._read = 0
        """The number of rows read so far."""

    @property
    def identity(self) -> str:
        return _digest([(file.name, file.stat().st_size) for file in self._files])

    def reach(self, row: int) -> int:
        while self._read < row:
            batch = next(self._batches, None)
            if batch is None:
                return self._read
            self._held.append(batch)
            self._read += batch.num_rows
        return row

    def parts(self, start: int, stop: int, most: int) -> Iterator[Part]:
        if start < self._first:  # a query that was started again, or one batch is planned twice
            self.close()
            self._open(FileSource(self._path, schema=self.schema))
        if self.reach(stop) < stop:
            raise SourceError(f"{self.name} has become shorter: row {self._read} is no longer there")
        first = self._first
        for batch in self._held:
            wanted = batch.slice(
                max(0, start - first), max(0, min(stop - first, batch.num_rows) - max(0, start - first))
            )
            first += batch.num_rows
            for piece in pieces(wanted, most):
                yield _CarriedPart(_to_bytes(piece))

    def forget(self, row: int) -> None:
        while self._held and self._first + self._held[0].num_rows <= row:
            self._first += self._held.popleft().num_rows

    def close(self) -> None:
        self._batches.close()  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _CarriedPart(Part):
    """Rows that were read already."""

    content: bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from pyarrow.ipc.open_stream(self.content)


def _to_bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _digest(what: Any) -> str:
    return f"{zlib.crc32(repr(what).encode()):08x}"
