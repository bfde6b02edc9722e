"""A running query seen from outside: what each micro-batch did, as soon as Spark tells, until all is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from watersmeet.core.report import BatchFigures
from watersmeet.drivers.progress import Progress
from watersmeet.spark.task.figures import figures

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_EVERY = 0.1


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One micro-batch, as far as the streams of our data source and a join of ours tell."""

    number: int
    began: float
    """Seconds since 1970."""
    seconds: float
    taken: tuple[int, ...]
    """Rows of each input up to this batch."""
    ended: bool
    """Whether every input has told its end."""
    figures: dict[str, Any]
    """The join's own figures of this batch; empty if it had nothing to do."""

    @classmethod
    def of(cls, progress: Any) -> BatchReport:
        """What one `StreamingQueryProgress` says."""
        offsets = [_offset(source.endOffset) for source in progress.sources]
        observed = next(iter(figures(progress).values()), {})
        return cls(
            number=progress.batchId,
            began=datetime.fromisoformat(progress.timestamp).timestamp(),
            seconds=progress.durationMs.get("triggerExecution", 0) / 1e3,
            taken=tuple(offset.get("rows", 0) for offset in offsets),
            ended=all(offset.get("ended", False) for offset in offsets),
            figures=observed if observed.get("results") is not None else {},
        )

    def is_last(self) -> bool:
        """Whether every input has ended and no work is left."""
        return self.ended and not self.figures.get("work_left")

    @property
    def rows(self) -> int:
        """Rows that the join received."""
        return int(self.figures.get("left_rows", 0) + self.figures.get("right_rows", 0))

    @property
    def batch_figures(self) -> BatchFigures:
        """How its time divides into Spark's and the join's."""
        return BatchFigures(self.number, self.seconds, int(self.figures.get("task_ms") or 0) / 1e3)

    @property
    def results(self) -> int:
        """Rows that the join found."""
        return int(self.figures.get("results", 0))


def _offset(told: Any) -> dict[str, Any]:
    found = json.loads(told) if isinstance(told, str) else told
    return found if isinstance(found, dict) else {}


def reports(query: StreamingQuery) -> Iterator[BatchReport | None]:
    """Each batch once it is done, and None now and then while there is none; ends, or fails, with the query."""
    last = -1
    while True:
        over = query.awaitTermination(LOOK_EVERY)  # type: ignore[arg-type]  # fractions will do
        for progress in query.recentProgress:
            if progress.batchId > last and "addBatch" in progress.durationMs:
                last = progress.batchId
                yield BatchReport.of(progress)
        if over:
            return
        yield None


@contextmanager
def stopping(query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Stop a query at the end of the block; not after an interrupt, when Spark is not spoken to any more."""
    try:
        yield query
    except Exception:
        query.stop()
        raise
    query.stop()


class Tally:
    """The batches of a join added up into the picture of a run."""

    def __init__(self, names: tuple[str, str], budget: int, algorithm: str, began: float) -> None:
        self.names, self.budget, self.algorithm, self.began = names, budget, algorithm, began
        self.reports: list[BatchReport] = []
        self.results = 0
        self._peak = 0
        self._spilled = 0
        self._on_disk = 0
        self._first: float | None = None

    def add(self, report: BatchReport) -> None:
        """Count one more batch."""
        self.reports.append(report)
        self.results += report.results
        self._peak = max(self._peak, int(report.figures.get("memory", 0)))
        self._spilled += int(report.figures.get("spilled", 0))
        if report.rows:  # groups without rows in a batch tell nothing of their state
            self._on_disk = int(report.figures.get("state_bytes", 0))
        if self._first is None and self.results:
            self._first = report.began + report.seconds - self.began

    def progress(self, now: float, phase: str, done: bool = False) -> Progress:
        """The run at this moment."""
        last = self.reports[-1] if self.reports else None
        return Progress(
            self.names,
            last.taken if last else (0, 0),
            self.results,
            self._first,
            now - self.began,
            memory=int(last.figures.get("memory", 0)) if last else 0,
            peak=self._peak,
            budget=self.budget,
            spilled=self._spilled,
            on_disk=self._on_disk,
            phase=phase,
            algorithm=self.algorithm,
            done=done,
            batch=None if last is None else last.batch_figures,
        )


def run_until(
    query: StreamingQuery, over: Callable[[BatchReport], bool], look: Callable[[BatchReport | None], None]
) -> None:
    """Follow a query, telling of each batch (None: of none), until a batch was the last one; then stop it."""
    with stopping(query):
        for report in reports(query):
            look(report)
            if report is not None and over(report):
                return
