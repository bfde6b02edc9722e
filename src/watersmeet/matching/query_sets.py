"""Of which queries each pair is a result: classes of rows, windows, and the sets that they make together.

```
row that arrives ──▶ the queries whose filters it passes: its class, one number that is kept with the row
pair within the largest window ──▶ left row's class  ∩  right row's class  ∩  queries whose windows are long enough
```

**Why that is each query alone.** A query has the rows that arrive while it lives and pass its filters: exactly those
have it in their class, which is told when they arrive and never changes. So a pair has it in both classes if and only
if the query has both rows. Of these pairs the query wants those whose times are close enough by its own window, and
that is told by the times of the two rows, and the floor of the one that came later:

- The row that was found must not be older than the query's window reaches back from the later row, or from where its
  input had come if that row was late. Its floor is so far before that by the largest window; by the query's own, the
  difference of the two later.
- If the row that was found is the younger, the later row must be in its own window at that time.

The operator finds each pair within the largest windows once, so each query gets each of its pairs once. A removed query
stays in the classes of rows that came before, and their pairs are its results, however late they are found.

**What is forgotten.** A class whose rows have all expired, so that no row that is still to come or to settle looks for
one of them, is nobody's any more; a removed query that is in no class is gone. Both are numbers that are given again.
(`tests/conformance/test_queries.py` breaks each of these rules, and is noticed.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64, Numbers, Uint64
from watersmeet.core.errors import SpecError
from watersmeet.core.filters import Filter
from watersmeet.core.queries import MOST_WINDOWS, BoundQuery, QueriesSpec
from watersmeet.kernels import gather
from watersmeet.kernels.bitsets import have_common, list_common, measure_common
from watersmeet.matching.found_pairs import Between, PairBuffer, Sides
from watersmeet.matching.lookup import Condition
from watersmeet.matching.row_classes import RowClasses, places_of, set_of, words_for, words_of
from watersmeet.records.addressed import AddressedRows
from watersmeet.records.cells import Cells, Codes
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan, Rows, gather_all
from watersmeet.records.times import CLASS, FLOOR, TIME

QUERY_BYTES = 1024
"""Of each query, beside its words."""
WINDOW_BYTES = 120
"""Of each relation of two rows' times that the windows of queries tell from others, beside bits for each query."""

PairSets: TypeAlias = "tuple[Uint64, Int32, Uint64, Int32, Uint64, Int32]"
"""Of pairs, three tables of sets of queries, and the place of each pair there: what they have in common want it."""


