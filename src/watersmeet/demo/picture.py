"""The picture of a run: results over time, against the arrivals and the best that any join could do."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from watersmeet.demo.record import Record
from watersmeet.demo.scenario import NAMES, at_best, silences
from watersmeet.drivers.progress import Progress, format_seconds
from watersmeet.memory import format_bytes
from watersmeet.sources.schedules import Schedule

RESULT_COLOUR, BEST_COLOUR, SILENT_COLOUR = "#0b6e99", "#8b979f", "#f7ecd6"
INPUT_COLOURS = ("#c8553d", "#588157")
MEMORY_COLOUR, MEMORY_LIGHT, DISK_COLOUR = "#3d5a80", "#c3cedb", "#8d6a9f"
MIB = float(1 << 20)


def draw(schedule: Schedule, record: Record, progress: Progress, path: Path, where: str) -> None:
    """The curve of results over time, and below it memory and bytes on disk, as a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.6), layout="constrained", facecolor="white")
    results, memory, disk = figure.subplots(3, 1, sharex=True, height_ratios=[4, 1, 1])
    _draw_results(results, schedule, record, progress, where)
    columns = [np.array(column) for column in zip(*record.samples, strict=True)]
    when, held, on_disk = columns[0], columns[2] / MIB, columns[3] / MIB
    memory.fill_between(when, held, step="post", color=MEMORY_LIGHT, linewidth=0)
    memory.step(when, held, where="post", color=MEMORY_COLOUR, linewidth=0.8)
    memory.axhline(progress.budget / MIB, color="#b3261e", linewidth=1, linestyle="--")
    memory.annotate(
        f"budget {format_bytes(progress.budget)}", (0.0, progress.budget / MIB), xytext=(4, 3),
        textcoords="offset points", fontsize=8, color="#b3261e",
    )  # fmt: skip
    memory.set_ylim(0, progress.budget / MIB * 1.35)
    memory.set_ylabel("memory\nMiB")
    disk.step(when, on_disk, where="post", color=DISK_COLOUR, linewidth=1.3)
    disk.set_ylim(0, max(0.1, float(on_disk.max())) * 1.2)
    disk.set_ylabel("on disk\nMiB")
    disk.set_xlabel("seconds since the sources began")
    disk.set_xlim(0, max(schedule.end_time, float(when[-1])) * 1.02)
    for axes in (results, memory, disk):
        for begin, end in silences(schedule):
            axes.axvspan(begin, end, color=SILENT_COLOUR, linewidth=0, zorder=0)
        axes.axvline(schedule.end_time, color="#444444", linewidth=0.9, linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    path.write_bytes(picture.getvalue())


def _draw_results(axes: Any, schedule: Schedule, record: Record, progress: Progress, where: str) -> None:
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
        (schedule.end_time, before), xytext=(-12, -130), textcoords="offset points", ha="right", fontsize=9,
        arrowprops={"arrowstyle": "-", "color": "#444444", "linewidth": 0.8},
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2},
    )  # fmt: skip
    size = sum(table.nbytes for table in schedule.inputs)
    axes.set_title(
        f"{len(schedule.times[0]):,} orders and {len(schedule.times[1]):,} shipments ({format_bytes(size)}) joined in "
        f"{format_bytes(progress.budget)}{where}: {last.results:,} pairs, the first after "
        f"{format_seconds(progress.first_result_after or 0.0)}",
        fontsize=11, loc="left",
    )  # fmt: skip
