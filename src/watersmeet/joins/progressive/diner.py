"""Sorted memory, flushed where values bring few results, and a nested loop over the disk that can stop and go on."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.errors import BudgetError
from watersmeet.core.protocol import Snapshot
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.arrival import Arrival, Task
from watersmeet.engine.shell import Operator
from watersmeet.engine.sizing import Grain, Sizing
from watersmeet.joins.progressive.block_loop import Loop, NestedLoop, Resident
from watersmeet.matching.found_pairs import Between
from watersmeet.matching.lookup import Lookup
from watersmeet.matching.range_lookup import ChainedLookup, RangeCodec, RangeLookup, RangePlan
from watersmeet.memory import format_bytes
from watersmeet.policies.reading_loop import LoopLimits
from watersmeet.policies.regions import Regions
from watersmeet.records.plan import Rows, TableRows
from watersmeet.runs.block_catalogue import Block, SortedBlocks
from watersmeet.spill.store import Store
from watersmeet.tables.range_table import LooseRows, SortedSide, sorted_layout, sorted_row_bytes

_BLOCKS_IN_MEMORY = 8
"""A disk block holds about this part of the memory: each flush moves the rows that stay, so it should be worth it."""
_BLOCKS_OF_OUTER = 2
"""More would be read less often, but rows have to leave memory for them."""
_INNER = 8
"""This part of the memory holds the inner pages of the clean-up."""
_INNER_IN_PAUSES = 12
"""This part holds those of the reactive phase, until arrivals need it."""
_SLACK = 24
"""This part of the memory is left to restores: rows that are put together anew may take a little more than before."""


class Diner(Operator):
    """Keep in memory the values that both inputs bring now; join blocks on disk in the pauses [1]_.

    ```
    memory  left   ├ lower ┤──── middle ────┤ upper ┤      each side sorted by value; the region with the fewest results
            right  ├ lower ┤──── middle ────┤ upper ┤      a row gives up a block: outermost values, or idle ones
                                │ flush
    disk    left   [block 1][block 2][block 3]...          each block sorted
            right  [block 1][block 2]...                   ▲ pauses: outer blocks x inner blocks, again and again
    ```

    - *Arriving*: a row is kept and its range is looked up in the other side's sorted index. Every row that found a
      partner has its join bit set. Without room, the side with more rows gives up a block: of the region whose rows
      have brought the fewest results since its last flush.
    - *Reactive*: the nested loop of `NestedLoop` over blocks on disk, which gives way after every inner block.
    - *Clean-up*: what memory holds becomes blocks, and the same loop runs to its end with all the memory.

    Equalities and a band (`wm.band`) can be joined on, also together: the index is sorted by the band's column then.
    For a single key that fits 64 bits it is sorted by the key's value, for any other by the key's hash, whose regions
    mean nothing, but do no harm.

    Where this differs from the paper:

    - Rows are looked up and flushed by batches. A block is an eighth of the memory: the rows that stay move together.
    - Regions are counted by the values of the rows that were found, not by the value that found them, which in a band
      may lie in another region. The clock hand starts in the middle of the middle instead of anywhere.
    - Pairs that met in memory are told apart by logical ticks, so there are no ties.
    - Once an input has ended, the rows of the other cannot be found by anybody any more: they are flushed, and blocks
      of the ended input are loaded again in their place (the paper's footnote 1), so that later rows meet them at
      once. If all of them fit, later rows need not even be kept.
    - New rows end the reactive phase after the inner block at hand. `max_new_arrivals` lets drivers hold back as many
      during that phase, as the paper does to switch less often.
    - Algorithm 4 changes roles only inside the loop over outer blocks that have something left to meet: when that side
      has none and the inner side has grown, it would never get to the new blocks. Here roles are settled before.
    - Join bits are not part of a snapshot.

    :param max_new_arrivals: rows that may wait during the reactive phase (the paper's MaxNewArr); 0 wants each at once.
    :param max_outer_blocks: blocks of the outer side that the reactive phase loads at once.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End
    >>> from watersmeet.core.spec import JoinSpec, band
    >>> from watersmeet.spill.store import MemoryStore
    >>> left, right = pa.record_batch({"p": range(3000)}), pa.record_batch({"p": range(2990, 6000)})
    >>> join = Diner(JoinSpec(left.schema, right.schema, (band("p", 1),)), 64 * 1024, MemoryStore())
    >>> for event in (Arrive(LEFT, left), End(LEFT), Arrive(RIGHT, right), End(RIGHT)):
    ...     join.receive(event)
    >>> rows = 0
    >>> while not join.phase == "done":
    ...     step = join.poll(0.0, fuel=1000)
    ...     rows += step.out.num_rows if step.out else 0
    >>> rows, join.cost.pages_written > 0
    (30, True)

    .. [1] M. A. Bornea, V. Vassalos, Y. Kotidis and A. Deligiannakis. Adaptive join operators for result rate
       optimization on streaming inputs. IEEE Transactions on Knowledge and Data Engineering 22(8), 2010.
    """

    name: ClassVar[str] = "diner"
    partitioned: ClassVar[bool] = False
    joins_ranges: ClassVar[bool] = True
    codec: RangeCodec

    def __init__(
        self,
        spec: JoinSpec,
        memory: int,
        store: Store,
        *,
        max_new_arrivals: int = 0,
        max_outer_blocks: int = _BLOCKS_OF_OUTER,
        grain: Grain | None = None,
    ) -> None:
        self.limits = LoopLimits(max_new_arrivals, max_outer_blocks)
        least = self.least_memory(spec)
        if memory < least:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for the diner join of these rows; allow at least "
                f"{format_bytes(least)}"
            )
        self._records = 0 if grain is None else grain.records or 0
        """Bytes for the catalogue, which rows never get."""
        self._block_rows = None if grain is None else grain.block_rows
        super().__init__(spec, memory, store, grain)
        self.block_bytes = (memory - self.sizing.buffers) // _BLOCKS_IN_MEMORY
        catalogue = self.budget.reservation("catalogue of blocks")
        catalogue.set_aside(self._records)
        self.disks = tuple(SortedBlocks(store, f"block-{side}", catalogue, self.meter) for side in (0, 1))
        self.outers = tuple(self.new_table(side, from_disk=True) for side in (0, 1))
        """Where the loop keeps the outer blocks it has loaded, by side."""
        self._slack = self.budget.reservation("slack")
        self._slack.grow((memory - self.sizing.buffers) // _SLACK)
        self._inner = self.budget.reservation("inner pages")
        self._inner_pages = 1
        self.regions = (Regions(), Regions())
        self._counted = [False, False]
        """Whether rows have come since a side's last flush."""
        self.loop = Loop(self.disks)
        self.resident = Resident(self)
        self._settled = False
        self._loose: list[tuple[int, LooseRows, int]] = []

    @classmethod
    def least_memory(cls, spec: JoinSpec, **options: Any) -> int:
        """The smallest budget this join can work in, if no single row is large."""
        codec = RangeCodec(spec)
        return Sizing.least([sorted_row_bytes(RangePlan(spec, side, codec).types, codec.tagged) for side in (0, 1)])

    def _make_codec(self) -> RangeCodec:
        return RangeCodec(self.spec)

    def _make_plans(self) -> tuple[RangePlan, RangePlan]:
        return RangePlan(self.spec, 0, self.codec), RangePlan(self.spec, 1, self.codec)

    def _make_table(self, side: int) -> Any:
        return self.new_table(side)

    def new_table(self, side: int, from_disk: bool = False) -> SortedSide:
        """An empty table for rows of one side."""
        types = self.plans[side].types
        width = sorted_row_bytes(types, self.codec.tagged)
        layout = sorted_layout(self.budget.total - self.sizing.buffers - self._records, width, self._block_rows)
        name = self.spec.names[side] + (" from disk" if from_disk else "")
        return SortedSide(types, self.budget, layout, name, tagged=self.codec.tagged, from_disk=from_disk)

    def side(self, side: int) -> SortedSide:
        """One side's rows in memory."""
        table: Any = self.tables[side]
        assert isinstance(table, SortedSide)
        return table

    # --- arriving ---

    def arrival_lookup(self, side: int, hashes: Int64, parts: Int32, columns: list[pa.Array], source: Rows) -> Lookup:
        """Look rows up in the other side's index, and note whose join bits are to be set."""
        mine, other = self.regions[side], self.regions[1 - side]
        self._counted = [True, True]
        own, table = self.side(side), self.side(1 - side)
        back = self.resident.table if self.resident.is_of(1 - side) else None
        rows = source.numbers if isinstance(source, TableRows) else None

        def note(probes: Int32, found: Int32) -> None:
            table.note_joined(found, other.lower, other.upper, other.joins)
            if rows is not None:
                own.note_joined(rows[probes], mine.lower, mine.upper, mine.joins)

        lookup = RangeLookup(self.codec.probe(hashes, columns), table, Between(side, source, table), None, note)
        if back is None:
            return lookup
        again = RangeLookup(self.codec.probe(hashes, columns), back, Between(side, source, back))
        return ChainedLookup(2, (lookup, again).__getitem__)

    def admit(self, arrival: Arrival, count: int) -> int:
        """Make room for new rows, and first for the slack, should a restore have taken it."""
        missing = (self.budget.total - self.sizing.buffers) // _SLACK - self._slack.held
        if missing:
            self.secure(lambda: self._slack.try_grow(missing))
        return super().admit(arrival, count)

    def must_keep(self, side: int) -> bool:
        """Unless the other input has ended and has nothing on disk, or only what is in memory again."""
        other = 1 - side
        return not self.exhausted(other) or (len(self.disks[other]) > 0 and not self.resident.covers(other))

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        # Blocks of a loop that is not running are only a copy of what is on disk.
        at_rest = not isinstance(self._task, NestedLoop)
        if at_rest and (self._release_inner_pages() or self.loop.forget_loaded(self.outers)):
            return True
        sides = [side for side in (0, 1) if self.side(side).rows]
        # Rows whose partners have all arrived cannot be found any more.
        useless = [side for side in sides if self.exhausted(1 - side) and not self.exhausted(side)]
        if useless:
            self.flush(useless[0], everything=True)
        elif not self.resident.drop():
            if not sides:
                return False
            self.flush(max(sides, key=lambda side: self.side(side).rows))
        return True

    def flush(self, side: int, everything: bool = False) -> None:
        """Move a block, or all rows in blocks, from memory to disk."""
        table, regions = self.side(side), self.regions[side]
        words, rows = table.index.sorted()
        self.trim_all()
        count = self._block_rows or max(1, -(-len(rows) * self.block_bytes // max(1, table.nbytes)))
        if everything:
            self._spill_all(side, rows, count)
            regions.settle(words[:0], count)
            return
        choice = regions.choose(words, table.joined(rows), count, self._counted[side])
        self._counted[side] = False
        table.clear_joined(rows[choice.cleared])
        self._spill(side, rows[choice.leave])
        regions.settle(table.index.sorted()[0], count)

    def _spill(self, side: int, rows: Int32) -> None:
        """Write sorted rows as a block, and forget them."""
        table, disk = self.side(side), self.disks[side]
        self.clock += 1
        block = disk.write(table, rows, self.clock, self.sizing.page_bytes)
        for loose in table.remove(rows):
            self.clock += 1
            self._loose.append((side, loose, self.clock))
        self._add(disk, [block])
        self._write_loose()

    def _write_loose(self) -> None:
        """Write rows that left memory without having been written; those that the disk refuses wait for the next try.

        When they left is settled already, so nobody meets them twice or not at all, however late they are written.
        """
        while self._loose:
            side, loose, tick = self._loose[0]
            order = np.argsort(loose.words, kind="stable").astype(np.int32)
            block = self.disks[side].write(loose, order, tick, self.sizing.page_bytes)
            del self._loose[0]
            self._add(self.disks[side], [block])

    def _work(self, fuel: int) -> int:
        self._write_loose()
        return super()._work(fuel)

    def snapshot(self) -> Snapshot:
        """The state as of now; what waits to be written is written first."""
        self._write_loose()
        return super().snapshot()

    def _spill_all(self, side: int, rows: Int32, count: int) -> None:
        """Write sorted rows as blocks of `count`, and forget everything."""
        table, disk = self.side(side), self.disks[side]
        written = []
        for start in range(0, len(rows), count):
            self.clock += 1
            written.append(disk.write(table, rows[start : start + count], self.clock, self.sizing.page_bytes))
        self.forget(side, 0)
        self._add(disk, written)

    def _add(self, disk: SortedBlocks, written: list[Block]) -> None:
        for block in written:
            while not disk.try_add(block):
                if not self.trim_all():
                    raise BudgetError("there is no memory left to note what was spilled; allow more memory")

    def trim_all(self) -> int:
        """Give all free memory back to the budget; returns how much that was."""
        tables = [*(self.side(side) for side in (0, 1)), *self.outers]
        if self.resident.table is not None:
            tables.append(self.resident.table)
        return sum(table.trim(self.budget.total) for table in tables)

    def _input_closed(self, side: int) -> None:
        """Rows of the other side have met all of this input that is in memory, and cannot be found any more."""
        other = 1 - side
        if not len(self.disks[side]):
            self.forget(other, 0)
            self.regions[other].settle(np.empty(0, np.int64), 1)
        elif not self._ended[other] or self._intakes[other].rows:
            self.loop.forget_loaded(self.outers)
            self.flush(other, everything=True)
            self.resident.load(side)

    # --- reactive and clean-up ---

    def _can_react(self) -> bool:
        return self.loop.unmet

    def _reactive_task(self) -> Task | None:
        if not self.loop.unmet:
            return None
        if self._block_rows is None:
            self._want_inner_pages(_INNER_IN_PAUSES)
        return NestedLoop(self, self.limits.outer_blocks, self._inner_pages)

    def _give_way(self, task: Task) -> int:
        assert isinstance(task, NestedLoop)
        if task.between_blocks:
            self._task = None
            return 1
        return task.work(1)

    @property
    def patience(self) -> int:
        """The paper's MaxNewArr."""
        return self.limits.new_arrivals

    def _clean_up_task(self) -> Task | None:
        if not self._settled:
            self._settle_memory()
        if self.loop.unmet:
            return NestedLoop(self, None, self._inner_pages)
        self.loop.forget_loaded(self.outers)
        for disk in self.disks:
            self.saver.discard(disk.drop())
        self.loop = Loop(self.disks)
        return None

    def _settle_memory(self) -> None:
        """What is in memory has met what is there of the other side, and still has to meet the other side's disk."""
        self.resident.drop()
        spilled = [len(disk) > 0 for disk in self.disks]
        for side in (0, 1):
            if spilled[1 - side]:
                self.flush(side, everything=True)
            else:
                self.forget(side, 0)
        self.trim_all()
        self._settled = True
        self._want_inner_pages(_INNER)

    def _want_inner_pages(self, part: int) -> None:
        """Look up several inner pages at a time, in that part of the memory: each look-up goes through the outer blocks
        once. A page with a row that is wider than pages are is read alone.
        """
        page = self.sizing.page_bytes
        if max(self.pairs.widest) > page or not self.claim_inner_pages(max(1, self.budget.total // part // page)):
            self._release_inner_pages()

    def claim_inner_pages(self, pages: int) -> bool:
        """Make room for so many inner pages; False if there is none."""
        wanted = (pages - 1) * self.sizing.page_bytes
        if not self.secure(lambda: self._inner.try_grow(max(0, wanted - self._inner.held))):
            return False
        self._inner_pages = pages
        return True

    def _release_inner_pages(self) -> bool:
        """Give back the memory for inner pages; False if there was none."""
        if not self._inner.held:
            return False
        self._inner.clear()
        self._inner_pages = 1
        return True

    # --- checks and snapshots ---

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        for disk in self.disks:
            disk.check()
        for outer in self.outers:
            outer.check()
        self.loop.check()
        self.resident.check()
        for regions in self.regions:
            assert not regions.divided or regions.lower < regions.upper

    def close(self) -> None:
        """Let go of everything."""
        super().close()
        for disk in self.disks:
            disk.release()
        self.outers = ()

    def still_in_memory(self, side: int, parts: Int32, ticks: Int64) -> NDArray[np.bool_]:
        """Rows leave one by one: those that are on disk are not in memory."""
        stayed = super().still_in_memory(side, parts, ticks)
        for number in range(len(self.disks[side])):
            stayed &= ~np.isin(ticks, self.disks[side].arrivals(number))
        return stayed

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        segments = [block.segment for disk in self.disks for block in disk]
        return segments, {
            "disks": [disk.to_state() for disk in self.disks],
            "loop": self.loop.to_state(),
            "resident": self.resident.to_state(),
            "regions": [regions.to_state() for regions in self.regions],
            "counted": list(self._counted),
            "runs": [self.side(side).index.lengths for side in (0, 1)],
            "settled": self._settled,
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        for disk, saved in zip(self.disks, state["disks"], strict=True):
            disk.load(saved)
        self.loop.load(state["loop"])
        self.resident.restore(state["resident"])
        self._settled = state["settled"]
        if self._settled:
            self._want_inner_pages(_INNER)
        for side in (0, 1):
            self.side(side).run_lengths = list(state["runs"][side])

    def _load(self, snapshot: Snapshot) -> None:
        self._slack.clear()
        super()._load(snapshot)
        # Going to the place of a look-up counts its results again, so the counts come last.
        for regions, saved in zip(self.regions, snapshot.state["regions"], strict=True):
            regions.load(saved)
        self._counted = list(snapshot.state["counted"])

    def _load_task(self, state: dict[str, Any]) -> Task:
        if state["kind"] == "loop":
            return NestedLoop.resumed(self, state)
        return super()._load_task(state)
