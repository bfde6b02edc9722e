"""What a simulated run looked like: results, memory, waiting rows and disk pages over virtual time.

A run of millions of steps is kept as a few thousand samples. Each sample is exact at its own time; thinning only
decides which ones stay, so a curve read from a trace is a staircase with fewer steps, never a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.core import html
from watersmeet.core.cost import Cost
from watersmeet.core.delays import Delays
from watersmeet.core.errors import SpecError
from watersmeet.drivers.thinning import Thinned
from watersmeet.memory import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHADES = {"reactive": "#f4c27a", "clean-up": "#b9c6d8"}


class Sample(NamedTuple):
    """The state of a run at one moment; counts are of all that was done so far."""

    time: float
    results: int
    memory: int
    input_buffer: int
    pages_read: int
    pages_written: int
    seeks: int
    cpu: float
    disk: float
    phase: str


@dataclass(frozen=True, eq=False)
class Trace:
    """The curve of a run, and the numbers that papers compare.

    >>> recorder = Recorder(last_arrival=2.0)
    >>> for time, results in [(0.0, 0), (1.0, 3), (2.5, 4)]:
    ...     recorder.add(Sample(time, results, 100, 0, 0, 0, 0, time, 0.0, "arriving"))
    >>> trace = recorder.finish(Cost(results=4), peak_memory=100)
    >>> trace.total, trace.online, trace.online_share, trace.results_at(1.9), trace.time_of(0.5), trace.first_result
    (4, 3, 0.75, 3, 1.0, 1.0)
    """

    time: npt.NDArray[np.float64]
    """Virtual seconds of the samples, as are `cpu` and `disk`; the other arrays go along with it."""
    results: npt.NDArray[np.int64]
    memory: npt.NDArray[np.int64]
    """Bytes reserved on the operator's budget."""
    input_buffer: npt.NDArray[np.int64]
    """Rows that had arrived while the operator was busy, and still waited to be handed over."""
    pages_read: npt.NDArray[np.int64]
    pages_written: npt.NDArray[np.int64]
    seeks: npt.NDArray[np.int64]
    cpu: npt.NDArray[np.float64]
    disk: npt.NDArray[np.float64]
    phase: npt.NDArray[np.str_]
    cost: Cost
    """All the work that was counted."""
    last_arrival: float
    """When the last row of any input arrived."""
    online: int
    """Results delivered before the last row arrived; exact, not read from the samples."""
    first_result: float | None
    """When the first result was delivered; None if there is no result."""
    peak_memory: int
    """The most bytes that were ever reserved, within steps too."""
    peak_input_buffer: int
    overflow: float | None = None
    """When more rows waited than the input buffer was said to have room for; None if that never happened."""
    batches: Sequence[pa.RecordBatch] = field(default=(), repr=False)
    """The output, if it was asked for."""
    delays: Delays | None = field(default=None, repr=False)
    """How long after its later row had arrived each result came, if that was asked for."""

    @property
    def total(self) -> int:
        """All results of the join."""
        return self.cost.results

    @property
    def end(self) -> float:
        """When the operator was done."""
        return float(self.time[-1])

    @property
    def online_share(self) -> float:
        """The part of all results that was delivered before the last row arrived; 1 if there are none at all."""
        return self.online / self.total if self.total else 1.0

    def results_at(self, time: float) -> int:
        """How many results had been delivered by then, to the resolution of the samples."""
        seen = int(np.searchsorted(self.time, time, side="right"))
        return int(self.results[seen - 1]) if seen else 0

    def time_of(self, share: float) -> float:
        """When this share of all results was delivered, to the resolution of the samples; NaN if there are none."""
        if not 0.0 < share <= 1.0:
            raise SpecError(f"share={share!r} is not a part of the results; give a number above 0 and up to 1")
        if not self.total:
            return float("nan")
        enough = np.ceil(share * self.total - 1e-9)  # a share such as 0.1 is a hair more than a tenth
        return float(self.time[np.searchsorted(self.results, enough, side="left")])

    def table(self) -> pa.Table:
        """The samples, one row each."""
        columns = {name: pa.array(getattr(self, name)) for name in Sample._fields if name != "phase"}
        return pa.table({**columns, "phase": pa.array(self.phase.tolist(), pa.string())})

    def plot(self, path: str | Path | None = None, ax: Axes | None = None) -> Figure:
        """Results over time with the phases shaded, memory below; with `ax`, the upper part alone into these axes."""
        if ax is None:
            figure, (upper, lower) = _figure(rows=2)
            lower.step(self.time, self.memory / 2**20, where="post", color="#5b7f95", linewidth=1)
            lower.set_ylabel("memory, MiB")
            lower.set_ylim(bottom=0)
            lower.set_xlabel("virtual seconds")
        else:
            figure, upper = cast("Figure", ax.figure), ax
        across = upper.get_xaxis_transform()
        for phase, shade in _SHADES.items():
            spans = self._spans(phase)
            if spans:
                upper.broken_barh(spans, (0, 1), transform=across, color=shade, alpha=0.5, lw=0, label=phase)
        upper.step(self.time, self.results, where="post", color="#1f4e79", label="results")
        if self.time[0] <= self.last_arrival <= self.end:
            upper.axvline(self.last_arrival, color="#888888", linestyle=":", linewidth=1, label="last row arrived")
        _finish_results_axes(upper)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure

    def _spans(self, phase: str) -> list[tuple[float, float]]:
        """Begin and length of each stretch of time in this phase; a sample's phase lasts until the next sample."""
        inside = np.concatenate(([False], self.phase[:-1] == phase, [False]))
        edges = self.time[np.flatnonzero(inside[1:] != inside[:-1])]
        return [(float(begin), float(end - begin)) for begin, end in edges.reshape(-1, 2)]

    def __str__(self) -> str:
        first = "none" if self.first_result is None else f"first after {_seconds(self.first_result)}"
        lines = [
            f"{self.total:,} results in {_seconds(self.end)} ({first}; {self.online_share:.1%} online, that is before "
            f"{_seconds(self.last_arrival)})",
            f"peaks: memory {format_bytes(self.peak_memory)}, input buffer {self.peak_input_buffer:,} rows; "
            f"busy: CPU {_seconds(float(self.cpu[-1]))}, disk {_seconds(float(self.disk[-1]))}",
            "",
            f"{'time':>10} {'results':>13} {'share':>6} {'memory':>10} {'buffer':>8} {'read':>8} {'written':>8}  phase",
        ]
        moments = np.linspace(0.0, self.end, 11)
        for moment, i in zip(moments, np.searchsorted(self.time, moments, side="right") - 1, strict=True):
            share = f"{self.results[i] / self.total:.0%}" if self.total else "-"
            lines.append(
                f"{_seconds(moment):>10} {self.results[i]:>13,} {share:>6} {format_bytes(float(self.memory[i])):>10} "
                f"{self.input_buffer[i]:>8,} {self.pages_read[i]:>8,} {self.pages_written[i]:>8,}  {self.phase[i]}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """What a notebook shows of it: results and memory over time, the phases shaded, and the numbers."""
        times = self.time.tolist()
        shades = [(begin, begin + length, phase) for phase in _SHADES for begin, length in self._spans(phase)]
        last = {self.last_arrival: "the last row arrived"}
        first = "none" if self.first_result is None else f"the first after {_seconds(self.first_result)}"
        numbers = [
            ("results", f"{self.total:,}, {first}"),
            ("online", f"{self.online_share:.1%}, before the last row arrived at {_seconds(self.last_arrival)}"),
            ("the end", _seconds(self.end)),
            ("peaks", f"memory {format_bytes(self.peak_memory)}, input buffer {self.peak_input_buffer:,} rows"),
            ("disk", f"{self.pages_read[-1]:,} pages read, {self.pages_written[-1]:,} written"),
        ]
        return (
            html.curve(times, self.results.tolist(), "results", unit="virtual s", shades=shades, marks=last)
            + html.curve(times, (self.memory / 2**10).tolist(), "KiB of memory", unit="virtual s", marks=last)
            + html.table(numbers)
        )


class Recorder:
    """Takes the samples of a run one by one and keeps at most `capacity` of them, as `thinning` does.

    Of two, the one with the fuller input buffer stays, and so does its peak.
    """

    def __init__(self, last_arrival: float, capacity: int = 4096, buffer_rows: int | None = None) -> None:
        self._last_arrival = last_arrival
        self._thinned: Thinned[Sample] = Thinned(capacity, _fuller)
        self._online = 0
        self._first_result: float | None = None
        self._peak_input_buffer = 0
        self._buffer_rows = buffer_rows
        self._overflow: float | None = None

    def add(self, sample: Sample) -> None:
        """Take note of a moment; nothing is kept if only the time is new."""
        last = self._thinned.last
        if last is not None and sample[1:] == last[1:]:
            return
        if sample.results and self._first_result is None:
            self._first_result = sample.time
        if sample.time < self._last_arrival:
            self._online = sample.results
        self._peak_input_buffer = max(self._peak_input_buffer, sample.input_buffer)
        if self._overflow is None and self._buffer_rows is not None and sample.input_buffer > self._buffer_rows:
            self._overflow = sample.time
        self._thinned.add(sample)

    def finish(
        self, cost: Cost, peak_memory: int, batches: Sequence[pa.RecordBatch] = (), delays: Delays | None = None
    ) -> Trace:
        """The trace of all that was added."""
        last = self._thinned.last
        if last is None:
            raise SpecError("a trace needs at least one sample")
        self._thinned.keep_candidate()
        kept = self._thinned.kept
        if kept[-1] is not last:
            kept.append(last)
        columns = dict(zip(Sample._fields, map(np.array, zip(*kept, strict=True)), strict=True))
        return Trace(
            **columns,
            cost=cost,
            last_arrival=self._last_arrival,
            online=self._online,
            first_result=self._first_result,
            peak_memory=peak_memory,
            peak_input_buffer=self._peak_input_buffer,
            overflow=self._overflow,
            batches=batches,
            delays=delays,
        )


def _fuller(earlier: Sample, later: Sample) -> Sample:
    return earlier if earlier.input_buffer > later.input_buffer else later


def plot_traces(traces: Mapping[str, Trace], path: str | Path | None = None) -> Figure:
    """Several runs in one picture: results over time, one line for each label."""
    figure, (ax,) = _figure(rows=1)
    for label, trace in traces.items():
        ax.step(trace.time, trace.results, where="post", label=label, linewidth=1.3)
    ax.set_xlabel("virtual seconds")
    _finish_results_axes(ax)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _figure(rows: int) -> tuple[Figure, Sequence[Any]]:
    """A figure of its own: pyplot would want a display and would keep the figure alive."""
    from matplotlib.figure import Figure  # takes longer to import than most runs that are never drawn

    figure = Figure(figsize=(7.5, 4.8 if rows > 1 else 4.0), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False, height_ratios=[3, 1][:rows])
    return figure, list(axes[:, 0])


def _finish_results_axes(ax: Axes) -> None:
    ax.set_ylabel("results")
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="best", frameon=False, fontsize="small")


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 1000 else f"{value:.4g} s"
