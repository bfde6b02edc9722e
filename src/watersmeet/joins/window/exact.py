"""What EWJ and AH-EWJ share, whose windows may be larger than memory: fresh rows, scans of the disk, frequent blocks.

```
            ┌──────────── recent rows, a queue of blocks in each partition ────────────┐
arrival ──▶ │ fresh: have not met the other side's disk │ stale │ dumped, and here still│──▶ gone from memory
            └─────────────────────────────┬─────────────────────┬───────────────────────┘
                                          ▼ scan                ▼ dump
                    the other side's absent blocks          one segment of many blocks
```

It is put together of parts: `dumping` makes room, and sees to it that what is on disk can be remembered, a `scan`
brings rows and the disk together, `block_copies` keeps blocks in memory that are met often.

**Why each pair is found, and once.** Of two rows that belong together, let *b* be the one that came later.

1. As *b* arrives it is looked up among the recent and the frequent blocks of the other side (`arrival_lookup`). If the
   block of the other row, *a*, is among them, the pair is found there and then.
2. If not, that block is on disk alone, and *b* is fresh. Until a scan has brought *b* together with all of that disk
   (`probed` has passed its tick), the block of *b* does not leave memory (`_may_go`), and no segment goes that *b* may
   meet (`still_met`). So the scan finds the pair. It is due at some time: when fresh rows are many, in a silence, or at
   the end (`probe_due`, `_reactive_task`, `_clean_up_task`).
3. A scan leaves out what was found in 1: whether the block of *a* was in memory when *b* came follows from the ticks at
   which it left, came back as a copy and went again (`matching.ledger.Encounters`). And a scan for rows of *a*'s side
   that comes by *b* on disk leaves the pair out by the same rule: the block of *b* left memory after *a* had come.

So rows on disk never have to meet each other. Expired rows meet nobody, and `engine.windows` says which have expired.
(`tests/conformance/test_window_mutants.py` breaks each rule of the ledger, and expiry, and is noticed.)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.engine.arrival import Arrival, Task
from watersmeet.engine.shell import Operator
from watersmeet.engine.sizing import Grain
from watersmeet.joins.window.block_copies import Copies, load_block
from watersmeet.joins.window.blocks import Waits, expire_blocks, lookup_in, make_disks, make_table
from watersmeet.joins.window.dumping import Books, Dumps
from watersmeet.joins.window.scan import Scan
from watersmeet.matching.ledger import Encounters
from watersmeet.matching.lookup import Lookup
from watersmeet.matching.range_lookup import ChainedLookup
from watersmeet.records.intake import Received
from watersmeet.runs.window_segments import FOREVER
from watersmeet.spill.store import Store
from watersmeet.tables.window_table import WindowTable

_LARGEST_PAGE = 4 << 20
_LARGER_PAGES_FROM = 1 << 20
_PARTITIONS = 8


class ExactWindowJoin(Operator):
    """A window join that scans the disk for many rows at once. What a paper decides comes first below."""

    SAVED: ClassVar[tuple[str, ...]] = ("probed", "last_kept")
    windowed: ClassVar[bool] = True
    takes_punctuations: bool = True
    tables: tuple[WindowTable, ...]

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
        self.disks = make_disks(self)
        """The segments of each side."""
        self.waits = Waits(self)
        """When rows came, and how long their results took."""
        self.probed = [0, 0]
        """Rows of a side that arrived up to this tick have met all of the other side's disk."""
        self.last_kept = [0, 0]
        """The tick of each side's last row in memory."""
        self.fresh_rows = [0, 0]
        """Rows of each side that have yet to meet the disk."""
        self.arriving = 0
        """The side of the arrival at hand."""
        self.dumps = Dumps(self)
        claim = self.budget.reservation
        self.encounters = (Encounters(claim("left encounters")), Encounters(claim("right encounters")))
        """The ledger: of each side's rows, which blocks of the other side they have met."""
        self.copies = Copies(self, frequent)
        """Blocks on disk that are in memory, too."""
        self.filters = (claim("filter of a left scan"), claim("filter of a right scan"))
        self.books = Books(self, books)
        self.pause = 0.0
        """Seconds between two scans in silences, at least."""
        self._expired_at: tuple[int, ...] = ()
        """What expiry depends on, when it was last looked at."""
        self._aside: list[Scan | None] = [None, None]
        self._last_reactive: float | None = None

    # --- what the papers differ in ---

    @abstractmethod
    def probe_due(self, side: int) -> bool:
        """Whether it is time that the fresh rows of a side meet the disk."""

    @abstractmethod
    def victim(self) -> tuple[int, int] | None:
        """The side and the partition whose oldest block is on disk and is to leave memory; None if there is none."""

    @abstractmethod
    def to_dump(self) -> tuple[int, list[tuple[int, int]]]:
        """A side and those of its stale blocks, as (partition, block), that are to be dumped next; none if there are
        none.
        """

    @abstractmethod
    def worth_keeping(self, side: int, results: int) -> bool:
        """Whether a block with so many results belongs among the frequent ones."""

    def block_left(self, side: int, results: int) -> None:
        """A block that was part of so many results has left memory."""

    def scan_begins(self, side: int) -> bool:
        """A scan for the rows of a side is about to begin; whether it may change the frequent blocks."""
        return True

    # --- what rows are kept in ---

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget: what is on disk must be remembered, too, and be read back."""
        return super().least_memory(spec, **options) * 3 // 2

    def _make_table(self, side: int) -> WindowTable:
        return make_table(self, side)

    @property
    def all_tables(self) -> list[WindowTable]:
        """Rows that arrived, and copies of blocks on disk."""
        return [*self.tables, *self.copies.tables]

    @property
    def recent_bytes(self) -> int:
        """Memory for recent rows: what they have, and what nobody has."""
        return self.budget.free + sum(table.held for table in self.tables)

    @property
    def window_rows(self) -> int:
        """How many rows are remembered, in memory and on disk."""
        absent = sum(
            int(np.diff(np.append(piece.firsts, piece.rows))[piece.left < FOREVER].sum())
            for disk in self.disks
            for piece in disk.pieces
        )
        return super().window_rows + absent

    # --- arriving ---

    def must_keep(self, side: int) -> bool:
        """As long as the other input may bring rows, or has rows on disk that are to be met."""
        return not self.exhausted(1 - side) or self.disks[1 - side].absent > 0

    def arrival_lookup(self, side: int, *rows: Any) -> Lookup:
        """Rows that arrived, looked up among the recent and then among the frequent ones."""
        tables = [self.tables[1 - side], *self.copies.in_use(1 - side)]
        lookups = [lookup_in(self, table, side, *rows) for table in tables]
        return lookups[0] if len(lookups) == 1 else ChainedLookup(len(lookups), lookups.__getitem__)

    def rows_kept(self, side: int, parts: Int32) -> None:
        """Count fresh rows."""
        self.waits.rows_came()
        self.last_kept[side] = self.clock
        self.fresh_rows[side] += len(parts)

    def slice_taken(self, side: int) -> None:
        """Rows that arrive while nothing of the other side has left memory have nothing to meet on disk."""
        self._met_if_none_absent(side)

    def _met_if_none_absent(self, side: int) -> None:
        """Where nothing of the other side is on disk alone, a side's rows have met all that is there."""
        if not self.disks[1 - side].absent:
            self._all_probed(side, self.clock)

    def admit(self, arrival: Arrival, count: int) -> int:
        """Make room for rows, unless the disk's turn comes first."""
        side = self.arriving = arrival.input
        if self.needs_probe(side) and self.probe_due(side):
            self._hold_up_for(self.scan(side))
            return 0
        return super().admit(arrival, count)

    def _must_wait(self) -> bool:
        sides = [side for side in (0, 1) if self.needs_probe(side)]
        if not sides:
            return False
        side = max(sides, key=lambda side: self.tables[side].mean_row_bytes * self.fresh_rows[side])
        self._hold_up_for(self.scan(side))
        return True

    # --- scans ---

    def needs_probe(self, side: int) -> bool:
        """Whether a side has rows that must meet the other side's disk."""
        return self.disks[1 - side].absent > 0 and self.last_kept[side] > self.probed[side]

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
        if self.waits.perhaps_delayed(scan.side):
            table = self.tables[scan.side]
            rows = table.rows_in_all(table.live(scan.since))
            ticks = table.ticks(rows)
            mine = (ticks > scan.since) & (ticks <= scan.until)
            self.waits.rows_settled(scan.side, table.times(rows[mine]), ticks[mine])
        self._all_probed(scan.side, scan.until)
        self.waits.marks.forget(min(self.probed))
        self.expire()

    def _all_probed(self, side: int, tick: int) -> None:
        self.probed[side] = max(self.probed[side], tick)
        self.encounters[side].forget(self.probed[side])
        table = self.tables[side]
        fresh = self.last_kept[side] > self.probed[side]
        self.fresh_rows[side] = int(table.sizes(table.live(self.probed[side])).sum()) if fresh else 0

    def is_aside(self, side: int) -> bool:
        """Whether a scan for the rows of a side was set aside."""
        return self._aside[side] is not None

    def least_floor(self, side: int, since: int) -> int:
        """No row of a side that arrived after a tick meets rows that are older than this and came before it."""
        table = self.tables[side]
        return int(table.least_floor[table.live(since)].min(initial=FOREVER))

    # --- room and expiry ---

    def secure(self, claim: Callable[[], bool], spared: frozenset[tuple[int, int]] = frozenset()) -> bool:
        """Make room until a claim succeeds; False if it does not with all gone that may go."""
        return self.dumps.secure(claim)

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        return self.dumps.make_room()

    def still_met(self, side: int) -> int:
        """Rows on disk of a side that are older than this meet nothing any more."""
        bound = self.expired_before(side)
        if not self.needs_probe(1 - side):
            return bound
        return min(bound, self.least_floor(1 - side, self.probed[1 - side]))

    def _may_go(self, side: int, part: int, block: int) -> bool:
        """Whether a block's rows have nothing left to look up."""
        return bool(self.tables[side].last_tick[block] <= self.probed[side]) or not self.disks[1 - side].absent

    def expire(self) -> bool:
        """Let go of blocks whose rows have all expired, in memory and on disk."""
        now = (self.expired_before(0), self.expired_before(1), *self.probed, *(disk.absent for disk in self.disks))
        if now == self._expired_at:
            return False
        self._expired_at = now
        some = expire_blocks(self, self._may_go, self.dumps.drop_oldest)
        scans = [scan for scan in (self._task, *self._aside) if isinstance(scan, Scan) and not scan.done]
        at_hand = {number for scan in scans for number in scan.pieces}
        for side, disk in enumerate(self.disks):
            bound = self.expired_before(side)
            some |= self.copies.drop_expired(side, bound)
            if not disk.pieces or min(piece.newest for piece in disk.pieces) >= bound:
                continue
            names = disk.expire(self.still_met(side), at_hand)
            self.saver.discard(names)
            self.events["expired segments"] += len(names)
            some |= bool(names)
        for side in (0, 1):
            # What rows have yet to meet may all have expired: else they would wait for a scan that nobody needs.
            if self.last_kept[side] > self.probed[side]:
                self._met_if_none_absent(side)
        return some

    def _input_closed(self, side: int) -> None:
        self.expire()

    # --- reactive and clean-up ---

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

    # --- checks and snapshots ---

    def close(self) -> None:
        """Let go of everything."""
        super().close()
        for disk in self.disks:
            disk.close()

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        for side, disk in enumerate(self.disks):
            disk.check()
            self.encounters[side].check(self.clock)
            self.copies.check(side)
            table = self.tables[side]
            held = {int(table.disk[block]) for queue in table.queues for block in queue if table.disk[block] >= 0}
            there = {
                piece.number + int(place) for piece in disk.pieces for place in np.flatnonzero(piece.left == FOREVER)
            }
            assert held == there, "a block that has not left is in memory, and no other"
            owe = self.last_kept[1 - side] > self.probed[1 - side]
            assert disk.absent or not owe, "rows wait for what is on disk, and for nothing else"
            for queue in table.queues:
                on_disk = [bool(table.disk[block] >= 0) for block in queue]
                assert on_disk == sorted(on_disk, reverse=True), "the oldest blocks are dumped first"

    def still_in_memory(self, side: int, parts: Int32, ticks: Int64) -> Bool:
        """Which rows of a snapshot have neither left memory nor come to the disk since they were written."""
        return self.dumps.not_dumped(side, parts, ticks) & super().still_in_memory(side, parts, ticks)

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        return [name for disk in self.disks for name in disk.segments()], {
            **self.declared_state(),
            "disks": [disk.to_state() for disk in self.disks],
            "encounters": [each.to_state() for each in self.encounters],
            "copies": self.copies.to_state(),
            "dumped": self.dumps.dumped.tolist(),
            "most_books": self.books.most,
            "aside": [None if scan is None else scan.to_state() for scan in self._aside],
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        self.dumps.use_spare()
        super()._load_own(state)
        self.dumps.dumped = np.array(state["dumped"], np.int64)
        self.books.most = state["most_books"]
        for side, disk in enumerate(self.disks):
            disk.load(state["disks"][side])
            self.encounters[side].load(state["encounters"][side])
            for piece in disk.pieces:
                for place in np.flatnonzero(piece.left == FOREVER):
                    block = load_block(self, side, self.tables[side], piece, int(place))
                    self.tables[side].results[block] = piece.results[place]
            self.copies.load(side, state["copies"])

    def _load_tasks(self, state: dict[str, Any], waiting: list[list[Received]]) -> None:
        for side in (0, 1):
            self._all_probed(side, 0)
            if state["aside"][side] is not None:
                scan = self._aside[side] = self._load_task(state["aside"][side])
                scan.set_aside()
        super()._load_tasks(state, waiting)
        self.dumps.keep_spare()

    def _load_task(self, state: dict[str, Any]) -> Scan:
        scan = Scan(self, state["side"], state["since"], state["until"], state["updates"], state["floor"])
        scan.go_to(state)
        return scan
