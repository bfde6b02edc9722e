"""What is noted while the demo runs, and what an engine of the demo is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from watersmeet.demo.scenario import Scenario
from watersmeet.drivers.history import History
from watersmeet.drivers.progress import Progress

if TYPE_CHECKING:
    from watersmeet.live.page import Page


class Sample(NamedTuple):
    """The join at one moment."""

    time: float
    results: int
    memory: int
    spilled: int


@dataclass
class Record:
    """A run of the join; second 0 is when the sources begin."""

    samples: list[Sample] = field(default_factory=list)
    reactive: int = 0
    """Rows found, with what was on disk, while no row had to be taken in."""

    silent_batches: int | None = None
    """Micro-batches without a row before the end, where there are micro-batches."""
    history: History = field(default_factory=History)
    """For the page and the report."""

    def look(self, now: float, progress: Progress) -> None:
        """Take note of this moment."""
        self.samples.append(Sample(max(0.0, now), progress.rows_out, progress.memory, progress.spilled))

    def results_before(self, moment: float) -> int:
        """How many results had been handed out by then."""
        return max((sample.results for sample in self.samples if sample.time <= moment), default=0)


class Run(Protocol):
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
    ) -> AbstractContextManager[Run]:
        """Have everything started and warm, so that the demo shows the join and not the compiler."""
        ...
