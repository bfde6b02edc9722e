"""Memtables of joins whose rows need more than one index, lie together with others' or expire:

```
ManyMemtable     of one of several inputs: an index for each join attribute
SharedMemtable   of one shard: many rows lie in batches that other shards have rows of, too
WindowMemtable   of a window join: the oldest rows go as soon as they have expired
ManyWindowMemtable   of one of several inputs with windows: both
```
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64, Numbers
from watersmeet.core.windows import TimeSpan
from watersmeet.kernels import split as kernels
from watersmeet.kernels.sorted_runs import RangeProbe
from watersmeet.memory import Budget
from watersmeet.records.addressed import Sources
from watersmeet.records.arena import Arena
from watersmeet.records.attributes import Reach
from watersmeet.records.split import Shared, Shelf, portion_of
from watersmeet.records.times import FLOOR, TIME
from watersmeet.tables.hash_table import Layout, Probe
from watersmeet.tables.memtable import Memtable


@dataclass(slots=True)
class OrderedProbe(Probe):
    """A look-up that may be left while rows come, and goes through sorted runs, too."""

    bits: int = 0
    """Of the index that `parts` are buckets of."""
    run: int = -1
    """The run that is being looked up; -1: what is in memory is."""
    near: int = -1
    """A row of it at or before the first that can match; -1: not known."""
    done_with_memory: int = 0
    """How many hashes were looked up in memory."""

    @property
    def looked_up(self) -> int:
        """How many hashes have met all their matches in memory; what is found in runs is found for all at once."""
        return self.done_with_memory if self.run >= 0 else self.next


def hash_columns(hashes: Sequence[Int64]) -> list[pa.Array]:
    """The columns that tell the hashes of rows; the hashes of a single attribute are known without."""
    return [pa.array(each) for each in hashes] if len(hashes) > 1 else []


class ManyMemtable(Memtable):
    """A memtable that is found by several attributes.

    ```
    rows and columns     a memtable, in the order of the first attribute's hashes
    index 1, 2, ...      memtables without columns: the same rows in the order of another attribute's hashes
    ```

    The hashes of all attributes are also the last columns, where there are several: so rows carry them to disk, and
    whoever finds a row by one attribute can look it up further by another.
    """

    def __init__(
        self, types: Sequence[pa.DataType], attributes: int, budget: Budget, layout: Layout, name: str
    ) -> None:
        more = [pa.int64()] * attributes if attributes > 1 else []
        super().__init__([*types, *more], budget, layout, name)
        self.first_hashes = len(types)
        """The column of the first attribute's hashes, where there are several."""
        others = range(1, attributes)
        self.orders: list[Memtable] = [
            self,
            *(Memtable((), budget, layout, f"{name} by {k}", ticked=False) for k in others),
        ]
        """An index for each attribute: the same rows in the order of its hashes."""
        self.row_bytes *= attributes

    # --- rows that come and go ---

    def reserve(self, parts: Int32, columns: Sequence[pa.Array]) -> bool:
        """Claim all that `append` of these rows needs; False if there is no room."""
        self.trim(0)
        if super().reserve(parts, columns) and all(order.reserve(parts, ()) for order in self.orders[1:]):
            return True
        self.trim(0)
        return False

    def trim(self, size: int) -> int:
        """Give back what was claimed and not used; returns how much."""
        return super().trim(size) + sum(order.trim(size) for order in self.orders[1:])

    def append(
        self, hashes: Int64, parts: Int32, columns: Sequence[pa.Array], ticks: Int64, grow_index: bool = True
    ) -> Int32:
        """Take rows for which there is room; returns their numbers."""
        for attribute, order in enumerate(self.orders[1:], 1):
            mine = columns[self.first_hashes + attribute].to_numpy()
            order.append(mine, parts, (), ticks, grow_index)
        return super().append(hashes, parts, columns, ticks, grow_index)

    def clear(self) -> None:
        """Forget all rows."""
        super().clear()
        for order in self.orders[1:]:
            order.clear()

    def drop_first(self, count: int) -> None:
        """Forget the first rows; the others get smaller numbers."""
        some_stay = count < self.rows
        super().drop_first(count)
        for order in self.orders[1:] if some_stay else ():
            order.drop_first(count)

    def fit_index(self) -> None:
        """Rows were brought back: give them the indexes that they should have."""
        super().fit_index()
        for order in self.orders[1:]:
            order.fit_index()

    def sort_indexes(self) -> None:
        """Rows come back in the order of their arrival: nothing is out of order."""

    @property
    def held(self) -> int:
        """Bytes that would be free without these rows."""
        return super().held + sum(order.held for order in self.orders[1:])

    # --- look-ups ---

    def attribute_hashes(self, attribute: int, rows: Int32) -> Int64:
        """One attribute's hashes of some rows."""
        return self.orders[attribute].hashes(rows)

    def seek(self, attribute: int, hashes: Int64, reach: Reach | None = None) -> OrderedProbe:
        """The look-up of some hashes of one attribute."""
        assert reach is None, "a hash index finds what is equal, not what is close"
        order = self.orders[attribute]
        return OrderedProbe(hashes, order.buckets_of(hashes), bits=order.bits)

    def look_up(self, attribute: int, probe: Probe | RangeProbe, out_probe: Int32, out_row: Numbers) -> tuple[int, int]:
        """Go on with a look-up by one attribute until the buffers are full; returns pairs found, entries visited."""
        assert isinstance(probe, OrderedProbe)
        order = self.orders[attribute]
        if probe.bits != order.bits:  # rows came meanwhile, and the index is wider
            probe.parts, probe.bits = order.buckets_of(probe.hashes), order.bits
        return order.probe(probe, len(probe.hashes), out_probe, out_row)

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        for order in self.orders[1:]:
            order.check()
            assert order.rows == self.rows


