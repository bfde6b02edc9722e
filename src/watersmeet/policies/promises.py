"""What a join decides whose inputs promise something: which input to take rows from next, where rows of both wait, and
when to look for rows that a promise has made useless, at once or for many promises together [1]_.

.. [1] L. Ding, E. A. Rundensteiner and G. T. Heineman. MJoin: A metadata-aware stream join operator. DEBS 2003;
   sections 4.1, 4.3, 5.2 and 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from watersmeet.core.errors import SpecError
from watersmeet.core.given import plain_number
from watersmeet.core.saved import Saved

_MASK = (1 << 64) - 1


class StreamSchedule(Protocol):
    """Chooses between two inputs."""

    def choose(self, waiting: Sequence[int]) -> tuple[int, int]:
        """Of inputs with so many rows waiting, not all of them none: which one, and how many of its rows at most."""
        ...

    def took(self, side: int, rows: int) -> None:
        """So many rows of an input were taken."""
        ...

    def to_state(self) -> Any:
        """For a snapshot."""
        ...

    def load(self, state: Any) -> None:
        """Take over a snapshot's state."""
        ...


class RandomSchedule(Saved):
    """Either input, with even chances: both are treated alike.

    The numbers behind the choice are a fixed sequence of the seed's, so that a run can be repeated.

    >>> schedule = RandomSchedule(rows=1, seed=2)
    >>> [schedule.choose((5, 5))[0] for _ in range(12)]
    [0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1]
    """

    SAVED: ClassVar[tuple[str, ...]] = ("_drawn",)

    def __init__(self, rows: int = 256, seed: int = 0) -> None:
        """`rows` are taken at a time."""
        self._rows = rows
        self._seed = seed
        self._drawn = 0

    def choose(self, waiting: Sequence[int]) -> tuple[int, int]:
        """Any input that has rows."""
        self._drawn += 1
        side = _scrambled(self._seed, self._drawn) >> 63
        return (side if waiting[side] else 1 - side), self._rows

    def took(self, side: int, rows: int) -> None:
        """All the same."""


def _scrambled(seed: int, number: int) -> int:
    """A number of 64 bits in which nothing of the seed and the count is seen any more."""
    word = (seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = ((word ^ (word >> shift)) * factor) & _MASK
    return word ^ (word >> 31)


class PrioritySchedule(Saved):
    """A portion of the preferred input, then a portion of the other, and so on.

    An input is taken from until it has no more rows waiting or its quota is used up; then it is the other's turn. While
    neither quota is used up, rows of the preferred input come first.

    >>> schedule = PrioritySchedule(preferred=0, quotas=(2, 3))
    >>> order = []
    >>> for _ in range(8):
    ...     side, most = schedule.choose((9, 9)); schedule.took(side, 1); order.append(side)
    >>> order
    [0, 0, 1, 1, 1, 0, 0, 1]
    """

    SAVED: ClassVar[tuple[str, ...]] = ("_used",)

    def __init__(self, preferred: int = 0, quotas: tuple[int, int] = (1024, 1024)) -> None:
        quotas = (plain_number(quotas[0]), plain_number(quotas[1])) if len(quotas) == 2 else quotas
        if len(quotas) != 2 or not all(isinstance(quota, int) and quota > 0 for quota in quotas):
            raise SpecError(f"quotas must be two numbers of rows, each at least 1, not {quotas!r}")
        self._preferred = preferred
        self._quotas = quotas
        self._used = [0, 0]

    def choose(self, waiting: Sequence[int]) -> tuple[int, int]:
        """The preferred input, unless it has no rows or its quota is used up."""
        first = self._preferred
        for side in (first, 1 - first):
            if waiting[side] and self._used[side] < self._quotas[side]:
                return side, self._quotas[side] - self._used[side]
        # Whoever has rows has used up its quota, and the other has none: begin again.
        self._used = [0, 0]
        side = first if waiting[first] else 1 - first
        return side, self._quotas[side]

    def took(self, side: int, rows: int) -> None:
        """Use up the quota; once that is done, the other input has all of its own again."""
        self._used[side] += rows
        if self._used[side] >= self._quotas[side]:
            self._used[1 - side] = 0


def stream_schedule(
    name: str, preferred: int, quotas: tuple[int, int], seed: int, rows: int = 256
) -> RandomSchedule | PrioritySchedule:
    """A schedule by its name: `random` or `priority`."""
    if name == "random":
        return RandomSchedule(rows, seed)
    if name == "priority":
        return PrioritySchedule(preferred, quotas)
    raise SpecError(f"streams={name!r} is not known; choose 'random' or 'priority'")


@dataclass(frozen=True, slots=True)
class PurgePolicy:
    """Purge after so many promises; and whenever memory is short or nothing arrives, if there are any.

    >>> [PurgePolicy(3).due(promises) for promises in (1, 2, 3)]
    [False, False, True]
    """

    every: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "every", plain_number(self.every))
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
