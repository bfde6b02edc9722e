"""Was this emitted already? The one place that decides, for every join whose rows may meet in more than one way.

Every row received and every flush, disk scan and merge takes the next tick of a logical clock, so no two things happen
at once. A row is in memory from its arrival tick to its departure tick (FOREVER if it has not left), and each time that
memory meets the disk, or runs meet runs, is remembered. Which of these times two rows have shared is told by a few
rules, each a function of its own, which a test breaks and is noticed (`tests/conformance/*_mutants.py`,
`test_multiway.py`). What is remembered differs by what leaves memory:

| history | of joins | its rules |
|---|---|---|
| `Ledger` | of two inputs, whose rows leave memory one by one | together, visited, merged |
| `FlushLedger` | whose rows meet right before they leave together | together means left together |
| `VisitLedger` | of several inputs | together, visited |
| `Encounters` | by windows, whose blocks leave memory, and may come back as copies | in recent, in frequent |
| `Meetings` | by windows, whose partitions leave memory whole | together, md times, lastDD |

Confluence needs no history: what is owed is a number for each run (`matching.debts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.errors import BudgetError
from watersmeet.kernels.combinations import met_in_memory, met_on_visit
from watersmeet.kernels.history import covered, within, within_stays
from watersmeet.matching.found_combinations import InputRows
from watersmeet.memory import Reservation
from watersmeet.runs.presence import FOREVER, Stay, Stretch

_FIELDS = 7
_RECTANGLE_BYTES = 40


class _History:
    """Ticks at which a memory partition was joined with stretches of the other side's disk."""

    def __init__(self) -> None:
        self.count = 0
        self._entries = np.empty((_FIELDS, 0), np.int64)

    def try_reserve(self, count: int, claim: Reservation) -> bool:
        """Have room for so many more entries, doubling it where there is none."""
        room = self._entries.shape[1]
        if self.count + count <= room:
            return True
        more = max(4, room, count)
        if not claim.try_grow(more * self._entries.itemsize * _FIELDS):
            return False
        self._entries = np.concatenate([self._entries, np.empty((_FIELDS, more), np.int64)], axis=1)
        return True

    def add(self, entry: Sequence[int]) -> None:
        self._entries[:, self.count] = entry
        self.count += 1

    def forget_within(self, stretch: Stretch, after: int) -> None:
        """Drop the entries after a tick whose stretches lie within another; their room stays."""
        entries = self.entries
        tick, low, high, since_hash, since, until_hash, until = entries
        within = (tick > after) & (low >= stretch.low) & (high <= stretch.high)
        if not within.any():
            return
        begins, ends = stretch.since, stretch.until
        within &= (since_hash > begins[0]) | ((since_hash == begins[0]) & (since >= begins[1]))
        within &= (until_hash < ends[0]) | ((until_hash == ends[0]) & (until <= ends[1]))
        kept = entries[:, ~within]
        self.count = kept.shape[1]
        self._entries[:, : self.count] = kept

    @property
    def entries(self) -> Int64:
        return self._entries[:, : self.count]

    def drop(self, claim: Reservation) -> None:
        claim.shrink(self._entries.nbytes)
        self.count, self._entries = 0, np.empty((_FIELDS, 0), np.int64)


