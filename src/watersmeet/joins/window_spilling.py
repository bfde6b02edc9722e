"""What window joins share whose windows may be larger than memory: dumps, blocks that leave, scans of the disk.

```
            ┌──────────── recent rows, a queue of blocks in each partition ────────────┐
arrival ──▶ │ fresh: have not met the other side's disk │ stale │ dumped, and here still│──▶ gone from memory
            └─────────────────────────────┬─────────────────────┬───────────────────────┘
                                          ▼ scan                ▼ dump
                    the other side's absent blocks          one segment of many blocks
```

A block leaves memory only when its rows have met all of the other side's disk, so rows on disk never have to meet each
other. Who met whom is for `state.encounters` to say.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from heapq import nlargest
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.errors import BudgetError
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.joins.frequent import Frequent, load_block
from watersmeet.joins.suspending import SuspendingWindowJoin
from watersmeet.joins.tasks import Arrival, Task
from watersmeet.joins.window_scan import Scan
from watersmeet.memory import format_bytes
from watersmeet.spill.store import Store
from watersmeet.state.encounters import Encounters
from watersmeet.state.intake import Received
from watersmeet.state.lookup import Lookup
from watersmeet.state.pages import Page
from watersmeet.state.ranges import ChainedLookup
from watersmeet.state.rows import BatchRows, TableRows
from watersmeet.state.scanned_rows import ScannedRows
from watersmeet.state.sizing import Grain
from watersmeet.state.window_disk import FOREVER, Piece, WindowDisk
from watersmeet.state.window_table import WindowTable

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

_LARGEST_PAGE = 4 << 20
_LARGER_PAGES_FROM = 1 << 20
_PARTITIONS = 8


class SpillingWindowJoin(SuspendingWindowJoin):
    """The frame of a window join that spills."""

    def __init__(
        self, spec: WindowJoinSpec, memory: int, store: Store, grain: Grain | None = None, *, frequent: float
    ) -> None:
        least = self.least_memory(spec)
        if memory < least:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for the {self.name} join of these rows; allow at "
                f"least {format_bytes(least)}"
            )
        if grain is None and memory >= _LARGER_PAGES_FROM:
            # Results are gathered from all over the disk, page by page. Partitions cost a half-filled block each, and
            # rows are found by an index anyway.
            grain = Grain(page_bytes=min(memory // 48, _LARGEST_PAGE), partitions=_PARTITIONS)
        super().__init__(spec, memory, store, grain)
        names = [f"{name} on disk" for name in spec.names]
        self.disks = tuple(
            WindowDisk(
                store,
                ("left", "right")[side],
                self.plans[side].types,
                self.budget.reservation(names[side]),
                self.meter,
                self.sizing.page_bytes,
            )
            for side in (0, 1)
        )
        claim = self.budget.reservation
        self.encounters = (Encounters(claim("left encounters")), Encounters(claim("right encounters")))
        self.probed = [0, 0]
        """Rows of a side that arrived up to this tick have met all of the other side's disk."""
        self.dumped = np.zeros_like(self.gone)
        """Rows of a side and partition that arrived up to this tick are on disk."""
        self.last_kept = [0, 0]
        self.fresh_rows = [0, 0]
        rest = self.budget.total - self.sizing.buffers
        capacity = [int(rest * frequent / 2 / table.block_bytes) for table in self.tables]
        self.frequent = (Frequent(self, 0, capacity[0]), Frequent(self, 1, capacity[1]))
        self.copies: list[tuple[Frequent, Frequent]] = [self.frequent]
        """All copies of blocks on disk, by what they are for."""
        self._spare = self.budget.reservation("room for the entry of a dump")
        self._spare.grow(self._spare_bytes)
        self.filters = (claim("filter of a left scan"), claim("filter of a right scan"))
        self._expired_at: tuple[int, ...] = ()
        """What expiry depends on, when it was last looked at."""
        self._aside: list[Scan | None] = [None, None]
        self.pause = 0.0
        """Seconds between two scans in silences, at least."""
        self._last_reactive: float | None = None
        self._none_stale_at: tuple[int, ...] = ()
        """When it was last seen that no block is stale."""
        self._arriving = 0
        """The side of the arrival at hand."""

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget: what is on disk must be remembered, too."""
        return super().least_memory(spec, **options) * 3 // 2

    # --- what the operators differ in ---

    @abstractmethod
    def victim(self) -> tuple[int, int] | None:
        """The side and the partition whose oldest block is on disk and is to leave memory; None if there is none."""

    @abstractmethod
    def to_dump(self) -> tuple[int, list[tuple[int, int]]]:
        """A side and those of its stale blocks, as (partition, block), that are to be dumped next; none if there are
        none.
        """

    @abstractmethod
    def probe_due(self, side: int) -> bool:
        """Whether it is time that the fresh rows of a side meet the disk."""

    @abstractmethod
    def worth_keeping(self, side: int, results: int) -> bool:
        """Whether a block with so many results belongs among the frequent ones."""

    def block_left(self, side: int, results: int) -> None:
        """A block that was part of so many results has left memory."""

    def scan_begins(self, side: int) -> bool:
        """A scan for the rows of a side is about to begin; whether it may change the frequent blocks."""
        return True

    # --- arriving ---

    def arrival_lookup(
        self, side: int, hashes: Int64, parts: Int32, columns: list[pa.Array], source: TableRows | BatchRows
    ) -> Lookup:
        """Rows that arrived, looked up among the recent and then among the frequent ones."""
        lookup = super().arrival_lookup(side, hashes, parts, columns, source)
        tables = [copies[1 - side].table for copies in self.copies if len(copies[1 - side])]
        if not tables:
            return lookup
        return ChainedLookup(
            [lookup, *(self.lookup_in(table, side, hashes, parts, columns, source) for table in tables)]
        )

    def must_keep(self, side: int) -> bool:
        """As long as the other input may bring rows, or has blocks on disk that are to be met."""
        return not self.exhausted(1 - side) or self.disks[1 - side].absent > 0

    def rows_kept(self, side: int, parts: Int32) -> None:
        """Count fresh rows."""
        super().rows_kept(side, parts)
        self.last_kept[side] = self.clock
        self.fresh_rows[side] += len(parts)

    def slice_taken(self, side: int) -> None:
        """Rows that arrive while nothing of the other side has left memory have nothing to meet on disk."""
        if not self.disks[1 - side].absent:
            self._all_probed(side, self.clock)

    def _all_probed(self, side: int, tick: int) -> None:
        self.probed[side] = max(self.probed[side], tick)
        self.encounters[side].forget(self.probed[side])
        table = self.tables[side]
        self.fresh_rows[side] = sum(
            table.filled(part, block)
            for part, queue in enumerate(table.queues)
            for block in queue
            if table.last_tick[block] > self.probed[side]
        )

    def needs_probe(self, side: int) -> bool:
        """Whether a side has rows that must meet the other side's disk."""
        return self.disks[1 - side].absent > 0 and self.last_kept[side] > self.probed[side]

    def admit(self, arrival: Arrival, count: int) -> int:
        """Make room for rows, unless the disk's turn comes first."""
        side = self._arriving = arrival.side
        if self.needs_probe(side) and self.probe_due(side):
            self._suspend_for(self.scan(side))
            return 0
        return super().admit(arrival, count)

    def _must_wait(self) -> bool:
        sides = [side for side in (0, 1) if self.needs_probe(side)]
        if not sides:
            return False
        side = max(sides, key=lambda side: self.tables[side].row_bytes * self.fresh_rows[side])
        self._suspend_for(self.scan(side))
        return True

    def scan(self, side: int) -> Scan:
        """The scan for a side that was set aside, or a new one."""
        aside = self._aside[side]
        if aside is not None:
            self._aside[side] = None
            return aside.take_up()
        self.clock += 1
        return Scan(self, side, self.probed[side], self.clock, self.scan_begins(side))

    def scan_ended(self, scan: Scan) -> None:
        """Rows have met all of the other side's disk."""
        self.events["scans"] += 1
        self._settle(scan)
        self._all_probed(scan.side, scan.until)
        self.marks.forget(min(self.probed))
        self.expire()

    def _settle(self, scan: Scan) -> None:
        if not self.perhaps_delayed(scan.side):
            return
        table = self.tables[scan.side]
        for part, queue in enumerate(table.queues):
            for block in queue:
                if table.last_tick[block] > scan.since:
                    rows = table.rows_in(part, block)
                    ticks = table.ticks(rows)
                    mine = (ticks > scan.since) & (ticks <= scan.until)
                    self.rows_settled(scan.side, table.times(rows[mine]), ticks[mine])

    @property
    def window_rows(self) -> int:
        """How many rows are remembered, in memory and on disk."""
        absent = sum(
            int(np.diff(np.append(piece.firsts, piece.rows))[piece.left < FOREVER].sum())
            for disk in self.disks
            for piece in disk.pieces
        )
        return super().window_rows + absent

    # --- making room ---

    def secure(self, claim: Callable[[], bool], spared: frozenset[tuple[int, int]] = frozenset()) -> bool:
        """Make room until a claim succeeds; False if it does not with all gone that may go."""
        own = self.tables[self._arriving]
        others = [table for table in self._all_tables if table is not own]
        while not claim():
            for table in others:
                table.trim(self.budget.total)
            if claim():
                break
            flushed = self._flush_one(spared)
            if claim():
                break
            # Most claims are of the side that rows arrive on, and can use what is free there without this.
            own.trim(self.budget.total)
            if not flushed:
                return claim()
        return True

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        if self.expire() or self._evict_some() or (self._dump() and self._evict_some()):
            while not self._keep_spare() and (self._evict() or self._drop_frequent()):
                pass
            return True
        return self._drop_frequent()

    def _drop_frequent(self) -> bool:
        """Let all copies of blocks go; False if there are none."""
        return any([each.drop_all() for copies in self.copies for each in copies])  # noqa: C419 (of both sides)

    def _keep_spare(self) -> bool:
        """Have memory for the entry of the next dump."""
        missing = self._spare_bytes - self._spare.held
        if not missing or self._spare.try_grow(missing):
            return True
        for table in self._all_tables:
            table.trim(missing)
        return self._spare.try_grow(missing)

    @property
    def _all_tables(self) -> list[WindowTable]:
        return [*self.tables, *(each.table for copies in self.copies for each in copies)]

    @property
    def _spare_bytes(self) -> int:
        pages = self.budget.total // self.sizing.page_bytes
        return max(disk.entry_bytes(self.blocks_of_a_dump, pages) for disk in self.disks)

    @property
    def blocks_of_a_dump(self) -> int:
        """How many blocks go to disk together, at most: a third of the memory."""
        widest = max(table.block_bytes for table in self.tables)
        return max(1, (self.budget.total - self.sizing.buffers) // 3 // widest)

    @property
    def recent_bytes(self) -> int:
        """Memory for recent rows: what they have, and what nobody has."""
        return self.budget.free + sum(table.blocks_held * table.block_bytes for table in self.tables)

    def _evict_some(self) -> bool:
        """Let a few blocks that are on disk leave memory: one after the other would be slow."""
        count = 1 + self.blocks_of_a_dump // 8
        return sum(1 for _ in takewhile(bool, (self._evict() for _ in range(count)))) > 0

    def _evict(self) -> bool:
        """Let a block that is on disk leave memory."""
        victim = self.victim()
        if victim is None:
            return False
        side, part = victim
        table = self.tables[side]
        block = table.queues[part][0]
        number, results = int(table.disk[block]), int(table.results[block])
        page = None
        if self.frequent[side].capacity and self.worth_keeping(side, results):
            rows = table.rows_in(part, block)
            columns = [table.gather(column, rows) for column in range(len(table.types))]
            page = Page(table.hashes(rows), table.ticks(rows), columns, -1, -1)
        self.drop_oldest(side, part)
        self.block_left(side, results)
        self.events["evicted blocks"] += 1
        if page is not None:
            self.frequent[side].try_add(number, part, results, [page])
        return True

    def drop_oldest(self, side: int, part: int) -> None:
        """Drop a partition's oldest block from memory, and note when, if it is on disk."""
        table = self.tables[side]
        block = table.queues[part][0]
        if table.disk[block] >= 0:
            self.clock += 1
            self.disks[side].leave(int(table.disk[block]), self.clock, int(table.results[block]))
        super().drop_oldest(side, part)

    def stale(self, side: int, block: int) -> bool:
        """Whether a block's rows have met all of the other side's disk, and are not on disk themselves."""
        table = self.tables[side]
        return bool(table.last_tick[block] <= self.probed[side] and table.disk[block] < 0)

    def _dump(self) -> bool:
        """Write stale blocks; they stay in memory until others need it."""
        now = (self.clock, *self.probed)
        if now == self._none_stale_at:
            return False
        side, blocks = self.to_dump()
        if not blocks:
            self._none_stale_at = now
            return False
        table = self.tables[side]
        for part, block in blocks:
            if table.queues[part][-1] == block:
                table.close_block(part)
        self._spare.shrink(self._spare.held)
        while not self.disks[side].try_dump(table, blocks):
            if len(blocks) == 1:
                freed = [each.trim(self.budget.total) for each in self._all_tables]
                if not any(freed) and not self._drop_frequent():
                    raise BudgetError("what was spilled is too much to be remembered; allow more memory")
            blocks = blocks[: max(1, len(blocks) // 2)]
        for part, block in blocks:
            self.dumped[side][part] = max(self.dumped[side][part], int(table.last_tick[block]))
        self.events["dumps"] += 1
        return True

    def _may_drop(self, side: int, part: int, block: int) -> bool:
        return bool(self.tables[side].last_tick[block] <= self.probed[side]) or not self.disks[1 - side].absent

    def least_floor(self, side: int, since: int) -> int:
        """No row of a side that arrived after a tick meets rows that are older than this and came before it."""
        table = self.tables[side]
        floors = [
            int(table.least_floor[block]) for queue in table.queues for block in queue if table.last_tick[block] > since
        ]
        return min(floors, default=FOREVER)

    def expire(self) -> bool:
        """Let go of blocks whose rows have all expired, in memory and on disk."""
        now = (self.expired_before(0), self.expired_before(1), *self.probed, *(disk.absent for disk in self.disks))
        if now == self._expired_at:
            return False
        self._expired_at = now
        some = super().expire()
        scans = [scan for scan in (self._task, *self._aside) if isinstance(scan, Scan) and not scan.done]
        at_hand = {number for scan in scans for number in scan.pieces}
        for side, disk in enumerate(self.disks):
            bound = self.expired_before(side)
            for copies in self.copies:
                some |= copies[side].drop_expired(bound)
            if not disk.pieces or min(piece.newest for piece in disk.pieces) >= bound:
                continue
            if self.needs_probe(1 - side):
                bound = min(bound, self.least_floor(1 - side, self.probed[1 - side]))
            names = disk.expire(bound, at_hand)
            self.saver.discard(names)
            self.events["expired segments"] += len(names)
            some |= bool(names)
        return some

    # --- the frequent segment ---

    def consider(self, side: int, scanned: ScannedRows) -> None:
        """A scan came by some blocks: those with most results may become frequent ones."""
        frequent = self.frequent[side]
        if not frequent.capacity:
            return
        present = self.copied(side)
        found = [(int(piece.results[place]), piece, place) for piece, places in scanned.chosen for place in places]
        for results, piece, place in nlargest(frequent.capacity, found, key=lambda each: each[0]):
            if not self.worth_keeping(side, results):
                break
            if piece.number + place not in present and self._lives(side, piece, place):
                pages = list(self.disks[side].pages_of(piece, int(piece.firsts[place]), piece.stop(place)))
                frequent.try_add(piece.number + int(place), int(piece.parts[place]), results, pages)

    def copied(self, side: int) -> set[int]:
        """The numbers of a side's blocks of which there are copies."""
        return {number for copies in self.copies for number in copies[side].numbers()}

    def _lives(self, side: int, piece: Piece, place: int) -> bool:
        return bool(piece.latest[place] >= self.expired_before(side))

    # --- work ---

    def _input_closed(self, side: int) -> None:
        self.expire()

    def _can_react(self) -> bool:
        return any(self._aside) or (self._may_react() and any(self.needs_probe(side) for side in (0, 1)))

    def _may_react(self) -> bool:
        """Whether it is time for a scan in a silence."""
        return self._last_reactive is None or self.now >= self._last_reactive + self.pause

    def _reactive_task(self) -> Task | None:
        waiting = [side for side in (0, 1) if self._aside[side] is not None]
        sides = waiting or [side for side in (0, 1) if self.needs_probe(side) and self._may_react()]
        if not sides:
            return None
        if not waiting:
            self._last_reactive = self.now
        return self.scan(max(sides, key=lambda side: self.fresh_rows[side]))

    def _give_way(self, task: Task) -> int:
        assert isinstance(task, Scan)
        task.set_aside()
        self._aside[task.side] = task
        self._task = None
        return 1

    def _clean_up_task(self) -> Task | None:
        sides = [side for side in (0, 1) if self.needs_probe(side)]
        if sides:
            return self.scan(max(sides, key=lambda side: self.fresh_rows[side]))
        self.expire()
        return None

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        for side, disk in enumerate(self.disks):
            disk.check()
            self.encounters[side].check(self.clock)
            for copies in self.copies:
                copies[side].check()
            assert len(self.copied(side)) == sum(len(copies[side]) for copies in self.copies), "one copy of a block"
            table = self.tables[side]
            held = {int(table.disk[block]) for queue in table.queues for block in queue if table.disk[block] >= 0}
            there = {
                piece.number + int(place) for piece in disk.pieces for place in np.flatnonzero(piece.left == FOREVER)
            }
            assert held == there, "a block that has not left is in memory, and no other"
            for queue in table.queues:
                on_disk = [bool(table.disk[block] >= 0) for block in queue]
                assert on_disk == sorted(on_disk, reverse=True), "the oldest blocks are dumped first"

    def close(self) -> None:
        """Let go of everything."""
        super().close()
        for disk in self.disks:
            disk.close()

    # --- snapshots ---

    def still_in_memory(self, side: int, parts: Int32, ticks: Int64) -> NDArray[np.bool_]:
        """Which rows of a snapshot have neither left memory nor come to the disk since they were written."""
        not_dumped: NDArray[np.bool_] = ticks > self.dumped[side][parts]
        return not_dumped & super().still_in_memory(side, parts, ticks)

    def claim_to_restore(self, claim: Callable[[], bool]) -> None:
        """Claim memory for what a snapshot holds."""
        if not claim():
            for table in self.tables:
                table.trim(self.budget.total)
            if not claim():
                raise BudgetError("the snapshot does not fit into this memory; allow a little more")

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        return [name for disk in self.disks for name in disk.segments()], {
            "disks": [disk.to_state() for disk in self.disks],
            "encounters": [each.to_state() for each in self.encounters],
            "copies": [[each.to_state() for each in copies] for copies in self.copies],
            "probed": list(self.probed),
            "dumped": self.dumped.tolist(),
            "last_kept": list(self.last_kept),
            "aside": [None if scan is None else scan.to_state() for scan in self._aside],
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        self._spare.shrink(self._spare.held)
        self.probed, self.last_kept = list(state["probed"]), list(state["last_kept"])
        self.dumped = np.array(state["dumped"], np.int64)
        for side, disk in enumerate(self.disks):
            disk.load(state["disks"][side])
            self.encounters[side].load(state["encounters"][side])
            for piece in disk.pieces:
                for place in np.flatnonzero(piece.left == FOREVER):
                    block = load_block(self, side, self.tables[side], piece, int(place))
                    self.tables[side].results[block] = piece.results[place]
            for copies, saved in zip(self.copies, state["copies"], strict=True):
                copies[side].load(saved[side])

    def _load_tasks(self, state: dict[str, Any], waiting: list[list[Received]]) -> None:
        for side in (0, 1):
            self._all_probed(side, 0)
            if state["aside"][side] is not None:
                scan = self._aside[side] = self._load_task(state["aside"][side])
                scan.set_aside()
        super()._load_tasks(state, waiting)
        self._keep_spare()

    def _load_task(self, state: dict[str, Any]) -> Scan:
        scan = Scan(self, state["side"], state["since"], state["until"], state["updates"], state["floor"])
        scan.go_to(state)
        return scan
