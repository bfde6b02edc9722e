"""What runs in a Spark task of an as-of join: a group's rows of one micro-batch in, the left rows that it answers out.

A batch's rows are put into the order of their times, and right rows of one time into one that depends on their values
alone: so an attempt that comes second gives the same answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.joins.asof.join import AsofJoin
from watersmeet.records.asof_times import AsofTiming
from watersmeet.spark.state.directory import GroupState
from watersmeet.spark.task.context import scratch_directory
from watersmeet.spark.task.operator_cache import KeptOperators
from watersmeet.spark.task.operator_group import Shares
from watersmeet.spark.task.ordered_rows import Arrivals, together
from watersmeet.spark.task.row_hashes import row_hashes
from watersmeet.spark.task.timed_rows import TimedArrivals
from watersmeet.spark.task.window_group import WindowGroup
from watersmeet.spark.task.window_task import WindowTask
from watersmeet.spill.file_store import FileStore

_RIGHT = 1


class AsofArrivals(TimedArrivals):
    """The rows of both inputs of a micro-batch; right rows of one time are in the order of their hashes."""

    _timing: AsofTiming  # type: ignore[assignment]

    def _late_before(self, number: int, newest: int) -> int:
        return self._timing.mark(number, newest)

    def _piece_rows(self, number: int) -> int:
        return Arrivals._piece_rows(self, number)

    def _streams(self) -> list[Iterator[tuple[Int64, pa.RecordBatch]]]:
        streams = super()._streams()
        return [*streams[:_RIGHT], ties_in_order(streams[_RIGHT])]


def ties_in_order(pieces: Iterator[tuple[Int64, pa.RecordBatch]]) -> Iterator[tuple[Int64, pa.RecordBatch]]:
    """The same rows, those of one time by their hashes; the last time of a piece may go on in the next one.

    >>> rows = pa.record_batch({"t": [1, 2, 2, 3], "v": ["a", "c", "b", "d"]})
    >>> def told(rows):
    ...     pieces = ties_in_order(iter([(rows["t"].to_numpy(), rows)]))
    ...     return [value for _, piece in pieces for value in piece["v"].to_pylist()]
    >>> told(rows) == told(rows.take(pa.array([0, 2, 1, 3])))
    True
    """
    held: list[tuple[Int64, pa.RecordBatch]] = []
    for times, rows in pieces:
        if held and times[0] != held[0][0][-1]:
            yield from _by_hash(held)
            held = []
        cut = int(np.searchsorted(times, times[-1]))
        if cut and not held:
            yield from _by_hash([(times[:cut], rows.slice(0, cut))])
            held = [(times[cut:], rows.slice(cut))]
        elif cut:
            head = int(np.searchsorted(times, times[0], "right"))
            yield from _by_hash([*held, (times[:head], rows.slice(0, head))])
            if head < cut:
                yield from _by_hash([(times[head:cut], rows.slice(head, cut - head))])
            held = [(times[cut:], rows.slice(cut))]
        else:
            held.append((times, rows))
    yield from _by_hash(held)


def _by_hash(pieces: Sequence[tuple[Int64, pa.RecordBatch]]) -> Iterator[tuple[Int64, pa.RecordBatch]]:
    if not pieces:
        return
    times = np.concatenate([each for each, _ in pieces])
    (rows,) = together([each for _, each in pieces])
    if (times[1:] == times[:-1]).any():
        rows = rows.take(pa.array(np.lexsort((row_hashes(rows), times))))
    yield times, rows


class AsofGroup(WindowGroup):
    """A group's as-of join, at one batch."""

    kind: ClassVar[type[Any]] = AsofJoin

    @property
    def has_work(self) -> bool:
        """Whether the right input has passed left rows that wait here."""
        lowest = None if self._before is None else self._before["held"][0]
        timing: Any = self._timing
        return lowest is not None and lowest <= timing.mark(_RIGHT, self._newest[_RIGHT])

    def _due(self, operator: Any) -> None:
        """What waits is told by the left rows that are held."""

    def _held(self, operator: Any, arrivals: TimedArrivals) -> list[int | None]:
        """The oldest time as of which a left row waits; None if none does."""
        return [operator.left.lowest if operator.left.count else None, None]


@dataclass(frozen=True)
class AsofTask(WindowTask):
    """The function of `mapInArrow`: a streaming as-of join's if it has a state directory, else a batch one's."""

    factory: Any

    def _group(self, shares: Shares, group: GroupState, kept: KeptOperators, newest: Sequence[int]) -> AsofGroup:
        return AsofGroup(self.factory, shares, group, kept, newest)

    def _arrivals(self) -> AsofArrivals:
        limit = Shares.of(self.memory).arrivals
        return AsofArrivals(self.factory.inputs, self.factory.timing(), limit, lambda: FileStore(scratch_directory()))
