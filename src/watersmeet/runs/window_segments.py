"""What is remembered of a segment of dumped blocks, and what its blocks become when segments are written as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Int64
from watersmeet.spill.segment import Segment

FOREVER = np.iinfo(np.int64).max


@dataclass(slots=True, eq=False)
class Piece:
    """One segment."""

    number: int
    """The number of its first block, of which its name is made."""
    ends: tuple[int, ...]
    """Rows up to the end of each page."""
    blocks: Int64
    """For each block its partition, first row, first and last time, when it left memory, and its results."""
    claimed: int
    """Memory that is held for it."""
    age: int = -1
    """The number of the first block of the oldest segment that became part of it: its own, if none did."""
    newest: int = 0
    """The last time of all."""
    segment: Segment | None = None
    starts: Int64 | None = None
    """Where the values of each column (but hash and tick) lie on each page, as bytes from the segment's beginning;
    ELSEWHERE if that alone does not tell them."""

    def __post_init__(self) -> None:
        self.newest = int(self.latest.max())
        self.age = self.number if self.age < 0 else self.age

    @property
    def parts(self) -> Int64:
        """Each block's partition."""
        parts: Int64 = self.blocks[0]
        return parts

    @property
    def firsts(self) -> Int64:
        """Each block's first row."""
        firsts: Int64 = self.blocks[1]
        return firsts

    @property
    def earliest(self) -> Int64:
        """Each block's first time."""
        earliest: Int64 = self.blocks[2]
        return earliest

    @property
    def latest(self) -> Int64:
        """Each block's last time."""
        latest: Int64 = self.blocks[3]
        return latest

    @property
    def left(self) -> Int64:
        """When each block left memory; FOREVER: it is there still."""
        left: Int64 = self.blocks[4]
        return left

    @property
    def results(self) -> Int64:
        """Of how many results each block's rows were part lately."""
        results: Int64 = self.blocks[5]
        return results

    @property
    def rows(self) -> int:
        """All its rows."""
        return self.ends[-1]

    def stop(self, block: int) -> int:
        """The row behind a block's last one."""
        return int(self.firsts[block + 1]) if block + 1 < len(self.firsts) else self.rows

    def blocks_of(self, rows: Int64) -> Int64:
        """In which of its blocks rows lie."""
        return np.searchsorted(self.firsts, rows, side="right") - 1


@dataclass(frozen=True, slots=True)
class Span:
    """Blocks of one partition that follow each other in a segment."""

    part: int
    piece: Piece
    start: int
    stop: int
    left: int
    results: int

    @classmethod
    def by_partition(cls, pieces: Sequence[Piece]) -> list[Span]:
        """All blocks of some segments, those of a partition together, in the order of the segments."""
        spans = []
        for piece in pieces:
            cuts = [0, *(np.flatnonzero(np.diff(piece.parts)) + 1).tolist(), len(piece.parts)]
            for first, end in pairwise(cuts):
                left, results = int(piece.left[first:end].max()), int(piece.results[first:end].sum())
                start, stop = int(piece.firsts[first]), piece.stop(end - 1)
                spans.append(cls(int(piece.parts[first]), piece, start, stop, left, results))
        return sorted(spans, key=lambda span: span.part)

    @property
    def rows(self) -> slice:
        """Which rows of the segment."""
        return slice(self.start, self.stop)

    @property
    def pages(self) -> int:
        """On how many pages they lie."""
        return bisect_right(self.piece.ends, self.stop - 1) + 1 - bisect_right(self.piece.ends, self.start)


def joined_blocks(spans: Sequence[Span], times: Int64, live: NDArray[np.bool_], block_rows: int) -> tuple[Int64, Int64]:
    """The first row of each block, and its entry, of the rows of spans that live on."""
    sizes = np.array([span.stop - span.start for span in spans])
    starts = np.cumsum(sizes) - sizes
    kept = np.add.reduceat(live.astype(np.int64), starts)
    parts = np.array([span.part for span in spans])
    ends = np.append(np.flatnonzero(np.diff(parts)), len(parts) - 1)
    stops = np.cumsum(kept)[ends]
    whole = min(block_rows, len(times))
    firsts = np.concatenate([np.arange(first, stop, whole) for first, stop in pairwise([0, *stops.tolist()])])
    of_part = np.searchsorted(stops, firsts, side="right")
    left = np.maximum.reduceat([span.left for span in spans], np.append(0, ends[:-1] + 1))
    shares = np.repeat([span.results for span in spans] / sizes, kept)
    alive = times[live]
    fields = [
        parts[ends][of_part], firsts, np.minimum.reduceat(alive, firsts), np.maximum.reduceat(alive, firsts),
        left[of_part], np.add.reduceat(shares, firsts),
    ]  # fmt: skip
    return firsts, np.array([field.astype(np.int64) for field in fields])
