"""Rows of one of several inputs in memory, as they came, with an index for each join attribute.

```
rows and columns     a memtable, in the order of the first attribute's hashes
index 1, 2, ...      memtables without columns: the same rows in the order of another attribute's hashes
```

The hashes of all attributes are also the last columns, where there are several: so rows carry them to disk, and whoever
finds a row by one attribute can look it up further by another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64, Numbers
from watersmeet.kernels.sorted_runs import RangeProbe
from watersmeet.memory import Budget
from watersmeet.records.attributes import Reach
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
    """A memtable that is found by several attributes."""

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
        return order.probe(probe, len(probe.hashes), out_probe, out_row, 0)

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        for order in self.orders[1:]:
            order.check()
            assert order.rows == self.rows
