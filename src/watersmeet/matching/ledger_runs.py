"""Which rows have met which runs on disk? The one place that decides it for joins whose partitions leave memory whole.

Of two rows that did not meet in memory, one came after the other had left: call it the later row. It can meet the run
of the other one while it is in memory itself (an md-task), or when it lies in a run of its own (a dd-task). Rows,
flushes and tasks take ticks, so that no two things happen at once.

```
ticks      ───────────────────────────────────────────────────────────────────▶
run r        ├ in memory ┤ on disk ··············································
later rows                    a ├───── in memory ─────┤ on disk ·················
                                   b ├──── in memory ───┤ on disk ·················
tasks                              ▲ md: a meets r                  ▲ dd: b meets r
```

- *together*: a run that left memory after a row had come met it there.
- *md times*: each side and partition has the ticks of its md-tasks. A row that was in memory at one of them has met all
  that the other side's disk held then, and everything else was in memory with it: so of all md-tasks of a stay in
  memory only the last one counts, and it is kept with the tick at which the stay ended.
- *lastDD*: a dd-task lets all runs of a partition meet that left memory before it began. A run that left before the
  last one has, as the later one, nothing to look for any more: what it could meet had left before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.arrays import Bool, Int64
from watersmeet.memory import Reservation
from watersmeet.runs.window_segments import FOREVER

STAY_BYTES = 16


class Meetings:
    """The md- and dd-tasks of all partitions."""

    def __init__(self, partitions: int, claim: Reservation) -> None:
        self._claim = claim
        self._last_md = np.zeros((2, partitions), np.int64)
        """Of rows that are in memory."""
        self._md_times: list[list[list[tuple[int, int]]]] = [[[] for _ in range(partitions)] for _ in (0, 1)]
        """Of rows in runs: the last md-task of their stay in memory, and when that ended."""
        self._last_dd = np.zeros((2, partitions), np.int64)

    def record_md(self, side: int, part: int, tick: int) -> None:
        """All rows of a partition that were in memory at a tick have met the other side's disk of then."""
        self._last_md[side, part] = tick

    def try_reserve(self) -> bool:
        """Have memory to note that a partition leaves; without it none may."""
        missing = STAY_BYTES * (self._stays + 1) - self._claim.held
        return missing <= 0 or self._claim.try_grow(missing)

    def leave(self, side: int, part: int, tick: int) -> None:
        """A partition leaves memory at a tick."""
        last = int(self._last_md[side, part])
        if last:
            self._md_times[side][part].append((last, tick))
            self._last_md[side, part] = 0

    def record_dd(self, part: int, tick: int) -> None:
        """All runs of a partition that left memory before a tick have met each other."""
        for side in (0, 1):
            self._last_dd[side, part] = tick
            self._md_times[side][part] = [stay for stay in self._md_times[side][part] if stay[1] > tick]
        self._claim.shrink(max(0, self._claim.held - STAY_BYTES * (self._stays + 1)))

    # --- the rules ---

    @staticmethod
    def together(left: Int64, arrived: Int64) -> Bool:
        """Which rows had come when the runs, which left memory at these ticks, were still there."""
        return left > arrived

    def met_disk(self, side: int, part: int, departed: int = FOREVER) -> int:
        """Rows that left memory at a tick (FOREVER: are there) and had come by this tick have met all that they could
        not meet in memory.
        """
        if departed == FOREVER:
            return int(self._last_md[side, part])
        return next((md for md, left in self._md_times[side][part] if left == departed), 0)

    def merged(self, side: int, part: int, departed: int) -> bool:
        """Whether a run that left memory at a tick has met all that left before it."""
        return bool(departed < self._last_dd[side, part])

    # --- snapshots ---

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        times = [[[list(stay) for stay in stays] for stays in side] for side in self._md_times]
        return {"last_md": self._last_md.tolist(), "md_times": times, "last_dd": self._last_dd.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """Take over a snapshot's state."""
        self._last_md, self._last_dd = np.array(state["last_md"]), np.array(state["last_dd"])
        self._md_times = [[[(md, left) for md, left in stays] for stays in side] for side in state["md_times"]]
        self._claim.grow(STAY_BYTES * self._stays)

    @property
    def _stays(self) -> int:
        return sum(len(stays) for side in self._md_times for stays in side)

    def check(self, clock: int) -> None:
        """Assert the invariants."""
        assert (self._last_md <= clock).all() and (self._last_dd <= clock).all()
        assert all(md < left <= clock for side in self._md_times for stays in side for md, left in stays)
        assert self._claim.held >= STAY_BYTES * self._stays
