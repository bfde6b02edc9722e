"""The demo in this process: `wm.join` over two paced sources, verified with DuckDB."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from watersmeet.api import sinks
from watersmeet.api.join import join
from watersmeet.api.result import Result
from watersmeet.cli.progress import display
from watersmeet.demo.record import Demonstration, Record
from watersmeet.demo.report import said_of
from watersmeet.demo.scenario import KEY, NAMES, Scenario, Timing, possible
from watersmeet.drivers.progress import Progress
from watersmeet.drivers.simulate import simulate
from watersmeet.sources import source
from watersmeet.sources.schedules import Schedule

if TYPE_CHECKING:
    from watersmeet.live.page import Page

TIMING = Timing(
    rows=36_000,
    rate=3000.0,
    stalls=((0.12, 0.6), (0.27, 1.0), (0.41, 0.4), (0.55, 1.0), (0.7, 0.8), (0.88, 0.9)),
)
"""About 17 seconds."""


class EmbeddedEngine:
    """`watersmeet demo --engine local`."""

    memory = "2MiB"
    result = "result.arrow"
    peer = "DuckDB"
    title = ""
    allowance = ""

    def scenario(self, rows: int | None, seed: int) -> Scenario:
        """The sources."""
        return Scenario(TIMING, TIMING.rows if rows is None else rows, seed)

    def check(self, scenario: Scenario, memory: str) -> None:
        """Refuse too little memory."""
        orders, shipments = scenario.schedule.inputs
        join(orders, shipments, on=KEY, memory=memory).close()

    @contextmanager
    def ready(self, scenario: Scenario, memory: str, out: Path, say: Callable[[str], None]) -> Iterator[Demonstration]:
        """Have the kernels compiled."""
        say("Getting ready (the first run on a machine compiles the kernels, which takes a while).")
        # In virtual time: however long compiling takes, the rehearsal has its silences, and all stages take place.
        rehearsal = Scenario(TIMING, 3000, scenario.seed).schedule
        simulate("auto", rehearsal, on=KEY, memory="256 KiB", output="rows")
        yield EmbeddedRun(scenario.schedule, memory, out / self.result)


@dataclass(frozen=True)
class EmbeddedRun:
    """A join in this process."""

    schedule: Schedule
    memory: str
    target: Path

    def join(self, page: Page | None = None) -> tuple[Record, Progress]:
        """Join the two inputs as they come into a file."""
        best = possible(self.schedule)
        record, start = Record(), time.monotonic()
        orders, shipments = (
            source(self.schedule.paced(side, start=start), name=name, schema=self.schedule.inputs[side].schema)
            for side, name in enumerate(NAMES)
        )
        with display(quiet=False) as show:

            def look(progress: Progress) -> None:
                show(progress)
                record.look(time.monotonic() - start, progress)

            def noted(result: Result) -> Iterator[pa.RecordBatch]:
                for batch in result:
                    record.look(time.monotonic() - start, result.progress)
                    yield batch

            with join(orders, shipments, on=KEY, memory=self.memory, on_progress=look, page=page) as result:
                record.history, begun = result.history, time.monotonic() - start
                record.history.possible = ([moment - begun for moment in best[0]], best[1])
                sinks.write(noted(result), result.schema, self.target)
            show.clear()
            return record, result.progress

    def verify(self) -> str | None:
        """Compare with DuckDB's join."""
        with pa.memory_map(str(self.target)) as file:
            return differences(self.schedule, pa.ipc.open_file(file).read_all())


def differences(schedule: Schedule, found: pa.Table) -> str | None:
    """Compare with DuckDB's join of the same tables, as multisets of whole rows; a sentence if they differ."""
    try:
        import duckdb
    except ImportError:
        return "the result was not verified, as duckdb is not installed; install it with 'pip install duckdb'"
    orders, shipments = schedule.inputs
    with duckdb.connect() as connection:
        for name, table in (("orders", orders), ("shipments", shipments), ("found", found)):
            connection.register(name, table)
        connection.execute(f"CREATE TABLE expected AS SELECT * FROM orders JOIN shipments USING ({KEY})")
        # EXCEPT ALL takes away one for one, so a row that is there twice instead of once is left over.
        missing, surplus = (
            len(connection.sql(f"FROM {one} EXCEPT ALL FROM {other}"))
            for one, other in (("expected", "found"), ("found", "expected"))
        )
    return said_of(missing, surplus)
