"""State from before an input had its last columns: its runs are written once more, with NULLs in these.

A restarted query may have columns at the end of its inputs that the state does not know (`state.directory` checks that
nothing else is new). A group's first batch after that opens its runs, and each is copied as it is opened: the same rows
in the same order, wider. Whatever else a snapshot says of a run, by its name and by numbers of rows, holds for the
copy, which takes the old one's place under its name. It is published with the batch; an attempt that fails leaves the
old runs, and the next begins with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core.errors import SnapshotError
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Snapshot
from watersmeet.memory import Budget, no_room_for
from watersmeet.records.plan import fixed_width
from watersmeet.runs.sorted_run import OpenRun, RunWriter, SortedRun, let_go
from watersmeet.spark.state.directory import GroupState
from watersmeet.spark.state.store import VersionedStore
from watersmeet.spill.store import MemoryStore
from watersmeet.tables.hash_table import Layout, row_bytes
from watersmeet.tables.memtable import Memtable

_CHUNK = 64 << 10
_BLOCKS = 16
_AT_ONCE = 256 << 10
"""Blocks, and bytes of them, that are written at once."""
_SHARE = 16
"""Rows that are copied at a time may take one part in so many of the memory, or be one block."""
_WIDE = 16
"""What a value of a column of any width may take in a result, if it is NULL."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """What an input's rows consist of on disk."""

    columns: list[tuple[str, int]]
    """Each with what tells it: a word that comes before or behind those of the input, or a column of the input."""
    types: list[pa.DataType]


def with_new_columns(
    factory: Any, group: GroupState, snapshot: Snapshot, store: VersionedStore, open_run: OpenRun, memory: int
) -> tuple[Snapshot, OpenRun]:
    """A snapshot, and what opens its runs, as the factory's operator can take them, be they of fewer columns.

    :param memory: what the operator is given. Runs are opened while it is put together, with all its rows on disk: its
        buffers are there, and its room for rows is what copies are made in.
    """
    known = group.columns_before(snapshot.fingerprint)
    if known is None:
        return snapshot, open_run
    if any(snapshot.state["deltas"]) or any(snapshot.state["waiting"]):
        raise SnapshotError(
            f"the state in {group.place} has rows outside of runs, which cannot be given new columns; start the query "
            f"with the columns that it had, or start again with a new state directory and checkpoint"
        )
    before = _stored(replace(factory, spec=_shortened(factory.spec, known)))
    now = _stored(factory)

    def opened(name: str, types: Sequence[pa.DataType]) -> SortedRun:
        side = int(name.split("-")[1])  # of every operator's runs
        if types and before[side].columns != now[side].columns:
            _widen(store, name, before[side], now[side], memory)
        return open_run(name, types)

    added = [
        sum(fixed_width(type_) or _WIDE for type_ in new.types)
        - sum(fixed_width(type_) or _WIDE for type_ in old.types)
        for old, new in zip(before, now, strict=True)
    ]
    widest = [size + more for size, more in zip(snapshot.state["widest"], added, strict=True)]
    state = {**snapshot.state, "widest": widest}
    return replace(snapshot, fingerprint=factory.spec.fingerprint, state=state), opened


def _shortened(spec: Any, columns: Sequence[int]) -> Any:
    """A join of inputs that have so many columns."""
    schemas = [pa.schema(list(spec.input(number))[:count]) for number, count in enumerate(columns)]
    if isinstance(spec, MultiSpec):
        return replace(spec, schemas=tuple(schemas))
    return replace(spec, left=schemas[0], right=schemas[1])


def _stored(factory: Any) -> list[_Stored]:
    operator = factory.build(factory.least_memory(), MemoryStore())
    found = []
    for plan, table in zip(operator.plans, operator.tables, strict=True):
        before, behind = len(plan.types) - len(plan.sources), len(table.types) - len(plan.types)
        columns = [("before", i) for i in range(before)]
        columns += [("column", source) for source in plan.sources]
        columns += [("behind", i) for i in range(behind)]
        found.append(_Stored(columns, list(table.types)))
    operator.close()
    return found


def _widen(store: VersionedStore, name: str, before: _Stored, now: _Stored, memory: int) -> None:
    """Write a run once more, with columns that it does not have."""
    run = SortedRun(store, name, before.types)
    # Rows are in memory twice, as they are read and in the table that they are written from.
    block = run.block_rows * (run.nbytes // max(1, run.rows) + row_bytes(now.types))
    at_once = run.block_rows * max(1, min(_BLOCKS, memory // _SHARE // (2 * block)))
    budget = Budget(memory)
    reading = budget.reservation("rows on their way")
    table = Memtable(now.types, budget, Layout(0, at_once, _CHUNK), name, ticked=False)
    writer = RunWriter(store, f"{name}-wide", now.types, run.rows, run.block_rows, _AT_ONCE)
    try:
        run.check_hashes(0, run.rows)
        writer.write_hashes(run.hashes())
        for start in range(0, run.rows, at_once):
            numbers = np.arange(start, min(run.rows, start + at_once))
            run.check_rows(numbers)
            values = run.gather_all(tuple(range(len(before.types))), numbers)
            columns = [
                values[before.columns.index(each)] if each in before.columns else pa.nulls(len(numbers), type_)
                for each, type_ in zip(now.columns, now.types, strict=True)
            ]
            parts = np.zeros(len(numbers), np.int32)
            held = sum(column.nbytes for column in columns)
            if not (reading.try_grow(held) and table.reserve(parts, columns)):
                raise no_room_for(f"a block of {len(numbers)} rows that get new columns", 2 * held, budget)
            rows = table.append(np.zeros(len(numbers), np.int64), parts, columns, np.zeros(len(numbers), np.int64))
            writer.write_rows(table, rows)
            table.clear()
            reading.shrink(held)
        writer.seal()
    except BaseException:
        writer.abort()
        raise
    let_go([run])
    store.put_in_place(name, f"{name}-wide")
