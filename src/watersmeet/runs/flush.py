"""A memtable becomes a run: its rows are read off its index in the order of their hashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from watersmeet.core.arrays import Bool, Numbers, Uint64
from watersmeet.runs.sorted_run import RunWriter, SortedRun, block_rows_for
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
    staying: tuple[int, Callable[[Uint64, Numbers], Bool]] | None = None,
    note: Callable[[Numbers], None] | None = None,
) -> SortedRun:
    """Write all rows of a memtable, through buffers for hashes and row numbers; a failure leaves nothing.

    They are in the order of their own hashes, or of those that another memtable has of the same rows. Where the buffers
    hold all rows, they are sorted once, or not at all if the buffers have them so. `staying` is how many rows are not
    written, and which of some these are. `note` is told which rows are written, in their order.
    """
    order = table if order is None else order
    stayed, stays = (0, None) if staying is None else staying
    rows = table.rows - stayed
    block_rows = block_rows_for(table.row_nbytes, table.rows, block_bytes)
    writer = RunWriter(store, name, table.types, rows, block_rows, block_bytes)
    at_once = table.rows <= len(numbers)

    def leaving(sorted_already: bool = False) -> Iterator[int]:
        for count in [table.rows] if sorted_already else _sorted(order, hashes, numbers):
            yield count if stays is None else _without(hashes, numbers, count, stays)

    try:
        for count in leaving(sorted_already):
            writer.write_hashes(hashes[:count])
            if note is not None:
                note(numbers[:count])
        waiting = np.empty(0, numbers.dtype)
        for count in [rows] if at_once else leaving():
            waiting = np.concatenate([waiting, numbers[:count]])
            whole = len(waiting) // block_rows * block_rows
            writer.write_rows(table, waiting[:whole])
            waiting = waiting[whole:]
        if len(waiting):
            writer.write_rows(table, waiting)
        return writer.seal()
    except BaseException:
        writer.abort()
        raise


def _without(hashes: Uint64, numbers: Numbers, count: int, stays: Callable[[Uint64, Numbers], Bool]) -> int:
    """Take those that stay out of the buffers; returns how many are left."""
    left = np.flatnonzero(~stays(hashes[:count], numbers[:count]))
    hashes[: len(left)], numbers[: len(left)] = hashes[left], numbers[left]
    return len(left)


def _sorted(table: Memtable, hashes: Uint64, numbers: Numbers) -> Iterator[int]:
    """All rows in the order of their hashes, as many at a time as the buffers hold; tells how many these are."""
    walk = table.walk(0, table.rows, len(numbers))
    if walk.sorting and table.rows > len(numbers):
        walk = Walk(0, table.rows, bits=table.bits)
    while not walk.done:
        yield table.next_sorted(walk, hashes, numbers)
