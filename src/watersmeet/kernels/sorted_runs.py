"""A sorted index for batches: runs of growing length, each a sorted array of words and the rows they belong to.

```
oldest rows  ├──────────────────────┤ ├──────────┤ ├────┤ ├──┤  newest rows
```

A batch is sorted and becomes the newest run; a run that is not more than twice as long as the one after it is merged
with it, so there are few runs and a row is moved a logarithmic number of times. Equal words stay in the order of their
arrival. A look-up sorts what it looks for and goes through each run once, from the front to the back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from watersmeet.core.arrays import Int32, Int64, Uint16
from watersmeet.kernels.compile import kernel
from watersmeet.kernels.history import together
from watersmeet.kernels.radix import sorted_order

ENTRY_BYTES = 24
"""Of each row in the index: its word and its number, once where they are and once where they are merged to."""
_NONE = np.zeros(0, np.int64)
_NO_SLOTS = np.zeros(0, np.uint16)


def _bits_as_double(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


_declare: Any = intrinsic
_as_double: Callable[[Any], float] = _declare(_bits_as_double)


@kernel
def merge(words_a: Int64, rows_a: Int32, words_b: Int64, rows_b: Int32, words: Int64, rows: Int32) -> None:
    """Two sorted runs as one; of equal words, those of the first come first."""
    i = 0
    j = 0
    many_a = words_a.shape[0]
    many_b = words_b.shape[0]
    for k in range(many_a + many_b):
        if j == many_b or (i < many_a and words_a[i] <= words_b[j]):
            words[k] = words_a[i]
            rows[k] = rows_a[i]
            i += 1
        else:
            words[k] = words_b[j]
            rows[k] = rows_b[j]
            j += 1


@kernel
def first_not_below(words: Int64, start: int, wanted: int) -> int:
    """The first place from `start` on whose word is not below `wanted`, by steps that double."""
    many = words.shape[0]
    step = 1
    low = start
    high = start
    while high < many and words[high] < wanted:
        low = high + 1
        high += step
        step *= 2
    if high > many:
        high = many
    while low < high:
        middle = (low + high) // 2
        if words[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def probe_run(
    words: Int64, rows: Int32, row_tags: Int64, row_arrived: Int64, row_slots: Uint16, slot_departed: Int64,
    sought: Int64, low: Int64, high: Int64, tags: Int64, arrived: Int64, departed: Int64, order: Int32,
    in_doubles: bool, width: float, place: Int64, most: int, out_probe: Int32, out_row: Int32, found: int,
) -> tuple[int, int]:  # fmt: skip
    """Find the rows of a run whose words lie within [low, high] of what is sought, until the buffers are full or about
    `most` entries were visited; returns the pairs now in the buffers and the entries visited.

    `order` lists what is sought by rising words. `place` is where it stopped: how many of these are done, where in the
    run the next one is (-1: not looked for yet), and from where on to look for it. With tags, only rows of the same tag
    are found. With doubles, only rows whose difference, as double arithmetic has it, is not more than `width`. With
    arrivals and departures, only rows that were not in memory together with the row that is sought for; rows that left
    together have a slot for that in common.
    """
    capacity = out_probe.shape[0]
    tagged = tags.shape[0] > 0
    apart = arrived.shape[0] > 0
    many = words.shape[0]
    k, at, start = place[0], place[1], place[2]
    visited = 0
    while k < order.shape[0]:
        i = order[k]
        if at < 0:
            if visited >= most:
                break
            start = first_not_below(words, start, low[i])
            at = start
            visited += 1
        top = high[i]
        mine = 0.0
        if in_doubles:
            mine = _as_double(sought[i] ^ ((sought[i] >> 63) & 0x7FFF_FFFF_FFFF_FFFF))
        stopped = False
        while at < many and words[at] <= top:
            if found == capacity or visited >= most:
                stopped = True
                break
            visited += 1
            close = not tagged or tags[i] == row_tags[rows[at]]
            if close and in_doubles:
                theirs = _as_double(words[at] ^ ((words[at] >> 63) & 0x7FFF_FFFF_FFFF_FFFF))
                close = abs(mine - theirs) <= width
            if close and apart:
                row = rows[at]
                close = not together(arrived[i], departed[i], row_arrived[row], slot_departed[row_slots[row]])
            if close:
                out_probe[found] = i
                out_row[found] = rows[at]
                found += 1
            at += 1
        if stopped:
            break
        k += 1
        at = -1
    place[0], place[1], place[2] = k, at, start
    return found, visited


@kernel
def count_by_region(words: Int64, rows: Int32, lower: int, upper: int, joined: Any, counts: Int64) -> None:
    """Note that each of these rows has joined, and count in which region its word lies: up to `lower`, between, from
    `upper` on.
    """
    for i in range(rows.shape[0]):
        row = rows[i]
        joined[row] = 1
        word = words[row]
        if word >= upper:
            counts[2] += 1
        elif word <= lower:
            counts[0] += 1
        else:
            counts[1] += 1


@dataclass(slots=True)
class RangeProbe:
    """Rows looked up by ranges of words, a look-up that can stop at any pair and go on from there."""

    hashes: Int64
    """The words of the rows themselves."""
    low: Int64
    high: Int64
    tags: Int64 = field(default_factory=lambda: _NONE)
    in_doubles: bool = False
    width: float = 0.0
    arrived: Int64 = field(default_factory=lambda: _NONE)
    departed: Int64 = field(default_factory=lambda: _NONE)
    """When the rows came and left memory, if those that were there together are to be left out."""
    order: Int32 = field(init=False)
    run: int = 0
    place: Int64 = field(default_factory=lambda: np.array([0, -1, 0]))
    done: bool = False

    def __post_init__(self) -> None:
        self.order = sorted_order(self.hashes)
        self.done = not len(self.hashes)

    @property
    def looked_up(self) -> int:
        """How many rows have met all their matches: runs are gone through one after the other, so all or none."""
        return len(self.hashes) if self.done else 0

    @property
    def untouched(self) -> bool:
        """Whether nothing has been looked up."""
        return not self.run and not self.place[0] and self.place[1] < 0

    @property
    def reach(self) -> tuple[int, int]:
        """The lowest and the highest word that could match."""
        return int(self.low[self.order[0]]), int(self.high[self.order[-1]])

    def rewind(self) -> None:
        """Begin anew, in other runs."""
        self.run, self.place, self.done = 0, np.array([0, -1, 0]), not len(self.hashes)

    def mark(self) -> list[int]:
        """Where it stopped, to be gone to in the same runs."""
        return [self.run, *self.place.tolist()]

    def go_to(self, mark: Sequence[int]) -> None:
        """Go on from a mark."""
        self.run, self.place = mark[0], np.array(mark[1:], np.int64)


class SortedRuns:
    """The runs of one table. What they hold is for the table to reserve: `ENTRY_BYTES` for each of its rows.

    >>> index = SortedRuns()
    >>> index.insert(np.array([30, 10, 20]), np.array([0, 1, 2], np.int32))
    >>> probe = RangeProbe(np.array([19]), np.array([14]), np.array([24]))
    >>> out = np.empty(4, np.int32), np.empty(4, np.int32)
    >>> index.probe(probe, 100, *out)
    (1, 2)
    >>> int(out[1][0]), probe.done
    (2, True)
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Int64, Int32]] = []

    @classmethod
    def of_sorted(cls, words: Int64, rows: Int32 | None = None) -> SortedRuns:
        """One run of rows in the order of their words; unless given, they are numbered in that order."""
        index = cls()
        if len(words):
            index._runs.append((words, np.arange(len(words), dtype=np.int32) if rows is None else rows))
        return index

    @property
    def lengths(self) -> list[int]:
        """How many rows each run has, the oldest first."""
        return [len(rows) for _, rows in self._runs]

    def insert(self, words: Int64, rows: Int32) -> None:
        """Put new rows in."""
        if len(rows):
            self._push(words, rows)
            while len(self._runs) > 1 and len(self._runs[-2][1]) <= 2 * len(self._runs[-1][1]):
                self._merge_last()

    def build(self, words: Int64, rows: Int32, lengths: Sequence[int]) -> None:
        """Begin anew with rows in the order of their arrival, in runs of these lengths."""
        self._runs = []
        start = 0
        for length in lengths:
            self._push(words[start : start + length], rows[start : start + length])
            start += length
        assert start == len(rows), "the runs hold all rows"

    def _push(self, words: Int64, rows: Int32) -> None:
        order = sorted_order(words)
        self._runs.append((words[order], rows[order]))

    def _merge_last(self) -> None:
        newer, older = self._runs.pop(), self._runs.pop()
        many = len(older[1]) + len(newer[1])
        merged = np.empty(many, np.int64), np.empty(many, np.int32)
        merge(*older, *newer, *merged)
        self._runs.append(merged)

    def sorted(self) -> tuple[Int64, Int32]:
        """All words and rows, in one run."""
        while len(self._runs) > 1:
            self._merge_last()
        return self._runs[0] if self._runs else (np.empty(0, np.int64), np.empty(0, np.int32))

    def renumber(self, numbers: Int32) -> None:
        """Let row r be row numbers[r] from now on, and forget it if that is -1; the order of arrival stays."""
        runs = []
        for words, rows in self._runs:
            new = numbers[rows]
            stays = new >= 0
            if stays.any():
                runs.append((words[stays], new[stays]))
        self._runs = runs

    def clear(self) -> None:
        """Forget all rows."""
        self._runs = []

    def probe(
        self,
        probe: RangeProbe,
        most: int,
        out_probe: Int32,
        out_row: Int32,
        row_tags: Int64 = _NONE,
        row_arrived: Int64 = _NONE,
        row_slots: Uint16 = _NO_SLOTS,
        slot_departed: Int64 = _NONE,
    ) -> tuple[int, int]:
        """Go on with a look-up, visiting about `most` entries; returns the pairs found and the entries visited.

        Pairs come run by run, and in each run by the order of what is sought.
        """
        found = visited = 0
        while not probe.done:
            if probe.run == len(self._runs):
                probe.done = True
                break
            if found == len(out_probe) or visited >= most:
                break
            words, rows = self._runs[probe.run]
            found, more = probe_run(
                words, rows, row_tags, row_arrived, row_slots, slot_departed,
                probe.hashes, probe.low, probe.high, probe.tags, probe.arrived, probe.departed, probe.order,
                probe.in_doubles, probe.width, probe.place, most - visited, out_probe, out_row, found,
            )  # fmt: skip
            visited += more
            if probe.place[0] == len(probe.order):
                probe.run += 1
                probe.place = np.array([0, -1, 0])
        return found, visited

    def check(self, words: Int64, rows: Int32) -> None:
        """Assert that these rows, in the order of their arrival, are what is in the runs."""
        assert sum(self.lengths) == len(rows)
        start = 0
        for run_words, run_rows in self._runs:
            stop = start + len(run_rows)
            order = np.argsort(words[start:stop], kind="stable")
            assert np.array_equal(run_words, words[start:stop][order])
            assert np.array_equal(run_rows, rows[start:stop][order])
            start = stop
