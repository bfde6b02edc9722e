"""The definition of windows of several inputs as loops over plain Python values, sharing nothing with the operator."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pyarrow as pa

from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.windows import Rows
from watersmeet.joins.multi_reference import reference_combinations
from watersmeet.joins.reference import comparable_values


def reference_window_combinations(
    tables: Sequence[pa.Table], spec: MultiSpec, order: Sequence[int]
) -> list[tuple[int, ...]]:
    """The row numbers of all combinations within the windows, if rows arrive in this order of inputs.

    >>> from watersmeet.core.many_windows import parse_many_windows
    >>> schema = pa.schema({"k": pa.int64(), "t": pa.int64()})
    >>> windows = parse_many_windows({"r": 3, "s": 1, "u": 5}, "rsu", time="t")
    >>> spec = MultiSpec.of({name: schema for name in "rsu"}, ["r.k = s.k", "s.k = u.k"], window=windows)
    >>> r, s, u = (pa.table({"k": [7] * len(times), "t": times}) for times in ([10, 6], [11, 10, 9], [9]))
    >>> reference_window_combinations([r, s, u], spec, [0, 0, 1, 1, 1, 2])
    [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 2, 0)]
    """
    arrived: list[list[int]] = [[] for _ in tables]
    for position, number in enumerate(order):
        arrived[number].append(position)
    found = reference_combinations(tables, spec)
    assert spec.window is not None
    if spec.window.counted:
        return [rows for rows in found if _counted(spec, arrived, rows)]
    assert spec.window.time is not None
    columns = [table.column(name) for table, name in zip(tables, spec.window.time, strict=True)]
    times = [comparable_values(column, columns[0].type) for column in columns]
    marks = [_marks(each, _length(spec.window.lateness)) for each in times]
    return [rows for rows in found if _timed(spec, times, marks, arrived, rows)]


def _counted(spec: MultiSpec, arrived: list[list[int]], rows: tuple[int, ...]) -> bool:
    """Whether each row was among the last so many of its input when the last of them came."""
    assert spec.window is not None
    last = max(arrived[number][row] for number, row in enumerate(rows))
    for number, row in enumerate(rows):
        window = spec.window.windows[number]
        assert isinstance(window, Rows)
        since = sum(arrived[number][row] <= position < last for position in arrived[number])
        if since > window.count:
            return False
    return True


def _timed(
    spec: MultiSpec,
    times: list[list[int | None]],
    marks: list[list[int | None]],
    arrived: list[list[int]],
    rows: tuple[int, ...],
) -> bool:
    assert spec.window is not None
    told = [times[number][row] for number, row in enumerate(rows)]
    moments = [time for time in told if time is not None]
    if len(moments) < len(rows):
        return False
    lengths = [_length(window) for window in spec.window.windows if not isinstance(window, Rows)]
    newest = max(moments)
    if any(moment < newest - length for moment, length in zip(moments, lengths, strict=True)):
        return False
    bounds = [marks[number][row] for number, row in enumerate(rows)]
    late = [mark is not None and moment < mark for moment, mark in zip(moments, bounds, strict=True)]
    if spec.window.late != "keep":
        return not any(late)
    last = max(range(len(rows)), key=lambda number: arrived[number][rows[number]])
    mark = bounds[last]
    if not late[last] or mark is None:
        return True
    # A late row meets what has not expired by then: what rows of its input that are in time may meet.
    return all(moments[i] >= mark - lengths[i] for i in range(len(rows)) if i != last)


def _marks(times: list[int | None], lateness: int) -> list[int | None]:
    """For each row, the time from which on it is not late: the newest before it, less the lateness."""
    marks: list[int | None] = []
    newest: int | None = None
    for time in times:
        marks.append(None if newest is None else newest - lateness)
        if time is not None and (newest is None or time > newest):
            newest = time
    return marks


def _length(span: int | timedelta) -> int:
    if isinstance(span, int):
        return span
    return ((span.days * 86_400 + span.seconds) * 10**6 + span.microseconds) * 1000
