"""Rows of a micro-batch on their way into runs: hashed, kept up to a limit, and written in a canonical order.

The order depends on the rows alone, not on how they came: by hash, and rows of one hash by their values. A task that is
run again, and is fed by other tasks in another order, writes the same and answers in the same order. (Rows that differ
only inside lists or maps, which Arrow does not sort by, stay as they came; which pairs there are never depends on it.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.core.arrays import Int64
from watersmeet.memory import Budget
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan
from watersmeet.runs.hash_runs import Run, RunWriter
from watersmeet.spark.task.batch_rows import Fresh
from watersmeet.spark.task.sizes import INDEX_BYTES, Sizes
from watersmeet.spill.store import Store

_MOST_BYTES = 1 << 30
"""Of strings in one array: their offsets have 32 bits."""


@dataclass(slots=True)
class _Pile:
    """One side's rows that wait to be written."""

    hashes: list[Int64] = field(default_factory=list)
    columns: list[list[pa.Array]] = field(default_factory=list)


class Received:
    """Takes rows of both sides and writes them as runs: all at the end, or earlier when they fill their memory."""

    def __init__(
        self,
        codec: KeyCodec,
        plans: tuple[RowPlan, RowPlan],
        store: Store,
        names: Callable[[int], str],
        sizes: Sizes,
        budget: Budget,
    ) -> None:
        self._codec = codec
        self._plans = plans
        self._store = store
        self._names = names
        self._sizes = sizes
        self._claim = budget.reservation("rows received")
        self._piles = [_Pile(), _Pile()]
        self.runs: tuple[list[Run], list[Run]] = ([], [])
        """The runs written so far, of each side."""
        self.rows = [0, 0]
        """Rows received that can match anything."""

    def add(self, side: int, batch: pa.RecordBatch) -> None:
        """Take rows, a slice at a time where there are too many for the memory."""
        each = max(1, batch.nbytes // max(1, batch.num_rows) + INDEX_BYTES)
        step = max(1, self._sizes.received_bytes // 2 // each)
        for start in range(0, batch.num_rows, step):
            self._add(side, batch.slice(start, step))

    def _add(self, side: int, batch: pa.RecordBatch) -> None:
        plan = self._plans[side]
        hashes, valid = self._codec.hash(side, plan.key_arrays(batch))
        columns = plan.store(batch, np.empty(0, np.int64))
        if valid is not None:  # NULL matches nothing
            kept = np.flatnonzero(valid)
            hashes = hashes[kept]
            columns = [column.take(pa.array(kept)) for column in columns]
        if not len(hashes):
            return
        size = sum(column.nbytes for column in columns) + len(hashes) * (8 + INDEX_BYTES)
        limit = min(self._sizes.received_bytes, _MOST_BYTES)
        if self._claim.held + size > limit:
            self.write()
        self._claim.grow(size)
        self._piles[side].hashes.append(hashes)
        self._piles[side].columns.append(columns)
        self.rows[side] += len(hashes)

    def write(self) -> None:
        """Write all rows that wait, one run for each side."""
        for side in (0, 1):
            fresh = self._sorted(side)
            if fresh is not None:
                self.runs[side].append(self.write_run(side, fresh))
        self._claim.clear()

    def rest(self) -> tuple[Fresh | None, Fresh | None]:
        """The rows that wait, in their order; they stay in memory, and in the budget."""
        return self._sorted(0), self._sorted(1)

    def write_run(self, side: int, fresh: Fresh) -> Run:
        """Write rows as a run of their own."""
        sizes = self._sizes
        names, types = lambda: self._names(side), self._plans[side].types
        with RunWriter(self._store, names, types, sizes.page_bytes, sizes.segment_rows) as writer:
            for hashes, columns in fresh.pages(self._sizes.page_bytes):
                writer.add(hashes, columns)
            return writer.finish()

    def _sorted(self, side: int) -> Fresh | None:
        pile, self._piles[side] = self._piles[side], _Pile()
        if not pile.hashes:
            return None
        hashes = np.concatenate(pile.hashes)
        columns = []
        for i in range(len(self._plans[side].types)):
            columns.append(pa.concat_arrays([piece[i] for piece in pile.columns]))
            for piece in pile.columns:  # each column is held twice only while it is put together
                piece[i] = None
        order = canonical_order(hashes, columns)
        taken = pa.array(order)
        for i, column in enumerate(columns):
            columns[i] = column.take(taken)
        return Fresh(hashes[order], columns)


def canonical_order(hashes: Int64, columns: list[pa.Array]) -> Int64:
    """The order of rows by hash, and of rows of one hash by their values.

    >>> canonical_order(np.array([7, 3, 7]), [pa.array(["b", "x", "a"])]).tolist()
    [1, 2, 0]
    """
    order = np.argsort(hashes)
    ordered = hashes[order]
    same = ordered[1:] == ordered[:-1]
    if not same.any():
        return order
    tied = np.zeros(len(order), np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    rows = order[tied]
    keys: list[tuple[str, str]] = [("hash", "ascending")]
    arrays = [pa.array(hashes[rows])]
    taken = pa.array(rows)
    for leaf in (leaf for column in columns for leaf in _sortable(column.take(taken))):
        keys.append((str(len(arrays)), "ascending"))
        arrays.append(leaf)
    table = pa.table(arrays, names=["hash", *(name for name, _ in keys[1:])])
    order[tied] = rows[np.asarray(pc.sort_indices(table, sort_keys=keys)).astype(np.int64)]
    return order


def _sortable(array: pa.Array) -> list[pa.Array]:
    """What Arrow can sort by in a column: the column, the fields of a struct, or nothing."""
    if pa.types.is_struct(array.type):
        leaves = [array.is_null()]
        for child in array.flatten():
            leaves += _sortable(child)
        return leaves
    type_ = array.type
    if pa.types.is_floating(type_):  # by their bits: the two zeros, and all NaNs, are rows of different values
        return [array.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[type_.bit_width])]
    if pa.types.is_duration(type_):
        return [array.cast(pa.int64())]
    if pa.types.is_fixed_size_binary(type_):
        return [array.cast(pa.binary())]
    if pa.types.is_decimal32(type_) or pa.types.is_decimal64(type_):
        return [array.cast(pa.decimal128(type_.precision, type_.scale))]
    if pa.types.is_nested(type_) or pa.types.is_null(type_) or pa.types.is_interval(type_):
        return []
    return [array]
