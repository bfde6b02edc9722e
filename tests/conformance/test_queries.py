"""Many window joins in one: each query gets what it would get alone, and each rule, broken, is noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from conformance.ways import BUSY, TIGHT, WAYS
from watersmeet.checks import ConformanceError, run_case
from watersmeet.checks.queries import conform_queries, make_queries_case
from watersmeet.core.errors import BudgetError, ProtocolError, SpecError
from watersmeet.core.protocol import AddQuery, Arrive, End, RemoveQuery, Status
from watersmeet.core.queries import BoundQuery, QueriesSpec, WindowQuery
from watersmeet.core.spec import parse_on
from watersmeet.core.windows import age, parse_windows
from watersmeet.joins.window.confluence import WindowConfluence
from watersmeet.matching.query_sets import QuerySets
from watersmeet.matching.row_classes import RowClasses, words_of
from watersmeet.planner import WINDOW_ALGORITHMS
from watersmeet.spill.store import MemoryStore

SCHEMA = pa.schema({"id": pa.int64(), "t": pa.int64(), "a": pa.int64()})


class Watched(WindowConfluence):
    """Adds up what happened in all cases."""

    seen: ClassVar[Counter[str]] = Counter()

    def close(self) -> None:
        Watched.seen += self.events
        super().close()


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    Watched.seen = Counter()


@pytest.mark.parametrize("way", WAYS["confluence", "queries"])
def test_each_query_gets_what_it_would_get_alone(way: str) -> None:
    taken = WAYS["confluence", "queries"][way]
    summary = conform_queries(Watched, cases=40, seed=20_000, **taken.options)
    assert taken.proofs <= set(+Watched.seen), Watched.seen
    assert summary.restored > 3 and summary.results > 300


@pytest.mark.parametrize("seed", [1311])
def test_a_query_that_comes_again_is_another_one(seed: int) -> None:
    """It has the name, the filters and the window of one that has gone and whose rows are still there."""
    run_case(WindowConfluence, make_queries_case(seed, WindowConfluence, **TIGHT), **TIGHT)


# --- each rule broken ---

real_pairs, real_cells_of = QuerySets.pairs, QuerySets._cells_of
real_add, real_window_keys = QuerySets.add, QuerySets._window_keys
real_forget, real_load = RowClasses.forget, QuerySets.load


def sees_what_was_before(sets: QuerySets, query: BoundQuery) -> None:
    """Rows from before its addition are a query's, too, whatever their class was."""
    real_add(sets, query)
    added = 1 << next(place for place, each in enumerate(sets.queries) if each is query)
    for classes in sets.classes:
        for number in sorted(classes._numbers.values())[1:]:
            del classes._numbers[classes.sets[number]]
            classes.sets[number] |= added
            classes._numbers[classes.sets[number]] = number


def never_goes(sets: QuerySets, side: int) -> Any:
    """A removed query goes on getting rows, as long as it has any."""
    live = sets.live
    sets.live = sum(1 << place for place, query in enumerate(sets.queries) if query is not None)
    told = real_cells_of(sets, side)
    sets.live = live
    return told


def goes_at_once(sets: QuerySets, *pairs: Any) -> Any:
    """Pairs of rows from before its end are no longer a query's."""
    left, *rest = real_pairs(sets, *pairs)
    return left & words_of(sets.live, sets._order), *rest


def either_class(sets: QuerySets, *pairs: Any) -> Any:
    """A pair has the queries of one row or of the other."""
    left, lefts, right, rights, windows, by_window = real_pairs(sets, *pairs)
    both = left[lefts] | right[rights]
    every = np.arange(len(lefts), dtype=np.int32)
    return both, every, both, every, windows, by_window


def classes_swapped(sets: QuerySets, *pairs: Any) -> Any:
    """The class of the left row is taken for one of the right input, and the other way round."""
    left, lefts, right, rights, windows, by_window = real_pairs(sets, *pairs)
    return right, np.minimum(lefts, len(right) - 1), left, np.minimum(rights, len(left) - 1), windows, by_window


def any_window(sets: QuerySets, *pairs: Any) -> Any:
    """All windows are as long as the longest."""
    *classes, windows, by_window = real_pairs(sets, *pairs)
    return *classes, np.full_like(windows, (1 << 64) - 1), by_window


def found_older_only(sets: QuerySets, side: int, times: Any, floors: Any, found: Any) -> Any:
    """The row that came first is taken for the older one."""
    return real_window_keys(sets, side, times, floors, np.minimum(found, times))


