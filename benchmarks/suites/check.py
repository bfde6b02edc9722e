"""One number for all rows of a result, whatever their order: the same in NumPy, for Arrow batches, and in Spark's SQL.

A row's number is `(c1 x1 + c2 x2 + ...)^2 mod p`, with p = 2^31 - 1 and a constant for each column; the result's is the
sum of them. As it is squared, it has products of what came from the left and from the right: rows that are paired with
wrong partners make another sum, where a sum of columns would stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from benchmarks.inputs import RowCount

PRIME = 2**31 - 1
_MULTIPLIER = 48_271
_NULL = 1_234_567


def constants(columns: Sequence[str]) -> list[int]:
    """One for each column, by its place."""
    return [pow(_MULTIPLIER, place + 1, PRIME) for place in range(len(columns))]


class Sum(RowCount):
    """Rows and their number."""

    def __init__(self, columns: Sequence[str]) -> None:
        super().__init__()
        self._columns = list(zip(columns, constants(columns), strict=True))
        self.sum = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch of results."""
        super().add(batch)
        rows = np.zeros(batch.num_rows, np.int64)
        for name, constant in self._columns:
            rows += numbers(batch.column(name)) % PRIME * constant % PRIME
        rows %= PRIME
        self.sum += int((rows * rows % PRIME).sum())

    @property
    def result(self) -> tuple[int, int]:
        """Rows and sum."""
        return self.rows, self.sum


def numbers(column: pa.Array) -> NDArray[np.int64]:
    """A whole number for each value: of times microseconds, of other numbers thousandths, of texts their letters."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _letters(column.cast(pa.large_string()))
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_date(kind):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_floating(kind):
        column = pc.round(pc.multiply(column, 1000.0)).cast(pa.int64())
    whole = column.cast(pa.int64())
    if whole.null_count:
        whole = whole.fill_null(_NULL)
    found: NDArray[np.int64] = whole.to_numpy(zero_copy_only=False)
    return found


def _letters(column: pa.Array) -> NDArray[np.int64]:
    if column.null_count:
        column = column.fill_null("nothing")
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    if not len(column) or ends[-1] == ends[0]:
        return np.zeros(len(column), np.int64)
    first = int(ends[0])
    letters = np.frombuffer(data, np.uint8)[first : int(ends[-1])].astype(np.int64)
    letters *= letters  # so that "ad" is not "bc"
    sums = np.concatenate([[0], np.cumsum(letters)])
    found: NDArray[np.int64] = sums[ends[1:] - first] - sums[ends[:-1] - first]
    return found


def on_spark(columns: Sequence[str], types: dict[str, str]) -> Any:
    """The same number as an aggregate of Spark's."""
    from pyspark.sql import functions as fn

    whole = []
    for name, constant in zip(columns, constants(columns), strict=True):
        column = fn.col(name)
        if types[name].startswith("timestamp"):
            column = fn.unix_micros(column)
        elif types[name] == "date":
            column = fn.unix_date(column)
        elif types[name] in ("double", "float"):
            column = fn.round(column * 1000.0)
        column = fn.coalesce(column.cast("long"), fn.lit(_NULL))
        whole.append(fn.pmod(fn.pmod(column, fn.lit(PRIME)) * constant, fn.lit(PRIME)))
    row = fn.pmod(sum(whole[1:], whole[0]), fn.lit(PRIME))
    return fn.coalesce(fn.sum(fn.pmod(row * row, fn.lit(PRIME)).cast("long")), fn.lit(0))
