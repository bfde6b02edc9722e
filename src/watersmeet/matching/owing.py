"""Rows that owe, in the order of their hashes: those of a memtable, or of runs; and the buffer that they go through.

Which runs a row owes is decided here, by its mark and a run's threshold; `matching.settlement` has the argument, and
`tests/conformance/test_confluence.py` breaks each of the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from watersmeet.core.arrays import Int32, Int64, Uint64
from watersmeet.core.cost import Meter
from watersmeet.matching.debts import RunEntry
from watersmeet.matching.reach import Reach
from watersmeet.matching.reading import ELSEWHERE, Pages, count_pages, distinct
from watersmeet.records.addressed import AddressedRows
from watersmeet.runs.sorted_run import MergedRows
from watersmeet.tables.memtable import Memtable
from watersmeet.tables.memtable_index import Walk

if TYPE_CHECKING:
    from watersmeet.matching.settlement import Settlement

_ROW_BYTES = 36
"""Of a row: hash, number, mark, and what it takes in buckets and marks."""
_RANGE_BYTES = 64
"""Of a row that looks for a range: both its ends, too, and what these are put together from."""
_LEAST_PART = 64


class Slice:
    """Some owing rows in the order of their hashes: a buffer through which settlements and new runs go."""

    def __init__(self, capacity: int, by_range: bool = False, window: int = 0) -> None:
        self.window: Uint64 = np.empty(window, np.uint64)
        """For hashes of runs that they meet."""
        self.hashes: Uint64 = np.empty(capacity, np.uint64)
        self.rows: Int64 = np.empty(capacity, np.int64)
        self.marks: Int64 = np.empty(capacity, np.int64)
        """What each row is known by where it matters whether it owes a run: see `Debtor`."""
        self.starts: Int32 = np.empty(2 * capacity + 1, np.int32)
        """Where buckets of hashes begin, about as many as there are rows."""
        self.marked: Uint64 = np.empty(capacity // 2 + 2, np.uint64)
        """Which sixteenths of buckets have hashes, or ranges that reach into them."""
        self.low: Uint64 = np.empty(capacity, np.uint64) if by_range else self.hashes
        self.high: Uint64 = np.empty(capacity, np.uint64) if by_range else self.hashes
        """From which hash on and up to which rows look: their own, unless they look for ranges."""
        self.owner: Settlement | None = None
        """Whose rows are in it now."""

    @classmethod
    def bytes_for(cls, capacity: int, by_range: bool = False) -> int:
        """What so many rows take."""
        return (_RANGE_BYTES if by_range else _ROW_BYTES) * capacity

    def find_bounds(self, reach: Reach, count: int) -> None:
        """From where to where the first rows look; a part at a time, for it takes some arrays of that length."""
        part = max(_LEAST_PART, len(self.hashes) // 4)
        for start in range(0, count, part):
            stop = min(count, start + part)
            self.low[start:stop], self.high[start:stop] = reach.bounds(self.hashes[start:stop])

    @property
    def scratch(self) -> tuple[Uint64, Int32]:
        """Room for rows that are being sorted: what else it is for comes after that."""
        return self.marks.view(np.uint64), self.starts[: len(self.marks)]

    def holds(self, table: Memtable) -> bool:
        """Whether all rows of a memtable are in it, in the order of their hashes."""
        return self.owner is not None and self.owner.has_sorted(table)


class Debtor(Protocol):
    """Rows that owe, in the order of their hashes."""

    @property
    def rows(self) -> AddressedRows:
        """Where they lie."""
        ...

    @property
    def done(self) -> bool:
        """Whether all have been passed."""
        ...

    def next_slice(self, hashes: Uint64, rows: Int64) -> int:
        """Fill arrays with the next rows; returns how many."""
        ...

    def place(self) -> list[int]:
        """Where it stands, to be gone to again."""
        ...

    def go_to(self, place: Sequence[int]) -> None:
        """Stand where it stood."""
        ...

    def mark(self, rows: Int64, marks: Int64) -> None:
        """Write down of each row what decides which runs it owes: those whose threshold is below its mark."""
        ...

    def threshold(self, entry: RunEntry) -> int:
        """Rows with higher marks owe this run."""
        ...

    def count_slice(self, rows: int, pages: Pages, meter: Meter) -> None:
        """Count what it took to find the next rows."""
        ...

    def to_state(self) -> dict[str, Any]:
        """For a snapshot, but for the place."""
        ...


class OwingRows:
    """The rows of a memtable from some number on."""

    def __init__(self, table: Memtable, low: int, high: int, sorting: bool | None = None, room: int = 0) -> None:
        self._table = table
        self._generation = table.generation
        self._walk = table.walk(low, high, room)
        if sorting is not None:
            self._walk = Walk(low, high, sorting, table.bits)

    @property
    def low(self) -> int:
        """From this number on."""
        return self._walk.low

    @property
    def high(self) -> int:
        """Up to this number."""
        return self._walk.high

    def is_all_of(self, table: Memtable) -> bool:
        """Whether they are all rows of a memtable."""
        same = self._table is table and self._generation == table.generation  # others may be as many since
        return same and self._walk.low == 0 and self._walk.high == table.rows

    @property
    def rows(self) -> AddressedRows:
        return self._table

    @property
    def done(self) -> bool:
        return self._walk.done

    def next_slice(self, hashes: Uint64, rows: Int64) -> int:
        return self._table.next_sorted(self._walk, hashes, rows)

    def place(self) -> list[int]:
        return [self._walk.bits, *self._walk.cursor.tolist()]

    def go_to(self, place: Sequence[int]) -> None:
        self._walk = replace(self._walk, bits=place[0], cursor=np.array(place[1:], np.int64))

    def mark(self, rows: Int64, marks: Int64) -> None:
        marks[:] = rows

    def threshold(self, entry: RunEntry) -> int:
        return entry.since - 1

    def count_slice(self, rows: int, pages: Pages, meter: Meter) -> None:
        """They are in memory."""

    def to_state(self) -> dict[str, Any]:
        return {"low": self._walk.low, "high": self._walk.high, "sorting": self._walk.sorting}


class OwingRuns:
    """The rows of runs that were written before their rows had settled, all at once."""

    def __init__(self, entries: Sequence[RunEntry]) -> None:
        self.entries = list(entries)
        self._rows = MergedRows([entry.run for entry in entries])
        self._before = np.array([entry.owes_before for entry in entries], np.int64)

    @property
    def rows(self) -> AddressedRows:
        return self._rows

    @property
    def done(self) -> bool:
        return self._rows.done

    def next_slice(self, hashes: Uint64, rows: Int64) -> int:
        return self._rows.next_sorted(hashes, rows)

    def place(self) -> list[int]:
        return self._rows.places()

    def go_to(self, place: Sequence[int]) -> None:
        self._rows.go_to(place)

    def mark(self, rows: Int64, marks: Int64) -> None:
        marks[:] = self._before[rows >> 32]

    def threshold(self, entry: RunEntry) -> int:
        return entry.birth

    def count_slice(self, rows: int, pages: Pages, meter: Meter) -> None:
        meter.pages_read += max(len(self.entries), -(-rows // pages.hashes))
        meter.seeks += len(self.entries)

    def count_rows(self, rows: Int64, pages: Pages, meter: Meter) -> None:
        """Count what it takes to read some of them."""
        each = distinct((rows >> 32 << 32) + (rows & 0xFFFFFFFF) // pages.rows)
        count_pages(each, ELSEWHERE, meter)

    def to_state(self) -> dict[str, Any]:
        return {"owing": [entry.run.name for entry in self.entries]}
