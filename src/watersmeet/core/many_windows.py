"""Windows of several inputs: which combinations of rows meet.

Each input has a window, of time or of so many rows. With windows of time, a combination is a result if its conditions
hold and, at the time of its newest row, each of its rows is in its input's window; so the order in which rows arrive
does not matter::

    windows of 3 (r), 1 (s), 5 (t)     newest = max(r.t, s.t, t.t)
                                       r.t >= newest - 3   and   s.t >= newest - 1   and   t.t >= newest - 5

With windows of rows it is a result if, when the last of its rows arrived, each of the others was among the last so
many rows of its input. For two inputs that is what `core.windows` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import pyarrow as pa

from watersmeet.core.errors import SpecError
from watersmeet.core.windows import LATE, Rows, Span, common_tick, parse_idle, parse_span, parse_window, units_of

ByInput: TypeAlias = "Mapping[str, object] | object"


@dataclass(frozen=True, slots=True)
class ManyWindows:
    """The windows of several inputs, and what is done about rows that come late."""

    windows: tuple[int | timedelta | Rows, ...]
    time: tuple[str, ...] | None = None
    """The columns that tell the time; None for windows of so many rows."""
    lateness: int | timedelta = 0
    """By so much a row may be older than the newest of its input before it."""
    late: str = "keep"
    """What becomes of later rows: they meet what has not expired, are dropped, or end the join with an error."""
    idle: float | None = None
    """Seconds after which an input that says nothing no longer holds back the others (`engine.silence`); None: never.
    """

    @property
    def counted(self) -> bool:
        """Whether the windows count rows."""
        return isinstance(self.windows[0], Rows)

    def units(self, types: Sequence[pa.DataType]) -> Units:
        """Everything in units of the time columns, which have these types."""
        if self.counted:
            return Units(tuple(window.count for window in self.windows if isinstance(window, Rows)))
        assert self.time is not None
        tick = common_tick(list(zip(self.time, types, strict=True)))
        lengths = [window for window in self.windows if not isinstance(window, Rows)]
        spans = tuple(units_of(span, tick, type_, "window") for span, type_ in zip(lengths, types, strict=True))
        return Units(spans, units_of(self.lateness, tick, types[0], "lateness"), tick)


@dataclass(frozen=True, slots=True)
class Units:
    """Windows in units of time, or in rows."""

    spans: tuple[int, ...]
    lateness: int = 0
    tick: int | None = None
    """Nanoseconds of a unit; None if the time columns hold integers."""


def parse_many_windows(
    window: ByInput,
    names: Sequence[str],
    time: ByInput = None,
    lateness: Span | None = None,
    late: str = "keep",
    idle: object = None,
) -> ManyWindows:
    """The windows of several inputs from what people write: one for all, or one for each by its name.

    >>> parse_many_windows({"r": "10 min", "s": "1 min"}, ["r", "s"], "ts").time
    ('ts', 'ts')
    """
    windows = []
    for name, each in zip(names, _each(window, names, "window"), strict=True):
        found = parse_window(each)
        if not isinstance(found, int | timedelta | Rows):
            raise SpecError(
                f"window {each!r} of {name} is not for several inputs; write a length of time such as '10 min', or "
                f"wm.rows(1000)"
            )
        windows.append(found)
    if late not in LATE:
        raise SpecError(f"late={late!r} is not understood; write 'keep', 'drop' or 'error'")
    counted = [isinstance(each, Rows) for each in windows]
    if any(counted) and not all(counted):
        raise SpecError("one window counts rows and another measures time; let all do the same")
    if all(counted):
        for extra, given in (("time", time), ("lateness", lateness), ("idle", idle)):
            if given is not None:
                raise SpecError(f"a window of rows knows no time, so {extra} has no meaning; leave it out")
        return ManyWindows(tuple(windows))
    if time is None:
        raise SpecError("a window of time needs time=..., the column that tells it, or one for each input by its name")
    columns = _each(time, names, "time")
    if not all(isinstance(column, str) for column in columns):
        raise SpecError(f"time={time!r} is not understood; write a column of all inputs, or one for each by its name")
    return ManyWindows(
        tuple(windows), tuple(map(str, columns)), 0 if lateness is None else parse_span(lateness, "lateness"), late,
        None if idle is None else parse_idle(idle),
    )  # fmt: skip


def _each(given: ByInput, names: Sequence[str], what: str) -> list[object]:
    if not isinstance(given, Mapping):
        return [given] * len(names)
    missing = [name for name in names if name not in given]
    unknown = [str(name) for name in given if name not in names]
    if missing or unknown:
        raise SpecError(
            f"{what}={given!r} must have an entry for each of {', '.join(names)}; "
            + (f"there is none for {', '.join(missing)}" if missing else f"there is no input {', '.join(unknown)}")
        )
    return [given[name] for name in names]
