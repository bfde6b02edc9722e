"""What an operator has spilled of one input: runs of pages by partition, numbered through by ordinals."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.cost import Meter
from watersmeet.memory import Reservation
from watersmeet.spill.segment import Segment
from watersmeet.spill.store import Store
from watersmeet.state.pages import Page, write_rows
from watersmeet.state.side import SideTable

Int64 = NDArray[np.int64]

_ENTRY_BYTES = 18
"""Of each run and of each page in the catalogue: two words, and what growing arrays leave unused."""


@dataclass(frozen=True, slots=True)
class Run:
    """The rows of one flush: a segment."""

    segment: str
    departed: int
    first_ordinal: int
    page_ends: tuple[int, ...]
    """Rows up to the end of each page."""

    @property
    def rows(self) -> int:
        """All rows of the run."""
        return self.page_ends[-1]


class _Catalogue:
    """One partition's runs and pages, in a few bytes each: there may be very many of them."""

    def __init__(self) -> None:
        self.departed = array("q")
        self.first_pages = array("q")
        self.page_ends = array("q")
        """The ordinal at which each page ends."""
        self.page_runs = array("q")

    @property
    def rows(self) -> int:
        return self.page_ends[-1] if self.page_ends else 0

    @property
    def nbytes(self) -> int:
        return _ENTRY_BYTES * (len(self.departed) + len(self.page_ends))

    def add(self, departed: int, ends: Sequence[int]) -> None:
        rows = self.rows
        self.first_pages.append(len(self.page_ends))
        self.page_runs.extend([len(self.departed)] * len(ends))
        self.departed.append(departed)
        self.page_ends.extend(rows + end for end in ends)

    def first_ordinal(self, run: int) -> int:
        page = self.first_pages[run]
        return self.page_ends[page - 1] if page else 0

    def run_ends(self, run: int) -> list[int]:
        """Rows of a run up to the end of each of its pages."""
        last = self.first_pages[run + 1] if run + 1 < len(self.first_pages) else len(self.page_ends)
        start = self.first_ordinal(run)
        return [end - start for end in self.page_ends[self.first_pages[run] : last]]


class DiskSide:
    """One side's spilled rows. Runs are only ever added, and dropped with their whole partition."""

    def __init__(self, partitions: int, store: Store, prefix: str, claim: Reservation, meter: Meter) -> None:
        self._store = store
        self._prefix = prefix
        self._claim = claim
        self._meter = meter
        self._catalogues = [_Catalogue() for _ in range(partitions)]
        self.rows = [0] * partitions
        self._open: Segment | None = None
        self._last_read: tuple[str, int] | None = None

    @property
    def runs(self) -> list[list[Run]]:
        """Every partition's runs, described anew."""
        return [
            [
                Run(self._segment(part, departed), departed, found.first_ordinal(run), tuple(found.run_ends(run)))
                for run, departed in enumerate(found.departed)
            ]
            for part, found in enumerate(self._catalogues)
        ]

    def _segment(self, part: int, departed: int) -> str:
        return f"{self._prefix}-{part}-{departed}"

    @property
    def total_rows(self) -> int:
        """All rows on disk."""
        return sum(self.rows)

    def flush(self, table: SideTable, part: int, tick: int, page_bytes: int) -> None:
        """Move a partition's rows from the table to a new run; nothing has changed if the disk refuses."""
        ends = write_rows(self._store, self._segment(part, tick), table, table.rows_of(part), page_bytes)
        self._meter.pages_written += len(ends)
        self._meter.seeks += 1
        table.drop(part)
        size = _ENTRY_BYTES * (1 + len(ends))
        if not self._claim.try_grow(size):
            table.trim(size)
            self._claim.grow(size)
        self._catalogues[part].add(tick, ends)
        self.rows[part] += ends[-1]

    def pages(self, part: int) -> int:
        """How many pages a partition has."""
        return len(self._catalogues[part].page_ends)

    def read(self, part: int, ordinal: int, stop: int | None = None) -> Page:
        """The rows from an ordinal to the end of its page, or to `stop`."""
        found = self._catalogues[part]
        page = int(np.searchsorted(found.page_ends, ordinal, side="right"))
        page_start = found.page_ends[page - 1] if page else 0
        run = found.page_runs[page]
        number, departed = page - found.first_pages[run], found.departed[run]
        segment = self._segment(part, departed)
        if self._open is None or self._open.name != segment:
            self.release()
            self._open = Segment.open(self._store, segment)
        batch = self._open.read_page(number)
        if self._last_read != (segment, number):
            self._meter.pages_read += 1
            self._meter.seeks += self._last_read != (segment, number - 1)
            self._last_read = (segment, number)
        batch = batch.slice(ordinal - page_start, None if stop is None else max(0, stop - ordinal))
        return Page.of(batch, ordinal, departed)

    def release(self) -> None:
        """Unmap the segment that was read last."""
        if self._open is not None:
            self._open.close()
            self._open = None
            self._last_read = None

    def departures(self, part: int, ordinals: Int64) -> Int64:
        """When rows left memory, by their ordinals."""
        found = self._catalogues[part]
        pages = np.searchsorted(found.page_ends, ordinals, side="right")
        departed: Int64 = np.asarray(found.departed)[np.asarray(found.page_runs)[pages]]
        return departed

    def drop(self, part: int) -> list[str]:
        """Forget a partition; returns its segments, for the caller to remove."""
        found, self._catalogues[part] = self._catalogues[part], _Catalogue()
        self.rows[part] = 0
        self._claim.shrink(found.nbytes)
        self.release()
        return [self._segment(part, departed) for departed in found.departed]

    def to_state(self) -> list[list[list[Any]]]:
        """The catalogue for a snapshot: each run's departure and pages."""
        return [
            [[departed, found.run_ends(run)] for run, departed in enumerate(found.departed)]
            for found in self._catalogues
        ]

    def load(self, state: Sequence[Sequence[Sequence[Any]]]) -> None:
        """Take over a snapshot's catalogue."""
        for part, runs in enumerate(state):
            for departed, ends in runs:
                self._claim.grow(_ENTRY_BYTES * (1 + len(ends)))
                self._catalogues[part].add(departed, ends)
                self.rows[part] += ends[-1]

    def check(self) -> None:
        """Assert that ordinals run through."""
        for part, found in enumerate(self._catalogues):
            assert found.rows == self.rows[part]
            assert list(found.page_ends) == sorted(set(found.page_ends))
            assert list(found.departed) == sorted(set(found.departed))
            assert len(found.page_runs) == len(found.page_ends) and len(found.first_pages) == len(found.departed)
        assert self._claim.held >= sum(found.nbytes for found in self._catalogues)