class QuerySets:
    """The queries there are, or were and still have rows, and what rows and pairs have to do with them."""

    def __init__(
        self,
        spec: QueriesSpec,
        remembered: Callable[[int], int],
        may_grow: Callable[[int], bool],
        events: Counter[str],
    ) -> None:
        """Of so many queries `remembered` cells are; `may_grow` asks for room for so many classes."""
        self._spec = spec
        self._events = events
        self._most_remembered = remembered
        self.remembered = remembered(0)
        """So many cells, and relations of times, are remembered with what was made of them."""
        self.queries: list[BoundQuery | None] = []
        """By the bit that stands for each."""
        self.live = 0
        """Those that have not been removed."""
        self.classes = RowClasses(may_grow), RowClasses(may_grow)
        self._bound: tuple[dict[str, Filter], dict[str, Filter]] = ({}, {})
        self._is_stale = True

    # --- queries that come and go ---

    def add(self, query: BoundQuery) -> None:
        """From now on rows that arrive are a query's, too; it has the first place that is free."""
        place = self._free
        if place == len(self.queries):
            self.queries.append(query)
        self.queries[place] = query
        self.live |= 1 << place
        self._is_stale = True

    @property
    def _free(self) -> int:
        return next((place for place, query in enumerate(self.queries) if query is None), len(self.queries))

    def with_one_more(self, query: BoundQuery) -> list[BoundQuery | None]:
        """What the queries would be."""
        place = self._free
        return [*self.queries[:place], query, *self.queries[place + 1 :]]

    def remove(self, name: str) -> None:
        """Rows that arrive from now on are not this query's."""
        place = next(place for place in places_of(self.live) if self._name(place) == name)
        self.live &= ~(1 << place)
        self._is_stale = True

    def forget(self, before: Sequence[int]) -> int:
        """Let go of classes of each input whose rows are all before a time, and of removed queries without any; returns
        how many classes went.
        """
        gone = sum(classes.forget(time) for classes, time in zip(self.classes, before, strict=True))
        used = self.live
        for classes in self.classes:
            for queries in classes.sets:
                used |= queries
        for place, query in enumerate(self.queries):
            if query is not None and not used >> place & 1:
                self.queries[place] = None
        while self.queries and self.queries[-1] is None:
            self.queries.pop()
        self._is_stale |= gone > 0
        return gone

    @property
    def names(self) -> list[str]:
        """Of the queries that have not been removed."""
        return [self._name(place) for place in places_of(self.live)]

    def _name(self, place: int) -> str:
        query = self.queries[place]
        assert query is not None
        return query.name

    def _refresh(self) -> None:
        """What is told from the queries has to be told anew, if they have changed."""
        if not self._is_stale:
            return
        self._is_stale = False
        self.remembered = self._most_remembered(len(self.queries))
        self._of_windows = [_Windows(self.queries, side) for side in (0, 1)]
        if max(windows.size for windows in self._of_windows) >= MOST_WINDOWS:
            raise SpecError(f"queries have more than {MOST_WINDOWS:,} different windows; give some of them the same")
        names = ["" if query is None else query.name for query in self.queries]
        self._order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
        """Bits are in the alphabetical order of the queries that they stand for, as their names come."""
        self._names = pa.array([names[place] for place in self._order], pa.string())
        self._name_bytes = np.array([len(names[place].encode()) + 4 for place in self._order], np.int64)
        for classes in self.classes:
            classes.arrange(self._order)
        self._cells = [self._cells_of(side) for side in (0, 1)]
        self._by_passed: tuple[dict[bytes, int], dict[bytes, int]] = ({}, {})
        """The class of rows that pass some filters, by these."""
        self._window_codes = Codes(self.remembered)
        self._forget_windows()

    def _cells_of(self, side: int) -> tuple[Cells, list[int], int]:
        """What tells the classes of rows: their cells by all filters, the queries of each filter, and those without."""
        always, by_filter = 0, dict[str, list[int]]()
        for place in places_of(self.live):
            query = self.queries[place]
            assert query is not None
            text = query.filters[side]
            if text is None:
                always |= 1 << place
            else:
                by_filter.setdefault(text, []).append(place)
        known = self._bound[side]
        bound = {text: known.get(text) or self._spec.filter(side, text, self._name(places[0]))
                 for text, places in by_filter.items()}  # fmt: skip
        known.clear()
        known.update(bound)
        cells = Cells(self._spec.input(side), list(bound.values()), self.remembered)
        return cells, [set_of(places) for places in by_filter.values()], always

    # --- rows ---

    def classes_of(self, side: int, batch: pa.RecordBatch) -> Int32:
        """The class of each row that arrives now."""
        self._refresh()
        cells, sets, always = self._cells[side]
        known = self._by_passed[side]

        def made(passed: Uint64) -> Int32:
            found = np.empty(len(passed), np.int32)
            for number, words in enumerate(passed):
                key = words.tobytes()
                if key not in known:
                    queries = always
                    for place in np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist():
                        queries |= sets[place]
                    known[key] = self.classes[side].number(queries)
                found[number] = known[key]
            return found

        return cells.classes(batch, made)

    # --- pairs ---

    def pairs(self, side: int, looking: tuple[Int64, Int64, Int32], found: tuple[Int64, Int32]) -> PairSets:
        """What tells the queries of some pairs.

        `looking` are times, floors and classes of the rows that came later, of input `side`, `found` times and classes
        of those that they found.
        """
        self._refresh()
        if len(self._windows) > self.remembered:
            self._window_codes.clear()
            self._forget_windows()
        keys = self._window_keys(side, looking[0], looking[1], found[0])
        windows = self._window_codes.of(keys, self._window_sets)
        left, right = (found[1], looking[2]) if side else (looking[2], found[1])
        return (self.classes[0].words, left, self.classes[1].words, right, self._window_words, windows)

    def wanted(self, side: int, looking: tuple[Int64, Int64, Int32], found: AddressedRows, rows: Numbers) -> Bool:
        """Which pairs of rows of a side and of rows that they found some query wants."""
        times, classes = (array.to_numpy() for array in gather_all(found, (TIME, CLASS), rows))
        wanted = np.empty(len(rows), np.bool_)
        have_common(*self.pairs(side, looking, (times, classes)), wanted)
        self._events["unwanted pairs"] += len(wanted) - int(np.count_nonzero(wanted))
        return wanted

    def measure(self, pairs: PairSets) -> tuple[Int32, Int64]:
        """How many queries want each pair, and the bytes that their names take."""
        counts, widths = np.empty(len(pairs[1]), np.int32), np.empty(len(pairs[1]), np.int64)
        measure_common(*pairs, self._name_bytes, counts, widths)
        return counts, widths + 4

    def tags(self, pairs: PairSets, counts: Int32) -> pa.Array:
        """The names of the queries that want each pair, in alphabetical order."""
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        members = np.empty(offsets[-1], np.int32)
        list_common(*pairs, members)
        return pa.ListArray.from_arrays(pa.array(offsets), self._names.take(pa.array(members)))

    @property
    def widest(self) -> int:
        """Bytes of the names of all queries."""
        self._refresh()
        return int(self._name_bytes.sum()) + 4

    def _window_keys(self, side: int, times: Int64, floors: Int64, found: Int64) -> Int64:
        """What the windows of all queries can tell of pairs."""
        own, other = self._of_windows[side], self._of_windows[1 - side]
        bounds = self._spec.bounds[1 - side]
        starts = found // bounds.step * bounds.step if bounds.step > 1 else found
        apart = np.abs(times - found)
        parts = (
            other.spans.searchsorted(floors + bounds.span - found),
            own.spans.searchsorted(starts - times),
            other.leasts.searchsorted(apart, "right"),
            own.leasts.searchsorted(apart, "right"),
        )
        keys = (4 * side + 2 * (found <= times) + (found >= times)).astype(np.int64)
        for part in parts:
            keys = keys * MOST_WINDOWS + part
        return keys

    def _window_sets(self, keys: Int64, _: Int64) -> Int32:
        """Numbers of the sets of queries whose windows are long enough."""
        first = len(self._windows)
        for key in keys.tolist():
            rest, young = divmod(key, MOST_WINDOWS)
            rest, young_other = divmod(rest, MOST_WINDOWS)
            rest, ahead = divmod(rest, MOST_WINDOWS)
            rest, behind = divmod(rest, MOST_WINDOWS)
            side, (older, younger) = rest >> 2, (rest >> 1 & 1, rest & 1)
            own, other = self._of_windows[side], self._of_windows[1 - side]
            queries = other.at_least_so_old[young_other] if older else 0
            if younger:
                queries |= own.so_long[ahead] & own.at_least_so_old[young]
            self._windows.append(words_of(queries & other.so_long[behind], self._order))
        self._window_words = np.array(self._windows)
        return np.arange(first, len(self._windows), dtype=np.int32)

    def _forget_windows(self) -> None:
        self._windows: list[Uint64] = []
        self._window_words = np.zeros((0, words_for(len(self.queries))), np.uint64)

    # --- snapshots ---

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            "queries": [None if query is None else query.to_state() for query in self.queries],
            "live": f"{self.live:x}",
            "classes": [classes.to_state() for classes in self.classes],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        self.queries = [None if query is None else BoundQuery.of_state(query) for query in state["queries"]]
        self.live = int(state["live"], 16)
        for classes, of_side in zip(self.classes, state["classes"], strict=True):
            classes.load(of_side)
        self._is_stale = True

    def check(self) -> None:
        """Assert the invariants."""
        there = set_of([place for place, query in enumerate(self.queries) if query is not None])
        assert self.live & ~there == 0
        names = self.names
        assert len(set(names)) == len(names)
        for classes in self.classes:
            assert all(queries & ~there == 0 for queries in classes.sets)


