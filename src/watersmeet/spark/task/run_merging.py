"""Merging runs, so that a key is looked up in few of them: a run is at least twice as large as the next newer one.

A row is written again each time the state has doubled, so the cost of keeping it follows the logarithm of the state.
Small runs are merged whatever their sizes: writing some thousand rows again costs less than looking into one more run.

No batch pays for merging long runs alone. Of these, each batch merges some rows, from the smallest hashes on, into a
run that grows; what is left of the others begins behind them:

    growing ████████              rows up to some hash
    older            ████████     rows above it, still as they were
    newer            ████
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.runs.hash_runs import Run, RunWriter
from watersmeet.runs.mapped import OpenSegments
from watersmeet.spark.task.batch_rows import Fresh
from watersmeet.spark.task.sizes import MOST_MERGED, Sizes
from watersmeet.spill.file_store import FileStore

_Pages: TypeAlias = "Iterator[tuple[Int64, list[pa.Array]]]"
"""Hashes and columns, a page at a time."""

GROWTH = 2
"""How many times larger than the next newer run a run must be to be left alone."""
CATCH_UP = 4
"""Rows merged in a batch for each new one, at least; as many as come while a long run is merged wait for it."""
SMALL_RUN = 8_192
"""Rows up to which a run is never left alone."""


def to_merge(rows: Sequence[int], small: int = SMALL_RUN) -> int:
    """How many of the newest runs, given the rows of each from the oldest to the newest, are to become one; 0: none.

    >>> to_merge([100_000, 30_000, 10_000]), to_merge([200_000, 30_000, 20_000]), to_merge([30_000, 200, 3])
    (0, 2, 2)
    """
    count, total = 1, rows[-1] if rows else 0
    while count < min(len(rows), MOST_MERGED) and rows[-count - 1] <= max(small, GROWTH * total):
        total += rows[-count - 1]
        count += 1
    return count if count > 1 else 0


def merge(
    runs: Sequence[Run | Fresh],
    types: Sequence[pa.DataType],
    store: FileStore,
    segments: OpenSegments,
    names: Callable[[], str],
    sizes: Sizes,
    limit: int | None = None,
) -> tuple[Run, list[Run]]:
    """One run of the rows of several, a page of each at a time; and what is left of them, if there is a limit of rows.

    It may be passed by the rows of one hash, and of a page of each run. Rows in memory are merged without a limit.
    """
    streams = [
        _Stream(run.pages(sizes.page_bytes) if isinstance(run, Fresh) else _pages(run, store, segments)) for run in runs
    ]
    merged, end = 0, 0
    with RunWriter(store, names, types, sizes.page_bytes, sizes.segment_rows) as writer:
        while streams:
            if limit is None or merged < limit:
                # Nothing that is still to come can be smaller than the smallest end of what is at hand.
                end = min(stream.last for stream in streams)
            elif all(stream.next > end for stream in streams):
                break  # rows of one hash stay together, also where a page ends among them
            pieces = [stream.take(end) for stream in streams]
            hashes = np.concatenate([hashes for hashes, _ in pieces])
            order = np.argsort(hashes, kind="stable")
            columns = [pa.concat_arrays([columns[i] for _, columns in pieces]) for i in range(len(types))]
            for start in range(0, len(order), max(1, len(order) // len(streams))):
                piece = order[start : start + max(1, len(order) // len(streams))]
                writer.add(hashes[piece], [column.take(pa.array(piece)) for column in columns])
            merged += len(order)
            streams = [stream for stream in streams if not stream.done]
        left = [_after(run, end, store, segments) for run in runs if isinstance(run, Run)] if streams else []
        return writer.finish(), [run for run in left if run.segments]


def _after(run: Run, end: int, store: FileStore, segments: OpenSegments) -> Run:
    """The rows of a run whose hashes are larger."""
    left = [ref for ref in run.segments if ref.last > end]
    if left and left[0].first <= end:
        ref, segment = left[0], segments.get(store, left[0])
        row = segment.row_of(end + 1)
        rows = int(segment.ends[-1]) - row
        left[0] = replace(ref, rows=rows, first=int(segment.hashes(row, row + 1)[0]))
    return Run(tuple(left))


def _pages(run: Run, store: FileStore, segments: OpenSegments) -> _Pages:
    for ref in run.segments:
        segment = segments.get(store, ref)
        start = segment.row_of(ref.first)
        for page in range(int(np.searchsorted(segment.ends, start, "right")), len(segment.ends)):
            stop = int(segment.ends[page])
            columns = segment.page(page)
            skipped = len(columns[0]) - (stop - start) if columns else 0
            yield segment.hashes(start, stop), [column.slice(skipped) for column in columns]
            start = stop
        if ref.rows > SMALL_RUN:
            segment.release()


class _Stream:
    """A run's rows from front to back, a page at hand."""

    def __init__(self, pages: _Pages) -> None:
        self._pages = pages
        self._next()

    def _next(self) -> None:
        self._start = 0
        self._hashes, self._columns = next(self._pages, (np.empty(0, np.int64), []))

    @property
    def done(self) -> bool:
        """Whether all rows were taken."""
        return not len(self._hashes)

    @property
    def last(self) -> int:
        """The largest hash at hand."""
        return int(self._hashes[-1])

    @property
    def next(self) -> int:
        """The smallest hash at hand."""
        return int(self._hashes[self._start])

    def take(self, end: int) -> tuple[Int64, list[pa.Array]]:
        """The rows at hand up to this hash."""
        start, stop = self._start, int(np.searchsorted(self._hashes, end, "right"))
        taken = self._hashes[start:stop], [column.slice(start, stop - start) for column in self._columns]
        self._start = stop
        if stop == len(self._hashes):
            self._next()
        return taken
