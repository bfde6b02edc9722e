"""Left rows that look back, and rows that come in the order of their times: one pass over both answers them.

```
right   · · · · · · · ·│· · ·      rows before `at` were passed: `slots` has the last of each hash
left          answered │▪ ▪ ▪      a floor is not before `reached`: go on with `at` up to it, then look into the slots
```

**Why that is right.** Right rows of the table ascend in time, none has gone to disk, and none that comes is before the
mark; so those up to a floor below the mark are the first rows of the table, all there. Slots have, of each hash, the
last row before `at`; since rows come in the order of their times, and rows of one time in the order of the input, that
is the row which `matching.nearest` would find. Rows before `at` are not after `reached`, so that slots answer whoever
asks as of `reached` or later, and `at` never has to go back. If a left row does ask as of an earlier time, if rows are
out of order, if some are on disk, or if keys of one hash turn out to differ (where a hash does not say all of a key,
what was found is compared), the other way is taken: it needs nothing that is known here.
(`tests/conformance/test_asof_sweep.py` breaks each of these.)

Slots are made of the table alone, and are made anew after a snapshot. They take the memory that the table counts for
putting its rows into an order, which is not done at the same time.
"""

from __future__ import annotations

import numpy as np

from watersmeet.core.arrays import Bytes, Int32, Int64
from watersmeet.kernels.asof import ascends, fill_slots, sweep
from watersmeet.records.asof_times import TIME
from watersmeet.records.bands import LOWEST
from watersmeet.tables.arrival_index import ArrivalIndex
from watersmeet.tables.memtable import Memtable

SLOT_BYTES = 16
_MOST_AT_FIRST = 2048
AT, PLACE, COUNT, USED, REACHED = range(5)
"""What a pass tells of how far it came."""


class Sweep:
    """The right rows that left rows have passed, by hash."""

    def __init__(self, table: Memtable) -> None:
        self._table = table
        self.clear()

    def clear(self) -> None:
        """All rows have left the table."""
        self._checked = 0
        """Rows before this one ascend in time."""
        self.ascends = True
        """Whether all rows that were looked at do."""
        self.forget()

    def forget(self) -> None:
        """Let go of the slots; the next pass begins with the first row."""
        self._slots = np.empty(0, np.int64)
        self._state = np.zeros(5, np.int64)
        self._state[REACHED] = LOWEST

    @property
    def begun(self) -> bool:
        """Whether there are slots."""
        return len(self._slots) > 0

    @property
    def live(self) -> int:
        """How many rows may still be asked for by those that ask as of `reached` or later."""
        return self.not_passed + int(self._state[USED])

    @property
    def not_passed(self) -> int:
        """How many rows come behind those that are in slots, or were."""
        return int(self._table.rows - self._state[AT])

    @property
    def reached(self) -> int:
        """Whoever asks as of this time or later can be answered."""
        return int(self._state[REACHED])

    def in_order(self) -> bool:
        """Whether all rows of the table ascend in time."""
        table = self._table
        if self.ascends and self._checked < table.rows:
            self.ascends = ascends(table.sources, TIME, max(0, self._checked - 1), table.rows)
            self._checked = table.rows
        return self.ascends

    def find(
        self, left: Memtable, answered: Bytes, place: int, bound: int, probes: Int32, found: Int64, before: Int64
    ) -> tuple[int, int]:
        """Look up left rows from a place on that were not answered, with floors up to a bound, as many as there is room
        for; they ascend.

        Tells their numbers and what each meets, and, if there is room for it, the time of that; returns how many rows
        these are, and where to go on.
        """
        table, state = self._table, self._state
        floors, hashes = left.index, table.index
        assert isinstance(floors, ArrivalIndex) and isinstance(hashes, ArrivalIndex)
        state[PLACE], state[COUNT] = place, 0
        if not len(self._slots):
            self._make_slots(max(1, min(table.rows, _MOST_AT_FIRST)))
        while not sweep(
            self._slots, state, table.sources, hashes.stretch(0, table.rows), left.sources,
            floors.stretch(0, left.rows), answered, bound, probes, found, before,
        ):  # fmt: skip
            self._make_slots(len(self._slots) // (SLOT_BYTES // 8) * 2)
            fill_slots(self._slots, hashes.stretch(0, int(state[AT])))
        return int(state[COUNT]), int(state[PLACE])

    def _make_slots(self, count: int) -> None:
        """Room for twice as many at first, of which four fifths are used: at most 40 bytes for each row."""
        self._slots = np.empty(0, np.int64)
        self._slots = np.full(2 << (count - 1).bit_length(), -1, np.int64)

    def kept(self) -> Int32:
        """The rows that whoever asks as of `reached` or later may ask for, as they came."""
        at = int(self._state[AT])
        last = self._slots[1::2]
        passed = np.sort(last[last >= 0]).astype(np.int32)
        return np.concatenate([passed, np.arange(at, self._table.rows, dtype=np.int32)])

    def check(self) -> None:
        """Assert the invariants."""
        at, used = int(self._state[AT]), int(self._state[USED])
        assert 0 <= at <= self._table.rows and self._checked <= self._table.rows
        assert 8 * len(self._slots) <= 40 * max(4, self._table.rows)
        assert used == int(np.count_nonzero(self._slots[1::2] >= 0)) <= at
        assert self.begun or not at
