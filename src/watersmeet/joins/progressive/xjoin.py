"""Three stages: join in memory while rows arrive, join memory with disk while they do not, join the rest at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from watersmeet.core.arrays import Bool, Int32
from watersmeet.core.errors import BudgetError
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.arrival import UNIT_OF_WORK, Task
from watersmeet.engine.sizing import Grain
from watersmeet.joins.progressive.disk_visits import PageLookups, Visit, Visits
from watersmeet.joins.progressive.spilling import SpillingJoin
from watersmeet.matching.found_pairs import Between
from watersmeet.matching.lookup import Lookup
from watersmeet.memory import format_bytes
from watersmeet.policies.flush import FlushPolicy
from watersmeet.records.plan import TableRows
from watersmeet.runs.page import Page
from watersmeet.spill.store import Store
from watersmeet.tables.hash_table import Probe


class XJoin(SpillingJoin):
    """Spill the largest partition when memory is full, and use silences to join memory with what was spilled [1]_.

    ```
    arriving ──stall──▶ reactive            both sides are partitioned by the same hash;
       ▲  ◀──arrival──────┘                 each partition has a part in memory and runs on disk
       └─ both ended ─▶ clean-up ─▶ done
    ```

    - *Arriving*: a row is kept in its partition and looked up in the other side's memory. Without room, the largest
      partition of either side is flushed.
    - *Reactive*: the largest memory partition with unmet rows on the other side's disk is joined with them, page by
      page.
    - *Clean-up*: partition by partition, one side's runs are brought back into memory, as much as fits, and the other
      side's runs and memory are looked up in it; each page is read once if the partition's smaller side fits.

    Which pairs were emitted before is the ledger's to say. The paper remembers when a memory partition was joined with
    the whole disk partition; here a visit can end after any row, so the ledger remembers which stretch of the disk it
    covered, and the next visit goes on from there. New arrivals thus wait for one row's matches at most, where the
    original waits for the end of the stage, as `prompt=False` does.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End
    >>> from watersmeet.core.spec import JoinSpec, parse_on
    >>> from watersmeet.spill.store import MemoryStore
    >>> left, right = pa.record_batch({"id": range(2000)}), pa.record_batch({"id": range(1990, 4000)})
    >>> join = XJoin(JoinSpec(left.schema, right.schema, parse_on("id")), 64 * 1024, MemoryStore())
    >>> for event in (Arrive(LEFT, left), End(LEFT), Arrive(RIGHT, right), End(RIGHT)):
    ...     join.receive(event)
    >>> rows = 0
    >>> while not join.phase == "done":
    ...     step = join.poll(0.0, fuel=1000)
    ...     rows += step.out.num_rows if step.out else 0
    >>> rows, join.cost.pages_written > 0
    (10, True)

    .. [1] T. Urhan and M. J. Franklin. XJoin: A reactively-scheduled pipelined join operator. IEEE Data Engineering
       Bulletin 23(2), 2000; as described in section 2.1 of Y. Tao et al. RPJ: Producing fast join results on streams
       through rate-based optimization. SIGMOD 2005.
    """

    name: ClassVar[str] = "xjoin"

    def __init__(
        self,
        spec: JoinSpec,
        memory: int,
        store: Store,
        *,
        flush: FlushPolicy | str = "largest",
        prompt: bool = True,
        grain: Grain | None = None,
    ) -> None:
        super().__init__(spec, memory, store, flush, grain)
        self.stages = VisitStages(self, prompt)


class VisitStages:
    """What XJoin does in silences, visits; and at the end, partition by partition."""

    def __init__(self, join: SpillingJoin, prompt: bool) -> None:
        self._join = join
        self._prompt = prompt
        self.visits = Visits(join)
        self._to_clean: list[int] | None = None

    def can_react(self) -> bool:
        """Whether a visit would find something, and can be remembered."""
        chosen = self._choose_visit()
        return chosen is not None and self.visits.may_begin(*chosen)

    def react(self) -> Task | None:
        """The next visit."""
        chosen = self._choose_visit()
        return self.visits.begin(*chosen) if chosen is not None and self.visits.may_begin(*chosen) else None

    def _choose_visit(self) -> tuple[int, int] | None:
        """The largest memory partition that has rows which have not visited the other side's disk."""
        best, most = None, 0
        for side, table in enumerate(self._join.tables):
            for part in np.flatnonzero(table.part_rows > most):
                if table.part_rows[part] > most and self.visits.has_news(side, int(part)):
                    best, most = (side, int(part)), int(table.part_rows[part])
        return best

    def patience(self, task: Any) -> int:
        """None, or that of a visit which is not to be interrupted."""
        return sys.maxsize if not self._prompt and isinstance(task, Visit) and not task.done else 0

    def give_way(self, task: Visit) -> tuple[int, bool]:
        """End the visit with the row at hand, unless rows are to wait for it."""
        return task.give_way() if self._prompt else (task.work(UNIT_OF_WORK), False)

    def clean_up(self) -> Task | None:
        """The next partition: the one with the most rows in memory, for its memory serves the others."""
        if self._to_clean is None:
            self._to_clean = list(range(self._join.sizing.layout.partitions))
        left, right = self._join.tables
        while self._to_clean:
            part = max(self._to_clean, key=lambda part: int(left.part_rows[part] + right.part_rows[part]))
            self._to_clean.remove(part)
            task = CleanUp(self._join, part)
            if not task.done:
                return task
            task.finish()
        return None

    def resumed(self, state: dict[str, Any]) -> Task | None:
        """A task that a snapshot was taken of; None if it is none of these."""
        if state["kind"] == "visit":
            return self.visits.resumed(state)
        return CleanUp.resumed(self._join, state) if state["kind"] == "clean-up" else None

    def to_state(self, task: Any) -> tuple[list[str], dict[str, Any]]:
        """For a snapshot."""
        return [], {"visits": self.visits.to_state(), "to_clean": self._to_clean}

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        self.visits.load(state["visits"])
        self._to_clean = None if state["to_clean"] is None else list(state["to_clean"])

    def close(self, task: Any) -> None:
        """There is nothing unfinished on disk."""


