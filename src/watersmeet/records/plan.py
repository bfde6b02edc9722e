"""Which columns of an input are kept, and rows that lie in a batch instead of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32, Int64, Numbers
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import JoinSpec, Output
from watersmeet.records.addressed import AddressedRows
from watersmeet.records.columns import ArrowColumn
from watersmeet.records.types import from_stored, stored_type, to_stored

_NUMBER = -1


class Rows(Protocol):
    """Rows by number: a table in memory, or a page of the disk."""

    def gather(self, column: int, rows: Int32) -> pa.Array:
        """One stored column's values for some rows."""
        ...

    def widen(self, column: int, rows: Int32, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in an output batch."""
        ...


def gather_all(source: Rows, columns: tuple[int, ...], rows: Numbers) -> list[pa.Array]:
    """The values of some rows in several columns: in one pass, where they can be had so."""
    if isinstance(source, TableRows):
        source, rows = source.in_table(rows)
    if isinstance(source, AddressedRows):
        return source.gather_all(columns, rows)
    return [source.gather(column, rows) for column in columns]


class RowPlan:
    """One input's columns on their way into the state and out of it.

    Only what is needed later is kept: the columns that reach the output, the keys where a hash alone cannot prove that
    they are equal, and the row's number where pairs of numbers are asked for.
    """

    def __init__(
        self, spec: JoinSpec | MultiSpec, side: int, exact_hash: bool, also_verified: Sequence[str] = ()
    ) -> None:
        schema = spec.input(side)
        key_columns = [schema.get_field_index(name) for name in spec.keys(side)]
        outputs = {
            Output.ROWS: list(spec.kept[side]),
            Output.PAIRS: [_NUMBER] if isinstance(spec, MultiSpec) or not (side and spec.kind.one_sided) else [],
            Output.COUNTS: [],
        }[spec.output]
        verified = ([] if exact_hash else key_columns) + [schema.get_field_index(name) for name in also_verified]
        preserved = isinstance(spec, MultiSpec) and spec.preserved == side
        self._sources = list(dict.fromkeys([*outputs, *verified, *([_NUMBER] if preserved else [])]))
        self.number = self._sources.index(_NUMBER) if preserved else None
        """Which stored column tells a row's number, where it is known by that."""
        self._originals = [pa.int64() if i == _NUMBER else schema.field(i).type for i in self._sources]
        self.types = [stored_type(type_) for type_ in self._originals]
        self._as_they_are = [stored == own for stored, own in zip(self.types, self._originals, strict=True)]
        widths = [fixed_width(type_) for type_ in self.types]
        self._fixed_width = sum(width or 0 for width in widths)
        self._of_any_width = [i for i, width in enumerate(widths) if width is None]
        self.outputs = [self._sources.index(i) for i in outputs]
        """Which stored columns form this side's part of the output."""
        self.keys = [self._sources.index(i) for i in verified]
        """Which stored columns prove a match; none if the hash does."""
        self._key_columns = key_columns

    @property
    def sources(self) -> tuple[int, ...]:
        """Which columns of the input are kept, in the order in which they are."""
        return tuple(self._sources)

    @property
    def as_they_are(self) -> bool:
        """Whether all columns are kept as they come, and none is made for it."""
        return all(self._as_they_are) and _NUMBER not in self._sources

    def key_arrays(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The key columns of an input batch."""
        return [batch.column(i) for i in self._key_columns]

    def store(self, batch: pa.RecordBatch, numbers: Int64) -> list[pa.Array]:
        """The columns to be kept, in their stored form."""
        return [
            pa.array(numbers) if i == _NUMBER else batch.column(i) if as_it_is else to_stored(batch.column(i))
            for i, as_it_is in zip(self._sources, self._as_they_are, strict=True)
        ]

    def widest(self, columns: Sequence[pa.Array]) -> int:
        """Bytes that the widest row among stored columns takes in an output batch, at most."""
        return self._fixed_width + sum(widest_value(columns[i]) for i in self._of_any_width)

    def original_type(self, column: int) -> pa.DataType:
        """The type that a stored column has in its input."""
        return self._originals[column]

    def original(self, column: int, array: pa.Array) -> pa.Array:
        """A stored column in its original type."""
        return from_stored(array, self._originals[column])


class TableRows:
    """Some rows of a table, numbered anew."""

    def __init__(self, table: Rows, rows: Numbers) -> None:
        self._table = table
        self._rows = rows
        self._last: tuple[Int32, Numbers] | None = None

    @property
    def numbers(self) -> Numbers:
        """The rows' numbers in the table."""
        return self._rows

    def in_table(self, rows: Int32) -> tuple[Rows, Numbers]:
        """The table, and the rows' numbers there."""
        return self._table, self._in_table(rows)

    def gather(self, column: int, rows: Int32) -> pa.Array:
        return self._table.gather(column, self._in_table(rows))

    def widen(self, column: int, rows: Int32, widths: Int64) -> None:
        self._table.widen(column, self._in_table(rows), widths)

    def _in_table(self, rows: Int32) -> Numbers:
        """The table's numbers; every column is asked for the same rows in turn."""
        if self._last is None or self._last[0] is not rows:
            self._last = (rows, self._rows[rows])
        return self._last[1]


class BatchRows:
    """Rows of a batch that is in no table: a page read from disk, or an arrival that need not be kept."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self._columns = columns
        self._ready: list[ArrowColumn | None] = [None] * len(columns)

    def gather(self, column: int, rows: Int32) -> pa.Array:
        ready = self._ready[column]
        if ready is None:
            ready = self._ready[column] = ArrowColumn(self._columns[column])
        return ready.gather(rows)

    def widen(self, column: int, rows: Int32, widths: Int64) -> None:
        widths += value_widths(self._columns[column])[rows]


def value_widths(array: pa.Array) -> Int64:
    """Bytes that each value takes in a batch; for nested values their mean."""
    count = len(array)
    offsets = _string_offsets(array)
    if offsets is not None:
        return np.diff(offsets).astype(np.int64) + offsets.itemsize
    return np.full(count, array.nbytes // max(1, count) + 1, np.int64)


def widest_value(array: pa.Array) -> int:
    """Bytes that the widest value takes in a batch; for nested values their mean."""
    offsets = _string_offsets(array)
    if offsets is not None:
        return int(np.diff(offsets).max(initial=0)) + offsets.itemsize
    return int(array.nbytes // max(1, len(array)) + 1)


def fixed_width(type_: pa.DataType) -> int | None:
    """Bytes of every value of a type; None if they differ."""
    try:
        return int(-(-type_.bit_width // 8))
    except ValueError:
        return None


def _string_offsets(array: pa.Array) -> NDArray[Any] | None:
    type_ = array.type
    large = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
    if not (large or pa.types.is_string(type_) or pa.types.is_binary(type_)):
        return None
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(len(array) + 1, np.int32)
    return np.frombuffer(buffer, np.int64 if large else np.int32)[array.offset : array.offset + len(array) + 1]
