"""Watch joins at work: a listener that draws what each batch did, live on a terminal, a line at a time elsewhere.

    with wms.Watch(spark):
        query = joined.writeStream. ... .start()
        query.awaitTermination()

It sees every query of the session that joins with `state=`, under Spark Connect, too. All it shows is in the
queries' own progress; `watersmeet.spark.figures` takes it out.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from pyspark.sql.streaming.listener import StreamingQueryListener

from watersmeet.core.errors import WatersmeetError
from watersmeet.core.report import BatchFigures
from watersmeet.drivers.history import History
from watersmeet.drivers.progress import Progress, format_seconds
from watersmeet.memory import format_bytes
from watersmeet.spark.state.remote import is_remote
from watersmeet.spark.task.figures import DIRECTORIES, figures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.live.page import Page
    from watersmeet.spark.io.state_view import StateView

Reached = tuple[float | None, ...] | None
_BAR_WIDTH = 30
_PATIENCE = 10.0
"""Seconds that the last events of queries that have ended may take to arrive."""


@dataclass
class Watched:
    """A join as of its last batch: sums over all batches that were seen, and the last one's figures."""

    name: str
    batch: int = -1
    seconds: float = 0.0
    """How long the last batch took."""
    rows: dict[str, int] = field(default_factory=dict)
    """By input."""
    results: int = 0
    spilled: int = 0
    last: Mapping[str, Any] = field(default_factory=dict)
    ended: bool = False
    history: History = field(default_factory=History)
    """What it was like after each batch."""
    late: dict[str, int] = field(default_factory=dict)
    """Of a window join, by input."""
    reached: Reached = None
    """Of a window join: the newest time of each input."""
    dated: bool = False
    """Whether those are seconds since 1970."""
    peak: int = 0
    first: float | None = None
    """Seconds from the start of the first batch that was seen until there was a result."""

    def see(
        self,
        batch: int,
        seconds: float,
        known: Mapping[str, Any],
        begun: float | None = None,
        times: tuple[Reached, bool] = (None, False),
    ) -> None:
        """Take a batch's figures; a batch that is repeated counts once.

        :param begun: seconds since 1970.
        :param times: of a window join, where that is known, how far each input has come, and whether in seconds since
            1970.
        """
        if batch <= self.batch:
            return
        begun = time.time() - seconds if begun is None else begun
        if self.batch < 0:
            self.history.began = begun
        self.batch, self.seconds = batch, seconds
        self.reached, self.dated = times
        first = self.history.last is None
        self._add(known)
        if first:  # so that curves begin where the first batch did
            self.history.add(Progress(tuple(self.rows), (0,) * len(self.rows), budget=known.get("budget") or 0))
        elapsed = max(0.0, begun + seconds - self.history.began)
        if self.results and self.first is None:
            self.first = elapsed
        self.history.add(self.progress(elapsed, "arriving" if known.get("results") is not None else "silent"))

    def end(self, error: str | None = None) -> None:
        """The query has ended."""
        self.ended = True
        if self.history.last is not None:
            self.history.add(replace(self.history.last, phase="done", done=True))
        self.history.end(error)

    def progress(self, elapsed: float, phase: str) -> Progress:
        """The join as one of its own process would tell it."""
        last = self.last
        delays = [
            (p50 / 1000, p99 / 1000)
            for side in self.rows
            if (p50 := last.get(f"{side}_delay_p50_ms")) is not None
            and (p99 := last.get(f"{side}_delay_p99_ms")) is not None
        ]
        return Progress(
            names=tuple(self.rows),
            rows_in=tuple(self.rows.values()),
            rows_out=self.results,
            first_result_after=self.first,
            elapsed=elapsed,
            memory=last.get("memory") or 0,
            peak=self.peak,
            budget=last.get("budget") or 0,
            spilled=self.spilled,
            on_disk=last.get("state_bytes") or 0,
            phase=phase,
            algorithm="on Spark",
            late=tuple(self.late.get(side, 0) for side in self.rows) if self.late else None,
            window_rows=last.get("state_rows") if self.late else None,
            reached=self.reached,
            dated=self.dated,
            delays=max(delays, key=lambda pair: pair[1], default=None),
            batch=BatchFigures(self.batch, self.seconds, (last.get("task_ms") or 0) / 1000),
        )

    def _add(self, known: Mapping[str, Any]) -> None:
        if known.get("results") is None:  # no task had anything to do
            return
        for name in (name for name in known if name.endswith("_rows") and name != "state_rows"):
            each = name.removesuffix("_rows")
            self.rows[each] = self.rows.get(each, 0) + known[name]
        for each in self.rows:
            if f"{each}_late" in known:
                self.late[each] = self.late.get(each, 0) + known[f"{each}_late"]
        self.results += known["results"]
        self.peak = max(self.peak, known.get("memory") or 0)
        self.spilled += known.get("spilled", 0)
        self.last = known

    def __str__(self) -> str:
        parts = [
            f"{self.name}: batch {self.batch}, {format_seconds(self.seconds)}",
            f"{' + '.join(f'{rows:,}' for rows in self.rows.values()) or 0} rows in",
            f"{self.results:,} out",
        ]
        if self.last:
            parts.append(f"memory {format_bytes(self.last['memory'] or 0)} of {format_bytes(self.last['budget'])}")
            if "state_bytes" in self.last:
                parts.append(f"state {format_bytes(self.last['state_bytes'])}")
        if self.spilled:
            parts.append(f"spilled {format_bytes(self.spilled)}")
        return " · ".join([*parts, *(["ended"] if self.ended else [])])


