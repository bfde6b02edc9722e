"""A run as HTML, out of its history: how results grew, what the phases were, and the figures."""

from __future__ import annotations

from html import escape

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