class _Stage(Enum):
    LOAD = "load"
    SCAN = "scan"
    MEMORY = "memory"
    DONE = "done"


class CleanUp:
    """One partition's remaining pairs.

    The side with fewer rows on disk is brought back in chunks that fit (LOAD); the other side's pages (SCAN) and rows
    in memory (MEMORY) are looked up in what is then in memory; and so on with the next chunk.
    """

    def __init__(self, join: SpillingJoin, part: int) -> None:
        disks, tables = join.disks, join.tables
        self._join = join
        self._part = part
        self._built = int(disks[1].rows[part] < disks[0].rows[part])
        self._scanned = 1 - self._built
        self._chunk = (0, 0)
        self._at = 0
        self._pages = PageLookups(join, self._scanned, part)
        self._memory_lookup: Lookup | None = None
        built_rows = disks[self._built].rows[part] + int(tables[self._built].part_rows[part])
        scanned_rows = disks[self._scanned].rows[part] + int(tables[self._scanned].part_rows[part])
        nothing_on_disk = not disks[0].rows[part] and not disks[1].rows[part]
        self._stage = _Stage.DONE if nothing_on_disk or not built_rows or not scanned_rows else _Stage.LOAD

    @property
    def done(self) -> bool:
        """Whether all chunks have met the whole other side."""
        return self._stage is _Stage.DONE

    @property
    def lookup(self) -> Lookup | None:
        """The look-up at hand."""
        return self._memory_lookup if self._stage is _Stage.MEMORY else self._pages.lookup

    def work(self, fuel: int) -> int:
        """Load a page, or look up some rows."""
        if self._stage is _Stage.LOAD:
            return self._load()
        lookup = self.lookup
        if lookup is None or lookup.done:
            self._advance()
            return 1
        return lookup.work(self._join.pairs, fuel, self._join.meter)

    def _load(self) -> int:
        """Bring back a page, or what of it fits."""
        join, part, built = self._join, self._part, self._built
        table, disk = join.tables[built], join.disks[built]
        low, high = self._chunk
        if high == disk.rows[part]:
            return self._scan_from_start()
        page = disk.read(part, high)
        count = len(page)
        if high == low:
            table.close_block(part)
        mine, opposite = (built, part), (self._scanned, part)
        while not join.secure(self._claim(page, count), frozenset({mine, opposite})):
            if high > low:
                return self._scan_from_start()
            if count > 1:
                count //= 2
            elif not join.secure(self._claim(page, count), frozenset()):
                raise BudgetError(
                    f"{format_bytes(join.budget.total)} of memory are too little to bring a row of "
                    f"{join.spec.names[built]} back from disk; allow more memory"
                )
            else:
                break
        some = page.slice(0, count)
        table.append_from_disk(some.hashes, part, some.columns, some.ticks, high)
        join.meter.inserts += count
        self._chunk = (low, high + count)
        return count

    def _claim(self, page: Page, count: int) -> Callable[[], bool]:
        parts = np.full(count, self._part, np.int32)
        columns = page.slice(0, count).columns
        return lambda: self._join.tables[self._built].reserve(parts, columns)

    def _scan_from_start(self) -> int:
        self._stage = _Stage.SCAN
        self._at = 0
        self._pages.lookup = None
        return 1

    def _advance(self) -> None:
        """The look-up at hand is done: go on to what follows."""
        join, part = self._join, self._part
        if self._stage is _Stage.SCAN:
            self._at += self._pages.rows_done
            self._pages.lookup = None
            if self._at < join.disks[self._scanned].rows[part]:
                self._pages.open(self._at, join.disks[self._scanned].rows[part])
                return
            self._stage = _Stage.MEMORY
            if self._chunk[1] > self._chunk[0] and join.tables[self._scanned].part_rows[part]:
                self._look_up_memory()
                return
        self._memory_lookup = None
        join.forget(self._built, part)
        self._chunk = (self._chunk[1], self._chunk[1])
        self._stage = _Stage.LOAD if self._chunk[1] < join.disks[self._built].rows[part] else _Stage.DONE

    def _look_up_memory(self) -> None:
        join, part = self._join, self._part
        table, other = join.tables[self._scanned], join.tables[self._built]
        rows = table.rows_of(part)

        def fresh(probes: Int32, found: Int32) -> Bool:
            stays = [
                join.stay_in_table(self._scanned, part, rows[probes]),
                join.stay_in_table(self._built, part, found),
            ]
            left, right = reversed(stays) if self._scanned else stays
            return join.ledger.fresh(part, left, right)

        probe = Probe(table.hashes(rows), np.full(len(rows), part, np.int32))
        between = Between(self._scanned, TableRows(table, rows), other)
        self._memory_lookup = Lookup(probe, other, between, fresh)

    def finish(self) -> None:
        """Forget the partition."""
        self._join.drop_partition(self._part)

    def to_state(self) -> dict[str, Any]:
        """The clean-up for a snapshot."""
        lookup = self.lookup
        return {
            "kind": "clean-up", "part": self._part, "built": self._built, "stage": self._stage.value,
            "chunk": list(self._chunk), "at": self._at,
            "place": None if lookup is None else lookup.place(self._join.pairs),
        }  # fmt: skip

    @classmethod
    def resumed(cls, join: SpillingJoin, state: dict[str, Any]) -> CleanUp:
        """A clean-up that a snapshot was taken of."""
        task = cls(join, state["part"])
        task._built = state["built"]
        task._scanned = 1 - task._built
        task._pages = PageLookups(join, task._scanned, task._part)
        low, high = state["chunk"]
        task._chunk = (low, low)
        while task._chunk[1] < high:
            task._load()
        task._stage, task._at = _Stage(state["stage"]), state["at"]
        if state["place"] is not None:
            if task._stage is _Stage.MEMORY:
                task._look_up_memory()
            else:
                task._pages.open(task._at, join.disks[task._scanned].rows[task._part])
            assert task.lookup is not None
            task.lookup.resume(join.pairs, state["place"])
        return task
