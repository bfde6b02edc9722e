"""The rows that a join with promises remembers: which are kept, which are purged, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.report import PromiseFigures
from watersmeet.joins.progressive.promised_arrival import PromisedArrival
from watersmeet.records.patterns import plain_array
from watersmeet.spill.segment import Segment, SegmentWriter
from watersmeet.tables.hash_table import Probe

if TYPE_CHECKING:
    from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin

Keys = Callable[[], Sequence[pa.Array]]

_FOUND_AT_ONCE = 256
_RUN_BYTES, _PAGE_BYTES = 64, 9
_TRIMMED = 4096
"""Bytes of each table that are given back after a purge, for whatever else needs memory."""


class PromisedRows:
    """The rows of a join with promises; which come next, and what is promised, is the join's own business."""

    def __init__(self, join: MetadataMJoin) -> None:
        self._join = join
        self.purged = [0, 0]
        """Rows by input that were taken out of memory because of a promise."""
        self.dropped = [0, 0]
        """Rows by input that were never kept because of a promise."""
        self.purges = 0
        """How often rows that a promise made useless were looked for."""
        self.broken = [0, 0]
        """Rows by input that came although they were promised not to."""
        self.met_last = [False, False]
        """By input: whether the last row that came found a partner in memory."""
        self._left = np.zeros((2, join.sizing.layout.partitions), np.int64)
        """When rows of a side and partition last left memory for the disk, though not all of them."""
        self._thinned = [False, False]
        """Whether rows were taken out of a table since its list of rows was last written."""
        self._alive: list[tuple[str, int]] = [("", 0), ("", 0)]
        """For snapshots: a list of the rows that were in memory at a tick, those written before it being more."""
        self._lists = 0
        self._room_for_runs = join.budget.reservation("room to remember runs in")

    @property
    def held(self) -> tuple[int, int]:
        """Rows of each input that are in memory."""
        left, right = self._join.tables
        return left.rows, right.rows

    def figures(self) -> PromiseFigures:
        """What was made of the promises, by input."""
        kept = self.held if self._join.tables else (0, 0)
        return PromiseFigures(kept, tuple(self.purged), tuple(self.dropped), tuple(self.broken))

    # --- arrivals ---

    def to_be_kept(self, side: int, hashes: Int64, parts: Int32, keys: Keys) -> Bool:
        """Which rows may find partners that they do not find in memory now."""
        other = 1 - side
        met_disk: Bool = np.asarray(self._join.disks[other].rows)[parts] == 0
        if self._join.lenient:
            return np.full(len(hashes), not self._join.exhausted(other)) | ~met_disk
        known = self._join.known[other]
        if self._join.exhausted(other):
            alone = np.ones(len(hashes), np.bool_)
        else:
            alone = known.range.contains(hashes, keys)
            self._join.meter.comparisons += len(hashes)
        useless = alone & met_disk
        if known.unique:
            # The one partner that there is is met right now, by the look-up that follows and is counted.
            useless |= self.in_memory(other, hashes, parts, keys)
        return ~useless

    def check_word(self, arrival: PromisedArrival, count: int) -> None:
        """Whether the next rows were promised not to come: an error, or a count."""
        side, first = arrival.input, arrival.next
        known = self._join.known[side]
        hashes, parts, _ = arrival.piece(count)
        seen = np.zeros(count, np.bool_)

        def keys() -> list[pa.Array]:
            return arrival.keys(first, count)

        if known.unique:
            seen = self.in_memory(side, hashes, parts, keys)
        late = known.broken(hashes, keys, seen) | arrival.behind_marks(first, hashes, keys)
        if not late.any():
            return
        self.broken[side] += int(np.count_nonzero(late))
        if not self._join.lenient:
            remedy = "mend the input, take back the promise, or use broken='count'"
            raise arrival.broken_word(first + int(np.argmax(late)), remedy)

    def not_kept(self, side: int, hashes: Int64, keys: Keys, dropped: Bool) -> None:
        """Rows that have just come are not kept."""
        if dropped.any():
            rows = np.flatnonzero(dropped)
            self.dropped[side] += len(rows)
            if self._join.known[side].unique:
                self._join.known[side].remember(hashes[rows], lambda: [key.take(pa.array(rows)) for key in keys()])

    def met_memory(self, side: int, hashes: Int64, parts: Int32, keys: Callable[[], list[pa.Array]]) -> None:
        """Rows that have come have met all partners in memory: learn from them what will not come."""
        known, other = self._join.known[side], 1 - side
        if known.clustered and self._join.known[other].unique:
            last = slice(len(hashes) - 1, len(hashes))
            self.met_last[side] = bool(
                self.in_memory(other, hashes[last], parts[last], lambda: [key.slice(len(key) - 1) for key in keys()])[0]
            )
        if known.unique and not self._join.lenient and self._join.tables[other].rows:
            _, partners = self.find(other, hashes, parts, keys)
            self._take_out(other, np.unique(partners))
        known.learn(hashes, keys)
        self.promises_made(side)

    # --- finding rows ---

    def in_memory(self, side: int, hashes: Int64, parts: Int32, keys: Keys) -> Bool:
        """Which keys have a row in a side's memory."""
        found = np.zeros(len(hashes), np.bool_)
        found[self.find(side, hashes, parts, keys)[0]] = True
        return found

    def find(self, side: int, hashes: Int64, parts: Int32, keys: Keys) -> tuple[Int32, Int32]:
        """The rows in a side's memory that have some keys: for each, which key it is, and the row's number."""
        table = self._join.tables[side]
        probe = Probe(hashes, parts)
        found = [(np.empty(0, np.int32), np.empty(0, np.int32))]
        while table.rows and not probe.done:
            out = np.empty((2, _FOUND_AT_ONCE), np.int32)
            count, _ = table.probe(probe, len(hashes), out[0], out[1])
            found.append((out[0][:count], out[1][:count]))
        which, rows = (np.concatenate(some) for some in zip(*found, strict=True))
        if len(rows) and not self._join.codec.exact:
            mine = [plain_array(key).take(pa.array(which)) for key in keys()]
            equal = self._join.codec.equal_plain(mine, self._keys_of(side, rows))
            if equal is not None:
                which, rows = which[equal], rows[equal]
        return which, rows

    def _keys_of(self, side: int, rows: Int32) -> list[pa.Array]:
        """The key columns of rows in memory, in plain types; there are none where hashes tell all."""
        plan, table = self._join.plans[side], self._join.tables[side]
        return [plain_array(plan.original(column, table.gather(column, rows))) for column in plan.keys]

    def nothing_on_disk(self, hashes: Int64) -> Bool:
        """Which keys have no rows of either input on disk, nor others of their partition."""
        parts = self._join.tables[0].parts_of(hashes)
        rows = np.asarray(self._join.disks[0].rows) + np.asarray(self._join.disks[1].rows)
        nothing: Bool = rows[parts] == 0
        return nothing

    # --- purging ---

    def promises_made(self, side: int) -> None:
        """An input has made promises: act upon them, if it is time to."""
        if self._join.policy.due(self._join.known[side].news):
            self._purge(side)

    def purge_now(self) -> bool:
        """Act upon all promises that nobody has acted upon; whether that took anything out of memory."""
        before = sum(self.held)
        for side in (0, 1):
            if self._join.known[side].news:
                self._purge(side)
        for table in self._join.tables:
            table.trim(_TRIMMED)
        return sum(self.held) < before

    def _purge(self, side: int) -> None:
        """Take rows of the other input out of memory that this one will send no more partners of."""
        known, other = self._join.known[side], 1 - side
        table = self._join.tables[other]
        hashes = known.new_hashes() if self._join.by_index else None
        self.purges += 1
        if hashes is not None and len(hashes) < table.rows:
            _, rows = self._candidates(other, hashes)
            self._purge_rows(other, rows)
        else:
            for part in np.flatnonzero(table.part_rows):
                rows = table.rows_of(int(part))
                self._join.meter.comparisons += len(rows)
                self._purge_rows(other, rows)
        known.acted_upon()

    def _candidates(self, side: int, hashes: Int64) -> tuple[Int32, Int32]:
        """Rows with some hashes; whether their keys are those that are meant is for the punctuated range to say."""
        table = self._join.tables[side]
        probe = Probe(hashes, table.parts_of(hashes))
        found = [(np.empty(0, np.int32), np.empty(0, np.int32))]
        while not probe.done:
            out = np.empty((2, _FOUND_AT_ONCE), np.int32)
            count, visited = table.probe(probe, len(hashes), out[0], out[1])
            self._join.meter.comparisons += visited
            found.append((out[0][:count], out[1][:count]))
        which, rows = (np.concatenate(some) for some in zip(*found, strict=True))
        return which, rows

    def _purge_rows(self, side: int, rows: Int32) -> None:
        """Take those of some rows out that the other input will send no more partners of, if they met all on disk."""
        if not len(rows):
            return
        table, other = self._join.tables[side], self._join.known[1 - side]
        useless = other.range.contains(table.hashes(rows), lambda: self._keys_of(side, rows))
        if not self._join.lenient:
            parts = table.parts_of(table.hashes(rows))
            useless &= self._join.stages.visits.met_all(side, parts, table.ticks(rows))
        rows = rows[useless]
        if not self._join.lenient:
            self._take_out(side, rows)
        elif len(rows):
            self._move_to_disk(side, rows)

    def _take_out(self, side: int, rows: Int32) -> None:
        if not len(rows):
            return
        self._remember(side, rows)
        self._join.tables[side].discard(rows)
        self.purged[side] += len(rows)
        self._thinned[side] = True

    def _move_to_disk(self, side: int, rows: Int32) -> None:
        """Of an input that may break its word: rows that should find no more partners wait on disk for them."""
        table = self._join.tables[side]
        parts = table.parts_of(table.hashes(rows))
        portions = {int(part): rows[parts == part] for part in np.unique(parts)}
        if not self._keep_room_for_runs(len(portions), len(rows)):
            return
        self._remember(side, rows)
        self._room_for_runs.clear()
        self._join.clock += 1
        self._join.disks[side].write_runs(
            table, list(portions), list(portions.values()), self._join.clock, self._join.sizing.page_bytes,
            lambda part: table.discard(portions[part]),
        )  # fmt: skip
        self._left[side][list(portions)] = self._join.clock
        self.purged[side] += len(rows)
        self._thinned[side] = True

    def _keep_room_for_runs(self, runs: int, rows: int) -> bool:
        """Whether there is memory to remember so many runs: a partition that does not go whole may free nothing.

        If so, it is reserved, so that nothing else takes it before they are written.
        """
        needed = _RUN_BYTES * runs + _PAGE_BYTES * rows
        if self._join.budget.free < needed:
            for table in self._join.tables:
                table.trim(needed)
        return self._room_for_runs.try_grow(needed)

    def _remember(self, side: int, rows: Int32) -> None:
        """Unique keys whose rows leave memory are over."""
        if self._join.known[side].unique and len(rows):
            self._join.known[side].remember(self._join.tables[side].hashes(rows), lambda: self._keys_of(side, rows))

    def last_left(self, side: int, part: int) -> int:
        """The last tick at which rows left this partition's memory for the disk, though not all of them."""
        return int(self._left[side][part])

    def visit_ended(self, side: int, part: int) -> None:
        """A memory partition has met all of the other side's disk: promises count for it again."""
        self._purge_rows(side, self._join.tables[side].rows_of(part))

    def remember_part(self, side: int, part: int) -> None:
        """A partition is about to leave memory: its unique keys are over."""
        if self._join.known[side].unique and not self._join.is_closed(side):
            self._remember(side, self._join.tables[side].rows_of(part))

    # --- snapshots ---

    def left_since(self, side: int, ticks: Int64) -> Bool:
        """Which rows, by their arrivals, were taken out of memory since a snapshot wrote them."""
        name, until = self._alive[side]
        if not name:
            return np.zeros(len(ticks), np.bool_)
        segment = Segment.open(self._join.store, name)
        gone: Bool = (ticks <= until) & ~np.isin(ticks, segment.array("ticks"))
        segment.close()
        return gone

    def to_state(self) -> tuple[list[str], dict[str, Any]]:
        """For a snapshot: lists of rows, and counts."""
        for side in (0, 1):
            if self._thinned[side]:
                self._write_list(side)
        return [name for name, _ in self._alive if name], {
            "alive": [list(alive) for alive in self._alive],
            "lists": self._lists,
            "left": self._left.tolist(),
            "counts": [list(self.purged), list(self.dropped), self.purges, list(self.broken)],
            "met_last": list(self.met_last),
        }

    def _write_list(self, side: int) -> None:
        """Write which rows are in memory: some of those that snapshots have written are no more."""
        self._lists += 1
        name = f"snapshot-list-{side}-{self._lists}"
        writer = SegmentWriter(self._join.store, name, pa.schema([]))
        try:
            rows, _ = self._join.tables[side].all_rows()
            writer.add_array("ticks", np.sort(self._join.tables[side].ticks(rows)))
            writer.seal().close()
        except BaseException:
            writer.abort()
            raise
        if self._alive[side][0]:
            self._join.saver.discard([self._alive[side][0]])
        self._alive[side] = (name, self._join.clock)
        self._thinned[side] = False

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        self._alive = [(name, until) for name, until in state["alive"]]
        self._lists = state["lists"]
        self._left = np.array(state["left"], np.int64)
        self.purged, self.dropped, self.purges, self.broken = state["counts"]
        self.met_last = list(state["met_last"])
