"""`wm.join`: two inputs joined as their rows arrive."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from watersmeet.api.explanation import Choice
from watersmeet.api.explanation import conditions as described
from watersmeet.api.result import Result
from watersmeet.api.run import (
    PageOption,
    Settings,
    Told,
    check_least,
    close_all,
    cores,
    open_run,
    open_sources,
    two_names,
    with_queues,
)
from watersmeet.core.choices import check_choice, option_names
from watersmeet.core.errors import SpecError
from watersmeet.core.given import plain_number
from watersmeet.core.kinds import kind_of
from watersmeet.core.promises import Promises
from watersmeet.core.spec import JoinSpec, On, parse_on
from watersmeet.core.windows import Span, parse_seconds
from watersmeet.drivers.live import WAIT, LiveOperator
from watersmeet.drivers.progress import Progress
from watersmeet.drivers.shedding import check_shed, loss_bytes, refuse_unfit
from watersmeet.sources import Source

if TYPE_CHECKING:
    from watersmeet.engine.shell import Operator
    from watersmeet.spill import FileStore

FEW_ROWS = 1 << 17
"""Of both inputs, which one thread joins as fast as several."""


def join(
    left: object,
    right: object,
    on: On,
    *,
    how: str = "inner",
    memory: str | int = "64 MiB",
    algorithm: str = "auto",
    delay: float | str | timedelta | None = None,
    threads: int | None = None,
    suffixes: tuple[str, str] = ("", "_right"),
    spill: str | os.PathLike[str] | None = None,
    spool: str | int | None = None,
    shed: float | None = None,
    wait: Span | float = WAIT,
    names: tuple[str, str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    page: PageOption = None,
    **options: Any,
) -> Result:
    """Join two inputs as their rows arrive: every pair exactly once, the first at once, within `memory`.

    An input is a path or glob (Parquet, CSV, NDJSON, Arrow IPC), a PyArrow table, batch or reader, a pandas or Polars
    frame, or an iterator of batches or of dicts. What does not fit into `memory` is spilled to a private directory
    under `spill` (the system's temporary directory unless given), which is gone when the join is over.

    :param on: a column of both inputs, `"left_column = right_column"`, a band such as `wm.band("price", 0.05)`, points
        that are near each other such as `wm.near(["x", "y"], 0.5)`, or a list of these with one band or near at most.
    :param how: `"inner"`; `"left"`, `"right"` or `"full"`, whose rows without a partner come, too, with NULLs beside
        them, as soon as the other input has ended; `"semi"`, left rows that have a partner, each at the first one;
        or `"anti"`, left rows that have none.
    :param memory: bytes, or words such as `"64 MiB"`; one eighth is for the input queues, the rest for the join.
    :param algorithm: `"auto"`, or the name of one.
    :param delay: how long a pair may wait after its later row came, such as `"1 s"`; what cannot be held is told by
        `progress.lateness`. Without it, pairs whose rows were not in memory together wait until enough rows do, for a
        silence, or until memory is full. Only `"confluence"`, the default, bounds it.
    :param threads: how many work at the join, your own among them. Rows are divided among them by their keys, and what
        one has no use for of the memory the others can have; below 8 MiB of memory for each, there are fewer. Unless
        given, there is one for each processor if both inputs are tables or frames, unless of few rows; and else one:
        rows of files and streams have to be copied for several, which took as long as they saved. Only `"confluence"`
        uses more than one, and only for equal keys.
    :param suffixes: added to columns that both inputs have and that are not joined on.
    :param wait: after so much silence on all inputs, in seconds or as `"50 ms"`, the time is used for spilled rows.
    :param spool: bytes, or words such as `"2 GiB"`, by which a source that is faster than the join for a while may run
        ahead: what the queues in memory have no room for goes to disk under `spill`, in order. Without it, sources
        wait. Tables and frames are never spooled: their rows are in memory anyway.
    :param shed: of an inner join on equal keys: the share of an iterator's rows, such as 0.05, that may be let go where
        the join cannot keep up, its queue full for a tenth of a second; beyond that it waits. `progress.shed` tells how
        many went, and how many pairs that cost. With `spool`, rows go when that is full, too.
    :param names: what errors and progress call the inputs; their paths, or `left` and `right`, unless given.
    :param on_progress: called in your thread about ten times a second, and once at the end. Unless given, a notebook
        shows progress below the cell, once a join has taken half a second.
    :param page: True: serve a live page of this join on 127.0.0.1 while it runs; standard error tells the address. Or
        a port, `"HOST:PORT"` or a `wm.Page` that several joins share. Needs `pip install starlette uvicorn`.
    :param options: the algorithm's own.

    >>> import pyarrow as pa
    >>> orders = pa.table({"id": [1, 2, 3], "item": ["cup", "pot", "pan"]})
    >>> paid = ({"id": number, "paid": True} for number in (3, 1))
    >>> join(orders, paid, on="id", memory="8 MiB").table().sort_by("id").to_pylist()
    [{'id': 1, 'item': 'cup', 'paid': True}, {'id': 3, 'item': 'pan', 'paid': True}]
    """
    conditions = parse_on(on)
    settings = Settings.of(memory, spill, wait, on_progress, page, spool)
    if shed is not None:
        settings = replace(settings, shed=check_shed(shed))
    if delay is not None:
        options["delay"] = parse_seconds(delay, "delay")
    check_algorithm(algorithm, options)
    threads = checked_threads(threads, algorithm)
    kind_of(how)
    called = two_names(names, (left, right), ("left", "right"))

    def specify(schemas: Sequence[pa.Schema]) -> JoinSpec:
        left_schema, right_schema = schemas
        spec = JoinSpec(
            left_schema, right_schema, conditions, how=how, suffixes=suffixes, names=called, promises=promises
        )
        if shed is not None:
            refuse_unfit(spec)
        counting = 0 if shed is None else loss_bytes(settings.memory)
        check_budget(spec, settings.memory - counting, algorithm, options)
        return spec

    def make(spec: JoinSpec, rest: int, store: FileStore) -> LiveOperator:
        from watersmeet import planner

        return planner.build_for_threads(spec, rest, store, algorithm, workers, stays, **options)

    def chosen(spec: JoinSpec) -> Choice:
        from watersmeet.planner import choose

        kind, reason = choose(spec, algorithm)
        return Choice(kind.name, reason, with_queues(least_memory(kind, spec, options)))

    sources = open_sources(zip(called, (left, right), strict=True))
    if shed is not None and all(getattr(source, "waits", True) for source in sources):
        close_all(sources)
        raise SpecError("shed is for iterators, whose rows may come too fast: tables and files wait; leave shed= out")
    promises = (promises_of(sources[0]), promises_of(sources[1]))
    stays = stays_in_memory(sources[0]), stays_in_memory(sources[1])
    workers = threads or usual_threads(sources)
    told = Told("join", described(on), how)
    return Result(*open_run(sources, specify, make, settings, told=told, choose=chosen, threads=workers))


def promises_of(source: Source) -> Promises:
    """What a source promises of its rows: nothing, unless it says so."""
    promises: Promises = getattr(source, "promises", Promises())
    return promises


def check_algorithm(algorithm: str, options: dict[str, Any]) -> None:
    """Refuse an algorithm that is not known, or options it does not take."""
    from watersmeet.planner import ALGORITHMS

    check_choice(algorithm, options, ALGORITHMS)


def checked_threads(threads: int | None, algorithm: str) -> int | None:
    """A number of threads; an error if it cannot be, or if an algorithm has no use for it."""
    if threads is None:
        return None
    threads = plain_number(threads)
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise SpecError(f"threads must be a number, 1 or more, not {threads!r}")
    if threads > 1 and algorithm not in ("auto", "confluence"):
        raise SpecError(f"algorithm {algorithm} uses one thread; leave threads={threads} out, or choose 'confluence'")
    return threads


def usual_threads(sources: Sequence[Source]) -> int:
    """How many threads a join uses that is not told: all processors if they have nothing to copy and enough to do."""
    known = [getattr(source, "known_rows", None) or 0 for source in sources]
    return cores() if all(map(stays_in_memory, sources)) and sum(known) >= FEW_ROWS else 1


def stays_in_memory(source: Source) -> bool:
    """Whether a source's rows are in memory whole, whatever becomes of its batches."""
    stays: bool = getattr(source, "stays", False)
    return stays


def check_budget(spec: JoinSpec, memory: int, algorithm: str, options: dict[str, Any]) -> None:
    """Refuse memory that no choice could work in, in terms of what the user gave."""
    from watersmeet.planner import choose

    kind = choose(spec, algorithm)[0]
    kind.refuse_unfit(spec)
    check_least(least_memory(kind, spec, options), memory)


def least_memory(kind: type[Operator], spec: JoinSpec, options: dict[str, Any]) -> int:
    """What an operator with these options needs."""
    given = {name: options[name] for name in option_names(kind) if name in options}
    return kind.least_memory(spec, **given)
