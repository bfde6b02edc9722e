"""A long run in few samples: the one way in which traces and histories stay bounded."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from watersmeet.core.errors import SpecError

LEAST = 16


class Phased(Protocol):
    """A sample of a run: it says in which phase the run was."""

    @property
    def phase(self) -> str:
        """What the run was at."""
        ...


T = TypeVar("T", bound=Phased)


class Thinned(Generic[T]):
    """Takes samples one by one and keeps at most `capacity` of them.

    When it is full, of each two neighbours the fuller one stays, and from then on each two new samples count as one, so
    that old and new times are kept equally densely. The first, the last and the first of each phase stay (phases only
    up to a quarter of the capacity: a run may stall at every row).
    """

    def __init__(self, capacity: int, fuller: Callable[[T, T], T]) -> None:
        """`fuller` chooses between an earlier and a later sample."""
        if capacity < LEAST:
            raise SpecError(f"a run needs room for at least {LEAST} samples, not {capacity}")
        self.kept: list[T] = []
        """Those that stay for now; only the end grows until they are thinned out."""
        self.generation = 0
        """How often they were thinned out."""
        self.candidate: T | None = None
        """Stands for the samples since the last one that was kept."""
        self.last: T | None = None
        self._capacity = capacity
        self._fuller = fuller
        self._merged = 0  # how many samples the candidate stands for
        self._stride = 1  # how many the next one kept will stand for
        self._changes = 0  # of the phase, among those kept

    def add(self, sample: T) -> None:
        """Take note of a moment."""
        last, self.last = self.last, sample
        if last is None or (sample.phase != last.phase and self._changes <= self._capacity // 4):
            self.keep_candidate()
            self._keep(sample)
            self._changes += 1
        else:
            self.candidate = sample if self.candidate is None else self._fuller(self.candidate, sample)
            self._merged += 1
            if self._merged >= self._stride:
                self.keep_candidate()

    def keep_candidate(self) -> None:
        """Keep what stands for the newest samples."""
        if self.candidate is not None:
            self._keep(self.candidate)
        self.candidate, self._merged = None, 0

    def _keep(self, sample: T) -> None:
        self.kept.append(sample)
        if len(self.kept) >= self._capacity - 2:  # room for the candidate and the last
            self._halve()

    def _halve(self) -> None:
        kept = self.kept
        protect = self._changes <= self._capacity // 4
        starts = [protect and after.phase != before.phase for before, after in pairwise(kept)]
        starts = [True, *starts[:-1], True]  # the first and the last stay
        halved: list[T] = []
        i = 0
        while i < len(kept):
            if starts[i] or starts[i + 1]:
                halved.append(kept[i])
                i += 1
            else:
                halved.append(self._fuller(kept[i], kept[i + 1]))
                i += 2
        self.kept = halved
        self.generation += 1
        self._stride *= 2
