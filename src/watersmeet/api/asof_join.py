"""The verb for as-of joins: each row with the nearest by time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from watersmeet.api.explanation import Choice
from watersmeet.api.explanation import conditions as described
from watersmeet.api.result import Result
from watersmeet.api.run import PageOption, Settings, Told, check_least, open_run, open_sources, two_names, with_queues
from watersmeet.core.asof import AsofSpec, AsofTimes, Lateness, parse_asof
from watersmeet.core.bands import Width
from watersmeet.core.choices import check_choice
from watersmeet.core.spec import On, parse_on
from watersmeet.core.windows import Span
from watersmeet.drivers.live import WAIT, LiveOperator
from watersmeet.drivers.progress import Progress
from watersmeet.sources import Source

if TYPE_CHECKING:
    from watersmeet.spill import FileStore

_TABLE_ROWS = 32_768
"""Rows of a table that are handed over together: about as many as are looked up together."""
_QUEUE_ROWS = 4 * _TABLE_ROWS


def asof_join(
    left: object,
    right: object,
    on: On | None = None,
    *,
    time: str | Sequence[str],
    direction: str = "backward",
    tolerance: Width | str | None = None,
    how: str = "inner",
    lateness: Lateness | tuple[Lateness, Lateness] = None,
    late: str = "keep",
    memory: str | int = "64 MiB",
    suffixes: tuple[str, str] = ("", "_right"),
    spill: str | os.PathLike[str] | None = None,
    spool: str | int | None = None,
    wait: Span | float = WAIT,
    names: tuple[str, str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    page: PageOption = None,
    **options: Any,
) -> Result:
    """Join each row of the left input with the one row of the right that is nearest by time, among rows of its key.

    A left row is answered as soon as the right input has passed it, or has ended; no later row changes an answer. What
    nobody will ask for any more is forgotten, and what does not fit into `memory` goes to disk.

    :param on: a column of both inputs, `"left_column = right_column"`, or a list of these; None: all rows are on one
        timeline. A row whose key is NULL has no partner.
    :param time: the column that tells the time, `"left_column = right_column"` if they have different names:
        timestamps, dates, integers, floats or decimals. A row whose time is NULL or NaN has no partner.
    :param direction: `"backward"`, the last right row at or before the left row's time; `"forward"`, the first at or
        after it; `"nearest"`, the closer of both, and the earlier if they are equally close. Of right rows of one time
        the last in the order of the input counts, looking forward the first.
    :param tolerance: right rows further away than this do not count: `"5 s"`, or a number where times are numbers.
    :param how: `"inner"`: left rows without a partner are left out; `"left"`: they come with NULLs.
    :param lateness: by so much a row may be older than the newest of its input before it; one for both inputs, or two.
        None: nothing is known of the order. Then how far tables in memory are out of order is measured, and anything
        else is sorted, within the memory, and answered at its end; so it is with `"unlimited"`.
    :param late: what becomes of left rows that are later still: `"keep"` answers them if what is remembered proves
        the answer, and else as rows without a partner; `"drop"` ignores them, `"error"` ends the join. Right rows that
        are later are never used. They are counted in `progress.late`.
    :param memory: bytes, or words such as `"64 MiB"`; one eighth is for the input queues, the rest for the join.
    :param suffixes: added to columns that both inputs have and that are not joined on.
    :param spill: where to put what does not fit into memory; the system's temporary directory unless given.
    :param wait: after so much silence on all inputs, in seconds or as `"50 ms"`, the time is used for other work.
    :param spool: bytes, or words such as `"2 GiB"`, by which a source that is faster than the join for a while may run
        ahead: what the queues in memory have no room for goes to disk under `spill`, in order. Without it, sources
        wait. Tables and frames are never spooled: their rows are in memory anyway.
    :param names: what errors and progress call the inputs.
    :param on_progress: called in your thread about ten times a second, and once at the end. Unless given, a notebook
        shows progress below the cell, once a join has taken half a second.
    :param page: True: serve a live page of this join on 127.0.0.1 while it runs; standard error tells the address. Or
        a port, `"HOST:PORT"` or a `wm.Page` that several joins share. Needs `pip install starlette uvicorn`.
    :param options: the algorithm's own.

    >>> trades = pa.table({"sym": ["a", "b", "a"], "ts": [3, 4, 9], "price": [10.0, 7.5, 10.5]})
    >>> quotes = pa.table({"sym": ["a", "a", "b"], "ts": [1, 3, 6], "bid": [9.8, 9.9, 7.4]})
    >>> asof_join(trades, quotes, on="sym", time="ts", how="left", memory="8 MiB").table().to_pandas()
      sym  ts  price  ts_right  bid
    0   a   3   10.0       3.0  9.9
    1   b   4    7.5       NaN  NaN
    2   a   9   10.5       3.0  9.9
    """
    conditions = parse_on(on)
    times = parse_asof(time, direction, tolerance, lateness, late)
    settings = Settings.of(memory, spill, wait, on_progress, page, spool)
    called = two_names(names, (left, right), ("left", "right"))
    if options:
        from watersmeet.joins.asof.join import AsofJoin

        check_choice("asof", options, {"asof": AsofJoin})
    sources = open_sources(zip(called, (left, right), strict=True), _TABLE_ROWS)
    if lateness is None:
        times = _measured(times, sources)

    def specify(schemas: Sequence[pa.Schema]) -> AsofSpec:
        from watersmeet.joins.asof.join import AsofJoin

        spec = AsofSpec(schemas[0], schemas[1], conditions, how, suffixes=suffixes, names=called, times=times)
        check_least(AsofJoin.least_memory(spec), settings.memory)
        return spec

    def make(spec: AsofSpec, rest: int, store: FileStore) -> LiveOperator:
        from watersmeet import planner

        return planner.build_asof(spec, rest, store, **options)

    def chosen(spec: AsofSpec) -> Choice:
        from watersmeet.joins.asof.join import AsofJoin
        from watersmeet.planner import ASOF_REASON

        return Choice(AsofJoin.name, ASOF_REASON, with_queues(AsofJoin.least_memory(spec)))

    within = "" if tolerance is None else f" within {tolerance}"
    told = Told("asof_join", described(on or ()), how, window=f"{direction} by {time}{within}")
    return Result(*open_run(sources, specify, make, settings, told=told, choose=chosen, queue_rows=_QUEUE_ROWS))


def _measured(times: AsofTimes, sources: Sequence[Source]) -> AsofTimes:
    """How far inputs are out of order that can be looked at before they are read."""
    from dataclasses import replace

    from watersmeet.records.asof_times import disorder
    from watersmeet.sources.base import BaseSource

    found: list[Width | None] = []
    for source, column in zip(sources, times.time, strict=True):
        values = source.at_hand(column) if isinstance(source, BaseSource) else None
        found.append(None if values is None else disorder(values))
    return replace(times, lateness=(found[0], found[1]))
