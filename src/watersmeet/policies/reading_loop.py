"""How long a loop over blocks on disk may let arrivals wait, and how much it takes at once: DINER's, and MINER's."""

from __future__ import annotations

from dataclasses import dataclass

from watersmeet.core.errors import SpecError


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """The two numbers that a user may give.

    >>> LoopLimits(new_arrivals=1000, outer_blocks=19)
    LoopLimits(new_arrivals=1000, outer_blocks=19)
    >>> LoopLimits(new_arrivals=0, outer_blocks=0)
    Traceback (most recent call last):
    watersmeet.core.errors.SpecError: max_new_arrivals must be 0 or more, and max_outer_blocks 1 or more
    """

    new_arrivals: int
    """Rows that may wait during the reactive phase (the paper's MaxNewArr)."""
    outer_blocks: int
    """Blocks of the outer input that the reactive phase takes at once (MaxOuterMem)."""

    def __post_init__(self) -> None:
        if self.new_arrivals < 0 or self.outer_blocks < 1:
            raise SpecError("max_new_arrivals must be 0 or more, and max_outer_blocks 1 or more")
