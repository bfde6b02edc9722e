"""The verbs of the library on in-process data."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pyarrow as pa

from watersmeet import sinks
from watersmeet.core.choices import check_choice, option_names
from watersmeet.core.errors import BudgetError, SpecError, WatersmeetError
from watersmeet.core.lookup import LookupSpec
from watersmeet.core.many_lookups import ChainSpec, SharedSpec
from watersmeet.core.many_windows import ManyWindows, parse_many_windows
from watersmeet.core.multi_spec import ManyOn, MultiSpec, parse_edges
from watersmeet.core.promises import Promises, Punctuation
from watersmeet.core.spec import JoinSpec, On, parse_on
from watersmeet.core.windows import Span
from watersmeet.drivers.live import WAIT, LiveOperator, LiveRun, queue_bytes
from watersmeet.drivers.progress import Progress
from watersmeet.memory import format_bytes, parse_memory
from watersmeet.sources import Source, as_source

if TYPE_CHECKING:
    from watersmeet.policies.splitting import Plan

AnySpec: TypeAlias = "JoinSpec | MultiSpec | LookupSpec | ChainSpec | SharedSpec"


def join(
    left: object,
    right: object,
    on: On,
    *,
    how: str = "inner",
    memory: str | int = "64 MiB",
    algorithm: str = "auto",
    suffixes: tuple[str, str] = ("", "_right"),
    spill: str | os.PathLike[str] | None = None,
    wait: float = WAIT,
    names: tuple[str, str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Result:
    """Join two inputs as their rows arrive: every pair exactly once, the first at once, within `memory`.

    An input is a path or glob (Parquet, CSV, NDJSON, Arrow IPC), a PyArrow table, batch or reader, a pandas or Polars
    frame, or an iterator of batches or of dicts. What does not fit into `memory` is spilled to a private directory
    under `spill` (the system's temporary directory unless given), which is gone when the join is over.

    :param on: a column of both inputs, `"left_column = right_column"`, a band such as `wm.band("price", 0.05)`, or a
        list of these with one band at most.
    :param memory: bytes, or words such as `"64 MiB"`; one eighth is for the input queues, the rest for the join.
    :param algorithm: `"auto"`, or the name of one.
    :param suffixes: added to columns that both inputs have and that are not joined on.
    :param wait: seconds of silence on all inputs after which the time is used for spilled rows.
    :param names: what errors and progress call the inputs; their paths, or `left` and `right`, unless given.
    :param on_progress: called in your thread about ten times a second, and once at the end.
    :param options: the algorithm's own.

    >>> import pyarrow as pa
    >>> orders = pa.table({"id": [1, 2, 3], "item": ["cup", "pot", "pan"]})
    >>> paid = ({"id": number, "paid": True} for number in (3, 1))
    >>> join(orders, paid, on="id", memory="8 MiB").table().sort_by("id").to_pylist()
    [{'id': 1, 'item': 'cup', 'paid': True}, {'id': 3, 'item': 'pan', 'paid': True}]
    """
    conditions = parse_on(on)
    budget = parse_memory(memory)
    check_algorithm(algorithm, options)
    if how != "inner":
        raise SpecError(f"how={how!r} is not supported; only 'inner' is")
    if names is not None and (isinstance(names, str) or len(names) != 2):
        raise SpecError(f"names must be two strings, not {names!r}")

    def specify(schemas: Sequence[pa.Schema]) -> JoinSpec:
        left_schema, right_schema = schemas
        spec = JoinSpec(
            left_schema, right_schema, conditions, how=how, suffixes=suffixes, names=called, promises=promises
        )
        check_budget(spec, budget, algorithm, options)
        return spec

    def build(schemas: Sequence[pa.Schema], rest: int) -> LiveOperator:
        from watersmeet import planner
        from watersmeet.spill import FileStore

        spec = specify(schemas)
        store = FileStore(None if spill is None else Path(spill))
        try:
            operator: LiveOperator = planner.build(spec, rest, store, algorithm, **options)
        except BaseException:
            store.close()
            raise
        return operator

    called = names or (usual_name(left, 0), usual_name(right, 1))
    sources = [as_source(left, called[0])]
    try:
        sources.append(as_source(right, called[1]))
        promises = (promises_of(sources[0]), promises_of(sources[1]))
        return run(list(zip(called, sources, strict=True)), specify, build, budget, wait, on_progress)
    except BaseException:
        for source in sources:
            source.close()
        raise


def promises_of(source: Source) -> Promises:
    """What a source promises of its rows: nothing, unless it says so."""
    promises: Promises = getattr(source, "promises", Promises())
    return promises


def multijoin(
    inputs: Mapping[str, object],
    on: ManyOn,
    *,
    window: object = None,
    time: object = None,
    lateness: Span | None = None,
    late: str = "keep",
    memory: str | int = "64 MiB",
    algorithm: str = "auto",
    spill: str | os.PathLike[str] | None = None,
    wait: float = WAIT,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Result:
    """Join several inputs as their rows arrive, in one operator: no intermediate results, the first rows at once.

    A column keeps its name in the result if no other input has one of that name; else it is called `input_column`.
    Columns of one name that must be equal come out once.

    With `window`, inputs may never end. A combination of rows is then a result if its conditions hold and, at the time
    of its newest row, each of its rows is in its input's window: with `window={"a": "10 min", "b": "1 min", ...}`, the
    row of `a` is up to ten minutes older than the newest, that of `b` up to one. With windows of rows it is one if,
    when its last row arrived, each of the others was among the last so many rows of its input. What has left its
    window is forgotten, in memory and on disk, so state stays bounded, and every result comes as soon as its last row.

    :param inputs: by name, whatever `join` takes.
    :param on: conditions such as `"orders.id = items.order_id"` or `wm.band("trades.at = quotes.at", width)`, enough of
        them to hold all inputs together; there may be cycles. Bands are for `"miner"`.
    :param window: `"10 min"`, or for columns of integers a number; or `wm.rows(1000)`, the last so many rows in order
        of arrival, without `time`. One for all inputs, or a dict with one for each. Windows are for `"mjoin"`.
    :param time: the column that tells the time, or a dict with one for each input: dates, timestamps or integers. Rows
        without a time meet nothing.
    :param lateness: by so much a row may be older than the newest of its input before it.
    :param late: what becomes of rows that are later still: `"keep"` lets them meet what has not expired, `"drop"`
        ignores them, `"error"` ends the join. They are counted in `progress.late`.
    :param memory: bytes, or words such as `"64 MiB"`; one eighth is for the input queues, the rest for the join.
    :param algorithm: `"auto"`, or the name of one.
    :param spill: where to put what does not fit into memory; the system's temporary directory unless given.
    :param wait: seconds of silence on all inputs after which the time is used for spilled rows.
    :param on_progress: called in your thread about ten times a second, and once at the end.
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
    names = tuple(inputs)
    edges = parse_edges(on, names)
    windows = _windows(window, names, time, lateness, late)
    budget = parse_memory(memory)
    _check_multiway(algorithm, options)

    def specify(schemas: Sequence[pa.Schema]) -> MultiSpec:
        from watersmeet.planner import least_for_multiway

        spec = MultiSpec(names, tuple(schemas), edges, window=windows)
        check_least(least_for_multiway(spec, algorithm), budget)
        return spec

    def build(schemas: Sequence[pa.Schema], rest: int) -> LiveOperator:
        from watersmeet import planner
        from watersmeet.spill import FileStore

        spec = specify(schemas)
        store = FileStore(None if spill is None else Path(spill))
        try:
            return planner.build_multiway(spec, rest, store, algorithm, **options)
        except BaseException:
            store.close()
            raise

    return run([(name, data) for name, data in inputs.items()], specify, build, budget, wait, on_progress)


def _windows(
    window: object, names: Sequence[str], time: object, lateness: Span | None, late: str
) -> ManyWindows | None:
    if window is not None:
        return parse_many_windows(window, names, time, lateness, late)
    if time is not None or lateness is not None or late != "keep":
        raise SpecError("time, lateness and late belong to a join by windows; give window=..., too")
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

    sources = [as_source(data, name) for name, data in inputs.items()]
    try:
        spec = MultiSpec.of({source.name: source.schema() for source in sources}, on)
        return plan(spec, Estimates.of(spec, rows, selectivities))
    finally:
        for source in sources:
            source.close()


def run(
    inputs: Sequence[tuple[str, object]],
    specify: Callable[[Sequence[pa.Schema]], AnySpec],
    build: Callable[[Sequence[pa.Schema], int], LiveOperator],
    budget: int,
    wait: float,
    on_progress: Callable[[Progress], None] | None,
) -> Result:
    """A join of inputs that are opened here, and read when somebody asks for results."""
    return Result(*prepare(inputs, specify, build, budget, wait, on_progress))


def prepare(
    inputs: Sequence[tuple[str, object]],
    specify: Callable[[Sequence[pa.Schema]], AnySpec],
    build: Callable[[Sequence[pa.Schema], int], LiveOperator],
    budget: int,
    wait: float,
    on_progress: Callable[[Progress], None] | None,
) -> tuple[LiveRun, pa.Schema | None]:
    """Open the inputs; where nobody has to be waited for, mistakes come to light here and not at the first use."""
    sources: list[Source] = []
    try:
        for name, data in inputs:
            sources.append(as_source(data, name))
        known = all(source.schema_known for source in sources)
        schemas = [source.schema() for source in sources] if known else None
        schema = specify(schemas).schema if schemas is not None else None
        return LiveRun(sources, build, budget, schemas=schemas, wait=wait, observe=on_progress), schema
    except BaseException:
        for source in sources:
            source.close()
        raise


def usual_name(data: object, side: int) -> str:
    """What an input is called that was given no name: a file by its path."""
    return str(Path(data).expanduser()) if isinstance(data, str | os.PathLike) else ("left", "right")[side]


def check_algorithm(algorithm: str, options: dict[str, Any]) -> None:
    """Refuse an algorithm that is not known, or options it does not take."""
    from watersmeet.planner import ALGORITHMS

    check_choice(algorithm, options, ALGORITHMS)


def check_budget(spec: JoinSpec, memory: int, algorithm: str, options: dict[str, Any]) -> None:
    """Refuse memory that no choice could work in, in terms of what the user gave."""
    from watersmeet.planner import ALGORITHMS, choose

    if algorithm == "auto" and any(spec.promises):
        kinds = [choose(spec)[0]]
    elif algorithm == "auto":
        kinds = [kind for kind in ALGORITHMS.values() if spec.band is None or kind.joins_ranges]
    else:
        kinds = [ALGORITHMS[algorithm]]
        kinds[0].refuse_unfit(spec)
    least = min(
        kind.least_memory(spec, **{n: options[n] for n in option_names(kind) if n in options}) for kind in kinds
    )
    check_least(least, memory)


def check_least(least: int, memory: int) -> None:
    """Refuse memory that leaves an operator less than it needs."""
    if memory - queue_bytes(memory) < least:
        needed = -(-least * 8 // 7)
        raise BudgetError(
            f"memory of {format_bytes(memory)} is too small for this join; "
            f"allow at least {format_bytes(needed)} ({needed:,} bytes)"
        )


class Result:
    """The pairs of a join, as they are found: an iterable of `pyarrow.RecordBatch` that can be read once.

    Reading starts the join. Leaving the loop, an error, `close` or the end of a `with` block stops it: threads end,
    sources are closed, and nothing is left on disk.

    >>> import pyarrow as pa
    >>> result = join(pa.table({"id": [1, 2]}), pa.table({"id": [2, 3]}), on="id", memory="8 MiB")
    >>> [batch.to_pylist() for batch in result]
    [[{'id': 2}]]
    >>> result.progress.rows_in
    (2, 2)
    """

    def __init__(self, run: LiveRun, schema: pa.Schema | None = None) -> None:
        self._run = run
        self._schema = schema
        # Weak, so that the end of a loop is the end of the run, even while the result itself is kept.
        self._batches: weakref.ref[Generator[Any, None, None]] | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._batches is not None:
            raise WatersmeetError(
                "the result of a join can be read only once, and this one was; call join() again, or keep its table()"
            )
        batches = self._run.batches()
        self._batches = weakref.ref(batches)
        return batches

    def marked(self) -> Iterator[pa.RecordBatch | Punctuation]:
        """The batches, and among them the punctuations that hold for the result: no row that matches one follows it.

        >>> from watersmeet.core.promises import Punctuation
        >>> from watersmeet.sources import source
        >>> news = source([{"sno": 79, "keyword": "Smart Card"}], unique=["sno"])
        >>> hits = [{"sno": 79, "ip": "64.58.76.224"}, Punctuation({"sno": 79})]
        >>> result = join(news, hits, on="sno", memory="8 MiB")
        >>> [item if isinstance(item, Punctuation) else item.to_pylist() for item in result.marked()]
        [[{'sno': 79, 'keyword': 'Smart Card', 'ip': '64.58.76.224'}], Punctuation(sno = 79)]
        """
        if self._batches is not None:
            raise WatersmeetError("the result of a join can be read only once, and this one was; call join() again")
        batches = self._run.marked_batches()
        self._batches = weakref.ref(batches)
        return batches

    @property
    def schema(self) -> pa.Schema:
        """The output's schema; where an input tells its own only with its first row, this waits for that row."""
        if self._schema is None:
            self._schema = self._run.schema()
        return self._schema

    @property
    def progress(self) -> Progress:
        """How far the join is: rows in and out, first result, memory, spilled bytes, phase."""
        return self._run.progress()

    def table(self) -> pa.Table:
        """All results as a PyArrow table; it is outside the join's memory."""
        batches = list(self)
        return pa.Table.from_batches(batches, self.schema)

    def pandas(self) -> Any:
        """All results as a pandas frame."""
        _need("pandas")
        return self.table().to_pandas()

    def polars(self) -> Any:
        """All results as a Polars frame."""
        return _need("polars").from_arrow(self.table())

    def write(self, path: str | os.PathLike[str]) -> int:
        """Write all results to a Parquet, CSV or Arrow IPC file, as its name says; returns the number of rows.

        The file is whole or absent: one that exists is replaced at the very end, and only if all went well.
        """
        sinks.check_target(path)
        batches = iter(self)
        try:
            return sinks.write(batches, self.schema, path)
        finally:
            self.close()

    def close(self) -> None:
        """Stop the join and let go of everything; harmless when it is over."""
        batches = self._batches() if self._batches is not None else None
        if batches is not None and inspect.getgeneratorstate(batches) != inspect.GEN_RUNNING:
            batches.close()
        self._run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Result: {self.progress}>"


def _need(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise WatersmeetError(f"{module} is not installed; install it, or take the PyArrow table() instead") from error
