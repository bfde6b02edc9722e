"""What a run was like from its beginning: one bounded history, from which pages, reports and notebooks draw."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from watersmeet.drivers.progress import Progress
from watersmeet.drivers.thinning import Thinned

CAPACITY = 1024
"""Samples: more than a chart has room for."""


@dataclass(frozen=True, slots=True)
class Update:
    """What a reader of a history does not know yet: it keeps its first samples, and appends these."""

    version: tuple[int, int]
    """Of the history after it; ask with it for the next one."""
    start: int
    """So many samples of those that the reader has stay; 0: none."""
    kept: Sequence[Progress]
    """They follow."""
    tail: Sequence[Progress]
    """And then these, which the next update may replace."""


class History:
    """The samples of a run, each exact at its own time, `capacity` of them at most.

    A stretch in which nothing happens is kept as its beginning and its end. May be read from any thread.

    >>> history = History(capacity=16)
    >>> for second in range(1000):
    ...     history.add(Progress(("a", "b"), (second, second), elapsed=float(second), memory=second % 7))
    >>> samples = history.samples()
    >>> len(samples) <= 16, samples[0].elapsed, samples[-1].elapsed
    (True, 0.0, 999.0)
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.began = time.time()
        """Seconds since 1970."""
        self.ended = False
        """Whether no sample will follow."""
        self.error: str | None = None
        """Why the run ended, if it failed."""
        self.possible: tuple[Sequence[float], Sequence[int]] | None = None
        """Where it is known: seconds, and how many results an ideal join would have had by then."""
        self._thinned: Thinned[Progress] = Thinned(capacity, _fuller)
        self._still: Progress | None = None
        """The newest sample, if nothing but the time has changed since the one before."""
        self._lock = threading.Lock()

    def add(self, progress: Progress) -> None:
        """Take note of how far the run is."""
        with self._lock:
            if self.ended:
                return
            last = self._thinned.last
            if last is not None and replace(progress, elapsed=last.elapsed) == last:
                self._still = progress
                return
            if self._still is not None:
                self._thinned.add(self._still)
                self._still = None
            self._thinned.add(progress)

    def end(self, error: str | None = None) -> None:
        """Nothing follows."""
        with self._lock:
            self.error = self.error or error
            self.ended = True

    @property
    def last(self) -> Progress | None:
        """The newest sample."""
        return self._still or self._thinned.last

    def samples(self) -> list[Progress]:
        """All that is kept, from the oldest to the newest."""
        update = self.since(None)
        return [*update.kept, *update.tail]

    def since(self, version: tuple[int, int] | None) -> Update:
        """What has changed since a version of the history; None: all of it."""
        with self._lock:
            thinned = self._thinned
            generation, count = version or (-1, 0)
            start = count if generation == thinned.generation else 0
            tail = [] if thinned.candidate is None else [thinned.candidate]
            newest = (tail or thinned.kept)[-1:]
            if thinned.last is not None and thinned.last is not (newest[0] if newest else None):
                tail.append(thinned.last)
            if self._still is not None:
                tail.append(self._still)
            return Update((thinned.generation, len(thinned.kept)), start, thinned.kept[start:], tail)


def _fuller(earlier: Progress, later: Progress) -> Progress:
    return earlier if earlier.memory > later.memory else later
