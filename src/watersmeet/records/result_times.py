"""The time of a result of a window join: when nothing else that could come of its rows is still to come."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.records.times import Timing


class ResultTimes:
    """Reads the times of results off their columns.

    The time of a pair is that of its later row. A row that comes alone, because it has no partner or because only the
    rows of one input are asked for, has the last time at which it could have met another: then its window has closed.

    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.core.windows import parse_windows
    >>> schema = pa.schema({"id": pa.int64(), "t": pa.int64()})
    >>> spec = WindowJoinSpec(schema, schema, parse_on("id"), window=parse_windows((7, 3), "t"))
    >>> ResultTimes(spec, Timing(spec)).of(pa.record_batch({"id": [1, 2], "t": [20, 30], "t_right": [25, None]}))
    array([25, 37])
    """

    def __init__(self, spec: WindowJoinSpec, timing: Timing) -> None:
        assert spec.window.time is not None
        self._timing = timing
        left, right = spec.window.time
        names = [[spec.input(side).names[column] for column in spec.kept[side]] for side in (0, 1)]
        shared = {equal.right for equal in spec.equalities if equal.left == equal.right}
        places: list[int | None] = [names[0].index(left) if left in names[0] else None, None]
        if right in names[1]:
            places[1] = len(names[0]) + names[1].index(right)
        elif right in shared and names[1]:
            places[1] = names[0].index(right)  # the other's value, which is equal
        self._places = places
        self._alone = left in shared or right in shared or places[1] is None
        """Whether the columns do not tell which rows are alone: then all are taken for such."""

    def of(self, batch: pa.RecordBatch) -> Int64:
        """The time of each result."""
        found = []
        for side, place in enumerate(self._places):
            if place is not None:
                times, known = self._timing.read_times(side, batch.column(place))
                found.append((side, times, np.ones(len(times), np.bool_) if known is None else known))
        alone = np.full(batch.num_rows, np.iinfo(np.int64).min)
        for side, times, known in found:
            alone = np.where(known, np.maximum(alone, self._timing.meets(side, times)), alone)
        if self._alone or len(found) < 2:
            return alone
        both: Int64 = np.where(found[0][2] & found[1][2], np.maximum(found[0][1], found[1][1]), alone)
        return both
