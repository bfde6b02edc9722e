"""MJoin: one operator for all inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.errors import SpecError
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.engine.multi_arrival import DrivenTask
from watersmeet.engine.multiway import MultiwayJoin
from watersmeet.engine.pipeline import Scope
from watersmeet.engine.sizing import Grain
from watersmeet.joins.multiway.flushing import Overflow, pinned_order
from watersmeet.matching.found_combinations import FIRST_RUN, places
from watersmeet.matching.ledger import VisitLedger
from watersmeet.runs.multi_catalogue import ManyRun
from watersmeet.spill.store import Store

_MOST_CATALOGUE = 16
"""The records of runs may take this part of the memory before small runs are put together."""
_LEAST_HISTORY = 480
"""Bytes set aside for visits: when all memory is taken by rows, reactive work can still begin."""


class MJoin(MultiwayJoin):
    """Look each new row up in all other inputs at once, and keep nothing in between [1]_.

    ```
    arriving   row ─▶ its own table; ─▶ other tables, the most selective first, until one has no match ─▶ results
                  memory full: partitions go to disk as runs, the same ones of all inputs if they share one attribute
    reactive   inputs stall: rows of one input's runs ─▶ tables of all others (a visit)
    clean-up   inputs ended: rows on disk ─▶ tables and runs of all others, what was emitted before left out
    ```

    A tree of binary joins stores what each of its joins finds; here there is one table for each input and an index for
    each attribute, and an arrival on any input gives whole results in one step. Any graph of equalities will do: where
    it has cycles, one edge finds candidates and the others check them.

    In clean-up, a combination is looked for from its first input that has the row on disk: the inputs before that are
    looked up in memory alone, so that every combination with a row on disk comes up once, and those of rows in memory,
    which have all been emitted, never.

    Where the paper tests all pairs of a combination's rows by their timestamps, one test of the whole is enough here:
    it has been emitted exactly if one tick lies within the stays of all its rows, or if one row came from disk on a
    visit while the others were in memory.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import Arrive
    >>> from watersmeet.spill.store import MemoryStore
    >>> schema = pa.schema({"a": pa.int64()})
    >>> spec = MultiSpec.of({name: schema for name in "rst"}, ["r.a = s.a", "s.a = t.a"])
    >>> join = MJoin(spec, 1 << 20, MemoryStore())
    >>> for number in range(3):
    ...     join.receive(Arrive(number, pa.record_batch({"a": [7, number]})))
    ...     found = join.poll(0.0, 1000).out
    >>> found.to_pylist()
    [{'a': 7}]

    .. [1] S. Viglas, J. Naughton, J. Burger: Maximizing the Output Rate of Multi-Way Join Queries over Streaming
       Information Sources, VLDB 2003.
    """

    SAVED: ClassVar[tuple[str, ...]] = ("overflow", "ledger", "_visited", "_pass_began", "_cleaning")
    name: ClassVar[str] = "mjoin"

    def __init__(
        self,
        spec: MultiSpec,
        memory: int,
        store: Store,
        *,
        flush: str = "auto",
        probing: Mapping[str, Sequence[str]] | None = None,
        grain: Grain | None = None,
    ) -> None:
        """`probing` pins the order of look-ups: for each input's name, the others' names."""
        super().__init__(spec, memory, store, order=pinned_order(spec, probing), grain=grain)
        inputs = len(spec.names)
        self.overflow = Overflow(self, flush)
        history = self.budget.reservation("history of visits")
        history.set_aside(max(_LEAST_HISTORY, memory // 256))
        self.ledger = VisitLedger(inputs, history)
        self._visited = [0] * inputs
        """How far each input's rows on disk have come on their present pass."""
        self._pass_began = [-1] * inputs
        """The clock when that pass began: the next one makes sense once something has changed since."""
        self._cleaning = (0, 0)

    # --- overflow ---

    def _make_room(self) -> bool:
        if self.catalogue.held > self.budget.total // _MOST_CATALOGUE:
            self._put_runs_together()
        return self.overflow.make_room()

    def _put_runs_together(self) -> None:
        """Remember less: nobody is looking anything up on disk while rows leave memory."""
        self.clock += 1
        for table, disk in zip(self.tables, self.disks, strict=True):
            sizing = self.sizing
            self.saver.discard(disk.put_together(table.types, self.clock, sizing.page_bytes, sizing.run_rows))

    # --- reactive work ---

    def _next_visitor(self) -> int | None:
        """The input whose rows on disk have waited longest for new rows in the memory of all others."""
        held = [table.rows > 0 for table in self.tables]
        waiting = [
            number
            for number, disk in enumerate(self.disks)
            if disk.rows
            and all(held[:number] + held[number + 1 :])
            and (self._visited[number] < disk.rows or self._pass_began[number] < self.clock)
        ]
        return min(waiting, key=lambda number: self._pass_began[number], default=None)

    def _can_react(self) -> bool:
        return self._next_visitor() is not None

    def _reactive_task(self) -> DrivenTask | None:
        number = self._next_visitor()
        if number is None or not self.ledger.try_reserve():
            self._stalled = False
            return None
        if self._visited[number] >= self.disks[number].rows or self._pass_began[number] < 0:
            self._visited[number] = 0
            self._pass_began[number] = self.clock
        return Visit(self, number, self._visited[number])

    def visited(self, number: int, low: int, high: int) -> None:
        """Rows of an input's runs have met all that is in memory."""
        self.ledger.record(number, self.clock, low, high)
        self._visited[number] = high

    def _give_way(self, task: DrivenTask) -> None:
        if isinstance(task, Visit):
            task.cut_short()

    # --- clean-up ---

    def _clean_up_task(self) -> DrivenTask | None:
        number, ordinal = self._cleaning
        while number < len(self.disks):
            if ordinal < self.disks[number].rows and self._can_match(number):
                return CleanUp(self, number, ordinal)
            number, ordinal = number + 1, 0
        return None

    def _can_match(self, number: int) -> bool:
        """Whether all other inputs have rows where clean-up looks for them."""
        return all(
            table.rows or (other > number and disk.rows)
            for other, (table, disk) in enumerate(zip(self.tables, self.disks, strict=True))
            if other != number
        )

    def cleaned(self, number: int, ordinal: int) -> None:
        """Rows of an input's runs have met everything."""
        self._cleaning = (number, ordinal)

    # --- checks and snapshots ---

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        self.ledger.check(self.clock, [disk.rows for disk in self.disks])
        self.overflow.check()

    def _load_task(self, state: dict[str, Any]) -> DrivenTask:
        if state["kind"] == "visit" and not self.ledger.try_reserve():
            raise SpecError("the snapshot's visit does not fit; allow as much memory as when it was taken")
        kind = Visit if state["kind"] == "visit" else CleanUp
        task = kind(self, state["input"], state["first"], state["count"])
        task.go_to(state["place"])
        return task


