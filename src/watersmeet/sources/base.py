"""What a source is, and what all of them share: one schema, small batches, errors that name the source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import pyarrow as pa

from watersmeet.core.errors import ProtocolError, SourceError, SpecError
from watersmeet.sources.conform import Mismatch, conform

BATCH_ROWS = 8192
BATCH_BYTES = 1 << 20
UNNAMED = "the source"
PASS_A_SCHEMA = "pass a schema with wm.source(..., schema=...)"


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
        if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
            raise SpecError(f"batch_rows must be a whole number of at least 1, not {batch_rows!r}")
        if schema is not None and not isinstance(schema, pa.Schema):
            raise SpecError(f"schema must be a pyarrow.Schema, not {type(schema).__name__}")
        self.name = name
        self._schema = None if schema is None else schema.remove_metadata()
        self._batch_rows = batch_rows
        self._begun = False
        self._closed = False

    @property
    def schema_known(self) -> bool:
        """True when `schema` answers without waiting for data."""
        return True

    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        if self._schema is None:
            try:
                # What a writer noted about the whole table describes that table, not the rows that go on from here.
                self._schema = self._find_schema().remove_metadata()
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
        return self._checked_batches()

    def _checked_batches(self) -> Iterator[pa.RecordBatch]:
        rows = 0
        try:
            schema = self.schema()
            for number, raw in enumerate(self._read(), 1):
                try:
                    batch = conform(raw, schema)
                except Mismatch as mismatch:
                    raise self._misfit(mismatch, f"batch {number}") from mismatch.__cause__
                for piece in pieces(batch, self._batch_rows):
                    if self._closed:
                        return
                    yield piece
                    rows += piece.num_rows
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(f"{self.name} broke off after {rows} rows: {self._describe(error)}") from error
        finally:
            self.close()

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


def pieces(batch: pa.RecordBatch, rows: int = BATCH_ROWS, limit: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Zero-copy slices of at most `rows` rows and about `limit` bytes; nothing for an empty batch.

    >>> [piece.num_rows for piece in pieces(pa.record_batch({"n": range(10)}), rows=4)]
    [4, 4, 2]
    """
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        size = _sliceable_bytes(part)
        if size <= limit:
            yield part
            continue
        fit = max(1, part.num_rows * limit // size)
        for offset in range(0, part.num_rows, fit):
            yield part.slice(offset, fit)


def _sliceable_bytes(batch: pa.RecordBatch) -> int:
    """Bytes that fewer rows would make fewer: a dictionary is as large for one row as for all."""
    shared = sum(column.dictionary.nbytes for column in batch.columns if pa.types.is_dictionary(column.type))
    return int(batch.nbytes - shared)


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
