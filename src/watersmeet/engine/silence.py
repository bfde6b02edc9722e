"""Inputs that fall silent: which of them no longer hold back the others.

What an input has reached is told by its rows. One that says nothing for `idle` seconds, while another does, is
*overtaken*: it counts as having reached what the other has reached, until it speaks. Its rows are then late if they are
older than that, less the lateness, as those of an input that came so far by itself. Of several inputs, it follows the
one that has come least far of those that are not overtaken, which must be waited for anyway.

Whether an input was overtaken depends on when each last spoke, and on the time at which that is asked::

    left   x  x x                                 x          speaks again: what was reached in between stays reached
    right   x   x x x  x   x  x   x  x   x  x  x
                 ╰───── idle ────╯ overtaken ─────╯

If the other fell silent first, or both at once, nobody is overtaken: then nothing says how far time has come. So an
input that is asked about late, when it speaks again, gets the same answer as if it had been asked about before:
the other's last word, if it was later than its own, is what it was overtaken by. For the same reason whoever spoke last
of several inputs is never overtaken, and there is always one that the others can follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nextafter
from typing import ClassVar

from watersmeet.core.saved import Saved


def overtaken(side: int, spoke: Sequence[float], at: float, idle: float) -> bool:
    """Whether one of the inputs, which last spoke at these times, has been overtaken by another at a time.

    >>> overtaken(0, [3.0, 7.0], 13.0, idle=10), overtaken(1, [3.0, 7.0], 20.0, idle=10)
    (True, False)
    """
    return at >= spoke[side] + idle and max(spoke) > spoke[side]


def followed(newest: Sequence[int], behind: Sequence[bool]) -> list[int]:
    """How far inputs count as having come, if those that are overtaken follow the others.

    >>> followed([100, 70, 3], [False, False, True]), followed([100, 70, 3], [False, True, True])
    ([100, 70, 70], [100, 100, 100])
    """
    least = min(time for time, is_behind in zip(newest, behind, strict=True) if not is_behind)
    return [max(time, least) if is_behind else time for time, is_behind in zip(newest, behind, strict=True)]


class Silence(Saved):
    """When each input last spoke, by the times of polls.

    >>> silence = Silence(10.0)
    >>> silence.listen(0.0, [True, True]), silence.listen(4.0, [False, True]), silence.wake_at([False, False])
    ([False, False], [False, False], 10.0)
    >>> silence.listen(11.0, [False, False]), silence.overtaken, silence.wake_at([False, False])
    ([True, False], [True, False], None)
    >>> silence.listen(12.0, [True, False]), silence.overtaken
    ([True, False], [False, False])
    """

    SAVED: ClassVar[tuple[str, ...]] = ("_spoke", "overtaken")

    def __init__(self, idle: float, inputs: int = 2) -> None:
        self._idle = idle
        self._inputs = range(inputs)
        self._spoke: list[float] | None = None
        """Just before the first poll for those that have said nothing yet; None: nobody has listened."""
        self.overtaken = [False for _ in self._inputs]
        """Which inputs follow what the others reach, for now."""

    def listen(self, now: float, speaks: Sequence[bool]) -> list[bool]:
        """Which inputs were overtaken up to now; those that speak now no longer are."""
        if self._spoke is None:
            # Whoever has said nothing spoke before everybody else.
            self._spoke = [nextafter(now, -inf) for _ in self._inputs]
        found = [overtaken(side, self._spoke, now, self._idle) for side in self._inputs]
        self._spoke = [now if speaks[side] else self._spoke[side] for side in self._inputs]
        self.overtaken = [found[side] and not speaks[side] for side in self._inputs]
        return found

    def wake_at(self, ended: Sequence[bool]) -> float | None:
        """When the next input will be overtaken if it goes on saying nothing."""
        if self._spoke is None or sum(ended) + 1 >= len(ended):
            return None
        last = max(self._spoke)
        waiting = [side for side in self._inputs if self._spoke[side] < last and not self.overtaken[side]]
        return min((self._spoke[side] + self._idle for side in waiting), default=None)
