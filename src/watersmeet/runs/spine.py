"""The spine: a few sorted runs in place of many, merged as they become too many.

A run that leaves memory is of level 0. As soon as `fan_in` runs of one level stand at the end, they become one of the
next level. So there are at most `fan_in - 1` runs of each level, and a row is written again once a level: with N rows
and m in memory there are log(N/m) levels, to the base `fan_in`. (Proof: runs of a level follow each other, for a merge
takes all of a level from the end and puts one of the next in their place; a run of level l has the rows of fan_in ** l
memory-fulls, so the highest level is at most that logarithm.)
`tests/unit/runs/test_spine.py` holds it to that.

Merging goes on a little at a time: hashes first, which say in which order rows follow, and then, in the same order once
more, the rows. Neither needs memory that grows with the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from watersmeet.runs.sorted_run import MergedRows, RunWriter, SortedRun, let_go
from watersmeet.spill.store import Store

_MAPPED = 2 << 20
"""Bytes of runs that are passed before they are let go while they are merged."""


def to_merge(levels: Sequence[int], fan_in: int) -> int:
    """How many of the last runs are to become one; 0 if there is no need.

    >>> to_merge([1, 0, 0], 3), to_merge([1, 1, 0, 0, 0], 3), to_merge([], 3)
    (0, 3, 0)
    """
    if not levels:
        return 0
    same = 0
    while same < len(levels) and levels[-1 - same] == levels[-1]:
        same += 1
    return same if same >= fan_in else 0


def oldest_to_merge(levels: Sequence[int], fan_in: int, most: int) -> slice:
    """Which runs are to become one, of runs whose levels fall: as soon as there are `fan_in` of a level, the oldest of
    them, up to `most`. So many can be kept apart, and still few are read at once when they become too many.

    >>> oldest_to_merge([1, 0, 0], 3, 2), oldest_to_merge([1, 0, 0, 0], 3, 2), oldest_to_merge([1, 1, 1, 0], 3, 8)
    (slice(0, 0, None), slice(1, 3, None), slice(0, 3, None))
    """
    start = 0
    while start < len(levels):
        stop = start
        while stop < len(levels) and levels[stop] == levels[start]:
            stop += 1
        if stop - start >= fan_in:
            return slice(start, min(stop, start + most))
        start = stop
    return slice(0, 0)


def block_rows_for(nbytes: int, rows: int, page_bytes: int, most: int = 4096) -> int:
    """How many rows of a run share a block: a power of two, about a page of them."""
    fitting = max(1, min(most, page_bytes * max(1, rows) // max(1, nbytes)))
    return 1 << (fitting.bit_length() - 1)


class Merge:
    """Several runs on their way to become one, from the places `start` on and of `most` rows, if not all of them."""

    def __init__(
        self,
        store: Store,
        name: str,
        runs: Sequence[SortedRun],
        page_bytes: int,
        start: Sequence[int] | None = None,
        most: int | None = None,
    ) -> None:
        self.runs = list(runs)
        self._rows = MergedRows(self.runs)
        self._start = [0] * len(self.runs) if start is None else list(start)
        left = self._rows.rows - sum(self._start)
        self.rows = left if most is None else min(left, most)
        """How many there will be."""
        self.nbytes = nbytes = sum(run.nbytes for run in runs)
        self._block_rows = block_rows_for(nbytes, self._rows.rows, page_bytes)
        self._hashes = np.empty(max(self._block_rows, page_bytes // 16), np.uint64)
        self._numbers = np.empty(len(self._hashes), np.int64)
        self._writer = RunWriter(store, name, self._rows.types, self.rows, self._block_rows)
        self._passed = 0
        self._most_mapped = _MAPPED * self._rows.rows // max(1, nbytes)
        self._steps = self._work()
        self.merged: SortedRun | None = None

    def work(self) -> int:
        """Merge a little; returns how many rows were passed, 0 when all is done and `merged` is there."""
        return next(self._steps, 0)

    def places(self) -> list[int]:
        """How far each run has been merged."""
        return self._rows.places()

    def _work(self) -> Iterator[int]:
        for count in self._next_rows(len(self._hashes)):
            self._writer.write_hashes(self._hashes[:count])
            self._let_go(count // 8)
            yield count
        for count in self._next_rows(self._block_rows):
            self._rows.check_rows(self._numbers[:count])
            self._let_go(count)
            self._writer.write_block(self._rows, self._numbers[:count])
            yield count
        self.merged = self._writer.seal()

    def _next_rows(self, each: int) -> Iterator[int]:
        """All rows in their order, from the first on, so many at a time; tells how many are in the buffers."""
        self._rows.go_to(self._start)
        left = self.rows
        while left:
            count = self._rows.next_sorted(self._hashes[: min(each, left)], self._numbers[: min(each, left)])
            left -= count
            yield count

    def _let_go(self, passed: int) -> None:
        """Let mapped pages leave memory that will not be read again."""
        self._passed += passed
        if self._passed > self._most_mapped:
            self._passed = 0
            let_go(self.runs)

    def abort(self) -> None:
        """Leave nothing of it."""
        self._writer.abort()
