"""Settling: rows that owe meet what the other input has on disk, by merging sorted hashes.

```
owing rows in the order of their hashes     3 · 8 · 8 · 21 · 34 ...       a slice at a time
hashes of a run of the other input          1 · 3 · 5 · 8 · 9 · 34 ...    read forward, skipping by leaps
pairs                                       (3, 3) · (8, 8) · (8, 8) · (34, 34)
```

**Who owes what.** Time is counted in ticks: each row that arrives takes one, and so does each flush. A row owes exactly
the runs of the other input that were written before it arrived, until it has settled:

- Two rows that were in memory together met there, when the later one came. Neither owes the other's run, for the later
  one came before the earlier one's run was written.
- Two rows that never were together: the later one came after the earlier one's run was written, and owes it. The
  earlier one owes the later one nothing. So their pair is found once, when the later one settles.

A settlement takes rows that owe and meets them with every run that they owe, as of when it begins; then they owe
nothing: runs that are written later are of no concern to them. What remains to be known is which rows have settled. In
memory that is one number: rows are numbered as they come, and all those before `settled` have. Which runs the others
owe is one number a run: `since`, the first row that came after it was written. Where rows are written before they have
settled, their run *owes*, and says since when: all its rows came after `owes_before`, and no run of the other input was
written while they came. (`tests/conformance/test_confluence.py` breaks each of these rules, and is noticed.)

What a row looks for is its own hash; or, where values need only be close, all keys from `low` to `high`, both of which
rise with the row's own key (`matching.reach`). Who owes what has nothing to do with it.

A settlement stops at any pair, and goes on where it stopped: rows may arrive meanwhile, for they have higher numbers.
If it has to end before it has met all runs (see `Settlement.cut_short`), each run that was met by then has its `since`
raised to the number behind the rows that met it: these owe the other runs as before, and those rows that came later owe
all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from watersmeet.core.arrays import Bool, Int32, Int64, Uint64
from watersmeet.core.cost import Meter
from watersmeet.kernels.merge import (
    FINER,
    bounds_in_runs,
    divide_sorted,
    hashes_in_runs,
    probe_sorted,
    scan_runs,
)
from watersmeet.kernels.sort_keys import ask_under_all
from watersmeet.matching.debts import RunEntry
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.matching.lookup import Condition
from watersmeet.matching.owing import Debtor, OwingRows, OwingRuns, Slice
from watersmeet.matching.reach import Reach
from watersmeet.matching.reading import HashWindow, Pages, Reading
from watersmeet.records.addressed import AddressedRows
from watersmeet.records.plan import TableRows
from watersmeet.runs.sorted_run import MergedRows, let_go, let_go_of, mapped_places
from watersmeet.runs.stretches import GatheringRoom
from watersmeet.tables.memtable import Memtable

_HASH_BYTES = 8
_SAMPLED = 64
_MANY_EQUAL = 8
"""Owing rows of one hash, from which on they meet equal rows of a run page by page: each page is read once for all."""
_LEAP_FROM = 24
"""Rows of a run for each row of a slice, from which on looking these up takes less than reading the run through."""
_ROWS_A_FUEL = 8
"""Hashes that are passed for as much fuel as a pair takes."""
_EVERYTHING = 1 << 62
_AROUND = 64 << 10
"""Bytes that the system maps around what is read."""
_LOOKED_AT = 4
"""Places of a run at which hashes are looked at to find one, each far from the others."""
_MOST_MAPPED = 4 << 20
"""Bytes of runs that may be mapped at once. They are the system's to take back, but count as the process's own."""


class Settlement:
    """Rows of one side on their way through the other input's runs.

    A run that is not much larger than the slice is read through, and its hashes are looked up in the slice, whatever
    the number of runs; in a larger one the slice's hashes are looked up, by leaps.

    Invariants: rows of the slice have met the runs before `_at`. Of the one at `_at`, they have met the rows before
    `_next` if it is read through; else those before `_next` of the slice have met it. Rows behind the slice have met
    no run.
    """

    def __init__(
        self,
        side: int,
        debtor: Debtor,
        entries: Sequence[RunEntry],
        buffer: Slice,
        page_bytes: int,
        pages: Pages | None = None,
        reach: Reach | None = None,
        condition: Callable[[AddressedRows, Int64], Condition] | None = None,
    ) -> None:
        """`condition` tells what rows, besides their hashes, must have to meet some of those that settle."""
        self.side = side
        self.debtor = debtor
        self._condition = condition
        self._holds: Condition | None = None
        self._entries = list(entries)
        self._all = MergedRows([entry.run for entry in entries])
        self._buffer = buffer
        self._page_hashes = max(1, page_bytes // _HASH_BYTES)
        self._reading = None if pages is None else Reading(pages)
        self._reach = reach
        self._asked = 1 if reach is None or reach.shifts is None else len(reach.shifts)
        """Under so many keys each row asks: so often it is in the slice."""
        self._runs = [entry.run for entry in entries]
        self._addresses = np.array([run.hashes().ctypes.data for run in self._runs], np.int64)
        self._counts = np.array([run.rows for run in self._runs], np.int64)
        self._row_bytes = max(1, sum(run.nbytes for run in self._runs) // max(1, int(self._counts.sum())))
        self._thresholds = np.array([debtor.threshold(entry) for entry in entries], np.int64)
        self._lows, self._highs = np.zeros_like(self._counts), self._counts.copy()
        """Which rows of each run lie within the slice at hand."""
        self._leaps: Bool = np.zeros(len(entries), np.bool_)
        """Which runs are so large beside the slice that it is looked up in them."""
        self._first, self._shift = np.uint64(0), 0
        self._window: HashWindow | None = None
        """Through which hashes of runs are seen; None: where they are mapped."""
        self._buckets: Int32 = np.empty(0, np.int32)
        self._marked: Uint64 = np.empty(0, np.uint64)
        self._crowds: dict[int, int] = {}
        self._crowd_starts: Int64 = np.empty(0, np.int64)
        self._length = 0
        self._stop = len(self._entries)
        """Before this one of the runs it ends."""
        self._at = self._stop
        self._next, self._link, self._near = 0, -1, -1
        self._slice_at = debtor.place()
        self._filled = [0, 0, -1]
        self._kept = 0
        self.found = 0
        """Pairs of the slice at hand so far."""
        self._owing_runs = [entry.run for entry in debtor.entries] if isinstance(debtor, OwingRuns) else []
        owing_rows = sum(run.rows for run in self._owing_runs)
        self._owing_row_bytes = sum(run.nbytes for run in self._owing_runs) // max(1, owing_rows)
        self._resident = 0
        self._mapped = mapped_places(self._runs)
        self._mapped_from = 0
        """Of runs before this one nothing is mapped."""
        self.most_mapped = _MOST_MAPPED
        """Bytes of runs that are mapped until all are let go."""

    def have_room(self, room: GatheringRoom) -> None:
        """Hashes of runs are read into a buffer, and so are rows that were found, or that owe: none stay mapped."""
        if self._reach is None and self._reading is None:
            self._window = HashWindow.over(self._runs, self._buffer.window)
        for rows in (self._all, self.debtor.rows):
            if isinstance(rows, MergedRows):
                rows.room = room
        self._owing_row_bytes = 0

    @property
    def done(self) -> bool:
        """Whether all pairs were found; some may still wait in the buffer."""
        return self._at == self._stop and (not self._stop or self.debtor.done)

    @property
    def between(self) -> Between:
        """Where the rows of the pairs in the buffer lie."""
        return Between(self.side, TableRows(self.debtor.rows, self._buffer.rows), self._all)

    @property
    def some_rows(self) -> Int64:
        """A few of the rows of the slice at hand, which stand for all of them; the last is the oldest."""
        rows = self._buffer.rows[: self._length]
        return np.append(rows[:: -(-len(rows) // _SAMPLED)], rows.min())

    def has_sorted(self, table: Memtable) -> bool:
        """Whether the slice at hand is all of a memtable."""
        debtor = self.debtor
        whole = self._asked == 1 and self._length == table.rows
        return isinstance(debtor, OwingRows) and debtor.is_all_of(table) and whole

    @property
    def ends_slice(self) -> bool:
        """Whether all pairs of the slice at hand were found."""
        return self._at == self._stop and self._length > 0

    @property
    def met(self) -> list[RunEntry] | None:
        """The runs that all rows have met when it was cut short; None: it was not."""
        return self._entries[: self._stop] if self._stop < len(self._entries) else None

    def cut_short(self) -> bool:
        """Meet no run after the one at hand, if that leaves each run met by all rows or by none; False if it does not.

        Rows that came since it began then need not wait for the rest of it, only to go through the same runs: all go
        together. What was done is not done again, as rows do not owe runs that they have met (`Debts.have_met`).
        """
        if not isinstance(self.debtor, OwingRows):
            return False
        if not self._length:
            self._at = self._stop = 0  # nothing was done yet
            return True
        if self._length < self._asked * (self.debtor.high - self.debtor.low):
            return False
        begun = self._next > 0 or self._link >= 0
        self._stop = min(self._stop, self._at + begun)
        return True

    def work(self, pairs: PairBuffer, fuel: int, meter: Meter) -> int:
        """Fill the empty buffer with pairs; returns the fuel that took."""
        if self._at == self._stop:
            self._slice_at = self.debtor.place()
            self._length = self._asked * self._next_slice()
            self._buffer.owner = self
            self._prepare_slice()
            if self._reading is not None:
                self.debtor.count_slice(self._length, self._reading.pages, meter)
            self._begin_run(0 if self._length else self._stop)
            self.found = 0
            meter.probes += self._length
            return max(1, self._length)
        if self._buffer.owner is not self:
            self._take_slice_again()
        self._filled = [self._at, self._next, self._link]
        pairs.first = pairs.count = used = 0
        while used < fuel and pairs.count < pairs.room and self._at < self._stop:
            if self._leaps[self._at]:
                used += self._leap(pairs, min(fuel - used, self._rows_at_once()), meter)
            else:
                used += self._scan(pairs, fuel - used, meter)
            if self._resident > self.most_mapped:
                break
        if self._holds is not None and pairs.count:
            pairs.filter(self._holds.holds(pairs.probes[: pairs.count], self._all, pairs.rows[: pairs.count]))
        self._kept = pairs.count
        self.found += pairs.count
        # Rows that settle may lie in runs, too; with each that is read the system maps what lies around it.
        self._resident += min(pairs.count * _AROUND, self._length * self._owing_row_bytes)
        return max(1, used)

    def _next_slice(self) -> int:
        """Fill the buffer with the next rows, under each key that they ask under; returns how many rows they are."""
        room = len(self._buffer.hashes) // self._asked
        count = self.debtor.next_slice(self._buffer.hashes[:room], self._buffer.rows[:room])
        if self._window is not None:
            let_go(self._owing_runs)
        return count

    def _begin_run(self, number: int) -> None:
        self._at = number
        self._next, self._link, self._near = 0, -1, -1
        if self._reading is not None and number < self._stop:
            self._reading.begin_run(self._entries[number].run.rows)

    def _prepare_slice(self) -> None:
        """What is to be known of the slice before its rows meet runs."""
        self._find_crowds()
        if self._reach is not None and self._reach.shifts is not None:
            ask_under_all(self._buffer.hashes, self._buffer.rows, self._length // self._asked, self._reach.shifts)
        if not self._length or not self._entries:
            return
        if self._reach is not None:
            self._buffer.find_bounds(self._reach, self._length)
        least = self._buffer.low[0]
        most = max(least, self._buffer.high[self._length - 1])  # all ranges may be empty
        if self._condition is not None:
            self._holds = self._condition(self.debtor.rows, self._buffer.rows[: self._length])
        self.debtor.mark(self._buffer.rows[: self._length], self._buffer.marks[: self._length])
        self._first = least
        self._lows[:], self._highs[:] = 0, self._counts
        self._make_sure_of(least, most)
        if self._window is not None:
            self._window.go_to(least, most)
            self._leaps = self._window.share_of(least, most) > _LEAP_FROM * self._length
            self._find_bounds(least, most, np.flatnonzero(self._leaps))
        else:
            self._find_bounds(least, most, np.arange(len(self._runs)))
            self._leaps = self._highs - self._lows > _LEAP_FROM * self._length
        if self._reading is not None and self._reach is None:
            self._leaps[:] = True  # pages are counted by the look-ups that want them
        span = int(most) - int(least)
        self._shift = max(0, span.bit_length() - self._length.bit_length())
        self._buckets = self._buffer.starts[: (span >> self._shift) + 2]
        self._marked = self._buffer.marked[: (span >> max(0, self._shift - FINER) >> 6) + 1]
        low, high = self._looked_for
        divide_sorted(low, high, self._first, self._shift, self._buckets, self._marked)

    @property
    def _looked_for(self) -> tuple[Uint64, Uint64]:
        """From which key on and up to which the rows of the slice look."""
        return self._buffer.low[: self._length], self._buffer.high[: self._length]

    def _make_sure_of(self, least: np.uint64, most: np.uint64) -> None:
        """What runs have between two hashes is what was written; that much is known of where it is."""
        if self._all.trusted:
            return
        for number, run in enumerate(self._runs):
            if not run.trusted:
                self._lows[number], self._highs[number] = run.region(int(least), int(most))
                let_go([run])

    def _find_bounds(self, least: np.uint64, most: np.uint64, runs: Int64) -> None:
        """Which rows of some runs lie within the slice; a few runs at a time, as to look at one maps what is around."""
        step = max(1, self.most_mapped // (_LOOKED_AT * _AROUND))
        for start in range(0, len(runs), step):
            some = runs[start : start + step]
            lows, highs = self._lows[some], self._highs[some]
            bounds_in_runs(self._addresses[some], least, most, lows, highs)
            self._lows[some], self._highs[some] = lows, highs
            if len(runs) > step and len(self._mapped):
                let_go_of(self._mapped[some])

    def _find_crowds(self) -> None:
        """Where many rows of the slice have one hash: the first of them, and how many there are.

        They meet a run page by page where pages are counted; elsewhere a page that was read is near anyway.
        """
        if self._reading is None or self._reach is not None:
            return
        hashes = self._buffer.hashes[: self._length]
        starts = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]])[: self._length])
        sizes = np.diff(starts, append=self._length)
        many = sizes >= _MANY_EQUAL
        self._crowds = dict(zip(starts[many].tolist(), sizes[many].tolist(), strict=True))
        self._crowd_starts = starts[many]

    def _take_slice_again(self) -> None:
        """Somebody else has used the buffer since: the same rows once more, and no more of them."""
        behind = self.debtor.place()
        self.debtor.go_to(self._slice_at)
        count = self._asked * self._next_slice()
        assert count >= self._length
        self.debtor.go_to(behind)
        self._buffer.owner = self
        self._prepare_slice()

    def _rows_at_once(self) -> int:
        """How many rows of the slice may go on: those for which about as much of the run is passed as may be mapped."""
        passed = _HASH_BYTES * int(self._highs[self._at] - self._lows[self._at])
        return max(1, self._length * self.most_mapped // max(1, passed))

    def _scan(self, pairs: PairBuffer, fuel: int, meter: Meter) -> int:
        """Runs are read through, from the one at hand on; returns the fuel that took."""
        leaps = np.flatnonzero(self._leaps[self._at : self._stop])
        stop = self._at + int(leaps[0]) if len(leaps) else self._stop
        most = max(1, _ROWS_A_FUEL * fuel)
        window = self._window
        if window is None:
            stop = min(stop, self._at + (1 if self._reading is not None else max(1, self.most_mapped // _AROUND)))
            most = max(1, min(most, self.most_mapped // (2 * _HASH_BYTES)))
            where = self._addresses, self._lows, self._highs
        else:
            window.show(self._at, self._next, stop)
            # It may have more runs than are to be met by now: those that it had when the settlement was cut short.
            stop, where = min(stop, window.stop), (window.addresses, window.lows, window.highs)
        run, start = self._at, max(self._next, int(self._lows[self._at]))
        before, room = pairs.count, pairs.room
        cursor = np.array([self._at, self._next, self._link], np.int64)
        runs = *where, self._thresholds, cursor, stop, most
        out = pairs.probes[:room], pairs.rows[:room], before
        low, high = self._looked_for
        pairs.count, passed = scan_runs(
            low, high, self._buffer.marks, self._buckets, self._marked, self._first, self._shift, *runs, *out
        )
        if self._reach is not None:
            self._keep_close(pairs, before)
        self._at, self._next, self._link = cursor.tolist()
        if window is not None and self._at == stop == window.stop and window.rest >= 0:
            self._at, self._next = stop - 1, window.rest
        found = pairs.count - before
        meter.comparisons += passed
        if self._reading is None:
            meter.pages_read += 1 + passed // self._page_hashes
        else:
            self._count_scan(self._reading, run, start, pairs, before, meter)
        if window is None:
            self._resident += passed * _HASH_BYTES + (self._at - run + 1) * _AROUND
        return max(1, passed // _ROWS_A_FUEL) + found

    def _count_scan(self, reading: Reading, run: int, start: int, pairs: PairBuffer, before: int, meter: Meter) -> None:
        """Count the pages of a run that was read from some row on: of rows, those of what was found."""
        stop = self._next if self._at == run else int(self._highs[run])
        reading.read_hashes(start, max(start, stop - 1), self._length, meter)
        meter.comparisons += pairs.count - before
        if pairs.count > before:
            rows = pairs.rows[before : pairs.count] & 0xFFFFFFFF
            reading.read_rows(rows, meter)
            if isinstance(self.debtor, OwingRuns):
                owing = self._buffer.rows[pairs.probes[before : pairs.count]]
                self.debtor.count_rows(owing, reading.pages, meter)
        if self._at != run and self._at < self._stop:
            reading.begin_run(self._entries[self._at].run.rows)

    def _leap(self, pairs: PairBuffer, fuel: int, meter: Meter) -> int:
        """The slice is looked up in the run at hand; returns the fuel that took."""
        if self._near < 0:
            self._near = int(np.searchsorted(self._hashes_at_hand, self._buffer.low[self._next]))
        start, near, before = self._next, self._near, pairs.count
        stop = min(self._length, start + fuel)
        crowd = self._crowds.get(start, 0)
        visited = self._meet_crowd(crowd, pairs) if crowd else self._meet(stop, pairs)
        found = pairs.count - before
        passed = self._next - start
        meter.probes += passed
        meter.comparisons += visited
        if self._reading is not None:
            self._reading.read_hashes(near, self._near, max(1, passed), meter)
        else:
            # Dense merges read all pages of hashes that they pass, sparse ones a page for each row.
            meter.pages_read += min(max(1, passed), 1 + (self._near - near) // self._page_hashes)
        if found:
            self._take(pairs, before, meter)
        self._resident += min(passed * _AROUND, (self._near - near) * _HASH_BYTES + _AROUND)
        if self._next == self._length:
            self._begin_run(self._at + 1)
        return max(1, passed) + found

    @property
    def _hashes_at_hand(self) -> Uint64:
        """Of the run at hand, up to where the slice ends: what lies behind may not have been checked."""
        return self._runs[self._at].hashes()[: int(self._highs[self._at])]

    def _meet(self, stop: int, pairs: PairBuffer) -> int:
        """Rows of the slice meet the run one after the other; returns how many rows were visited."""
        if len(self._crowd_starts):
            crowd = int(np.searchsorted(self._crowd_starts, self._next))
            if crowd < len(self._crowd_starts):
                stop = min(stop, int(self._crowd_starts[crowd]))
        room = pairs.room
        pairs.count, self._next, self._link, self._near, visited = probe_sorted(
            self._buffer.low[: self._length],
            self._buffer.high[: self._length],
            self._next,
            stop,
            self._link,
            self._hashes_at_hand,
            self._near,
            pairs.probes[:room],
            pairs.rows[:room],
            pairs.count,
        )
        return int(visited)

    def _meet_crowd(self, crowd: int, pairs: PairBuffer) -> int:
        """Many rows of one hash meet the run's rows of that hash, each of those all of them before the next.

        So each page of the run is read once, however many they are. `_link` is the number of the next pair.
        """
        hashes, wanted = self._hashes_at_hand, self._buffer.hashes[self._next]
        self._near += int(np.searchsorted(hashes[self._near :], wanted))
        equal = int(np.searchsorted(hashes[self._near :], wanted, side="right"))
        number, before = max(0, self._link), pairs.count
        count = min(crowd * equal - number, pairs.room - before)
        numbers = np.arange(number, number + count)
        pairs.probes[before : before + count] = self._next + numbers % crowd
        pairs.rows[before : before + count] = self._near + numbers // crowd
        pairs.count += count
        self._link = number + count
        if self._link == crowd * equal:
            self._next, self._link, self._near = self._next + crowd, -1, self._near + equal
        return max(1, count)

    def _take(self, pairs: PairBuffer, before: int, meter: Meter) -> None:
        """Of the pairs that were found, keep those that are owed; their rows are read."""
        pairs.filter(self._buffer.marks[pairs.probes[before : pairs.count]] > self._thresholds[self._at], before)
        pairs.rows[before : pairs.count] += self._at << 32
        self._keep_close(pairs, before)
        if self._reading is not None and pairs.count > before:
            self._reading.read_rows(pairs.rows[before : pairs.count] & 0xFFFFFFFF, meter)
            if isinstance(self.debtor, OwingRuns):
                rows = self._buffer.rows[pairs.probes[before : pairs.count]]
                self.debtor.count_rows(rows, self._reading.pages, meter)

    def _keep_close(self, pairs: PairBuffer, before: int) -> None:
        """Of the pairs that were found within ranges, keep those that may truly match."""
        if self._reach is None or pairs.count == before or not self._reach.decides:
            return
        found = np.empty(pairs.count - before, np.uint64)
        hashes_in_runs(self._addresses, pairs.rows[before : pairs.count], found)
        close = self._reach.close(self._buffer.hashes[pairs.probes[before : pairs.count]], found)
        pairs.filter(close, before)

    def let_go(self, all_of_it: bool = False) -> None:
        """Let mapped pages of runs leave memory, once they are many; no pair may wait in the buffer."""
        if not all_of_it and self._resident <= self.most_mapped:
            return
        self._resident = 0
        if all_of_it or self._at < self._mapped_from:
            self._mapped_from = 0
        let_go_of(self._mapped[self._mapped_from :] if all_of_it else self._mapped[self._mapped_from : self._at + 1])
        self._mapped_from = self._at
        let_go(self._owing_runs)

    def to_state(self, pairs: PairBuffer | None) -> dict[str, Any]:
        """For a snapshot; with `pairs` if those in the buffer are this settlement's."""
        place = [self._at, self._next, self._link]
        handed_out = None
        if pairs is not None and pairs.waiting:
            place, handed_out = self._filled, self._kept - pairs.waiting
        return {
            **self.debtor.to_state(),
            "side": self.side,
            "slice": self._slice_at,
            "behind": self.debtor.place(),
            "length": self._length,
            "runs": [entry.run.name for entry in self._entries],
            "stop": self._stop,
            "place": place,
            "handed_out": handed_out,
        }

    def load(self, state: dict[str, Any], pairs: PairBuffer) -> None:
        """Go on where a snapshot was taken; pairs that waited in the buffer wait there again."""
        self._slice_at, self._length, self._stop = state["slice"], state["length"], state["stop"]
        self.debtor.go_to(state["behind"])
        self._at, self._next, self._link = state["place"]
        if state["handed_out"] is not None:
            self.work(pairs, _EVERYTHING, Meter())
            pairs.first = state["handed_out"]
