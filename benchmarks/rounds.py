"""Contestants take turns, so that whatever else the machine does meets them alike; medians speak for them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure."""

    peers: bool = False
    repeat: int = 5
    scale: float = 1.0
    """Of all inputs' sizes; targets are about 1."""

    def rows(self, full: int) -> int:
        """A number of rows, or of keys, at this scale."""
        return max(1, round(full * self.scale))


def take_turns(contestants: Mapping[str, Callable[[], T]], repeat: int) -> dict[str, list[T]]:
    """Every contestant once, then every contestant again, so often."""
    runs: dict[str, list[T]] = {name: [] for name in contestants}
    for _ in range(repeat):
        for name, contestant in contestants.items():
            gc.collect()
            runs[name].append(contestant())
    return runs


def middle(runs: list[T] | None, of: Callable[[T], float]) -> float | None:
    """The median of some figure; None for a contestant that did not run."""
    return median(map(of, runs)) if runs else None
