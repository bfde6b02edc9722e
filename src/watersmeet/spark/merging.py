"""Merging runs, so that a key is looked up in few of them: a run is at least twice as large as the next newer one.

A row is written again each time the state has doubled, so the cost of keeping it follows the logarithm of the state.
Small runs are merged whatever their sizes: writing some thousand rows again costs less than looking into one more run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.spark.fresh import Fresh
from watersmeet.spark.opened import OpenSegments
from watersmeet.spark.runs import Run, RunWriter
from watersmeet.spark.sizes import MOST_MERGED, Sizes
from watersmeet.spill.file_store import FileStore

Int64 = NDArray[np.int64]
_Pages: TypeAlias = "Iterator[tuple[Int64, list[pa.Array]]]"
"""Hashes and columns, a page at a time."""

GROWTH = 2
"""How many times larger than the next newer run a run must be to be left alone."""
SMALL_RUN = 8_192
"""Rows up to which a run is never left alone."""


def to_merge(rows: Sequence[int]) -> int:
    """How many of the newest runs, given the rows of each from the oldest to the newest, are to become one; 0: none.

    >>> to_merge([100_000, 30_000, 10_000]), to_merge([200_000, 30_000, 20_000]), to_merge([30_000, 200, 3])
    (0, 2, 2)
    """
    count, total = 1, rows[-1] if rows else 0
    while count < min(len(rows), MOST_MERGED) and rows[-count - 1] <= max(SMALL_RUN, GROWTH * total):
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
) -> Run:
    """One run of the rows of several, a page of each at a time."""
    streams = [
        _Stream(run.pages(sizes.page_bytes) if isinstance(run, Fresh) else _pages(run, store, segments)) for run in runs
    ]
    with RunWriter(store, names, types, sizes) as writer:
        while streams:
            # Nothing that is still to come can be smaller than the smallest end of what is at hand.
            end = min(stream.last for stream in streams)
            pieces = [stream.take(end) for stream in streams]
            hashes = np.concatenate([hashes for hashes, _ in pieces])
            order = np.argsort(hashes, kind="stable")
            columns = [pa.concat_arrays([columns[i] for _, columns in pieces]) for i in range(len(types))]
            for start in range(0, len(order), max(1, len(order) // len(streams))):
                piece = order[start : start + max(1, len(order) // len(streams))]
                writer.add(hashes[piece], [column.take(pa.array(piece)) for column in columns])
            streams = [stream for stream in streams if not stream.done]
        return writer.finish()


def _pages(run: Run, store: FileStore, segments: OpenSegments) -> _Pages:
    for ref in run.segments:
        segment = segments.get(store, ref)
        start = 0
        for page, stop in enumerate(segment.ends.tolist()):
            yield segment.hashes(start, stop), segment.page(page)
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

    def take(self, end: int) -> tuple[Int64, list[pa.Array]]:
        """The rows at hand up to this hash."""
        start, stop = self._start, int(np.searchsorted(self._hashes, end, "right"))
        taken = self._hashes[start:stop], [column.slice(start, stop - start) for column in self._columns]
        self._start = stop
        if stop == len(self._hashes):
            self._next()
        return taken