class FromDisk(DrivenTask):
    """Some rows of one of an input's runs that go through the others."""

    kind: ClassVar[str]

    def __init__(self, join: MJoin, driver: int, first: int, count: int | None = None) -> None:
        super().__init__(join, driver)
        self._mjoin = join
        self._first = first
        self._run, at = _run_at(join.disks[driver].runs, first)
        run = join.disks[driver].runs[self._run]
        self._rows = np.arange(at, min(run.rows, at + join.sizing.combinations), dtype=np.int32)[:count]

    @property
    def done(self) -> bool:
        """Whether all combinations were found."""
        return self.pipeline is not None and self.pipeline.done

    def begin(self, fuel: int) -> None:
        """Bring the rows from disk."""
        run = self._mjoin.disks[self.driver].runs[self._run]
        self._mjoin.meter.seeks += 1
        self._mjoin.meter.pages_read += run.pages_of(self._rows)
        self.start(places(FIRST_RUN + self._run, self._rows), self._scope())

    def _scope(self) -> Scope:
        return Scope.memory(len(self._mjoin.inputs))

    def fresh(self, ids: Int64) -> Bool | None:
        """Which combinations have not been emitted."""
        return self._mjoin.ledger.fresh(self._mjoin.inputs, ids)

    def to_state(self) -> dict[str, Any]:
        """The task for a snapshot."""
        return {
            "kind": self.kind, "input": self.driver, "first": self._first, "count": len(self._rows),
            "place": self.place(),
        }  # fmt: skip


class Visit(FromDisk):
    """Rows of an input's runs look for partners in the memory of all others."""

    kind = "visit"

    def cut_short(self) -> None:
        """End with the row at hand; not before what a snapshot has as found was passed, or it would come again."""
        if self._skip:
            return
        if self.pipeline is None:
            self._rows = self._rows[:0]
        elif not self.pipeline.done:
            self._rows = self._rows[: self.pipeline.cut_short()]

    def finish(self) -> None:
        """Remember who has met."""
        self._mjoin.visited(self.driver, self._first, self._first + len(self._rows))


class CleanUp(FromDisk):
    """Rows of an input's runs look for partners everywhere, in the inputs before it in memory only."""

    kind = "clean-up"

    def _scope(self) -> Scope:
        runs = [len(disk.runs) if number > self.driver else 0 for number, disk in enumerate(self._mjoin.disks)]
        return Scope(tuple(runs))

    def finish(self) -> None:
        """Go on with the rows that follow."""
        self._mjoin.cleaned(self.driver, self._first + len(self._rows))


def _run_at(runs: Sequence[ManyRun], ordinal: int) -> tuple[int, int]:
    """The run that has an ordinal, and the row there."""
    firsts = [run.first_ordinal for run in runs]
    number = int(np.searchsorted(firsts, ordinal, "right")) - 1
    return number, ordinal - firsts[number]
