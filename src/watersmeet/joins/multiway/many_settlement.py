"""Settling of several inputs: rows that owe meet all that the others have on disk, along the order of look-ups.

```
owing rows of r, by a    3 · 8 · 8 · 21 ...        merged with s by a: (r, s)
(r, s), by b             2 · 5 · 9 ...             merged with t by b: (r, s, t)
(r, s, t)                ─▶ results                a bounded number at each level; the deepest goes on first
```

**Epochs.** All memtables are flushed at once. Between two flushes is an epoch: rows of one epoch were in memory
together, those of two epochs never. When a row arrives, it meets all rows that are in memory: so a combination whose
rows are all of one epoch is found when the last of them comes, and no other is found then.

**Settled rows.** At any time some rows have settled, and the others owe. What holds before and after each settlement:
*every combination of settled rows has been found, once*. In the beginning there are none. A settlement takes all rows
that owe, as of when it begins, and lets them meet all that has settled and each other; then they have settled, too.
What it must find are the combinations with at least one row that owes, and none that came later, but for those that
were found in memory. It takes the inputs in turn, as drivers:

1. Rows of the driver that owe look for rows of all others: of the inputs *before* it among those that have settled, of
   those *behind* it among all. So a combination comes up once, from the first of its inputs whose row owes.
2. Combinations whose rows are all of one epoch are left out: they were found in memory. Of settled rows the epoch need
   not be known: a row that owes is of another. (Either it is in memory, and settled rows of its own epoch are, too; or
   on disk, and then all rows of its epoch owe, for rows are written unsettled only if none in memory has settled.)
3. Rows that come meanwhile have higher numbers in their memtables than those that the settlement knows of, and are left
   out; they owe until the next one. No memtable is flushed and no run is merged as long as a settlement is under way.

So what has settled is a number for each memtable, and an epoch for each set of runs that owes. Real values are compared
where hashes cannot prove that they are equal, before a combination counts.
(`tests/conformance/test_many_confluence.py` breaks each of these rules, and is noticed.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from watersmeet.core.arrays import Int32, Int64, Uint64
from watersmeet.engine.multi_arrival import DrivenTask
from watersmeet.engine.pipeline import Pipeline, Scope
from watersmeet.matching.many_rows import Mixed, SettlingRows
from watersmeet.policies.probing import Step

if TYPE_CHECKING:
    from watersmeet.joins.multiway.confluence import ManyConfluence


from watersmeet.matching.many_rows import ManyRows, run_number
from watersmeet.matching.owing import OwingRows
from watersmeet.runs.sorted_run import MergedRows


@dataclass(slots=True)
class _Taken:
    """A slice of rows that owe, of which some combinations may not have been handed out."""

    start: list[list[int]]
    """Where its rows begin, among all that owe."""
    length: int
    end: list[list[int]]
    found: int = 0
    """Combinations so far."""


class ManySettlement(DrivenTask):
    """A settlement at work, or one that has given way to arrivals.

    Combinations of several slices are handed out together: their rows lie anywhere in the runs, so that pages which are
    mapped for a few would serve many.
    """

    join: ManyConfluence

    def __init__(self, join: ManyConfluence, lows: Sequence[int], highs: Sequence[int], urgent: bool) -> None:
        """Rows of each memtable from `lows` up to `highs` owe; those before have settled."""
        super().__init__(join, 0)
        self.lows, self.highs = list(lows), list(highs)
        self.urgent = urgent
        self.began = join.clock
        """The tick up to which rows settle, or a later one; no row that came later has it."""
        self._mixed = Mixed(join.inputs, join.flushing.epoch)
        self._windows = join.settled_filter()
        self._owing: OwingInput | None = None
        self._searched: list[SettlingRows] = []
        self._taken: list[_Taken] = []
        """The slice at hand, and those before it of which not all has been handed out."""
        self._together = np.empty((len(join.inputs), 0), np.int64)
        self.waiting = 0
        """How many of these combinations were found and have not been put into the buffer."""

    @property
    def done(self) -> bool:
        """Whether all combinations were found, and handed out or put into the buffer."""
        return self.driver == len(self.highs)

    # --- work ---

    def work(self, fuel: int) -> int:
        """Fill the empty buffer; returns the fuel that took."""
        self.join.let_go()
        self._forget_taken()
        if self.pipeline is None or self.pipeline.done:
            self.begin(fuel)
            return max(1, self._taken[-1].length) if self.pipeline is not None else 1
        used = self.pipeline.work(self.join.meter)
        self.hand_over()
        return used

    def begin(self, fuel: int) -> None:
        """Take the next rows that owe."""
        self.pipeline = None
        if self.done:
            return
        if self._owing is None:
            self._begin_driver()
        assert self._owing is not None
        if self._owing.done or not self._can_match():
            if self.waiting:
                self.put_into_buffer()
                return
            self.driver += 1
            self._owing, self.steps, self._taken = None, [], []
            return
        self._take_slice(len(self.join.slice.rows))

    def hand_over(self) -> None:
        """Keep what was found until it is as much as the buffer is for."""
        assert self.pipeline is not None
        ids = self.pipeline.found
        count = ids.shape[1]
        if not count:
            return
        self._taken[-1].found += count
        passed = min(self._skip, count)
        self._skip -= passed
        ids = ids[:, passed:]
        self.join.note_settled(ids)
        room = self.join.sizing.combinations
        if self.waiting + ids.shape[1] > room:
            self.put_into_buffer()
        if not self._together.size:
            self._together = np.empty((len(ids), room), np.int64)
        self._together[:, self.waiting : self.waiting + ids.shape[1]] = ids
        self.waiting += ids.shape[1]

    def _forget_taken(self) -> None:
        """The buffer is empty: but for what waits here, all that was found was handed out."""
        later = sum(each.found for each in self._taken[1:])
        while len(self._taken) > 1 and later >= self.waiting:
            del self._taken[0]
            later -= self._taken[0].found

    def put_into_buffer(self) -> None:
        """Hand out what was found so far, however little it is; the buffer is empty."""
        self.join.combinations.fill(self._together[:, : self.waiting].copy())
        self.waiting = 0

    def _begin_driver(self, sorting: bool | None = None) -> None:
        """Rows of the next input look for the others', in one order of look-ups to the end."""
        join, driver = self.join, self.driver
        self.steps = self.steps or join.order.of(driver)
        attribute = join.spec.attribute_of(self.steps[0].edge, 1 - self.steps[0].side)
        self._owing = OwingInput(join.inputs[driver], attribute, self.lows[driver], self.highs[driver], sorting)
        self._searched = [
            SettlingRows(
                rows, self.rows_for(number), rows.disk.sets[: self.sets_for(number)], join.sizing.page_bytes,
                join.meter, join.pages,
            )
            for number, rows in enumerate(join.inputs)
        ]  # fmt: skip

    def rows_for(self, number: int) -> int:
        """How many of the first rows in memory of an input are looked up: those that have settled, or all."""
        return self.lows[number] if number < self.driver else self.highs[number]

    def sets_for(self, number: int) -> int:
        """And how many of its sets of runs."""
        disk = self.join.inputs[number].disk
        return len(disk.sets) - (disk.owing if number < self.driver else 0)

    def _can_match(self) -> bool:
        return not any(rows.is_empty for number, rows in enumerate(self._searched) if number != self.driver)

    def _take_slice(self, most: int) -> None:
        join = self.join
        assert self._owing is not None
        start = self._owing.place()
        hashes, ids = join.slice.hashes[:most], join.slice.rows[:most]
        length = self._owing.next_slice(hashes, ids)
        self._taken.append(_Taken(start, length, self._owing.place()))
        join.meter.probes += length
        scope = Scope.memory(len(self._searched))  # what is on disk is looked up together with what is in memory
        self.pipeline = Pipeline(
            join.codec, self._searched, self.driver, ids[:length].copy(), self.steps, scope,
            join.sizing.combinations, self, self._words(hashes[:length]), merging=True,
        )  # fmt: skip

    def _words(self, hashes: Uint64) -> dict[int, Int64]:
        """What is known of the slice by now: the hashes of the attribute that it is in the order of."""
        return {self.first_attribute(self.steps): hashes.view(np.int64).copy()}

    def holds(self, bound: Sequence[int], ids: Any, drivers: Int32) -> Any:
        """Which combinations were not found in memory, and are in all windows; None: all may be so far."""
        mixed = self._mixed.holds(bound, ids, drivers)
        if self._windows is None:
            return mixed
        if mixed is None:
            return self._windows.holds(bound, ids)
        places = np.flatnonzero(mixed)
        mixed[places] = self._windows.holds(bound, ids[:, places])
        return mixed

    def finish(self) -> None:
        """All combinations were handed out: the rows have settled."""
        self.join.settled_now(self)

    # --- snapshots ---

    def to_state(self) -> dict[str, Any]:
        """At work."""
        return self.state(self.join.combinations.waiting)

    def state(self, waiting: int) -> dict[str, Any]:
        """For a snapshot; so many combinations wait in the buffer that were found here.

        Whoever goes on begins with the first slice of which not all was handed out.
        """
        unhanded = self.waiting + waiting
        handed = -unhanded + self._skip
        taken = self._taken if self.pipeline is not None or unhanded else []
        at = len(taken)
        while at and (at == len(taken) or handed < 0):
            at -= 1
            handed += taken[at].found
        return {
            "kind": "settlement",
            "lows": self.lows,
            "highs": self.highs,
            "urgent": self.urgent,
            "driver": self.driver,
            "slice": taken[at].start if taken else [],
            "behind": taken[at].end if taken else [] if self._owing is None else self._owing.place(),
            "owing": None if self._owing is None else self._owing.to_state(),
            "length": taken[at].length if taken else 0,
            "place": {**self.place(), "handed": handed},
        }

    @classmethod
    def load(cls, join: ManyConfluence, state: dict[str, Any]) -> ManySettlement:
        """Go on where a snapshot was taken: what was handed out of the slice at hand is found again and left out."""
        task = cls(join, state["lows"], state["highs"], state["urgent"])
        task.driver = state["driver"]
        if state["owing"] is None:
            return task
        task.go_to(state["place"])
        places = [state["behind"], state["slice"]] if state["length"] else [state["behind"]]
        attribute = task.first_attribute(task.steps)
        order = join.tables[task.driver].orders[attribute]
        order.have_bits(max(place[1][0] for place in places))
        task._begin_driver(state["owing"]["sorting"])
        assert task._owing is not None
        task._owing.go_to(places[-1])
        if state["length"]:
            task._take_slice(state["length"])
            assert task._taken[-1].length == state["length"]
            task._owing.go_to(state["behind"])
        return task

    def first_attribute(self, steps: Sequence[Step]) -> int:
        """The attribute of the driver by which its rows are looked up first."""
        return self.join.spec.attribute_of(steps[0].edge, 1 - steps[0].side)


