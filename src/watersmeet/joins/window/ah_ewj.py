"""Windows larger than memory: one scan of the disk serves many rows, and one dump many partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from watersmeet.core.windows import WindowJoinSpec
from watersmeet.engine.sizing import Grain
from watersmeet.joins.window.exact import ExactWindowJoin
from watersmeet.policies.window import ArrivalFrequency, Train, supplier
from watersmeet.spill.store import Store

_RECENCY = 0.1


@dataclass(frozen=True, slots=True)
class Shares:
    """The thesis' parameters; shares are of the memory without the buffers."""

    frequent: float = 0.15
    """For the frequent segments of both sides."""
    least_recent: float = 0.3
    """That a side's recent segment keeps, however slow it is."""
    fresh: float = 0.62
    """A side's fresh rows meet the disk when they fill so much of the memory for recent rows. In the thesis it is 0.27
    (r of the least recent segment); more makes scans fewer."""
    decay: float = 0.4
    """Of arrival frequencies and results, at the end of an epoch (alpha)."""
    threshold: float = 0.4
    """By so much a block or an input must surpass another one to take its place (rho)."""
    train: int = 4
    """Over how many dumps the order of blocks may be mixed."""
    books: float = 0.25
    """When the entries of segments take so much of the memory, and so much of it can be saved, segments become one."""


