"""Sliding windows larger than memory: EWJ and AH-EWJ under bursty streams (thesis, chapters 3 and 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from experiments.model import Cell, Claim, Experiment, Measured, Panel, Results, Verdict
from experiments.papers import WINDOWS
from watersmeet.core.spec import Output, parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.drivers.cost_model import CostModel
from watersmeet.drivers.simulate import simulate
from watersmeet.joins.ah_ewj import AHEWJ, Shares
from watersmeet.joins.ewj import EWJ
from watersmeet.sources.schedules import Schedule
from watersmeet.sources.traces import bursty
from watersmeet.spill.store import MemoryStore
from watersmeet.state.window_rows import WindowCodec, WindowPlan
from watersmeet.state.window_table import window_row_bytes

PAPER = "Exact window joins"
_QUANTUM = 0.5
_PER_SECOND = 1_000_000


def run(
    scale: float, seed: int, join: str, rate: int, bias: float = WINDOWS.bias, memory: int | None = None
) -> Measured:
    """One run. The lengths of window and run, memory, keys and seeks are scaled: so rates mean what they do in full."""
    paper = WINDOWS.ewj if join == "ewj" else WINDOWS.ah_ewj
    seconds, keys = paper.seconds * scale, max(1000, int(WINDOWS.keys * scale))
    streams = [_stream(rate, seconds, bias, keys, paper.row, scale, 2 * seed + side) for side in (0, 1)]
    tables = [table for table, _ in streams]
    window = int(paper.window * scale * _PER_SECOND)
    spec = WindowJoinSpec(
        tables[0].schema, tables[1].schema, parse_on("key"), output=Output.PAIRS, window=parse_windows(window, "ts")
    )
    # Memory for as many rows as the thesis' memory holds: what an index and row numbers take comes on top.
    held = window_row_bytes(WindowPlan(replace(spec, output=Output.COUNTS), 0, WindowCodec(spec)).types) + 24
    rows_in_memory = (memory or paper.memory) / paper.row
    size = int(rows_in_memory * scale * held) + 60_000
    operator: EWJ | AHEWJ
    if join == "ewj":
        operator = EWJ(spec, size, MemoryStore())
    else:
        operator = AHEWJ(spec, size, MemoryStore(), shares=Shares(fresh=0.27))
    page_rows = operator.sizing.page_bytes / (held - 24)
    cost = CostModel().with_disk(
        seek=WINDOWS.seek * scale, latency=WINDOWS.latency * scale, bandwidth=WINDOWS.bandwidth,
        page=int(page_rows * paper.row),
    )  # fmt: skip
    # The thesis compares a row with all others of its partition: one of 60, or with EWJ the whole segment.
    chain = rows_in_memory / 2 / paper.partitions
    faster = {"comparison": cost.comparison / WINDOWS.faster, "move": cost.move / WINDOWS.faster}
    cost = replace(cost, hash=cost.hash / WINDOWS.faster, probe=chain * cost.comparison / WINDOWS.faster, **faster)
    schedule = Schedule(tables, [times for _, times in streams])
    trace = simulate(operator, schedule, cost=cost, wait=WINDOWS.wait * scale, quantum=_QUANTUM * scale, delays=True)
    assert trace.delays is not None
    rows = sum(table.num_rows for table in tables)
    at_end = int(trace.input_buffer[np.searchsorted(trace.time, trace.last_arrival, side="right") - 1])
    return Measured(
        {
            "delay": trace.delays.mean / scale,
            "delayed": operator.delayed / rows,
            "backlog": at_end / rows,
            "disk": float(trace.disk[-1]) / scale,
            "cpu": float(trace.cpu[-1]) / scale,
            "window": 2 * rate * paper.window * paper.row / (memory or paper.memory),
            "scans": float(operator.events["scans"]),
        },
        {"buffered": _sampled(trace.time / scale, trace.input_buffer / scale, paper.seconds)},
    )


def _stream(
    rate: int, seconds: float, bias: float, keys: int, width: int, scale: float, seed: int
) -> tuple[pa.Table, np.ndarray]:
    times, key = bursty(rate, seconds, bias, keys, most=max(64, int(WINDOWS.longest_interval * scale)), seed=seed)
    carried = pa.Array.from_buffers(
        pa.binary(width - 16), len(key), [None, pa.py_buffer(bytes(len(key) * (width - 16)))]
    )
    stamps = (times * _PER_SECOND).astype(np.int64)
    return pa.table({"key": key, "ts": stamps, "carried": carried}), times


def _sampled(time: np.ndarray, values: np.ndarray, end: float) -> tuple[np.ndarray, np.ndarray]:
    grid = np.linspace(0, end, 100)
    return grid, values[np.maximum(0, np.searchsorted(time, grid, side="right") - 1)].astype(np.float64)


def _cells(join: str, what: str, values: Sequence[float], **fixed: float) -> dict[str, Cell]:
    return {f"{join} {value}": Cell(run, join=join, **{what: value}, **fixed) for value in values}


_EWJ_RATES = _cells("ewj", "rate", WINDOWS.ewj.rates)
_EWJ_BIAS = _cells("ewj", "bias", WINDOWS.biases, rate=WINDOWS.ewj.rate)
_AH_RATES = _cells("ah_ewj", "rate", WINDOWS.ah_ewj.rates)
_AH_BIAS = _cells("ah_ewj", "bias", WINDOWS.biases, rate=WINDOWS.ah_ewj.rate)
_AH_MEMORY = _cells("ah_ewj", "memory", WINDOWS.memories, rate=WINDOWS.ah_ewj.rate)


def _bounded(results: Results, cells: dict[str, Cell], below: int) -> Verdict:
    backlog = {cell: results.median(cell, "backlog") for cell in cells}
    rates = {cell: int(cell.rpartition(" ")[2]) for cell in cells}
    kept = [share for cell, share in backlog.items() if rates[cell] <= below]
    return Verdict(max(kept) < 0.02, "; ".join(f"{rates[cell]}/s: {share:.1%} wait" for cell, share in backlog.items()))


def _delayed(results: Results, cell: str, most: float) -> Verdict:
    share = results.spread(cell, "delayed")
    return Verdict(share.median <= most, f"{share:.2%}")


def _rises(results: Results, cells: dict[str, Cell], value: str, form: str = ".3g") -> Verdict:
    each = [results.median(cell, value) for cell in cells]
    return Verdict(each[-1] > each[0], " to ".join(format(one, form) for one in (each[0], each[-1])))


def _falls(results: Results, cells: dict[str, Cell], value: str) -> Verdict:
    rising = _rises(results, cells, value)
    return Verdict(not rising.holds, rising.measured)


def _panels(cells: dict[str, Cell], xs: Sequence[float], x: str) -> Callable[[Results], Sequence[Panel]]:
    def panels(results: Results) -> list[Panel]:
        named = {"delay": "mean delay, s", "delayed": "share of rows", "cpu": "CPU time, s", "disk": "disk time, s"}
        join = next(iter(cells)).split()[0]
        return [Panel(value, x, label, {join: results.sweep(xs, list(cells), value)}) for value, label in named.items()]

    return panels


EXPERIMENTS = [
    Experiment(
        "ewj-rate",
        "figures 3.4-3.8",
        PAPER,
        "EWJ: rates",
        _EWJ_RATES,
        [
            Claim("buffer-bounded", "Up to 250 rows a second hardly any rows wait at the end.", "bounded to 250/s",
                  lambda results: _bounded(results, _EWJ_RATES, 250)),
            Claim("few-delayed", "At 200 rows a second less than 0.4% of the rows are delayed.", "under 0.4%",
                  lambda results: _delayed(results, "ewj 200", 0.004)),
            Claim("cpu-bound", "Disk time is a small part of the time at 200 rows a second.", "CPU-bound",
                  lambda results: Verdict(results.median("ewj 200", "disk") < 0.2 * results.median("ewj 200", "cpu"),
                                          f"disk {results.spread('ewj 200', 'disk'):.3g} s, CPU "
                                          f"{results.spread('ewj 200', 'cpu'):.3g} s")),
        ],
        _panels(_EWJ_RATES, WINDOWS.ewj.rates, "rows per second"),
    ),
    Experiment(
        "ewj-bias",
        "figures 3.9, 3.10",
        PAPER,
        "EWJ: bursts",
        _EWJ_BIAS,
        [
            Claim("delay-rises", "Burstier arrivals lengthen the delay.", "it rises",
                  lambda results: _rises(results, _EWJ_BIAS, "delay")),
            Claim("delayed-rise", "Burstier arrivals delay more rows.", "they rise",
                  lambda results: _rises(results, _EWJ_BIAS, "delayed", ".2%")),
        ],
        _panels(_EWJ_BIAS, WINDOWS.biases, "bias b"),
    ),
    Experiment(
        "ahewj-rate",
        "figures 5.6-5.12, AH-EWJ's part",
        PAPER,
        "AH-EWJ: rates",
        _AH_RATES,
        [
            Claim("holds-to-1600", "Up to 1,600 rows a second of each input hardly any rows wait at the end.",
                  "holds to 1,600/s and more", lambda results: _bounded(results, _AH_RATES, 1600)),
            Claim("few-delayed", "At 1,400 rows a second about 0.05% of the rows are delayed.", "0.05%",
                  lambda results: _delayed(results, "ah_ewj 1400", 0.001)),
            Claim("some-delayed", "At 1,600 rows a second about 0.1% of the rows are delayed.", "about 0.1%",
                  lambda results: _delayed(results, "ah_ewj 1600", 0.002)),
        ],
        _panels(_AH_RATES, WINDOWS.ah_ewj.rates, "rows per second"),
        key=True,
    ),
    Experiment(
        "ahewj-bias",
        "figures 5.14-5.16, AH-EWJ's part",
        PAPER,
        "AH-EWJ: bursts",
        _AH_BIAS,
        [Claim("keeps-up", "AH-EWJ keeps up with the burstiest arrivals.", "far ahead of RPWJ as b grows",
               lambda results: Verdict(all(results.median(cell, "backlog") < 0.02 for cell in _AH_BIAS),
                                       "; ".join(f"{cell.split()[1]}: {results.median(cell, 'delay'):.3g} s" for cell in
                                                 _AH_BIAS)))],
        _panels(_AH_BIAS, WINDOWS.biases, "bias b"),
    ),
    Experiment(
        "ahewj-memory",
        "figure 5.17",
        PAPER,
        "AH-EWJ: memory",
        _AH_MEMORY,
        [Claim(f"{value}-falls", f"More memory means less {word}.", "it falls",
               partial(_falls, cells=_AH_MEMORY, value=value))
         for value, word in (("delay", "delay"), ("cpu", "CPU time"), ("disk", "disk time"))],
        _panels(_AH_MEMORY, [memory / 1e6 for memory in WINDOWS.memories], "memory, MB"),
    ),
]  # fmt: skip
