"""The definition of as-of joins as nested loops over plain Python values.

Every as-of join is checked against it, and shares nothing with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from watersmeet.checks.oracle.nested_loops import NOT_A_NUMBER, comparable_values, reference_pairs
from watersmeet.core.asof import AsofSpec
from watersmeet.core.spec import JoinSpec, Output


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
    times = _times(left, right, spec)
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


def _times(left: pa.Table, right: pa.Table, spec: AsofSpec) -> tuple[list[Any], list[Any]]:
    """Nanoseconds, or the numbers themselves; neither NULL nor NaN is a time."""
    columns = left.column(spec.times.time[0]), right.column(spec.times.time[1])
    pair = comparable_values(columns[0], columns[1].type), comparable_values(columns[1], columns[0].type)
    told = [[None if value == NOT_A_NUMBER else value for value in each] for each in pair]
    return told[0], told[1]


def _length(span: Any) -> Any:
    """A length in the same."""
    if isinstance(span, timedelta):
        return ((span.days * 86_400 + span.seconds) * 10**6 + span.microseconds) * 1000
    return span
