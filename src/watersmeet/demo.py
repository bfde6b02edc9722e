"""`watersmeet demo`: two slow, stalling sources joined in little memory, watched, drawn and verified.

Orders and shipments arrive in bursts and fall silent together several times. The join hands out pairs as they are
found, spills what does not fit, and uses the silences; afterwards another engine joins the same tables, and the two
results must be the same, row for row.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from watersmeet import api, sinks
from watersmeet.cli_progress import display
from watersmeet.core.errors import SpecError
from watersmeet.drivers.progress import Progress, format_seconds
from watersmeet.drivers.simulate import simulate
from watersmeet.memory import format_bytes
from watersmeet.sources import source
from watersmeet.sources.generators import rows as payload
from watersmeet.sources.generators import zipf
from watersmeet.sources.schedules import Schedule, Times, bursts

OUT = Path("demo-output")
ROWS = 36_000
"""Rows of each input: with them the two sources take about 17 seconds."""
RATE = 3000.0
"""Rows a second of each input, silences aside."""
STALLS = ((0.12, 0.6), (0.27, 1.0), (0.41, 0.4), (0.55, 1.0), (0.7, 0.8), (0.88, 0.9))
"""Both inputs fall silent: after which share of their rows' time, and for how many seconds."""
LEAST_STALL = 0.2
NAMES = ("orders", "shipments")
KEY = "order_id"


# --- two sources ---


