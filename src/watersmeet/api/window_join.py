"""The verb for endless inputs: joins by windows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from watersmeet.api.explanation import Choice
from watersmeet.api.explanation import conditions as described
from watersmeet.api.result import Result
from watersmeet.api.run import PageOption, Settings, Told, check_least, open_run, open_sources, two_names, with_queues
from watersmeet.core.choices import check_choice
from watersmeet.core.spec import On, parse_on
from watersmeet.core.windows import Span, WindowJoinSpec, parse_windows
from watersmeet.drivers.live import WAIT, LiveOperator, queue_bytes
from watersmeet.drivers.progress import Progress

if TYPE_CHECKING:
    from watersmeet.spill import FileStore


def window_join(
    left: object,
    right: object,
    on: On | None = None,
    *,
    time: str | Sequence[str] | None = None,
    window: object,
    how: str = "inner",
    slide: Span | None = None,
    lateness: Span | None = None,
    late: str | None = None,
    idle: Span | float | None = None,
    emit: str = "early",
    memory: str | int = "64 MiB",
    algorithm: str = "auto",
    suffixes: tuple[str, str] = ("", "_right"),
    spill: str | os.PathLike[str] | None = None,
    spool: str | int | None = None,
    wait: Span | float = WAIT,
    names: tuple[str, str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    page: PageOption = None,
    **options: Any,
) -> Result:
    """Join two inputs that may never end, by windows: every pair whose times lie close enough, exactly once.

    A row of the left and a row of the right input meet if their keys match and one is in its input's window at the
    other's time: with `window=("10 min", "1 min")`, a left row up to ten minutes older than the right one, or a right
    row up to one minute older than the left one. What has left its window is forgotten, so state stays bounded; what
    does not fit into `memory` is spilled. The rows of an input should come in the order of their times, or be out of
    order by no more than `lateness`.

    :param on: a column of both inputs, `"left_column = right_column"`, or a list of these; a band may stand beside
        them, or alone. Without, all rows meet whose times lie close enough.
    :param time: the column that tells the time, `"left_column = right_column"` if they have different names: dates,
        timestamps or integers. Rows without a time meet nothing.
    :param window: `"10 min"`, or for a column of integers a number; `wm.rows(1000)`, the last so many rows in order of
        arrival, without `time`; `wm.landmark("1 day")`, all rows since the last midnight; `wm.age("1 min", "10 min")`,
        rows that are so old. Two of them, for the left and the right input, if they differ.
    :param how: `"inner"`, all pairs; `"left"`, `"right"` or `"full"`, also rows of that input, or of both, that have no
        partner, once their window has passed; `"semi"`, rows of the left input that have a partner, once; `"anti"`,
        those that have none. A row without a time or a key has no partner, and comes at once; one that is dropped for
        being late does not come.
    :param slide: windows move by so much at once, and keep rows until then.
    :param lateness: by so much a row may be older than the newest of its input before it.
    :param late: what becomes of rows that are later still: `"keep"` lets them meet what has not expired, `"drop"`
        ignores them, `"error"` ends the join. They are counted in `progress.late`. Unless given, they are kept, or
        dropped if results are to be final.
    :param idle: after so long, `"30 s"` or seconds, an input that says nothing while the other does no longer holds it
        back: it counts as having come as far as the other, until it speaks. What it then says may be late. A source
        that has nothing to say can tell the time in a punctuation, `wm.Punctuation({"ts": wm.between(None, now)})`.
    :param emit: `"early"`: results come as they are found; `"final"`: in the order of their times, each once no result
        of an earlier time can follow. The time of a pair is that of its later row, that of a row which comes alone
        the last at which it could have met another. What waits is part of `memory`, and
        is spilled where it does not fit.
    :param memory: bytes, or words such as `"64 MiB"`; one eighth is for the input queues, the rest for the join.
    :param algorithm: `"auto"`, or the name of one.
    :param suffixes: added to columns that both inputs have and that are not joined on.
    :param spill: where to put what does not fit into memory; the system's temporary directory unless given.
    :param wait: after so much silence on all inputs, in seconds or as `"50 ms"`, the time is used for spilled rows.
    :param spool: bytes, or words such as `"2 GiB"`, by which a source that is faster than the join for a while may run
        ahead: what the queues in memory have no room for goes to disk under `spill`, in order. Without it, sources
        wait. Tables and frames are never spooled: their rows are in memory anyway.
    :param names: what errors and progress call the inputs.
    :param on_progress: called in your thread about ten times a second, and once at the end. Unless given, a notebook
        shows progress below the cell, once a join has taken half a second.
    :param page: True: serve a live page of this join on 127.0.0.1 while it runs; standard error tells the address. Or
        a port, `"HOST:PORT"` or a `wm.Page` that several joins share. Needs `pip install starlette uvicorn`.
    :param options: the algorithm's own.

    >>> views = pa.table({"ad": [1, 2, 1], "ts": [0, 5, 100], "page": ["a", "b", "c"]})
    >>> clicks = pa.table({"ad": [1, 1, 2], "ts": [8, 90, 104]})
    >>> window_join(views, clicks, on="ad", time="ts", window=(10, 0), memory="8 MiB").table().to_pylist()
    [{'ad': 1, 'ts': 0, 'page': 'a', 'ts_right': 8}]
    """
    from watersmeet.planner import WINDOW_ALGORITHMS

    conditions = parse_on(on)
    windows = parse_windows(window, time, slide, lateness, late, idle, emit)
    settings = Settings.of(memory, spill, wait, on_progress, page, spool)
    check_choice(algorithm, options, WINDOW_ALGORITHMS)
    called = two_names(names, (left, right), ("left", "right"))

    def specify(schemas: Sequence[pa.Schema]) -> WindowJoinSpec:
        from watersmeet.planner import choose_window

        left_schema, right_schema = schemas
        spec = WindowJoinSpec(
            left_schema, right_schema, conditions, how, suffixes=suffixes, names=called, window=windows
        )
        rest = settings.memory - queue_bytes(settings.memory)
        check_least(choose_window(spec, rest, algorithm)[0].least_memory(spec), settings.memory)
        return spec

    def make(spec: WindowJoinSpec, rest: int, store: FileStore) -> LiveOperator:
        from watersmeet import planner

        return planner.build_window(spec, rest, store, algorithm, **options)

    def chosen(spec: WindowJoinSpec) -> Choice:
        from watersmeet.planner import choose_window

        kind, reason = choose_window(spec, settings.memory - queue_bytes(settings.memory), algorithm)
        return Choice(kind.name, reason, with_queues(kind.least_memory(spec)))

    sources = open_sources(zip(called, (left, right), strict=True))
    told = Told("window_join", described(on), how, window=f"{window} by {time}" if time is not None else str(window))
    return Result(*open_run(sources, specify, make, settings, told=told, choose=chosen))
