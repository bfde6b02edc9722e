"""The definition of a window join as nested loops over plain Python values; every other window join is checked against
it, and shares nothing with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pyarrow as pa

from watersmeet.core.windows import Age, Landmark, Rows, Window, WindowJoinSpec
from watersmeet.joins.reference import comparable_values, reference_pairs


def reference_window_pairs(
    left: pa.Table, right: pa.Table, spec: WindowJoinSpec, order: Sequence[int]
) -> list[tuple[int, int]]:
    """The row numbers of all pairs that meet, if rows arrive in this order of inputs (0: left, 1: right).

    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.core.windows import parse_windows
    >>> left, right = pa.table({"k": [1, 1], "t": [10, 20]}), pa.table({"k": [1, 1, 1], "t": [9, 13, 14]})
    >>> spec = WindowJoinSpec(left.schema, right.schema, parse_on("k"), window=parse_windows((3, 6), "t"))
    >>> reference_window_pairs(left, right, spec, [0, 1, 1, 0, 1])
    [(0, 0), (0, 1), (1, 2)]
    """
    arrived: tuple[list[int], list[int]] = ([], [])
    for position, side in enumerate(order):
        arrived[side].append(position)
    pairs = reference_pairs(left, right, spec)
    if spec.counted:
        return [(i, j) for i, j in pairs if _counted(spec, arrived, i, j)]
    times = _times(left, right, spec)
    watermarks = tuple(_watermarks(column, _length(spec.window.lateness)) for column in times)
    return [(i, j) for i, j in pairs if _meet(spec, times, watermarks, arrived, i, j)]


def _counted(spec: WindowJoinSpec, arrived: tuple[list[int], list[int]], i: int, j: int) -> bool:
    """Whether the earlier row was among the last so many of its input when the later one came."""
    earlier = 0 if arrived[0][i] < arrived[1][j] else 1
    row, other = ((i, arrived[1][j]), (j, arrived[0][i]))[earlier]
    since = sum(arrived[earlier][row] <= position < other for position in arrived[earlier])
    window = spec.window.windows[earlier]
    assert isinstance(window, Rows)
    return since <= window.count


def _meet(
    spec: WindowJoinSpec,
    times: tuple[list[int | None], list[int | None]],
    watermarks: tuple[list[int | None], ...],
    arrived: tuple[list[int], list[int]],
    i: int,
    j: int,
) -> bool:
    left, right = times[0][i], times[1][j]
    if left is None or right is None:
        return False
    windows, slide = spec.window.windows, spec.window.slide
    step = None if slide is None else _length(slide)
    if not (_inside(windows[0], left, right, step) or _inside(windows[1], right, left, step)):
        return False
    marks = watermarks[0][i], watermarks[1][j]
    is_late = [mark is not None and time < mark for time, mark in zip((left, right), marks, strict=True)]
    if spec.window.late != "keep":
        return not any(is_late)
    later = 1 if arrived[0][i] < arrived[1][j] else 0
    mark = marks[later]
    if not is_late[later] or mark is None:
        return True
    # A late row meets what has not expired by then: what rows that are in time, the oldest of them too, may meet.
    earlier_time = right if later == 0 else left
    return earlier_time >= min(mark, _start(windows[1 - later], mark, step))


def _inside(window: Window, time: int, at: int, step: int | None) -> bool:
    """Whether a row of this time is in its window at the time of the other row."""
    if time > at or time < _start(window, at, step):
        return False
    return not isinstance(window, Age) or at - time >= _length(window.least)


def _start(window: Window, at: int, step: int | None) -> int:
    """Where the window begins at a time."""
    if isinstance(window, Landmark):
        if window.every is None:
            assert isinstance(window.since, int), "the cases give numbers"
            return window.since
        every = _length(window.every)
        return at // every * every
    assert not isinstance(window, Rows)
    span = _length(window.most if isinstance(window, Age) else window)
    return (at if step is None else at // step * step) - span


def _watermarks(times: list[int | None], lateness: int) -> list[int | None]:
    """For each row, the time from which on it is not late: the newest before it, less the lateness."""
    marks: list[int | None] = []
    newest: int | None = None
    for time in times:
        marks.append(None if newest is None else newest - lateness)
        if time is not None and (newest is None or time > newest):
            newest = time
    return marks


def _times(left: pa.Table, right: pa.Table, spec: WindowJoinSpec) -> tuple[list[int | None], list[int | None]]:
    """Nanoseconds, or the integers themselves."""
    assert spec.window.time is not None
    columns = left.column(spec.window.time[0]), right.column(spec.window.time[1])
    return comparable_values(columns[0], columns[1].type), comparable_values(columns[1], columns[0].type)


def _length(span: int | timedelta) -> int:
    if isinstance(span, int):
        return span
    return ((span.days * 86_400 + span.seconds) * 10**6 + span.microseconds) * 1000