def late_rows_look_back(sets: QuerySets, side: int, times: Any, floors: Any, found: Any) -> Any:
    """How far back a late row looks is told from its own time."""
    return real_window_keys(sets, side, times, times - sets._spec.bounds[1 - side].span, found)


def classes_forgotten_early(classes: RowClasses, before: int) -> int:
    """A class goes while some of its rows can still be met."""
    return real_forget(classes, before + 40)


def loads_the_other_side(sets: QuerySets, state: dict[str, Any]) -> None:
    """After a restore, the classes of either input are taken for those of the other."""
    real_load(sets, {**state, "classes": state["classes"][::-1]})


MUTANTS: dict[str, tuple[type[Any], str, Callable[..., Any]]] = {
    "a query sees rows from before its addition": (QuerySets, "add", sees_what_was_before),
    "a removed query still gets rows": (QuerySets, "_cells_of", never_goes),
    "a removed query loses what it had": (QuerySets, "pairs", goes_at_once),
    "classes are joined and not intersected": (QuerySets, "pairs", either_class),
    "classes of the wrong side": (QuerySets, "pairs", classes_swapped),
    "all windows are the longest": (QuerySets, "pairs", any_window),
    "the row that was found is the older one": (QuerySets, "_window_keys", found_older_only),
    "late rows look back from their own time": (QuerySets, "_window_keys", late_rows_look_back),
    "classes are forgotten too early": (RowClasses, "forget", classes_forgotten_early),
    "a snapshot gives classes to the wrong side": (QuerySets, "load", loads_the_other_side),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken = MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(
        ConformanceError, match=r"lost [0-9]+ and invented or repeated [0-9]+|counted [0-9]+ results|out of range"
    ):
        run_many()


def run_many() -> None:
    for seed in range(21_000, 21_200):
        run_case(WindowConfluence, make_queries_case(seed, WindowConfluence), **TIGHT, settling=BUSY)


# --- by hand ---


def spec_of(*queries: WindowQuery, window: object = 10, **options: Any) -> QueriesSpec:
    return QueriesSpec(SCHEMA, SCHEMA, parse_on("id"), window=parse_windows(window, "t", **options), queries=queries)


def operator(spec: QueriesSpec, more: int = 1 << 20) -> WindowConfluence:
    return WindowConfluence(spec, WindowConfluence.least_memory(spec) + more, MemoryStore())


def rows(*values: tuple[int, int, int | None]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(column) for column in zip(*values, strict=True)], schema=SCHEMA)


def found(join: WindowConfluence) -> list[tuple[int, int, str]]:
    pairs: list[tuple[int, int, str]] = []
    while True:
        step = join.poll(0.0, 1_000)
        join.check()
        if step.out is not None:
            tags = step.out["queries"].to_pylist()
            pairs += zip(step.out["t"].to_pylist(), step.out["t_right"].to_pylist(), map(",".join, tags), strict=True)
        if step.status is not Status.HAS_OUTPUT:
            return sorted(pairs)


def test_windows_of_different_lengths_share_one_join() -> None:
    queries = [
        WindowQuery("ten", 10),
        WindowQuery("three", 3),
        WindowQuery("left", (5, 0)),
        WindowQuery("aged", age(2, 4)),
    ]
    join = operator(spec_of(*queries))
    join.receive(Arrive(0, rows((1, 100, 0))))
    join.receive(Arrive(1, rows(*((1, 100 + each, 0) for each in (-10, -3, 0, 2, 5, 10, 11)))))
    assert found(join) == [
        (100, 90, "ten"),
        (100, 97, "aged,ten,three"),
        (100, 100, "left,ten,three"),
        (100, 102, "aged,left,ten,three"),
        (100, 105, "left,ten"),
        (100, 110, "ten"),
    ]


def test_a_query_has_the_rows_between_its_addition_and_its_removal() -> None:
    join = operator(spec_of(WindowQuery("always", 10)))
    join.receive(Arrive(0, rows((1, 1, 0))))
    join.receive(AddQuery(WindowQuery("some", 10)))
    join.receive(Arrive(0, rows((1, 2, 0))))
    join.receive(Arrive(1, rows((1, 3, 0))))
    join.receive(RemoveQuery("some"))
    join.receive(Arrive(1, rows((1, 4, 0))))
    assert found(join) == [(1, 3, "always"), (1, 4, "always"), (2, 3, "always,some"), (2, 4, "always")]


def test_rows_that_nobody_wants_are_not_kept() -> None:
    join = operator(spec_of(WindowQuery("large", 10, left="a > 5", right="a is not null")))
    join.receive(Arrive(0, rows(*((1, 1, a) for a in range(10)))))
    join.receive(Arrive(1, rows((1, 2, None), (1, 2, 3))))
    assert found(join) == [(1, 2, "large")] * 4
    assert join.window_rows == 5