class _Windows:
    """What the windows of one input are in all queries."""

    def __init__(self, queries: Sequence[BoundQuery | None], side: int) -> None:
        there = [(place, query) for place, query in enumerate(queries) if query is not None]
        self.spans = np.unique(np.array([query.spans[side] for _, query in there], np.int64))
        self.leasts = np.unique(np.array([query.leasts[side] for _, query in there], np.int64))
        self.size = max(len(self.spans), len(self.leasts)) + 1
        long, old = [0] * (len(self.spans) + 1), [0] * (len(self.leasts) + 1)
        for place, query in there:
            long[int(self.spans.searchsorted(query.spans[side]))] |= 1 << place
            old[int(self.leasts.searchsorted(query.leasts[side])) + 1] |= 1 << place
        for i in reversed(range(len(self.spans))):
            long[i] |= long[i + 1]
        for i in range(len(self.leasts)):
            old[i + 1] |= old[i]
        self.so_long = long
        """Of an age by its place among all lengths: queries whose window is so long."""
        self.at_least_so_old = old
        """Of an age by its place among all least ages: queries that ask for no greater one."""


class WantedPairs:
    """Pairs that are close enough by the largest window, and that some query wants."""

    def __init__(self, close: Condition, queries: QuerySets, side: int, rows: AddressedRows, numbers: Int64) -> None:
        """Of the rows that look, `numbers` of `rows`."""
        self._close = close
        self._queries = queries
        self._side = side
        self._rows = rows
        self._numbers = numbers

    def holds(self, probes: Int32, found: AddressedRows, rows: Numbers) -> Bool:
        """For which pairs that is so."""
        close = self._close.holds(probes, found, rows)
        places = np.flatnonzero(close)
        if len(places):
            own = gather_all(self._rows, (TIME, FLOOR, CLASS), self._numbers[probes[places]])
            times, floors, classes = (array.to_numpy() for array in own)
            close[places] = self._queries.wanted(self._side, (times, floors, classes), found, rows[places])
        return close


