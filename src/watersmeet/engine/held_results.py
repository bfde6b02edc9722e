"""Results that wait until their time has passed, and then go out in its order.

Each has a time. They wait in memory, in pieces that are sorted; what does not fit is written, sorted, as a segment, and
when there are many of these they become one::

    results ──▶ pieces in memory ──full──▶ segments ──many──▶ one segment
                     ╰─────────── merged up to the time that has passed ──▶ a batch

**In order.** A batch takes rows from the front of what is at hand, up to the smallest end of those sources that have
more: nothing that is still to come of any of them is earlier. Results of one time come in any order. What has gone out
is told by a place in each source, so a snapshot costs what waits in memory, which it writes, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.windows import FAR
from watersmeet.matching.found_pairs import PairBuffer
from watersmeet.memory import Budget
from watersmeet.records.columns import gathered
from watersmeet.records.types import from_stored, put_together, stored_type, to_stored
from watersmeet.spill.segment import Segment, SegmentWriter
from watersmeet.spill.store import Store

LEAST_HELD = 24 << 10
"""Bytes that results have for certain."""
_TIME = "time of the result"
_TIME_BYTES = 8
_SEGMENT_BYTES = 512
_MOST_SEGMENTS = 8
_MOST_PIECES = 32
_NEVER_AGAIN = 4 * FAR - 1
"""Later than any result."""


class _Source(Protocol):
    """Sorted results, of which some at the front are at hand."""

    times: Int64
    """Of those that are at hand."""

    @property
    def has_more(self) -> bool:
        """Whether others follow them."""
        ...

    def first(self, count: int) -> pa.RecordBatch:
        """So many of those at hand."""
        ...

    def advance(self, count: int) -> None:
        """So many have gone out."""
        ...


class _Piece:
    """Results in memory."""

    has_more = False

    def __init__(self, times: Int64, batch: pa.RecordBatch, size: int) -> None:
        self.times = times
        self.size = size
        self._batch = batch

    def first(self, count: int) -> pa.RecordBatch:
        return self._batch.slice(0, count)

    def advance(self, count: int) -> None:
        self.times, self._batch = self.times[count:], self._batch.slice(count)


class _Stored:
    """Results in a segment."""

    def __init__(self, segment: Segment, page: int = 0, at: int = 0) -> None:
        self.segment = segment
        self.page, self.at = page, at
        self._read()

    def _read(self) -> None:
        batch = self.segment.read_page(self.page).slice(self.at)
        self.times: Int64 = batch.column(batch.num_columns - 1).to_numpy()
        self._batch = batch.drop_columns([_TIME])

    @property
    def has_more(self) -> bool:
        return self.page + 1 < self.segment.pages

    def first(self, count: int) -> pa.RecordBatch:
        return self._batch.slice(0, count)

    def advance(self, count: int) -> None:
        self.at += count
        if count < len(self.times):
            self.times, self._batch = self.times[count:], self._batch.slice(count)
        elif self.has_more:
            self.segment.release(self.page)
            self.page, self.at = self.page + 1, 0
            self._read()
        else:
            self.times = self.times[:0]


class HeldResults:
    """Results by their times.

    >>> from watersmeet.spill.store import MemoryStore
    >>> schema = pa.schema({"id": pa.int64()})
    >>> held = HeldResults(schema, Budget(1 << 20), 1 << 16, MemoryStore(), 4096, lambda names: None)
    >>> held.add(np.array([30, 10]), pa.record_batch({"id": [3, 1]}, schema))
    >>> held.add(np.array([20]), pa.record_batch({"id": [2]}, schema))
    >>> held.prepare(before=25, limit=4096); held.hand_out().column("id").to_pylist(), held.rows, held.first
    ([1, 2], 1, 30)
    """

    def __init__(
        self,
        schema: pa.Schema,
        budget: Budget,
        most: int,
        store: Store,
        page_bytes: int,
        discard: Callable[[list[str]], None],
    ) -> None:
        """In memory at most so many bytes; `discard` removes segments."""
        self._schema = schema
        plain = pa.schema([pa.field(f"c{i}", stored_type(type_)) for i, type_ in enumerate(schema.types)])
        self._plain = plain
        self._stored_schema = plain.append(pa.field(_TIME, pa.int64(), nullable=False))
        self._store = store
        self._page_bytes = page_bytes
        self._discard = discard
        self._claim = budget.reservation("results that wait")
        self._claim.set_aside(LEAST_HELD)
        self._claim.grow(_MOST_SEGMENTS * _SEGMENT_BYTES)
        self._most = max(LEAST_HELD - _MOST_SEGMENTS * _SEGMENT_BYTES, most)
        self._held = 0
        self._pieces: list[_Piece] = []
        self._segments: list[_Stored] = []
        self._written = 0
        self.rows = 0
        """How many wait."""
        self._bytes = 0
        """Of all that wait, about."""
        self.ready: pa.RecordBatch | None = None
        """The next to go out."""
        self._taken: list[tuple[_Source, int]] = []
        self.pages_written = 0

    @property
    def first(self) -> int:
        """The earliest time of those that wait; later than any time if none do."""
        return min((int(source.times[0]) for source in self._sources()), default=_NEVER_AGAIN)

    @property
    def names(self) -> list[str]:
        """The segments."""
        return [stored.segment.name for stored in self._segments]

    def _sources(self) -> list[_Source]:
        return [*self._segments, *self._pieces]

    # --- results that come ---

    def add(self, times: Int64, batch: pa.RecordBatch) -> None:
        """Results wait now."""
        assert self.ready is None, "what is to go out goes first"
        order = np.argsort(times, kind="stable")
        batch = _in_order(pa.RecordBatch.from_arrays([to_stored(each) for each in batch], schema=self._plain), order)
        self.rows += batch.num_rows
        self._bytes += batch.nbytes
        piece = _Piece(times[order], batch, batch.nbytes + _TIME_BYTES * batch.num_rows)
        if len(self._pieces) >= _MOST_PIECES:
            self._join_pieces()
        if self._take(piece.size):
            self._pieces.append(piece)
            return
        self.write()
        if self._take(piece.size):
            self._pieces.append(piece)
        else:
            self._write([piece])

    def _take(self, size: int) -> bool:
        if self._held + size > self._most or not self._claim.try_grow(size):
            return False
        self._held += size
        return True

    def _join_pieces(self) -> None:
        """Let all pieces become one, if there is memory for it; else let them leave memory."""
        size = self._held
        whole = self._joined(self._pieces) if self._claim.try_grow(size) else None
        if whole is None:
            self.write()
            return
        # What has gone out of a piece is counted until the whole piece is gone.
        left = whole[1].nbytes + _TIME_BYTES * len(whole[0])
        self._pieces, self._held = [_Piece(*whole, min(size, left))], min(size, left)
        self._claim.shrink(2 * size - self._held)

    def _forget_pieces(self) -> None:
        self._pieces = []
        self._claim.shrink(self._held)
        self._held = 0

    # --- results that go ---

    def prepare(self, before: int, limit: int) -> None:
        """Make the next batch ready: of results before a time, of about so many bytes."""
        rows = max(1, limit * self.rows // max(1, self._bytes))
        while True:
            found, self._taken = self._next(self._sources(), before, rows)
            self.ready = None if found is None else self._in_own_types(found)
            if found is None or (self.ready is not None and (rows == 1 or self.ready.nbytes <= limit)):
                return
            rows = max(1, min(rows, found.num_rows) // 2)

    def _in_own_types(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        try:
            columns = [from_stored(each, field.type) for each, field in zip(batch, self._schema, strict=True)]
        except OverflowError:
            # More distinct values than a small dictionary index can number: a smaller batch has fewer.
            if batch.num_rows == 1:
                raise
            return None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def hand_out(self) -> pa.RecordBatch:
        """The batch that is ready, which has gone now."""
        out, self.ready = self.ready, None
        assert out is not None
        self._bytes -= self._bytes * out.num_rows // self.rows
        self.rows -= out.num_rows
        for source, count in self._taken:
            source.advance(count)
        self._taken = []
        self._forget_empty()
        return out

    def _forget_empty(self) -> None:
        left = [piece for piece in self._pieces if len(piece.times)]
        size = sum(piece.size for piece in left)
        self._claim.shrink(self._held - size)
        self._pieces, self._held = left, size
        gone = [stored.segment.name for stored in self._segments if not len(stored.times)]
        if gone:
            self._segments = [stored for stored in self._segments if len(stored.times)]
            self._discard(gone)

    def _next(
        self, sources: Sequence[_Source], before: int, rows: int
    ) -> tuple[pa.RecordBatch | None, list[tuple[_Source, int]]]:
        """The next results before a time, so many at most, and how many of each source these are."""
        some = [(source, min(rows, int(np.searchsorted(source.times, before)))) for source in sources]
        some = [(source, count) for source, count in some if count]
        if not some:
            return None, []
        ends = [int(s.times[count - 1]) for s, count in some if count == (len(s.times) if s.has_more else rows)]
        if ends:
            some = [(s, int(np.searchsorted(s.times[:count], min(ends), "right"))) for s, count in some]
            some = [(source, count) for source, count in some if count]
        whole = put_together([source.first(count) for source, count in some])
        if whole is None:
            # Types that cannot be put together: those of one source, up to where others begin.
            some.sort(key=lambda each: int(each[0].times[0]))
            source, count = some[0]
            if len(some) > 1:
                count = min(count, int(np.searchsorted(source.times, some[1][0].times[0], "right")))
            return _in_order(source.first(count), np.arange(count)), [(source, count)]
        times = np.concatenate([source.times[:count] for source, count in some])
        order = np.argsort(times, kind="stable")[:rows]
        whose = np.repeat(np.arange(len(some)), [count for _, count in some])[order]
        counts = np.bincount(whose, minlength=len(some)).tolist()
        return _in_order(whole, order), [(source, count) for (source, _), count in zip(some, counts, strict=True)]

    def _joined(self, pieces: Sequence[_Piece]) -> tuple[Int64, pa.RecordBatch] | None:
        whole = put_together([piece.first(len(piece.times)) for piece in pieces])
        if whole is None:
            return None
        times = np.concatenate([piece.times for piece in pieces])
        order = np.argsort(times, kind="stable")
        return times[order], _in_order(whole, order)

    # --- on disk ---

    def write(self) -> None:
        """Let all that waits in memory leave it."""
        self.ready, self._taken = None, []
        if self._pieces:
            pieces = self._pieces
            self._write(pieces)
            self._forget_pieces()

    def _write(self, sources: Sequence[_Source]) -> None:
        if len(self._segments) >= _MOST_SEGMENTS - 1:
            before = self._segments
            self._segments = [self._written_from(before)]
            self._discard([stored.segment.name for stored in before])
        self._segments.append(self._written_from(sources))

    def _written_from(self, sources: Sequence[_Source]) -> _Stored:
        """A segment of all results of some sources, which are at their ends then."""
        self._written += 1
        rows = max(1, self._page_bytes * self.rows // max(1, self._bytes))
        with SegmentWriter(self._store, f"held-{self._written}", self._stored_schema) as writer:
            while True:
                batch, taken = self._next(sources, _NEVER_AGAIN, rows)
                if batch is None:
                    break
                times = np.sort(np.concatenate([source.times[:count] for source, count in taken]))
                arrays = [*batch.columns, pa.array(times)]
                writer.write_page(pa.RecordBatch.from_arrays(arrays, schema=self._stored_schema))
                self.pages_written += 1
                for source, count in taken:
                    source.advance(count)
            segment = writer.seal()
        return _Stored(segment)

    # --- snapshots ---

    def to_state(self) -> dict[str, Any]:
        """For a snapshot: what waits in memory is written."""
        self.write()
        places = [[stored.segment.name, stored.page, stored.at] for stored in self._segments]
        return {"segments": places, "rows": self.rows, "bytes": self._bytes, "written": self._written}

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        self.rows, self._bytes, self._written = state["rows"], state["bytes"], state["written"]
        self._segments = [_Stored(Segment.open(self._store, name), page, at) for name, page, at in state["segments"]]

    def check(self) -> None:
        """Assert the invariants."""
        assert self._held == sum(piece.size for piece in self._pieces) <= self._most
        assert all(len(source.times) for source in self._sources())
        assert len(self._segments) <= _MOST_SEGMENTS
        assert all((source.times[1:] >= source.times[:-1]).all() for source in self._sources())


def _in_order(batch: pa.RecordBatch, order: Int64) -> pa.RecordBatch:
    """Rows of a batch by their places."""
    places = order.astype(np.int32)
    return pa.RecordBatch.from_arrays([gathered(column, places) for column in batch], schema=batch.schema)


class Emitting(Protocol):
    """An operator whose results wait."""

    held: HeldResults | None

    def emit_some(self, before: int) -> int:
        """Make results ready that are before a time; returns the fuel that took."""
        ...


class FoundOrHeld:
    """What is to be handed out: pairs that were found, or results whose time has passed."""

    def __init__(self, pairs: PairBuffer, held: HeldResults) -> None:
        self._pairs = pairs
        self._held = held
        self.widest = pairs.widest

    @property
    def waiting(self) -> int:
        """How many there are."""
        return self._pairs.waiting or (0 if self._held.ready is None else self._held.ready.num_rows)

    def clear(self) -> None:
        """Forget them."""
        self._pairs.clear()
        self._held.ready = None


class EmitTask:
    """Results on their way out, in the order of their times, up to the time that has passed."""

    lookup = None

    def __init__(self, join: Emitting, before: int) -> None:
        self._join = join
        self._before = before
        """What has passed since may be that of rows which have yet to come out."""

    @property
    def done(self) -> bool:
        """Whether none is left of a time that had passed."""
        held = self._join.held
        assert held is not None
        return held.ready is None and not held.first < self._before

    def work(self, fuel: int) -> int:
        """Make a batch ready; returns the fuel that took."""
        return self._join.emit_some(self._before)

    def finish(self) -> None:
        """Nothing is left to settle."""

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        return {"kind": "emit", "before": self._before}