class Ledger:
    """The meetings of two sides, by partition. On disk, the rows of one side and partition are numbered in the order in
    which they were flushed: their ordinals.

    ```
    ticks    ──────────────────────────────────────────────▶
    left a      ├──── in memory ────┤ on disk ···············
    right b              ├─ in memory ─┤ on disk ············       a met b: their stays overlap
    right c                            ├── in memory ──────▶        a and c never met
                                            ▲ right memory scanned left disk up to a's ordinal: now a met c
    ```

    A pair has been emitted exactly if its rows met in one of three ways:

    1. *together*: both were in memory at one tick;
    2. *visited*: one was in memory when its partition was joined with a stretch of the other's disk that holds the
       other;
    3. *merged*: both were on disk, within stretches that were joined with each other.

    Where runs are sorted and merged, a row keeps its ordinal, but rows no longer lie on disk in that order: they stand
    in the order of (hash, ordinal) within their run. A visit that ends amid a merged run therefore covers the run's
    ordinals as far as a certain (hash, ordinal). Merging does not change that order, so what was covered can be told
    for ever.
    """

    def __init__(self, partitions: int, claim: Reservation) -> None:
        self._claim = claim
        self._visits = [[_History() for _ in range(partitions)] for _ in (0, 1)]
        self._merged = [np.empty((0, 4), np.int64) for _ in range(partitions)]
        self._reserved = 0

    @property
    def nbytes(self) -> int:
        """What the history takes, with what is set aside for it."""
        return self._claim.held

    def try_reserve(self, side: int, part: int, count: int = 1) -> bool:
        """Claim memory for more visits; without it no visit may begin."""
        return self._visits[side][part].try_reserve(count, self._claim)

    def record_visit(self, side: int, part: int, tick: int, stretch: Stretch, since: int = FOREVER) -> None:
        """Memory of `side` at `tick` has now met a stretch of the other side's disk.

        No row has left that memory after the tick `since`, so earlier visits after it to places within the stretch need
        not be remembered: whoever went then went now, too.
        """
        if stretch.high > stretch.low:
            self._visits[side][part].forget_within(stretch, since)
            self._visits[side][part].add((tick, stretch.low, stretch.high, *stretch.since, *stretch.until))

    def try_reserve_merge(self) -> bool:
        """Claim memory for one more merge; without it none may begin."""
        if not self._reserved and self._claim.try_grow(_RECTANGLE_BYTES):
            self._reserved = 1
        return self._reserved > 0

    def record_merge(self, part: int, left: tuple[int, int], right: tuple[int, int]) -> None:
        """These ordinals [low, high) of the left disk have now met those of the right disk."""
        assert self._reserved
        before = self._merged[part]
        contained = (left[0] <= before[:, 0]) & (before[:, 1] <= left[1])
        contained &= (right[0] <= before[:, 2]) & (before[:, 3] <= right[1])
        self._merged[part] = np.vstack([before[~contained], np.array([[*left, *right]], np.int64)])
        self._reserved = 0
        self._claim.shrink(_RECTANGLE_BYTES * int(np.count_nonzero(contained)))

    def all_merged(self, part: int, left_rows: int, right_rows: int) -> bool:
        """Whether every row among the first so many ordinals of each side has met every one of the other's."""
        held = self._merged[part]
        whole = (held[:, 0] == 0) & (held[:, 1] >= left_rows) & (held[:, 2] == 0) & (held[:, 3] >= right_rows)
        return not left_rows or not right_rows or bool(whole.any())

    def drop(self, part: int) -> None:
        """Forget a partition."""
        for side in (0, 1):
            self._visits[side][part].drop(self._claim)
        self._claim.shrink(_RECTANGLE_BYTES * len(self._merged[part]))
        self._merged[part] = np.empty((0, 4), np.int64)

    def fresh(self, part: int, left: Stay, right: Stay) -> Bool:
        """Which pairs have not been emitted."""
        met = self.together(left, right)
        met |= self.visited(self._visits[0][part].entries, left, right)
        met |= self.visited(self._visits[1][part].entries, right, left)
        met |= self.merged(self._merged[part], left, right)
        return ~met

    @staticmethod
    def together(left: Stay, right: Stay) -> Bool:
        """Both were in memory at one tick."""
        return (left.arrived < right.departed) & (right.arrived < left.departed)

    @staticmethod
    def visited(visits: Int64, memory: Stay, disk: Stay) -> Bool:
        """A visit fell into the stay of the row in memory, and its stretch of disk holds the other."""
        met = np.zeros(len(memory.arrived), np.bool_)
        if visits.shape[1]:
            hashes = np.zeros(len(met), np.int64) if disk.hash is None else disk.hash
            covered(visits, memory.arrived, memory.departed, disk.ordinal, hashes, met)
        return met

    @staticmethod
    def merged(rectangles: Int64, left: Stay, right: Stay) -> Bool:
        """Both lie on disk within stretches that were joined with each other."""
        met = np.zeros(len(left.arrived), np.bool_)
        if len(rectangles):
            within(rectangles, left.ordinal, right.ordinal, met)
        return met

    def to_state(self) -> dict[str, Any]:
        """The ledger for a snapshot."""
        return {
            "visits": [[history.entries.tolist() for history in side] for side in self._visits],
            "merged": [rectangles.tolist() for rectangles in self._merged],
            "reserved": self._reserved,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over a snapshot's ledger."""
        for side, histories in enumerate(state["visits"]):
            for part, entries in enumerate(histories):
                for entry in zip(*entries, strict=True):
                    if not self.try_reserve(side, part):
                        raise _does_not_fit()
                    self._visits[side][part].add(entry)
        for part, rectangles in enumerate(state["merged"]):
            if not self._claim.try_grow(_RECTANGLE_BYTES * len(rectangles)):
                raise _does_not_fit()
            self._merged[part] = np.array(rectangles, np.int64).reshape(-1, 4)
        if state["reserved"] and not self.try_reserve_merge():
            raise _does_not_fit()

    def check(self, clock: int, disk_rows: Sequence[Sequence[int]]) -> None:
        """Assert that nothing is recorded of the future or beyond what is on disk."""
        for side in (0, 1):
            for part, history in enumerate(self._visits[side]):
                if not history.count:
                    continue
                ticks, low, high = history.entries[:3]
                assert (np.diff(ticks) >= 0).all() and (ticks <= clock).all()
                assert (low >= 0).all() and (low < high).all() and (high <= disk_rows[1 - side][part]).all()
        for part, rectangles in enumerate(self._merged):
            if not len(rectangles):
                continue
            assert (rectangles[:, 0] < rectangles[:, 1]).all() and (rectangles[:, 2] < rectangles[:, 3]).all()
            assert (rectangles[:, 1] <= disk_rows[0][part]).all() and (rectangles[:, 3] <= disk_rows[1][part]).all()


class FlushLedger(Ledger):
    """Of a join whose rows do not meet as they arrive, but all at once, right before they leave memory together."""

    @staticmethod
    def together(left: Stay, right: Stay) -> Bool:
        """Both left memory at one tick: their runs have the same number."""
        return np.equal(left.departed, right.departed)


def _does_not_fit() -> BudgetError:
    return BudgetError("the snapshot's history does not fit; allow as much memory as when it was taken")


_VISIT_BYTES = 24


class VisitLedger:
    """The visits of each input's disk to the memory of all others. A combination has been emitted exactly if

    1. *together*: all its rows were in memory at one tick, or
    2. *visited*: one input's row was brought from disk at a tick at which the rows of all others were in memory.
    """

    def __init__(self, inputs: int, claim: Reservation) -> None:
        self._visits = [np.empty((0, 3), np.int64) for _ in range(inputs)]
        """(tick, first ordinal, first ordinal beyond)."""
        self._claim = claim

    def try_reserve(self) -> bool:
        """Claim memory for one more visit; without it none may begin."""
        return self._claim.try_grow(_VISIT_BYTES)

    def record(self, number: int, tick: int, low: int, high: int) -> None:
        """Rows of these ordinals have now met all that was in memory at a tick; memory was reserved for it."""
        before = self._visits[number]
        if len(before) and before[-1, 0] == tick and before[-1, 2] == low:
            before[-1, 2] = high
        elif high > low:
            self._visits[number] = np.vstack([before, np.array([[tick, low, high]], np.int64)])
            return
        self._claim.shrink(_VISIT_BYTES)

    def fresh(self, inputs: Sequence[InputRows], ids: Int64) -> Bool:
        """Which combinations have not been emitted."""
        arrived, departed, ordinals = _stays(inputs, ids)
        met = together(arrived, departed)
        for number, visits in enumerate(self._visits):
            if len(visits):
                met = visited(visits, number, arrived, departed, ordinals[number], met)
        return ~met

    def to_state(self) -> list[Any]:
        """The visits for a snapshot."""
        return [visits.tolist() for visits in self._visits]

    def load(self, state: list[Any]) -> None:
        """Take over a snapshot's visits."""
        for number, visits in enumerate(state):
            if not self._claim.try_grow(_VISIT_BYTES * len(visits)):
                raise BudgetError("the snapshot's visits do not fit; allow as much memory as when it was taken")
            self._visits[number] = np.array(visits, np.int64).reshape(-1, 3)

    def check(self, clock: int, rows: Sequence[int]) -> None:
        """Assert that nothing is recorded of the future or beyond what is on disk."""
        for visits, count in zip(self._visits, rows, strict=True):
            assert (visits[:, 0] <= clock).all() and (np.diff(visits[:, 0]) >= 0).all()
            assert (visits[:, 1] < visits[:, 2]).all() and (visits[:, 2] <= count).all()


def apart_in_memory(inputs: Sequence[InputRows], ids: Int64) -> Bool:
    """Which combinations have not been emitted, where no input's disk makes visits."""
    arrived, departed, _ = _stays(inputs, ids)
    return ~together(arrived, departed)


def _stays(inputs: Sequence[InputRows], ids: Int64) -> tuple[Int64, Int64, Int64]:
    """When the rows of combinations arrived in memory and left it, and their ordinals on disk, by input."""
    stays = [rows.stays(mine) for rows, mine in zip(inputs, ids, strict=True)]
    arrived, departed, ordinals = (np.stack([stay[i] for stay in stays]) for i in range(3))
    return arrived, departed, ordinals


def together(arrived: Int64, departed: Int64) -> Bool:
    """All rows of a combination were in memory at one tick; `arrived` and `departed` are by input and combination."""
    met = np.zeros(arrived.shape[1], np.bool_)
    met_in_memory(arrived, departed, met)
    return met


def visited(visits: Int64, number: int, arrived: Int64, departed: Int64, ordinals: Int64, met: Bool) -> Bool:
    """A visit of one input's disk brought its row, by its ordinal there, when the rows of all others were in memory; or
    the combination had been met before.
    """
    met_on_visit(arrived, departed, ordinals, number, visits, met)
    return met


_STAY_BYTES = 3 * 8


class Encounters:
    """Which rows of one side, by their arrivals, have met which blocks of the other, by their numbers.

    Of two rows, the one that arrived later finds the other: in memory as it arrives, or on disk when it is the turn of
    the disk. So all there is to know is where a block was when the later row arrived, and ticks tell that: every block
    takes one, too, that leaves the recent rows, or comes to the frequent ones or leaves them.

    ```
    ticks      ─────────────────────────────────────────────────────────▶
    block b      ├── recent ──┤                ├── frequent ──┤
    rows                   1        2                  3         4
                           met b    b is on disk       met b     b is on disk
    ```

    The recent rule is the thesis' minBN: a row's minBN is the number of the oldest block of the other side that it
    found in memory, and since blocks leave in their order, a block has a smaller number exactly if it had left by then.
    The frequent rule is its evicted list, with the ticks at which blocks came and went instead of a list that is
    emptied after each scan: so blocks may come and go at any time, also while a scan is set aside for arrivals.
    """

    def __init__(self, claim: Reservation) -> None:
        self._claim = claim
        self._ended: list[tuple[int, int, int]] = []
        """(block, since, until): when blocks were among the frequent ones."""
        self._since: dict[int, int] = {}
        """Since when blocks are among the frequent ones."""
        self._arrays: Int64 | None = None

    def __len__(self) -> int:
        return len(self._ended) + len(self._since)

    @property
    def _stays(self) -> list[tuple[int, int, int]]:
        return [*self._ended, *((block, since, FOREVER) for block, since in self._since.items())]

    @property
    def stays(self) -> Int64:
        """As three rows of numbers, the smallest block first."""
        if self._arrays is None:
            self._arrays = np.array(sorted(self._stays), np.int64).reshape(-1, 3).T.copy()
        return self._arrays

    def try_come(self, block: int, tick: int) -> bool:
        """A block is among the frequent ones from now on; False, and it is not, if there is no memory to note that."""
        if not self._claim.try_grow(_STAY_BYTES):
            return False
        assert block not in self._since
        self._since[block] = tick
        self._arrays = None
        return True

    def go(self, block: int, tick: int) -> None:
        """A block is not among the frequent ones any more."""
        self._ended.append((block, self._since.pop(block), tick))
        self._arrays = None

    def forget(self, until: int) -> None:
        """All rows up to a tick have met all there is: stays that ended by then say nothing any more."""
        kept = [stay for stay in self._ended if stay[2] > until]
        if len(kept) < len(self._ended):
            self._claim.shrink(_STAY_BYTES * (len(self._ended) - len(kept)))
            self._ended, self._arrays = kept, None

    def fresh(self, blocks: Int64, left: Int64, arrived: Int64) -> Bool:
        """Which pairs of a block, which left memory at a tick, and a row that arrived at a tick have not met."""
        met = self.in_recent(left, arrived)
        met |= self.in_frequent(self.stays, blocks, arrived)
        return ~met

    @staticmethod
    def in_recent(left: Int64, arrived: Int64) -> Bool:
        """The block was still among the recent ones when the row arrived: its number is not below the row's minBN."""
        return left > arrived

    @staticmethod
    def in_frequent(stays: Int64, blocks: Int64, arrived: Int64) -> Bool:
        """The block was among the frequent ones when the row arrived, whether it was evicted since or not."""
        met = np.zeros(len(blocks), np.bool_)
        if stays.shape[1]:
            within_stays(stays, blocks, arrived, met)
        return met

    def to_state(self) -> list[list[int]]:
        """For a snapshot."""
        return [list(stay) for stay in self._stays]

    def load(self, state: list[list[int]]) -> None:
        """Take over a snapshot's state."""
        self._claim.grow(_STAY_BYTES * len(state))
        self._ended = [(block, since, until) for block, since, until in state if until < FOREVER]
        self._since = {block: since for block, since, until in state if until == FOREVER}
        self._arrays = None

    def check(self, clock: int) -> None:
        """Assert the invariants."""
        for _, since, until in self._stays:
            assert since <= clock and since < until and (until <= clock or until == FOREVER)
        assert self._claim.held == _STAY_BYTES * len(self)


STAY_BYTES = 16


class Meetings:
    """The md- and dd-tasks of all partitions.

    Of two rows that did not meet in memory, one came after the other had left: call it the later row. It can meet the
    run of the other one while it is in memory itself (an md-task), or when it lies in a run of its own (a dd-task).

    ```
    ticks      ───────────────────────────────────────────────────────────────────▶
    run r        ├ in memory ┤ on disk ··············································
    later rows                    a ├───── in memory ─────┤ on disk ·················
                                       b ├──── in memory ───┤ on disk ·················
    tasks                              ▲ md: a meets r                  ▲ dd: b meets r
    ```

    - *together*: a run that left memory after a row had come met it there.
    - *md times*: each side and partition has the ticks of its md-tasks. A row that was in memory at one of them has met
      all that the other side's disk held then, and everything else was in memory with it: so of all md-tasks of a stay
      in memory only the last one counts, and it is kept with the tick at which the stay ended.
    - *lastDD*: a dd-task lets all runs of a partition meet that left memory before it began. A run that left before the
      last one has, as the later one, nothing to look for any more: what it could meet had left before it.
    """

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
