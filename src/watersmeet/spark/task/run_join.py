"""The join of one micro-batch: new rows meet all rows of the batches before, and each other, each pair once.

```
new left  ──▶ old right        new × old, new × new; old × old was found before
new left  ──▶ new right
new right ──▶ old left
```

New rows are sorted first, in memory, and written together with the small runs that they are merged with. Those that do
not fit are written as sorted runs before; looking them up then needs only a slice of them in memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.spec import JoinSpec
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.memory import Budget
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan
from watersmeet.runs.hash_runs import Run, SegmentRef
from watersmeet.runs.mapped import OpenSegment, OpenSegments, Stretch
from watersmeet.spark.task.batch_rows import Fresh
from watersmeet.spark.task.batch_runs import Received
from watersmeet.spark.task.run_merging import CATCH_UP, SMALL_RUN, merge, to_merge
from watersmeet.spark.task.sizes import MOST_MERGED, Sizes
from watersmeet.spill.file_store import FileStore

Sides = tuple[tuple[Run, ...], tuple[Run, ...]]
"""The runs of the left and of the right side."""

_SLICE_ROWS = 65_536


@dataclass(slots=True)
class Counts:
    """What a task did."""

    rows: tuple[int, int] = (0, 0)
    results: int = 0
    peak: int = 0
    """The most bytes that were reserved at once."""
    runs: int = 0
    """Runs that the new rows were written as; more than one for each side: they did not fit into memory."""


class MicroBatchJoin:
    """A task's part of a micro-batch, with the state in a store and no more than `memory` held.

    >>> from watersmeet.core.spec import parse_on
    >>> left, right = pa.record_batch({"id": [1, 2]}), pa.record_batch({"id": [2, 3]})
    >>> with FileStore() as store:
    ...     join = MicroBatchJoin(JoinSpec(left.schema, right.schema, parse_on("id")), 1 << 20, store)
    ...     join.receive([(0, left), (1, right)])
    ...     [batch.to_pylist() for batch in join.results(((), ()))]
    [[{'id': 2}]]
    """

    def __init__(
        self,
        spec: JoinSpec,
        memory: int,
        store: FileStore,
        names: Callable[[int], str] | None = None,
        segments: OpenSegments | None = None,
        most_runs: int = 1,
    ) -> None:
        """With `most_runs` above 1, rows beyond the memory are left in that many runs, in an order that may differ."""
        self._sizes = Sizes.divide(memory)
        self._budget = Budget(memory)
        self._budget.reservation("buffers").grow(self._sizes.buffers)
        self._store = store
        self._names = names or _Numbered()
        self._most_runs = most_runs
        self._segments = segments if segments is not None else OpenSegments()
        codec = KeyCodec(spec)
        self._plans = (RowPlan(spec, 0, codec.exact), RowPlan(spec, 1, codec.exact))
        self._pairs = PairBuffer(spec, codec, self._plans, self._sizes.pairs)
        self._received = Received(codec, self._plans, store, self._names, self._sizes, self._budget)
        self._fresh: tuple[Fresh | None, Fresh | None] = (None, None)
        self._new: Sides = ((), ())
        self.counts = Counts()

    def receive(self, pieces: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        """Take all rows of the batch: pieces of either side, in any order."""
        for side, batch in pieces:
            self._received.add(side, batch)
        if any(self._received.runs):
            self._received.write()
        else:
            self._fresh = self._received.rest()
        self.counts.rows = (self._received.rows[0], self._received.rows[1])
        self.counts.runs = sum(map(len, self._received.runs))
        self.counts.peak = self._budget.peak
        # Rows that were too many for the memory are brought into one order: looking them up is then one pass, too.
        self._new = (self._few_runs(0), self._few_runs(1))

    def _few_runs(self, side: int) -> tuple[Run, ...]:
        runs = list(self._received.runs[side])
        while len(runs) > self._most_runs:
            runs = [self._merge(side, runs[i : i + MOST_MERGED]) for i in range(0, len(runs), MOST_MERGED)]
        return tuple(runs)

    def merged(self, old: Sides) -> Sides:
        """The runs of the state after the batch: the old and the new, merged where they have become too many."""
        left, right = (self._merge_side(side, old[side]) for side in (0, 1))
        return left, right

    def _merge_side(self, side: int, old: tuple[Run, ...]) -> tuple[Run, ...]:
        fresh = self._fresh[side]
        runs: list[Run | Fresh] = [*old, *self._new[side], *([] if fresh is None else [fresh])]
        new = sum(run.rows for run in runs[len(old) :])
        if not new:
            return old
        limit = max(self._sizes.merge_rows, CATCH_UP * new)
        begun = next((i for i, run in enumerate(old) if run.taking), None)
        free = 0 if begun is None else begun + 1 + old[begun].taking
        small = min(SMALL_RUN, self._sizes.merge_rows)
        while count := to_merge([run.rows for run in runs[free:]], small):
            if sum(run.rows for run in runs[-count:]) > limit:
                if begun is None:
                    break
                while count and sum(run.rows for run in runs[-count:]) > limit:  # the others wait until that is done
                    count -= 1
                if count < 2:
                    break
            runs[-count:] = [self._merge(side, runs[-count:])]
        written = [self._received.write_run(side, run) if isinstance(run, Fresh) else run for run in runs]
        if begun is None and count:
            begun = len(written) - count
            written.insert(begun, Run((), taking=count))
        if begun is not None:
            self._go_on(side, written, begun, limit)
        return tuple(written)

    def _go_on(self, side: int, runs: list[Run], begun: int, limit: int) -> None:
        """Merge some more of the runs that are being merged into one that was begun."""
        end = begun + 1 + runs[begun].taking
        part, rest = merge(runs[begun + 1 : end], *self._merging(side), limit)
        grown = runs[begun].segments + part.segments
        if len(rest) == 1:  # nothing is left to merge it with
            grown, rest = grown + rest[0].segments, []
        runs[begun:end] = [Run(grown, taking=len(rest)), *rest]

    def _merge(self, side: int, runs: Sequence[Run | Fresh]) -> Run:
        if len(runs) == 1 and isinstance(runs[0], Run):
            return runs[0]
        return merge(runs, *self._merging(side))[0]

    def _merging(self, side: int) -> tuple[Sequence[pa.DataType], FileStore, OpenSegments, Callable[[], str], Sizes]:
        """What merging needs to know."""
        return self._plans[side].types, self._store, self._segments, partial(self._names, side), self._sizes

    def results(self, old: Sides) -> Iterator[pa.RecordBatch]:
        """All pairs of new rows with old rows and with each other, in bounded batches."""
        yield from self._look_up(0, [*old[1], *self._new[1]], self._fresh[1])
        yield from self._look_up(1, old[0], None)

    def _look_up(self, side: int, runs: Sequence[Run], fresh: Fresh | None) -> Iterator[pa.RecordBatch]:
        """Look the new rows of a side up in runs of the other, and in its new rows."""
        if not runs and fresh is None:
            return
        for described, new in self._new_rows(side):
            self._pairs.widest[side] = described.widest
            for start in range(0, described.rows, _SLICE_ROWS):
                hashes = new.hashes(start, min(described.rows, start + _SLICE_ROWS))
                for run in runs:
                    yield from self._look_up_slice(side, new, start, hashes, run)
                if fresh is not None:
                    yield from self._meet(side, new, start, hashes, fresh, fresh)

    def _new_rows(self, side: int) -> Iterator[tuple[Fresh | SegmentRef, Fresh | OpenSegment]]:
        fresh = self._fresh[side]
        if fresh is not None:
            yield fresh, fresh
        for ref in (ref for run in self._new[side] for ref in run.segments):
            yield ref, self._segments.get(self._store, ref)

    def _look_up_slice(
        self, side: int, new: Fresh | OpenSegment, start: int, hashes: Int64, run: Run
    ) -> Iterator[pa.RecordBatch]:
        # Both are sorted: some adjoining segments, and of each a stretch of the slice.
        for ref in run.segments[bisect_left(run.segments, int(hashes[0]), key=lambda ref: ref.last) :]:
            if ref.first > hashes[-1]:
                break
            yield from self._meet(side, new, start, hashes, ref, self._segments.get(self._store, ref))

    def _meet(
        self,
        side: int,
        new: Fresh | OpenSegment,
        start: int,
        hashes: Int64,
        described: Fresh | SegmentRef,
        found: Fresh | OpenSegment,
    ) -> Iterator[pa.RecordBatch]:
        """The pairs of a slice of new rows with rows of the other side, of which a description says what counts."""
        low = int(np.searchsorted(hashes, described.first, "left"))
        high = int(np.searchsorted(hashes, described.last, "right"))
        if low < high:
            self._pairs.widest[1 - side] = described.widest
            yield from self._pairs_of(hashes[low:high], found, Between(side, Stretch(new, start + low), found))

    def _pairs_of(self, hashes: Int64, found: Fresh | OpenSegment, between: Between) -> Iterator[pa.RecordBatch]:
        pairs, parts = self._pairs, found.parts_of(hashes)
        position, link = 0, -1
        while position < len(hashes):
            out = pairs.probes[: pairs.room], pairs.rows[: pairs.room]
            count, position, link = found.probe(hashes, parts, position, link, *out)
            pairs.first, pairs.count = 0, count
            while pairs.waiting:
                batch, results = pairs.take(between, self._sizes.output_bytes)
                self.counts.results += results
                if batch is not None:
                    yield batch


class _Numbered:
    """Names for the segments of a store that nobody else writes to."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, side: int) -> str:
        self._next += 1
        return f"{('left', 'right')[side]}-0-batch-{self._next}"