class Watch(StreamingQueryListener):
    """Draws the joins of a session's streaming queries.

    As a context manager around a session it listens while the block runs; or add it by yourself:
    `spark.streams.addListener(wms.Watch())`.

    :param page: True: serve a live page of the joins on 127.0.0.1 until the watch is closed, and tell its address on
        standard error; a port, `"HOST:PORT"`, or a `wm.Page`.
    """

    def __init__(
        self,
        session: SparkSession | None = None,
        stream: TextIO | None = None,
        page: bool | int | str | Page | None = None,
    ) -> None:
        self.joins: dict[tuple[str, str], Watched] = {}
        """By the query's run and the join's name."""
        self._session = session
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()
        self._live: Any = None
        self._runs: set[str] = set()
        """Of queries whose end has not been told."""
        self._over = False
        self._pages = _Pages(page)

    # --- what Spark calls ---

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802, as Spark names it
        """Expect to be told of its end."""
        with self._lock:
            self._runs.add(str(event.runId))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Draw what the batch did."""
        progress = event.progress
        for name, known in figures(progress).items():
            with self._lock:
                if self._over:
                    return
                watched = self.joins.setdefault((str(progress.runId), name), Watched(name))
                times = self._pages.times(name, progress.batchId)
                watched.see(progress.batchId, progress.batchDuration / 1000, known, _begun(progress), times)
                self._draw(watched)
                self._pages.show(watched)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing has come."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Say that the query has ended."""
        with self._lock:
            self._runs.discard(str(event.runId))
            for (run, _), watched in self.joins.items():
                if run == str(event.runId) and not self._over:
                    watched.end(_one_line(getattr(event, "exception", None)))
                    self._draw(watched)

    # --- drawing ---

    def __enter__(self) -> Self:
        if self._session is not None:
            self._session.streams.addListener(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            self._await_last_events(self._session)
            # Spark Connect's client, up to PySpark 4.3 at least, waits for ever if an event is on its way to a listener
            # that is being removed: there this one stays, silent, as long as the session.
            if hasattr(self._session, "_sc"):
                self._session.streams.removeListener(self)
        self.close()

    def _await_last_events(self, session: SparkSession) -> None:
        """Events come a little after what they tell of: wait for those of queries that have ended."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and self._runs - {str(query.runId) for query in session.streams.active}:
            time.sleep(0.05)

    def close(self) -> None:
        """Leave the last picture on the screen, give the terminal back, and draw no more."""
        with self._lock:
            self._over = True
            if self._live is not None:
                self._live.stop()
                self._live = None
        self._pages.close()

    @property
    def page(self) -> str | None:
        """The address of the live page, if there is one."""
        return self._pages.address

    def _draw(self, watched: Watched) -> None:
        if not self._stream.isatty():
            print(watched, file=self._stream, flush=True)
            return
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._stream), auto_refresh=False)
            self._live.start()
        self._live.update(picture(list(self.joins.values())), refresh=True)


class _Pages:
    """The joins on a live page, if one is wanted."""

    def __init__(self, page: bool | int | str | Page | None) -> None:
        self._page: Page | None = None
        self._is_own = False
        self._shown: dict[int, Any] = {}
        self._views: dict[str, StateView | None] = {}
        if page is None or page is False:
            return
        from watersmeet.live.attach import own_page
        from watersmeet.live.page import Page

        self._is_own = not isinstance(page, Page)
        self._page = page if isinstance(page, Page) else own_page(page, "the joins of this session")

    @property
    def address(self) -> str | None:
        return None if self._page is None else self._page.address

    def show(self, watched: Watched) -> None:
        """A batch of a join has been seen."""
        if self._page is None:
            return
        if id(watched) not in self._shown:
            self._shown[id(watched)] = self._page.add(watched.name, watched.history, kind="batches")
        view = self._view(watched.name)
        if view is not None:
            self._shown[id(watched)].extras = view.extras()

    def times(self, name: str, batch: int) -> tuple[Reached, bool]:
        """How far the inputs of a window join have come with a batch, if somebody wants to see it."""
        view = None if self._page is None else self._view(name)
        return (None, False) if view is None else (view.reached(batch), view.dated)

    def _view(self, name: str) -> StateView | None:
        """The join's state, if this machine sees it."""
        from watersmeet.spark.io.state_view import StateView

        if self._views.get(name) is None:
            self._views[name] = None  # a relation, a remote place, or not yet there
            place = DIRECTORIES.get(name)
            # To list a remote one after each batch may take longer than the batch: `watersmeet serve` reads those.
            if place is not None and not is_remote(place):
                with suppress(WatersmeetError):
                    self._views[name] = StateView(place)
        return self._views[name]

    def close(self) -> None:
        if self._page is not None and self._is_own:
            self._page.close()


def _begun(progress: Any) -> float | None:
    """When a batch began, in seconds since 1970."""
    told = getattr(progress, "timestamp", None)
    return None if told is None else datetime.fromisoformat(told).timestamp()


def _one_line(text: str | None) -> str | None:
    return None if not text else " ".join(text.split())[:300]


def picture(joins: list[Watched]) -> Any:
    """The joins as rich draws them, in 80 columns."""
    from rich.console import Group

    return Group(*(_panel(watched) for watched in joins))


def _panel(watched: Watched) -> Any:
    from rich.table import Table
    from rich.text import Text

    last = watched.last
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", style="dim", width=8)
    grid.add_column(width=68, no_wrap=True, overflow="ellipsis")
    state = "ended" if watched.ended else f"{format_seconds(watched.seconds)} for the last one"
    grid.add_row(Text("join", style="bold"), Text(f"{watched.name}, batch {watched.batch}, {state}", style="bold"))
    for name, rows in watched.rows.items():
        grid.add_row(name, f"{rows:>15,} rows{_delays(last, name)}")
    grid.add_row("results", f"{watched.results:>15,} rows")
    if last:
        grid.add_row("memory", _bar(last["memory"] or 0, last["budget"]))
        if "state_bytes" in last:
            left = f", work left in {last['work_left']} groups" if last["work_left"] else ""
            disk = f"state {format_bytes(last['state_bytes'])}, spilled {format_bytes(watched.spilled)}{left}"
        else:
            disk = f"{format_bytes(last['read'])} of the relation read"
        grid.add_row("disk", disk)
    return grid


def _delays(known: Mapping[str, Any], side: str) -> str:
    """A side's delays, if it has any."""
    p50, p99 = known.get(f"{side}_delay_p50_ms"), known.get(f"{side}_delay_p99_ms")
    if p50 is None or p99 is None:
        return ""
    return f", delays p50 {format_seconds(p50 / 1000)}, p99 {format_seconds(p99 / 1000)}"


def _bar(used: int, budget: int) -> Any:
    from rich.text import Text

    full = round(_BAR_WIDTH * min(1.0, used / max(1, budget)))
    bar = Text("█" * full, style="cyan")
    bar.append("·" * (_BAR_WIDTH - full), style="dim")
    bar.append(f" {format_bytes(used)} of {format_bytes(budget)} in the fullest task", style="default")
    return bar
