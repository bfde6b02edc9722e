"""Which blocks on disk have met in a nested loop that can stop anywhere and go on: one counter for each input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod


class LoopCounters:
    """All that lies below the counters of all inputs has met. DINER counts blocks of two inputs, MINER rows of several.

    ```
    joined[outer] ┤ met ├──┤ loaded: at hand, on their way through the others ├─────────
    joined[a]     ┤ met with all of those up to joined ├────── came later ──────────────
    joined[b]     ┤ met with all of those up to joined ├────── came later ──────────────
    ```

    What is at hand meets what lies below the counters of the others, even if more is flushed meanwhile. When nothing is
    left of the outer input, one whose new blocks have not met the others becomes the outer one.

    >>> sizes = [2, 3]
    >>> loop = LoopCounters(lambda: sizes)
    >>> loop.choose_roles(); loop.loaded = 2; loop.all_met()
    >>> sizes[1] = 4  # one more block was flushed
    >>> loop.unmet, loop.choose_roles(), loop.outer, loop.joined
    (True, None, 1, [2, 3])
    """

    def __init__(self, sizes: Callable[[], Sequence[int]]) -> None:
        """:param sizes: how much each input has on disk now"""
        self._sizes = sizes
        self.outer = 0
        self.joined = [0] * len(sizes())
        self.loaded = 0
        """Of the outer input, from joined[outer] on; they stay the same until they have met all of the others."""
        self._met = 0

    @property
    def unmet(self) -> bool:
        """Whether something of all inputs has not met."""
        sizes = list(self._sizes())
        return all(sizes) and self.joined != sizes

    def choose_roles(self) -> None:
        """Make sure that the outer input has something that has not met the others."""
        assert self.unmet
        if self.loaded:
            return
        sizes = self._sizes()
        numbers = range(len(sizes))
        if not any(self.joined):
            self.outer = min(numbers, key=lambda number: sizes[number])
            self.joined = [0 if number == self.outer else sizes[number] for number in numbers]
        elif self.joined[self.outer] == sizes[self.outer]:
            grown = [number for number in numbers if self.joined[number] < sizes[number]]
            self.outer = min(grown, key=lambda number: sizes[number] - self.joined[number])

    def all_met(self) -> None:
        """What is at hand has met all of the others that lies below their counters."""
        self._met += self.loaded * prod(count for number, count in enumerate(self.joined) if number != self.outer)
        self.joined[self.outer] += self.loaded
        self.loaded = 0

    def check(self) -> None:
        """Assert that the counters tell what has met: every combination within them once, and no other."""
        assert self._met == prod(self.joined)
        for number, (size, joined) in enumerate(zip(self._sizes(), self.joined, strict=True)):
            assert joined + (self.loaded if number == self.outer else 0) <= size
