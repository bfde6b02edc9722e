"""Where rows come from: files, tables, frames, readers and iterators, all behind one small interface."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from watersmeet.core.errors import SourceError
from watersmeet.core.promises import Promises
from watersmeet.sources.base import BATCH_ROWS, UNNAMED, BaseSource, Source
from watersmeet.sources.databases import CursorSource, is_cursor
from watersmeet.sources.iterators import IteratorSource
from watersmeet.sources.marked import is_marked, marked_source
from watersmeet.sources.tables import ReaderSource, TableSource, as_table, open_stream, table_of_dicts

__all__ = ["Source", "as_source", "source"]

_KINDS = (
    "a path or glob, a PyArrow table, batch or reader, a pandas or Polars frame, a database cursor, or an iterator of "
    "record batches, of tables or of dicts"
)


def is_address(data: object) -> bool:
    """Whether this is the address of something elsewhere, and no path.

    >>> is_address("https://example.org/a.csv"), is_address("a:b/c.csv"), is_address("C://a.csv")
    (True, False, False)
    """
    return isinstance(data, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", data) is not None


def source(
    data: object,
    *,
    name: str | None = None,
    schema: pa.Schema | None = None,
    batch_rows: int = BATCH_ROWS,
    unique: Sequence[str] | str = (),
    clustered: Sequence[str] | str = (),
    sorted: Sequence[str | tuple[str, str]] | str = (),
    punctuated: bool = False,
) -> Source:
    """Rows to join, from nearly anything.

    `data` is a path or glob (Parquet, CSV, NDJSON, Arrow IPC), a PyArrow table, batch or reader, anything with an
    Arrow C stream, a pandas frame (copied, without its index) or Polars frame, a database cursor that has executed a
    query, or an iterable of record batches, of tables or of dicts. `name` is what errors call it. A `schema` spares the
    wait for an iterator's first item and settles the types of text files; rows of any kind are cast to it where that is
    safe. Batches have at most `batch_rows` rows.

    A source can promise something of its rows, which lets `join` forget rows sooner: that columns are `unique`, that
    rows come `clustered` by columns (those with equal values one after the other) or `sorted` by them (`("day",
    "descending")` for the other direction). With `punctuated`, there may be punctuations among the items of an iterator
    (see `Punctuation`), or among the lines of an NDJSON file; XML streams can always have them. A row that breaks a
    promise is an error when it comes.

    >>> promising = source(pa.table({"id": [1, 2]}), unique=["id"], sorted=["id"])
    >>> promising.promises.unique
    ('id',)

    >>> types = pa.schema({"id": pa.int32(), "paid": pa.bool_()})
    >>> orders = source(({"id": i, "paid": None} for i in range(3)), schema=types)
    >>> pa.Table.from_batches(orders.batches()).schema.types
    [DataType(int32), DataType(bool)]
    """
    promises = Promises.of(unique, clustered, sorted, punctuated)
    made = _plain_source(data, name, schema, batch_rows, punctuated)
    if promises:
        made.promises = replace(promises, punctuated=made.promises.punctuated or punctuated)
    return made


def _plain_source(
    data: object, name: str | None, schema: pa.Schema | None, batch_rows: int, punctuated: bool
) -> BaseSource:
    """A source of which nothing more is promised than its kind tells."""
    if data is None:
        raise SourceError(f"{name or UNNAMED} is None; give {_KINDS}")
    if is_address(data):
        raise SourceError(
            f"{data} is an address, and only files are read by name; fetch it first, or give a reader of it, such as "
            f"pyarrow.dataset.dataset(...).scanner().to_reader()"
        )
    called = UNNAMED if name is None else name
    if is_marked(data, punctuated):
        return marked_source(data, called, schema, batch_rows)
    if isinstance(data, str | os.PathLike):
        # File formats are what costs most to import, and many joins read none.
        from watersmeet.sources.files import FileSource

        return FileSource(data, called, schema, batch_rows)
    if isinstance(data, pa.RecordBatchReader):
        return ReaderSource(data, called, schema, batch_rows)
    table = as_table(data, called)
    if table is not None:
        return TableSource(table, called, schema, batch_rows)
    if hasattr(data, "__arrow_c_stream__"):
        return ReaderSource(open_stream(data, called), called, schema, batch_rows)
    if is_cursor(data):
        return CursorSource(data, called, schema, batch_rows)
    if isinstance(data, Source):
        raise SourceError(f"{data.name} is a source already; name, schema and batch_rows are given when it is made")
    if isinstance(data, list | tuple) and data and isinstance(data[0], Mapping) and schema is None:
        return TableSource(table_of_dicts(data, called), called, None, batch_rows)
    if isinstance(data, Mapping | bytes) or not isinstance(data, Iterable):
        raise SourceError(f"{called} is of type {type(data).__name__}, which holds no rows; give {_KINDS}")
    return IteratorSource(data, called, schema, batch_rows)


def as_source(data: object, name: str) -> Source:
    """A source of `data`, or `data` itself where it is one; `name` is what errors call it unless it has a name.

    >>> as_source(pa.table({"id": [1]}), "left").name
    'left'
    """
    if not isinstance(data, Source):
        return source(data, name=name)
    if data.name == UNNAMED:
        data.name = name
    return data
