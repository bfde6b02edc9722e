"""The runs of Confluence: their names, the memory that they are remembered in, and how they become few; and what a
snapshot says beside what every operator's does: runs by their names, debts, and how far all is.

Rows are not in a snapshot but for those in memory, which the shell saves: whoever goes on opens the runs and reads
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from watersmeet.engine.merging import MergeTask
from watersmeet.engine.sizing import Grain
from watersmeet.joins.confluence.upkeep import Upkeep, Wear
from watersmeet.matching.debts import MERGED_AT_ONCE
from watersmeet.matching.matched import Matched
from watersmeet.matching.reach import BandKeys
from watersmeet.matching.reading import Pages
from watersmeet.runs.matched_bits import LEAST_BYTES, MatchedBits, left_out_of
from watersmeet.runs.sorted_run import OpenRun, SortedRun, let_go
from watersmeet.runs.spine import Merge

if TYPE_CHECKING:
    from watersmeet.joins.confluence.operator import Confluence


RUN_BYTES = 512
"""What is remembered of a run."""
_LEAST_FAN_IN = 3
_MOST_FAN_IN = 512
"""Runs that are read through cost about as much as the one that they would be merged into; what is remembered of them
is a small share of the memory."""
_MOST_ALIKE = 8
"""Of a join of batches: runs of about as many rows that become one. Each batch meets all runs, so they must be few."""
_BITS_SHARE = 64
"""One part in so many of the memory is for bits of rows on disk, where it matters who has found a partner."""


class Catalogue:
    """Part of Confluence: what is to be known of runs besides who owes them, which the debts say."""

    def __init__(
        self, join: Confluence, memory: int, fan_in: int | None, grain: Grain | None, pages: Pages | None
    ) -> None:
        self._join = join
        self._pages = pages
        self.fan_in = fan_in or max(_LEAST_FAN_IN, min(_MOST_FAN_IN, memory // (16 * RUN_BYTES)))
        """So many runs become one."""
        self._memory = join.budget.reservation("catalogue of runs")
        records = min(grain.records or 0, 2 * self.fan_in * RUN_BYTES) if grain is not None else 0
        self._memory.set_aside(max(records, join.least_runs * RUN_BYTES))
        self._counted = 0
        self.wear = Wear(join)
        """Which rows on disk are of no more use."""
        alike, block_bytes = min(self.fan_in, _MOST_ALIKE), join.workspace.block_bytes
        self.upkeep = Upkeep(join.debts, join.store, self.new_run, block_bytes, alike, self.wear)
        """How runs of many batches become few."""
        self.batch_began = 0
        """Of a join of batches: the tick at which the last one ended. Older runs are merged between batches."""
        self.changed = False
        """Whether runs may be ready to be merged that were not before."""
        self.written = 0
        """How many names were given."""

    def new_name(self, what: str) -> str:
        """A name that nothing had before."""
        self.written += 1
        return f"{what}-{self.written}"

    def new_run(self, side: int) -> str:
        """A name for a run of a side."""
        return self.new_name(f"run-{side}")

    @property
    def names(self) -> list[str]:
        """Of all runs, and of pieces of merged ones."""
        return self._join.debts.names + self.upkeep.names

    def count(self) -> None:
        """Runs have changed: memory for what is remembered of them, who never become many."""
        self.changed = True
        self._memory.shrink(self._counted * RUN_BYTES)
        self._counted = self._join.debts.count + len(self.upkeep.names)
        self._memory.grow(self._counted * RUN_BYTES)

    def adopted(self, named: int, clock: int) -> None:
        """Runs of others were taken over; numbers up to this one are taken in names."""
        self.written = max(self.written, named)
        self.batch_began = clock
        self.count()

    def pages_of(self, rows: int, nbytes: int) -> int:
        """Pages of so many rows of a run."""
        return -(-nbytes // self._join.sizing.page_bytes) if self._pages is None else self._pages.of(rows)

    def forget(self, side: int) -> None:
        """Runs of a side wait for nobody."""
        names, matched = self._join.debts.forget(side), self._join.matched
        if self._join.foretold is not None:
            self._join.foretold.runs_gone(side, names)
        self.forget_bits(side, names)
        pieces = self.upkeep.forget(side)
        if matched is not None:
            matched.bits.forget([left_out_of(name) for name in pieces if left_out_of(name) in matched.bits])
        self._join.saver.discard([*pieces, *names])

    # --- bits of their rows ---

    def track(self, memory: int) -> Matched:
        """From now on it is known who has found a partner, of rows on disk, too."""
        join, size = self._join, max(LEAST_BYTES, memory // _BITS_SHARE)
        join.budget.reservation("bits of rows on disk").grow(size)
        bits = MatchedBits(join.store, size, partial(self.new_name, "bits"), lambda names: join.saver.discard(names))
        join.debts.on_replace = self._carry_bits
        return Matched(join.spec.kind, join.tables, bits)

    def _carry_bits(self, side: int, runs: Sequence[SortedRun], merged: Sequence[SortedRun]) -> None:
        """Rows of runs that became one have the bits that they had."""
        assert self._join.matched is not None
        bits, foretold = self._join.matched.bits, self._join.foretold
        if self._join.spec.kind.tracked[side]:
            bits.replace(runs, merged)
        else:
            noted = [left_out_of(run.name) for run in merged]
            bits.forget([name for name in noted if name in bits])
        if foretold is not None:
            foretold.runs_gone(side, [run.name for run in runs])
        self._join.alone.runs_dropped(side, [run.name for run in runs])

    @property
    def bits_to_keep(self) -> list[str]:
        """Of which runs bits are kept, and of which pieces it is noted what was left out."""
        tracked = [runs for side, runs in enumerate(self._join.debts.runs) if self._join.spec.kind.tracked[side]]
        runs = [entry.run.name for runs in tracked for entry in runs]
        assert self._join.matched is not None
        bits = self._join.matched.bits
        return [*runs, *(name for name in map(left_out_of, self.upkeep.names) if name in bits)]

    def forget_bits(self, side: int, names: Sequence[str]) -> None:
        """Nobody asks for rows of these runs any more."""
        if self._join.matched is not None and self._join.spec.kind.tracked[side]:
            self._join.matched.bits.forget(names)

    # --- runs that become one ---

    def are_too_many(self, side: int) -> bool:
        """Whether runs wait to be merged for rows of the other side that owe some of them and not others."""
        join = self._join
        owed = join.debts.owes(1 - side) or join.settlements.begun[1 - side] is not None
        return owed and join.debts.waiting_to_merge(side, self.fan_in, self.batch_began)

    def to_merge(self, side: int) -> list[SortedRun]:
        """Runs of a side that are to become one, if there are any."""
        if self._join.settlements.begun[1 - side] is not None:
            return []  # rows are on their way through these runs
        worn = partial(self.wear.run_is_worn, side) if self.wear.wears(side) else None
        return self._join.debts.to_merge(side, self.fan_in, self.batch_began, worn)

    def merge_task(self) -> MergeTask | None:
        """Merge runs, of either side, that are to become one; None if there are none."""
        for side in (0, 1):
            runs = self.to_merge(side)
            if runs:
                left_out, block_bytes = self.wear.left_out(side), self._join.workspace.block_bytes
                merge = Merge(self._join.store, self.new_run(side), runs, block_bytes, left_out=left_out)
                return MergeTask(self, side, merge)
        self.changed = False
        return None

    def merge_some(self, merge: Merge) -> int:
        """Go on with a merge; returns the fuel that took."""
        passed, meter = merge.work(), self._join.meter
        # All rows are passed twice: for their hashes, then for the rest.
        pages = -(-passed * self.pages_of(merge.rows, merge.nbytes) // (2 * merge.rows))
        meter.pages_read += pages
        meter.pages_written += pages
        if self._pages is not None:
            # Memory that waits for results, a quarter, is divided among the runs that are read.
            at_once = max(1, 4 * self._pages.at_once // len(merge.runs))
            meter.seeks += -(-pages // at_once) - (-pages // self._pages.at_once)
        return max(1, passed)

    def merged(self, side: int, merge: Merge) -> None:
        """A merged run takes the place of the runs that it was made of."""
        assert merge.merged is not None
        self._join.events["merged"] += 1
        self._join.events["rows left out of a merge"] += merge.rows - merge.merged.rows
        # Levels must fall from the oldest run to the youngest: only runs that were many make a higher one.
        many = len(merge.runs) >= min(self.fan_in, MERGED_AT_ONCE)
        self._join.debts.replace(side, merge.runs, merge.merged, higher=many)
        let_go(merge.runs)
        self._join.saver.discard(sorted(run.name for run in merge.runs))
        self.count()

    def merge_between_batches(self) -> None:
        """A batch has ended: merge a little of what all of them left."""
        debts = self._join.debts
        self._join.saver.discard(self.upkeep.go_on([debts.rows_since(side, self.batch_began) for side in (0, 1)]))
        self.count()
        self.batch_began = self._join.clock
        self.changed = False

    # --- snapshots ---

    def load(self, state: dict[str, Any], open_run: OpenRun) -> None:
        """Take over what a snapshot says, with a way to open runs; no row is read."""
        plans, debts = self._join.plans, self._join.debts

        def opened(side: int, name: str) -> SortedRun:
            return open_run(name, plans[side].types)

        debts.load(state, opened)
        self.upkeep.load(state["upkeep"], opened)
        self.batch_began = state["batch"][0]
        self.written = state["written"]
        self.count()
        if self._join.matched is not None:
            rows = {entry.run.name: entry.run.rows for runs in debts.runs for entry in runs}
            without = {left_out_of(name): passed for name, passed in self.upkeep.passed.items()}
            self._join.matched.bits.load(state["matched"]["bits"], {**rows, **without})

    def check(self, at_hand: Any) -> None:
        """Assert the invariants, with a task at hand."""
        join = self._join
        join.debts.check(join.clock)
        self.upkeep.check()
        if join.matched is not None:
            merge = at_hand.merge if isinstance(at_hand, MergeTask) else None
            merging = [left_out_of(merge.name)] if isinstance(merge, Merge) else []
            join.matched.bits.check({*self.bits_to_keep, *(name for name in merging if name in join.matched.bits)})


def own_state(join: Confluence, at_hand: Any) -> tuple[list[str], dict[str, Any]]:
    """The segments and the state that only this operator has, with some task at hand."""
    matched = None if join.matched is None else join.matched.to_state(join.catalogue.bits_to_keep)
    bits = [] if join.matched is None or matched is None else join.matched.versions(matched)
    return join.catalogue.names + bits, {
        "matched": matched,
        "foretold": None if join.foretold is None else join.foretold.to_state(),
        **join.debts.to_state(),
        "upkeep": join.catalogue.upkeep.to_state(),
        "batch": [join.catalogue.batch_began, join.batch_ends],
        "settled_at": list(join.settlements.began_at),
        "settling": join.settlements.to_state(at_hand),
        "idle_share": join.idle_share,
        "full": join.full,
        "written": join.catalogue.written,
        "built": [table.index.built for table in join.tables],
        "origin": join.codec.to_state() if isinstance(join.codec, BandKeys) else None,
    }


def load_own_state(join: Confluence, state: dict[str, Any], open_run: OpenRun) -> None:
    """Take that over, but for rows in memory and the work at hand, which come later."""
    join.catalogue.load(state, open_run)
    if join.foretold is not None:
        join.foretold.load(state["foretold"])
    join.batch_ends = state["batch"][1]
    join.settlements.began_at = list(state["settled_at"])
    join.idle_share = state["idle_share"]
    join.full = state["full"]
    for table, built in zip(join.tables, state["built"], strict=True):
        table.built = built
    if isinstance(join.codec, BandKeys):
        join.codec.load(state["origin"])
