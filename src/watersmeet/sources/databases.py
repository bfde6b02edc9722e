"""Rows out of a database: the result of a query, through ADBC as Arrow batches, or through any DB-API driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from watersmeet.core.errors import SourceError
from watersmeet.sources.base import BATCH_ROWS, UNNAMED, BaseSource, first_line
from watersmeet.sources.conform import inferred


def query(
    connection: Any,
    sql: str,
    parameters: Sequence[object] | None = None,
    *,
    name: str | None = None,
    schema: pa.Schema | None = None,
    batch_rows: int = BATCH_ROWS,
) -> CursorSource:
    """The result of a query as a source of rows: `wm.Relation.build(wm.query(connection, "SELECT ..."), ...)`.

    `connection` is one of ADBC (`adbc_driver_sqlite.dbapi.connect(...)`, `adbc_driver_postgresql.dbapi.connect(...)`),
    of any other DB-API 2.0 driver, or of SQLAlchemy. ADBC hands out typed Arrow batches; other drivers hand out Python
    values, whose types are those of the first rows unless a `schema` says so.

    A join reads each input in a thread of its own. Connections of `sqlite3` refuse that unless they are told:

    >>> import sqlite3
    >>> connection = sqlite3.connect(":memory:", check_same_thread=False)
    >>> rows = query(connection, "SELECT 1 AS id, 'cup' AS name UNION ALL SELECT 2, 'pot'")
    >>> from watersmeet import join
    >>> join(rows, pa.table({"id": [2], "sold": [5]}), on="id").table().to_pylist()
    [{'id': 2, 'name': 'pot', 'sold': 5}]
    """
    called = name or "the query"
    raw = getattr(connection, "connection", connection)  # SQLAlchemy wraps the driver's own connection
    raw = getattr(raw, "driver_connection", raw)
    cursor = None
    try:
        cursor = raw.cursor()
        cursor.execute(sql, *(() if parameters is None else (parameters,)))
    except Exception as error:
        if cursor is not None:
            cursor.close()
        raise SourceError(f"{called} cannot be run: {first_line(error)}") from error
    return CursorSource(cursor, called, schema, batch_rows)


class CursorSource(BaseSource):
    """What a cursor that has executed a query will fetch."""

    def __init__(
        self, cursor: Any, name: str = UNNAMED, schema: pa.Schema | None = None, batch_rows: int = BATCH_ROWS
    ) -> None:
        super().__init__(name, schema, batch_rows)
        self._cursor = self.drains = cursor
        self._reader: pa.RecordBatchReader | None = None
        self._first: pa.RecordBatch | None = None

    def _find_schema(self) -> pa.Schema:
        if hasattr(self._cursor, "fetch_record_batch"):
            return self._open().schema
        self._first = self._fetch(None)
        if self._first is None:
            raise SourceError(f"{self.name} has no rows to tell its types by; pass a schema")
        return self._first.schema

    def _open(self) -> pa.RecordBatchReader:
        if self._reader is None:
            self._reader = self._cursor.fetch_record_batch()
        return self._reader

    def _read(self) -> Iterator[pa.RecordBatch]:
        if hasattr(self._cursor, "fetch_record_batch"):
            yield from self._open()
            return
        schema = self.schema()
        batch = self._first if self._first is not None else self._fetch(schema)
        while batch is not None:
            yield batch
            batch = self._fetch(schema)

    def _fetch(self, schema: pa.Schema | None) -> pa.RecordBatch | None:
        rows = self._cursor.fetchmany(self.batch_rows)
        if not rows:
            return None
        names = schema.names if schema is not None else [column[0] for column in self._cursor.description]
        columns = [list(column) for column in zip(*rows, strict=True)]
        arrays = [
            inferred(column) if schema is None else pa.array(column, schema.field(i).type)
            for i, column in enumerate(columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, names=names) if schema is None else pa.record_batch(arrays, schema)

    def _describe(self, error: Exception) -> str:
        told = first_line(error)
        if "SQLite objects created in a thread" in told:
            return (
                "sqlite3 lets only the thread that made a connection use it, and each input is read in a thread of its "
                "own; make it with sqlite3.connect(..., check_same_thread=False)"
            )
        return told

    def close(self) -> None:
        """Close the cursor."""
        super().close()
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            with suppress(Exception):  # one that may not be used in this thread: that it could not be read is the news
                cursor.close()


def is_cursor(data: object) -> bool:
    """Whether an object is a cursor that can be fetched from."""
    return hasattr(data, "fetchmany") and hasattr(data, "description")
