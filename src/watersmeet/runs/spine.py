"""The spine: a few sorted runs in place of many, merged as they become too many.

A run that leaves memory is of level 0. As soon as `fan_in` runs of one level stand at the end, they become one of the
next level. So there are at most `fan_in - 1` runs of each level, and a row is written again once a level: with N rows
and m in memory there are log(N/m) levels, to the base `fan_in`. (Proof: runs of a level follow each other, for a merge
takes all of a level from the end and puts one of the next in their place; a run of level l has the rows of fan_in ** l
memory-fulls, so the highest level is at most that logarithm.)
`tests/unit/runs/test_sorted_run.py` holds it to that.

Merging goes on a little at a time: hashes first, which say in which order rows follow, and then, in the same order once
more, the rows. Neither needs memory that grows with the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np

from watersmeet.core.arrays import Bool, Int64, Uint64
from watersmeet.core.windows import TimeSpan
from watersmeet.runs.sorted_run import MergedRows, RunWriter, SortedRun, block_rows_for, let_go
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


SHARE = 4
"""Runs of rows that expire become one if they span at most this part of the time that is remembered."""


class Spanning(Protocol):
    """A run, or a few of the same rows, whose rows are of some time."""

    @property
    def span(self) -> TimeSpan:
        """From when until when they are."""
        ...

    @property
    def level(self) -> int:
        """How often they were merged."""
        ...


Each = TypeVar("Each", bound=Spanning)


def close_in_time(runs: Sequence[Each], fan_in: int, window: int, rows: Callable[[Each], int]) -> Sequence[Each]:
    """Of runs whose rows expire, those that should become one: the oldest `fan_in` of one level that follow each other
    and do not span too much together, so that what they become still goes in time.

    Where runs are too many nevertheless, those become one that have the fewest rows.
    """
    if len(runs) < fan_in:
        return ()
    everything = TimeSpan.all_of(each.span for each in runs)
    limit = max(window, everything.latest - everything.earliest) // SHARE
    for start in range(len(runs) - fan_in + 1):
        some = runs[start : start + fan_in]
        if some[-1].span.latest - some[0].span.earliest <= limit and len({each.level for each in some}) == 1:
            span = TimeSpan.all_of(each.span for each in some)
            if span.latest - span.earliest <= limit:
                return some
    if len(runs) <= SHARE * fan_in:
        return ()
    parts = [runs[start : start + fan_in] for start in range(len(runs) - fan_in + 1)]
    return min(parts, key=lambda part: sum(map(rows, part)))


class Merge:
    """Several runs on their way to become one, from the places `start` on and of `most` rows, if not all of them.

    Should it fail, it leaves nothing, and begins anew when it is asked to go on.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        runs: Sequence[SortedRun],
        page_bytes: int,
        start: Sequence[int] | None = None,
        most: int | None = None,
        left_out: LeftOut | None = None,
    ) -> None:
        """`left_out` says which rows need not be there any more; one stays in any case."""
        self.name = name
        self.runs = list(runs)
        self._store = store
        self._rows = MergedRows(self.runs)
        self._start = [0] * len(self.runs) if start is None else list(start)
        left = self._rows.rows - sum(self._start)
        self.rows = left if most is None else min(left, most)
        """How many are passed."""
        self.nbytes = nbytes = sum(run.nbytes for run in runs)
        self._block_rows = block_rows_for(nbytes, self._rows.rows, page_bytes)
        self._at_once = page_bytes
        self._blocks_rows = max(1, page_bytes * max(1, self._rows.rows) // max(1, nbytes) // self._block_rows)
        self._blocks_rows *= self._block_rows
        """Rows of whole blocks that are written at once."""
        self._hashes = np.empty(max(self._blocks_rows, page_bytes // 16), np.uint64)
        self._numbers = np.empty(len(self._hashes), np.int64)
        self._writer: RunWriter | None = None
        self._passed = 0
        self._most_mapped = _MAPPED * self._rows.rows // max(1, nbytes)
        self._left_out = left_out
        self._steps: Iterator[int] | None = None
        self.merged: SortedRun | None = None

    def work(self) -> int:
        """Merge a little; returns how many rows were passed, 0 when all is done and `merged` is there."""
        if self.merged is not None:
            return 0
        if self._steps is None:
            self._steps = self._work()
        try:
            return next(self._steps, 0)
        except BaseException:
            self.abort()
            raise

    def places(self) -> list[int]:
        """How far each run has been merged."""
        return self._rows.places()

    def _work(self) -> Iterator[int]:
        writer = self._writer = RunWriter(
            self._store, self.name, self._rows.types, self.rows, self._block_rows, self._at_once
        )
        if self._left_out is not None:
            self._left_out.begin(self.name, self.rows)
        passed = written = 0
        for count in self._next_rows(len(self._hashes)):
            passed += count
            hashes = self._hashes[:count]
            if self._left_out is not None:
                stay = ~self._left_out.decide(self._rows, hashes, self._numbers[:count])
                stay[-1] |= passed == self.rows and not written and not stay.any()
                self._left_out.add(~stay)
                hashes = hashes[stay]
            writer.write_hashes(hashes)
            written += len(hashes)
            self._let_go(count // 8)
            yield count
        writer.rows = written
        waiting = self._numbers[:0]
        for count in self._next_rows(self._blocks_rows):
            numbers = self._numbers[:count]
            if self._left_out is not None:
                numbers = np.concatenate([waiting, numbers[~self._left_out.again(count)]])
                whole = len(numbers) // self._block_rows * self._block_rows
                waiting = numbers[whole:]
                numbers = numbers[:whole]
            self._write_rows(writer, numbers)
            yield count
        self._write_rows(writer, waiting)
        self.merged = writer.seal()

    def _write_rows(self, writer: RunWriter, numbers: Int64) -> None:
        self._rows.check_rows(numbers)
        self._let_go(len(numbers))
        writer.write_rows(self._rows, numbers)

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
        self._steps = None
        if self._writer is not None:
            self._writer.abort()
            self._writer = None
        if self._left_out is not None:
            self._left_out.forget()


class LeftOut(Protocol):
    """Which rows a merge leaves out; asked once of each, and then told again what was answered."""

    def begin(self, name: str, rows: int) -> None:
        """So many rows are about to be passed on their way into the run of this name."""
        ...

    def decide(self, rows: MergedRows, hashes: Uint64, numbers: Int64) -> Bool:
        """Which of some rows need not be there any more."""
        ...

    def add(self, left_out: Bool) -> None:
        """Take note of the next rows, whether they are left out."""
        ...

    def again(self, count: int) -> Bool:
        """Which of the next so many rows were left out, from the first on."""
        ...

    def forget(self) -> None:
        """Nothing of it is needed any more."""
        ...