def test_numbers_of_queries_and_classes_are_given_again() -> None:
    """A stream of queries over a stream of rows leaves nothing behind."""
    join = operator(spec_of(window=10), more=1 << 18)
    for number in range(300):
        join.receive(AddQuery(WindowQuery(f"q{number}", 5, left=f"a >= {number % 7}")))
        if number >= 3:
            join.receive(RemoveQuery(f"q{number - 3}"))
        for side in (0, 1):
            join.receive(Arrive(side, rows(*((1, 20 * number, a) for a in range(8)))))
        assert found(join)
    sets = join.queries.sets
    assert len(sets.queries) < 10 and all(len(classes.sets) < 60 for classes in sets.classes)
    assert join.events["forgotten classes"] > 500


def test_many_windows_and_filters_cost_bits_and_not_joins() -> None:
    queries = [WindowQuery(f"q{n}", 1 + n % 40, left=f"a > {n % 50}", right=f"a != {n % 9}") for n in range(1_000)]
    join = operator(spec_of(*queries, window=40), more=16 << 20)
    rng = np.random.default_rng(5)
    for start in range(0, 4_000, 500):
        for side in (0, 1):
            batch = [rng.integers(0, 40, 500), np.arange(start, start + 500), rng.integers(0, 60, 500)]
            join.receive(Arrive(side, pa.record_batch([pa.array(column) for column in batch], schema=SCHEMA)))
        pairs = found(join)
        assert pairs
    classes = [len(each) for each in join.queries.sets.classes]
    assert classes[0] <= 52 and classes[1] <= 11


# --- what is refused ---


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (WindowQuery("long", 11), r"the window of query 'long' for left is longer than the longest, 10"),
        (
            WindowQuery("words", "1 min"),
            "window '1 min' does not go with a time column of int64",
        ),
        (
            WindowQuery("none", 5, left="b > 1"),
            r"left of query 'none' asks for column 'b', which is not in left; it has id",
        ),
        (
            WindowQuery("text", 5, right="a = 'x'"),
            r"right of query 'text' compares column 'a' \(int64\) with 'x'; write",
        ),
        (WindowQuery("there", 5), r"there is a query called 'there'; remove it first"),
    ],
)
def test_a_query_that_does_not_fit_is_refused_when_it_comes(query: WindowQuery, said: str) -> None:
    join = operator(spec_of(WindowQuery("there", 5)))
    with pytest.raises(SpecError, match=said):
        join.receive(AddQuery(query))
    join.receive(Arrive(0, rows((1, 1, 1))))
    join.receive(Arrive(1, rows((1, 1, 1))))
    assert found(join) == [(1, 1, "there")]


def test_what_else_is_refused() -> None:
    join = operator(spec_of())
    with pytest.raises(SpecError, match="there is no query called 'x'; there are none"):
        join.receive(RemoveQuery("x"))
    for side in (0, 1):
        join.receive(End(side))
    with pytest.raises(ProtocolError, match="all inputs have ended"):
        join.receive(AddQuery(WindowQuery("x", 1)))
    with pytest.raises(SpecError, match="two queries are called 'x'; rename one"):
        spec_of(WindowQuery("x", 1), WindowQuery("x", 2))
    with pytest.raises(SpecError, match="none is 'left'"):
        QueriesSpec(SCHEMA, SCHEMA, parse_on("id"), "left", window=parse_windows(10, "t"))
    with pytest.raises(SpecError, match="ewj is one join, and not many queries in one"):
        WINDOW_ALGORITHMS["ewj"].refuse_unfit(spec_of())
    plain = WindowConfluence(spec_of().untagged, 1 << 20, MemoryStore())
    with pytest.raises(ProtocolError, match="does not take AddQuery"):
        plain.receive(AddQuery(WindowQuery("x", 1)))


def test_more_classes_than_memory_has_room_for_are_an_error_that_says_so() -> None:
    """Nine filters that are independent of each other have 512 classes of rows."""
    queries = [
        WindowQuery(f"bit{n}", 10, left=" or ".join(f"a = {v}" for v in range(512) if v >> n & 1)) for n in range(9)
    ]
    spec = spec_of(*queries)
    join = WindowConfluence(spec, WindowConfluence.least_memory(spec), MemoryStore(), floor=0)
    join.receive(Arrive(0, rows(*((1, 1, a) for a in range(512)))))
    with pytest.raises(BudgetError, match="what the queries"):
        found(join)
