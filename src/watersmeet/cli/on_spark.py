"""`watersmeet join --engine spark`: two files through a local Spark into one file, the same rows as without Spark.

The files are streamed through our data source, so many rows of each in a micro-batch, joined by
`watersmeet.spark.join`, and collected batch by batch in a private directory; the output is written from there at the
very end.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from watersmeet.api import sinks
from watersmeet.api.join import check_algorithm
from watersmeet.core.errors import SpecError
from watersmeet.core.spec import JoinSpec, On, parse_on
from watersmeet.drivers.history import History
from watersmeet.drivers.progress import Progress
from watersmeet.memory import parse_memory
from watersmeet.sources.conform import conform
from watersmeet.sources.files import FileSource

if TYPE_CHECKING:
    from watersmeet.live.page import Page

ROWS_PER_BATCH = 200_000
"""Of each input in a micro-batch: few enough for early results, enough for Spark's own work to matter little."""


def check_task_memory(spec: JoinSpec, algorithm: str, memory: int) -> None:
    """Refuse, before Spark is started, what its tasks would refuse."""
    from watersmeet.spark.plan.recipe import JoinFactory
    from watersmeet.spark.task.operator_group import Shares

    Shares.check(memory, JoinFactory.of(spec, algorithm).least_memory())


class SparkFileJoin:
    """A join of two files, to be read once; whatever can be wrong without Spark is said before it is started."""

    def __init__(
        self,
        args: argparse.Namespace,
        on: On,
        on_progress: Callable[[Progress], None],
        page: Page | None = None,
    ) -> None:
        from watersmeet.spark.io.local import cores

        check_algorithm(args.algorithm, {})
        if args.spool is not None:
            raise SpecError(
                "--spool lets inputs run ahead in this process; Spark takes them batch by batch: leave it out"
            )
        sources = [FileSource(path) for path in (args.left, args.right)]
        schemas = [source.schema() for source in sources]
        for source in sources:
            source.close()
        self._names = (sources[0].name, sources[1].name)
        self._paths = [str(Path(source.path).absolute()) for source in sources]
        suffixes = (args.suffixes[0], args.suffixes[1])
        self._options = {"on": on, "how": args.how, "suffixes": suffixes, "algorithm": args.algorithm}
        spec = JoinSpec(schemas[0], schemas[1], parse_on(on), how=args.how, suffixes=suffixes, names=self._names)
        self.schema = spec.schema
        """That of the same join without Spark."""
        self.progress = Progress(self._names, (0, 0))
        self.history = History()
        """What the run was like so far."""
        self._look = on_progress
        if page is not None:
            page.add(self._title, self.history, kind="batches")
        self._memory = parse_memory(args.memory)
        check_task_memory(spec, args.algorithm, self._memory // cores())
        self._directory = tempfile.TemporaryDirectory(prefix="watersmeet-", dir=args.spill, ignore_cleanup_errors=True)

    @property
    def _title(self) -> str:
        return " ⋈ ".join(self._names)

    def report(self, path: str) -> None:
        """Write the charts of the run to one HTML file."""
        from watersmeet.live.attach import write_report

        write_report(path, self._title, self.history, "batches")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.history.end(None if error is None else " ".join(str(error).split()))
        self._directory.cleanup()

    def write(self, path: str) -> int:
        """Write all results into one file, which is whole or absent; returns the number of rows."""
        return sinks.write(iter(self), self.schema, path)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Run the join to its end, then hand out its results."""
        from watersmeet.spark.io.arrow_sink import read_listed
        from watersmeet.spark.io.failures import in_plain_words
        from watersmeet.spark.io.local import local_session

        place = Path(self._directory.name).absolute()
        (place / "results").mkdir()
        with in_plain_words(), local_session("watersmeet join", place / "spark.log", place / "spark") as spark:
            self._run(spark, place)
        for batch in read_listed(place / "results"):
            yield conform(batch, self.schema)

    def _run(self, spark: Any, place: Path) -> None:
        from watersmeet import spark as wms
        from watersmeet.spark.io import arrow_sink
        from watersmeet.spark.io.local import cores
        from watersmeet.spark.io.query_progress import BatchReport, Tally, run_until

        wms.register(spark)
        arrow_sink.register_sink(spark)
        tasks = cores()
        share = self._memory // tasks
        tally = Tally(self._names, share, f"memory is that of each of {tasks} Spark tasks", time.time())
        streams = [
            spark.readStream.format("watersmeet")
            .option("rowsPerBatch", ROWS_PER_BATCH)
            .option("events", True)
            .load(path)
            for path in self._paths
        ]
        joined = wms.join(
            streams[0],
            streams[1],
            **self._options,
            memory=share,
            partitions=tasks,
            state=place / "state",
        )
        writer = joined.writeStream.format(arrow_sink.FORMAT).option("checkpointLocation", str(place / "checkpoint"))

        def look(report: BatchReport | None) -> None:
            if report is not None:
                tally.add(report)
            progress = tally.progress(time.time(), "arriving")
            self.history.add(progress)
            self._look(progress)

        run_until(writer.start(str(place / "results")), BatchReport.is_last, look)
        self.progress = tally.progress(time.time(), "done", done=True)
        self.history.add(self.progress)
