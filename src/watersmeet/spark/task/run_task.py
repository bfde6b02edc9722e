"""What runs in a Spark task: a group's rows of one micro-batch in, its results out, its state a version further.

Spark sends only a `JoinTask` to the workers, a description without code; the code is imported there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from watersmeet.core.spec import JoinSpec
from watersmeet.runs import mapped as opened
from watersmeet.spark.plan.row_layout import RowLayout
from watersmeet.spark.state.directory import GroupState, Held, Owner, StateDirectory
from watersmeet.spark.state.remote import CACHE_BYTES, Place, place_of
from watersmeet.spark.task.context import current_batch, scratch_directory
from watersmeet.spark.task.delays import Delays
from watersmeet.spark.task.figures import Figures, figures_row, with_figures
from watersmeet.spark.task.run_join import Counts, MicroBatchJoin
from watersmeet.spill.file_store import FileStore

_MOST_RUNS = 4
"""Of the rows of one pass: to look each row up in so many runs costs less than to merge them."""


@dataclass(frozen=True)
class JoinTask:
    """The function of `mapInArrow`: a streaming join's if it has a state directory, else a batch join's."""

    spec: JoinSpec
    layout: RowLayout
    memory: int
    groups: int
    state: str | None = None
    retain: int = 100
    times: tuple[str, str] | None = None
    """The columns of the results from which delays are counted."""
    cache_bytes: int = CACHE_BYTES
    """Of state elsewhere: what may be kept of it on this machine."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join the rows of one partition."""
        return self._in_one_pass(batches) if self.state is None else self._go_on(place_of(self.state), batches)

    def _in_one_pass(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pieces = self._pieces(batches)
        _, first = next(pieces, (-1, None))
        if first is None:
            return
        with FileStore(scratch_directory()) as store:
            join = MicroBatchJoin(self.spec, self.memory, store, most_runs=_MOST_RUNS)
            join.receive(_all(first, pieces))
            yield from join.results(((), ()))

    def _go_on(self, path: Place, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batch, query = current_batch()
        directory = StateDirectory(
            path, Owner(self.spec.fingerprint, self.groups, query), batch, self.retain, self.cache_bytes
        )
        pieces = self._pieces(batches)
        number, first = next(pieces, (-1, None))
        if first is None:
            return
        began, delays = time.monotonic(), Delays(self.times)
        group = directory.group(number)
        held = group.before()
        try:
            join = MicroBatchJoin(self.spec, self.memory, group.store, group.name, opened.WORKER)
            join.receive(_all(first, pieces))
            if any(join.counts.rows):
                now = Held(batch.number, join.merged(held.runs))
                group.publish(now)
                for results in with_figures(join.results(held.runs)):
                    delays.count(results, time.time())
                    yield results
                yield figures_row(self.spec.schema, _figures(join.counts, group, now, began, delays).as_list())
        finally:
            opened.WORKER.release(keep=self.memory // 4)

    def _pieces(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, tuple[int, pa.RecordBatch]]]:
        """The group, and its rows as pieces of one side each."""
        schemas = (self.spec.left, self.spec.right)
        group = None
        for batch in batches:
            if batch.num_rows:
                group, pieces = self.layout.split(batch, schemas, group)
                yield from ((group, piece) for piece in pieces)


def _all(
    first: tuple[int, pa.RecordBatch], rest: Iterator[tuple[int, tuple[int, pa.RecordBatch]]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    yield first
    for _, piece in rest:
        yield piece


def _figures(counts: Counts, group: GroupState, held: Held, began: float, delays: Delays) -> Figures:
    refs = [ref for runs in held.runs for run in runs for ref in run.segments]
    return Figures(
        rows=counts.rows,
        results=counts.results,
        memory=counts.peak,
        written=group.store.bytes_written,
        state_rows=sum(ref.rows for ref in refs),
        state_bytes=sum(ref.nbytes for ref in refs),
        task_ms=round((time.monotonic() - began) * 1000),
        delays=delays.counts,
    )
