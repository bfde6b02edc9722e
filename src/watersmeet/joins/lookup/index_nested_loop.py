"""Index nested loops: look every row up on disk as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.lookup import LookupSpec
from watersmeet.engine.lookup_answers import Asked, GatheredIndex, MappedIndex, Unit
from watersmeet.engine.lookup_operator import LookupJoin
from watersmeet.engine.lookup_shell import PAGE_BYTES
from watersmeet.kernels.counting import use_pages
from watersmeet.relation.relation import RelationSegment, Version

_FRAME_BYTES = PAGE_BYTES + 16
_LEAST_FRAMES = 4


class PageCache:
    """The pages of a relation that are in memory, by how recently they were used.

    >>> cache = PageCache(pages=10, frames=2)
    >>> cache.use(np.array([1, 2, 1, 3, 1, 2]))
    4
    """

    def __init__(self, pages: int, frames: int) -> None:
        self._frame_of = np.full(max(1, pages), -1, np.int32)
        self._page_of = np.zeros(frames, np.int64)
        self._newer, self._older = np.full(frames, -1, np.int32), np.full(frames, -1, np.int32)
        self._ends = np.array([-1, -1, 0], np.int32)

    def use(self, pages: Int64) -> int:
        """Use pages, in this order; returns how many had to be read."""
        return int(use_pages(pages, self._frame_of, self._page_of, self._newer, self._older, self._ends))


class IndexNestedLoop(LookupJoin):
    """Find each row's partners by an index on disk, a random read at a time: the baseline.

    ```
    row ──▶ partition ──▶ bucket of its index ──▶ rows           each a page of 4 KB: from memory, or read
    ```

    No row ever waits, and no read is shared, but for the pages that happen to be in memory still: the least recently
    used one makes room for the next. Fine as long as rows are few or come back to the same pages; a fast stream over
    many keys drowns in reads.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import LEFT, Arrive
    >>> from watersmeet.core.lookup import LookupSpec, lookup_conditions
    >>> from watersmeet.spill.store import MemoryStore
    >>> from watersmeet.relation.changes import StoredRelation
    >>> products = StoredRelation.in_memory(pa.table({"sku": [1, 2], "name": ["cup", "pot"]}), on=("sku",))
    >>> sold = pa.record_batch({"sku": [2, 3]})
    >>> spec = LookupSpec(sold.schema, products.schema, lookup_conditions("sku", products.on))
    >>> join = IndexNestedLoop(spec, 1 << 20, MemoryStore(), products.reader)
    >>> join.receive(Arrive(LEFT, sold)); join.poll(0.0, fuel=100).out.to_pylist(), join.cost.seeks
    ([{'sku': 2, 'name': 'pot'}], 1)

    The index is the one that lies beside the rows of each segment, and the segments are mapped: it is the system that
    reads pages and keeps them. The list of the most recently used pages tells what a cache of this budget would have
    had to read, and that is what is counted. Rows that arrive together are looked up in the order of their partitions.

    The thesis names this join in section 6.2 as the straightforward one, without details.
    """

    name: ClassVar[str] = "index_nested_loop"

    @classmethod
    def _least_room(cls, spec: LookupSpec, version: Version, **options: Any) -> int:
        return version.largest_segment + 4 * _pages(version) + 8 * len(version.ids) + _LEAST_FRAMES * _FRAME_BYTES

    def _lay_out(self, room: int) -> None:
        version = self.version
        pages = _pages(version)
        fixed = version.largest_segment + 4 * pages + 8 * len(version.ids)
        self.claim("the segment being asked and the list of pages", fixed)
        self.claim("pages", room - fixed)
        self.pages = PageCache(pages, max(_LEAST_FRAMES, (room - fixed) // _FRAME_BYTES))
        firsts = np.concatenate([[0], np.cumsum(-(-version.nbytes // PAGE_BYTES) + 1)])
        self._first_page: dict[int, int] = dict(zip(version.ids.tolist(), firsts[:-1].tolist(), strict=True))

    def first_page(self, number: int) -> int:
        """Of a segment, among all pages of the relation."""
        return self._first_page[number]

    def _next_arrival(self) -> Asked | None:
        asked = super()._next_arrival()
        return None if asked is None else asked.take(np.argsort(asked.parts, kind="stable"))

    def _take(self, asked: Asked) -> tuple[int, Unit | None]:
        part = int(asked.parts[0])
        count = int(np.searchsorted(asked.parts, part, side="right"))
        rows = asked.take(slice(0, count))
        numbers = self.version.segment_ids(part)
        if not numbers:
            return count, self.ask_nothing(rows)
        return count, IndexUnit(self, rows, numbers, self.widest_of(part))

    def mapped(self, number: int) -> RelationSegment:
        """A segment of which single pages are used: these are what is counted."""
        return self.reader.segment(number)

    @property
    def rows_waiting(self) -> int:
        """None ever does."""
        return 0

    def _next_unit(self, idle: bool) -> Unit | None:
        return None

    def _is_due(self) -> bool:
        return False

    def _last_unit(self, changed: NDArray[np.bool_] | None) -> Unit | None:
        return None

    def _forget(self, changed: NDArray[np.bool_]) -> None:
        self._set_up()

    def _unit_done(self) -> None:
        pass

    def _waiting_rows(self) -> Iterator[Asked]:
        return iter(())


class IndexUnit(Unit):
    """Rows of one partition, whose pages are used one by one."""

    def __init__(self, join: IndexNestedLoop, asked: Asked, numbers: list[int], widest: int) -> None:
        self._join = join
        self._numbers = numbers
        indexes = [MappedIndex(join.mapped(number), join.answers) for number in numbers]
        exact = all(index.exact for index in indexes)
        super().__init__(join.answers, asked, np.zeros(len(asked), np.int32), [*indexes], widest, exact=exact)

    def _settle(self, index: GatheredIndex, probes: Int32, rows: Int32, before: int) -> pa.RecordBatch | None:
        assert isinstance(index, MappedIndex)
        first = self._join.first_page(self._numbers[self._chapter])
        segment = index.segment
        reached = max(self._at, before + 1)
        buckets = self.asked.hashes[before:reached] & (segment.buckets - 1)
        # The buckets lie at the end of the segment, the rows at its beginning.
        end = first + segment.nbytes // PAGE_BYTES
        bucket_pages = end - (segment.buckets - buckets) * 4 // PAGE_BYTES
        row_pages = first + rows.astype(np.int64) * (segment.nbytes // max(1, segment.rows)) // PAGE_BYTES
        missed = self._join.pages.use(np.concatenate([bucket_pages, row_pages]))
        meter = self._answers.meter
        meter.pages_read += missed
        meter.seeks += missed
        if not missed:
            self._join.hits += reached - before
        out = super()._settle(index, probes, rows, before)
        segment.release()
        return out


def _pages(version: Version) -> int:
    return int((-(-version.nbytes // PAGE_BYTES) + 1).sum())
