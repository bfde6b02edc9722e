"""Pictures of runs for notebooks: plain HTML and SVG, which need no script, no style sheet and no network.

Colours of text and lines are those of the page (`currentColor`), so that light and dark pages both read well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

BLUE = "#0072b2"
SHADES = {"reactive": "#e69f00", "clean-up": "#56b4e9"}
"""Of phases, behind a curve; they differ for the colour-blind, too."""
_POINTS = 400
_WIDTH, _HEIGHT = 560, 130


def table(rows: Iterable[tuple[str, str]], title: str = "") -> str:
    r"""Two columns, names and what is said of them; what is said is HTML already.

    >>> print(table([("in", escape("<b>"))], "Run").replace("<t", "\n<t"))  # doctest: +ELLIPSIS
    <div ...><b>Run</b>
    <table>
    <tr>
    <td ...>in</td>
    <td ...>&lt;b&gt;</td></tr></table></div>
    """
    cell = '<td style="text-align:{};{}padding:1px 8px">{}</td>'
    lines = [
        f"<tr>{cell.format('right', 'opacity:.65;', escape(name))}{cell.format('left', '', said)}</tr>"
        for name, said in rows
    ]
    head = f"<b>{escape(title)}</b>" if title else ""
    return f'<div style="font-family:sans-serif;font-size:13px">{head}<table>{"".join(lines)}</table></div>'


def bar(now: float, peak: float, whole: float, said: str) -> str:
    """A share of a whole, its peak paler, with words beside it."""
    shares = [100 * min(1.0, part / whole) if whole > 0 else 0.0 for part in (now, max(now, peak))]
    inside = f"position:absolute;left:0;top:0;height:100%;background:{BLUE}"
    pale, full = (
        f'<span style="{inside};width:{share:.1f}%;opacity:{how}"></span>'
        for share, how in ((shares[1], ".35"), (shares[0], "1"))
    )
    frame = (
        "display:inline-block;position:relative;width:180px;height:11px;border:1px solid #8888;vertical-align:middle"
    )
    return f'<span style="{frame}">{pale}{full}</span> {escape(said)}'


def curve(
    times: Sequence[float],
    values: Sequence[float],
    what: str,
    *,
    unit: str = "s",
    shades: Iterable[tuple[float, float, str]] = (),
    marks: Mapping[float, str] | None = None,
) -> str:
    """A staircase of values over time; stretches of time may be shaded by phase, moments marked by a line.

    >>> drawn = curve([0.0, 1.0, 2.0], [0, 10, 40], "results", shades=[(1.0, 2.0, "reactive")])
    >>> drawn.startswith("<svg"), "40 results" in drawn, SHADES["reactive"] in drawn
    (True, True, True)
    """
    if len(times) < 2 or times[-1] <= times[0]:
        return ""
    begin, length, most = times[0], times[-1] - times[0], max(max(values), 1)

    def x(time: float) -> float:
        return (min(max(time, begin), times[-1]) - begin) / length * _WIDTH

    step = -(-len(times) // _POINTS)
    kept = sorted({*range(0, len(times), step), len(times) - 1})
    path, last = [f"M0 {_HEIGHT - values[0] / most * _HEIGHT:.1f}"], None
    for i in kept:
        place = f"H{x(times[i]):.1f}V{_HEIGHT - values[i] / most * _HEIGHT:.1f}"
        if place != last:
            path.append(place)
        last = place
    behind = "".join(
        f'<rect x="{x(start):.1f}" y="0" width="{max(x(end) - x(start), 0.5):.1f}" height="{_HEIGHT}" '
        f'fill="{SHADES[phase]}" opacity=".25"><title>{escape(phase)}</title></rect>'
        for start, end, phase in shades
        if phase in SHADES
    )
    lines = "".join(
        f'<path d="M{x(at):.1f} 0V{_HEIGHT}" stroke="currentColor" stroke-dasharray="3 3" opacity=".6">'
        f"<title>{escape(said)}</title></path>"
        for at, said in (marks or {}).items()
    )
    small = 'font-size="11" fill="currentColor" opacity=".7"'
    return (
        f'<svg viewBox="-4 -14 {_WIDTH + 8} {_HEIGHT + 32}" role="img" style="max-width:{_WIDTH}px;width:100%;'
        f'font-family:sans-serif">{behind}<path d="M0 0V{_HEIGHT}H{_WIDTH}" fill="none" stroke="currentColor" '
        f'opacity=".4"/>{lines}<path d="{"".join(path)}" fill="none" stroke="{BLUE}" stroke-width="2"/>'
        f'<text x="0" y="-4" {small}>{most:,.0f} {escape(what)}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 14}" text-anchor="end" {small}>{times[-1]:,.4g} {escape(unit)}</text></svg>'
    )


def block(text: str) -> str:
    """Text as it stands, in columns."""
    return f'<pre style="font-size:12px;line-height:1.35">{escape(text)}</pre>'
