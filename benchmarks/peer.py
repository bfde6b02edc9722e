"""DuckDB over the same Arrow tables, its results streamed out as Arrow batches."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.inputs import BATCH_ROWS, RowCount
from benchmarks.ours import Run, Watch
from watersmeet.core.errors import WatersmeetError

_QUERY = """
    SELECT l.key, l.number, l.measure, l.text, r.number AS number_right, r.measure AS measure_right, r.text AS
    text_right FROM l JOIN r ON l.key = r.key
"""


class OutOfMemory(Exception):
    """DuckDB could not do it in the memory it was allowed."""


def engine() -> Any:
    """The module."""
    try:
        return importlib.import_module("duckdb")
    except ImportError as error:
        raise WatersmeetError("the peer is not there; install duckdb, or leave out --peers") from error


def duckdb_join(
    left: pa.Table,
    right: pa.Table,
    count: RowCount | None = None,
    *,
    threads: int | None = 1,
    memory: int | None = None,
    spill: Path | None = None,
    query: str = _QUERY,
) -> Run:
    """Join in DuckDB; threads None is its own choice."""
    duckdb = engine()
    with duckdb.connect() as connection:
        if threads is not None:
            connection.execute(f"SET threads={threads}")
        if spill is not None:
            connection.execute(f"SET temp_directory='{spill}'")
        if memory is not None:
            connection.execute(f"SET memory_limit='{memory}B'")
        connection.register("l", left)
        connection.register("r", right)
        watch = Watch(count or RowCount())
        try:
            for batch in connection.sql(query).to_arrow_reader(BATCH_ROWS):
                watch.take(batch)
        except duckdb.OutOfMemoryException as error:
            raise OutOfMemory(str(error)) from error
        return watch.run()
