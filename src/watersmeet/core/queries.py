"""Many continuous joins of the same two streams: each with a filter of either input and a window of its own.

A query lives from the event by which it was added to the event by which it was removed. It has the rows of both inputs
that arrive in between and pass its filters, and all pairs of them whose times are close enough by its own window: what
a window join of its own would find that is fed these rows alone. Which rows are late is told by the streams, and not by
what queries take of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from watersmeet.core.errors import SpecError
from watersmeet.core.filters import Filter, bind, parse_filter
from watersmeet.core.spec import JoinSpec, Output
from watersmeet.core.windows import Age, Landmark, Rows, WindowJoinSpec, parse_windows

TAGS = "queries"
"""The column that tells of which queries a pair is a result."""
MOST_WINDOWS = 1 << 15
"""So many different lengths of windows there may be."""


@dataclass(frozen=True)
class WindowQuery:
    """One of many window joins of the same two streams: see `watersmeet.window_queries`.

    :param name: what its results are tagged with.
    :param window: as in `window_join`: a length of time, `wm.age("1 min", "10 min")`, or two of these.
    :param left: a condition on left rows such as `"amount > 100 and country in ('DE', 'AT')"`; None: all of them.
    :param right: the same of right rows.

    >>> WindowQuery("fast", window="1 min", left="amount > 100").right is None
    True
    """

    name: str
    window: Any
    left: str | None = None
    right: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SpecError(f"a query is called by a word, not {self.name!r}")
        for side, text in (("left", self.left), ("right", self.right)):
            if text is not None:
                parse_filter(text, f"{side} of query {self.name!r}")


@dataclass(frozen=True, slots=True)
class BoundQuery:
    """A query in units of time, as a snapshot carries it."""

    name: str
    spans: tuple[int, int]
    """So old may rows of each input be when one of the other comes."""
    leasts: tuple[int, int]
    """And so old they must be."""
    filters: tuple[str | None, str | None] = (None, None)

    def to_state(self) -> list[Any]:
        """For a snapshot."""
        return [self.name, list(self.spans), list(self.leasts), list(self.filters)]

    @classmethod
    def of_state(cls, state: Sequence[Any]) -> BoundQuery:
        """Out of a snapshot."""
        name, (left, right), (young_left, young_right), (of_left, of_right) = state
        return cls(name, (left, right), (young_left, young_right), (of_left, of_right))


@dataclass(frozen=True)
class QueriesSpec(WindowJoinSpec):
    """Many window joins in one, with every question of names, types and units settled.

    Its windows are the largest that a query may have, now or later.

    >>> side = pa.schema({"id": pa.int64(), "t": pa.int64(), "amount": pa.int64()})
    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.core.windows import parse_windows
    >>> queries = (WindowQuery("near", 5), WindowQuery("large", 20, left="amount > 99.5"))
    >>> spec = QueriesSpec(side, side, parse_on("id"), window=parse_windows(20, "t"), queries=queries)
    >>> spec.schema.names[-1], spec.bound(queries[1]).spans
    ('queries', (20, 20))
    """

    queries: tuple[WindowQuery, ...] = ()
    """Those that are there before the first row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.how != "inner":
            raise SpecError(f"queries over the same streams are inner joins, and none is {self.how!r}; leave how= out")
        if self.output is Output.COUNTS:
            raise SpecError("queries over the same streams tell of which each pair is a result, and cannot count alone")
        for window in self.window.windows:
            if isinstance(window, Rows | Landmark | Age):
                raise SpecError(f"the largest window of queries is a length of time such as '10 min', not {window!r}")
        names = [query.name for query in self.queries]
        twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        if twice is not None:
            raise SpecError(f"two queries are called {twice!r}; rename one")
        if TAGS in self.untagged.schema.names:
            raise SpecError(f"the output would have two columns named {TAGS!r}; rename the inputs' column")
        _ = self.bound_queries

    @cached_property
    def bound_queries(self) -> tuple[BoundQuery, ...]:
        """Those that are there before the first row, in units."""
        return tuple(map(self.bound, self.queries))

    @cached_property
    def untagged(self) -> WindowJoinSpec:
        """The join that finds all pairs of all queries, and others."""
        return WindowJoinSpec(
            self.left, self.right, self.on, self.how, self.output, self.suffixes, self.names, self.promises, self.window
        )

    @cached_property
    def schema(self) -> pa.Schema:
        """The output's schema, with the names of the queries of each pair."""
        return JoinSpec.schema.func(self).append(pa.field(TAGS, pa.list_(pa.string()), nullable=False))  # type: ignore[attr-defined]

    def bound(self, query: WindowQuery) -> BoundQuery:
        """A query in units of this join; an error if it does not fit."""
        if not isinstance(query, WindowQuery):
            raise SpecError(f"a query is a wm.WindowQuery('name', window=...), not {query!r}")
        told = f"query {query.name!r}"
        windows = parse_windows(query.window, self.window.time, None, None, "drop").windows
        if any(isinstance(window, Rows | Landmark) for window in windows):
            raise SpecError(f"the window of {told} must be a length of time or an age, not {query.window!r}")
        left, right = (self.bounds_of(each, most.step) for each, most in zip(windows, self.bounds, strict=True))
        for side, (asked, most) in enumerate(zip((left, right), self.bounds, strict=True)):
            if asked.span > most.span:
                raise SpecError(
                    f"the window of {told} for {self.names[side]} is longer than the longest, "
                    f"{self.window.windows[side]}; give window= at least as long as that of any query"
                )
        for side, text in enumerate((query.left, query.right)):
            if text is not None:
                self.filter(side, text, query.name)
        return BoundQuery(query.name, (left.span, right.span), (left.least, right.least), (query.left, query.right))

    def filter(self, side: int, text: str, name: str) -> Filter:
        """A query's condition on the rows of an input, with values of the columns' types."""
        what = f"{('left', 'right')[side]} of query {name!r}"
        return bind(parse_filter(text, what), self.input(side), what, self.names[side])

    @cached_property
    def fingerprint(self) -> str:
        """Stable across processes; equal for equal joins, whatever their queries: those are part of the state."""
        return hashlib.sha256(f"{self.untagged.fingerprint} queries".encode()).hexdigest()[:16]
