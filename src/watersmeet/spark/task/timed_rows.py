"""The rows of one micro-batch on their way to a window join: in the order of their times, late ones first.

Spark delivers a batch's rows in any order, so within a batch there is no sooner or later but that of the rows' own
times. A row is late if its input had come further, by more than the lateness, in the batches before; it counts as if it
had come before the rest of its batch, those of the first input before those of the next. Rows that are in time may come
in any order: whether they meet is told by their times alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge as merge_sorted
from itertools import chain

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.errors import LateRowError
from watersmeet.matching.multi_windows import ManyTiming
from watersmeet.records.times import NEVER, Timing
from watersmeet.spark.task.ordered_rows import Arrivals
from watersmeet.spill.store import Store

_EVER = np.iinfo(np.int64).max
_FEWEST_ROWS = 1024
"""That are handed on at once, if there are so many: each piece costs as much as a few hundred look-ups."""


class TimedArrivals(Arrivals):
    """The rows of all inputs of a micro-batch; in memory at most twice `limit` bytes of them.

    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.core.windows import WindowJoinSpec, parse_windows
    >>> from watersmeet.spill.store import MemoryStore
    >>> batch = pa.record_batch({"id": [1, 2, 3], "t": [30, 10, 20]})
    >>> spec = WindowJoinSpec(batch.schema, batch.schema, parse_on("id"), window=parse_windows(5, "t", lateness=2))
    >>> arrivals = TimedArrivals([spec.left, spec.right], Timing(spec), 1 << 20, MemoryStore)
    >>> arrivals.add(0, batch)
    >>> [piece["t"].to_pylist() for _, piece in arrivals.after([19, NEVER])], arrivals.late, arrivals.newest
    ([[10], [20, 30]], [1, 0], [30, -9223372036854775808])
    """

    def __init__(
        self, schemas: Sequence[pa.Schema], timing: Timing | ManyTiming, limit: int, scratch: Callable[[], Store]
    ) -> None:
        super().__init__(schemas, limit, scratch)
        self.newest = [NEVER] * len(schemas)
        """The newest time of each input."""
        self.late = [0] * len(schemas)
        """How many rows of each input were late, as far as they were handed on."""
        self.spoke = [False] * len(schemas)
        """Which inputs have said anything."""
        self.at: int | None = None
        """When the batch began, if somebody has said so: microseconds since 1970."""
        self._timing = timing
        self._oldest = [_EVER] * len(schemas)

    def tick(self, number: int, signs: pa.RecordBatch) -> None:
        """An input has given signs of life, which may tell how far it has come."""
        times, known = self._timing.times(number, signs)
        told = times if known is None else times[known]
        self.newest[number] = max(self.newest[number], int(told.max(initial=NEVER)))
        self.spoke[number] = True

    def _order(self, number: int, batch: pa.RecordBatch) -> Int64:
        times, known = self._timing.times(number, batch)
        told = times if known is None else times[known]
        self.newest[number] = max(self.newest[number], int(told.max(initial=NEVER)))
        self.spoke[number] = True
        self._oldest[number] = min(self._oldest[number], int(told.min(initial=_EVER)))
        return times if known is None else np.where(known, times, NEVER)

    def _piece_rows(self, number: int) -> int:
        """About a window's rows: those of a key that the other input is ahead by are gone through for each look-up."""
        most, newest = super()._piece_rows(number), self.newest[number]
        if newest == NEVER:
            return most
        span = newest - self._oldest[number] + 1
        window = newest - self._timing.kept_from(number, newest)
        return min(most, max(_FEWEST_ROWS, self.rows[number] * window // span))

    def after(self, newest: Sequence[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """All rows, each piece of one input; before them, the inputs had come as far as these times."""
        streams = []
        for number, pieces in enumerate(self._streams()):
            rest: list[tuple[Int64, pa.RecordBatch]] = []
            for times, rows in pieces:
                late = int(np.searchsorted(times, self._late_before(number, newest[number])))
                if late:
                    # Rows without a time, if they are wanted, come before all others, and are never late.
                    self.late[number] += late - int(np.searchsorted(times, NEVER, "right"))
                    yield number, rows.slice(0, late)
                if late < len(times):
                    rest.append((times[late:], rows.slice(late)))
                    break
            streams.append(_numbered(chain(rest, pieces), number))
        for _, number, rows in merge_sorted(*streams, key=lambda each: each[:2]):
            yield number, rows

    def _late_before(self, number: int, newest: int) -> int:
        """Rows before this time are late, if their input has told `newest` as its newest time."""
        return self._timing.late_before(newest)

    def _streams(self) -> list[Iterator[tuple[Int64, pa.RecordBatch]]]:
        """Of each input, pieces in the order of their times."""
        self.settle()
        return [self.pieces(number) for number in range(len(self.rows))]


def _numbered(pieces: Iterator[tuple[Int64, pa.RecordBatch]], number: int) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    for times, rows in pieces:
        yield int(times[0]), number, rows


def late_row(batch: int, name: str, lateness: object) -> LateRowError:
    """The error of a join that takes no late rows."""
    return LateRowError(
        f"batch {batch} has a row of {name} that comes later than lateness={lateness!r} allows; allow more, or say "
        f"late='keep' or late='drop'"
    )
