"""The demo on local Spark: `watersmeet.spark.join` over two replayed streams, verified with Spark's own join."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from watersmeet.cli.on_spark import check_task_memory
from watersmeet.cli.progress import display
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.demo.record import Demonstration, Record
from watersmeet.demo.report import said_of
from watersmeet.demo.scenario import KEY, NAMES, Scenario, Timing, possible
from watersmeet.drivers.progress import Progress
from watersmeet.memory import parse_memory
from watersmeet.sources.pace import Pace

if TYPE_CHECKING:
    from watersmeet.live.page import Page

TIMING = Timing(
    rows=90_000,
    rate=2500.0,
    stalls=((0.15, 2.0), (0.35, 2.5), (0.6, 3.0), (0.8, 2.0)),
)
"""About 45 seconds; silences are long enough for several micro-batches."""
REHEARSAL_ROWS = 3000
ROWS_PER_BATCH = 20_000


class SparkEngine:
    """`watersmeet demo`."""

    memory = "1MiB"
    result = "result"
    peer = "Spark's own join"
    title = " a Spark task"

    @property
    def allowance(self) -> str:
        """What the memory is for."""
        from watersmeet.spark.io.local import cores

        return f" for each of {cores()} Spark tasks"

    def scenario(self, rows: int | None, seed: int) -> Scenario:
        """The sources."""
        return Scenario(TIMING, TIMING.rows if rows is None else rows, seed)

    def check(self, scenario: Scenario, memory: str) -> None:
        """Refuse too little memory, and a machine without Java."""
        from watersmeet.spark.io.local import check_java

        orders, shipments = (table.schema for table in scenario.schedule.inputs)
        check_task_memory(JoinSpec(orders, shipments, parse_on(KEY), names=NAMES), "auto", parse_memory(memory))
        check_java()

    @contextmanager
    def ready(self, scenario: Scenario, memory: str, out: Path, say: Callable[[str], None]) -> Iterator[Demonstration]:
        """Start Spark and rehearse with a few rows."""
        from watersmeet.spark.io.failures import in_plain_words
        from watersmeet.spark.io.local import cores, local_session

        say(f"Starting Spark with {cores()} cores and rehearsing (the first run on a machine compiles the kernels).")
        log = out / "spark.log"
        with tempfile.TemporaryDirectory(prefix="watersmeet-", ignore_cleanup_errors=True) as directory:
            place = Path(directory).absolute()
            with in_plain_words(log), local_session("watersmeet demo", log, place / "spark", short=True) as spark:
                rehearsal = SparkRun(
                    spark, Scenario(TIMING, REHEARSAL_ROWS, scenario.seed), memory, place / "rehearsal"
                )
                rehearsal.prepare()
                rehearsal.query(paced=False).awaitTermination()
                run = SparkRun(spark, scenario, memory, place / "run", (out / self.result).absolute())
                run.prepare()
                yield run


@dataclass(frozen=True)
class SparkRun:
    """A join on Spark, with all its files in a place of their own, but for the result."""

    spark: Any
    scenario: Scenario
    memory: str
    place: Path
    result: Path | None = None

    @property
    def target(self) -> Path:
        """Where the sink writes."""
        return self.result or self.place / "result"

    def prepare(self) -> None:
        """Write the tables that the streams replay; an earlier result makes room."""
        from watersmeet import spark as wms

        wms.register(self.spark)
        self.place.mkdir()
        shutil.rmtree(self.target, ignore_errors=True)
        for name, table in zip(NAMES, self.scenario.schedule.inputs, strict=True):
            pq.write_table(table, self.place / f"{name}.parquet", row_group_size=8192)

    @property
    def starting_shot(self) -> Path:
        """The sources begin when this file appears."""
        return self.place / "begin"

    def query(self, paced: bool = True) -> Any:
        """Start the pipeline."""
        from watersmeet import spark as wms
        from watersmeet.spark.io.local import cores

        orders, shipments = (
            self._stream(name, pace if paced else None) for name, pace in zip(NAMES, self.scenario.paces, strict=True)
        )
        joined = wms.join(
            orders,
            shipments,
            on=KEY,
            memory=self.memory,
            partitions=cores(),
            state=self.place / "state",
        )
        writer = joined.writeStream.format("parquet").option("checkpointLocation", str(self.place / "checkpoint"))
        if not paced:
            writer = writer.trigger(availableNow=True)
        return writer.start(str(self.target))

    def _stream(self, name: str, pace: Pace | None) -> Any:
        reader = (
            self.spark.readStream.format("watersmeet").option("rowsPerBatch", ROWS_PER_BATCH).option("events", True)
        )
        if pace is not None:
            reader = reader.option("rowsPerSecond", pace.rows_per_second).option("rowsPerBurst", pace.burst)
            reader = reader.option("stalls", ", ".join(f"{rows}:{seconds}" for rows, seconds in pace.stalls))
            reader = reader.option("startsAt", str(self.starting_shot))
        return reader.load(str(self.place / f"{name}.parquet"))

    def join(self, page: Page | None = None) -> tuple[Record, Progress]:
        """Run the pipeline until both streams have ended and every pair has been delivered."""
        from watersmeet.spark.io.local import cores
        from watersmeet.spark.io.query_progress import BatchReport, Tally, run_until

        budget = parse_memory(self.memory)
        batches: list[tuple[float, float]] = []
        record = Record(room=budget * cores(), batches=batches)
        tally = Tally((NAMES[0], NAMES[1]), budget, f"{cores()} Spark tasks", time.time())
        record.history.possible = possible(self.scenario.schedule)
        if page is not None:
            page.add(" ⋈ ".join(NAMES), record.history, kind="batches")
        phase = "arriving"
        with display(quiet=False) as show:

            def look(report: BatchReport | None) -> None:
                nonlocal phase
                if not self.starting_shot.exists():
                    if report is None:
                        return
                    # The pipeline has shown that it works, on a batch that had nothing but signs of life.
                    self.starting_shot.touch()
                    tally.began = self.starting_shot.stat().st_mtime
                elif report is not None:
                    tally.add(report)
                    phase = "arriving" if report.rows else "silent"
                    delivered = report.began + report.seconds
                    batches.append((report.began - tally.began, delivered - tally.began))
                    record.look(delivered - tally.began, tally.progress(delivered, phase))
                progress = tally.progress(time.time(), phase)
                record.history.add(progress)
                show(progress)

            run_until(self.query(), BatchReport.is_last, look)
            show.clear()
        progress = tally.progress(time.time(), "done", done=True)
        record.history.add(progress)
        record.history.end()
        return record, progress

    def verify(self) -> str | None:
        """Compare with Spark's own join of the same tables, read by Spark's own reader."""
        orders, shipments = (self.spark.read.parquet(str(self.place / f"{name}.parquet")) for name in NAMES)
        expected, found = orders.join(shipments, KEY), self.spark.read.parquet(str(self.target))
        found = found.select(*expected.columns)
        # Takes away one for one, so a row that is there twice instead of once is left over.
        return said_of(expected.exceptAll(found).count(), found.exceptAll(expected).count())
