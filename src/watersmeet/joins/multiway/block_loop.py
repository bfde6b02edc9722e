"""MINER's loop over blocks on disk: one outer input, all others nested within; it can stop at any block and go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.errors import BudgetError
from watersmeet.engine.multi_arrival import DrivenTask
from watersmeet.engine.pipeline import Mark, Scope
from watersmeet.matching.found_combinations import FIRST_RUN, places
from watersmeet.matching.ledger import apart_in_memory
from watersmeet.matching.loop_counters import LoopCounters
from watersmeet.memory import Reservation, format_bytes
from watersmeet.policies.probing import Step, nesting
from watersmeet.runs.multi_catalogue import ManyRuns

if TYPE_CHECKING:
    from watersmeet.joins.multiway.miner import Miner


_BLOCKS_TOGETHER = 2
"""In the reactive phase, blocks of an inner input whose matches go on to the next together: so many, for each level of
the nest, have to be looked up again when the loop goes on.
"""
_OUTER_ROW_BYTES = 96
"""Of each outer row at hand: its number, word and bounds, and the arrays by which these are found and sorted."""


class BlockLoop(LoopCounters):
    """The counters of rows, and where the outer rows at hand are.

    ```
    joined[outer] ┤ met ├──┤ loaded: these outer rows are at hand ├───────────────
    joined[a]     ┤ met with all of those up to joined ├──── came later ──────────
                     ▲ marks[0]: the block of a that the outer rows are meeting
    joined[b]     ┤ met with all of those up to joined ├──── came later ──────────
                         ▲ marks[1]: the block of b that what they found in a is meeting
    ```

    Inner inputs have whole blocks below their counters.
    """

    def __init__(self, disks: Sequence[ManyRuns]) -> None:
        super().__init__(lambda: [disk.rows for disk in disks])
        self._disks = disks
        self.steps: list[Step] = []
        """In which order the inner inputs are nested, for the outer rows at hand."""
        self.marks: list[list[Mark]] = []
        """Where the outer rows at hand are: for each level a block, and how far it has been looked up."""

    def load(self, rows: int, steps: list[Step]) -> None:
        """Take outer rows, to be looked up in the others in some order."""
        self.loaded, self.steps, self.marks = rows, steps, []

    def all_met(self) -> None:
        """The outer rows at hand have met all inner blocks."""
        super().all_met()
        self.steps, self.marks = [], []

    def blocks(self) -> tuple[int, ...]:
        """How many blocks of each inner input the outer rows are to meet; none of the outer one."""
        return tuple(
            0 if number == self.outer else disk.run_of(rows)
            for number, (disk, rows) in enumerate(zip(self._disks, self.joined, strict=True))
        )

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        steps = [[step.input, step.edge, step.side, [list(end) for end in step.closing]] for step in self.steps]
        return {
            "outer": self.outer, "joined": list(self.joined), "loaded": self.loaded, "steps": steps,
            "marks": self.marks, "met": self._met,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a snapshot's state."""
        self.outer, self.joined, self.loaded = state["outer"], list(state["joined"]), state["loaded"]
        self.steps = [
            Step(number, edge, side, tuple((e, s) for e, s in closing))
            for number, edge, side, closing in state["steps"]
        ]
        self.marks = [[list(mark) for mark in marks] for marks in state["marks"]]
        self._met = state["met"]

    def check(self) -> None:
        """Assert that the counters tell what has met, and that only the outer one may be within a block."""
        super().check()
        for number, (disk, rows) in enumerate(zip(self._disks, self.joined, strict=True)):
            whole = not rows or rows == disk.rows or disk.runs[disk.run_of(rows)].first_ordinal == rows
            assert whole or number == self.outer, "inner inputs have whole blocks below their counters"
        assert not self.marks or self.loaded


