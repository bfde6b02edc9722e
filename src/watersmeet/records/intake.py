"""Rows received and not yet worked off: small batches are put together, large ones are cut."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.saved import Saved
from watersmeet.records.types import put_together

_SMALL = 1024
_TOGETHER = 8192


@dataclass(frozen=True, slots=True)
class Received:
    """A batch, its rows' numbers if they do not simply follow the input's order, and the first row still to be done."""

    batch: pa.RecordBatch
    numbers: Int64 | None = None
    start: int = 0


def _row_width(schema: pa.Schema) -> int | None:
    """Bytes of a row, each value with its bit of validity; None if rows differ, or have values that lie elsewhere.

    Measuring a batch takes longer.
    """
    if not all(pa.types.is_primitive(type_) or pa.types.is_decimal(type_) for type_ in schema.types):
        return None
    return -(-sum(type_.bit_width + 1 for type_ in schema.types) // 8) or 1


class Intake:
    """One input's batches, in order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: tuple[pa.Schema, int | None] | None = None
        """The schema of the last batch that was measured, and the bytes of its rows if all have the same."""
        self._resumed: deque[Received] = deque()
        """Of a snapshot: numbered rows, which come before all others."""
        self._batches: deque[pa.RecordBatch] = deque()
        self.rows = 0
        self.numbered = 0
        """How many rows have been given a number."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch; one without rows is forgotten."""
        rows = batch.num_rows
        if rows:
            self._batches.append(batch)
            self.rows += rows

    def resume(self, received: Received) -> None:
        """Take a batch of a snapshot, the oldest first."""
        if received.numbers is None:
            self.add(received.batch)
        else:
            self._resumed.append(received)
            self.rows += received.batch.num_rows

    def put_back(self, batch: pa.RecordBatch, numbers: Int64) -> None:
        """Take numbered rows back; they are the next."""
        if batch.num_rows:
            self._resumed.appendleft(Received(batch, numbers))
            self.rows += batch.num_rows

    def next(self, most: int | None = None) -> tuple[pa.RecordBatch, Int64]:
        """The next rows, within the limit of bytes and `most` of them, and their numbers."""
        if self._resumed:
            return self._next_resumed(most)
        batch = self._batches.popleft()
        if batch.num_rows < _SMALL and self._batches and (most is None or batch.num_rows < most):
            batch = self._put_together(batch)
        rows = self._fitting(batch) if most is None else min(most, self._fitting(batch))
        if rows < batch.num_rows:
            self._batches.appendleft(batch.slice(rows))
            batch = batch.slice(0, rows)
        self.rows -= batch.num_rows
        numbers = np.arange(self.numbered, self.numbered + batch.num_rows)
        self.numbered += batch.num_rows
        return batch, numbers

    def _next_resumed(self, most: int | None) -> tuple[pa.RecordBatch, Int64]:
        received = self._resumed.popleft()
        batch, numbers = received.batch, received.numbers
        assert numbers is not None
        rows = self._fitting(batch) if most is None else min(most, self._fitting(batch))
        if rows < batch.num_rows:
            self._resumed.appendleft(Received(batch.slice(rows), numbers[rows:]))
            batch, numbers = batch.slice(0, rows), numbers[:rows]
        self.rows -= batch.num_rows
        return batch, numbers

    def _fitting(self, batch: pa.RecordBatch) -> int:
        schema = batch.schema
        if self._known is None or self._known[0] != schema:
            self._known = (schema, _row_width(schema))
        width = self._known[1] or max(1, batch.nbytes // batch.num_rows)
        return max(1, int(self._limit // width))

    def _put_together(self, first: pa.RecordBatch) -> pa.RecordBatch:
        """Join small batches. Measuring a batch costs more than copying a small one, so only every 64th is measured."""
        batches = self._batches
        together, rows, room = [first], first.num_rows, self._limit
        width = 0
        while batches:
            following = batches[0]
            more = following.num_rows
            if more >= _SMALL or rows + more > _TOGETHER:
                break
            if len(together) % 64 == 1:
                width = max(width, following.nbytes // more)
            room -= width * more
            if room < 0:
                break
            together.append(batches.popleft())
            rows += more
        batch = put_together(together)
        if batch is not None:
            return batch
        batches.extendleft(reversed(together[1:]))
        return first

    def waiting(self) -> list[Received]:
        """What is left, for a snapshot."""
        return [*self._resumed, *(Received(batch) for batch in self._batches)]


class Order(Saved):
    """Which inputs' rows were received one after the other, those of all inputs together.

    >>> order, intakes = Order(), (Intake(1 << 20), Intake(1 << 20))
    >>> for number, rows in ((0, 2), (1, 3), (0, 1)):
    ...     order.add(number, rows)
    ...     intakes[number].add(pa.record_batch({"a": [number] * rows}))
    >>> while order:
    ...     number, batch, numbers = order.next(intakes)
    ...     print(number, numbers)
    0 [0 1]
    1 [0 1 2]
    0 [2]
    """

    SAVED: ClassVar[tuple[str, ...]] = ("_runs",)

    def __init__(self) -> None:
        self._runs: deque[list[int]] = deque()
        """Input and rows; or input, 0 and a time that the input has told between its rows, or a number below 0 for what
        concerns no input."""

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def rows(self) -> int:
        """How many rows wait."""
        return sum(rows for _, rows in self._runs)

    def add(self, number: int, rows: int) -> None:
        """So many rows of an input have come."""
        if not rows:
            return
        if self._runs and self._runs[-1][0] == number and self._runs[-1][1]:
            self._runs[-1][1] += rows
        else:
            self._runs.append([number, rows])

    def put_back(self, number: int, rows: int) -> None:
        """So many rows of an input are the next again."""
        if self._runs and self._runs[0][0] == number and self._runs[0][1]:
            self._runs[0][1] += rows
        else:
            self._runs.appendleft([number, rows])

    def tell(self, number: int, time: int) -> None:
        """After the rows so far, an input has told how far it has come."""
        self._runs.append([number, 0, time])

    def tell_again(self, number: int, time: int) -> None:
        """What was told before the rows that are next has yet to be heard."""
        self._runs.appendleft([number, 0, time])

    def next_told(self) -> tuple[int, int] | None:
        """An input, and what it has told before the rows that are next; None if there is nothing of that kind."""
        if not self._runs or self._runs[0][1]:
            return None
        number, _, time = self._runs.popleft()
        return number, time

    def next(self, intakes: Sequence[Intake]) -> tuple[int, pa.RecordBatch, Int64]:
        """The input whose rows are next, and these rows with their numbers."""
        run = self._runs[0]
        batch, numbers = intakes[run[0]].next(run[1])
        run[1] -= batch.num_rows
        if not run[1]:
            self._runs.popleft()
        return run[0], batch, numbers
