"""What window joins share whose windows may be larger than memory: fresh rows, scans of the disk, frequent blocks.

```
            ┌──────────── recent rows, a queue of blocks in each partition ────────────┐
arrival ──▶ │ fresh: have not met the other side's disk │ stale │ dumped, and here still│──▶ gone from memory
            └─────────────────────────────┬─────────────────────┬───────────────────────┘
                                          ▼ scan                ▼ dump
                    the other side's absent blocks          one segment of many blocks
```

A block leaves memory only when its rows have met all of the other side's disk, so rows on disk never have to meet each
other. Who met whom is for `matching.ledger_blocks` to say.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.engine.arrival import Arrival, Task
from watersmeet.engine.sizing import Grain
from watersmeet.joins.window.block_copies import Frequent, load_block
from watersmeet.joins.window.compaction import Books
from watersmeet.joins.window.dumping import DumpingWindowJoin
from watersmeet.joins.window.scan import Scan
from watersmeet.matching.ledger_blocks import Encounters
from watersmeet.matching.lookup import Lookup
from watersmeet.matching.range_lookup import ChainedLookup
from watersmeet.records.intake import Received
from watersmeet.records.plan import Rows
from watersmeet.runs.page import Page
from watersmeet.runs.scan import ScannedRows
from watersmeet.runs.window_segments import FOREVER, Piece
from watersmeet.spill.store import Store
from watersmeet.tables.window_table import WindowTable

_LARGEST_PAGE = 4 << 20
_LARGER_PAGES_FROM = 1 << 20
_PARTITIONS = 8


class SpillingWindowJoin(DumpingWindowJoin):
    """The frame of a window join that spills."""

    def __init__(
        self,
        spec: WindowJoinSpec,
        memory: int,
        store: Store,
        grain: Grain | None = None,
        *,
        frequent: float,
        books: float,
    ) -> None:
        grain = grain or Grain()
        if grain == Grain(bucket_rows=grain.bucket_rows) and memory >= _LARGER_PAGES_FROM:
            # Results are gathered from all over the disk, page by page. Partitions cost a half-filled block each, and
            # rows are found by an index anyway.
            grain = replace(grain, page_bytes=min(memory // 48, _LARGEST_PAGE), partitions=_PARTITIONS)
        super().__init__(spec, memory, store, grain)
        claim = self.budget.reservation
        self.encounters = (Encounters(claim("left encounters")), Encounters(claim("right encounters")))
        self.last_kept = [0, 0]
        self.fresh_rows = [0, 0]
        rest = self.budget.total - self.sizing.buffers
        capacity = [int(rest * frequent / 2 / table.indexed_block_bytes) for table in self.tables]
        self.frequent = (Frequent(self, 0, capacity[0]), Frequent(self, 1, capacity[1]))
        self.copies: list[tuple[Frequent, Frequent]] = [self.frequent]
        """All copies of blocks on disk, by what they are for."""
        self.filters = (claim("filter of a left scan"), claim("filter of a right scan"))
        self._expired_at: tuple[int, ...] = ()
        """What expiry depends on, when it was last looked at."""
        self._aside: list[Scan | None] = [None, None]
        self.books = Books(self, books)
        self.pause = 0.0
        """Seconds between two scans in silences, at least."""
        self._last_reactive: float | None = None

    # --- what the operators differ in ---

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

    def arrival_lookup(self, side: int, hashes: Int64, parts: Int32, columns: list[pa.Array], source: Rows) -> Lookup:
        """Rows that arrived, looked up among the recent and then among the frequent ones."""
        lookup = super().arrival_lookup(side, hashes, parts, columns, source)
        tables = [copies[1 - side].table for copies in self.copies if len(copies[1 - side])]
        if not tables:
            return lookup
        return ChainedLookup(
            [lookup, *(self.lookup_in(table, side, hashes, parts, columns, source) for table in tables)]
        )

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
        fresh = self.last_kept[side] > self.probed[side]
        self.fresh_rows[side] = int(table.sizes(table.live(self.probed[side])).sum()) if fresh else 0

    def needs_probe(self, side: int) -> bool:
        """Whether a side has rows that must meet the other side's disk."""
        return self.disks[1 - side].absent > 0 and self.last_kept[side] > self.probed[side]

    def admit(self, arrival: Arrival, count: int) -> int:
        """Make room for rows, unless the disk's turn comes first."""
        side = self._arriving = arrival.input
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
        rows = table.rows_in_all(table.live(scan.since))
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

    def drop_copies(self) -> bool:
        """Let all copies of blocks go; False if there are none."""
        return any([each.drop_all() for copies in self.copies for each in copies])  # noqa: C419 (of both sides)

    def _dump(self) -> bool:
        dumped = super()._dump()
        if dumped:
            self.books.look()
        return dumped

    def join_segments(self) -> bool:
        """Let segments become fewer; False if they cannot."""
        self._spare.shrink(self._spare.held)
        fewer = self.books.shorten()
        self._keep_spare()
        return fewer

    def is_aside(self, side: int) -> bool:
        """Whether a scan for the rows of a side was set aside."""
        return self._aside[side] is not None

    @property
    def all_tables(self) -> list[WindowTable]:
        """Rows that arrived, and copies of blocks on disk."""
        return [*self.tables, *(each.table for copies in self.copies for each in copies)]

    def evict(self, side: int, part: int) -> None:
        """Let a block leave memory; if it was part of many results, it becomes a frequent one."""
        table = self.tables[side]
        block = table.queues[part][0]
        number, results = int(table.disk[block]), int(table.results[block])
        page = None
        if self.frequent[side].capacity and self.worth_keeping(side, results):
            rows = table.rows_in(part, block)
            columns = [table.gather(column, rows) for column in range(len(table.types))]
            page = Page(table.hashes(rows), table.ticks(rows), columns, -1, -1)
        super().evict(side, part)
        self.block_left(side, results)
        if page is not None:
            self.frequent[side].try_add(number, part, results, [page])

    def least_floor(self, side: int, since: int) -> int:
        """No row of a side that arrived after a tick meets rows that are older than this and came before it."""
        table = self.tables[side]
        return int(table.least_floor[table.live(since)].min(initial=FOREVER))

    def still_met(self, side: int) -> int:
        """Rows on disk of a side that are older than this meet nothing any more."""
        bound = self.expired_before(side)
        if not self.needs_probe(1 - side):
            return bound
        return min(bound, self.least_floor(1 - side, self.probed[1 - side]))

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
            names = disk.expire(self.still_met(side), at_hand)
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
        counts = [piece.results[places] for piece, places in scanned.chosen]
        results = np.concatenate([*counts, np.empty(0, np.int64)])
        ends = np.cumsum([len(each) for each in counts])
        for at in np.argsort(-results, kind="stable")[: frequent.capacity].tolist():
            if not self.worth_keeping(side, int(results[at])):
                break
            segment = int(np.searchsorted(ends, at, side="right"))
            piece, places = scanned.chosen[segment]
            place = int(places[at - ends[segment]])
            if piece.number + place not in present and self._lives(side, piece, place):
                pages = list(self.disks[side].pages_of(piece, int(piece.firsts[place]), piece.stop(place)))
                frequent.try_add(piece.number + place, int(piece.parts[place]), int(results[at]), pages)

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

    # --- snapshots ---

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        return [name for disk in self.disks for name in disk.segments()], {
            "disks": [disk.to_state() for disk in self.disks],
            "encounters": [each.to_state() for each in self.encounters],
            "copies": [[each.to_state() for each in copies] for copies in self.copies],
            "probed": list(self.probed),
            "dumped": self.dumped.tolist(),
            "last_kept": list(self.last_kept),
            "most_books": self.books.most,
            "aside": [None if scan is None else scan.to_state() for scan in self._aside],
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        self._spare.shrink(self._spare.held)
        self.probed, self.last_kept = list(state["probed"]), list(state["last_kept"])
        self.dumped = np.array(state["dumped"], np.int64)
        self.books.most = state["most_books"]
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
