"""The first rows of a result, shown on the terminal where no output file was named."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from watersmeet.cli.colour import harmless

_SHOWN_ROWS = 20


def first_rows(batches: Iterable[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], int]:
    """A few rows to show, and the number of all."""
    head: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if rows < _SHOWN_ROWS:
            head.append(batch.slice(0, _SHOWN_ROWS - rows))
        rows += batch.num_rows
    return head, rows


def print_table(schema: pa.Schema, head: list[pa.RecordBatch], rows: int) -> None:
    """The rows to show as a table, as wide as the terminal, and how many there are in all."""
    width = shutil.get_terminal_size((100, 24)).columns
    console = Console(file=sys.stdout, width=width, highlight=False)
    columns = pa.Table.from_batches(head, schema)
    # A column needs some characters to say anything: what does not fit is named, not squeezed to nothing.
    fit = max(1, min(len(schema), width // 10))
    table = Table(show_lines=False)
    for field in list(schema)[:fit]:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        table.add_column(
            Text(harmless(field.name)), justify="right" if number else "left", no_wrap=True, overflow="ellipsis"
        )
    shown = [[_cell(value) for value in _values(column)] for column in columns.columns[:fit]]
    for row in zip(*shown, strict=True):
        table.add_row(*row)
    if len(schema):
        console.print(table)
    if fit < len(schema):
        console.print(Text(harmless("more columns: " + ", ".join(schema.names[fit:]))))
    more = f", the first {columns.num_rows} shown" if rows > columns.num_rows else ""
    console.print(f"{rows:,} {'row' if rows == 1 else 'rows'}{more}")


def _values(column: pa.ChunkedArray) -> list[object]:
    """A column's values; text of a Parquet file need not be UTF-8."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [
            None if each is None else each.decode(errors="replace") for each in column.cast(pa.binary()).to_pylist()
        ]


def _cell(value: object) -> Text:
    return Text("null", style="dim") if value is None else Text(harmless(" ".join(str(value).split())))
