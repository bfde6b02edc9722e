"""MINER: DINER for any number of inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.errors import BudgetError
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Snapshot
from watersmeet.engine.multi_arrival import Arrival, DrivenTask
from watersmeet.engine.multi_sizing import ManySizing
from watersmeet.engine.multiway import MultiwayJoin
from watersmeet.engine.sizing import Grain
from watersmeet.joins.multiway.block_loop import BlockLoop, OuterRows
from watersmeet.matching.found_combinations import in_table
from watersmeet.policies.probing import SelectivityOrder
from watersmeet.policies.reading_loop import LoopLimits
from watersmeet.policies.regions import AttributeRegions
from watersmeet.records.attributes import OrderedCodec
from watersmeet.records.plan import RowPlan
from watersmeet.runs.multi_catalogue import ManyRun
from watersmeet.spill.store import Store
from watersmeet.tables.multi_range_table import LooseAttributes, ManySorted, many_sorted_row_bytes
from watersmeet.tables.range_table import sorted_layout

_BLOCKS_OF_AN_INPUT = 4
"""A disk block holds about this part of an input's share of the memory: each flush moves the rows that stay."""
_LEAST_BLOCK = 3 * 1024
"""Fewer bytes of rows are not worth a block of their own."""
_BLOCK_TO_CATALOGUE = 4
"""So many times as large as the catalogue of all blocks a block is at least."""
_BLOCKS_OF_OUTER = 1
_SLACK = 24
"""This part of the memory is left to restores: rows that are put together anew may take a little more than before."""


