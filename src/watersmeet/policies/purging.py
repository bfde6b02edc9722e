"""When to look for rows that a promise has made useless: at once, or for many promises together [1]_.

.. [1] L. Ding, E. A. Rundensteiner and G. T. Heineman. MJoin: A metadata-aware stream join operator. DEBS 2003;
   sections 4.3 and 5.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from watersmeet.core.errors import SpecError


@dataclass(frozen=True, slots=True)
class PurgePolicy:
    """Purge after so many promises; and whenever memory is short or nothing arrives, if there are any.

    >>> [PurgePolicy(3).due(promises) for promises in (1, 2, 3)]
    [False, False, True]
    """

    every: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise SpecError(f"purge_every must be a number of punctuations, at least 1, not {self.every!r}")

    @property
    def immediate(self) -> bool:
        """Whether no promise waits for another."""
        return self.every == 1

    def due(self, promises: int) -> bool:
        """Whether so many promises that were not acted upon are enough."""
        return promises >= self.every


@dataclass(frozen=True, slots=True)
class Goal:
    """What a join is to be good at, and the choices that follow from it.

    >>> Goal.named("memory").purge_every, Goal.named("rate").purge_every
    (1, 100)
    """

    purge_every: int
    tuples: str

    @classmethod
    def named(cls, optimize: str) -> Goal:
        """`rate`: results as soon as can be. `memory`: as few rows in memory as can be."""
        goals = {"rate": cls(100, "value"), "memory": cls(1, "value")}
        if optimize not in goals:
            raise SpecError(f"optimize={optimize!r} is not known; choose 'rate' or 'memory'")
        return goals[optimize]