_PLACE_BYTES = 8
_RELEASED_FROM = 1 << 16


class SharedMemtable(Memtable):
    """A memtable that knows where each row is: in blocks of its own, or in a batch that stands on a shelf.

    Places count the table's own rows, and rows of batches with the batch's number in the upper half of a word, as
    kernels want them. The batches stay until the table is cleared; of their bytes, those of its own rows are counted.
    """

    def __init__(self, *args: Any, shelf: Shelf, **options: Any) -> None:
        self._shelf = shelf
        self._own_rows = 0
        self._batches: dict[int, Shared] = {}
        super().__init__(*args, **options)
        self._entry_bytes += _PLACE_BYTES
        self.row_bytes += _PLACE_BYTES
        self._places = Arena(np.int64, self.capacity)
        self._known = -1
        self._all_sources: Sources = self._sources

    def _begin(self) -> None:
        super()._begin()
        self._own_rows = 0
        self._batches = {}

    @property
    def in_blocks(self) -> int:
        """How many rows were copied into blocks of this table."""
        return self._own_rows

    @property
    def sources(self) -> Sources:
        if not self._batches:
            return self._sources
        shelf = self._shelf
        if not self._own_rows:
            return shelf.sources
        if self._known != shelf.version:
            self._known = shelf.version
            self._all_sources = shelf.beside(self._sources)
        return self._all_sources

    def located(self, rows: Numbers) -> Numbers:
        if not self._batches:
            return rows
        places = np.empty(len(rows), np.int64)
        kernels.locate(rows, self._places.array, places)
        return places

    def may_be_null(self, column: int) -> bool:
        return self._nullable[column] or (bool(self._batches) and self._shelf.may_be_null[column])

    # --- rows that come ---

    def reserve(self, parts: Int32, columns: Sequence[pa.Array]) -> bool:
        """Claim all that `append` of these rows needs; False if there is no room. Asking again replaces the claim."""
        portion = portion_of(columns)
        if portion is None:
            return super().reserve(parts, columns)
        # As if they were copied: a snapshot brings them back as rows of the table's own.
        return self._claim_for(len(parts), portion.nbytes, self.rows)

    def _place(self, columns: list[pa.Array], count: int) -> None:
        portion = portion_of(columns)
        if portion is None:
            super()._place(columns, count)
            first = self._own_rows
            self._places.array[self.rows : self.rows + count] = np.arange(first, first + count)
            self._own_rows += count
        else:
            self._places.array[self.rows : self.rows + count] = portion.places
            self._batches.update(portion.batches)

    def _plain(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return list(columns) if portion_of(columns) is not None else super()._plain(columns)

    # --- rows that go ---

    def clear(self) -> None:
        """Forget all rows."""
        if _PLACE_BYTES * self.rows > _RELEASED_FROM:
            self._places.release(0, self.rows)
        super().clear()

    def drop_first(self, count: int) -> None:
        """Forget all rows; of fewer it knows nothing."""
        assert count == self.rows
        self.clear()


class WindowMemtable(Memtable):
    """A memtable whose rows have a time and a floor before their other columns.

    Of every few rows it is known from when until when their times are, so that nobody looks at rows to see that they
    have expired, and a memtable that becomes a run knows its span of time.
    """

    _stretches: deque[tuple[int, TimeSpan]]
    """Rows that came one after the other: the number behind the last of them, and their span of time."""

    def _begin(self) -> None:
        super()._begin()
        self._stretches = deque()

    def append(
        self, hashes: Int64, parts: Int32, columns: Sequence[pa.Array], ticks: Int64, grow_index: bool = True
    ) -> Int32:
        """Take rows for which there is room; returns their numbers."""
        numbers = super().append(hashes, parts, columns, ticks, grow_index)
        if len(hashes):
            self._note(self.rows, self._span_of(columns))
        return numbers

    def _span_of(self, columns: Sequence[pa.Array]) -> TimeSpan:
        return TimeSpan.of(columns[TIME].to_numpy(), columns[FLOOR].to_numpy())

    def _note(self, end: int, span: TimeSpan) -> None:
        stretches = self._stretches
        start = stretches[-2][0] if len(stretches) > 1 else 0
        if stretches and end - start <= self._block_rows:
            span = TimeSpan.all_of([span, stretches.pop()[1]])
        stretches.append((end, span))

    def span_from(self, number: int) -> TimeSpan:
        """The span of the rows from a number on, and of perhaps some before them."""
        return TimeSpan.all_of(span for _, span in takewhile(lambda each: each[0] > number, reversed(self._stretches)))

    def begun_before(self, time: int) -> int:
        """The number behind the last rows of which some may be before a time."""
        return next((end for end, span in reversed(self._stretches) if span.earliest < time), 0)

    def ended_before(self, time: int, start: int) -> int:
        """The number up to which all rows from another on are before a time."""
        for end, span in self._stretches:
            if end > start:
                if span.latest >= time:
                    break
                start = end
        return start

    def let_expire(self, before: int, most: int) -> int:
        """The first rows, up to `most` of them, that are older than this are found no more; returns how many can go:
        those that fill whole blocks.
        """
        for end, span in self._stretches:
            if span.latest >= before or end > most:
                break
            self.first = max(self.first, end)
        return self.whole_blocks(self.first)

    def drop_first(self, count: int) -> None:
        """Forget the first rows."""
        stretches = self._stretches
        super().drop_first(count)
        if self.rows:
            self._stretches = deque((end - count, span) for end, span in stretches if end > count)

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        ends = [end for end, _ in self._stretches]
        assert ends == sorted(set(ends)) and (ends[-1] if ends else 0) == self.rows


class ManyWindowMemtable(WindowMemtable, ManyMemtable):
    """A memtable of one of several inputs whose rows have their moments before their other columns.

    What a row meets of those that came before it is not told by one floor, but for each input apart.
    """

    def _span_of(self, columns: Sequence[pa.Array]) -> TimeSpan:
        moments = columns[TIME].to_numpy()
        return TimeSpan.of(moments, moments)
