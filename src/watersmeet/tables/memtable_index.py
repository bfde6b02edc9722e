"""How rows of a memtable are found by their sort keys, and gone through in the order of these.

A sort key is an unsigned word. Where rows must be equal it is their hash, and a row is found by exactly its own
(`HashIndex`); where they need only be close, a row is found by all keys from one to another (`RangeIndex`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32, Int64, Numbers, Uint64
from watersmeet.core.errors import BudgetError
from watersmeet.kernels import hash_index, hash_order, sorted_runs
from watersmeet.kernels.hash_order import sort_rows
from watersmeet.kernels.radix import sorted_order
from watersmeet.kernels.sorted_runs import RangeProbe, SortedRuns
from watersmeet.memory import Reservation
from watersmeet.records.arena import Arena
from watersmeet.tables.hash_table import Probe

_FIRST_BITS = 6
_FEW = 8
"""Where one row of so many buckets is wanted, going through the index takes longer than sorting."""
_RELEASED_FROM = 1 << 16
"""Bytes of an index that are given back to the system when rows go, so that others can have them."""
_SIGN = np.int64(-(1 << 63))
"""Sort keys are in the order of unsigned words, sorted runs in that of signed ones."""


@dataclass(slots=True)
class Walk:
    """A place in the rows sorted by their keys, of those numbered from `low` to `high`."""

    low: int
    high: int
    sorting: bool = False
    """Whether rows are taken in the order of their arrival, as many as the buffer holds, and sorted; else the index
    tells their order, over all buffers."""
    bits: int = 0
    """Of the index that the cursor is a place in."""
    cursor: Int64 = field(default_factory=lambda: np.zeros(hash_order.CURSOR, np.int64))

    @property
    def done(self) -> bool:
        """Whether all rows have been passed."""
        return bool(self.cursor[0] < 0)

    def take(self, most: int) -> tuple[int, int]:
        """The next rows in the order of their arrival, where these are to be sorted: the first, and how many."""
        start = int(self.cursor[0])
        count = max(0, min(most, self.high - start)) if start >= 0 else 0
        self.cursor[0] = start + count if start >= 0 and start + count < self.high else -1
        return max(0, start), count


def move_down(array: NDArray[Any], start: int, stop: int) -> None:
    """Move array[start:stop] to the beginning, in pieces that do not overlap."""
    for at in range(start, stop, start):
        upto = min(stop, at + start)
        array[at - start : upto - start] = array[at:upto]


class MemtableIndex(Protocol):
    """What a memtable asks of its index. Rows are numbered as they come, without gaps."""

    row_bytes: ClassVar[int]
    """Of each row, reserved by the memtable before it comes."""

    @property
    def bits(self) -> int:
        """How large the index is, if the places of walks depend on it."""
        ...

    @property
    def built(self) -> list[int]:
        """What has to be known to build it anew so that look-ups find rows in the same order."""
        ...

    def keys(self, rows: Int32) -> Int64:
        """The keys of some rows."""
        ...

    def append(self, first: int, keys: Int64, grow: bool) -> Int32:
        """Rows from number `first` on; returns their numbers. Without `grow`, `fit` follows."""
        ...

    def probe(self, probe: Any, limit: int, out_probe: Int32, out_row: Numbers, first: int = 0) -> tuple[int, int]:
        """Go on with a look-up; returns the pairs found and the entries visited."""
        ...

    def next_sorted(self, walk: Walk, keys: Uint64, rows: Numbers) -> int:
        """Fill arrays with the next rows in the order of their keys; returns how many."""
        ...

    def walk(self, low: int, high: int, room: int = 0) -> Walk:
        """The rows from `low` up to `high` in the order of their keys, so many at a time."""
        ...

    def fit(self, rows: int, built: Sequence[int] | None = None) -> None:
        """Rows were brought back: give them the index that they should have, or had."""
        ...

    def have_bits(self, rows: int, bits: int) -> None:
        """Be at least as large as when a place was noted."""
        ...

    def drop_first(self, count: int, rows: int) -> None:
        """Forget the first of so many rows; the others get smaller numbers."""
        ...

    def clear(self, rows: int) -> None:
        """Forget all rows; there are so many."""
        ...

    def check(self, rows: int) -> None:
        """Assert the invariants."""
        ...


class HashIndex:
    """Entries (hash, link) by row, and heads by the top bits of the hash.

    So the buckets are in the order of hashes: going through them is going through the rows in sorted order.
    """

    row_bytes: ClassVar[int] = 16

    def __init__(self, capacity: int, claim: Reservation) -> None:
        self._entries = Arena(np.int64, 2 * capacity)
        self._all_heads = Arena(np.int32, 1 << max(_FIRST_BITS, (capacity - 1).bit_length()))
        self._claim = claim
        self.scratch: tuple[Uint64, Int32] | None = None
        """Room in which rows are sorted, for as many as are wanted at a time; without, there will be some."""
        self._begin()

    @property
    def hash_address(self) -> int:
        """Where the first row's hash lies; those of the others follow, each with its link behind it."""
        return int(self._entries.array.ctypes.data)

    def _begin(self) -> None:
        self._claim.clear()
        self._claim.grow(4 << _FIRST_BITS)
        self._have_heads(_FIRST_BITS)

    @property
    def bits(self) -> int:
        """There are two to this power buckets."""
        return self._bits

    @property
    def built(self) -> list[int]:
        """Chains lead from newer rows to older ones, however many there are."""
        return []

    def keys(self, rows: Int32) -> Int64:
        """The hashes of some rows."""
        hashes = np.empty(len(rows), np.int64)
        hash_index.hashes_of(rows, self._entries.array, hashes)
        return hashes

    # --- rows that come ---

    def append(self, first: int, keys: Int64, grow: bool) -> Int32:
        """Rows from number `first` on; returns their numbers. Without `grow`, `fit` follows."""
        stop = first + len(keys)
        if grow:
            self._widen(first, stop)
        numbers = np.arange(first, stop, dtype=np.int32)
        hash_index.link_rows(keys, self.buckets_of(keys), numbers, self._entries.array, self._heads, 1)
        return numbers

    def buckets_of(self, hashes: Int64) -> Int32:
        """In which bucket each hash is."""
        buckets = np.empty(len(hashes), np.int32)
        hash_index.partitions_of(hashes, self._bits, buckets)
        return buckets

    def _widen(self, linked: int, rows: int) -> None:
        """Have as many buckets as rows, if there is room for them; without, chains are longer."""
        bits = max(self._bits, (rows - 1).bit_length())
        while bits > self._bits and not self._claim.try_grow((4 << bits) - self._heads.nbytes):
            bits -= 1
        if bits > self._bits:
            self._have_heads(bits)
            hash_order.relink(self._entries.array, linked, self._heads, bits)

    def _have_heads(self, bits: int) -> None:
        """Two to this power buckets, all of them empty."""
        self._bits = bits
        self._heads = self._all_heads.array[: 1 << bits]
        self._heads[:] = 0

    def fit(self, rows: int, built: Sequence[int] | None = None) -> None:
        """Rows were brought back: give them the index that they should have."""
        self._widen(rows, rows)

    def have_bits(self, rows: int, bits: int) -> None:
        """Have at least as many buckets as a place in the index was noted with."""
        self._widen(rows, 1 << bits)
        if self._bits < bits:
            raise BudgetError("the snapshot does not fit into the memory that it was taken with; allow a little more")

    # --- look-ups, and rows in order ---

    def probe(self, probe: Probe, limit: int, out_probe: Int32, out_row: Numbers, first: int = 0) -> tuple[int, int]:
        """Go on with a look-up, up to hash `limit` or until the buffers are full; returns pairs and entries visited.

        Rows before `first` are not found.
        """
        found, probe.next, probe.link, visited = hash_index.probe(
            probe.hashes, probe.parts, probe.next, limit, probe.link, self._entries.array, self._heads, 1,
            out_probe, out_row, 0, 2, first,
        )  # fmt: skip
        return found, visited

    def next_sorted(self, walk: Walk, keys: Uint64, rows: Numbers) -> int:
        """Fill arrays with the next rows in the order of their hashes; returns how many."""
        if walk.sorting:
            start, count = walk.take(len(rows))
            if self.scratch is None or len(self.scratch[1]) < count:
                self.scratch = np.empty(count, np.uint64), np.empty(count, np.int32)
            sort_rows(self._entries.array, start, count, keys, rows, *self.scratch)
            return count
        self.bring_up(walk)
        args = self._entries.array, self._heads, walk.low, walk.high, walk.cursor, keys, rows
        return int(hash_order.walk(*args))

    def walk(self, low: int, high: int, room: int = 0) -> Walk:
        """The rows from `low` up to `high` in the order of their hashes, so many at a time.

        They are sorted if they all fit, or are few, and else read off the index.
        """
        return _begun(Walk(low, high, high - low <= room or _FEW * (high - low) < len(self._heads), self._bits))

    def bring_up(self, walk: Walk) -> None:
        """The index may have more buckets than when a place in it was noted: the same place among those."""
        assert walk.bits <= self._bits
        if walk.cursor[0] >= 0 and not walk.sorting:
            if walk.cursor[1]:
                walk.cursor[0] = int(walk.cursor[2:3].view(np.uint64)[0]) >> (64 - self._bits)
            else:
                walk.cursor[0] <<= self._bits - walk.bits
        walk.bits = self._bits

    def drop_first(self, count: int, rows: int) -> None:
        """Forget the first of so many rows; the others get smaller numbers."""
        left = rows - count
        move_down(self._entries.array, 2 * count, 2 * rows)
        if 2 * count * self._entries.itemsize > _RELEASED_FROM:
            self._entries.release(2 * left, 2 * rows)
        self._heads[:] = 0
        hash_order.relink(self._entries.array, left, self._heads, self._bits)

    def clear(self, rows: int) -> None:
        """Forget all rows."""
        if 2 * rows * self._entries.itemsize > _RELEASED_FROM:
            self._entries.release(0, 2 * rows)
        if self._heads.nbytes > _RELEASED_FROM:
            self._all_heads.release(0, len(self._heads))
        self._begin()

    def check(self, rows: int) -> None:
        """Assert the invariants."""
        assert len(self._heads) == 1 << self._bits