class TaggedPairs(PairBuffer):
    """Pairs with the names of the queries that want them."""

    def __init__(
        self, spec: QueriesSpec, codec: KeyCodec, plans: tuple[RowPlan, ...], capacity: int, wide: bool = False
    ) -> None:
        super().__init__(spec.untagged, codec, plans, capacity, wide)
        self._tagged = spec.schema
        self.queries: QuerySets
        """Set as soon as they are there."""
        self._side = 0
        self._wanted_by: tuple[PairSets, Int32] | None = None
        """Of the pairs that are handed out, what tells their queries, and how many these are."""

    def take(self, between: Between, limit: int) -> tuple[pa.RecordBatch | None, int]:
        """Hand out waiting pairs, as many as fit into `limit` bytes with their tags, at least one."""
        self._side = between.probe_side
        return super().take(between, limit)

    def _fitting(self, sides: Sides, plans: Sequence[RowPlan], limit: int) -> int:
        side = self._side
        looking = gather_all(*_columns(sides[side], TIME, FLOOR, CLASS))
        found = gather_all(*_columns(sides[1 - side], TIME, CLASS))
        times, floors, classes = (array.to_numpy() for array in looking)
        found_times, found_classes = (array.to_numpy() for array in found)
        sets = self.queries
        pairs = sets.pairs(side, (times, floors, classes), (found_times, found_classes))
        counts, widths = sets.measure(pairs)
        self._wanted_by = pairs, counts
        if len(counts) * (sum(self.widest) + sets.widest) <= limit:
            return len(counts)
        for (source, numbers), plan in zip(sides, plans, strict=True):
            for column in {*plan.outputs, *plan.keys}:
                source.widen(column, numbers, widths)
        return int(gather.fitting(widths, limit))

    def _build(self, sides: Sides) -> tuple[pa.RecordBatch | None, int]:
        assert self._wanted_by is not None
        (left, lefts, right, rights, windows, by_window), counts = self._wanted_by
        some: Any = slice(0, len(sides[0][1]))
        arrays = self._gathered(sides, self._wanted)
        if not self._codec.exact:
            equal = self._equal(arrays)
            if equal is not None:
                some = np.flatnonzero(equal)
                sides = [(source, numbers[equal]) for source, numbers in sides]
                if not len(some):
                    return None, 0
                arrays = self._gathered(sides, self._outputs)
        pairs = left, lefts[some], right, rights[some], windows, by_window[some]
        batch = self._put_together(arrays, len(sides[0][1]))
        tags = self.queries.tags(pairs, counts[some])
        return pa.RecordBatch.from_arrays([*batch.columns, tags], schema=self._tagged), batch.num_rows


def _columns(rows: tuple[Rows, Numbers], *columns: int) -> tuple[Rows, tuple[int, ...], Numbers]:
    """Some columns of some rows, to be gathered."""
    return rows[0], columns, rows[1]
