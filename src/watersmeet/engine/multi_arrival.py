"""Rows of one input on their way through all others, as a task that can be left and gone on with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64
from watersmeet.engine.arrival import Arriving
from watersmeet.engine.pipeline import Filter, Pipeline, Scope
from watersmeet.matching.found_combinations import BATCH, TABLE, Passing, places
from watersmeet.policies import probing

if TYPE_CHECKING:
    from watersmeet.engine.multiway import MultiwayJoin


class DrivenTask(ABC):
    """Rows of one input that go through the others; combinations emitted before are left out."""

    def __init__(self, join: MultiwayJoin, driver: int) -> None:
        self.join = join
        self.driver = driver
        self.pipeline: Pipeline | None = None
        self.steps: list[probing.Step] = []
        self._handed = 0
        self._skip = 0

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether all combinations were found."""

    @abstractmethod
    def begin(self, fuel: int) -> None:
        """Start with the next rows."""

    @abstractmethod
    def finish(self) -> None:
        """All combinations were handed out: settle what the task has achieved."""

    @abstractmethod
    def to_state(self) -> dict[str, Any]:
        """The task for a snapshot."""

    def fresh(self, ids: Int64) -> Bool | None:
        """Which combinations have not been emitted; None: none has."""
        return None

    def note(self, ids: Int64) -> None:  # noqa: B027  most tasks take no note
        """These combinations are about to be handed out."""

    def counting(self) -> Filter | None:
        """Which combinations count, though all their edges hold; None: all do."""
        return None

    def start(self, rows: Int64, scope: Scope, words: Sequence[Int64] | None = None) -> None:
        """Send rows through the other inputs; `words` are those of their attributes, where they are at hand."""
        join = self.join
        self.steps = self.steps or join.order.of(self.driver)
        self.pipeline = Pipeline(
            join.codec, join.inputs, self.driver, rows, self.steps, scope, join.sizing.combinations, self.counting(),
            None if words is None else dict(enumerate(words)),
        )  # fmt: skip
        self._handed = 0

    def work(self, fuel: int) -> int:
        """Fill the empty buffer; returns the fuel that took."""
        if self.pipeline is None or self.pipeline.done:
            self.begin(fuel)
            return 1
        used = self.pipeline.work(self.join.meter, self.join.order)
        self.hand_over()
        return used

    def hand_over(self) -> None:
        """Put what was found into the empty buffer."""
        assert self.pipeline is not None
        ids = self.pipeline.found
        if ids.shape[1]:
            fresh = self.fresh(ids)
            if fresh is not None:
                ids = ids[:, fresh]
            passed = min(self._skip, ids.shape[1])
            self._skip -= passed
            self.note(ids[:, passed:])
            self.join.combinations.fill(ids[:, passed:])
            self._handed += ids.shape[1]

    def place(self) -> dict[str, Any]:
        """How far the rows at hand are: their look-ups, and combinations handed out."""
        steps = [[step.input, step.edge, step.side, [list(end) for end in step.closing]] for step in self.steps]
        return {"steps": steps, "handed": self._handed - self.join.combinations.waiting + self._skip}

    def go_to(self, place: dict[str, Any]) -> None:
        """Prepare to go on at a place: what was handed out then is found again and left out."""
        self.steps = [
            probing.Step(number, edge, side, tuple((e, s) for e, s in closing))
            for number, edge, side, closing in place["steps"]
        ]
        self._skip = place["handed"]


class Arrival(Arriving, DrivenTask):
    """A batch on its way into memory, slice by slice: each as large as the room and the fuel allow."""

    def __init__(
        self,
        join: MultiwayJoin,
        driver: int,
        batch: pa.RecordBatch,
        numbers: Int64,
        moments: Sequence[pa.Array] = (),
        taken: Bool | None = None,
    ) -> None:
        """`moments` are stored before the columns; where `taken` is given, rows that it does not have are left out."""
        hashes, valid = join.codec.hash(driver, join.plans[driver].key_arrays(batch))
        if taken is not None:
            valid = taken if valid is None else valid & taken
        DrivenTask.__init__(self, join, driver)
        # NULL matches nothing: such rows end here.
        Arriving.__init__(self, join, driver, batch, numbers, hashes, valid, moments)
        self._columns = [*self._columns, *join.hash_columns(self._hashes)]
        self._slice = 0

    @property
    def done(self) -> bool:
        """Whether the last slice was looked up."""
        return self.next == self.rows and (self.pipeline is None or self.pipeline.done)

    @property
    def at_hand(self) -> int:
        """The rows of the last slice."""
        return self._slice

    @property
    def waits(self) -> bool:
        """Whether rows wait to be taken into memory, and nothing else is at hand."""
        return self.next < self.rows and (self.pipeline is None or self.pipeline.done)

    def begin(self, fuel: int) -> None:
        """Take the next slice into memory and begin to look it up."""
        join = self.join
        if self.next == self.rows:
            return
        self.steps = []
        count = min(fuel, self.rows - self.next, join.sizing.combinations)
        self.kept = join.must_keep(self.driver)
        count = join.admit(self, count)
        if not self.kept and join.must_keep(self.driver):
            # Making room brought rows of the others to disk, which these rows must now wait for.
            self.kept = True
            count = join.admit(self, count)
        hashes, parts, columns = self.slice_of(count)
        ticks = join.ticks(count)
        self.next += count
        self._slice = count
        if self.kept:
            rows = join.tables[self.driver].append(hashes[0], parts, columns, ticks)
            join.meter.inserts += count
            join.rows_kept(self.driver, parts)
            self.start(places(TABLE, rows), join.arrival_scope(), hashes)
        else:
            self._pass_by(hashes, columns, ticks)

    def _pass_by(self, hashes: list[Int64], columns: list[pa.Array], ticks: Int64) -> None:
        join = self.join
        join.inputs[self.driver].batch = Passing(columns, hashes, ticks)
        self.start(places(BATCH, np.arange(len(ticks), dtype=np.int32)), join.arrival_scope(), hashes)

    def note(self, ids: Int64) -> None:
        """Let the operator count what its rows in memory are good for."""
        self.join.note_results(ids)

    def finish(self) -> None:
        """Nothing is left to settle."""

    def to_state(self) -> dict[str, Any]:
        """The slice at hand."""
        return {"kind": "arrival", "input": self.driver, "rows": self._slice, "kept": self.kept, "place": self.place()}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on with a slice that was at hand when a snapshot was taken; this batch begins with its rows."""
        if not state["rows"]:
            return
        self._slice, self.kept = state["rows"], state["kept"]
        hashes, _, columns = self.slice_of(self._slice)
        self.next = self._slice
        self.go_to(state["place"])
        # Kept or not: the rows' own table is not looked up, so that they may as well lie in the batch.
        self._pass_by(hashes, columns, np.zeros(self._slice, np.int64))
