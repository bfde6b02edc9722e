"""A stream and a relation on disk: MESHJOIN beside the partitioned join, by range and by hash (thesis, chapter 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa

from experiments.hybrid_stream import bursty_keys
from experiments.model import Cell, Claim, Experiment, Line, Measured, Panel, Results, Verdict, always
from experiments.papers import HYBRID
from watersmeet.core.lookup import LookupSpec, lookup_conditions
from watersmeet.core.spec import Output
from watersmeet.drivers.cost_model import CostModel
from watersmeet.drivers.simulate import simulate
from watersmeet.joins.meshjoin import MeshJoin
from watersmeet.joins.partitioned import Partitioned
from watersmeet.sources.schedules import Schedule
from watersmeet.spill.store import MemoryStore
from watersmeet.state.relation_changes import StoredRelation

PAPER = "Hybrid joins"
JOINS = ("meshjoin", "range", "hash")
_NEVER = 1e9
"""The thesis's joins do nothing in a silence: they wait for their buffers to fill."""
_QUANTUM = 0.1


def _rows(keys: np.ndarray, width: int) -> pa.Table:
    """Rows of a key and something to carry."""
    carried = pa.Array.from_buffers(
        pa.binary(width - 8), len(keys), [None, pa.py_buffer(bytes(len(keys) * (width - 8)))]
    )
    return pa.table({"key": pa.array(keys), "carried": carried})


def _keys(scale: float) -> int:
    return max(1000, int(HYBRID.keys * scale))


