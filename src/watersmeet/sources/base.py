"""What a source is, and what all of them share: one schema, small batches, errors that name the source."""

from __future__ import annotations

import glob
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from watersmeet.core.errors import ProtocolError, SourceError, SpecError
from watersmeet.core.given import plain_number
from watersmeet.core.promises import Promises
from watersmeet.sources.conform import Mismatch, conform, without_order

BATCH_ROWS = 8192
BATCH_BYTES = 1 << 20
FEW = 64
"""So many batches, of so many rows at most, are taken to be as small as the one before that was measured."""
UNNAMED = "the source"
_SHOWN = 200
"""Characters of a path that an error shows."""
PASS_A_SCHEMA = "pass a schema with wm.source(..., schema=...)"

_Item = TypeVar("_Item")


@runtime_checkable
class Source(Protocol):
    """Rows that come when they come. A driver reads each source in a thread of its own, once."""

    name: str
    """What errors call it."""

    @property
    def schema_known(self) -> bool:
        """True when `schema` answers without waiting for data."""
        ...

    def schema(self) -> pa.Schema:
        """The schema of every batch; may block until the first item of an iterator is there."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in small batches with exactly `schema()`."""
        ...

    def close(self) -> None:
        """Let go of files and threads; no more batches are wanted."""
        ...


