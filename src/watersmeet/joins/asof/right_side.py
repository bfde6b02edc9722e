"""Right rows of an as-of join: what may still be asked for, in memory and on disk, in the order of hash and time.

Where left rows look back, and rows come in the order of their times, one pass over both answers them (`Sweep`):

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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from watersmeet.core.arrays import Bytes, Int32, Int64, Uint64
from watersmeet.joins.asof.sides import Disk
from watersmeet.kernels.asof import ascends, fill_slots, sweep
from watersmeet.matching.nearest import Forgetting, Nulls, RightRows, TimedOrder
from watersmeet.records.asof_times import TIME
from watersmeet.records.bands import LOWEST
from watersmeet.runs.sorted_run import let_go
from watersmeet.runs.timed_run import TimedMerge, TimedRun, write_timed_run
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


_NO_ROWS = np.empty(0, np.int32)
_PIECES = 4


@dataclass
class RightRun:
    """Right rows on disk."""

    timed: TimedRun
    level: int
    latest: int
    """The last of their times."""


class RightSide:
    """Rows that left rows look for."""

    def __init__(
        self,
        table: Memtable,
        disk: Disk,
        piece: int,
        nulls: Nulls | None,
        forget: Callable[[], None],
        ticks: Callable[[int], Int64],
    ) -> None:
        """`piece` rows are sorted at once; `forget` empties the table, `ticks` are those of rows that come anew."""
        self.table = table
        self.runs: list[RightRun] = []
        self.order = TimedOrder(table, piece)
        self.sweep = Sweep(table)
        """Instead of that order, where rows need none."""
        self._disk = disk
        self._nulls = nulls
        self._forget = forget
        self._ticks = ticks
        self._piece = piece
        self._tidy_at = _PIECES * piece
        """With so many rows in memory it is looked whether most of them can go."""

    @property
    def count(self) -> int:
        """How many rows may still be asked for, in memory and on disk."""
        in_memory = self.sweep.live if self.sweep.begun else self.order.live
        return in_memory + sum(each.timed.rows for each in self.runs)

    @property
    def not_passed(self) -> int:
        """How many rows in memory no left row has passed, as far as that is known."""
        return self.sweep.not_passed if self.sweep.begun or not self.order.stretches else 0

    def rows(self) -> RightRows:
        """All of them, and one without values for left rows that have no partner."""
        return RightRows(self.table, [each.timed for each in self.runs], self._nulls)

    def sources(self) -> Iterator[tuple[Uint64, Int64, Int32, int]]:
        """What is looked up in, the oldest rows first: hashes, times, numbers of rows, and a code of the source."""
        for number, each in enumerate(self.runs):
            yield each.timed.hashes(), each.timed.times(), _NO_ROWS, number + 1 << 32
        for stretch in self.order.stretches:
            yield *stretch, 0

    def begin_sweep(self) -> None:
        """Rows are looked up as they came: their order is of no use."""
        self.order.clear()

    def bring_up(self, forgetting: Forgetting | None) -> None:
        """Put rows into their order, to be looked up; leave out what is found to be forgotten on the way."""
        self.sweep.forget()
        self.order.bring_up(forgetting)

    def let_go(self) -> None:
        """Let mapped pages leave memory until they are read again."""
        let_go([run for each in self.runs for run in each.timed.both])

    # --- rows that leave memory ---

    def compact(self, forgetting: Forgetting) -> bool:
        """Copy rows that are asked for to new blocks, if they are few: then the others go. Whether it was so."""
        table, most = self.table, self._disk.block_bytes
        if not table.rows:
            return False
        rows = self._asked_for(forgetting)
        count = len(rows)
        if 2 * count > table.rows or count * self._row_bytes > most // 2:
            return False
        columns = table.gather_all(tuple(range(len(table.types))), rows)
        if sum(column.nbytes for column in columns) > most:
            return False
        hashes = table.hashes(rows)
        self._clear()
        if count:
            parts = np.zeros(count, np.int32)
            if not table.reserve(parts, columns):
                raise AssertionError("rows do not fit into the memory that they just left")
            table.append(hashes, parts, columns, self._ticks(count))
        self._disk.events["right rows stayed"] += 1
        return True

    def _asked_for(self, forgetting: Forgetting) -> Int32:
        """Rows of the memtable that are asked for, as they came."""
        if self.sweep.begun and self.sweep.reached <= forgetting.bound and forgetting.exact:
            rows = self.sweep.kept()
            return rows[forgetting.near(self.table.gather(TIME, rows).to_numpy())]
        self.sweep.forget()
        return np.sort(self.order.whole(forgetting).rows)

    @property
    def may_be_untidy(self) -> bool:
        """Whether so many rows are in memory that most of them may be asked for no more."""
        return self.table.rows >= self._tidy_at

    def tidy(self, forgetting: Forgetting) -> None:
        """Let rows go that nobody asks for, if these are most; else look again when there are twice as many."""
        self.compact(forgetting)
        self._tidy_at = max(_PIECES * self._piece, 2 * self.table.rows)

    def write(self, forgetting: Forgetting) -> None:
        """Write rows that are asked for as a run; the others go."""
        self.sweep.forget()
        stretch, disk = self.order.whole(forgetting), self._disk
        if not len(stretch.rows):
            self._clear()
            return
        name, latest = disk.new_name(1), int(stretch.times.max())
        timed = write_timed_run(disk.store, name, self.table, stretch, self._row_bytes, disk.block_bytes)
        self._clear()
        self.runs.append(RightRun(timed, 0, latest))
        disk.wrote(timed)
        disk.count(1)
        disk.events["right rows written"] += 1

    @property
    def _row_bytes(self) -> int:
        return max(1, self.table.row_nbytes // max(1, self.table.rows))

    def _clear(self) -> None:
        self._forget()
        self.order.clear()
        self.sweep.clear()

    def forget_all(self) -> None:
        """No left row waits or comes: nothing is asked for any more."""
        self._clear()
        self._drop(self.runs)

    def expire(self, forgetting: Forgetting) -> None:
        """Runs whose rows are asked for no more go as a whole."""
        gone = [each for each in self.runs if forgetting.all_gone(each.latest)]
        self._disk.events["expired runs"] += len(gone)
        self._drop(gone)

    def _drop(self, gone: Sequence[RightRun]) -> None:
        if gone:
            self._disk.discard([name for each in gone for name in each.timed.names])
            self._disk.count(-len(gone))
            self.runs = [each for each in self.runs if each not in gone]

    # --- runs that become one ---

    def merge(self, count: int, forgetting: Forgetting) -> TimedMerge:
        """The last so many runs on their way to become one of what is still asked for."""
        runs, disk = [each.timed for each in self.runs[-count:]], self._disk
        return TimedMerge(disk.store, disk.new_name(1), runs, disk.page_bytes, forgetting.kept)

    def merged(self, merge: TimedMerge) -> None:
        """A merged run takes the place of those that it was made of."""
        assert merge.merged is not None
        some = self.runs[-len(merge.runs) :]
        let_go([each for run in merge.runs for each in run.both])
        self.runs[-len(some) :] = [RightRun(merge.merged, some[-1].level + 1, max(each.latest for each in some))]
        self._disk.discard([name for run in merge.runs for name in run.names])
        self._disk.count(1 - len(some))
        if not merge.merged.rows:
            self._drop(self.runs[-1:])

    # --- snapshots ---

    def check(self) -> None:
        """Assert the invariants."""
        self.order.check()
        self.sweep.check()
        assert not (self.sweep.begun and self.order.stretches), "memory is counted for one of them"

    @property
    def names(self) -> list[str]:
        """Of all segments."""
        return [name for each in self.runs for name in each.timed.names]

    def to_state(self) -> list[Any]:
        """For a snapshot."""
        return [[each.timed.name, each.level, each.latest] for each in self.runs]

    def load(self, state: list[Any]) -> None:
        """Take over a snapshot's runs."""
        types, open_run = self.table.types, self._disk.open_run
        self.runs = [RightRun(TimedRun.open(open_run, name, types), level, latest) for name, level, latest in state]
        self._disk.count(len(self.runs))
