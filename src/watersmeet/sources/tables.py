"""Rows that are already in memory, or come over Arrow's stream interface from another library."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import methodcaller
from typing import Any

import pyarrow as pa

from watersmeet.core.errors import SourceError
from watersmeet.sources.base import BATCH_ROWS, PASS_A_SCHEMA, BaseSource, first_line
from watersmeet.sources.conform import Mismatch, check_kinds, inferred


class TableSource(BaseSource):
    """A table in memory, handed out in zero-copy slices.

    >>> [batch.num_rows for batch in TableSource(pa.table({"id": range(5)}), "numbers", batch_rows=3).batches()]
    [3, 2]
    """

    def __init__(
        self, table: pa.Table, name: str, schema: pa.Schema | None = None, batch_rows: int = BATCH_ROWS
    ) -> None:
        super().__init__(name, schema, batch_rows)
        self._table: pa.Table | None = table
        self._own_schema: pa.Schema = table.schema
        self.known_rows = table.num_rows
        self.stays = schema is None

    def _find_schema(self) -> pa.Schema:
        return self._own_schema

    def at_hand(self, column: str) -> pa.ChunkedArray | None:
        """All values of a column."""
        if self._table is None or not self.stays or self._own_schema.names.count(column) != 1:
            return None
        return self._table.column(column)

    def _read(self) -> Iterator[pa.RecordBatch]:
        table, self._table = self._table, None
        if table is not None:
            yield from table.to_batches(max_chunksize=self.batch_rows)

    def close(self) -> None:
        """Drop the table."""
        super().close()
        self._table = None


class ReaderSource(BaseSource):
    """A `RecordBatchReader`, read as it delivers; it is closed at the end."""

    def __init__(
        self, reader: pa.RecordBatchReader, name: str, schema: pa.Schema | None = None, batch_rows: int = BATCH_ROWS
    ) -> None:
        super().__init__(name, schema, batch_rows)
        self._reader = self.drains = reader

    def _find_schema(self) -> pa.Schema:
        return self._reader.schema

    def _read(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._reader
        finally:
            self._reader.close()


def as_table(data: object, name: str) -> pa.Table | None:
    """The table that an object in memory is, or None if it is none of the kinds known here.

    A pandas frame is copied, without its index; a Polars frame is shared as far as Polars can.
    """
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    frame: Any = data
    try:
        if _is_a(data, "pandas", "DataFrame"):
            return pa.Table.from_pandas(frame, preserve_index=False)
        if _is_a(data, "polars", "DataFrame"):
            return frame.to_arrow()
    except Exception as error:
        raise SourceError(f"{name} cannot be turned into an Arrow table: {first_line(error)}") from error
    if _is_a(data, "polars", "LazyFrame"):
        raise SourceError(f"{name} is a Polars LazyFrame, a plan without rows; collect() it first")
    return None


def open_stream(data: object, name: str) -> pa.RecordBatchReader:
    """A reader over anything that speaks Arrow's C stream interface."""
    try:
        return pa.RecordBatchReader.from_stream(data)
    except Exception as error:
        raise SourceError(
            f"{name} offers an Arrow stream of {type(data).__name__} that holds no table: {first_line(error)}"
        ) from error


def table_of_dicts(rows: Sequence[Mapping[str, object]], name: str) -> pa.Table:
    """A list of dicts as a table: the first names the columns, all of them together decide the types.

    >>> table_of_dicts([{"id": 1, "price": None}, {"id": 2, "price": 0.5}, {"id": 3}], "list")["price"].to_pylist()
    [None, 0.5, None]
    """
    strange = [kind for kind in set(map(type, rows)) if not issubclass(kind, Mapping)]
    if strange:
        raise SourceError(f"{name} mixes dicts with {strange[0].__name__}; give rows of one kind")
    names = list(rows[0])
    extra = [key for key in dict.fromkeys(chain.from_iterable(rows)) if key not in rows[0]]
    if extra:
        raise SourceError(
            f"{name}: column {extra[0]!r} is in a later row, but not in the first, which has "
            f"{', '.join(map(str, names))}; {PASS_A_SCHEMA}"
        )
    columns = {}
    for key in names:
        if not isinstance(key, str):
            raise SourceError(f"{name}: the column name {key!r} is not a string")
        try:
            values = list(map(methodcaller("get", key), rows))
            columns[key] = inferred(values)
            check_kinds(values, pa.field(key, columns[key].type))
        except OverflowError as error:
            raise SourceError(
                f"{name}: column {key!r} has whole numbers beyond int64 that need another type, such as "
                f"decimal128(38, 0); {PASS_A_SCHEMA}"
            ) from error
        except (Mismatch, pa.ArrowException, TypeError, ValueError) as error:
            raise SourceError(
                f"{name}: column {key!r} has values of no common type: {first_line(error)}; {PASS_A_SCHEMA}"
            ) from error
    return pa.table(columns)


def _is_a(data: object, library: str, kind: str) -> bool:
    """Whether an object is a library's frame (or of a subclass), without importing a library that nobody uses."""
    return library in sys.modules and any(
        base.__module__.partition(".")[0] == library and base.__name__ == kind for base in type(data).__mro__
    )
