"""Inputs of a streaming window join that fall silent, by the times of their batches.

A task knows when its batch began: Spark says so, and says the same when the batch is carried out once more. So each
task leaves behind, beside the newest times of its rows, when its inputs last spoke; and whether an input has been
overtaken (`engine.silence`) is the same for all tasks of a batch that have rows. Those without rows learn it a batch
later. What an input was overtaken by is told on, so that it stays reached when the input speaks again.
"""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.engine.silence import overtaken
from watersmeet.records.times import NEVER

_MICROSECONDS = 1_000_000


class Silences:
    """Both inputs at one batch: how far they had come before it, and what is to be told to the next.

    >>> hour = 3_600 * _MICROSECONDS
    >>> silences = Silences([700, 900, 0, hour - 5], idle=60.0, at=hour, speaks=[True, False])
    >>> silences.newest, silences.told([705, NEVER])
    ([900, 900], [900, 900, 3600000000, 3599999995])
    """

    def __init__(self, before: Sequence[int], idle: float, at: int | None, speaks: Sequence[bool]) -> None:
        """`before` is what was told up to the batch, which began `at` so many microseconds; None: nobody has said."""
        newest, spoke = list(before[:2]), list(before[2:])
        if at is not None:
            # Whoever has said nothing yet spoke just before the first batch.
            spoke = [at - 1 if each == NEVER else each for each in spoke]
            most = max(newest)
            found = [overtaken(side, spoke, at, round(idle * _MICROSECONDS)) for side in (0, 1)]
            newest = [most if found[side] else newest[side] for side in (0, 1)]
            spoke = [at if speaks[side] else spoke[side] for side in (0, 1)]
        self.newest = newest
        """How far each input has come, before this batch."""
        self._spoke = spoke

    def told(self, newest: Sequence[int]) -> list[int]:
        """What the next batch is to know, if these are the newest times of this one's rows."""
        return [*(max(pair) for pair in zip(self.newest, newest, strict=True)), *self._spoke]