class BaseSource(ABC):
    """The shared half of every source: a kind says what its schema is and where raw batches come from.

    Raw batches are brought to the schema, cut to at most `batch_rows` rows and about 1 MiB, and counted, so that a
    source that fails midway can say how far it came.
    """

    def __init__(self, name: str, schema: pa.Schema | None = None, batch_rows: int = BATCH_ROWS) -> None:
        batch_rows = plain_number(batch_rows)
        if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
            raise SpecError(f"batch_rows must be a whole number of at least 1, not {batch_rows!r}")
        if schema is not None and not isinstance(schema, pa.Schema):
            raise SpecError(f"schema must be a pyarrow.Schema, not {type(schema).__name__}")
        self.name = name
        self._schema = None if schema is None else without_order(schema.remove_metadata())
        self.batch_rows = batch_rows
        """Of a batch at most."""
        self._begun = False
        self._closed = False
        self.promises = Promises()
        """What the source promises of its rows."""
        self.known_rows: int | None = None
        """How many rows it has, where that is known before they are read."""
        self.stays = False
        """Whether its rows are in memory whole before they are read, so that a batch takes none of its own."""
        self.drains: object = None
        """What its rows are taken out of, if nothing else can read them again: an iterator, a reader, a cursor."""
        self.waits = True
        """Whether it makes no difference to its rows when they are read."""

    def at_hand(self, column: str) -> pa.ChunkedArray | None:
        """All values of a column, where they can be looked at before any row is read."""
        return None

    @property
    def schema_known(self) -> bool:
        """True when `schema` answers without waiting for data."""
        return True

    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        if self._schema is None:
            try:
                # What a writer noted about the whole table describes that table, not the rows that go on from here.
                self._schema = without_order(self._find_schema().remove_metadata())
            except SourceError:
                raise
            except Exception as error:
                raise SourceError(f"{self.name} cannot be read: {self._describe(error)}") from error
        return self._schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in small batches; can be asked for once."""
        if self._begun:
            raise ProtocolError(f"{self.name} has already been read; make a new source to read it again")
        self._begun = True
        return self.guarded(self._fitted_batches())

    def _fitted_batches(self) -> Iterator[pa.RecordBatch]:
        schema = self.schema()
        passes = _Passes(schema, self.batch_rows)
        for number, raw in enumerate(self._read(), 1):
            yield from (raw,) if passes(raw) else self._fitted(raw, schema, number)

    def guarded(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """Items until the source is closed, as it is after the last; if reading fails, how far it came is told."""
        rows = 0
        try:
            for item in items:
                if self._closed:
                    return
                yield item
                rows += item.num_rows if isinstance(item, pa.RecordBatch) else 0
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(f"{self.name} broke off after {rows} rows: {self._describe(error)}") from error
        finally:
            self.close()

    def _fitted(self, raw: pa.RecordBatch, schema: pa.Schema, number: int) -> Iterator[pa.RecordBatch]:
        """A raw batch, brought to the schema and cut."""
        try:
            batch = conform(raw, schema)
        except Mismatch as mismatch:
            raise self._misfit(mismatch, f"batch {number}") from mismatch.__cause__
        return pieces(batch, self.batch_rows)

    def _misfit(self, mismatch: Mismatch, where: str) -> SourceError:
        """One sentence about rows that do not fit; `where` says which."""
        advice = PASS_A_SCHEMA if mismatch.untyped else f"make all of them alike, or {PASS_A_SCHEMA}"
        return SourceError(f"{self.name}, {where}: {mismatch}; {advice}")

    def _describe(self, error: Exception) -> str:
        return first_line(error)

    @abstractmethod
    def _find_schema(self) -> pa.Schema:
        """The schema when none was given."""

    @abstractmethod
    def _read(self) -> Iterator[pa.RecordBatch]:
        """Batches of any size, with a schema that fits or can be cast safely."""

    def close(self) -> None:
        """Let go of whatever is held."""
        self._closed = True


class _Passes:
    """Whether a batch is right as it is: asked of every batch, so it must cost less than joining a single row."""

    def __init__(self, schema: pa.Schema, most: int) -> None:
        self._schema = schema
        self._most = most if all(field.nullable for field in schema) else 0
        self._measured = -1
        self._trusted = 0

    def __call__(self, batch: pa.RecordBatch) -> bool:
        rows, schema = batch.num_rows, batch.schema
        if not 0 < rows <= self._most or not schema.equals(self._schema) or schema.metadata is not None:
            return False
        if rows == 1:
            return True
        buffers = batch.get_total_buffer_size()
        if buffers <= BATCH_BYTES:
            return True
        # Slices of one large batch all show its size: one of them is measured, and stands for some that follow.
        if buffers == self._measured and self._trusted and rows <= FEW:
            self._trusted -= 1
            return True
        size = sliceable_bytes(batch)
        self._measured, self._trusted = buffers, FEW if size * FEW <= BATCH_BYTES * rows else 0
        return size <= BATCH_BYTES


def pieces(batch: pa.RecordBatch, rows: int = BATCH_ROWS, limit: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Zero-copy slices of at most `rows` rows and about `limit` bytes; nothing for an empty batch.

    >>> [piece.num_rows for piece in pieces(pa.record_batch({"n": range(10)}), rows=4)]
    [4, 4, 2]
    """
    if 0 < batch.num_rows <= rows and batch.get_total_buffer_size() <= limit:  # much cheaper than an exact size
        yield batch
        return
    for start in range(0, batch.num_rows, rows):
        part = batch if batch.num_rows <= rows else batch.slice(start, rows)
        size = sliceable_bytes(part)
        if size <= limit:
            yield part
            continue
        fit = max(1, part.num_rows * limit // size)
        for offset in range(0, part.num_rows, fit):
            yield part.slice(offset, fit)


def sliceable_bytes(batch: pa.RecordBatch) -> int:
    """Bytes that fewer rows would make fewer: a dictionary is as large for one row as for all."""
    shared = sum(column.dictionary.nbytes for column in batch.columns if pa.types.is_dictionary(column.type))
    return int(batch.nbytes - shared)


def expanded(path: str | os.PathLike[str], name: str) -> Path:
    """A path with the user's home in the place of `~`; `SourceError` if no file can have such a name."""
    try:
        found = Path(path).expanduser()
        found.exists()
    except (OSError, RuntimeError, ValueError) as error:
        shown = os.fspath(path)[:_SHOWN]
        called = repr(shown) if name in (UNNAMED, os.fspath(path)) else f"{name}: {shown!r}"
        raise SourceError(f"{called} is no path of a file: {first_line(error)}") from None
    return found


def names_files(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a file, or a pattern that files may match."""
    return expanded(path, os.fspath(path)).is_file() or glob.has_magic(os.fspath(path))


def first_line(error: BaseException) -> str:
    r"""The first line of an error's text, or its type where the text alone says nothing.

    >>> first_line(ValueError("no\nmore")), first_line(KeyError("id")), first_line(RuntimeError())
    ('no', "KeyError: 'id'", 'RuntimeError')
    """
    kind = type(error).__name__
    if isinstance(error, OSError):
        text = error.strerror or str(error)
    else:  # some of PyArrow's errors carry the reason and the place as two arguments
        text = "; ".join(map(str, error.args)) if len(error.args) > 1 else str(error)
    lines = text.strip().splitlines()
    if not lines:
        return kind
    return f"{kind}: {lines[0]}" if isinstance(error, LookupError) else lines[0]
