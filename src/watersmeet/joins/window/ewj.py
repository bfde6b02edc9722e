"""Windows larger than memory, without partitions: recent rows, the window's tail, and the blocks that are met most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from watersmeet.core.windows import WindowJoinSpec
from watersmeet.engine.sizing import Grain
from watersmeet.joins.window.exact import ExactWindowJoin
from watersmeet.joins.window.scan import Scan
from watersmeet.policies.window import tail_blocks
from watersmeet.runs.page import Page
from watersmeet.runs.window_runs import WindowDisk
from watersmeet.runs.window_segments import FOREVER, Piece
from watersmeet.spill.store import Store


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thesis' parameters."""

    frequent: float = 0.15
    """The memory for the frequent segments of both sides."""
    probe: float = 0.95
    """Recent rows meet the disk when so much of their memory is fresh (r)."""
    more_results: int = 100
    """So many more results than another block must one have to take its place among the frequent ones (delta)."""
    decay: float = 0.5
    """Of results, when the frequent segment is brought up to date (alpha)."""
    access: float = 40.0
    """What finding a place on disk takes, in block transfers: it decides how large the tail is."""
    books: float = 0.25
    """When the entries of segments take so much of the memory, and so much of it can be saved, segments become one."""


class EWJ(ExactWindowJoin):
    """The exact window join [1]_: half of the memory for each window, in three segments.

    ```
    arriving ──▶ recent (all arrivals, in order) ──scan, dump──▶ disk ──▶ tail (the oldest blocks, until they expire)
                                                                   └────▶ frequent (blocks with most results)
    ```

    - *Recent*: when almost all of a window's recent rows are fresh, the other window's disk is scanned for them, and
      they may be dumped. They stay in memory until arrivals need it.
    - *Tail* (the invalidation segment): the oldest blocks on disk are brought back a few at a time, and met in memory
      until they expire.
    - *Frequent*: a block that a scan comes by takes the place of the least frequent one if it has `more_results`.
    - How much memory is for the tail follows from what disk accesses cost (section 3.4.5), for the window as it is.

    Different from the thesis: rows are found by a hash index, not by nested loops; which pairs have met is told by
    ticks, as in `ah_ewj`; expiry does not need the tail, since the times of blocks on disk are known; dumps wait until
    memory is needed.

    The thesis has two kinds of dumps. *Mature* ones are of blocks that have met the disk, and are this operator's.
    *Premature* ones are of rows that have not been joined at all: in its words, such a dump "occurs when the input
    buffer overflows and is handled by the buffering algorithm" (section 3.3), the loop of algorithm 2 takes rows "from
    input buffer of S_i in FIFO order", and the buffer, partly on disk, "is transparent to the join algorithm" (3.4.4).
    So an operator cannot tell a row that waited on disk from one that did not, and must not: it is the driver's queue
    that goes on on disk, in order and within a bound. That is `spool="2 GiB"` (`drivers.spool`), here as for every
    other join; without it the queues are bounded, and the source waits. Chapter 5 has the same buffer (5.4.1).

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End
    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.core.windows import parse_windows
    >>> from watersmeet.spill.store import MemoryStore
    >>> left = pa.record_batch({"id": range(2000), "t": range(2000)})
    >>> right = pa.record_batch({"id": range(1500), "t": range(500, 2000)})
    >>> spec = WindowJoinSpec(left.schema, right.schema, parse_on("id"), window=parse_windows(1000, "t"))
    >>> join = EWJ(spec, 64 * 1024, MemoryStore())
    >>> rows = 0
    >>> for event in (Arrive(LEFT, left), End(LEFT), Arrive(RIGHT, right), End(RIGHT)):
    ...     join.receive(event)
    >>> while not join.phase == "done":
    ...     step = join.poll(0.0, fuel=1000)
    ...     rows += step.out.num_rows if step.out else 0
    >>> rows, join.events["dumps"] > 0, join.events["tail refilled"] > 0
    (1500, True, True)

    .. [1] A. Chakraborty. Processing exact results for queries over data streams. PhD thesis, University of Waterloo,
       2010, chapter 3.
    """

    SAVED: ClassVar[tuple[str, ...]] = ("_since_update",)
    name: ClassVar[str] = "ewj"
    partitioned: ClassVar[bool] = False
    paths: ClassVar[tuple[str, ...]] = (
        "dumps", "scans", "evicted blocks", "expired segments", "blocks made frequent", "tail refilled"
    )  # fmt: skip
    """Events that a run which spills goes through."""

    def __init__(
        self,
        spec: WindowJoinSpec,
        memory: int,
        store: Store,
        *,
        thresholds: Thresholds | None = None,
        grain: Grain | None = None,
    ) -> None:
        self.thresholds = thresholds or Thresholds()
        super().__init__(spec, memory, store, grain, frequent=self.thresholds.frequent, books=self.thresholds.books)
        self.recent = int((memory - self.sizing.buffers) * (1 - self.thresholds.frequent)) // 2
        """The memory of a window, without its frequent segment."""
        self.tails = self.copies.add_kind(1)
        self._since_update = [0, 0]

    def rows_kept(self, side: int, parts: Any) -> None:
        """Count arrivals."""
        super().rows_kept(side, parts)
        self._since_update[side] += len(parts)

    def probe_due(self, side: int) -> bool:
        """When almost all of a window's recent rows are fresh."""
        table = self.tables[side]
        recent = self.recent - self.tails[side].capacity * table.block_bytes
        return self.fresh_rows[side] * table.mean_row_bytes >= self.thresholds.probe * recent

    def _in_turn(self) -> tuple[int, int]:
        """The window that arrivals go to gives up memory, unless the other one has more than its half."""
        sizes = [table.nbytes for table in self.tables]
        other = 1 - self.arriving
        first = other if sizes[other] > self.recent >= sizes[self.arriving] else self.arriving
        return first, 1 - first

    def victim(self) -> tuple[int, int] | None:
        """The oldest block, if it is on disk."""
        for side in self._in_turn():
            queue = self.tables[side].queues[0]
            if queue and self.tables[side].disk[queue[0]] >= 0:
                return side, 0
        return None

    def to_dump(self) -> tuple[int, list[tuple[int, int]]]:
        """All blocks that have met the disk."""
        for side in self._in_turn():
            stale = self.tables[side].by_age(self.dumps.stale(side))
            if len(stale):
                return side, [(0, block) for block in stale[: self.dumps.at_once].tolist()]
        return 0, []

    def worth_keeping(self, side: int, results: int) -> bool:
        """So many more results than the least frequent block has."""
        least = self.copies.frequent[side].least()
        return results > 0 if least < 0 else results > least + self.thresholds.more_results

    def scan_begins(self, side: int) -> bool:
        """The frequent segment is brought up to date when so many rows have come as a window's memory holds."""
        if self._since_update[side] * self.tables[side].mean_row_bytes < self.recent:
            return False
        self._since_update[side] = 0
        self.copies.let_fade(1 - side, self.thresholds.decay)
        return True

    def scan_ended(self, scan: Scan) -> None:
        """The scanned disk has just been read: a good time to bring its oldest blocks back."""
        super().scan_ended(scan)
        self._refill(1 - scan.side)

    def _refill(self, side: int) -> None:
        tail, table, disk = self.tails[side], self.tables[side], self.disks[side]
        blocks = sum(int((piece.left < FOREVER).sum()) for piece in disk.pieces)
        together = max(1, self.sizing.page_bytes // table.block_bytes)
        memory = max(4, self.recent // table.block_bytes)
        tail.capacity = tail_blocks(memory, blocks, together, self.thresholds.probe, self.thresholds.access)
        while len(tail) > tail.capacity:
            live = tail.table.live()
            tail.drop(int(live[tail.table.latest[live].argmax()]))
        for piece, first, last in self._oldest(side, tail.capacity - len(tail)):
            for place, pages in self._read_together(disk, piece, first, last):
                if not tail.try_add(piece.number + place, int(piece.parts[place]), 0, pages):
                    return
                self.events["tail refilled"] += 1

    def _oldest(self, side: int, count: int) -> list[tuple[Piece, int, int]]:
        """So many blocks of a window that are on disk alone and expire first, as stretches of their segments.

        Their numbers do not tell which they are: segments that were put together have new ones.
        """
        disk, copied = self.disks[side], sorted(self.copies.numbers(side))
        places = [np.flatnonzero((piece.left < FOREVER) & (piece.latest >= self.expired_before(side)))
                  for piece in disk.pieces]  # fmt: skip
        places = [each[~np.isin(piece.number + each, copied)] for piece, each in zip(disk.pieces, places, strict=True)]
        of_piece = np.repeat(np.arange(len(places)), [len(each) for each in places])
        place = np.concatenate([*places, np.empty(0, np.int64)]).astype(np.int64)
        latest = np.concatenate([*(p.latest[each] for p, each in zip(disk.pieces, places, strict=True)), place[:0]])
        chosen = np.sort(np.lexsort((place, of_piece, latest))[: max(0, count)])
        most = max(1, disk.resident // self.tables[side].block_bytes)
        found: list[tuple[int, Piece, int, int]] = []
        for number in chosen.tolist():
            piece, block = disk.pieces[of_piece[number]], int(place[number])
            if found and found[-1][1] is piece and found[-1][3] == block - 1 and block - found[-1][2] < most:
                oldest, _, first, _ = found.pop()
                found.append((min(oldest, int(latest[number])), piece, first, block))
            else:
                found.append((int(latest[number]), piece, block, block))
        return [(piece, first, last) for _, piece, first, last in sorted(found, key=lambda each: each[0])]

    def _read_together(self, disk: WindowDisk, piece: Piece, first: int, last: int) -> Iterator[tuple[int, list[Page]]]:
        """Blocks that follow each other in a segment, with one seek for all of them."""
        start = int(piece.firsts[first])
        pages = list(disk.pages_of(piece, start, piece.stop(last)))
        for place in range(first, last + 1):
            left, some = piece.stop(place) - int(piece.firsts[place]), []
            while left:
                count = min(left, len(pages[0]))
                some.append(pages[0].slice(0, count))
                left -= count
                pages[:1] = [] if count == len(pages[0]) else [pages[0].slice(count, len(pages[0]) - count)]
            yield place, some

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        segments, state = super()._own_state()
        state["tails"] = [tail.capacity for tail in self.tails]
        return segments, state

    def _load_own(self, state: dict[str, Any]) -> None:
        for tail, capacity in zip(self.tails, state["tails"], strict=True):
            tail.capacity = capacity
        super()._load_own(state)
