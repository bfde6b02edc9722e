"""What is noted while the demo runs, and what an engine of the demo is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from watersmeet.demo.scenario import Scenario, at_best, silences
from watersmeet.drivers.history import History
from watersmeet.drivers.progress import Progress
from watersmeet.sources.schedules import Schedule

if TYPE_CHECKING:
    from watersmeet.live.page import Page


class Sample(NamedTuple):
    """The join at one moment."""

    time: float
    results: int
    memory: int
    on_disk: int


@dataclass
class Record:
    """A run of the join; second 0 is when the sources begin."""

    samples: list[Sample] = field(default_factory=list)
    room: int = 0
    """Bytes that are on disk although memory would hold them: on Spark all rows are, between two batches."""
    batches: list[tuple[float, float]] | None = None
    """When each micro-batch began and was done, where there are micro-batches."""
    history: History = field(default_factory=History)
    """For the page and the report."""

    def look(self, now: float, progress: Progress) -> None:
        """Take note of this moment."""
        self.samples.append(Sample(max(0.0, now), progress.rows_out, progress.memory, progress.on_disk))

    def results_before(self, moment: float) -> int:
        """How many results had been handed out by then."""
        return max((sample.results for sample in self.samples if sample.time <= moment), default=0)

    @property
    def most_on_disk(self) -> int:
        """Bytes."""
        return max((sample.on_disk for sample in self.samples), default=0)

    def caught_up(self, schedule: Schedule) -> tuple[int, int]:
        """In how many silences all pairs were out that could be, and how many were long enough for that.

        With micro-batches these are the silences in which two of them began and were done.
        """
        best = at_best(schedule)
        long_enough = [(begin, end) for begin, end in silences(schedule) if self._is_judged(begin, end)]
        done = [self.results_before(end) >= int(np.searchsorted(best, begin, "right")) for begin, end in long_enough]
        return sum(done), len(done)

    def _is_judged(self, begin: float, end: float) -> bool:
        if self.batches is None:
            return True
        return sum(begin <= begun and done <= end for begun, done in self.batches) >= 2


class Demonstration(Protocol):
    """An engine that is ready."""

    def join(self, page: Page | None = None) -> tuple[Record, Progress]:
        """Join the inputs as they come, showing how far it is, also on a page, into a file or directory."""
        ...

    def verify(self) -> str | None:
        """Compare with another engine's join of the same tables, as multisets; a sentence if they differ."""
        ...


class Engine(Protocol):
    """What the demo needs to know of the place where the join runs."""

    memory: str
    result: str
    """The name of the result in the output directory."""
    peer: str
    """With what the result is compared."""
    title: str
    """What the picture says after the memory."""

    @property
    def allowance(self) -> str:
        """What the memory is for, if not for all."""
        ...

    def scenario(self, rows: int | None, seed: int) -> Scenario:
        """The sources."""
        ...

    def check(self, scenario: Scenario, memory: str) -> None:
        """Refuse what cannot be before anything is begun."""
        ...

    def ready(
        self, scenario: Scenario, memory: str, out: Path, say: Callable[[str], None]
    ) -> AbstractContextManager[Demonstration]:
        """Have everything started and warm, so that the demo shows the join and not the compiler."""
        ...
