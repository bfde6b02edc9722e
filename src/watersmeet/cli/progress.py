"""What a run shows while it goes on: a live panel on a terminal, a line now and then elsewhere, one line at the end."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self, TextIO

from watersmeet.drivers.progress import Progress, describe_lookup, format_seconds
from watersmeet.memory import format_bytes

LINE_EVERY = 2.0
"""Seconds between lines where there is no terminal."""
BAR_WIDTH = 30


def summary(progress: Progress) -> str:
    """The last line: what a run took.

    >>> summary(Progress(("a", "b"), (10, 20), 7, 0.01, 0.5, peak=2048, budget=4096, algorithm="xjoin", done=True))
    '7 rows from 10 + 20 in 500 ms, the first after 10 ms; memory peak 2 KiB of 4 KiB; nothing spilled; xjoin'
    """
    first = progress.first_result_after
    rows = "row" if progress.rows_out == 1 else "rows"
    parts = [
        f"{progress.rows_out:,} {rows} from {' + '.join(f'{count:,}' for count in progress.rows_in)}"
        f" in {format_seconds(progress.elapsed)}"
        + ("" if first is None else f", the first after {format_seconds(first)}"),
        f"memory peak {format_bytes(progress.peak)} of {format_bytes(progress.budget)}",
        f"spilled {format_bytes(progress.spilled)}" if progress.spilled else "nothing spilled",
    ]
    if progress.lookup is not None:
        parts[-1] = describe_lookup(progress.lookup)
    if progress.algorithm:
        parts.append(progress.algorithm)
    return "; ".join(parts)


class Display:
    """Shows nothing; the others show more. Used around a run, and called with each picture of it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def __call__(self, progress: Progress) -> None:
        """Show how far the run is."""

    def clear(self) -> None:
        """Make room for what is printed next."""

    def finish(self, progress: Progress) -> None:
        """Show what the run took."""


class Lines(Display):
    """A line every two seconds: for logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = time.monotonic() + LINE_EVERY

    def __call__(self, progress: Progress) -> None:
        """Show how far the run is."""
        now = time.monotonic()
        if now >= self._next and not progress.done:
            self._next = now + LINE_EVERY
            print(progress, file=self._stream, flush=True)

    def finish(self, progress: Progress) -> None:
        """Show what the run took."""
        print(summary(progress), file=self._stream, flush=True)


class Panel(Display):
    """A small table on the terminal that follows the run and leaves only the summary."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._first_time = is_first_time()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __call__(self, progress: Progress) -> None:
        """Show how far the run is."""
        self._live.update(panel(progress, self._first_time), refresh=True)

    def clear(self) -> None:
        """Make room for what is printed next."""
        self._live.stop()

    def finish(self, progress: Progress) -> None:
        """Show what the run took."""
        self.clear()
        self._console.print(summary(progress), highlight=False, markup=False, soft_wrap=True)


def is_first_time() -> bool:
    """Whether no kernel has been compiled here yet: then the first rows take seconds, and nothing seems to happen."""
    from watersmeet.kernels.compile import cache_directory

    directory = cache_directory()
    return directory is None or next(directory.rglob("*.nbi"), None) is None


def panel(progress: Progress, first_time: bool = False) -> Any:
    """The picture of a run, for rich."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", style="dim")
    grid.add_column()
    for name, rows in zip(progress.names, progress.rows_in, strict=True):
        grid.add_row("in", Text(f"{rows:,} rows of {name}", overflow="ellipsis", no_wrap=True))
    first = progress.first_result_after
    since = "" if first is None else f", the first after {format_seconds(first)}"
    grid.add_row("out", f"[bold]{progress.rows_out:,}[/bold] rows{since}")
    grid.add_row("memory", memory_bar(progress))
    grid.add_row("spilled", f"{format_bytes(progress.spilled)}, {format_bytes(progress.on_disk)} on disk now")
    how = f" ({progress.algorithm})" if progress.algorithm else ""
    grid.add_row("phase", f"{progress.phase}{how}, {format_seconds(progress.elapsed)}")
    if first_time and not progress.rows_out:
        grid.add_row("", "the first join on a machine compiles its kernels, which takes some seconds")
    return grid


def memory_bar(progress: Progress) -> Any:
    """Memory against the budget, the peak marked."""
    from rich.text import Text

    share = [min(1.0, part / max(progress.budget, 1)) for part in (progress.memory, progress.peak)]
    now, peak = (round(BAR_WIDTH * part) for part in share)
    bar = Text("█" * now, style="cyan")
    bar.append("▒" * max(0, peak - now), style="cyan")
    bar.append("·" * (BAR_WIDTH - max(now, peak)), style="dim")
    bar.append(f" {format_bytes(progress.memory)} of {format_bytes(progress.budget)}", style="default")
    return bar


def display(quiet: bool, stream: TextIO | None = None) -> Display:
    """The display that suits the stream (standard error unless given)."""
    stream = stream or sys.stderr
    if quiet:
        return Display()
    return Panel(stream) if stream.isatty() else Lines(stream)
