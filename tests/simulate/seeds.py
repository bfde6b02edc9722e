"""From a seed to what became of it, and from one that fails to the least of it that still does."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from simulate.embedded import play_embedded
from simulate.tasks import play_tasks
from simulate.world import Trial, World

EMBEDDED = ("open", "map", "read", "write", "rename", "unlink", "mkdir", "rmdir", "list", "reserve")
"""What can fail where a join runs in a process of its own."""
TASKS = ("open", "map", "read", "write", "fsync", "rename", "link", "unlink", "mkdir", "list", "reserve", "put", "put",
         "get", "delete")  # fmt: skip
"""What can fail where it runs in Spark's tasks."""
_MOST_STEPS = 40
_MOST_TRIALS = 120


@dataclass(frozen=True)
class Outcome:
    """What became of a trial."""

    trial: Trial
    error: BaseException | None
    steps: Counter[str]
    injected: Counter[str]
    planned: tuple[str, ...]

    def __str__(self) -> str:
        what = ", ".join(name for name in self.steps if "join" in name or "quer" in name)
        told = f"{type(self.error).__name__}: {' '.join(str(self.error).split())[:400]}"
        return f"seed {self.trial.seed} ({what}; {'; '.join(self.planned) or 'no fault'}): {told}"


def is_of_tasks(seed: int) -> bool:
    """Whether a seed is about Spark's tasks; two of three are about joins in this process.

    >>> [is_of_tasks(seed) for seed in range(4)]
    [False, False, True, False]
    """
    return seed % 3 == 2


def play(trial: Trial) -> Outcome:
    """Let a seed happen."""
    tasks = bool(trial.stream) or is_of_tasks(trial.seed)
    with World(trial, TASKS if tasks else EMBEDDED) as world:
        error: BaseException | None = None
        try:
            (play_tasks if tasks else play_embedded)(world)
        except KeyboardInterrupt:
            raise
        except BaseException as found:
            error = found
        planned = tuple(map(str, world.faults.planned))
        return Outcome(trial, error, world.counts, world.faults.injected, planned)


def shrunk(outcome: Outcome, again: Callable[[Trial], Outcome] = play) -> Outcome:
    """The same failure with fewer faults, fewer steps, fewer rows and more fuel, as far as a few trials lead."""
    best, left = outcome, _MOST_TRIALS

    def still(trial: Trial) -> bool:
        nonlocal best, left
        if left <= 0:
            return False
        left -= 1
        found = again(trial)
        gc.collect()
        if found.error is None or type(found.error) is not type(outcome.error):
            return False
        best = found
        return True

    for number in range(8):
        still(replace(best.trial, spared=best.trial.spared | {number}))
    for rows in (0.25, 0.5):
        if still(replace(best.trial, rows=rows)):
            break
    size = _MOST_STEPS // 2
    while size:
        for first in range(0, _MOST_STEPS, size):
            some = frozenset(range(first, first + size))
            if not some <= best.trial.dropped:
                still(replace(best.trial, dropped=best.trial.dropped | some))
        size //= 2
    for fuel in (1000, 10):
        if still(replace(best.trial, fuel=fuel)):
            break
    return best