class AHEWJ(ExactWindowJoin):
    """The adaptive, hash-partitioned exact window join [1]_.

    ```
    arriving: keep the row, look it up among the other side's recent and frequent rows
       │ a side's fresh rows fill their share, or the inputs are silent
       ▼
    scan: the other side's disk, once, for all of them; they are stale then, and may be dumped
       │ no room
       ▼
    expired blocks go ─▶ dumped blocks go, those with the fewest results first ─▶ stale blocks of all partitions are
                                                                                   dumped together
    ```

    - *Recent rows* lie in partitions by the hash of their key, each a queue of blocks: dumped ones, stale ones, fresh
      ones. Dumped blocks stay until their memory is needed, so that memory is always full of rows to be met.
    - *A scan* reads the other side's segments one after the other and looks their rows up among the fresh rows. A block
      leaves memory only after that: rows on disk never have to meet each other.
    - *A dump* writes stale blocks of all partitions as one segment, in trains: those of a partition together, but no
      young block before the old ones.
    - *The frequent segment* holds copies of the blocks on disk that were part of most results; it changes with scans
      and when blocks leave the recent rows.
    - *Memory* goes to the slower input's rows, which are met more often (equation 5.1).
    - As long as the windows fit, nothing is ever dumped or scanned.

    Different from the thesis:

    - Rows are looked up as they arrive, not when their block is full, so a result never waits for a block to fill.
    - Whether a row has met a block is told by the ticks at which the block came and left
      (`matching.ledger`), not by minBN and a list that is emptied after each scan. The thesis' rules take
      for granted that the frequent segment changes in scans alone; but algorithm 6 changes it at evictions, too,
      and rows that arrived before and after that would then be treated alike. It is also what lets a scan be set
      aside when rows arrive.
    - There is no invalidation segment: the times of each block on disk are known, so expiry reads nothing, and whole
      segments are removed. Its memory belongs to the recent rows.
    - What is on disk must be remembered in memory. Where that takes too much of it, segments become one.
    - A partition's next victim is judged by its oldest block, not by the sum of all.
    - An epoch is counted in rows. A silent input gives its time to a scan at once; the thesis waits 15 s between two.

    Rows that the thesis's input buffer has no room for go to disk before they are joined (section 5.4.1: "When a buffer
    overflows, we dump the incoming tuples onto the disk"). That is what `spool=` does, for any join: see `ewj`.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End
    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.core.windows import parse_windows
    >>> from watersmeet.spill.store import MemoryStore
    >>> left = pa.record_batch({"id": range(2000), "t": range(2000)})
    >>> right = pa.record_batch({"id": range(1500), "t": range(500, 2000)})
    >>> spec = WindowJoinSpec(left.schema, right.schema, parse_on("id"), window=parse_windows(1000, "t"))
    >>> join = AHEWJ(spec, 64 * 1024, MemoryStore())
    >>> rows = 0
    >>> for event in (Arrive(LEFT, left), End(LEFT), Arrive(RIGHT, right), End(RIGHT)):
    ...     join.receive(event)
    >>> while not join.phase == "done":
    ...     step = join.poll(0.0, fuel=1000)
    ...     rows += step.out.num_rows if step.out else 0
    >>> rows, join.events["dumps"] > 0, join.events["scans"] > 0
    (1500, True, True)

    .. [1] A. Chakraborty. Processing exact results for queries over data streams. PhD thesis, University of Waterloo,
       2010, chapter 5.
    """

    SAVED: ClassVar[tuple[str, ...]] = ("frequency", "_trains", "_since_update", "_usual")
    name: ClassVar[str] = "ah_ewj"
    paths: ClassVar[tuple[str, ...]] = (
        "dumps", "scans", "evicted blocks", "expired segments", "blocks made frequent", "blocks no longer frequent"
    )  # fmt: skip
    """Events that a run which spills goes through."""

    def __init__(
        self,
        spec: WindowJoinSpec,
        memory: int,
        store: Store,
        *,
        shares: Shares | None = None,
        grain: Grain | None = None,
    ) -> None:
        self.shares = shares or Shares()
        super().__init__(spec, memory, store, grain, frequent=self.shares.frequent, books=self.shares.books)
        self.recent = int((memory - self.sizing.buffers) * (1 - self.shares.frequent))
        epoch = max(1, self.recent // max(table.row_bytes for table in self.tables))
        self.frequency = ArrivalFrequency(epoch, self.shares.decay)
        self._trains = [Train(self.shares.train * self.dumps.at_once) for _ in (0, 1)]
        self._epoch = epoch
        self._since_update = [0, 0]
        self._usual = [0.0, 0.0]
        """How many results blocks have when they leave memory."""

    def _sizes(self) -> list[int]:
        return [table.nbytes for table in self.tables]

    def rows_kept(self, side: int, parts: Any) -> None:
        """Count arrivals."""
        super().rows_kept(side, parts)
        self.frequency.add(side, len(parts))
        self._since_update[side] += len(parts)

    def probe_due(self, side: int) -> bool:
        """When fresh rows fill a share of the memory for recent rows."""
        return self.fresh_rows[side] * self.tables[side].mean_row_bytes >= self.shares.fresh * self.recent_bytes

    def _suppliers(self) -> tuple[int, int]:
        least = int(self.shares.least_recent * self.recent)
        first = supplier(self.arriving, self.frequency.counts, self._sizes(), (least, least), self.shares.threshold)
        return first, 1 - first

    def victim(self) -> tuple[int, int] | None:
        """The oldest dumped block with the fewest results, of the input that is to give up memory."""
        for side in self._suppliers():
            table = self.tables[side]
            oldest = table.oldest[table.oldest >= 0]
            dumped = oldest[table.disk[oldest] >= 0]
            if len(dumped):
                return side, int(table.part_of[dumped[table.results[dumped].argmin()]])
        return None

    def to_dump(self) -> tuple[int, list[tuple[int, int]]]:
        """Stale blocks of all partitions, in trains."""
        for side in self._suppliers():
            table = self.tables[side]
            blocks = self.dumps.stale(side)
            if len(blocks):
                ages, parts = table.last_tick[blocks].tolist(), table.part_of[blocks].tolist()
                stale = list(zip(ages, parts, blocks.tolist(), strict=True))
                return side, self._trains[side].order(stale, self.dumps.at_once)
        return 0, []

    def worth_keeping(self, side: int, results: int) -> bool:
        """More results than the least frequent block has, and than blocks have that leave memory, by a threshold."""
        # What is usual is not worth a copy: where all blocks are alike, they would only take each other's place.
        least = max(float(self.copies.frequent[side].least()), self._usual[side])
        return results > (1 + self.shares.threshold) * max(0.0, least)

    def block_left(self, side: int, results: int) -> None:
        """Keep count of how many results are usual."""
        self._usual[side] += _RECENCY * (results - self._usual[side])

    def scan_begins(self, side: int) -> bool:
        """The frequent segment is brought up to date once an epoch; results of long ago then count less."""
        if self._since_update[side] < self._epoch:
            return False
        self._since_update[side] = 0
        self.copies.let_fade(1 - side, self.shares.decay)
        return True