@cache
def _relation(scale: float, partition: str) -> StoredRelation:
    rows = max(1000, int(HYBRID.relation_bytes * scale) // HYBRID.relation_row)
    keys = np.random.default_rng(6).integers(0, _keys(scale), rows)
    design = {"theta": max(2000, int(HYBRID.segment * scale)), "partition": partition}
    if partition == "hash":
        design["partitions"] = HYBRID.buckets
    return StoredRelation.in_memory(_rows(keys, HYBRID.relation_row), ("key",), memory=2 << 30, **design)


def run(
    scale: float,
    seed: int,
    join: str,
    rate: int = HYBRID.rate,
    memory: int = HYBRID.memory,
    bias: float = HYBRID.bias,
) -> Measured:
    """One run. Sizes, keys, the run's length and the disk's seeks are scaled: so rates mean what they do in full."""
    seconds = HYBRID.seconds * scale
    times, keys = bursty_keys(
        int(rate * seconds), seconds, _keys(scale), bias, HYBRID.quadrants,
        max(64, int(HYBRID.longest_interval * scale)), seed,
    )  # fmt: skip
    stream = _rows(keys, HYBRID.stream_row)
    relation = _relation(scale, "hash" if join == "hash" else "range")
    spec = LookupSpec(stream.schema, relation.schema, lookup_conditions("key", relation.on), output=Output.COUNTS)
    size, store = int(memory * scale), MemoryStore()
    cost = CostModel().with_disk(
        seek=HYBRID.seek * scale, latency=HYBRID.latency * scale, bandwidth=HYBRID.bandwidth, page=HYBRID.page_bytes
    )
    operator: MeshJoin | Partitioned
    if join == "meshjoin":
        operator = MeshJoin(spec, size, store, relation.reading())
        # A table of 89 buckets over the whole queue: every row of the relation is compared with a chain that long.
        chain = operator.capacity / (HYBRID.buckets * scale)
        cost = replace(cost, probe=chain * cost.comparison)
    else:
        operator = Partitioned(
            spec, size, store, relation.reading(), wait=HYBRID.wait_share,
            n_invoke=max(2, int(HYBRID.n_invoke * scale)), r_wb=HYBRID.r_wb, rho=HYBRID.rho, alpha=HYBRID.alpha,
            max_delay=None,
        )  # fmt: skip
    trace = simulate(operator, Schedule([stream], [times]), cost=cost, wait=_NEVER, quantum=_QUANTUM)
    # Rows that came while the operator was busy waited before it knew of them: their number over time, by Little's law.
    outside = float(np.sum(trace.input_buffer[:-1] * np.diff(trace.time))) / max(1, len(keys))
    at_end = int(trace.input_buffer[np.searchsorted(trace.time, trace.last_arrival, side="right") - 1])
    figures = operator.figures()
    return Measured(
        {
            "delay": operator.answers.delays.mean + outside,
            "disk": float(trace.disk[-1]) / scale,
            "cpu": float(trace.cpu[-1]) / scale,
            "backlog": at_end / max(1, len(keys)),
            "from memory": figures["hits"] / max(1, len(keys)),
            "pairs": float(trace.total),
        },
        {"buffered": _sampled(trace.time / scale, trace.input_buffer / scale, HYBRID.seconds)},
    )


def _sampled(time: np.ndarray, values: np.ndarray, end: float) -> tuple[np.ndarray, np.ndarray]:
    grid = np.linspace(0, end, 100)
    return grid, values[np.maximum(0, np.searchsorted(time, grid, side="right") - 1)].astype(np.float64)


def _name(join: str, **what: object) -> str:
    return " ".join([join, *(str(value) for value in what.values())])


_RATES = {_name(join, rate=rate): Cell(run, join=join, rate=rate) for join in JOINS for rate in HYBRID.rates}
_MEMORY = {
    _name(join, memory=memory // 10**6): Cell(run, join=join, memory=memory)
    for join in JOINS
    for memory in HYBRID.memories
}
_BIAS = {_name(join, bias=bias): Cell(run, join=join, bias=bias) for join in JOINS for bias in HYBRID.biases}


def _tenfold(results: Results) -> Verdict:
    ratios = {
        f"{join} at {rate}/s": results.ratio(f"meshjoin {rate}", f"{join} {rate}", "delay").median
        for join in ("range", "hash")
        for rate in HYBRID.rates
    }
    verdict = always("tenfold", {case: ratio >= 10 for case, ratio in ratios.items()})
    least, most = min(ratios.values()), max(ratios.values())
    return Verdict(verdict.holds, f"{least:.3g} to {most:.3g} times; {verdict.measured}")


def _saturates(results: Results) -> Verdict:
    backlog = {rate: results.median(f"meshjoin {rate}", "backlog") for rate in HYBRID.rates}
    kept = [rate for rate, share in backlog.items() if share < 0.02]
    lost = [rate for rate, share in backlog.items() if share >= 0.02]
    others = max(results.median(f"{join} {rate}", "backlog") for join in ("range", "hash") for rate in HYBRID.rates)
    holds = bool(kept and lost) and max(kept) <= 1500 and min(lost) <= 1500 and others < 0.02
    text = f"keeps up to {max(kept, default=0)}/s, not at {min(lost, default=0)}/s"
    return Verdict(holds, f"{text}; the others fall behind by {others:.1%} at most")


def _disk(results: Results) -> Verdict:
    ratios = {rate: results.ratio(f"range {rate}", f"hash {rate}", "disk").median for rate in HYBRID.rates}
    return Verdict(
        all(ratio <= 0.2 for ratio in ratios.values()),
        f"{min(ratios.values()):.2f} to {max(ratios.values()):.2f} of it",
    )


def _cpu(results: Results) -> Verdict:
    least = {
        f"{rate}/s": results.median(f"range {rate}", "cpu")
        <= min(results.median(f"{join} {rate}", "cpu") for join in JOINS)
        for rate in HYBRID.rates
    }
    return always("range least", least)


def _falls(results: Results, cells: Sequence[str]) -> bool:
    delays = [results.median(cell, "delay") for cell in cells]
    return delays[-1] < delays[0]


def _trend(results: Results, cells: Sequence[str]) -> str:
    return " to ".join(f"{results.median(cell, 'delay'):.3g}" for cell in (cells[0], cells[-1])) + " s"


def _memory_cells(join: str) -> list[str]:
    return [_name(join, memory=memory // 10**6) for memory in HYBRID.memories]


def _bias_cells(join: str) -> list[str]:
    return [_name(join, bias=bias) for bias in HYBRID.biases]


def _rate_panels(results: Results) -> list[Panel]:
    def lines(value: str) -> dict[str, Line]:
        return {join: results.sweep(HYBRID.rates, [f"{join} {rate}" for rate in HYBRID.rates], value) for join in JOINS}

    return [
        Panel("delay", "rows per second", "mean delay, s", lines("delay"), log_y=True),
        Panel("disk", "rows per second", "disk time, s", lines("disk"), log_y=True),
        Panel("processor", "rows per second", "CPU time, s", lines("cpu"), log_y=True),
    ]


EXPERIMENTS = [
    Experiment(
        "hybrid-rate",
        "figures 6.5-6.11",
        PAPER,
        "A stream and a relation: rates",
        _RATES,
        [
            Claim("tenfold-response", "Both partitioned joins answer at least ten times sooner than MESHJOIN.",
                  "an order of magnitude", _tenfold),
            Claim("mesh-saturates", "MESHJOIN stops keeping up at 1,000 to 1,500 rows per second, the others do not.",
                  "near 1,200-1,500/s", _saturates),
            Claim("range-disk", "Partitions by range need about a tenth of the disk time of partitions by hash.",
                  "an order of magnitude less", _disk),
            Claim("range-cpu", "Partitions by range need the least CPU time.", "least", _cpu),
        ],
        _rate_panels,
        key=True,
    ),
    Experiment(
        "hybrid-memory",
        "figure 6.12",
        PAPER,
        "A stream and a relation: memory",
        _MEMORY,
        [
            Claim("partitioned-falls", "More memory shortens the delay of both partitioned joins.", "it falls",
                  lambda results: Verdict(all(_falls(results, _memory_cells(join)) for join in JOINS[1:]),
                                          "; ".join(_trend(results, _memory_cells(join)) for join in JOINS[1:]))),
            Claim("mesh-rises", "More memory lengthens the delay of MESHJOIN.", "it rises",
                  lambda results: Verdict(not _falls(results, _memory_cells("meshjoin")),
                                          _trend(results, _memory_cells("meshjoin")))),
        ],
        lambda results: [
            Panel("delay", "memory, MB", "mean delay, s", {
                join: results.sweep([m / 1e6 for m in HYBRID.memories], _memory_cells(join), "delay") for join in JOINS
            }, log_y=True)
        ],
    ),
    Experiment(
        "hybrid-bias",
        "figure 6.13",
        PAPER,
        "A stream and a relation: bursts",
        _BIAS,
        [
            Claim("mesh-rises", "Burstier arrivals lengthen the delay of MESHJOIN.", "it rises",
                  lambda results: Verdict(not _falls(results, _bias_cells("meshjoin")),
                                          _trend(results, _bias_cells("meshjoin")))),
            Claim("range-falls", "Burstier arrivals shorten the delay of partitions by range.", "it falls",
                  lambda results: Verdict(_falls(results, _bias_cells("range")),
                                          _trend(results, _bias_cells("range")))),
        ],
        lambda results: [
            Panel("delay", "bias b", "mean delay, s", {
                join: results.sweep(HYBRID.biases, _bias_cells(join), "delay") for join in JOINS
            }, log_y=True)
        ],
    ),
]  # fmt: skip
