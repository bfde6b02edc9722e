"""Rows of several inputs leave memory: all of them at once as sets of runs, many of which become few (Confluence), or
by partitions that a policy chooses, as runs (MJoin, with windows and without).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from watersmeet.core.arrays import Int64
from watersmeet.core.errors import SpecError
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.saved import Saved
from watersmeet.core.windows import NOWHERE
from watersmeet.engine.merging import MergeTask
from watersmeet.engine.multiway import MultiwayJoin
from watersmeet.policies.flush import many_flush
from watersmeet.policies.probing import ProbingOrder
from watersmeet.runs.flush import write_run
from watersmeet.runs.run_set import RunSet, SetMerge
from watersmeet.runs.sorted_run import SortedRun, let_go
from watersmeet.tables.memtables import ManyMemtable, WindowMemtable
from watersmeet.tables.multi_hash_table import ManySide

if TYPE_CHECKING:
    from watersmeet.joins.multiway.confluence import ManyConfluence


RUN_BYTES = 512
"""What is remembered of a run."""
LEAST_SETS = 8
"""Sets of runs of each input that there is always memory for."""
_LEAST_FAN_IN = 2
_MOST_FAN_IN = 256
"""Runs that are read through cost about as much as the one that they would be merged into; what is remembered of them
is a small share of the memory."""
_RUNS_SHARE = 16


class Flushing:
    """Part of an operator: writes all memtables at once, each in the order of each of its attributes."""

    def __init__(self, join: ManyConfluence, memory: int, fan_in: int | None, block_bytes: int) -> None:
        self._join = join
        self._block_bytes = block_bytes
        self.runs_a_flush = sum(map(len, join.spec.attributes))
        """How many runs a memory-full becomes."""
        join.catalogue.set_aside(LEAST_SETS * self.runs_a_flush * RUN_BYTES)
        fitting = memory // (_RUNS_SHARE * RUN_BYTES * self.runs_a_flush)
        self.fan_in = fan_in or max(_LEAST_FAN_IN, min(_MOST_FAN_IN, fitting))
        """So many runs become one."""
        self.epoch = 1
        """Rows in memory are of this epoch."""
        self.on_disk = 0
        """Rows of all runs."""
        self.owing_on_disk = 0
        """Of those whose rows have yet to settle."""
        self.changed = False
        """Whether runs may be ready to be merged that were not before."""
        self.written = 0
        """How many names were given."""
        self._counted = 0

    def new_name(self, what: str) -> str:
        """A name that nothing had before."""
        self.written += 1
        return f"{what}-{self.written}"

    # --- rows that leave memory ---

    def flush(self) -> None:
        """Write all memtables; that their rows owe, if they do, is said by their runs."""
        join, owes = self._join, self._join.owes
        join.clock += 1
        join.events["flushed owing" if owes else "flushed"] += 1
        written: dict[int, tuple[SortedRun, ...]] = {}
        spans = [table.span_from(0) if isinstance(table, WindowMemtable) else NOWHERE for table in join.tables]
        try:
            for number, table in enumerate(join.tables):
                if table.rows and (owes or not join.is_of_no_use(number)):
                    written[number] = self._write(number, table)
        except BaseException:
            for runs in written.values():
                self._remove(runs)
            raise
        for number, runs in written.items():
            join.disks[number].sets.append(RunSet(runs, self.epoch if owes else 0, span=spans[number]))
        for number in range(len(join.tables)):
            self.forget_rows(number)
            if not owes and join.is_of_no_use(number):
                self.forget_runs(number)
        if not owes:
            join.owed_since.came[0].clear()
        self.epoch += 1
        self.count()

    def _write(self, number: int, table: ManyMemtable) -> tuple[SortedRun, ...]:
        """The rows of a memtable once for each attribute, in the order of its hashes."""
        join, runs = self._join, list[SortedRun]()
        try:
            for attribute, order in enumerate(table.orders):
                name = self.new_name(f"run-{number}-{attribute}")
                buffers = join.slice.hashes, join.slice.rows
                runs.append(write_run(join.store, name, table, *buffers, self._block_bytes, order))
        except BaseException:
            self._remove(runs)
            raise
        join.meter.pages_written += sum(self._pages_of(run.rows, run.nbytes) for run in runs)
        join.meter.seeks += len(runs)
        return tuple(runs)

    def _remove(self, runs: Sequence[SortedRun]) -> None:
        for run in runs:
            self._join.store.remove(run.name)

    def forget_rows(self, number: int) -> None:
        """A memtable is empty now."""
        join = self._join
        join.tables[number].clear()
        join.gone[number] = join.clock
        join.settled[number] = 0

    def forget_runs(self, number: int) -> None:
        """Runs of an input wait for nobody."""
        disk = self._join.disks[number]
        self._join.saver.discard(disk.segments)
        disk.close()

    def forget_useless(self) -> None:
        """Nothing is owed: let runs go that wait for nobody."""
        useless = [number for number in range(len(self._join.disks)) if self._join.is_of_no_use(number)]
        if any(self._join.disks[number].sets for number in useless):
            for number in useless:
                self.forget_runs(number)
            self.count()

    def count(self) -> None:
        """Runs have changed: take note of where rows are, and of the memory that this takes."""
        join = self._join
        self.changed = True
        for rows in join.inputs:
            rows.runs_changed()
        self.on_disk = sum(disk.rows for disk in join.disks)
        self.owing_on_disk = sum(disk.owing_rows for disk in join.disks)
        join.catalogue.shrink(self._counted * RUN_BYTES)
        self._counted = sum(len(disk.segments) for disk in join.disks)
        join.catalogue.grow(self._counted * RUN_BYTES)

    def _pages_of(self, rows: int, nbytes: int) -> int:
        """Pages of so many rows of a run."""
        join = self._join
        return -(-nbytes // join.sizing.page_bytes) if join.pages is None else join.pages.of(rows)

    # --- runs that become one ---

    def to_merge(self, number: int) -> list[RunSet]:
        """Sets of runs of an input that are to become one, if there are any."""
        return self._join.disks[number].to_merge(self.fan_in, self._join.window_of(number))

    def merge_task(self) -> MergeTask | None:
        """Merge runs, of any input, that are to become one; None if there are none."""
        for number, table in enumerate(self._join.tables):
            sets = self.to_merge(number)
            if sets:
                names = [self.new_name(f"run-{number}-{attribute}") for attribute in range(len(table.orders))]
                return MergeTask(self, number, SetMerge(self._join.store, names, sets, self._block_bytes))
        self.changed = False
        return None

    def merge_some(self, merge: SetMerge) -> int:
        """Go on with a merge; returns the fuel that took."""
        passed, join = merge.work(), self._join
        rows = sum(each.rows for each in merge.sets)
        nbytes = sum(run.nbytes for each in merge.sets for run in each.runs) // len(merge.sets[0].runs)
        # All rows are passed twice: for their hashes, then for the rest.
        pages = -(-passed * self._pages_of(rows, nbytes) // (2 * rows))
        join.meter.pages_read += pages
        join.meter.pages_written += pages
        if join.pages is not None:
            join.meter.seeks += -(-pages // join.pages.at_once)
        return max(1, passed)

    def merged(self, number: int, merge: SetMerge) -> None:
        """A merged set takes the place of those that it was made of."""
        assert merge.merged is not None
        self._join.events["merged"] += 1
        self._join.disks[number].replace(merge.sets, merge.merged)
        for each in merge.sets:
            let_go(each.runs)
        self._join.saver.discard([run.name for each in merge.sets for run in each.runs])
        self.count()

    def check(self) -> None:
        """Assert the invariants."""
        disks = self._join.disks
        assert self.on_disk == sum(disk.rows for disk in disks)
        assert self.owing_on_disk == sum(disk.owing_rows for disk in disks)
        assert all(each.epoch < self.epoch for disk in disks for each in disk.sets)


class Overflow(Saved):
    """What has left memory, by input and partition, and what is next to."""

    SAVED: ClassVar[tuple[str, ...]] = ("rows",)

    def __init__(self, join: MultiwayJoin, flush: str) -> None:
        """`flush` names the policy."""
        self._join = join
        self.policy = many_flush(flush, join.spec.on_one_attribute)
        self.rows = np.zeros((len(join.spec.names), join.sizing.layout.partitions), np.int64)
        """Rows on disk."""

    def make_room(self) -> bool:
        """Move the partitions that the policy names to disk; False if there are none."""
        join = self._join
        in_memory = np.stack([table.part_rows for table in join.tables])
        victims = self.policy(in_memory, self.rows, join.clock)
        for number, parts in victims.items():
            join.clock += 1
            table = join.tables[number]
            assert isinstance(table, ManySide)
            join.disks[number].flush(table, parts, join.clock, join.sizing.page_bytes, join.sizing.run_rows)
            self.rows[number, parts] += in_memory[number, parts]
            join.gone[number, parts] = join.clock
        return bool(victims)

    def run_goes(self, number: int, hashes: Int64) -> None:
        """A run of rows with these hashes is forgotten."""
        parts = self._join.tables[number].parts_of(hashes)
        self.rows[number] -= np.bincount(parts, minlength=self.rows.shape[1])

    def check(self) -> None:
        """Assert the invariants."""
        assert [int(rows) for rows in self.rows.sum(axis=1)] == [disk.rows for disk in self._join.disks]


def pinned_order(spec: MultiSpec, probing: Mapping[str, Sequence[str]] | None) -> ProbingOrder:
    """The order of look-ups, which `probing` may pin: for each input's name, the others' names."""
    if probing is None:
        return ProbingOrder(spec, None)
    try:
        pinned = [[spec.names.index(other) for other in probing[name]] for name in spec.names]
    except (KeyError, ValueError):
        raise SpecError(
            f"probing={probing!r} must give, for each of {', '.join(spec.names)}, the order in which the others are "
            f"looked up"
        ) from None
    for number, others in enumerate(pinned):
        if sorted([number, *others]) != list(range(len(spec.names))):
            raise SpecError(f"probing of {spec.names[number]!r} must name every other input once")
    return ProbingOrder(spec, pinned)
