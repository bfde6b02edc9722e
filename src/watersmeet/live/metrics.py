"""The newest sample of each run in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from watersmeet.drivers.progress import Progress
from watersmeet.live.board import ShownRun

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
