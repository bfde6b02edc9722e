"""What a page shows: runs by name, each with its history, as values that JSON can hold, and the
newest sample of each in Prometheus' text format.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any, TypeAlias

from watersmeet.drivers.history import History, Update
from watersmeet.drivers.progress import Progress

MOST_RUNS = 32
"""On one page: of more, those that have ended and came first make room."""
Version = tuple[int, int]
_FIELDS = [each.name for each in dataclasses.fields(Progress)]


@dataclass(eq=False)
class ShownRun:
    """One run on a board."""

    key: str
    title: str
    history: History
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Pictures beside the charts, such as of groups and slots; replaced as a whole."""
    kind: str = "join"
    """What the samples are of: a `join`; `batches` of a query, which may be long apart; or the `state` of one."""

    def document(self, known: Version | None = None) -> dict[str, Any]:
        """All there is to know of the run, or what is new since a version of its history."""
        update = self.history.since(known)
        return {
            "key": self.key,
            "title": self.title,
            "began": self.history.began,
            "kind": self.kind,
            "ended": self.history.ended,
            "error": self.history.error,
            "possible": _curve(self.history.possible) if update.start == 0 else None,
            "extras": self.extras,
            "now": _now(self.history.last),
            **_rows(update),
        }


class Board:
    """The runs of a page; may be used from any thread.

    >>> board = Board()
    >>> history = History()
    >>> board.add("a with b", history).key, board.add("a with b", history).title
    ('run-1', 'a with b')
    """

    def __init__(self) -> None:
        self._runs: list[ShownRun] = []
        self._added = 0
        self._lock = threading.Lock()

    def add(self, title: str, history: History, kind: str = "join") -> ShownRun:
        """Show a run."""
        with self._lock:
            self._added += 1
            run = ShownRun(f"run-{self._added}", title, history, kind=kind)
            over = [each for each in self._runs if each.history.ended]
            if len(self._runs) >= MOST_RUNS and over:
                self._runs.remove(over[0])
            self._runs.append(run)
            return run

    @property
    def runs(self) -> list[ShownRun]:
        """From the first to the last."""
        with self._lock:
            return list(self._runs)


