"""Pairs found and not yet handed out, and how they become output batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Numbers
from watersmeet.core.spec import JoinSpec, Output
from watersmeet.kernels import gather
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan, Rows, gather_all

PAIR_BYTES = 96
"""Of each place in the buffer: the pair itself, and the scratch arrays of filtering and measuring."""
_LEAST_ROOM = 64


@dataclass(slots=True)
class Between:
    """Where the rows of the buffered pairs lie: the rows that were looked up, and the table they were looked up in."""

    probe_side: int
    probe: Rows
    table: Rows


class PairBuffer:
    """A fixed number of pairs (row looked up, row found), and the output batches made of them."""

    def __init__(
        self, spec: JoinSpec, codec: KeyCodec, plans: tuple[RowPlan, RowPlan], capacity: int, wide: bool = False
    ) -> None:
        """With `wide`, rows that were found are numbered with their source in the upper half of a word."""
        self._spec = spec
        self._codec = codec
        self._plans = plans
        counts = spec.output is Output.COUNTS
        self._wanted = [tuple(dict.fromkeys(plan.keys if counts else [*plan.outputs, *plan.keys])) for plan in plans]
        self.probes = np.empty(capacity, np.int32)
        self.rows: Numbers = np.empty(capacity, np.int64 if wide else np.int32)
        self.widest = [0, 0]
        """The widest row of each side so far."""
        self.room = capacity
        """How many pairs a look-up is to find at a time: about as many as one output batch can hold."""
        self.first = 0
        self.count = 0
        """Pairs from `first` to `count` wait to be handed out."""

    @property
    def waiting(self) -> int:
        """Pairs not yet handed out."""
        return self.count - self.first

    def clear(self) -> None:
        """Make the whole buffer free."""
        self.first = self.count = 0

    def filter(self, fresh: Bool, start: int = 0) -> None:
        """Keep only the pairs that are fresh, of those from `start` on."""
        self.count = start + int(gather.keep(fresh, self.probes[start : self.count], self.rows[start : self.count]))

    def take(self, between: Between, limit: int) -> tuple[pa.RecordBatch | None, int]:
        """Hand out waiting pairs, as many as fit into `limit` bytes, at least one: the batch, and how many pairs it
        has.

        Pairs whose hashes agree and whose keys do not are dropped here.
        """
        probes, rows = self.probes[self.first : self.count], self.rows[self.first : self.count]
        sides = [(between.probe, probes), (between.table, rows)]
        if between.probe_side:
            sides.reverse()
        fit = self._fitting(sides, limit)
        while True:
            try:
                batch, count = self._build([(source, numbers[:fit]) for source, numbers in sides])
                break
            except OverflowError:
                # More distinct values than a small dictionary index can number: a smaller batch has fewer.
                fit //= 2
                if not fit:
                    raise
        self._settle_room(fit)
        self.first += fit
        if self.first == self.count:
            self.clear()
        return batch, count

    def _settle_room(self, fit: int) -> None:
        """Find as many pairs the next time as went out together; a few left over would cost a batch of their own."""
        if self.first:
            return  # a rest says nothing about the whole
        if fit < self.count:
            self.room = min(len(self.probes), max(_LEAST_ROOM, fit - fit // 16))
        elif fit >= self.room:
            self.room = min(len(self.probes), self.room + self.room // 128 + 1)

    def _fitting(self, sides: list[tuple[Rows, Numbers]], limit: int) -> int:
        count = len(sides[0][1])
        if count * sum(self.widest) <= limit or (self._spec.output is Output.COUNTS and self._codec.exact):
            return count
        widths = np.zeros(count, np.int64)
        for (source, numbers), plan in zip(sides, self._plans, strict=True):
            for column in {*plan.outputs, *plan.keys}:
                source.widen(column, numbers, widths)
        return int(gather.fitting(widths, limit))

    def _build(self, sides: list[tuple[Rows, Numbers]]) -> tuple[pa.RecordBatch | None, int]:
        count = len(sides[0][1])
        if self._spec.output is Output.COUNTS and self._codec.exact:
            return None, count
        arrays = self._gathered(sides, self._wanted)
        if not self._codec.exact:
            keys = [[arrays[side][column] for column in self._plans[side].keys] for side in (0, 1)]
            equal = self._codec.equal(*keys)
            if equal is not None:
                count = int(np.count_nonzero(equal))
            if self._spec.output is Output.COUNTS or not count:
                return None, count
            if equal is not None:  # Arrow cannot filter every type, but every type can be gathered
                truly = [(source, numbers[equal]) for source, numbers in sides]
                arrays = self._gathered(truly, [tuple(plan.outputs) for plan in self._plans])
        columns = [arrays[side][column] for side in (0, 1) for column in self._plans[side].outputs]
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.schema), count

    def _gathered(
        self, sides: list[tuple[Rows, Numbers]], wanted: Sequence[tuple[int, ...]]
    ) -> list[dict[int, pa.Array]]:
        """Columns of both sides in their own types, by their numbers."""
        return [
            {
                column: plan.original(column, array)
                for column, array in zip(columns, gather_all(source, columns, numbers), strict=True)
            }
            for (source, numbers), plan, columns in zip(sides, self._plans, wanted, strict=True)
        ]
