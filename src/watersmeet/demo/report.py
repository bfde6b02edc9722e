"""What there was to see, as a table, and what there should have been and was not."""

from __future__ import annotations

from typing import Any

from watersmeet.demo.record import Record
from watersmeet.drivers.progress import Progress, format_seconds
from watersmeet.memory import format_bytes
from watersmeet.sources.schedules import Schedule


def summary(schedule: Schedule, record: Record, progress: Progress, verified: bool, peer: str) -> Any:
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
    caught_up, silences = record.caught_up(schedule)
    table.add_row("all that could be, by the end of", f"{caught_up} of {silences} silences")
    table.add_row("on disk, at most", format_bytes(record.most_on_disk))
    table.add_row("peak memory", f"{format_bytes(progress.peak)} of {format_bytes(progress.budget)}")
    table.add_row("total time", format_seconds(progress.elapsed))
    table.add_row(f"verified with {peer}", "[green]yes[/green]" if verified else "[red]no[/red]")
    return table


def figures(
    schedule: Schedule, record: Record, progress: Progress, *, verified: bool, problems: list[str]
) -> dict[str, Any]:
    """The same for other programs."""
    before = record.results_before(schedule.end_time)
    caught_up, silences = record.caught_up(schedule)
    return {
        **progress.as_dict(),
        "before_last_row": before,
        "silences": silences,
        "caught_up": caught_up,
        "most_on_disk": record.most_on_disk,
        "last_row_after": schedule.end_time,
        "verified": verified,
        "problems": problems,
    }


def shortcomings(schedule: Schedule, record: Record, progress: Progress, wrong: str | None) -> list[str]:
    """What the demo was to show and did not, a sentence each."""
    problems = [] if wrong is None else [wrong]
    caught_up, silences = record.caught_up(schedule)
    if record.most_on_disk <= record.room:
        problems.append("all rows would fit into the memory; allow less of it, or more rows")
    if silences and not caught_up:
        problems.append("in no silence did the join catch up with the sources; try more rows, or another seed")
    if progress.peak > progress.budget:
        problems.append(f"{format_bytes(progress.peak)} of memory were used, more than allowed")
    return problems


def remark(schedule: Schedule, record: Record) -> str | None:
    """What the machine, and not the join, kept from being seen."""
    if record.caught_up(schedule)[1] == 0:
        return "The machine was too busy to keep up with the sources, so there was no silence in which to join"
    return None


def said_of(missing: int, surplus: int) -> str | None:
    """A sentence if the result is not right."""
    if missing or surplus:
        return f"the result is wrong: {missing:,} rows are missing and {surplus:,} are too many"
    return None
