"""The definitions of joins by times as nested loops over plain Python values: by windows, of two inputs and of several,
and as-of.

Every such join is checked against them, and shares nothing with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import pyarrow as pa

from watersmeet.checks.oracle.kinds import Result, results_of
from watersmeet.checks.oracle.nested_loops import (
    NOT_A_NUMBER,
    comparable_values,
    reference_combinations,
    reference_pairs,
)
from watersmeet.core.asof import AsofSpec
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import JoinSpec, Output
from watersmeet.core.windows import Age, Landmark, Rows, Window, WindowJoinSpec

Look: TypeAlias = "tuple[float, Sequence[tuple[int, int | None]]]"
"""A moment at which somebody looked at what had come since the last look: for each row its input and None; where an
input said that none of its rows up to a time follows, the input and this time."""


def reference_window_pairs(
    left: pa.Table, right: pa.Table, spec: WindowJoinSpec, order: Sequence[int], looks: Sequence[Look] | None = None
) -> list[tuple[int, int]]:
    """The row numbers of all pairs that meet, if rows arrive in this order of inputs (0: left, 1: right).

    `looks` says the same with the times at which they were looked at, and what inputs said between their rows.

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
    watermarks = _watermarks(times, spec, looks or _at_once(order))
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
    watermarks: Sequence[list[int | None]],
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


def _at_once(order: Sequence[int]) -> list[Look]:
    return [(0.0, [(number, None) for number in order])]


def _watermarks(
    times: Sequence[list[int | None]], spec: WindowJoinSpec | MultiSpec, looks: Sequence[Look]
) -> list[list[int | None]]:
    """For each row, the time from which on it is not late: what its input had reached before it, less the lateness.

    An input has reached its newest time; or, if it says nothing for as long as `idle` while another does, what all
    those have reached of which that cannot be said.
    """
    assert spec.window is not None
    lateness, idle = _length(spec.window.lateness), spec.window.idle
    marks: list[list[int | None]] = [[] for _ in times]
    newest: list[int | None] = [None for _ in times]
    spoke = [looks[0][0] - 1e-9 for _ in times]

    def reach(side: int, time: int | None) -> None:
        before = newest[side]
        newest[side] = time if before is None or (time is not None and time > before) else before

    def overtake(at: float) -> None:
        if idle is None:
            return
        silent = [at >= last + idle and any(other > last for other in spoke) for last in spoke]
        reached = [newest[number] for number in range(len(times)) if not silent[number]]
        least = None if any(time is None for time in reached) else min(time for time in reached if time is not None)
        for number in range(len(times)):
            if silent[number]:
                reach(number, least)

    for at, items in looks:
        overtake(at)
        for side, _ in items:
            spoke[side] = at
        for side, told in items:
            if told is None:
                found, row = newest[side], len(marks[side])
                marks[side].append(None if found is None else found - lateness)
                reach(side, times[side][row])
            else:
                reach(side, told + 1 + lateness)
            overtake(at)
    return marks


def reference_window_results(
    left: pa.Table, right: pa.Table, spec: WindowJoinSpec, order: Sequence[int], looks: Sequence[Look] | None = None
) -> list[Result]:
    """What a window join of its kind gives; rows that are dropped do not come out alone."""
    looks = looks or [(0.0, [(side, None) for side in order])]
    pairs = reference_window_pairs(left, right, spec, order, looks)
    results = results_of(spec.kind, pairs, left.num_rows, right.num_rows)
    if spec.window.late == "keep" or spec.counted or spec.kind.name in ("inner", "semi"):
        return results
    times = _times(left, right, spec)
    marks = _watermarks(times, spec, looks)

    def is_dropped(side: int, row: int) -> bool:
        time, mark = times[side][row], marks[side][row]
        return time is not None and mark is not None and time < mark

    def comes_out(result: Result) -> bool:
        if len(result) == 1:
            return not is_dropped(0, result[0] or 0)
        alone = [(side, row) for side, row in enumerate(result) if row is not None]
        return len(alone) == 2 or not is_dropped(*alone[0])

    return [result for result in results if comes_out(result)]


def reference_result_times(results: pa.Table, spec: WindowJoinSpec) -> list[tuple[str, int]]:
    """Of each result that has a time, whether it is a pair or whose row comes alone, and what the results of each sort
    are in the order of: the later time of a pair, and when the window of a row closes that comes alone.
    """
    assert spec.window.time is not None
    columns: list[list[int | None]] = []
    for side, name in enumerate(spec.window.time):
        column = spec.input(side).get_field_index(name)
        places = [i for i, made_of in enumerate(spec.columns) if made_of[side] == column]
        other = spec.time_types[1 - side]
        columns.append(comparable_values(results.column(places[0]), other) if places else [None] * results.num_rows)
    found = []
    for left, right in zip(*columns, strict=True):
        if left is not None and right is not None:
            found.append(("pair", max(left, right)))
        elif left is not None or right is not None:
            side = 0 if left is not None else 1
            closes = _closing(spec, side, left if left is not None else right or 0)
            if closes is not None:
                found.append((("left", "right")[side], closes))
    return found


def _closing(spec: WindowJoinSpec, side: int, time: int) -> int | None:
    """What rises with the time at which the window of a row closes; None if it never does."""
    window = spec.window.windows[side]
    if isinstance(window, Landmark):
        return None if window.every is None else time // _length(window.every)
    assert not isinstance(window, Rows)
    end = time + _length(window.most if isinstance(window, Age) else window)
    return end if spec.window.slide is None else end // _length(spec.window.slide)