class OuterRows(DrivenTask):
    """Some outer rows on their way through the blocks of all inner inputs.

    With a limit they are of so many blocks at most; without one they are as many as there is memory for.
    """

    def __init__(self, join: Miner, most_blocks: int | None, handed: int = 0) -> None:
        join.loop.choose_roles()
        super().__init__(join, join.loop.outer)
        self._miner = join
        self._most_blocks = most_blocks
        self._skip = handed

    @property
    def done(self) -> bool:
        """Whether all combinations were found."""
        return self.pipeline is not None and self.pipeline.done

    def begin(self, fuel: int) -> None:
        """Bring the outer rows from disk, and go to where they are."""
        join, loop = self._miner, self._miner.loop
        disk = join.disks[self.driver]
        if loop.loaded:
            self._claim_again(join.outer_claim, loop.loaded)
        else:
            loop.load(self._claim(join.outer_claim), nesting(join.spec, loop.outer, join.order))
        ids: list[Int64] = []
        for number, rows in disk.places(loop.joined[loop.outer], loop.loaded):
            join.meter.seeks += not ids
            join.meter.pages_read += disk.runs[number].pages_of(rows)
            ids.append(places(FIRST_RUN + number, rows))
        self.steps = loop.steps
        together = None if self._most_blocks is None else _BLOCKS_TOGETHER
        self.start(np.concatenate(ids), Scope(loop.blocks(), tables=False, together=together))
        assert self.pipeline is not None
        if loop.marks:
            self.pipeline.go_to(loop.marks, join.meter)

    def _claim(self, claim: Reservation) -> int:
        """How many outer rows there is memory for; as many as combinations fit into buffers that are always there."""
        join, loop = self._miner, self._miner.loop
        disk, first = join.disks[self.driver], loop.joined[self.driver]
        rows = disk.rows - first
        if self._most_blocks is not None:
            last = disk.runs[min(len(disk.runs), disk.run_of(first) + self._most_blocks) - 1]
            rows = min(rows, last.first_ordinal + last.rows - first)
        most = join.sizing.combinations
        while rows > most and not claim.try_grow(rows * _OUTER_ROW_BYTES):
            rows = max(most, rows // 2)
        return rows

    def _claim_again(self, claim: Reservation, rows: int) -> None:
        """Memory for the outer rows that had begun, even if rows of the tables have to leave for it."""
        join = self._miner
        if rows > join.sizing.combinations and not join.secure(lambda: claim.try_grow(rows * _OUTER_ROW_BYTES)):
            raise BudgetError(
                f"{format_bytes(join.budget.total)} of memory are too little to bring rows of "
                f"{join.spec.names[self.driver]} back from disk; allow more memory"
            )

    def work(self, fuel: int) -> int:
        """Look up one block, and remember where that was."""
        used = super().work(fuel) if self.pipeline is None else 0
        assert self.pipeline is not None
        self._miner.loop.marks = self.pipeline.marks()
        self._handed = 0
        return used + super().work(fuel)

    def fresh(self, ids: Int64) -> Bool | None:
        """Which combinations did not meet in memory."""
        return apart_in_memory(self._miner.inputs, ids)

    def give_way(self) -> bool:
        """Stop, to go on with the block that follows the next time; False if what was found in the last, or what was
        handed out before a restore and has to be found again, comes first.
        """
        if self._skip:
            return False
        if self.pipeline is None:
            return True
        self._miner.loop.marks = self.pipeline.marks()
        if not self.pipeline.settled:
            self._handed = 0
            self.pipeline.settle()
            self.hand_over()
            if self.join.combinations.waiting:
                return False
            self._miner.loop.marks = self.pipeline.marks()
        self.release()
        return True

    def release(self) -> None:
        """Let go of the outer rows."""
        self.pipeline = None
        self._miner.outer_claim.clear()

    def finish(self) -> None:
        """Count what has met."""
        self.release()
        self._miner.loop.all_met()

    def to_state(self) -> dict[str, Any]:
        """The task for a snapshot; where it is, the loop tells."""
        handed = self._handed - self.join.combinations.waiting + self._skip
        return {"kind": "outer", "most": self._most_blocks, "handed": handed}
