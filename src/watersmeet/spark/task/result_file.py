"""What a batch gave, kept in the state directory until the batch is known to be over.

Which pairs an operator finds in which batch depends on its memory, its fuel and on what it had at hand. So results are
written before the state is published, and handed out afterwards: an attempt that finds the batch published hands
out the very same results, and the sink and the state never disagree.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from watersmeet.core.errors import SegmentError
from watersmeet.spark.state.directory import GroupState
from watersmeet.spark.task.delays import Delays
from watersmeet.spark.task.ordered_rows import together
from watersmeet.spill.segment import Segment, SegmentWriter

_ROWS = 8192


class ResultFile:
    """Collects the results of one attempt; no file is made as long as there are none."""

    def __init__(self, group: GroupState, schema: pa.Schema, page_bytes: int, delays: Delays) -> None:
        self.rows = 0
        self.nbytes = 0
        self._group = group
        self._schema = schema
        self._page_bytes = page_bytes
        self._delays = delays
        self._writer: SegmentWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._name: str | None = None

    @property
    def names(self) -> list[str]:
        """The files that hold the results."""
        return [] if self._name is None else [self._name]

    def add(self, batch: pa.RecordBatch) -> None:
        """Take results; small batches are put together."""
        self.rows += batch.num_rows
        self._delays.count(batch, time.time())
        size = batch.nbytes
        if self._waiting and self._waiting_bytes + size > self._page_bytes:
            self._write()
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += size
        if self._waiting_rows >= _ROWS:
            self._write()

    def finish(self) -> None:
        """Write the rest."""
        self._write()
        if self._writer is not None:
            self._writer.seal().close()
            self.nbytes = self._writer.nbytes
            self._name = self._writer.name

    def abandon(self) -> None:
        """Leave nothing behind."""
        if self._writer is not None:
            self._writer.abort()
        self._group.remove(self.names)

    def _write(self) -> None:
        if not self._waiting:
            return
        if self._writer is None:
            self._writer = SegmentWriter(self._group.store, self._group.file("results"), self._schema)
        for batch in together(self._waiting):
            self._writer.write_page(batch)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


def read_results(group: GroupState, names: list[str]) -> Iterator[pa.RecordBatch]:
    """The results in these files, a page at a time."""
    for name in names:
        try:
            segment = Segment.open(group.store, name)
            for page in range(segment.pages):
                yield segment.read_page(page)
                segment.release(page)
        except SegmentError as error:
            raise SegmentError(f"the state in {group.place} is damaged and the query cannot go on: {error}") from error
