"""The time of a result of a window join: when nothing else that could come of its rows is still to come."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.errors import SpecError
from watersmeet.core.windows import FAR, WindowJoinSpec
from watersmeet.records.times import NEVER, Timing

_LAST = 4 * FAR - 2
"""The time of rows whose window never closes, which come when all inputs have ended."""


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
        self._places: list[int | None] = []
        for side, name in enumerate(spec.window.time):
            column = spec.input(side).get_field_index(name)
            place = next((i for i, made_of in enumerate(spec.columns) if made_of[side] == column), None)
            if place is not None and spec.schema.field(place).type != spec.input(side).field(column).type:
                raise SpecError(
                    f"emit='final' cannot tell the time of results: column {name!r} is joined on, too, and has another "
                    f"type in each input; cast one of them first"
                )
            self._places.append(place)
        self._tells_pairs = None not in self._places and self._places[0] != self._places[1]
        """Whether the columns tell which results are pairs; if not, all are taken for rows that come alone."""
        self._one_sided = spec.kind.one_sided

    def of(self, batch: pa.RecordBatch) -> Int64:
        """The time of each result; earlier than any time for a row that has none."""
        found = [self._read(side, batch) for side in (0, 1)]
        times = np.full(batch.num_rows, NEVER)
        for each in found:
            if each is not None:
                for side in (0,) if self._one_sided else (each[0],) if self._tells_pairs else (0, 1):
                    closes = np.minimum(self._timing.meets(side, each[1]), _LAST)
                    times = np.where(each[2], np.maximum(times, closes), times)
        left, right = found
        if not self._tells_pairs or left is None or right is None:
            return times
        pairs: Int64 = np.where(left[2] & right[2], np.maximum(left[1], right[1]), times)
        return pairs

    def _read(self, side: int, batch: pa.RecordBatch) -> tuple[int, Int64, Bool] | None:
        """The times of rows of a side, and which results have one."""
        place = self._places[side]
        if place is None:
            return None
        times, known = self._timing.read_times(side, batch.column(place))
        return side, times, np.ones(len(times), np.bool_) if known is None else known