class RangeIndex:
    """Keys by row, and sorted runs of growing length (`kernels.sorted_runs`).

    Rows follow each other by their keys, and those of one key as they came. So the place of a walk is the key and the
    number of its last row, whatever has come since: later rows have higher numbers than it asks for.
    """

    row_bytes: ClassVar[int] = 8 + sorted_runs.ENTRY_BYTES
    bits = 0

    def __init__(self, capacity: int, claim: Reservation) -> None:
        self._keys = Arena(np.int64, capacity)
        self._runs = SortedRuns()

    @property
    def built(self) -> list[int]:
        """How long the runs are: a look-up goes through one after the other."""
        return self._runs.lengths

    def keys(self, rows: Int32) -> Int64:
        """The keys of some rows."""
        return self._keys.array[rows]

    # --- rows that come ---

    def append(self, first: int, keys: Int64, grow: bool) -> Int32:
        """Rows from number `first` on; returns their numbers. Without `grow`, `fit` follows."""
        stop = first + len(keys)
        self._keys.array[first:stop] = keys
        numbers = np.arange(first, stop, dtype=np.int32)
        if grow:
            self._runs.insert(keys ^ _SIGN, numbers)
        return numbers

    def fit(self, rows: int, built: Sequence[int] | None = None) -> None:
        """Rows were brought back: sort them, in runs of these lengths if they are given."""
        lengths = [rows] if built is None else built
        self._runs.build(self._keys.array[:rows] ^ _SIGN, np.arange(rows, dtype=np.int32), lengths if rows else [])

    def have_bits(self, rows: int, bits: int) -> None:
        """Places do not depend on how the index is built."""

    # --- look-ups, and rows in order ---

    def probe(self, probe: RangeProbe, limit: int, out_probe: Int32, out_row: Int32, first: int = 0) -> tuple[int, int]:
        """Go on with a look-up, visiting about `limit` entries; returns the pairs found and the entries visited.

        Rows before `first`, of use to nobody, are found nevertheless: whoever has such rows asks more of what is found.
        """
        return self._runs.probe(probe, limit, out_probe, out_row)

    def next_sorted(self, walk: Walk, keys: Uint64, rows: Numbers) -> int:
        """Fill arrays with the next rows in the order of their keys; returns how many."""
        if walk.sorting:
            return _sort_next(walk, self._keys.array, keys, rows)
        words, numbers = self._runs.sorted()
        _, has_begun, last_word, last_row = walk.cursor.tolist()
        start = 0
        if has_begun:
            first, behind = (int(np.searchsorted(words, last_word, side)) for side in ("left", "right"))
            start = first + int(np.searchsorted(numbers[first:behind], last_row, "right"))
        place, count = hash_order.take_numbered(words, numbers, start, walk.low, walk.high, keys, rows)
        if place == len(words):
            walk.cursor[0] = -1
        else:
            walk.cursor[:] = 0, place > 0, words[place - 1], numbers[place - 1]
        return int(count)

    def walk(self, low: int, high: int, room: int = 0) -> Walk:
        """The rows from `low` up to `high` in the order of their keys: few are sorted, many read off the index."""
        return _begun(Walk(low, high, _FEW * (high - low) < sum(self._runs.lengths)))

    def drop_first(self, count: int, rows: int) -> None:
        """Forget the first of so many rows; the others get smaller numbers."""
        move_down(self._keys.array, count, rows)
        if count * self._keys.itemsize > _RELEASED_FROM:
            self._keys.release(rows - count, rows)
        self._runs.renumber(np.arange(-count, rows - count, dtype=np.int32))

    def clear(self, rows: int) -> None:
        """Forget all rows."""
        if rows * self._keys.itemsize > _RELEASED_FROM:
            self._keys.release(0, rows)
        self._runs.clear()

    def check(self, rows: int) -> None:
        """Assert the invariants."""
        self._runs.check(self._keys.array[:rows] ^ _SIGN, np.arange(rows, dtype=np.int32))


def _begun(walk: Walk) -> Walk:
    if walk.low >= walk.high:
        walk.cursor[0] = -1
    elif walk.sorting:
        walk.cursor[0] = walk.low
    return walk


def _sort_next(walk: Walk, of_rows: Int64, keys: Uint64, rows: Numbers) -> int:
    """The next rows in the order of their arrival, as many as there is room for, sorted."""
    start, count = walk.take(len(rows))
    found = of_rows[start : start + count]
    order = sorted_order(found ^ _SIGN)
    keys[:count] = found[order].view(np.uint64)
    rows[:count] = order
    rows[:count] += start
    return count
