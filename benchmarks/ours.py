"""The operator, driven by hand: batches of both inputs in turn, results taken and dropped."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Self

import pyarrow as pa

import watersmeet as wm
from benchmarks.inputs import RowCount
from watersmeet import planner
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End, JoinOperator, Status
from watersmeet.core.spec import JoinSpec
from watersmeet.spill import FileStore

FUEL = 1 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a contestant."""

    total: float
    first: float
    """Seconds to the first result."""
    result: tuple[int, int]
    arrived: float = 0.0
    """Seconds until all rows had arrived and were worked off; the rest is clean-up."""
    peak: int = 0
    """Bytes at most, as the contestant counts them."""
    spilled: int = 0


def arrivals(left: Iterable[pa.RecordBatch], right: Iterable[pa.RecordBatch]) -> Iterator[Arrive]:
    """Batches of both inputs in turn."""
    for batches in zip_longest(left, right):
        for side, batch in zip((LEFT, RIGHT), batches, strict=True):
            if batch is not None:
                yield Arrive(side, batch)


class Made:
    """How long it took to make rows, or to do something else beside the join."""

    def __init__(self) -> None:
        self.processor = 0.0
        self.elapsed = 0.0

    @contextmanager
    def counting(self) -> Iterator[Self]:
        """All that is done meanwhile."""
        processor, began = time.process_time(), time.perf_counter()
        try:
            yield self
        finally:
            self.processor += time.process_time() - processor
            self.elapsed += time.perf_counter() - began

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches."""
        while True:
            with self.counting():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


class Watch:
    """Takes results and notes when the first came."""

    def __init__(self, count: RowCount) -> None:
        self.count = count
        self.started = time.perf_counter()
        self.first: float | None = None

    def take(self, batch: pa.RecordBatch | None) -> None:
        """A batch of results, if there is one."""
        if batch is not None and batch.num_rows:
            if self.first is None:
                self.first = self.elapsed
            self.count.add(batch)

    @property
    def elapsed(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self.started

    def run(self, arrived: float = 0.0, peak: int = 0, spilled: int = 0) -> Run:
        """The end."""
        total = self.elapsed
        return Run(total, total if self.first is None else self.first, self.count.result, arrived, peak, spilled)


def drive(
    spec: JoinSpec,
    events: Iterable[Arrive],
    memory: int,
    algorithm: str = "confluence",
    count: RowCount | None = None,
    rows_a_poll: int = 1,
    store: FileStore | None = None,
) -> Run:
    """Join at the operator's level. It is polled after so many rows: one for every batch, unless batches are small."""
    store = store or FileStore()
    watch = Watch(count or RowCount())
    try:
        operator = planner.build(spec, memory, store, algorithm)
        waiting = 0
        for event in events:
            operator.receive(event)
            waiting += event.batch.num_rows
            if waiting >= rows_a_poll:
                waiting = 0
                work_off(operator, watch)
        work_off(operator, watch)
        arrived = watch.elapsed
        operator.receive(End(LEFT))
        operator.receive(End(RIGHT))
        work_off(operator, watch)
        run = watch.run(arrived, operator.budget.peak, store.bytes_written)
        operator.close()
        return run
    finally:
        store.close()


def work_off(operator: JoinOperator, watch: Watch) -> None:
    """Poll for as long as there is output."""
    while True:
        step = operator.poll(0.0, FUEL)
        watch.take(step.out)
        if step.status is not Status.HAS_OUTPUT:
            return


def live(
    left: object,
    right: object,
    memory: int,
    algorithm: str = "auto",
    count: RowCount | None = None,
    threads: int = 1,
) -> Run:
    """Join as a user does: with reading threads, queues and all; so many threads work at the join."""
    watch = Watch(count or RowCount())
    with wm.join(left, right, on="key", memory=memory, algorithm=algorithm, threads=threads) as result:
        for batch in result:
            watch.take(batch)
        progress = result.progress
    return watch.run(0.0, progress.peak, progress.spilled)
