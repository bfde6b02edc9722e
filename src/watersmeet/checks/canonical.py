"""Rows as hashable Python values, equal exactly when the rows are the same bit for bit.

Arrow's own comparison says that NaN differs from NaN and that -0.0 is 0.0; a payload must come through unchanged, so
here every float is its bits. Nested values are compared by their text, which tells the two zeros apart as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.core.keys import plain_type

Row: TypeAlias = "tuple[Any, ...]"


def canonical_rows(batch: pa.RecordBatch, columns: Iterable[int] | None = None) -> list[Row]:
    """The rows of a batch, or only these columns of them.

    >>> batch = pa.record_batch({"a": [1, None], "b": [[0.0], [float("nan")]]})
    >>> canonical_rows(batch)
    [(1, '[0.0]'), (None, '[nan]')]
    """
    wanted = range(batch.num_columns) if columns is None else columns
    lists = [canonical_column(batch.column(c)) for c in wanted]
    return list(zip(*lists, strict=True)) if lists else [()] * batch.num_rows


def canonical_column(column: pa.Array) -> list[Any]:
    """One hashable value for each of a column's values."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return canonical_column(column.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return canonical_column(pc.run_end_decode(column))
    if isinstance(kind, pa.BaseExtensionType):
        return canonical_column(column.storage)
    if pa.types.is_floating(kind):
        bits = column.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width])
        return canonical_column(bits)
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return canonical_column(column.view(pa.int32() if kind.bit_width == 32 else pa.int64()))
    if pa.types.is_integer(kind) and not column.null_count:
        return _numbers(column)
    values: list[Any] = column.to_pylist()
    return [repr(value) for value in values] if pa.types.is_nested(kind) else values


def canonical_null(type_: pa.DataType) -> str | None:
    """What stands for NULL in a column of this type.

    >>> canonical_null(pa.int8()), canonical_null(pa.list_(pa.int8()))
    (None, 'None')
    """
    return repr(None) if pa.types.is_nested(plain_type(type_)[0]) else None


def _numbers(column: pa.Array) -> list[int]:
    numbers: list[int] = np.asarray(column).tolist()
    return numbers
