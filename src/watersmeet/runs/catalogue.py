"""What an operator has spilled of one input: runs of pages by partition, numbered through by ordinals.

```
flushes     0        1     2                 each flush's rows take the next ordinals: 0 1 2 3 │ 4 5 │ 6 7 8
runs      ├────────┼─────┼───────┤
merged    ├──────────────┼───────┤           runs 0 and 1 as one run, its rows in the order of (hash, ordinal)
```

The rows of all partitions that leave memory at once go to one segment, partition after partition, so that small ones
cost no more than their share of it. A segment is removed when the last of its runs has been merged or dropped.

Neighbouring runs may be merged, so a run always holds a whole stretch of ordinals, and the rows before a run are as
many as its first ordinal: a position on disk and an ordinal differ only inside a merged run.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.cost import Meter
from watersmeet.memory import Reservation
from watersmeet.runs.page import Page, write_rows
from watersmeet.runs.presence import Stay, Stretch
from watersmeet.spill.segment import Segment
from watersmeet.spill.store import Store
from watersmeet.tables.hash_table import SideTable

_ENTRY_BYTES = 18
"""Of each flush and of each run in the catalogue: two words, and what growing arrays leave unused."""
_PAGE_BYTES = 9
_MERGED_BYTES = 128
"""Of each merged run, beyond that: there are few."""
_SEGMENT_BYTES = 32
_MOST_OPEN = 128
_ARRAYS = ("flush_firsts", "flush_ticks", "first_pages", "departed", "page_ends")


@dataclass(frozen=True, slots=True)
class Run:
    """The rows of one flush, or of several, merged."""

    pages_by_segment: tuple[int, ...]
    """The pages up to the end of each of its segments."""
    made_at: int
    """When it was flushed or its merging began: part of its segments' names."""
    first_ordinal: int
    page_ends: tuple[int, ...]
    """Rows up to the end of each page."""
    level: int = 0
    """How often its rows have been merged."""

    @property
    def rows(self) -> int:
        """All rows of the run."""
        return self.page_ends[-1]

    @property
    def end(self) -> int:
        """The first ordinal beyond it."""
        return self.first_ordinal + self.rows

    @property
    def departed(self) -> int:
        """When the rows left memory, if all at once; -1 if it is merged."""
        return -1 if self.level else self.made_at

    def page_start(self, number: int) -> int:
        """Rows before a page."""
        return self.page_ends[number - 1] if number else 0

    def page_rows(self, number: int) -> int:
        """Rows on a page."""
        return self.page_ends[number] - self.page_start(number)


def _merged_bytes(run: Run | _Merged) -> int:
    return _MERGED_BYTES + _SEGMENT_BYTES * len(run.pages_by_segment)


@dataclass(frozen=True, slots=True)
class _Merged:
    """What is to be remembered of a merged run only."""

    pages_by_segment: tuple[int, ...]
    made_at: int
    level: int


class _Catalogue:
    """One partition's flushes, runs and pages, in a few bytes each: there may be very many of them."""

    def __init__(self) -> None:
        self.flush_firsts = array("q")
        self.flush_ticks = array("q")
        self.first_pages = array("q")
        self.departed = array("q")
        """By run: the tick of its flush, -1 if it is merged."""
        self.page_ends = array("q")
        """The position at which each page ends."""
        self.merged: dict[int, _Merged] = {}
        """By their first ordinals."""

    @property
    def rows(self) -> int:
        return self.page_ends[-1] if self.page_ends else 0

    @property
    def nbytes(self) -> int:
        entries = _ENTRY_BYTES * (len(self.flush_firsts) + len(self.first_pages))
        return entries + _PAGE_BYTES * len(self.page_ends) + sum(map(_merged_bytes, self.merged.values()))

    def add_flush(self, tick: int, ends: Sequence[int]) -> None:
        rows = self.rows
        self.flush_firsts.append(rows)
        self.flush_ticks.append(tick)
        self.first_pages.append(len(self.page_ends))
        self.departed.append(tick)
        self.page_ends.extend(rows + end for end in ends)

    def start(self, page: int) -> int:
        """The position at which a page begins."""
        return self.page_ends[page - 1] if page else 0

    def pages_of(self, run: int) -> tuple[int, int]:
        """Its first page, and the first beyond."""
        last = self.first_pages[run + 1] if run + 1 < len(self.first_pages) else len(self.page_ends)
        return self.first_pages[run], last

    def replace(self, first: int, count: int, merged: Run) -> None:
        low, high = self.first_pages[first], self.pages_of(first + count - 1)[1]
        for run in range(first, first + count):
            self.merged.pop(self.start(self.first_pages[run]), None)
        self.page_ends[low:high] = array("q", (merged.first_ordinal + end for end in merged.page_ends))
        more = len(merged.page_ends) - (high - low)
        following = [page + more for page in self.first_pages[first + count :]]
        self.first_pages[first:] = array("q", [low, *following])
        self.departed[first : first + count] = array("q", [-1])
        self.merged[merged.first_ordinal] = _Merged(merged.pages_by_segment, merged.made_at, merged.level)


