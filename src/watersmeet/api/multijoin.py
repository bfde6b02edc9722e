"""`wm.multijoin`: several inputs joined in one operator, and `wm.explain`: how it would join them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from watersmeet.api.explanation import Choice
from watersmeet.api.explanation import conditions as described
from watersmeet.api.result import Result
from watersmeet.api.run import PageOption, Settings, Told, check_least, close_all, open_run, open_sources, with_queues
from watersmeet.core.choices import check_choice
from watersmeet.core.errors import SpecError
from watersmeet.core.many_windows import ManyWindows, parse_many_windows
from watersmeet.core.multi_spec import ManyOn, MultiSpec, input_names, parse_edges, parse_preserved
from watersmeet.core.windows import Span, parse_seconds
from watersmeet.drivers.live import WAIT, LiveOperator
from watersmeet.drivers.progress import Progress

if TYPE_CHECKING:
    from watersmeet.policies.splitting import Plan
    from watersmeet.spill import FileStore


def multijoin(
    inputs: Mapping[str, object],
    on: ManyOn,
    *,
    window: object = None,
    time: object = None,
    lateness: Span | None = None,
    late: str = "keep",
    idle: Span | float | None = None,
    how: Mapping[str, str] | str = "inner",
    memory: str | int = "64 MiB",
    algorithm: str = "auto",
    delay: float | str | timedelta | None = None,
    spill: str | os.PathLike[str] | None = None,
    spool: str | int | None = None,
    wait: Span | float = WAIT,
    on_progress: Callable[[Progress], None] | None = None,
    page: PageOption = None,
    **options: Any,
) -> Result:
    """Join several inputs as their rows arrive, in one operator: no intermediate results, the first rows at once.

    A column keeps its name in the result if no other input has one of that name; else it is called `input_column`.
    Columns of one name that must be equal come out once.

    With `window`, inputs may never end. A combination of rows is then a result if its conditions hold and, at the time
    of its newest row, each of its rows is in its input's window: with `window={"a": "10 min", "b": "1 min", ...}`, the
    row of `a` is up to ten minutes older than the newest, that of `b` up to one. With windows of rows it is one if,
    when its last row arrived, each of the others was among the last so many rows of its input. What has left its
    window is forgotten, in memory and on disk, so state stays bounded. As long as the windows fit into memory every
    result comes as soon as its last row; what has gone to disk is met a little later, by many rows at once (with
    `"mjoin"` at once, which takes longer).

    :param inputs: by name, whatever `join` takes.
    :param on: conditions such as `"orders.id = items.order_id"` or `wm.band("trades.at = quotes.at", width)`, enough of
        them to hold all inputs together; there may be cycles. Bands are for `"miner"`.
    :param window: `"10 min"`, or for columns of integers a number; or `wm.rows(1000)`, the last so many rows in order
        of arrival, without `time`. One for all inputs, or a dict with one for each. Windows are for
        `"confluence"` and `"mjoin"`.
    :param time: the column that tells the time, or a dict with one for each input: dates, timestamps or integers. Rows
        without a time meet nothing.
    :param lateness: by so much a row may be older than the newest of its input before it.
    :param late: what becomes of rows that are later still: `"keep"` lets them meet what has not expired, `"drop"`
        ignores them, `"error"` ends the join. They are counted in `progress.late`.
    :param idle: after so long, `"30 s"` or seconds, an input that says nothing while another does no longer holds back
        the others: it counts as having come as far as the one of them that has come least far, until it speaks. What it
        then says may be late.
    :param how: `{"orders": "left"}` for one input whose rows come out in any case, with NULLs beside those that are in
        no result, as soon as the other inputs have ended; `"inner"`: for none.
    :param memory: bytes, or words such as `"64 MiB"`; one eighth is for the input queues, the rest for the join.
    :param algorithm: `"auto"`, or the name of one.
    :param delay: how long a combination may wait after its last row came, such as `"1 s"`; what cannot be held is told
        by `progress.lateness`. Without it, combinations whose rows were not in memory together wait until enough rows
        do, for a silence, or until memory is full. Only `"confluence"`, the default, bounds it.
    :param spill: where to put what does not fit into memory; the system's temporary directory unless given.
    :param wait: after so much silence on all inputs, in seconds or as `"50 ms"`, the time is used for spilled rows.
    :param spool: bytes, or words such as `"2 GiB"`, by which a source that is faster than the join for a while may run
        ahead: what the queues in memory have no room for goes to disk under `spill`, in order. Without it, sources
        wait. Tables and frames are never spooled: their rows are in memory anyway.
    :param on_progress: called in your thread about ten times a second, and once at the end. Unless given, a notebook
        shows progress below the cell, once a join has taken half a second.
    :param page: True: serve a live page of this join on 127.0.0.1 while it runs; standard error tells the address. Or
        a port, `"HOST:PORT"` or a `wm.Page` that several joins share. Needs `pip install starlette uvicorn`.
    :param options: the algorithm's own; for `"auto"`, estimates as `explain` takes them.

    >>> import pyarrow as pa
    >>> orders = pa.table({"id": [1, 2], "buyer": ["Ada", "Bo"]})
    >>> items = pa.table({"order_id": [1, 1, 2], "part": [7, 8, 8]})
    >>> parts = pa.table({"part": [8], "name": ["cup"]})
    >>> on = ["orders.id = items.order_id", "items.part = parts.part"]
    >>> found = multijoin({"orders": orders, "items": items, "parts": parts}, on=on, memory="8 MiB").table()
    >>> found.select(["buyer", "name"]).sort_by("buyer").to_pylist()
    [{'buyer': 'Ada', 'name': 'cup'}, {'buyer': 'Bo', 'name': 'cup'}]

    >>> views = pa.table({"ad": [1, 2], "at": [0, 5]})
    >>> clicks = pa.table({"ad": [1, 2], "at": [8, 90]})
    >>> sales = pa.table({"ad": [1, 2], "at": [9, 91]})
    >>> three = {"views": views, "clicks": clicks, "sales": sales}
    >>> on = ["views.ad = clicks.ad", "clicks.ad = sales.ad"]
    >>> multijoin(three, on=on, window=10, time="at", memory="8 MiB").table().to_pylist()
    [{'ad': 1, 'views_at': 0, 'clicks_at': 8, 'sales_at': 9}]
    """
    names = input_names(inputs)
    edges = parse_edges(on, names)
    preserved = parse_preserved(how, names)
    windows = _windows(window, names, time, lateness, late, idle)
    settings = Settings.of(memory, spill, wait, on_progress, page, spool)
    if delay is not None:
        options["delay"] = parse_seconds(delay, "delay")
    _check_multiway(algorithm, options)

    def specify(schemas: Sequence[pa.Schema]) -> MultiSpec:
        from watersmeet.planner import least_for_multiway

        spec = MultiSpec(names, tuple(schemas), edges, window=windows, preserved=preserved)
        check_least(least_for_multiway(spec, algorithm), settings.memory)
        return spec

    def make(spec: MultiSpec, rest: int, store: FileStore) -> LiveOperator:
        from watersmeet import planner

        return planner.build_multiway(spec, rest, store, algorithm, **options)

    def chosen(spec: MultiSpec) -> Choice:
        from watersmeet.planner import choose_multiway, least_for_multiway

        estimates = options.get("rows"), options.get("selectivities")
        name, reason, plan = choose_multiway(spec, algorithm, *estimates, bounded=delay is not None)
        return Choice(name, reason, with_queues(least_for_multiway(spec, name)), plan)

    kind = "inner" if preserved is None else f"left for {names[preserved]}"
    told = Told("multijoin", described(on), kind, window=None if window is None else str(window))
    return Result(*open_run(open_sources(inputs.items()), specify, make, settings, told=told, choose=chosen))


def _windows(
    window: object, names: Sequence[str], time: object, lateness: Span | None, late: str, idle: Span | float | None
) -> ManyWindows | None:
    if window is not None:
        return parse_many_windows(window, names, time, lateness, late, idle)
    if any(given is not None for given in (time, lateness, idle)) or late != "keep":
        raise SpecError("time, lateness, late and idle belong to a join by windows; give window=..., too")
    return None


def _check_multiway(algorithm: str, options: dict[str, Any]) -> None:
    from watersmeet.planner import MULTIWAY

    estimates = ("rows", "selectivities") if algorithm == "auto" else ()
    check_choice(algorithm, {name: value for name, value in options.items() if name not in estimates}, MULTIWAY)


def explain(
    inputs: Mapping[str, object],
    on: str | Sequence[str],
    *,
    rows: Mapping[str, float],
    selectivities: Sequence[float] | None = None,
) -> Plan:
    """How `multijoin` would join these inputs, given estimates: `print` it.

    :param inputs: by name, whatever `multijoin` takes; only their schemas are looked at.
    :param rows: how many rows each input has, by name.
    :param selectivities: of each condition, the share of all row pairs that match; unless given, each condition is
        taken for one of a key and its references.

    >>> import pyarrow as pa
    >>> tables = {name: pa.table({"a": [1], "b": [2]}) for name in "rstu"}
    >>> print(explain(tables, ["r.a = s.a", "s.b = t.b", "t.a = u.a"], rows=dict.fromkeys("rstu", 1000)))
    xjoin of 2: about 1,000 results
      xjoin of 2: about 1,000 results
        r: 1,000 rows
        s: 1,000 rows
      xjoin of 2: about 1,000 results
        t: 1,000 rows
        u: 1,000 rows
    """
    from watersmeet.policies.splitting import Estimates, plan

    names = input_names(inputs)
    sources = open_sources(inputs.items())
    try:
        spec = MultiSpec.of(dict(zip(names, (source.schema() for source in sources), strict=True)), on)
        return plan(spec, Estimates.of(spec, rows, selectivities))
    finally:
        close_all(sources)
