"""MESHJOIN: the relation passes by in an endless scan, and each row stays until all of it has passed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.lookup import LookupSpec
from watersmeet.engine.lookup_answers import Answers, Asked, MappedIndex, Unit
from watersmeet.engine.lookup_operator import LookupJoin
from watersmeet.kernels import hash_index
from watersmeet.memory import Budget
from watersmeet.records.plan import RowPlan
from watersmeet.relation.relation import RelationReader, Version
from watersmeet.spill.store import Store
from watersmeet.tables.hash_table import Layout, SideTable, row_bytes

RING_BYTES = 40
"""Of each row in the queue, beside its columns: its entry and bucket in the index, its number in the table, whether it
matched.
"""
_LEAST_ROWS = 64
_BLOCK_ROWS = 8
_CHUNK = 256
_NOTHING = np.empty(0, np.int64)
_NO_SLOTS = np.empty(0, np.int32)


@dataclass(slots=True)
class QueueSegment:
    """Rows that came together: they have seen the same part of the relation."""

    slot: int
    first: int
    rows: int = 0
    reads: int = 0


class MeshJoin(LookupJoin):
    """Amortise each disk read over all rows in memory [1]_.

    ```
    arriving rows ──▶ │ w4 │ w3 │ w2 │ w1 │ ──▶ answered in full      queue, with a hash table over all of it
                         ▲    ▲    ▲    ▲
                         └────┴─┬──┴────┘
    relation  d1  d2 [d3] d4 ───┘                                     scanned segment by segment, again and again
    ```

    The queue is divided into as many segments as the relation has on disk. When its newest segment is full, the next
    segment of the relation is read, and its rows are looked up in a hash table over all rows of the queue. A queue
    segment leaves after as many reads as the relation has segments: then its rows have met everything. So every read
    serves as many rows as memory holds, and every row waits for a whole scan.

    Memory is divided as section 6.2 of the thesis describes: the read buffer takes a segment of the relation, the queue
    all that is left, divided by the number of segments. In a silence the scan goes on, so that rows do not wait for
    others that may never come.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import LEFT, Arrive, End
    >>> from watersmeet.core.lookup import LookupSpec, lookup_conditions
    >>> from watersmeet.spill.store import MemoryStore
    >>> from watersmeet.relation.changes import StoredRelation
    >>> products = StoredRelation.in_memory(pa.table({"sku": [1, 2], "name": ["cup", "pot"]}), on=("sku",))
    >>> sold = pa.record_batch({"sku": [2, 3]})
    >>> spec = LookupSpec(sold.schema, products.schema, lookup_conditions("sku", products.on))
    >>> join = MeshJoin(spec, 1 << 20, MemoryStore(), products.reader)
    >>> join.receive(Arrive(LEFT, sold)); join.receive(End(LEFT)); join.poll(0.0, fuel=100).out.to_pylist()
    [{'sku': 2, 'name': 'pot'}]

    Where this differs: expired rows are not unlinked from the hash table, the chains simply end at the oldest row. The
    relation may change: rows of the old version see their scan through before the first of the new version is taken, so
    a change costs a scan.

    .. [1] N. Polyzotis, S. Skiadopoulos, P. Vassiliadis, A. Simitsis, N. Frantzell. Meshing streaming updates with
       persistent data in an active data warehouse. IEEE TKDE 20(7), 2008; as described in section 6.2 of the thesis of
       A. Chakraborty, University of Waterloo, 2010, that `partitioned` is from.
    """

    name: ClassVar[str] = "meshjoin"

    def __init__(self, spec: LookupSpec, memory: int, store: Store, relation: RelationReader) -> None:
        self._position = 0
        self._widest = 1
        self._segments: deque[QueueSegment] = deque()
        self._leaving: QueueSegment | None = None
        super().__init__(spec, memory, store, relation)

    # --- memory ---

    @classmethod
    def _least_room(cls, spec: LookupSpec, version: Version, **options: Any) -> int:
        types = RowPlan(spec.pairs, 0, exact_hash=False).types
        slots = 1 << (len(version.ids) + 1).bit_length()
        blocks = max(8, min(len(version.ids) + 2, 16)) * (_BLOCK_ROWS * row_bytes(types) + _CHUNK)
        return version.largest_segment + slots * 64 + blocks + _LEAST_ROWS * RING_BYTES

    def _lay_out(self, room: int) -> None:
        version, plan = self.version, self.answers.plans[0]
        self._scan: list[int] = version.ids.tolist()
        self.claim("the segment being read", version.largest_segment)
        left = room - version.largest_segment
        size, rows = _ring(left, row_bytes(plan.types))
        self.claim("queue", left)
        self._table = SideTable(
            plan.types,
            Budget(left - size * RING_BYTES),
            Layout((len(self._scan) + 1).bit_length(), _BLOCK_ROWS, _CHUNK),
            "queue",
            by_hash=False,
        )
        self._hashes, self._links = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._heads, self._numbers = np.zeros(size, np.int64), np.zeros(size, np.int32)
        self._matched = np.zeros(size, np.bool_)
        self._out = np.empty(len(self.answers.probes), np.int64)
        self._share = max(1, rows // max(1, len(self._scan)))
        """Rows of a queue segment: w of the thesis."""
        self._free = list(range(self._table.layout.partitions - 1, -1, -1))
        self._next = self._oldest = 0
        self._position = 0

    # --- the queue ---

    def _take(self, asked: Asked) -> tuple[int, Unit | None]:
        if not self._scan:  # an empty relation
            return len(asked), self.ask_nothing(asked)
        self._widest = max(self._widest, asked.widest)
        head = self._head()
        if head is None:
            return 0, self._read_next()
        room = min(len(asked), self._share - head.rows, len(self._hashes) - (self._next - self._oldest))
        while room > 0 and not self._append(head, asked.take(slice(0, room))):
            room //= 2
        if room <= 0 and self.rows_waiting == 0:
            return 1, self._ask_all(asked.take(slice(0, 1)))
        if room <= 0 or head.rows >= self._share:
            return max(0, room), self._read_next()
        return room, None

    def _head(self) -> QueueSegment | None:
        """The queue segment that rows are added to; None if the scan must go on first."""
        if self._segments and self._segments[-1].reads == 0:
            return self._segments[-1]
        if not self._free:
            return None
        self._segments.append(QueueSegment(self._free.pop(), self._next))
        return self._segments[-1]

    def _append(self, head: QueueSegment, asked: Asked) -> bool:
        parts = np.full(len(asked), head.slot, np.int32)
        columns = [asked.source.gather(c, asked.rows) for c in range(len(self._table.types))]
        if not self._table.reserve(parts, columns):
            self._table.trim(self.budget.total if not self._table.rows else sum(column.nbytes for column in columns))
            if not self._table.reserve(parts, columns):
                return False
        places = (self._next + np.arange(len(asked))) & (len(self._hashes) - 1)
        self._numbers[places] = self._table.append(asked.hashes, parts, columns, asked.times, grow_index=False)
        self._matched[places] = False
        hash_index.link_ring(asked.hashes, self._next, self._hashes, self._links, self._heads)
        self._next += len(asked)
        head.rows += len(asked)
        self.answers.meter.inserts += len(asked)
        return True

    def _ask_all(self, row: Asked) -> Unit:
        """A row that the queue cannot hold does not wait: its place tells where its partners are."""
        part = int(row.parts[0])
        return self.ask_mapped(row, self.mapped_indexes(part), part)

    @property
    def capacity(self) -> int:
        """Rows that the queue can hold, if they are not wide."""
        return self._share * len(self._scan)

    @property
    def rows_waiting(self) -> int:
        """Rows in the queue."""
        return self._next - self._oldest

    # --- the scan ---

    def _read_next(self, skip: int = 0) -> MeshUnit:
        segment = self.mapped(self._scan[self._position])
        return MeshUnit(self, MappedIndex(segment, self.answers), int(self.version.widest[self._position]), skip)

    def _unit_done(self) -> None:
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            self._table.drop(leaving.slot)
            self._free.append(leaving.slot)

    def passed(self) -> None:
        """A segment of the relation has passed by: those who have seen them all leave the queue."""
        self._position = (self._position + 1) % len(self._scan)
        for each in self._segments:
            each.reads += 1
        if self._segments and self._segments[0].reads >= len(self._scan):
            self._leaving = self._segments.popleft()
            rows = self._rows_of(self._leaving)
            places = self._leaving.first + np.arange(self._leaving.rows) & (len(self._hashes) - 1)
            self._oldest = self._leaving.first + self._leaving.rows
            self._unit = Unit(self.answers, rows, _NO_SLOTS, [], 0, matched=self._matched[places])

    def _rows_of(self, segment: QueueSegment) -> Asked:
        rows = self._table.rows_of(segment.slot)
        parts = np.full(len(rows), -1, np.int32)
        return Asked(self._table, rows, self._table.hashes(rows), parts, self._table.ticks(rows), self._widest)

    def _next_unit(self, idle: bool) -> Unit | None:
        return self._read_next() if idle and self.rows_waiting else None

    def _is_due(self) -> bool:
        return False

    def _last_unit(self, changed: Bool | None) -> Unit | None:
        return self._read_next() if self.rows_waiting else None

    def _forget(self, changed: Bool) -> None:
        self._set_up()

    # --- snapshots and checks ---

    def _waiting_rows(self) -> Iterator[Asked]:
        for segment in self._segments:
            yield self._rows_of(segment)

    def _own_state(self) -> dict[str, Any]:
        mask = len(self._hashes) - 1
        matched = [self._matched[each.first + np.arange(each.rows) & mask] for each in self._segments if each.rows]
        return {
            "position": self._position,
            "reading": self._unit.handed if isinstance(self._unit, MeshUnit) else None,
            "others_first": int(self._unit is not None and len(self._unit.pending()[0]) > 0),
            "queue": [[each.rows, each.reads] for each in self._segments if each.rows],
            "matched": [np.packbits(each).tobytes().hex() for each in matched],
            "widest": self._widest,
        }

    def _adopt_resumed(self, state: dict[str, Any]) -> None:
        """Rows of the queue go back there, with what they have seen; those at hand come first."""
        others = [self._resumed.popleft() for _ in range(state["others_first"])]
        self._widest = state["widest"]
        for (rows, reads), packed in zip(state["queue"], state["matched"], strict=True):
            batch, times = self._resumed.popleft()
            segment = QueueSegment(self._free.pop(), self._next)
            self._segments.append(segment)
            asked = self._asked(batch, times)
            for start in range(0, rows, 64):
                self._put_back(segment, asked.take(slice(start, start + 64)))
            bits = np.unpackbits(np.frombuffer(bytes.fromhex(packed), np.uint8))[:rows].astype(np.bool_)
            self._matched[segment.first + np.arange(rows) & (len(self._hashes) - 1)] = bits
            segment.reads = reads
        self._position = state["position"]
        self._resumed.extendleft(reversed(others))
        if state["reading"] is not None:
            self._unit = self._read_next(state["reading"])

    def _put_back(self, segment: QueueSegment, asked: Asked) -> None:
        if self._append(segment, asked):
            return
        for i in range(len(asked)):
            if not self._append(segment, asked.take(slice(i, i + 1))):
                self._too_little(self.budget.total + asked.widest)

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        self._table.check()
        held = [*self._segments, *([] if self._leaving is None else [self._leaving])]
        assert self._table.rows == sum(each.rows for each in held)
        assert self.rows_waiting == sum(each.rows for each in self._segments) <= len(self._hashes)
        reads = [each.reads for each in self._segments]
        assert reads == sorted(set(reads), reverse=True)
        assert all(each < max(1, len(self._scan)) for each in reads)


def _ring(room: int, width: int) -> tuple[int, int]:
    """Places of the ring, a power of two, and rows of so many bytes that room is left for, as many as there can be.

    >>> _ring(31 << 20, 92)
    (262144, 239348)
    """
    most = max(_LEAST_ROWS, room // (width + RING_BYTES))
    small = 1 << (most.bit_length() - 1)
    sizes = [(size, min(size, (room - size * RING_BYTES) // width)) for size in (small, 2 * small)]
    return max(sizes, key=lambda each: each[1])


class MeshUnit(Unit):
    """A segment of the relation on its way through the queue."""

    def __init__(self, join: MeshJoin, index: MappedIndex, widest: int, skip: int) -> None:
        self._join = join
        self._answers: Answers = join.answers
        self._index = index
        self.widest = widest
        self._at_row, self._link = 0, -1
        self._skip = skip
        self._room = join.answers.room(join._widest + widest)
        self._hashes = index.segment.hashes
        self.handed = skip
        """Pairs of this segment that were handed out."""
        self.asked = Asked(join._table, _NO_SLOTS, _NOTHING, _NO_SLOTS, _NOTHING, join._widest)

    @property
    def done(self) -> bool:
        """Whether all its rows were looked up."""
        return self._at_row >= len(self._hashes) and self._link < 0

    def work(self, fuel: int) -> tuple[pa.RecordBatch | None, int]:
        """Look up some of the segment's rows."""
        join, answers = self._join, self._answers
        start = self._at_row
        stop = min(len(self._hashes), start + max(1, fuel))
        probes, numbers = answers.probes[: self._room], join._out[: self._room]
        found, self._at_row, self._link, visited = hash_index.probe_ring(
            self._hashes, start, stop, self._link, join._oldest, join._hashes, join._links, join._heads, probes, numbers
        )
        answers.meter.probes += self._at_row - start
        answers.meter.comparisons += visited
        out = self._settle_pairs(probes[:found], numbers[:found]) if found else None
        if self.done:
            self._index.segment.release()
            join._unit = None
            join.passed()
        return out, max(1, self._at_row - start) + found

    def _settle_pairs(self, rows: NDArray[np.int32], numbers: Int64) -> pa.RecordBatch | None:
        join, answers = self._join, self._answers
        places = numbers & (len(join._hashes) - 1)
        asked = Asked(join._table, join._numbers[places], _NOTHING, _NO_SLOTS, _NOTHING, join._widest)
        each = np.arange(len(rows), dtype=np.int32)
        if not self._index.exact:
            equal = answers.truly_equal(asked, self._index, each, rows)
            if equal is not None:
                each, rows, places = each[equal], rows[equal], places[equal]
        join._matched[places] = True
        if not answers.gives_pairs:
            return None
        old = min(self._skip, len(rows))
        self._skip -= old
        each, rows = each[old:], rows[old:]
        self.handed += len(rows)
        return answers.pairs(asked, self._index, each, rows) if len(rows) else None

    def pending(self) -> tuple[Asked, int]:
        """None: the queue keeps all rows, and what they have seen."""
        return self.asked, 0
