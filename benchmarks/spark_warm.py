"""Streaming queries on Spark, each measured after the same query has warmed its process up for some time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from benchmarks.figures import Figure, Target
from benchmarks.rounds import middle, take_turns
from benchmarks.spark_query import Account, Step, measure

WARM_UP = 30.0
"""Seconds: Java compiles for most of them, and streams run for hours. Each contestant has as many."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What each contestant did in each round; the first of them is ours."""

    runs: dict[str, list[Account]]

    @classmethod
    def of(cls, names: Sequence[str], place: Path, files: int, repeat: int) -> Self:
        """Let contestants work off the files in PLACE/all, so many of each input in a batch."""
        return cls(take_turns({name: partial(_measure, name, place, files) for name in names}, repeat))

    def rate(self, peer: str, label: str, target: Target | None = None) -> Figure:
        """Rows a second without the first batch, in which Spark compiles its plan."""
        return self._figure("rows a second", lambda run: run.rate(skipped=1), "/s", peer, label, target)

    def cpu(self, peer: str, label: str) -> Figure:
        """Processor time of JVM and workers, which other work on the machine touches less than it does the rate."""
        return self._figure("CPU a row", lambda run: 1e6 * run.cpu / sum(run.rows), "us", peer, label, None)

    def memory(self, peer: str, label: str, target: Target | None = None) -> Figure:
        """The most that JVM and workers had."""
        return self._figure("memory", lambda run: run.memory / 1e6, "MB", peer, label, target)

    def state(self, peer: str, label: str, target: Target | None = None) -> Figure:
        """The most state there was after a batch."""
        return self._figure("state", lambda run: run.state / 1e6, "MB", peer, label, target)

    def wrong(self, expected: int) -> int:
        """How many runs had another number of results."""
        return sum(run.results != expected for each in self.runs.values() for run in each)

    def _figure(
        self, what: str, of: Callable[[Account], float], unit: str, peer: str, label: str, target: Target | None
    ) -> Figure:
        found = {name: middle(each, of) for name, each in self.runs.items()}
        return Figure(f"{what}, against {label}", next(iter(found.values())), unit, found.get(peer), target)


def _measure(contestant: str, place: Path, files: int) -> Account:
    """A query over all rows, in a process that has carried it out before."""
    with tempfile.TemporaryDirectory(dir=place) as directory:
        return measure(contestant, Step(str(place / "all"), f"{directory}/measured", files), warm_up=WARM_UP)[0]
