"""A memtable becomes a run: its rows are read off its index in the order of their hashes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from watersmeet.core.arrays import Numbers, Uint64
from watersmeet.runs.sorted_run import RunWriter, SortedRun
from watersmeet.runs.spine import block_rows_for
from watersmeet.spill.store import Store
from watersmeet.tables.memtable import Memtable
from watersmeet.tables.memtable_index import Walk


def write_run(
    store: Store,
    name: str,
    table: Memtable,
    hashes: Uint64,
    numbers: Numbers,
    block_bytes: int,
    order: Memtable | None = None,
    sorted_already: bool = False,
) -> SortedRun:
    """Write all rows of a memtable, through buffers for hashes and row numbers; a failure leaves nothing.

    They are in the order of their own hashes, or of those that another memtable has of the same rows. Where the buffers
    hold all rows, they are sorted once, or not at all if the buffers have them so.
    """
    order = table if order is None else order
    block_rows = block_rows_for(table.row_nbytes, table.rows, block_bytes)
    writer = RunWriter(store, name, table.types, table.rows, block_rows)
    at_once = table.rows <= len(numbers)
    try:
        for count in [table.rows] if sorted_already else _sorted(order, hashes, numbers):
            writer.write_hashes(hashes[:count])
        waiting = np.empty(0, numbers.dtype)
        for count in [table.rows] if at_once else _sorted(order, hashes, numbers):
            waiting = np.concatenate([waiting, numbers[:count]])
            whole = len(waiting) // block_rows * block_rows
            for start in range(0, whole, block_rows):
                writer.write_block(table, waiting[start : start + block_rows])
            waiting = waiting[whole:]
        if len(waiting):
            writer.write_block(table, waiting)
        return writer.seal()
    except BaseException:
        writer.abort()
        raise


def _sorted(table: Memtable, hashes: Uint64, numbers: Numbers) -> Iterator[int]:
    """All rows in the order of their hashes, as many at a time as the buffers hold; tells how many these are."""
    walk = table.walk(0, table.rows, len(numbers))
    if walk.sorting and table.rows > len(numbers):
        walk = Walk(0, table.rows, bits=table.bits)
    while not walk.done:
        yield table.next_sorted(walk, hashes, numbers)
