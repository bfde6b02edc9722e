"""Rows of one input of a window join in memory, as they came; the oldest go as soon as they have expired.

Of every few rows it is known from when until when their times are, so that nobody looks at rows to see that they have
expired, and a memtable that becomes a run knows its span of time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile

import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.windows import TimeSpan
from watersmeet.records.times import FLOOR, TIME
from watersmeet.tables.memtable import Memtable


class WindowMemtable(Memtable):
    """A memtable whose rows have a time and a floor before their other columns."""

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
            self._note(self.rows, TimeSpan.of(columns[TIME].to_numpy(), columns[FLOOR].to_numpy()))
        return numbers

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
