"""Sort keys of rows that meet by their times alone, and which times a row looks for.

Without a condition, rows are sorted by time, in memory and in runs, and a row looks for all times that its windows
reach: from the first that it meets to the last (`Timing.first_met` and `meets`). Both rise with the row's own time, as
`matching.reach` asks. Of what is found there, the window itself decides: a window of ages has a gap in its midst, and
a row that came late sees less than others of its time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64, Uint64
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.kernels.sorted_runs import RangeProbe
from watersmeet.matching.reach import BandKeys
from watersmeet.records.times import Timing, by_time

_SIGN = np.int64(-(1 << 63))
"""Times are signed, sort keys unsigned."""


class TimeKeys(BandKeys):
    """A row's time as its sort key.

    >>> from watersmeet.core.windows import parse_windows
    >>> schema = pa.schema({"t": pa.int64()})
    >>> keys = TimeKeys(WindowJoinSpec(schema, schema, (), window=parse_windows((3, 1), "t")))
    >>> words, _ = keys.hash(0, [pa.array([10])])
    >>> probe = keys.of(0).probe(words, [])
    >>> int(probe.low[0]), int(probe.high[0])
    (9, 13)
    """

    def __init__(self, spec: WindowJoinSpec) -> None:
        super().__init__(by_time(spec))
        self.verifies_band, self.exact = False, True  # times that a word cannot tell are refused
        timing = Timing(spec)
        self._reaches = TimeReach(timing, 0), TimeReach(timing, 1)

    def of(self, side: int) -> TimeReach:
        """Which times rows of a side look for."""
        return self._reaches[side]


class TimeReach:
    """Which times of the other input rows of a side look for."""

    decides = False
    shifts = None

    def __init__(self, timing: Timing, side: int) -> None:
        self._timing = timing
        self._side = side

    def bounds(self, keys: Uint64) -> tuple[Uint64, Uint64]:
        """From which key on and up to which a row of each key has to look; both rise with the key."""
        times = keys.view(np.int64) ^ _SIGN
        low, high = self._timing.first_met(self._side, times), self._timing.meets(self._side, times)
        return (low ^ _SIGN).view(np.uint64), (high ^ _SIGN).view(np.uint64)

    def close(self, wanted: Uint64, found: Uint64) -> Bool:
        """All keys within the bounds may match."""
        return np.ones(len(found), np.bool_)

    def probe(self, words: Int64, columns: Sequence[pa.Array]) -> RangeProbe:
        """The look-up of rows by their keys, in a table that has them in the order of signed words."""
        times = words ^ _SIGN
        return RangeProbe(times, self._timing.first_met(self._side, times), self._timing.meets(self._side, times))