def _pages_within(ends: Sequence[int], start: int, stop: int) -> list[int]:
    """Where the pages of a segment that ends them so end within a stretch of its rows, counted from its start.

    >>> _pages_within([10, 20, 30], 5, 20), _pages_within([10, 20, 30], 10, 12)
    ([5, 15], [2])
    """
    first = bisect_right(ends, start)
    inside = [end - start for end in ends[first : bisect_left(ends, stop)]]
    return [*inside, stop - start]


class _Opened:
    """A segment that is being read, and where in it each partition's rows begin."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        meta = segment.meta
        self._starts = dict(zip(meta.get("parts", ()), meta.get("starts", ()), strict=True))
        self._ends: list[int] = np.cumsum([segment.page_rows(number) for number in range(segment.pages)]).tolist()

    def place(self, part: int, number: int, rows: int) -> tuple[int, int, int]:
        """A page of a flushed run, which has so many rows: which of the segment's it is, and from which row to which
        it belongs to the run.
        """
        start = self._starts[part]
        page = bisect_right(self._ends, start) + number
        before = self._ends[page - 1] if page else 0
        return page, max(0, start - before), min(self._ends[page], start + rows) - before


class DiskSide:
    """One side's spilled rows. Runs are added at the end, merged with their neighbours, and dropped by partitions."""

    def __init__(self, partitions: int, store: Store, prefix: str, claim: Reservation, meter: Meter) -> None:
        self.rows = [0] * partitions
        self._prefix = prefix
        self._store = store
        self._claim = claim
        self._meter = meter
        self._catalogues = [_Catalogue() for _ in range(partitions)]
        self._open: dict[str, _Opened] = {}
        self._last_read: tuple[str, int] | None = None

    def runs(self, part: int) -> list[Run]:
        """A partition's runs, described anew."""
        return [self._run(part, number) for number in range(len(self._catalogues[part].first_pages))]

    def run_count(self, part: int) -> int:
        """How many runs a partition has."""
        return len(self._catalogues[part].first_pages)

    def levels(self, part: int) -> list[int]:
        """How often each run has been merged."""
        found = self._catalogues[part]
        return [
            0 if departed >= 0 else found.merged[found.start(page)].level
            for departed, page in zip(found.departed, found.first_pages, strict=True)
        ]

    def _run(self, part: int, number: int) -> Run:
        found = self._catalogues[part]
        low, high = found.pages_of(number)
        first, departed = found.start(low), found.departed[number]
        ends = tuple(end - first for end in found.page_ends[low:high])
        if departed >= 0:
            return Run((high - low,), departed, first, ends)
        merged = found.merged[first]
        return Run(merged.pages_by_segment, merged.made_at, first, ends, merged.level)

    def flush_segment(self, tick: int) -> str:
        """The name of the segment of a flush."""
        return f"{self._prefix}-{tick}"

    def merged_segment(self, part: int, made_at: int, number: int) -> str:
        """The name of one of the segments of a merged run."""
        return f"{self._prefix}-{part}-{made_at}-merged-{number}"

    @property
    def total_rows(self) -> int:
        """All rows on disk."""
        return sum(self.rows)

    def flush(
        self, table: SideTable, portions: Sequence[tuple[int, int]], tick: int, page_bytes: int, by_hash: bool = False
    ) -> list[int]:
        """Move the oldest rows of partitions from the table to new runs, at least so many of each, in whole blocks of
        the table; returns when the newest of each arrived. Nothing has changed if the disk refuses.
        """
        leaving = {part: table.oldest(part, count) for part, count in portions}
        latest = [int(table.ticks(rows[-1:])[0]) for rows in leaving.values()]
        rows = [table.in_order(rows) if by_hash else rows for rows in leaving.values()]
        self.write_runs(
            table, list(leaving), rows, tick, page_bytes, lambda part: table.drop_oldest(part, len(leaving[part]))
        )
        return latest

    def write_runs(
        self,
        table: SideTable,
        parts: Sequence[int],
        portions: Sequence[Int32],
        tick: int,
        page_bytes: int,
        forget: Callable[[int], None],
    ) -> None:
        """Write some rows of each of these partitions as new runs, and let go of each partition's rows by `forget`."""
        starts = np.cumsum([0, *map(len, portions)]).tolist()
        rows = portions[0] if len(portions) == 1 else np.concatenate(portions)
        where = {"parts": list(parts), "starts": starts[:-1]}
        ends = write_rows(self._store, self.flush_segment(tick), table, rows, page_bytes, meta=where)
        self.wrote(len(ends))
        self._meter.runs += len(parts) - 1
        for part, start, stop in zip(parts, starts, starts[1:], strict=False):
            forget(part)
            pages = _pages_within(ends, start, stop)
            size = 2 * _ENTRY_BYTES + _PAGE_BYTES * len(pages)
            if not self._claim.try_grow(size):
                table.trim(size)
                self._claim.grow(size)
            self._catalogues[part].add_flush(tick, pages)
            self.rows[part] += stop - start

    def wrote(self, pages: int) -> None:
        """Count pages that were written one after the other."""
        self._meter.pages_written += pages
        self._meter.seeks += 1

    def pages(self, part: int) -> int:
        """How many pages a partition has."""
        return len(self._catalogues[part].page_ends)

    def longest_pages(self, part: int) -> Int64:
        """How many rows the longest page of each run has."""
        found = self._catalogues[part]
        sizes = np.diff(np.asarray(found.page_ends), prepend=0)
        return np.maximum.reduceat(sizes, np.asarray(found.first_pages)) if len(sizes) else sizes

    def read(self, part: int, position: int, stop: int | None = None) -> Page:
        """The rows from a position to the end of its page, or to `stop`."""
        found = self._catalogues[part]
        place = bisect_right(found.page_ends, position)
        number = bisect_right(found.first_pages, place) - 1
        page = self.read_page(part, self._run(part, number), place - found.first_pages[number])
        start = position - found.start(place)
        end = len(page) if stop is None else min(len(page), start + max(0, stop - position))
        return page.slice(start, end - start)

    def read_page(self, part: int, run: Run, number: int) -> Page:
        """A page of a run."""
        place = bisect_right(run.pages_by_segment, number)
        name = self.merged_segment(part, run.made_at, place) if run.level else self.flush_segment(run.made_at)
        opened = self._open.get(name)
        if opened is None:
            if len(self._open) >= _MOST_OPEN:
                self._open.pop(next(iter(self._open))).segment.close()
            opened = self._open[name] = _Opened(Segment.open(self._store, name))
        if run.level:
            inside, low, high = number - (run.pages_by_segment[place - 1] if place else 0), 0, -1
        else:
            inside, low, high = opened.place(part, number, run.rows)
        batch = opened.segment.read_page(inside)
        if high >= 0 and (low or high < batch.num_rows):
            batch = batch.slice(low, high - low)
        if self._last_read != (name, inside):
            self._meter.pages_read += 1
            self._meter.seeks += self._last_read != (name, inside - 1)
            self._last_read = (name, inside)
        return Page.of(batch, run.first_ordinal + run.page_start(number), run.departed, run.level > 0)

    def release(self) -> None:
        """Unmap what was read."""
        for opened in self._open.values():
            opened.segment.close()
        self._open.clear()
        self._last_read = None

    def departures(self, part: int, ordinals: Int64) -> Int64:
        """When rows left memory, by their ordinals."""
        found = self._catalogues[part]
        departed: Int64 = np.asarray(found.flush_ticks)[np.searchsorted(found.flush_firsts, ordinals, side="right") - 1]
        return departed

    def rows_before(self, part: int, ticks: Int64) -> Int64:
        """How many rows had left memory before each tick."""
        found = self._catalogues[part]
        firsts = np.array([*found.flush_firsts, found.rows], np.int64)
        return firsts[np.searchsorted(found.flush_ticks, ticks)]

    def stay(self, part: int, page: Page, rows: Int32) -> Stay:
        """When some rows of a page were in memory."""
        if page.merged is None:
            ordinals = page.first_ordinal + rows.astype(np.int64)
            departed = np.full(len(rows), page.departed)
        else:
            ordinals = page.merged[rows]
            departed = self.departures(part, ordinals)
        return Stay(page.ticks[rows], departed, ordinals, page.hashes[rows])

    def stretches(self, part: int, start: int, stop: int) -> list[Stretch]:
        """The rows from one position to another, in words that stay true when runs are merged: three at most."""
        found: list[Stretch] = []
        for run in self.runs(part):
            low, high = max(start, run.first_ordinal), min(stop, run.end)
            if low >= high:
                continue
            if run.level and high - low < run.rows:
                since = {"since": self._standing(part, low)} if low > run.first_ordinal else {}
                until = {"until": self._standing(part, high)} if high < run.end else {}
                found.append(Stretch(run.first_ordinal, run.end, **since, **until))
            elif found and found[-1] == Stretch(found[-1].low, low):
                found[-1] = Stretch(found[-1].low, high)
            else:
                found.append(Stretch(low, high))
        return found

    def _standing(self, part: int, position: int) -> tuple[int, int]:
        page = self.read(part, position, position + 1)
        return int(page.hashes[0]), int(page.ordinals[0])

    def try_claim(self, part: int, first: int, count: int, merged: Run) -> bool:
        """Claim what the entry of a merged run takes more than those of the runs it is to stand for."""
        return self._claim.try_grow(max(0, self._growth(part, first, count, merged)))

    def replace(self, part: int, first: int, count: int, merged: Run) -> list[str]:
        """Let one run stand for some neighbours; its entry is claimed already. Returns their segments, for removal."""
        before = self._segments_of(part, first, first + count)
        self._claim.shrink(max(0, -self._growth(part, first, count, merged)))
        self._catalogues[part].replace(first, count, merged)
        return self._no_longer_used(before)

    def _growth(self, part: int, first: int, count: int, merged: Run) -> int:
        replaced = [self._run(part, run) for run in range(first, first + count)]
        pages = len(merged.page_ends) - sum(len(run.page_ends) for run in replaced)
        entries = _merged_bytes(merged) - sum(_merged_bytes(run) for run in replaced if run.level)
        return _PAGE_BYTES * pages + _ENTRY_BYTES * (1 - count) + entries

    def drop(self, part: int) -> list[str]:
        """Forget a partition; returns its segments, for the caller to remove."""
        before = self._segments_of(part)
        self._claim.shrink(self._catalogues[part].nbytes)
        self._catalogues[part] = _Catalogue()
        self.rows[part] = 0
        return self._no_longer_used(before)

    def _no_longer_used(self, segments: list[str]) -> list[str]:
        """Those of a partition's former segments that no other partition has rows in, closed."""
        flushed = {departed for found in self._catalogues for departed in found.departed}
        used = {self.flush_segment(tick) for tick in flushed}
        names = [name for name in segments if name not in used]
        for name in names:
            if name in self._open:
                self._open.pop(name).segment.close()
        self._last_read = None
        return names

    def to_state(self) -> list[dict[str, Any]]:
        """The catalogue for a snapshot."""
        return [
            {
                **{name: getattr(found, name).tolist() for name in _ARRAYS},
                "merged": [
                    [first, list(run.pages_by_segment), run.made_at, run.level] for first, run in found.merged.items()
                ],
            }
            for found in self._catalogues
        ]

    def load(self, state: Sequence[dict[str, Any]]) -> None:
        """Take over a snapshot's catalogue."""
        for part, saved in enumerate(state):
            found = self._catalogues[part]
            for name in _ARRAYS:
                setattr(found, name, array("q", saved[name]))
            for first, pages, made_at, level in saved["merged"]:
                found.merged[first] = _Merged(tuple(pages), made_at, level)
            self._claim.grow(found.nbytes)
            self.rows[part] = found.rows

    def segments(self) -> list[str]:
        """The names of all segments."""
        return list(dict.fromkeys(name for part in range(len(self.rows)) for name in self._segments_of(part)))

    def _segments_of(self, part: int, first: int = 0, stop: int | None = None) -> list[str]:
        found = self._catalogues[part]
        names = []
        for departed, page in list(zip(found.departed, found.first_pages, strict=True))[first:stop]:
            if departed >= 0:
                names.append(self.flush_segment(departed))
            else:
                merged = found.merged[found.start(page)]
                names += [self.merged_segment(part, merged.made_at, i) for i in range(len(merged.pages_by_segment))]
        return names

    def check(self) -> None:
        """Assert that ordinals run through."""
        for part, found in enumerate(self._catalogues):
            assert found.rows == self.rows[part]
            if not found.page_ends:
                assert not (found.flush_firsts or found.first_pages or found.departed or found.merged)
                continue
            for name in ("flush_firsts", "flush_ticks", "first_pages", "page_ends"):
                values = list(getattr(found, name))
                assert values == sorted(set(values)), f"{name} ascend"
            assert len(found.first_pages) == len(found.departed)
            firsts = [found.start(page) for page in found.first_pages]
            assert set(firsts) <= set(found.flush_firsts)
            assert set(found.merged) == {
                first for first, departed in zip(firsts, found.departed, strict=True) if departed < 0
            }
            for run in self.runs(part):
                assert run.pages_by_segment[-1] == len(run.page_ends)
        assert self._claim.held >= sum(found.nbytes for found in self._catalogues)