class Reader:
    """Somebody who looks at a board, and is told what is new."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._known: dict[str, tuple[Version, object]] = {}

    def news(self) -> list[dict[str, Any]]:
        """The runs of which there is something new."""
        found = []
        runs = self._board.runs
        self._known = {run.key: self._known[run.key] for run in runs if run.key in self._known}
        for run in runs:
            version, stamp = self._known.get(run.key, (None, None))
            now = (run.history.last, run.history.ended, run.extras, run.history.possible)
            # By identity: whatever changes is replaced.
            if stamp is None or any(one is not other for one, other in zip(now, stamp, strict=True)):  # type: ignore[call-overload]
                document = run.document(version)
                self._known[run.key] = (tuple(document["version"]), now)
                found.append(document)
        return found


def _rows(update: Update) -> dict[str, Any]:
    return {
        "version": update.version,
        "start": update.start,
        "kept": [sample(each) for each in update.kept],
        "tail": [sample(each) for each in update.tail],
    }


def _curve(known: tuple[Sequence[float], Sequence[int]] | None) -> list[list[float]] | None:
    return None if known is None else [[round(float(at), 3) for at in known[0]], [int(count) for count in known[1]]]


def sample(progress: Progress) -> dict[str, Any]:
    """What charts need of a moment; what is not known, or nothing, is left out.

    >>> sample(Progress(("a", "b"), (1, 2), rows_out=3, elapsed=0.5, memory=64, phase="arriving"))
    {'t': 0.5, 'in': (1, 2), 'out': 3, 'memory': 64, 'phase': 'arriving'}
    """
    found: dict[str, Any] = {
        "t": round(progress.elapsed, 4),
        "in": progress.rows_in,
        "out": progress.rows_out,
        "memory": progress.memory,
        "phase": progress.phase,
    }
    lateness, lookup, batch = progress.lateness, progress.lookup, progress.batch
    waits = (lateness.p50, lateness.p99) if lateness else progress.delays
    if lookup is not None:
        waits = (lookup.delay_p50, lookup.delay_p99)
        found |= {"answered": lookup.answered, "hits": lookup.hits, "misses": lookup.misses, "read": lookup.bytes_read}
    optional = {
        "disk": progress.on_disk or None,
        "spilled": progress.spilled or None,
        "waits": waits and [round(each, 5) for each in waits],
        "owing": lateness and lateness.owing,
        "late": progress.late,
        "reached": progress.reached,
        "remembered": progress.window_rows,
        "batch": batch and [batch.number, round(batch.seconds, 4), round(batch.join_seconds, 4)],
        "events": dict(progress.events) or None,
        "silent": progress.silent or None,
    }
    return found | {name: value for name, value in optional.items() if value is not None}


def _now(progress: Progress | None) -> dict[str, Any] | None:
    """The newest moment with all its figures."""
    if progress is None:
        return None
    values = {name: getattr(progress, name) for name in _FIELDS}
    # Only what is a class of its own: to copy the rest takes longer than to send it.
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Values: TypeAlias = "Iterable[tuple[Mapping[str, str], float | None]]"


@dataclass(frozen=True)
class Metric:
    """One name under which a figure is told."""

    name: str
    kind: str
    help: str
    values: Callable[[Progress], Values]


def _one(value: float | None) -> Values:
    return [({}, value)]


def _part(figures: object, name: str) -> Values:
    """One of the figures that not every run has."""
    return [({}, getattr(figures, name, None))]


def _by_input(progress: Progress, values: Iterable[float | None] | None) -> Values:
    return [({"input": name}, value) for name, value in zip(progress.names, values or (), strict=False)]


def _quantiles(pair: tuple[float, float] | None) -> Values:
    return [({"quantile": share}, value) for share, value in zip(("0.5", "0.99"), pair or (), strict=False)]


def _waits(progress: Progress) -> Values:
    lateness, lookup = progress.lateness, progress.lookup
    if lookup is not None:
        return _quantiles((lookup.delay_p50, lookup.delay_p99))
    return _quantiles(progress.delays if lateness is None else (lateness.p50, lateness.p99))


def _batch(progress: Progress) -> Values:
    batch = progress.batch
    if batch is None:
        return []
    return [({"part": "join"}, batch.join_seconds), ({"part": "spark"}, max(0.0, batch.seconds - batch.join_seconds))]


METRICS = (
    Metric("watersmeet_info", "gauge", "The join that runs.", lambda p: [({"algorithm": p.algorithm or ""}, 1)]),
    Metric("watersmeet_rows_in_total", "counter", "Rows that reached the join.", lambda p: _by_input(p, p.rows_in)),
    Metric("watersmeet_rows_out_total", "counter", "Rows that the join has found.", lambda p: _one(p.rows_out)),
    Metric("watersmeet_elapsed_seconds", "gauge", "Time since the start.", lambda p: _one(p.elapsed)),
    Metric(
        "watersmeet_first_result_seconds",
        "gauge",
        "Time from the start to the first result.",
        lambda p: _one(p.first_result_after),
    ),
    Metric("watersmeet_memory_bytes", "gauge", "Bytes held in memory now.", lambda p: _one(p.memory)),
    Metric("watersmeet_memory_peak_bytes", "gauge", "The most bytes held at once.", lambda p: _one(p.peak)),
    Metric("watersmeet_memory_budget_bytes", "gauge", "Bytes that the user allowed.", lambda p: _one(p.budget)),
    Metric("watersmeet_spilled_bytes_total", "counter", "Bytes written to disk.", lambda p: _one(p.spilled)),
    Metric("watersmeet_disk_bytes", "gauge", "Bytes on disk now.", lambda p: _one(p.on_disk)),
    Metric("watersmeet_phase", "gauge", "1 for what the run is at.", lambda p: [({"phase": p.phase}, 1)]),
    Metric("watersmeet_done", "gauge", "1 once every result has been handed out.", lambda p: _one(int(p.done))),
    Metric("watersmeet_wait_seconds", "gauge", "How long results waited for the disk.", _waits),
    Metric(
        "watersmeet_owing_rows",
        "gauge",
        "Rows that have yet to meet what is on disk.",
        lambda p: _part(p.lateness, "owing"),
    ),
    Metric("watersmeet_late_rows_total", "counter", "Rows later than allowed.", lambda p: _by_input(p, p.late)),
    Metric("watersmeet_window_rows", "gauge", "Rows that windows remember.", lambda p: _one(p.window_rows)),
    Metric("watersmeet_reached", "gauge", "The newest time of an input.", lambda p: _by_input(p, p.reached)),
    Metric(
        "watersmeet_events_total",
        "counter",
        "What the join did how often.",
        lambda p: [({"event": name}, count) for name, count in p.events],
    ),
    Metric(
        "watersmeet_lookups_total",
        "counter",
        "Rows that a relation has answered.",
        lambda p: _part(p.lookup, "answered"),
    ),
    Metric(
        "watersmeet_lookup_hits_total",
        "counter",
        "Rows whose part of the relation was in memory.",
        lambda p: _part(p.lookup, "hits"),
    ),
    Metric(
        "watersmeet_lookup_misses_total",
        "counter",
        "Rows without a partner in the relation.",
        lambda p: _part(p.lookup, "misses"),
    ),
    Metric(
        "watersmeet_relation_read_bytes_total",
        "counter",
        "Bytes of the relation that were read.",
        lambda p: _part(p.lookup, "bytes_read"),
    ),
    Metric(
        "watersmeet_purged_rows_total",
        "counter",
        "Rows taken out of memory because of a promise.",
        lambda p: _by_input(p, getattr(p.promises, "purged", None)),
    ),
    Metric("watersmeet_batch", "gauge", "The last micro-batch on Spark.", lambda p: _part(p.batch, "number")),
    Metric("watersmeet_batch_seconds", "gauge", "The last micro-batch, Spark's and the join's part.", _batch),
)
"""All that is told; what does not concern a run is left out."""


def exposition(runs: Iterable[ShownRun]) -> str:
    r"""All runs.

    >>> from watersmeet.drivers.history import History
    >>> history = History()
    >>> history.add(Progress(('a "b"', "c"), (1, 2), rows_out=3))
    >>> print(*exposition([ShownRun("run-1", "a ⋈ c", history)]).splitlines()[4:8], sep="\n")
    # TYPE watersmeet_rows_in_total counter
    watersmeet_rows_in_total{run="run-1",title="a ⋈ c",input="a \"b\""} 1
    watersmeet_rows_in_total{run="run-1",title="a ⋈ c",input="c"} 2
    # HELP watersmeet_rows_out_total Rows that the join has found.
    """
    known = [(run, run.history.last) for run in runs]
    lines: list[str] = []
    for metric in METRICS:
        told = [line for run, last in known if last is not None for line in _lines(metric, run, last)]
        if told:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *told]
    return "".join(f"{line}\n" for line in lines)


def _lines(metric: Metric, run: ShownRun, progress: Progress) -> Iterator[str]:
    for labels, value in metric.values(progress):
        if value is not None:
            all_labels = {"run": run.key, "title": run.title, **labels}
            inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in all_labels.items())
            yield f"{metric.name}{{{inside}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