def _times(left: pa.Table, right: pa.Table, spec: WindowJoinSpec) -> tuple[list[int | None], list[int | None]]:
    """Nanoseconds, or the integers themselves."""
    assert spec.window.time is not None
    columns = left.column(spec.window.time[0]), right.column(spec.window.time[1])
    return comparable_values(columns[0], columns[1].type), comparable_values(columns[1], columns[0].type)


def _length(span: Any) -> int:
    """Nanoseconds, or the number itself."""
    if not isinstance(span, timedelta):
        number: int = span  # of as-of joins it may be a float: it is subtracted, and no more
        return number
    return ((span.days * 86_400 + span.seconds) * 10**6 + span.microseconds) * 1000


def reference_window_combinations(
    tables: Sequence[pa.Table], spec: MultiSpec, order: Sequence[int], looks: Sequence[Look] | None = None
) -> list[tuple[int, ...]]:
    """The row numbers of all combinations within the windows, if rows arrive in this order of inputs.

    `looks` says the same with the times at which they were looked at.

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
        return [rows for rows in found if _all_counted(spec, arrived, rows)]
    assert spec.window.time is not None
    columns = [table.column(name) for table, name in zip(tables, spec.window.time, strict=True)]
    times = [comparable_values(column, columns[0].type) for column in columns]
    marks = _watermarks(times, spec, looks or _at_once(order))
    return [rows for rows in found if _timed(spec, times, marks, arrived, rows)]


def _all_counted(spec: MultiSpec, arrived: list[list[int]], rows: tuple[int, ...]) -> bool:
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


def reference_asof_pairs(left: pa.Table, right: pa.Table, spec: AsofSpec) -> list[tuple[int, int | None]]:
    """The row numbers of each left row and its partner, None if it has none and comes without.

    >>> from watersmeet.core.asof import parse_asof
    >>> left, right = pa.table({"t": [10, 20, 2]}), pa.table({"t": [9, 13, 13, 30]})
    >>> for direction in ("backward", "forward", "nearest"):
    ...     spec = AsofSpec(left.schema, right.schema, (), "left", times=parse_asof("t", direction))
    ...     print(direction, reference_asof_pairs(left, right, spec))
    backward [(0, 0), (1, 2), (2, None)]
    forward [(0, 1), (1, 3), (2, 0)]
    nearest [(0, 0), (1, 2), (2, 0)]
    """
    times = asof_times(left, right, spec)
    late = [_late(times[side], spec.times.lateness[side]) for side in (0, 1)]
    partners: list[list[int]] = [[] for _ in range(left.num_rows)]
    if spec.on:
        plain = JoinSpec(spec.left, spec.right, spec.on, output=Output.PAIRS, suffixes=("_l", "_r"))
        for i, j in reference_pairs(left, right, plain):
            partners[i].append(j)
    else:
        partners = [list(range(right.num_rows)) for _ in range(left.num_rows)]
    found: list[tuple[int, int | None]] = []
    for i, time in enumerate(times[0]):
        is_late = late[0][i] is not None
        if is_late and spec.times.late == "drop":
            continue
        usable = [(times[1][j], j) for j in sorted(partners[i]) if times[1][j] is not None and late[1][j] is None]
        partner = None if time is None else _partner(time, late[0][i], usable, spec)
        if partner is not None or spec.how == "left":
            found.append((i, partner))
    return found


def _partner(time: Any, floor: Any, usable: Sequence[tuple[Any, int]], spec: AsofSpec) -> int | None:
    """Among right rows in their order; a left row that comes late asks as of the time that was reached before it."""
    direction, tolerance = spec.times.direction, _length(spec.times.tolerance)
    asked = time if floor is None else floor
    before = after = None
    for moment, j in usable:
        if moment <= asked and (before is None or moment >= before[0]):
            before = (moment, j)
        if moment >= asked and (after is None or moment < after[0]):
            after = (moment, j)
    if before is not None and (before[0] > time or (tolerance is not None and asked - before[0] > tolerance)):
        before = None
    if floor is not None and before is None:
        return None  # what may have been nearer can have been forgotten
    if after is not None and tolerance is not None and after[0] - time > tolerance:
        after = None
    if direction == "backward":
        return None if before is None else before[1]
    if direction == "forward":
        return None if after is None or floor is not None else after[1]
    if before is None or (after is not None and after[0] - time < time - before[0]):
        return None if after is None else after[1]
    return before[1]


def _late(times: Sequence[Any], lateness: Any) -> list[Any]:
    """For each row that comes late, the time that was reached before it; None for the others."""
    found: list[Any] = []
    newest = None
    for time in times:
        mark = None if newest is None or lateness is None else newest - _length(lateness)
        found.append(mark if mark is not None and time is not None and time < mark else None)
        if time is not None and (newest is None or time > newest):
            newest = time
    return found


def asof_times(left: pa.Table, right: pa.Table, spec: AsofSpec) -> tuple[list[Any], list[Any]]:
    """Of both inputs, in nanoseconds, or the numbers themselves; neither NULL nor NaN is a time."""
    columns = left.column(spec.times.time[0]), right.column(spec.times.time[1])
    pair = comparable_values(columns[0], columns[1].type), comparable_values(columns[1], columns[0].type)
    told = [[None if value == NOT_A_NUMBER else value for value in each] for each in pair]
    return told[0], told[1]
