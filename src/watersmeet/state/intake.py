"""Rows received and not yet worked off: small batches are put together, large ones are cut."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.state.stored_types import put_together

_SMALL = 1024
_TOGETHER = 8192


@dataclass(frozen=True, slots=True)
class Received:
    """A batch, its rows' numbers if they do not simply follow the input's order, and the first row still to be done."""

    batch: pa.RecordBatch
    numbers: NDArray[np.int64] | None = None
    start: int = 0


class Intake:
    """One input's batches, in order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._batches: deque[Received] = deque()
        self.rows = 0
        self.numbered = 0
        """How many rows have been given a number."""

    def add(self, batch: pa.RecordBatch, numbers: NDArray[np.int64] | None = None) -> None:
        """Take a batch; one without rows is forgotten."""
        if batch.num_rows:
            self._batches.append(Received(batch, numbers))
            self.rows += batch.num_rows

    def next(self) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """The next rows, within the limit of bytes, and their numbers."""
        first = self._batches.popleft()
        batch, numbers = first.batch, first.numbers
        if numbers is None and batch.num_rows < _SMALL and self._batches:
            batch = self._put_together(batch)
        width = max(1, batch.nbytes // batch.num_rows)
        rows = max(1, self._limit // width)
        if rows < batch.num_rows:
            rest = batch.slice(rows)
            self._batches.appendleft(Received(rest, None if numbers is None else numbers[rows:]))
            batch = batch.slice(0, rows)
            numbers = None if numbers is None else numbers[:rows]
        self.rows -= batch.num_rows
        if numbers is None:
            numbers = np.arange(self.numbered, self.numbered + batch.num_rows)
            self.numbered += batch.num_rows
        return batch, numbers

    def _put_together(self, first: pa.RecordBatch) -> pa.RecordBatch:
        """Join small batches. Measuring a batch costs more than copying a small one, so only every 64th is measured."""
        together, rows, room = [first], first.num_rows, self._limit
        width = 0
        while self._batches:
            following = self._batches[0]
            more = following.batch.num_rows
            if following.numbers is not None or more >= _SMALL or rows + more > _TOGETHER:
                break
            if len(together) % 64 == 1:
                width = max(width, following.batch.nbytes // more)
            room -= width * more
            if room < 0:
                break
            together.append(self._batches.popleft().batch)
            rows += more
        batch = put_together(together)
        if batch is not None:
            return batch
        self._batches.extendleft(Received(later) for later in reversed(together[1:]))
        return first

    def waiting(self) -> list[Received]:
        """What is left, for a snapshot."""
        return list(self._batches)
