"""A run as HTML, out of its history: how results grew, what the phases were, and the figures; and
progress that follows a join in a notebook: IPython's own display, where IPython is at work, and nothing else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any

from watersmeet.core import html
from watersmeet.drivers.history import History
from watersmeet.drivers.progress import Progress


def drawn(history: History, now: Progress | None = None) -> str:
    """The figures of a run as it is now, or as it was at the end, and above them how its results grew.

    >>> history = History()
    >>> for second, phase in enumerate(["arriving", "reactive", "arriving", "done"]):
    ...     history.add(Progress(("a", "b"), (9, 9), 10 * second, elapsed=float(second), phase=phase))
    >>> text = drawn(history)
    >>> "30 results" in text, text.count(html.SHADES["reactive"]), "<b>30</b> rows" in text
    (True, 1, True)
    """
    samples = history.samples()
    last = now or (samples[-1] if samples else None)
    if last is None:
        return ""
    times = [each.elapsed for each in samples]
    spans = zip(samples, times[1:], strict=False)
    shades = [(each.elapsed, until, each.phase) for each, until in spans if each.phase in html.SHADES]
    curve = html.curve(times, [each.rows_out for each in samples], "results", shades=shades) if last.rows_out else ""
    said = f'<div style="color:#c00">{escape(history.error)}</div>' if history.error else ""
    return curve + last._repr_html_() + said


PATIENCE = 0.5
"""Seconds: a join that takes no longer shows nothing, as its result is there at once."""
EVERY = 0.25
"""Seconds between two pictures: more often nobody sees, and notebooks keep every one in their output for a while."""


def follower(history: History) -> Follower | None:
    """What shows a run's history below the cell that runs it; None where no notebook is there to show it."""
    if "IPython" not in sys.modules:  # whoever runs in a notebook has imported it
        return None
    shell = sys.modules["IPython"].get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:  # a script, or IPython on a terminal
        return None
    return Follower(history, sys.modules["IPython"].display.display)


class Picture:
    """A history as it is when somebody looks at it."""

    def __init__(self, history: History) -> None:
        self._history = history

    def __repr__(self) -> str:
        return str(self._history.last)

    def _repr_html_(self) -> str:
        return drawn(self._history)


class Follower:
    """Shows a run in one place, and again in the same place as it goes on; and once more when it is over, however.

    >>> shown, history = [], History()
    >>> class Handle:
    ...     def update(self, picture):
    ...         shown.append(history.last.rows_out)
    >>> def display(picture, display_id):
    ...     shown.append(history.last.rows_out)
    ...     return Handle()
    >>> follow = Follower(history, display, clock=iter([0.0, 0.0, 0.1, 0.9]).__next__)
    >>> for elapsed, rows in [(0.1, 1), (0.6, 2), (0.7, 3), (1.5, 4)]:
    ...     history.add(Progress(("a", "b"), (9, 9), rows, elapsed=elapsed))
    ...     follow(history.last)
    >>> follow.close()
    >>> shown
    [2, 4, 4]
    """

    def __init__(
        self, history: History, display: Callable[..., Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._picture = Picture(history)
        self._display = display
        self._clock = clock
        self._handle: Any = None
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        """Show how far the run is, if it is time to."""
        now = self._clock()
        if self._handle is None and progress.elapsed >= PATIENCE and not progress.done:
            self._handle = self._display(self._picture, display_id=True)
            self._next = now + EVERY
        elif self._handle is not None and now >= self._next:
            self._handle.update(self._picture)
            self._next = now + EVERY

    def close(self) -> None:
        """The run is over: show how it ended."""
        if self._handle is not None:
            self._handle.update(self._picture)