_ROW = 0xFFFFFFFF
_HASH_BYTES = 8


class OwingInput:
    """First the rows of runs that owe, all at once; then those in memory, from `low` up to `high`."""

    def __init__(self, rows: ManyRows, attribute: int, low: int, high: int, sorting: bool | None = None) -> None:
        sets = rows.disk.sets
        first = len(sets) - rows.disk.owing
        runs = [each.runs[attribute] for each in sets[first:]]
        self._runs = MergedRows(runs) if runs else None
        self._numbers = np.array([run_number(first + i, attribute, len(sets)) << 32 for i in range(len(runs))])
        self._resident, self._attribute = rows.resident, attribute
        self._memory = OwingRows(rows.table.orders[attribute], low, high, sorting)

    @property
    def done(self) -> bool:
        """Whether all have been passed."""
        return self._memory.done and (self._runs is None or self._runs.done)

    def next_slice(self, hashes: Uint64, ids: Int64) -> int:
        """Fill arrays with the next rows' hashes, and with what tells the rows; returns how many there are.

        Those of runs are in the order of their hashes, and so are those in memory, where both are there.
        """
        count = 0
        if self._runs is not None and not self._runs.done:
            count = self._runs.next_sorted(hashes, ids)
            ids[:count] = self._numbers[ids[:count] >> 32] + (ids[:count] & _ROW)
            self._resident.read_hashes(self._attribute, len(self._numbers), _HASH_BYTES * count)
        if count < len(ids):
            count += self._memory.next_slice(hashes[count:], ids[count:])
        return count

    def place(self) -> list[list[int]]:
        """Where it stands, to be gone to again."""
        return [[] if self._runs is None else self._runs.places(), self._memory.place()]

    def go_to(self, place: list[list[int]]) -> None:
        """Stand where it stood."""
        if self._runs is not None:
            self._runs.go_to(place[0])
        self._memory.go_to(place[1])

    def to_state(self) -> dict[str, Any]:
        """For a snapshot, but for the place."""
        return self._memory.to_state()
