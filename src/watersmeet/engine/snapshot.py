"""Saving and restoring a progressive join.

What was spilled is in immutable segments already. Of the rows in memory, each snapshot writes those that arrived since
the last one; rows that have left memory meanwhile are told by their ticks, so nothing is written twice. When more has
left than remains, the next snapshot starts afresh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.errors import BudgetError, SnapshotError
from watersmeet.core.protocol import Snapshot
from watersmeet.memory import format_bytes
from watersmeet.records.intake import Received
from watersmeet.runs.page import Page, write_rows
from watersmeet.spill.segment import Segment, SegmentWriter

if TYPE_CHECKING:
    from watersmeet.engine.shell import Operator

FORMAT = 3
"""Of what a snapshot says; older ones are refused."""
_MOST_DELTAS = 16
_ROWS_AT_ONCE = 8192


class Saver:
    """One operator's snapshots."""

    def __init__(self, join: Operator) -> None:
        self._join = join
        self._count = 0
        self._sides = range(len(join.tables))
        self._deltas: list[list[tuple[str, int]]] = [[] for _ in self._sides]
        self._saved_until = [0 for _ in self._sides]
        self._waiting: list[tuple[str, list[Received]]] = [("", []) for _ in self._sides]
        self._kept: set[str] = set()
        self._unwanted: set[str] = set()

    def discard(self, names: list[str]) -> None:
        """Remove segments, but not before the next snapshot if the last one needs them."""
        for name in names:
            if name in self._kept:
                self._unwanted.add(name)
            else:
                self._join.store.remove(name)

    def save(self, segments: list[str], own: dict[str, Any]) -> Snapshot:
        """A snapshot of the frame's state and the operator's own."""
        join = self._join
        self._count += 1
        for side in self._sides:
            self._save_rows(side)
        waiting = [self._save_waiting(side) for side in self._sides]
        state = {
            **own,
            **join.frame_state(),
            "format": FORMAT,
            "memory": join.budget.total,
            "count": self._count,
            "deltas": [[list(delta) for delta in deltas] for deltas in self._deltas],
            "saved_until": list(self._saved_until),
            "waiting": waiting,
        }
        names = [*segments, *(name for deltas in self._deltas for name, _ in deltas)]
        names += [name for name in waiting if name]
        before, self._kept = self._kept, set(names)
        # What only the last snapshot needed goes now: its unfinished batches, and what was unwanted since.
        stale = {name for name in before if "-waiting-" in name} | self._unwanted
        self._unwanted = set()
        self.discard(sorted(stale - self._kept))
        return Snapshot(join.name, join.spec.fingerprint, state, tuple(names))

    def _save_rows(self, side: int) -> None:
        join, table = self._join, self._join.tables[side]
        deltas = self._deltas[side]
        rows = self._rows_since(side, self._saved_until[side])
        stale = sum(count for _, count in deltas) + len(rows) > 2 * table.rows
        replaced: list[tuple[str, int]] = []
        if len(rows) and len(deltas) >= _MOST_DELTAS or deltas and stale:
            everything = self._rows_since(side, 0)
            if len(everything) < sum(count for _, count in deltas) + len(rows):
                replaced, rows = deltas, everything
        name = f"snapshot-{side}-{self._count}"
        if len(rows):
            write_rows(join.store, name, table, rows, join.sizing.page_bytes)
        # Only now is it known that the disk took them: before, nothing may have changed.
        self._unwanted.update(old for old, _ in replaced)
        self._deltas[side] = [*([] if replaced else deltas), *([(name, len(rows))] if len(rows) else [])]
        self._saved_until[side] = join.clock

    def _rows_since(self, side: int, tick: int) -> NDArray[np.int32]:
        """Rows in memory that arrived after a tick, those brought back from disk left out."""
        table = self._join.tables[side]
        found = [np.empty(0, np.int32)]
        for part in range(table.layout.partitions):
            if table.latest_tick(part) > tick or table.brought_back(part):
                rows = table.rows_of(part)
                found.append(rows[(table.ticks(rows) > tick) & (table.ordinals(rows) < 0)])
        return np.concatenate(found)

    def _save_waiting(self, side: int) -> str | None:
        """Write rows that were received and are not in memory yet, unless the last snapshot has them."""
        waiting = self._join.waiting(side)
        if not waiting:
            return None
        name, saved = self._waiting[side]
        if len(saved) == len(waiting) and all(
            old.batch is new.batch and old.numbers is new.numbers and old.start == new.start
            for old, new in zip(saved, waiting, strict=True)
        ):
            return name
        name = f"snapshot-waiting-{side}-{self._count}"
        writer = SegmentWriter(self._join.store, name, self._join.waiting_schema(side))
        try:
            for received in waiting:
                writer.write_page(received.batch.slice(received.start))
            for i, received in enumerate(waiting):
                if received.numbers is not None:
                    writer.add_array(f"numbers-{i}", np.ascontiguousarray(received.numbers[received.start :]))
            writer.seal({"numbered": [i for i, received in enumerate(waiting) if received.numbers is not None]}).close()
        except BaseException:
            writer.abort()
            raise
        self._waiting[side] = (name, waiting)
        return name

    def load(self, snapshot: Snapshot) -> None:
        """Take over a snapshot; the operator's own state is in place already."""
        join, state = self._join, snapshot.state
        self._count = state["count"]
        self._kept = set(snapshot.segments)
        self._deltas = [[(name, rows) for name, rows in deltas] for deltas in state["deltas"]]
        self._saved_until = list(state["saved_until"])
        for side in self._sides:
            for name, _ in self._deltas[side]:
                self._load_rows(side, name)
        for table in join.tables:  # only now: an index takes what memory there is, and rows must have it first
            table.fit_index()

    def _load_rows(self, side: int, name: str) -> None:
        join, table = self._join, self._join.tables[side]
        segment = Segment.open(join.store, name)
        for number in range(segment.pages):
            page = Page.of(segment.read_page(number))
            parts = table.parts_of(page.hashes)
            alive = np.flatnonzero(join.still_in_memory(side, parts, page.ticks))
            start, count = 0, _ROWS_AT_ONCE
            while start < len(alive):
                some = alive[start : start + count]
                columns = [column.take(pa.array(some)) for column in page.columns]
                if table.reserve(parts[some], columns):
                    table.append(page.hashes[some], parts[some], columns, page.ticks[some], grow_index=False)
                    start += len(some)
                elif count > 1:
                    table.trim(join.budget.total)
                    count //= 2
                else:
                    limit = format_bytes(join.budget.total)
                    raise BudgetError(f"the snapshot does not fit into {limit} of memory; allow a little more")
        segment.close()

    def load_waiting(self, snapshot: Snapshot) -> list[list[Received]]:
        """Batches of each side that were received and not in memory yet."""
        loaded: list[list[Received]] = [[] for _ in self._sides]
        for side, name in enumerate(snapshot.state["waiting"]):
            if name is None:
                continue
            segment = Segment.open(self._join.store, name)
            numbered = set(segment.meta["numbered"])
            for i in range(segment.pages):
                numbers = np.array(segment.array(f"numbers-{i}")) if i in numbered else None
                loaded[side].append(Received(_owned(segment.read_page(i)), numbers))
            segment.close()
        return loaded


def check_snapshot(name: str, fingerprint: str, snapshot: Snapshot, memory: int) -> None:
    """Refuse a snapshot of another join, or less memory than it was taken with."""
    if snapshot.algorithm != name:
        raise SnapshotError(f"the snapshot is of {snapshot.algorithm!r}, not of {name!r}")
    if snapshot.fingerprint != fingerprint:
        raise SnapshotError("the snapshot is of another join: its inputs, conditions or output differ from this one's")
    if snapshot.state.get("format") != FORMAT:
        raise SnapshotError(
            "the snapshot was taken by another version of Watersmeet; go on with that version, or begin anew"
        )
    if memory < snapshot.state["memory"]:
        raise SnapshotError(
            f"the snapshot was taken with {format_bytes(snapshot.state['memory'])} of memory; allow as much, not "
            f"{format_bytes(memory)}"
        )


def _owned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy that does not lie in a mapped file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()