class Miner(MultiwayJoin):
    """Keep in memory the values that whole results are made of now; join blocks on disk in the pauses [1]_.

    ```
    memory   r   sorted by a       ├ lower ┤──── middle ────┤ upper ┤
             s   sorted by a       ├ lower ┤──── middle ────┤ upper ┤    regions for each attribute: the one with the
                 sorted by b       ├ lower ┤──── middle ────┤ upper ┤    fewest results a row gives up a block
             t   sorted by b       ├ lower ┤──── middle ────┤ upper ┤
                     │ flush
    disk     s   [block 1][block 2]...   outer rows ─┬─▶ blocks of r
             r, t  ...                               └─▶ blocks of t ─▶ ...   a sequence of joins for each branch
    ```

    - *Arriving*: a row is kept in an index for each attribute that its input is joined on, and looked up in all other
      inputs, by increasing selectivity factor, until one has no match. Every row of a whole result has its join bit set
      and counts in its region of every attribute. Without room, the input with most rows gives up a block: of the
      region, of any of its attributes, whose rows have brought the fewest results since its last flush. Rows that leave
      are taken out of the indexes of all attributes.
    - *Reactive*: a nested loop over blocks on disk. One input is the outer one; the others are nested in the sequences
      in which the graph hangs on it: one or two in a chain, more in a snowflake. A counter for each input says which
      blocks have met, a mark for each level where the loop is, and it gives way after any block. When the outer input
      is exhausted, one that has got new blocks takes its place.
    - *Clean-up*: what memory holds becomes blocks, and the same loop runs to its end.

    Equalities and bands (`wm.band`) can be joined on, in chains, stars, snowflakes and graphs with cycles. A result is
    left out in the loop exactly if the stays of all its rows in memory overlap.

    Where this differs from the paper:

    - Rows are looked up and flushed by batches; a block is a quarter of an input's share of the memory.
    - A batch may need several flushes at once, which all go by the same counts of results, as do those of an input's
      next batches if no other input's rows come between; and selectivity factors, which a flush zeroes, stay in use
      until they have been measured again.
    - A selectivity factor is the share of the pairs that were looked up, not of all that are in memory: an edge that is
      looked up late, for very many partial combinations, would otherwise look as if it matched often, and stay late.
    - If regions of several attributes have brought equally few results, the attributes take turns.
    - Blocks are looked up where they lie, each through its own index of every attribute. A partial combination that
      meets nothing in any block of the next input is not carried on through the blocks of those behind it, and few
      that were found in several blocks are carried on together.
    - Of the sequences, the one that matches least is the outermost in the nest, so that most work ends there.
    - While only one input still has rows to come, its rows in memory cannot be found any more and leave first.
    - Join bits are not part of a snapshot.

    :param max_new_arrivals: rows that may wait during the reactive phase (the paper's MaxNewArr); 0 wants each at once.
    :param max_outer_blocks: blocks of the outer input that the reactive phase takes at once.
    :param grain: how many rows a block has, and the like; unless given, the memory decides.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import Arrive
    >>> from watersmeet.core.spec import band
    >>> from watersmeet.spill.store import MemoryStore
    >>> schema = pa.schema({"a": pa.int64()})
    >>> spec = MultiSpec.of({name: schema for name in "rst"}, ["r.a = s.a", band("s.a = t.a", 1)])
    >>> join = Miner(spec, 1 << 20, MemoryStore())
    >>> for number in range(3):
    ...     join.receive(Arrive(number, pa.record_batch({"a": [7, 10 * number]})))
    ...     found = join.poll(0.0, 1000).out
    >>> join.receive(Arrive(2, pa.record_batch({"a": [8, 9]})))
    >>> found.to_pylist() + join.poll(0.0, 1000).out.to_pylist()
    [{'r_a': 7, 't_a': 7}, {'r_a': 7, 't_a': 8}]

    .. [1] M. A. Bornea, V. Vassalos, Y. Kotidis and A. Deligiannakis. Adaptive join operators for result rate
       optimization on streaming inputs. IEEE Transactions on Knowledge and Data Engineering 22(8), 2010, section 4.
    """

    name: ClassVar[str] = "miner"
    joins_ranges: ClassVar[bool] = True
    order: SelectivityOrder

    def __init__(
        self,
        spec: MultiSpec,
        memory: int,
        store: Store,
        *,
        max_new_arrivals: int = 0,
        max_outer_blocks: int = _BLOCKS_OF_OUTER,
        grain: Grain | None = None,
    ) -> None:
        self.limits = LoopLimits(max_new_arrivals, max_outer_blocks)
        super().__init__(spec, memory, store, order=SelectivityOrder(spec), grain=grain)
        inputs = len(spec.names)
        self._block_rows = self._grain.block_rows
        self._block_bytes = (memory - self.sizing.buffers) // inputs // _BLOCKS_OF_AN_INPUT
        self.regions = tuple(AttributeRegions(len(attributes)) for attributes in spec.attributes)
        self.loop = BlockLoop(self.disks)
        self.outer_claim = self.budget.reservation("outer rows")
        self._settled = False
        self._loose: list[tuple[int, LooseAttributes, int]] = []

    @classmethod
    def _codec_of(cls, spec: MultiSpec) -> OrderedCodec:
        return OrderedCodec(spec)

    @classmethod
    def _row_bytes(cls, spec: MultiSpec, plans: Sequence[RowPlan]) -> list[int]:
        return [
            many_sorted_row_bytes(plan.types, len(attributes))
            for plan, attributes in zip(plans, spec.attributes, strict=True)
        ]

    def _make_sizing(self, memory: int) -> ManySizing:
        sizing = super()._make_sizing(memory)
        widest = max(self._row_bytes(self.spec, self.plans))
        return replace(sizing, layout=sorted_layout(memory - sizing.buffers, widest))

    def _make_table(self, number: int) -> ManySorted:
        attributes = len(self.spec.attributes[number])
        return ManySorted(
            self.plans[number].types, attributes, self.budget, self.sizing.layout, self.spec.names[number]
        )  # fmt: skip

    def table(self, number: int) -> ManySorted:
        """One input's rows in memory."""
        table = self.tables[number]
        assert isinstance(table, ManySorted)
        return table

    @property
    def _room_to_restore(self) -> int:
        return max(super()._room_to_restore, (self.budget.total - self.sizing.buffers) // _SLACK)

    # --- arriving ---

    def note_results(self, ids: Int64) -> None:
        """Set join bits, and count in which regions the rows of results are."""
        for number, mine in enumerate(ids):
            rows = in_table(mine)
            if len(rows):
                counted = [(each.lower, each.upper, each.joins) for each in self.regions[number].attributes]
                self.table(number).note_results(rows, counted)

    def admit(self, arrival: Arrival, count: int) -> int:
        """Make room for new rows, from which on results are counted anew if that took a flush.

        An input's own rows tell nothing of those that it has in memory, so its counts begin with rows of another one.
        """
        admitted = super().admit(arrival, count)
        for number, regions in enumerate(self.regions):
            if number != arrival.input:
                regions.rows_arrive()
        return admitted

    def _make_room(self) -> bool:
        held = [number for number in range(len(self.tables)) if self.tables[number].rows]
        if not held:
            return False
        open_ = [number for number in range(len(self.tables)) if not self.exhausted(number)]
        if len(open_) == 1 and open_[0] in held:
            self.flush(open_[0], everything=True)
        else:
            self.flush(max(held, key=lambda number: self.tables[number].rows))
        return True

    def flush(self, number: int, everything: bool = False) -> None:
        """Move a block, or all rows in blocks, from memory to disk."""
        table, regions = self.table(number), self.regions[number]
        indexes = [index.sorted() for index in table.indexes]
        self.trim_all()
        count = self._block_rows or self._rows_to_flush(table)
        sizes = [each.rows for each in self.tables]
        if everything:
            self._spill(number, indexes[0][1], count)
        else:
            attribute = regions.victim([words for words, _ in indexes])
            words, rows = indexes[attribute]
            choice = regions.attributes[attribute].choose(words, table.joined(rows), count)
            table.clear_joined(rows[choice.cleared])
            self._spill(number, rows[choice.leave], count)
        regions.settle([index.sorted()[0] for index in table.indexes], count)
        self.order.flushed(sizes)

    def _rows_to_flush(self, table: ManySorted) -> int:
        """About a block; the more memory the catalogue of all blocks takes, the larger they must be: it then grows by
        the logarithm of what is spilled, as long as there is memory for rows that fill such a block.
        """
        size = max(self._block_bytes, _LEAST_BLOCK, _BLOCK_TO_CATALOGUE * self.catalogue.held)
        return max(1, -(-table.rows * size // max(1, table.nbytes)))

    def _spill(self, number: int, rows: Int32, count: int) -> None:
        """Write sorted rows as blocks of so many, and forget them."""
        table, disk = self.table(number), self.disks[number]
        most = min(count, self.sizing.run_rows)
        self.clock += 1
        written = disk.write(table, _stretches(rows, most), self.clock, self.sizing.page_bytes)
        if len(rows) == table.rows:
            table.drop()
        else:
            attributes = len(self.spec.attributes[number])
            for loose in table.remove(rows):
                self.clock += 1
                self._loose.append((number, LooseAttributes(loose, attributes), self.clock))
        self._add(number, written)
        self._write_loose()

    def _add(self, number: int, written: list[ManyRun]) -> None:
        for run in written:
            while not self.disks[number].try_add(run):
                if not self.trim_all():
                    raise BudgetError("there is no memory left to note what was spilled; allow more memory")

    def _write_loose(self) -> None:
        """Write rows that left memory without having been written; those that the disk refuses wait for the next try.

        When they left is settled already, so nobody meets them twice or not at all, however late they are written.
        """
        while self._loose:
            number, loose, tick = self._loose[0]
            rows = np.arange(len(loose), dtype=np.int32)
            written = self.disks[number].write(loose, [rows], tick, self.sizing.page_bytes)
            del self._loose[0]
            self._add(number, written)

    def trim_all(self) -> int:
        """Give all free memory back to the budget; returns how much that was."""
        return sum(table.trim(self.budget.total) for table in self.tables)

    def _work(self, fuel: int) -> int:
        self._write_loose()
        return super()._work(fuel)

    # --- reactive and clean-up ---

    @property
    def patience(self) -> int:
        """The paper's MaxNewArr."""
        return self.limits.new_arrivals

    def _can_react(self) -> bool:
        return self.loop.unmet

    def _reactive_task(self) -> DrivenTask | None:
        return OuterRows(self, self.limits.outer_blocks) if self.loop.unmet else None

    def _give_way(self, task: DrivenTask) -> None:
        assert isinstance(task, OuterRows)
        if task.give_way():
            self._task = None

    def _clean_up_task(self) -> DrivenTask | None:
        if not self._settled:
            self._settle_memory()
        return OuterRows(self, None) if self.loop.unmet else None

    def _settle_memory(self) -> None:
        """What is in memory has met what is there of all others, and still has to meet what is on disk."""
        spilled = [disk.rows > 0 for disk in self.disks]
        for number, table in enumerate(self.tables):
            if not table.rows:
                continue
            if any(spilled[:number] + spilled[number + 1 :]):
                self.flush(number, everything=True)
            else:
                table.drop(0)
        self.trim_all()
        self._settled = True

    def close(self) -> None:
        """Let go of all rows."""
        self.loop = BlockLoop(())
        super().close()

    # --- checks and snapshots ---

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        self.loop.check()
        for regions in self.regions:
            assert all(each.lower < each.upper for each in regions.attributes if each.divided)
        assert self._task is not None or not self.outer_claim.held

    def snapshot(self) -> Snapshot:
        """The state as of now; what waits to be written is written first."""
        self._write_loose()
        return super().snapshot()

    def still_in_memory(self, number: int, parts: Int32, ticks: Int64) -> Bool:
        """Rows leave one by one: those that are on disk are not in memory."""
        stayed = super().still_in_memory(number, parts, ticks)
        for run in self.disks[number].runs:
            stayed &= ~np.isin(ticks, run.arrivals())
        return stayed

    def _own_state(self) -> dict[str, Any]:
        return {
            "loop": self.loop.to_state(),
            "regions": [regions.to_state() for regions in self.regions],
            "lengths": [self.table(number).index.lengths for number in range(len(self.tables))],
            "settled": self._settled,
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        self.loop.restore(state["loop"])
        self._settled = state["settled"]
        for number, lengths in enumerate(state["lengths"]):
            self.table(number).run_lengths = list(lengths)
        for regions, saved in zip(self.regions, state["regions"], strict=True):
            regions.load(saved)

    def _load_task(self, state: dict[str, Any]) -> DrivenTask:
        return OuterRows(self, state["most"], state["handed"])


def _stretches(rows: Int32, most: int) -> Iterator[Int32]:
    """Rows in their order, at most so many at once."""
    for start in range(0, len(rows), most):
        yield rows[start : start + most]