def scenario(rows: int, seed: int) -> Schedule:
    """Orders and shipments: some orders have many lines and parcels, most have few; all come in bursts, with stalls.

    >>> made = scenario(rows=600, seed=1)
    >>> made.total_rows, made.inputs[1].schema.names
    (1200, ['order_id', 'parcel', 'weight', 'address'])
    """
    if rows < 1:
        raise SpecError(f"the demo needs at least one row of each input, not {rows}")
    columns = (["line", "amount", "note"], ["parcel", "weight", "address"])
    busy = rows / RATE
    # Fewer rows make a shorter demo, but a silence must stay long enough to be one.
    stalls = [(share * busy, max(LEAST_STALL, seconds * min(1.0, rows / ROWS))) for share, seconds in STALLS]
    tables, times = [], []
    for side, names in enumerate(columns):
        draw = 2 * seed + side
        keys = zipf(rows, domain=max(1, rows // 2), exponent=0.4, seed=draw)
        tables.append(payload(keys, width=64, seed=draw).rename_columns([KEY, *names]))
        when = bursts(rows, size=100, gap=1.0, pause=120.0, seed=draw)
        times.append(with_stalls(when * (busy / when[-1]), stalls))
    return Schedule(tables, times)


def with_stalls(times: Times, stalls: list[tuple[float, float]]) -> Times:
    """Arrivals with silences put in: from each of these moments on, everything comes so much later.

    >>> with_stalls(np.array([1.0, 2.0, 3.0]), [(1.5, 0.5), (2.5, 2.0)]).tolist()
    [1.0, 2.5, 5.5]
    """
    starts, lengths = (np.array(column) for column in zip(*stalls, strict=True))
    before: Times = np.concatenate([[0.0], np.cumsum(lengths)])
    later: Times = times + before[np.searchsorted(starts, times, side="left")]
    return later


def silences(schedule: Schedule) -> list[tuple[float, float]]:
    """From when to when nothing arrives on either input, where that can be seen in a picture."""
    moments = np.concatenate([[0.0], np.sort(np.concatenate(list(schedule.times)))])
    gaps = np.flatnonzero(np.diff(moments) >= LEAST_STALL * 0.9)
    return [(float(moments[at]), float(moments[at + 1])) for at in gaps]


# --- the run ---


class Sample(NamedTuple):
    """The join at one moment."""

    time: float
    results: int
    memory: int
    spilled: int


@dataclass
class Record:
    """What is noted while the join runs; second 0 is when the sources begin."""

    start: float
    samples: list[Sample] = field(default_factory=list)
    reactive: int = 0
    """Rows found while the inputs were silent."""

    def look(self, progress: Progress) -> None:
        """Take note of this moment."""
        now = max(0.0, time.monotonic() - self.start)
        self.samples.append(Sample(now, progress.rows_out, progress.memory, progress.spilled))

    def follow(self, result: api.Result) -> Iterator[pa.RecordBatch]:
        """The results, each noted as it comes."""
        for batch in result:
            progress = result.progress
            self.look(progress)
            if progress.phase == "reactive":
                self.reactive += batch.num_rows
            yield batch

    def results_before(self, moment: float) -> int:
        """How many results had been handed out by then."""
        return max((sample.results for sample in self.samples if sample.time <= moment), default=0)


def live_join(schedule: Schedule, memory: str, target: Path) -> tuple[Record, Progress]:
    """Join the two inputs as they come, showing how far it is, into a file."""
    record = Record(time.monotonic())
    orders, shipments = (
        source(schedule.paced(side, start=record.start), name=name, schema=schedule.inputs[side].schema)
        for side, name in enumerate(NAMES)
    )
    with display(quiet=False) as show:

        def look(progress: Progress) -> None:
            show(progress)
            record.look(progress)

        with api.join(orders, shipments, on=KEY, memory=memory, on_progress=look) as result:
            sinks.write(record.follow(result), result.schema, target)
        show.clear()
        return record, result.progress


def get_ready(seed: int) -> None:
    """Have the kernels compiled, so that the demo shows the join and not the compiler."""
    # In virtual time: however long compiling takes, the rehearsal has its silences, and all stages take place.
    simulate("auto", scenario(3000, seed), on=KEY, memory="256 KiB", output="rows")


# --- the proof ---


def verify(schedule: Schedule, found: pa.Table) -> str | None:
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
    if missing or surplus:
        return f"the result is wrong: {missing:,} rows are missing and {surplus:,} are too many"
    return None


def at_best(schedule: Schedule) -> Times:
    """For every pair the moment at which its second row arrives: no join can deliver it earlier."""
    orders, shipments = (
        pa.table({KEY: table[KEY], f"time{side}": when})
        for side, (table, when) in enumerate(zip(schedule.inputs, schedule.times, strict=True))
    )
    pairs = orders.join(shipments, KEY, join_type="inner")
    moments: Times = np.sort(np.maximum(pairs["time0"].to_numpy(), pairs["time1"].to_numpy()))
    return moments


# --- the picture ---

RESULT_COLOUR, BEST_COLOUR, SILENT_COLOUR = "#0b6e99", "#8b979f", "#f7ecd6"
INPUT_COLOURS = ("#c8553d", "#588157")
MEMORY_COLOUR, MEMORY_LIGHT, SPILL_COLOUR = "#3d5a80", "#c3cedb", "#8d6a9f"
MIB = float(1 << 20)


def draw(schedule: Schedule, record: Record, progress: Progress, path: Path) -> None:
    """The curve of results over time, and below it memory and spilled bytes, as a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.6), layout="constrained", facecolor="white")
    results, memory, spilled = figure.subplots(3, 1, sharex=True, height_ratios=[4, 1, 1])
    _draw_results(results, schedule, record, progress)
    columns = [np.array(column) for column in zip(*record.samples, strict=True)]
    when, held, written = columns[0], columns[2] / MIB, columns[3] / MIB
    memory.fill_between(when, held, step="post", color=MEMORY_LIGHT, linewidth=0)
    memory.step(when, held, where="post", color=MEMORY_COLOUR, linewidth=0.8)
    memory.axhline(progress.budget / MIB, color="#b3261e", linewidth=1, linestyle="--")
    memory.annotate(
        f"budget {format_bytes(progress.budget)}", (0.0, progress.budget / MIB), xytext=(4, 3),
        textcoords="offset points", fontsize=8, color="#b3261e",
    )  # fmt: skip
    memory.set_ylim(0, progress.budget / MIB * 1.35)
    memory.set_ylabel("memory\nMiB")
    spilled.step(when, written, where="post", color=SPILL_COLOUR, linewidth=1.3)
    spilled.set_ylim(0, max(0.1, float(written[-1])) * 1.2)
    spilled.set_ylabel("spilled\nMiB")
    spilled.set_xlabel("seconds since the sources began")
    spilled.set_xlim(0, max(schedule.end_time, float(when[-1])) * 1.02)
    for axes in (results, memory, spilled):
        for begin, end in silences(schedule):
            axes.axvspan(begin, end, color=SILENT_COLOUR, linewidth=0, zorder=0)
        axes.axvline(schedule.end_time, color="#444444", linewidth=0.9, linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    path.write_bytes(picture.getvalue())


def _draw_results(axes: Any, schedule: Schedule, record: Record, progress: Progress) -> None:
    from matplotlib.patches import Patch

    best = at_best(schedule)
    last = record.samples[-1]
    axes.step(best, np.arange(1, len(best) + 1), where="post", color=BEST_COLOUR, linewidth=1.2, linestyle="--",
              label="pairs whose rows have both arrived: no join can be earlier")  # fmt: skip
    for name, colour, when in zip(NAMES, INPUT_COLOURS, schedule.times, strict=True):
        axes.step(when, np.arange(1, len(when) + 1), where="post", color=colour, linewidth=0.9, label=f"{name} arrived")
    times = [0.0, *(sample.time for sample in record.samples)]
    counts = [0, *(sample.results for sample in record.samples)]
    axes.step(times, counts, where="post", color=RESULT_COLOUR, linewidth=2.2, label="results delivered")
    axes.set_ylim(0, last.results * 1.08)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylabel("rows")
    handles, _ = axes.get_legend_handles_labels()
    handles = [handles[-1], *handles[:-1], Patch(color=SILENT_COLOUR, label="both inputs silent")]
    axes.legend(handles=handles, loc="upper left", frameon=False, fontsize=9)
    before = record.results_before(schedule.end_time)
    axes.annotate(
        f"last row arrives:\n{before / max(1, last.results):.0%} delivered",
        (schedule.end_time, before), xytext=(-12, -78), textcoords="offset points", ha="right", fontsize=9,
        arrowprops={"arrowstyle": "-", "color": "#444444", "linewidth": 0.8},
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2},
    )  # fmt: skip
    size = sum(table.nbytes for table in schedule.inputs)
    axes.set_title(
        f"{len(schedule.times[0]):,} orders and {len(schedule.times[1]):,} shipments ({format_bytes(size)}) joined in "
        f"{format_bytes(progress.budget)}: {last.results:,} pairs, the first after "
        f"{format_seconds(progress.first_result_after or 0.0)}",
        fontsize=11, loc="left",
    )  # fmt: skip


# --- the command ---


def main(args: argparse.Namespace) -> int:
    """Run the demo; 0 only if the result is right and everything that was to be shown took place."""
    from rich.console import Console

    out = OUT if args.out is None else Path(args.out)
    schedule = scenario(ROWS if args.rows is None else args.rows, args.seed)
    api.join(schedule.inputs[0], schedule.inputs[1], on=KEY, memory=args.memory).close()  # refuses too little memory
    out.mkdir(parents=True, exist_ok=True)
    console = Console(file=sys.stdout, width=min(100, shutil.get_terminal_size((100, 24)).columns), highlight=False)
    console.print("Getting ready (the first run on a machine compiles the kernels, which takes a while).")
    get_ready(args.seed)
    size = sum(table.nbytes for table in schedule.inputs)
    console.print(
        f"Joining {' and '.join(NAMES)}, {format_bytes(size)} in all, in {args.memory} of memory. They come in bursts, "
        f"and both fall silent {len(silences(schedule))} times; the last row comes after {schedule.end_time:.0f} s.",
        soft_wrap=True,
    )
    record, progress = live_join(schedule, args.memory, out / "result.arrow")
    draw(schedule, record, progress, out / "demo.png")
    with pa.memory_map(str(out / "result.arrow")) as file:
        wrong = verify(schedule, pa.ipc.open_file(file).read_all())
    console.print(summary(schedule, record, progress, wrong is None))
    console.print(f"The picture is {out / 'demo.png'}, the result {out / 'result.arrow'}.", soft_wrap=True)
    problems = shortcomings(record, progress, wrong)
    for problem in problems:
        console.print(f"Not as it should be: {problem}.", style="red", soft_wrap=True)
    return 1 if problems else 0


def summary(schedule: Schedule, record: Record, progress: Progress, verified: bool) -> Any:
    """What there was to see, as a table for rich."""
    from rich.table import Table

    before = record.results_before(schedule.end_time)
    first = progress.first_result_after
    table = Table(title="What happened", title_justify="left", show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, rows in zip(progress.names, progress.rows_in, strict=True):
        table.add_row(name, f"{rows:,} rows")
    table.add_row("pairs", f"{progress.rows_out:,}")
    table.add_row("first result after", "-" if first is None else format_seconds(first))
    table.add_row("before the last row arrived", f"{before / max(1, progress.rows_out):.1%} of all pairs")
    table.add_row("found while both were silent", f"{record.reactive:,} pairs")
    table.add_row("spilled", format_bytes(progress.spilled))
    table.add_row("peak memory", f"{format_bytes(progress.peak)} of {format_bytes(progress.budget)}")
    table.add_row("total time", format_seconds(progress.elapsed))
    table.add_row("verified with DuckDB", "[green]yes[/green]" if verified else "[red]no[/red]")
    return table


def shortcomings(record: Record, progress: Progress, wrong: str | None) -> list[str]:
    """What the demo was to show and did not, a sentence each."""
    problems = [] if wrong is None else [wrong]
    if not progress.spilled:
        problems.append("nothing was spilled, as all rows fit into the memory; allow less of it, or more rows")
    elif not record.reactive:
        problems.append("no pair was found while the inputs were silent; try more rows, or another seed")
    if progress.peak > progress.budget:
        problems.append(f"{format_bytes(progress.peak)} of memory were used, more than allowed")
    return problems
