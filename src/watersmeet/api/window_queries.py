"""The verb for many window joins of the same two streams, which share one operator."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.api.explanation import Choice
from watersmeet.api.explanation import conditions as described
from watersmeet.api.result import Result
from watersmeet.api.run import PageOption, Settings, Told, check_least, open_run, open_sources, two_names, with_queues
from watersmeet.core.choices import check_choice
from watersmeet.core.errors import SpecError
from watersmeet.core.protocol import AddQuery, RemoveQuery
from watersmeet.core.queries import TAGS, QueriesSpec, WindowQuery
from watersmeet.core.spec import On, parse_on
from watersmeet.core.windows import Age, Span, parse_windows
from watersmeet.drivers.live import WAIT, LiveOperator, queue_bytes
from watersmeet.drivers.progress import Progress
from watersmeet.records.types import taken

if TYPE_CHECKING:
    from watersmeet.spill import FileStore


def window_queries(
    left: object,
    right: object,
    on: On | None = None,
    *,
    time: str | Sequence[str],
    queries: Sequence[WindowQuery] = (),
    window: object = None,
    slide: Span | None = None,
    lateness: Span | None = None,
    late: str | None = None,
    idle: Span | float | None = None,
    emit: str = "early",
    memory: str | int = "64 MiB",
    suffixes: tuple[str, str] = ("", "_right"),
    spill: str | os.PathLike[str] | None = None,
    spool: str | int | None = None,
    wait: Span | float = WAIT,
    names: tuple[str, str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    page: PageOption = None,
    **options: Any,
) -> QueriesResult:
    """Join two streams by windows for many queries at once, each with filters and a window of its own.

    A query gets what `window_join` would give it alone, over the rows that arrive while it is there and pass its
    filters. But rows are kept and looked up once for all of them: each pair that any query wants comes once, and its
    column `queries` has the names of all that want it. Queries come and go while the join runs: `result.add(query)` and
    `result.remove(name)`. What it costs grows with the different filters and windows there are, not with the queries.

    :param on: as in `window_join`.
    :param time: the column that tells the time, `"left_column = right_column"` if they have different names.
    :param queries: those that are there before the first row.
    :param window: the longest window that any query may have, one or two: for so long rows are kept. Unless given, that
        of the longest of `queries`.
    :param slide: as in `window_join`, for all queries; so are `lateness`, `late`, `idle`, `emit` and what follows.
        Which rows are late is told by the streams, whatever the filters.
    :param memory: bytes, or words such as `"64 MiB"`, for all queries together.
    :param options: those of `confluence`.

    >>> orders = pa.table({"id": [1, 2, 3], "ts": [0, 1, 2], "amount": [50, 500, 700]})
    >>> paid = pa.table({"id": [1, 2, 3], "ts": [3, 4, 60]})
    >>> queries = [WindowQuery("soon", 10), WindowQuery("large", 100, left="amount > 100")]
    >>> result = window_queries(orders, paid, on="id", time="ts", queries=queries, memory="8 MiB")
    >>> [(row["id"], row["queries"]) for row in result.table().sort_by("id").to_pylist()]
    [(1, ['soon']), (2, ['large', 'soon']), (3, ['large'])]
    """
    from watersmeet.planner import WINDOW_ALGORITHMS

    conditions = parse_on(on)
    queries = _checked(queries)
    windows = parse_windows(
        _longest(queries, time) if window is None else window, time, slide, lateness, late, idle, emit
    )
    settings = Settings.of(memory, spill, wait, on_progress, page, spool)
    check_choice("confluence", options, WINDOW_ALGORITHMS)
    called = two_names(names, (left, right), ("left", "right"))

    def specify(schemas: Sequence[pa.Schema]) -> QueriesSpec:
        from watersmeet.planner import choose_window

        spec = QueriesSpec(
            schemas[0], schemas[1], conditions, suffixes=suffixes, names=called, window=windows, queries=queries
        )
        rest = settings.memory - queue_bytes(settings.memory)
        check_least(choose_window(spec, rest)[0].least_memory(spec), settings.memory)
        return spec

    def make(spec: QueriesSpec, rest: int, store: FileStore) -> LiveOperator:
        from watersmeet import planner

        return planner.build_window(spec, rest, store, "confluence", **options)

    def chosen(spec: QueriesSpec) -> Choice:
        from watersmeet.planner import choose_window

        kind, _ = choose_window(spec, settings.memory - queue_bytes(settings.memory))
        return Choice(kind.name, "one join finds the pairs of all queries", with_queues(kind.least_memory(spec)))

    sources = open_sources(zip(called, (left, right), strict=True))
    longest = " and ".join(dict.fromkeys(map(str, windows.windows)))
    told = Told("window_queries", described(on), window=f"{len(queries)} queries of up to {longest} by {time}")
    run, schema, explain = open_run(sources, specify, make, settings, told=told, choose=chosen)
    return QueriesResult(run, schema, explain, specify, queries)


def _checked(queries: Sequence[WindowQuery]) -> tuple[WindowQuery, ...]:
    if isinstance(queries, str | WindowQuery) or not isinstance(queries, Sequence):
        raise SpecError(f"queries must be a list of wm.WindowQuery, not {queries!r}")
    for query in queries:
        if not isinstance(query, WindowQuery):
            raise SpecError(f"a query is a wm.WindowQuery('name', window=...), not {query!r}")
    return tuple(queries)


def read_queries(path: str | os.PathLike[str]) -> list[WindowQuery]:
    """Queries out of a file of JSON: a list of objects with the parameters of a query, two windows as a list."""
    try:
        found = json.loads(Path(path).read_text())
    except OSError as error:
        raise SpecError(f"the queries in {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"the queries in {path} are no JSON: {error}") from None
    taken = ("name", "window", "left", "right")
    for each in found if isinstance(found, list) else [found]:
        if (
            not isinstance(found, list)
            or not isinstance(each, dict)
            or not {"name", "window"} <= set(each) <= set(taken)
        ):
            raise SpecError(
                f"{path} must have a list of queries, each with name and window, and perhaps left and right, such as "
                f'[{{"name": "large", "window": "1 min", "left": "amount > 100"}}]; it has {json.dumps(each)[:60]}'
            )
    return [WindowQuery(**each) for each in found]


def _longest(queries: Sequence[WindowQuery], time: str | Sequence[str]) -> tuple[Any, Any]:
    """The longest windows of some queries, of either input."""
    if not queries:
        raise SpecError("there are no queries yet; give window=, the longest window that one may have")
    asked = [parse_windows(query.window, time).windows for query in queries]
    lengths = [
        [each.most if isinstance(each, Age) else each for each in of_side] for of_side in zip(*asked, strict=True)
    ]
    try:
        longest: list[Any] = [max(of_side) for of_side in lengths]
    except TypeError:
        raise SpecError("the windows of queries must all be lengths of time, or all numbers or ages of them") from None
    return longest[0], longest[1]


class QueriesResult(Result):
    """The pairs of many queries, as they are found; and queries that come and go meanwhile.

    >>> seen = pa.table({"id": [1, 2], "ts": [0, 1]})
    >>> result = window_queries(seen, seen, on="id", time="ts", window=5, memory="8 MiB")
    >>> result.add(WindowQuery("all", 5))
    >>> result.add(WindowQuery("second", 5, right="id = 2"))
    >>> result.remove("all")
    >>> result.queries, result.table().to_pylist()
    (('second',), [{'id': 2, 'ts': 1, 'ts_right': 1, 'queries': ['second']}])
    """

    def __init__(
        self,
        run: Any,
        schema: pa.Schema | None,
        explain: Any,
        specify: Callable[[Sequence[pa.Schema]], QueriesSpec],
        queries: Sequence[WindowQuery],
    ) -> None:
        super().__init__(run, schema, explain)
        self._specify = specify
        self._spec: QueriesSpec | None = None
        self._queries = {query.name: query for query in queries}
        self._lock = threading.Lock()

    @property
    def queries(self) -> tuple[str, ...]:
        """The names of the queries that are there for the rows that the join takes in next."""
        return tuple(sorted(self._queries))

    def add(self, query: WindowQuery) -> None:
        """Let a query have the rows of both inputs that the join takes in from now on; from any thread.

        It never sees rows that were taken in before, nor pairs with them. Before the result is read, that is all rows.
        """
        if not isinstance(query, WindowQuery):
            raise SpecError(f"a query is a wm.WindowQuery('name', window=...), not {query!r}")
        if self._spec is None:
            self._spec = self._specify(self._run.schemas())
        self._spec.bound(query)
        with self._lock:
            if query.name in self._queries:
                raise SpecError(f"there is a query called {query.name!r}; remove it first, or choose another name")
            self._queries[query.name] = query
            self._run.tell(AddQuery(query))

    def remove(self, name: str) -> None:
        """Let a query have no more rows; from any thread.

        Pairs of rows that the join had taken in by then are still its results, and come as they are found.
        """
        with self._lock:
            if name not in self._queries:
                there = ", ".join(map(repr, self.queries)) or "none"
                raise SpecError(f"there is no query called {name!r}; there are {there}")
            del self._queries[name]
            self._run.tell(RemoveQuery(name))

    def by_query(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The results of each query by itself, as they are found: names and batches, without the column `queries`.

        >>> seen = pa.table({"id": [1, 2], "ts": [0, 1]})
        >>> queries = [WindowQuery("all", 5), WindowQuery("first", 5, left="id = 1")]
        >>> result = window_queries(seen, seen, on="id", time="ts", queries=queries, memory="8 MiB")
        >>> [(name, batch["id"].to_pylist()) for name, batch in result.by_query()]
        [('all', [1, 2]), ('first', [1])]
        """
        for batch in self:
            tags = batch.column(batch.num_columns - 1)
            names, rows = tags.flatten().dictionary_encode(), pc.list_parent_indices(tags)
            order = np.argsort(names.indices.to_numpy(), kind="stable")
            ends = np.cumsum(np.bincount(names.indices.to_numpy(), minlength=len(names.dictionary)))
            found = batch.drop_columns([TAGS])
            for place, name in enumerate(names.dictionary.to_pylist()):
                some = order[ends[place - 1] if place else 0 : ends[place]]
                mine = rows.take(pa.array(some))
                yield name, pa.record_batch([taken(each, mine) for each in found.columns], schema=found.schema)

    def tables(self) -> dict[str, pa.Table]:
        """All results of each query that has any, by its name. An error if the join is closed before."""
        found: dict[str, list[pa.RecordBatch]] = {}
        for name, batch in self._all(self.by_query()):
            found.setdefault(name, []).append(batch)
        return {name: pa.Table.from_batches(batches) for name, batches in found.items()}
