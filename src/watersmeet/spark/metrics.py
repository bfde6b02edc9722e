"""What the tasks of a batch did, on its way to `StreamingQueryProgress.observedMetrics`.

Spark's observed metrics are aggregates over rows. So each task hands out one more row, which holds its figures and
nothing else; Spark adds the figures up, and then the row is left out. In the rows of results, the column of figures is
a NULL list: four bytes of offset and a bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as fn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMN = "watersmeet_figures"
_ARROW_TYPE = pa.list_(pa.field("element", pa.int64()))
_LARGEST = ("memory",)
"""Figures of which the largest task speaks for the batch; the others are added up."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one task did, in rows and bytes."""

    left_rows: int
    right_rows: int
    results: int
    memory: int
    """The most that was reserved at once."""
    written: int
    """Bytes written to the state, merging included."""
    state_rows: int
    state_bytes: int


def with_figures(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Results with the column of figures, empty."""
    for batch in batches:
        yield batch.append_column(COLUMN, pa.nulls(batch.num_rows, _ARROW_TYPE))


def figures_row(schema: pa.Schema, figures: Figures) -> pa.RecordBatch:
    """The row that carries a task's figures.

    >>> figures_row(pa.schema({"id": pa.int8()}), Figures(1, 2, 3, 4, 5, 6, 7)).to_pylist()
    [{'id': None, 'watersmeet_figures': [1, 2, 3, 4, 5, 6, 7]}]
    """
    arrays = [pa.nulls(1, field.type) for field in schema]
    row = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return row.append_column(COLUMN, pa.array([list(astuple(figures))], _ARROW_TYPE))


def observed(frame: DataFrame, name: str) -> DataFrame:
    """Results alone, the figures having been added up under this name."""
    totals = [
        (fn.max if field.name in _LARGEST else fn.sum)(fn.col(COLUMN)[i]).alias(field.name)
        for i, field in enumerate(fields(Figures))
    ]
    return frame.observe(name, *totals).where(fn.col(COLUMN).isNull()).drop(COLUMN)
