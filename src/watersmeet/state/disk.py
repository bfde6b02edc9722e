"""What an operator has spilled of one input: runs of pages by partition, numbered through by ordinals."""

from __future__ import annotations

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

_RUN_BYTES = 192
_PAGE_BYTES = 16


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


class DiskSide:
    """One side's spilled rows. Runs are only ever added, and dropped with their whole partition."""

    def __init__(self, partitions: int, store: Store, prefix: str, claim: Reservation, meter: Meter) -> None:
        self._store = store
        self._prefix = prefix
        self._claim = claim
        self._meter = meter
        self.runs: list[list[Run]] = [[] for _ in range(partitions)]
        self.rows = [0] * partitions
        self._open: Segment | None = None
        self._last_read: tuple[str, int] | None = None

    @property
    def total_rows(self) -> int:
        """All rows on disk."""
        return sum(self.rows)

    def flush(self, table: SideTable, part: int, tick: int, page_bytes: int) -> None:
        """Move a partition's rows from the table to a new run; nothing has changed if the disk refuses."""
        name = f"{self._prefix}-{part}-{tick}"
        ends = write_rows(self._store, name, table, table.rows_of(part), page_bytes)
        self._meter.pages_written += len(ends)
        self._meter.seeks += 1
        table.drop(part)
        size = _RUN_BYTES + _PAGE_BYTES * len(ends)
        if not self._claim.try_grow(size):
            table.trim(size)
            self._claim.grow(size)
        self.runs[part].append(Run(name, tick, self.rows[part], ends))
        self.rows[part] += ends[-1]

    def pages(self, part: int) -> int:
        """How many pages a partition has."""
        return sum(len(run.page_ends) for run in self.runs[part])

    def locate(self, part: int, ordinal: int) -> tuple[Run, int]:
        """The run and the page that hold an ordinal."""
        for run in self.runs[part]:
            if ordinal < run.first_ordinal + run.rows:
                inside = ordinal - run.first_ordinal
                return run, int(np.searchsorted(run.page_ends, inside, side="right"))
        raise AssertionError(f"ordinal {ordinal} of partition {part} is not on disk")

    def read(self, part: int, ordinal: int, stop: int | None = None) -> Page:
        """The rows from an ordinal to the end of its page, or to `stop`."""
        run, number = self.locate(part, ordinal)
        page_start = run.first_ordinal + (run.page_ends[number - 1] if number else 0)
        if self._open is None or self._open.name != run.segment:
            self.release()
            self._open = Segment.open(self._store, run.segment)
        batch = self._open.read_page(number)
        if self._last_read != (run.segment, number):
            self._meter.pages_read += 1
            self._meter.seeks += self._last_read != (run.segment, number - 1)
            self._last_read = (run.segment, number)
        batch = batch.slice(ordinal - page_start, None if stop is None else max(0, stop - ordinal))
        return Page.of(batch, ordinal, run.departed)

    def release(self) -> None:
        """Unmap the segment that was read last."""
        if self._open is not None:
            self._open.close()
            self._open = None
            self._last_read = None

    def departures(self, part: int, ordinals: Int64) -> Int64:
        """When rows left memory, by their ordinals."""
        runs = self.runs[part]
        firsts = np.array([run.first_ordinal for run in runs])
        departed = np.array([run.departed for run in runs])
        return departed[np.searchsorted(firsts, ordinals, side="right") - 1]

    def drop(self, part: int) -> list[str]:
        """Forget a partition; returns its segments, for the caller to remove."""
        runs, self.runs[part] = self.runs[part], []
        self.rows[part] = 0
        self._claim.shrink(sum(_RUN_BYTES + _PAGE_BYTES * len(run.page_ends) for run in runs))
        self.release()
        return [run.segment for run in runs]

    def to_state(self) -> list[list[list[Any]]]:
        """The catalogue for a snapshot."""
        return [
            [[run.segment, run.departed, run.first_ordinal, list(run.page_ends)] for run in runs] for runs in self.runs
        ]

    def load(self, state: Sequence[Sequence[Sequence[Any]]]) -> None:
        """Take over a snapshot's catalogue."""
        for part, runs in enumerate(state):
            for segment, departed, first_ordinal, ends in runs:
                self._claim.grow(_RUN_BYTES + _PAGE_BYTES * len(ends))
                self.runs[part].append(Run(segment, departed, first_ordinal, tuple(ends)))
                self.rows[part] += ends[-1]

    def check(self) -> None:
        """Assert that ordinals run through."""
        for part, runs in enumerate(self.runs):
            following = 0
            for run in runs:
                assert run.first_ordinal == following and run.rows > 0
                assert list(run.page_ends) == sorted(set(run.page_ends))
                following += run.rows
            assert following == self.rows[part]
            assert [run.departed for run in runs] == sorted({run.departed for run in runs})
