"""Partitioned: keep the partitions that many rows ask for in memory, and let the others' rows wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32
from watersmeet.core.errors import SpecError
from watersmeet.core.lookup import LookupSpec
from watersmeet.core.protocol import Step
from watersmeet.engine.lookup_answers import Asked, GatheredIndex, MappedIndex, Unit
from watersmeet.engine.lookup_operator import LookupJoin
from watersmeet.joins.lookup.join_memory import JoinMemory, SomeColumns, least_table, partitioned_table
from watersmeet.policies.join_memory import Granularity
from watersmeet.records.plan import RowPlan
from watersmeet.relation.relation import RelationReader, RelationSegment, Version
from watersmeet.spill.store import Store

_STATISTICS = 96
"""Of each partition: its frequency, its slot, its oldest row, and what the wait buffer keeps by partition."""
_NONE = np.iinfo(np.int64).max
_SCARCE, _SPARE = 0.1, 0.25
"""Idle for less than this share of its time, a join lets rows wait longer; for more than that, shorter again."""
_LONGER, _LONGEST = 2, 10
"""So many times as long as before, and as long as they should at most."""


class Partitioned(LookupJoin):
    """Answer most rows from memory, and the rest with one disk read for many [1]_.

    ```
    row ──▶ partition ──▶ in memory? ──yes──▶ look up ──▶ pairs
                              │no
                              ▼
                         wait buffer ──full, old or many──▶ read a partition, answer all that wait for it,
                         by partition                       and keep it if it is asked for more than another
    ```

    The relation lies on disk in partitions: ranges of keys, or of hashes. Those in the join memory answer rows at once.
    Rows of the others wait, by partition, in a buffer that all share. A partition is read when `n_invoke` rows wait for
    it and none is arriving, when the buffer is full (then those with most rows, until a share `r_wb` of the rows is
    gone), in a silence, and when a row has waited for `max_delay` seconds (up to ten times that while the join is
    hardly ever idle) and none is arriving, or for twice as long. A partition that was read stays in memory in place of
    one that is asked for less, for its size and by more than a fraction `rho`; how often it is asked for decays by
    `alpha` with every epoch of so many rows.

    With `granularity="tuple"` rows for partitions in memory are answered as they come. With `"block"` they wait for a
    block of their like first; `"auto"` goes block by block while more than `h_mark` blocks of rows wait to be taken up,
    until fewer than `l_mark` do.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import LEFT, Arrive, End
    >>> from watersmeet.core.lookup import LookupSpec, lookup_conditions
    >>> from watersmeet.spill.store import MemoryStore
    >>> from watersmeet.relation.changes import StoredRelation
    >>> products = StoredRelation.in_memory(pa.table({"sku": [1, 2], "name": ["cup", "pot"]}), on=("sku",))
    >>> sold = pa.record_batch({"sku": [2, 3]})
    >>> spec = LookupSpec(sold.schema, products.schema, lookup_conditions("sku", products.on), how="left")
    >>> join = Partitioned(spec, 1 << 20, MemoryStore(), products.reader)
    >>> join.receive(Arrive(LEFT, sold)); join.poll(0.0, fuel=100).out is None       # both wait
    True
    >>> join.receive(End(LEFT)); join.poll(0.0, fuel=100).out.to_pylist(), join.poll(0.0, fuel=100).out.to_pylist()
    ([{'sku': 2, 'name': 'pot'}], [{'sku': 3, 'name': None}])

    Where this differs from the thesis: rows within a partition are found by a hash index that lies beside them, not by
    nested loops. A slot of the slot array may reach over the border of two partitions, so that skewed keys need no
    finer slots. A partition whose rows outgrow it is cut, so ranges follow the relation as it changes. In a silence all
    that waits is answered, not only what has reached `n_invoke`, and `max_delay` bounds the wait of rows that hardly
    any others share their partition with. A partition may evict several others.

    .. [1] Abhirup Chakraborty. Processing exact results for sliding window joins and hybrid joins over data streams
       with limited memory. Dissertation, University of Waterloo, 2010; chapter 6.
    """

    name: ClassVar[str] = "partitioned"

    def __init__(
        self,
        spec: LookupSpec,
        memory: int,
        store: Store,
        relation: RelationReader,
        *,
        wait: float = 0.3,
        n_invoke: int = 3000,
        r_wb: float = 0.4,
        rho: float = 0.25,
        alpha: float = 0.3,
        epoch: int | None = None,
        max_delay: float | None = 0.2,
        granularity: str = "tuple",
        block: int = 64,
        l_mark: int = 2,
        h_mark: int = 100,
    ) -> None:
        """`wait` is the wait buffer's share of the memory, `block` the rows of a block."""
        _check_share("wait", wait)
        _check_share("r_wb", r_wb)
        _check_share("alpha", alpha)
        if granularity not in ("tuple", "block", "auto"):
            raise SpecError(f"granularity={granularity!r} is not known; choose 'tuple', 'block' or 'auto'")
        for what, number in (("n_invoke", n_invoke), ("block", block), ("h_mark", h_mark), ("epoch", epoch or 1)):
            if number < 1:
                raise SpecError(f"{what} must be at least 1, not {number!r}")
        if max_delay is not None and not max_delay >= 0:
            raise SpecError(f"max_delay must be seconds, or None for no bound, not {max_delay!r}")
        self._wait_share, self._n_invoke, self._r_wb, self._rho = wait, n_invoke, r_wb, rho
        self._alpha, self._epoch, self._max_delay = alpha, epoch, max_delay
        self._granularity = granularity
        self._mode = Granularity(l_mark, h_mark)
        self._block = block
        self._widest = 1
        self._part: int | None = None
        self._mapped: list[MappedIndex] = []
        self._chunks: list[Int32] = []
        self._drain_to: int | None = None
        self._just_drained = False
        self._patience = max_delay or 0.0
        self._last_poll = self._busy = self._idle = 0.0
        super().__init__(spec, memory, store, relation)

    # --- memory ---

    @classmethod
    def _least_room(cls, spec: LookupSpec, version: Version, **options: Any) -> int:
        types = RowPlan(spec.pairs, 0, exact_hash=False).types
        return _part_bytes(version) + version.largest_segment + least_table(types, version.partitions)

    def _lay_out(self, room: int) -> None:
        version, types = self.version, self.answers.plans[0].types
        fixed = _part_bytes(version) + version.largest_segment
        left = room - fixed
        share = self._wait_room(left, least_table(types, version.partitions))
        self.claim("partitions and the one being read", fixed)
        self.claim("wait buffer", share)
        self.claim("join memory", left - share)
        self._unit_rows = max(64, self.sizing.input_bytes // 32)
        self._wait = partitioned_table(types, share, version.partitions, "waiting")
        self._oldest = np.full(version.partitions, _NONE, np.int64)
        self._use(self._make_memory(left - share))

    def _wait_room(self, left: int, least: int) -> int:
        """Of so many bytes, those for the rows that wait; where buffers take most of a small budget, half of them."""
        share = min(self.budget.total * self._wait_share, left * max(0.5, self._wait_share))
        return min(left, max(least, int(share)))

    def _make_memory(self, room: int) -> JoinMemory:
        columns = self.answers.plans[1].sources
        return JoinMemory(room, columns, self.version, rho=self._rho, alpha=self._alpha, epoch=self._epoch)

    def _use(self, memory: JoinMemory) -> None:
        self.memory = memory
        wanted = self.answers.plans[1].sources
        self._cached: GatheredIndex | None = memory.table
        if memory.table is not None and wanted != memory.columns:
            self._cached = SomeColumns(memory.table, [memory.columns.index(i) for i in wanted])

    # --- arrivals ---

    def _take(self, asked: Asked) -> tuple[int, Unit | None]:
        if self._drain_to is not None:
            if self._wait.rows > self._drain_to:
                return 0, self._probe_largest()
            self._drain_to = None
            self._just_drained = True
        self._widest = max(self._widest, asked.widest)
        blocks = self._blocks(len(asked))
        waits = np.ones(len(asked), np.bool_) if blocks else self.memory.slot_of[asked.parts] < 0
        count = len(asked)
        while not self._keep(asked.take(slice(0, count)), waits[:count]):
            if self._wait.rows:
                self._drain_to = int(self._wait.rows * (1 - self._r_wb))
                return 0, self._probe_largest()
            if count == 1:  # a row that the whole buffer cannot hold does not wait
                self.memory.note(asked.parts[:1])
                return 1, self._ask(asked)
            count //= 2
            asked = asked.take(slice(0, count))
        self.memory.note(asked.parts[:count])
        at_once = np.flatnonzero(~waits[:count])
        if not len(at_once):
            return count, self._full_blocks() if blocks else None
        rows = asked.take(at_once)
        self.hits += len(rows)
        return count, self._ask_memory(rows)

    def _ask_memory(self, rows: Asked) -> Unit:
        assert self._cached is not None
        memory = self.memory
        exact = self.answers.hash_proves(lambda _: memory.small_keys)
        return Unit(self.answers, rows, memory.slot_of[rows.parts], [self._cached], memory.widest, exact=exact)

    def _ask(self, row: Asked) -> Unit:
        """One row that cannot wait."""
        part = int(row.parts[0])
        if self.memory.slot_of[part] >= 0:
            return self._ask_memory(row)
        return self.ask_mapped(row, self.mapped_indexes(part), part)

    def _keep(self, asked: Asked, waits: NDArray[np.bool_]) -> bool:
        """Put rows into the wait buffer; False, and nothing has changed, if it has no room."""
        rows = np.flatnonzero(waits)
        if not len(rows):
            return True
        kept = asked.take(rows)
        columns = [asked.source.gather(c, kept.rows) for c in range(len(self.answers.plans[0].types))]
        if not self._wait.reserve(kept.parts, columns):
            if self._wait.rows and not self._just_drained:
                return False
            # There should be room: free blocks may hold what strings need, or the other way round.
            self._wait.trim(self.budget.total if not self._wait.rows else sum(column.nbytes for column in columns))
            if not self._wait.reserve(kept.parts, columns):
                return False
        self._just_drained = False
        self._wait.append(kept.hashes, kept.parts, columns, kept.times, grow_index=False)
        np.minimum.at(self._oldest, kept.parts, kept.times)
        self.answers.meter.inserts += len(rows)
        return True

    def _blocks(self, at_hand: int) -> bool:
        if self._granularity != "auto":
            return self._granularity == "block"
        waiting = at_hand + sum(each.rows for each in self._queue)
        return self._mode.blocks(waiting // self._block)

    def _full_blocks(self) -> Unit | None:
        """Rows for a partition in memory, once a block of them is there."""
        full = self.memory.parts
        full = full[self._wait.part_rows[full] >= self._block]
        return self._probe(int(full[0])) if len(full) else None

    def poll(self, now: float, fuel: int) -> Step:
        """Work a little, and hand out at most one batch."""
        if self._max_delay is not None:
            self._measure_load(now, self._max_delay)
        return super().poll(now, fuel)

    def _measure_load(self, now: float, max_delay: float) -> None:
        """Reading partitions for a few rows each costs time. Whoever has none to spare lets rows wait longer, or would
        fall behind, and read for fewer and fewer rows.
        """
        passed, self._last_poll = max(0.0, now - self._last_poll), now
        if self._must_poll:
            self._busy += passed
        else:
            self._idle += passed
        whole = self._busy + self._idle
        if whole >= max_delay:
            if self._idle < _SCARCE * whole:
                self._patience = min(_LONGEST * max_delay, _LONGER * self._patience)
            elif self._idle > _SPARE * whole:
                self._patience = max(max_delay, self._patience / 1.25)
            self._busy = self._idle = 0.0

    # --- the wait buffer ---

    @property
    def rows_waiting(self) -> int:
        """How many rows wait for a partition."""
        return self._wait.rows

    def _probe_largest(self) -> Unit | None:
        return self._probe(int(np.argmax(self._wait.part_rows))) if self._wait.rows else None

    def _probe(self, part: int) -> Unit | None:
        """Read a partition, unless it is in memory, and answer the rows that wait for it."""
        if self._part is None:
            self._begin(part, [] if self.memory.slot_of[part] >= 0 else self.mapped_indexes(part))
        assert self._part is not None
        asked = self._waiting(self._chunks.pop(0), self._part)
        if self.memory.slot_of[self._part] >= 0:
            return self._ask_memory(asked)
        return self.ask_mapped(asked, self._mapped, self._part)

    def _begin(self, part: int, mapped: list[MappedIndex]) -> None:
        """Turn to all rows that wait for a partition, which is in memory or mapped."""
        rows = self._wait.rows_of(part)
        self._part, self._mapped = part, mapped
        self._chunks = [rows[i : i + self._unit_rows] for i in range(0, len(rows), self._unit_rows)]

    def _waiting(self, rows: Int32, part: int) -> Asked:
        wait = self._wait
        parts = np.full(len(rows), part, np.int32)
        return Asked(wait, rows, wait.hashes(rows), parts, wait.ticks(rows), self._widest)

    def _unit_done(self) -> None:
        if self._part is None:
            return
        if self._chunks:
            self._unit = self._probe(self._part)
            return
        part, self._part = self._part, None
        self._wait.drop(part)
        self._oldest[part] = _NONE
        segments = [index.segment for index in self._mapped]
        self._mapped = []
        if segments and self._worth_keeping():
            self.memory.offer(part, segments, self.answers.meter)
        self._let_go(part, segments)

    def _let_go(self, part: int, segments: list[RelationSegment]) -> None:
        """The rows that waited for a partition are answered, and the partition is in memory if it is to be."""
        for segment in segments:
            segment.release()

    @property
    def expects_more(self) -> bool:
        """Whether rows may still come for the version at hand."""
        return len(self._queue) == 1 and not (self._ended and not self._arrivals_wait)

    def _worth_keeping(self) -> bool:
        """Whether a partition that was read now will be of use: not at the end of the stream or of the version."""
        return self.expects_more

    def _next_unit(self, idle: bool) -> Unit | None:
        if not self._wait.rows:
            return None
        if idle or self._part is not None:
            return self._probe_largest()
        if self._granularity != "tuple" and not self._mode.in_blocks:
            ready = self.memory.parts
            ready = ready[self._wait.part_rows[ready] > 0]
            if len(ready):  # back to tuples: what waits for partitions in memory need not wait
                return self._probe(int(ready[0]))
        if self._wait.part_rows.max() >= self._n_invoke:
            return self._probe_largest()
        if self._max_delay is not None:
            part = int(np.argmin(self._oldest))
            if self._oldest[part] <= self.answers.now - self._patience * 1e6:
                return self._probe(part)
        return None

    def _is_due(self) -> bool:
        """Rows that have waited for `max_delay` are answered when the join is polled and none is arriving, or at
        `wake_at`. New rows hold them up for as long again at most: whoever took none in while one partition after the
        other is read would have all of them come at once, and be late for all of them again.
        """
        if not self._wait.rows:
            return False
        wake = self.wake_at()
        return bool(self._wait.part_rows.max() >= self._n_invoke) or (
            wake is not None and round((wake + self._patience) * 1e6) <= self.answers.now
        )

    def wake_at(self) -> float | None:
        """When the oldest row has waited for `max_delay`."""
        if self._max_delay is None or not self._wait.rows:
            return None
        return float(self._oldest.min()) / 1e6 + self._patience

    def _last_unit(self, changed: NDArray[np.bool_] | None) -> Unit | None:
        self._drain_to = None
        waiting = self._wait.part_rows[: self.version.partitions]
        asked_for = np.flatnonzero(waiting > 0 if changed is None else (waiting > 0) & changed)
        return self._probe(int(asked_for[np.argmax(waiting[asked_for])])) if len(asked_for) else None

    def _forget(self, changed: NDArray[np.bool_]) -> None:
        self.memory.forget(changed, self.version)

    # --- snapshots and checks ---

    def _waiting_rows(self) -> Iterator[Asked]:
        for chunk in self._chunks:
            assert self._part is not None
            yield self._waiting(chunk, self._part)
        for part in np.flatnonzero(self._wait.part_rows).tolist():
            if part != self._part:
                yield self._waiting(self._wait.rows_of(part), part)

    def _own_state(self) -> dict[str, Any]:
        counts, seen = self.memory.frequency.counts, self.memory.frequency.seen
        return {"counts_by_part": counts.tolist(), "seen": seen, "in_blocks": self._mode.in_blocks}

    def _load_own(self, state: dict[str, Any]) -> None:
        self.memory.frequency.counts[:] = state["counts_by_part"]
        self.memory.frequency.seen = state["seen"]
        self._mode.in_blocks = state["in_blocks"]

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        self._wait.check()
        rows = self._wait.part_rows[: len(self._oldest)]
        assert ((self._oldest < _NONE) == (rows > 0)).all()
        self.memory.check()


def _part_bytes(version: Version) -> int:
    return _STATISTICS * version.partitions


def _check_share(what: str, share: float) -> None:
    if not 0 < share <= 1:
        raise SpecError(f"{what} must be a share above 0 and up to 1, not {share!r}")
