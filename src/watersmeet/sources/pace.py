"""When the rows of a replayed stream are due: a steady rate, in bursts, with silences. Arithmetic, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from watersmeet.core.errors import SpecError

_ROUNDING = 1e-9
"""Seconds; what is due a last digit later is due."""
ENDLESS = 1 << 62
"""More rows than any table has."""


@dataclass(frozen=True)
class Pace:
    """How fast rows come; second 0 is when the stream begins. Without a rate, they are there at once.

    >>> pace = Pace(rows_per_second=100, burst=50, stalls=((100, 2.0),))
    >>> [pace.ready(seconds) for seconds in (0.4, 0.5, 1.0, 2.9, 3.5)]
    [0, 50, 100, 100, 150]
    >>> pace.due(np.array([0, 49, 50, 100])).tolist()
    [0.5, 0.5, 1.0, 3.5]
    """

    rows_per_second: float | None = None
    burst: int = 1
    """Rows that come together, when the last of them is due."""
    stalls: tuple[tuple[int, float], ...] = ()
    """After how many rows (up to the end of a burst) nothing comes, and for how many seconds; in order."""

    def __post_init__(self) -> None:
        rate = self.rows_per_second
        if rate is not None and not 0 < rate < math.inf:
            raise SpecError(f"rowsPerSecond must be more than 0, not {rate:g}")
        if self.burst < 1:
            raise SpecError(f"rowsPerBurst must be at least 1, not {self.burst}")
        after = [rows for rows, _ in self.stalls]
        if any(rows < 0 or not 0 <= seconds < math.inf for rows, seconds in self.stalls) or after != sorted(after):
            raise SpecError("stalls must be in the order of their rows, with seconds of at least 0")

    def ready(self, seconds: float) -> int:
        """How many rows have come by then, if there are as many; `ENDLESS` if all have."""
        most = 0
        for waited, until in zip(*self._parts(), strict=True):
            since = seconds - waited + _ROUNDING
            if since < 0:
                break
            come = ENDLESS if self.rows_per_second is None else self._whole_bursts(since * self.rows_per_second)
            most = max(most, min(come, until))
        return most

    def due(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The second at which each of these rows comes, numbered from 0."""
        begins = rows // self.burst * self.burst
        waited, until = (np.array(part, dtype=np.float64) for part in self._parts())
        steady = 0.0 if self.rows_per_second is None else (begins + self.burst) / self.rows_per_second
        times: npt.NDArray[np.float64] = steady + waited[np.searchsorted(until, begins, side="right")]
        return times

    def until(self, rows: int) -> float:
        """The second at which so many rows have come."""
        return float(self.due(np.array([rows - 1]))[0]) if rows else 0.0

    def _parts(self) -> tuple[list[float], list[int]]:
        """The stream between its silences: seconds waited before each part, and the row at which it ends."""
        waited = [0.0, *accumulate(seconds for _, seconds in self.stalls)]
        until = [-(-rows // self.burst) * self.burst for rows, _ in self.stalls]
        return waited, [*until, ENDLESS]

    def _whole_bursts(self, rows: float) -> int:
        return int(rows + _ROUNDING * max(1.0, rows)) // self.burst * self.burst
