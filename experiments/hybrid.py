"""A stream and a relation on disk: MESHJOIN beside the partitioned join, by range and by hash (thesis, chapter 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from experiments.model import Cell, Claim, Experiment, Line, Measured, Panel, Results, Verdict, always
from experiments.papers import HYBRID
from watersmeet.core.delays import Delays
from watersmeet.core.lookup import LookupSpec, lookup_conditions
from watersmeet.core.protocol import Step
from watersmeet.core.spec import Output
from watersmeet.drivers.cost_model import CostModel
from watersmeet.drivers.simulate import simulate
from watersmeet.engine.lookup_answers import MappedIndex
from watersmeet.engine.lookup_operator import LookupJoin
from watersmeet.engine.lookup_shell import LookupSizing
from watersmeet.joins.lookup.meshjoin import RING_BYTES, MeshJoin, MeshUnit
from watersmeet.joins.lookup.partitioned import Partitioned
from watersmeet.records.plan import RowPlan
from watersmeet.relation.changes import StoredRelation
from watersmeet.sources.schedules import Schedule
from watersmeet.sources.traces import bursty
from watersmeet.spill.store import MemoryStore
from watersmeet.tables.hash_table import row_bytes

PAPER = "Hybrid joins"
JOINS = ("meshjoin", "range", "hash")
_NEVER = 1e9
"""The thesis's joins do nothing in a silence: they wait for their buffers to fill."""
_NOTABLE = 0.05
"""By so much a delay has to change at least to be called another one."""
_QUANTUM = 1.0
"""Seconds, at full scale and no less than a tenth of that, within which rows are handed over together."""


def _rows(keys: np.ndarray, width: int) -> pa.Table:
    """Rows of a key and something to carry."""
    carried = pa.Array.from_buffers(
        pa.binary(width - 8), len(keys), [None, pa.py_buffer(bytes(len(keys) * (width - 8)))]
    )
    return pa.table({"key": pa.array(keys), "carried": carried})


def _keys(scale: float) -> int:
    return max(1000, int(HYBRID.keys * scale))


@cache
def _relation(scale: float, partition: str, segment: int, drawn: float) -> StoredRelation:
    """Of keys from all over, or drawn like a stream of which so large a share goes to one half of the keys."""
    rows = max(1000, int(HYBRID.relation_bytes * scale) // HYBRID.relation_row)
    if drawn:
        _, keys = bursty(rows, 1.0, 0.5, _keys(scale), HYBRID.quarters(drawn), rows, 6)
    else:
        keys = np.random.default_rng(6).integers(0, _keys(scale), rows)
    design = {"theta": max(2000, int(segment * scale)), "partition": partition}
    if partition == "hash":
        design["partitions"] = HYBRID.buckets
    return StoredRelation.in_memory(_rows(keys, HYBRID.relation_row), ("key",), memory=2 << 30, **design)


class _TimedMesh(MeshJoin):
    """MESHJOIN, and how long after a row's arrival each of its results came: they come one by one, during a scan."""

    def __init__(self, *args: Any) -> None:
        self.result_delays = Delays()
        super().__init__(*args)

    def _read_next(self, skip: int = 0) -> MeshUnit:
        unit = super()._read_next(skip)
        return _TimedUnit(self, unit._index, unit.widest, skip)


class _TimedUnit(MeshUnit):
    def __init__(self, join: _TimedMesh, index: MappedIndex, widest: int, skip: int) -> None:
        super().__init__(join, index, widest, skip)
        self._timed = join

    def _settle_pairs(self, rows: np.ndarray, numbers: np.ndarray) -> pa.RecordBatch | None:
        held = self._timed._numbers[numbers & (len(self._timed._hashes) - 1)]
        self._timed.result_delays.add(self._answers.now - self._timed._table.ticks(held))
        return super()._settle_pairs(rows, numbers)


class _Measuring:
    """An operator whose delays are counted from some time on."""

    def __init__(self, operator: _TimedMesh | Partitioned, begin: float) -> None:
        self._operator = operator
        self._begin = begin
        self._begun = False
        self.hits = 0
        """Before that time."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)

    @property
    def delays(self) -> Delays:
        """Of results: a partitioned join has all of a row's results at once."""
        operator = self._operator
        return operator.result_delays if isinstance(operator, _TimedMesh) else operator.answers.delays

    def poll(self, now: float, fuel: int) -> Step:
        """As the operator does."""
        if not self._begun and now >= self._begin:
            self._begun = True
            self._operator.answers.delays = Delays()
            if isinstance(self._operator, _TimedMesh):
                self._operator.result_delays = Delays()
            self.hits = self._operator.hits
        return self._operator.poll(now, fuel)


def _operator(
    join: str, scale: float, memory: int, relation: StoredRelation, spec: LookupSpec
) -> _TimedMesh | Partitioned:
    """A join that has room for as many tuples as the thesis's.

    The thesis's sizes are those of the tuples alone. What tables and buffers need beside them comes on top, so that
    each join here holds as many tuples as there.
    """
    reader, store = relation.reading(), MemoryStore()
    width = row_bytes(RowPlan(spec.pairs, 0, exact_hash=False).types)
    read = int(relation.latest.rows.mean()) * HYBRID.relation_row / scale
    if join == "meshjoin":
        rows = int((memory - read) * scale) // HYBRID.stream_row
        room = rows * width + (RING_BYTES << rows.bit_length())
        return _TimedMesh(spec, _with_buffers(MeshJoin, spec, relation, room), store, reader)
    wait = int(HYBRID.wait_buffer * scale) // HYBRID.stream_row * width
    tuples = relation.rows * HYBRID.relation_row
    kept = int((memory - HYBRID.wait_buffer - read) * scale / tuples * relation.nbytes)
    size = _with_buffers(Partitioned, spec, relation, wait + kept)
    return Partitioned(
        spec, size, store, reader, wait=wait / size, n_invoke=max(2, int(HYBRID.n_invoke * scale)),
        r_wb=HYBRID.r_wb, rho=HYBRID.rho, alpha=HYBRID.alpha, max_delay=None,
    )  # fmt: skip


def _with_buffers(kind: type[LookupJoin], spec: LookupSpec, relation: StoredRelation, room: int) -> int:
    """A budget that leaves so much room to what a join of this kind keeps."""
    least = kind.least_memory(spec, relation.reader)
    size = least + room
    for _ in range(8):
        buffers = LookupSizing.divide(size - least, relation.latest).total
        size = least + room + buffers - LookupSizing.divide(0, relation.latest).total
    return size


def run(
    scale: float,
    seed: int,
    join: str,
    rate: int = HYBRID.rate,
    memory: int = HYBRID.memory,
    bias: float = HYBRID.bias,
    segment: int = HYBRID.segment,
    low: float = HYBRID.low,
    faster: float = HYBRID.faster,
    drawn: float | None = None,
) -> Measured:
    """One run. Sizes, keys, the run's length and the disk's seeks are scaled: so rates mean what they do in full.

    The relation is drawn by the technique by which the stream is, as in section 6.4.1, with the same shares: where many
    rows of the stream have their keys, the relation has many, too. With `drawn` it has other shares; 0: its keys are
    from all over.
    """
    seconds, begin = HYBRID.seconds * scale, HYBRID.warm_up * scale
    most = max(64, int(HYBRID.longest_interval * scale))
    times, keys = bursty(rate, seconds, bias, _keys(scale), HYBRID.quarters(low), most, seed)
    stream = _rows(keys, HYBRID.stream_row)
    relation = _relation(scale, "hash" if join == "hash" else "range", segment, low if drawn is None else drawn)
    spec = LookupSpec(stream.schema, relation.schema, lookup_conditions("key", relation.on), output=Output.COUNTS)
    # Each read is counted as one access: where a segment is longer than what lies side by side it takes more.
    accesses = max(1.0, float(np.ceil(relation.latest.nbytes.mean() / scale / HYBRID.basic_window)))
    cost = CostModel().with_disk(
        seek=HYBRID.seek * scale * accesses, latency=HYBRID.latency * scale * accesses,
        bandwidth=HYBRID.bandwidth, page=HYBRID.page_bytes,
    )  # fmt: skip
    operator = _operator(join, scale, memory, relation, spec)
    if isinstance(operator, MeshJoin):
        # A table of 89 buckets over the whole queue: every row of the relation is compared with a chain that long.
        chain = operator.capacity / (HYBRID.buckets * scale)
    else:
        # Section 6.4.2: rows of the stream and a segment of the relation are joined by nested loops.
        chain = float(relation.latest.rows.mean()) / scale
    cost = replace(cost, probe=chain * cost.comparison).faster(faster)
    measuring = _Measuring(operator, begin)
    watched: Any = measuring
    trace = simulate(watched, Schedule([stream], [times]), cost=cost, wait=_NEVER, quantum=_QUANTUM * max(0.1, scale))
    first = int(np.searchsorted(trace.time, begin))
    last = int(np.searchsorted(trace.time, trace.last_arrival, side="right")) - 1
    rows = max(1, int(np.count_nonzero(times >= begin)))
    # Rows that came while the operator was busy waited before it knew of them: their number over time, by Little's law.
    outside = float(np.sum(trace.input_buffer[first:-1] * np.diff(trace.time[first:]))) / rows
    disk, cpu = (float(series[-1] - series[max(0, first - 1)]) / scale for series in (trace.disk, trace.cpu))
    return Measured(
        {
            "delay": (measuring.delays.mean + outside) / scale,
            "disk": disk,
            "cpu": cpu,
            "system": disk + cpu,
            "backlog": int(trace.input_buffer[last]) / max(1, len(keys)),
            "processed": (len(keys) - int(trace.input_buffer[last])) / scale,
            "from memory": (operator.hits - measuring.hits) / rows,
            "pairs": float(trace.total),
        },
        {"buffered": _sampled(trace.time / scale, trace.input_buffer / scale, HYBRID.seconds)},
    )


def _sampled(time: np.ndarray, values: np.ndarray, end: float) -> tuple[np.ndarray, np.ndarray]:
    grid = np.linspace(0, end, 100)
    return grid, values[np.maximum(0, np.searchsorted(time, grid, side="right") - 1)].astype(np.float64)


def cell_name(join: str, **what: object) -> str:
    return " ".join([join, *(str(value) for value in what.values())])


def cell(join: str, **changed: float) -> Cell:
    """A run that differs from the usual one: what is as usual is not said, so that equal runs are run once."""
    usual = {
        "rate": HYBRID.rate, "memory": HYBRID.memory, "bias": HYBRID.bias, "segment": HYBRID.segment, "low": HYBRID.low,
        "faster": HYBRID.faster, "drawn": changed.get("low", HYBRID.low),
    }  # fmt: skip
    return Cell(run, join=join, **{name: value for name, value in changed.items() if value != usual[name]})


_RATES = {cell_name(join, rate=rate): cell(join, rate=rate) for join in JOINS for rate in HYBRID.rates}
_MEMORY = {
    cell_name(join, memory=memory // 10**6): cell(join, memory=memory) for join in JOINS for memory in HYBRID.memories
}
_SEGMENTS = {
    cell_name("meshjoin", segment=segment / 1e6): cell("meshjoin", segment=segment) for segment in HYBRID.segments
}
_LOCALITY = {cell_name(join, low=low): cell(join, low=low, drawn=0.0) for join in JOINS[1:] for low in HYBRID.lows}
_BIAS = {cell_name(join, bias=bias): cell(join, bias=bias) for join in JOINS for bias in HYBRID.biases}


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


def _system(results: Results) -> Verdict:
    shares = {
        f"{rate}/s": results.median(f"range {rate}", "system")
        / min(results.median(f"{join} {rate}", "system") for join in ("meshjoin", "hash"))
        for rate in HYBRID.rates
    }
    verdict = always("range least", {case: share < 1 for case, share in shares.items()})
    least, most = min(shares.values()), max(shares.values())
    return Verdict(verdict.holds, f"{least:.2f} to {most:.2f} of the next; {verdict.measured}")


def _processed(results: Results) -> Verdict:
    growth = {join: results.ratio(f"{join} 2500", f"{join} 1500", "processed").median for join in JOINS}
    holds = growth["meshjoin"] < 1.15 and all(growth[join] > 1.5 for join in ("range", "hash"))
    return Verdict(holds, ", ".join(f"{ratio:.2f}x {join}" for join, ratio in growth.items()) + ", 2,500/s to 1,500/s")


def _valley(results: Results) -> Verdict:
    delays = [results.median(f"meshjoin {rate}", "delay") for rate in HYBRID.rates]
    lowest = int(np.argmin(delays))
    falls, rises = lowest > 0, lowest < len(delays) - 1
    text = ", ".join(f"{delay:.0f} s at {rate}/s" for rate, delay in zip(HYBRID.rates, delays, strict=True))
    return Verdict(falls and rises, text)


def _who_is_sooner(results: Results) -> Verdict:
    ratios = {rate: results.ratio(f"range {rate}", f"hash {rate}", "delay").median for rate in HYBRID.rates}
    holds = all(ratio < 1 if rate < 1500 else ratio > 1 for rate, ratio in ratios.items() if rate != 1500)
    text = ", ".join(f"{ratio:.2f} at {rate}/s" for rate, ratio in ratios.items())
    return Verdict(holds, f"delay by range, of that by hash: {text}")


def _best_segment(results: Results) -> Verdict:
    names = {segment: cell_name("meshjoin", segment=segment / 1e6) for segment in HYBRID.segments}
    disk = {segment: results.median(name, "disk") for segment, name in names.items()}
    best = min(disk, key=lambda segment: disk[segment])
    text = ", ".join(f"{seconds:.0f} s with {segment / 1e6:g} MB" for segment, seconds in disk.items())
    return Verdict(1_000_000 <= best <= 2_000_000, text)


def _falls(results: Results, cells: Sequence[str]) -> bool:
    delays = [results.median(cell, "delay") for cell in cells]
    return delays[-1] < (1 - _NOTABLE) * delays[0]


def _rises(results: Results, cells: Sequence[str]) -> bool:
    delays = [results.median(cell, "delay") for cell in cells]
    return delays[-1] > (1 + _NOTABLE) * delays[0]


def _trend(results: Results, cells: Sequence[str]) -> str:
    return " to ".join(f"{results.median(cell, 'delay'):.3g}" for cell in (cells[0], cells[-1])) + " s"


def _memory_cells(join: str) -> list[str]:
    return [cell_name(join, memory=memory // 10**6) for memory in HYBRID.memories]


def _bias_cells(join: str) -> list[str]:
    return [cell_name(join, bias=bias) for bias in HYBRID.biases]


def _disk_by_locality(results: Results) -> dict[float, float]:
    return {low: results.ratio(f"range {low}", f"hash {low}", "disk").median for low in HYBRID.lows}


def _falls_with_locality(results: Results) -> Verdict:
    ratios = list(_disk_by_locality(results).values())
    text = ", ".join(f"{ratio:.2f} with {low:.0%}" for low, ratio in _disk_by_locality(results).items())
    return Verdict(all(later < earlier for earlier, later in pairwise(ratios)), text)


def _a_tenth(results: Results) -> Verdict:
    least = _disk_by_locality(results)[HYBRID.lows[-1]]
    return Verdict(least <= 0.15, f"{least:.2f} of it with {HYBRID.lows[-1]:.0%}")


def _rate_panels(results: Results) -> list[Panel]:
    def lines(value: str) -> dict[str, Line]:
        return {join: results.sweep(HYBRID.rates, [f"{join} {rate}" for rate in HYBRID.rates], value) for join in JOINS}

    return [
        Panel("delay", "rows per second", "mean delay, s", lines("delay"), log_y=True),
        Panel("disk", "rows per second", "disk time, s", lines("disk"), log_y=True),
        Panel("processor", "rows per second", "CPU time, s", lines("cpu"), log_y=True),
        Panel("disk and processor", "rows per second", "time, s", lines("system"), log_y=True),
        Panel("processed", "rows per second", "rows", lines("processed")),
        Panel("before the join at 1,500/s", "seconds", "rows waiting", {
            join: results.curve(f"{join} 1500", "buffered") for join in JOINS
        }),
    ]  # fmt: skip


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
            Claim("range-system", "Partitions by range need the least time of disk and processor together.",
                  "significantly less", _system),
            Claim("mesh-processed", "Beyond 1,500 rows per second MESHJOIN processes no more rows, the others do.",
                  "almost fixed", _processed),
            Claim("mesh-delay", "MESHJOIN's delay falls with the rate as long as it keeps up, and rises then.",
                  "falls, and rises from 1,200/s on", _valley),
            Claim("hash-sooner", "Below 1,500 rows per second partitions by range answer sooner, above it by hash.",
                  "they change places near 1,500/s", _who_is_sooner),
        ],
        _rate_panels,
        key=True,
    ),
    Experiment(
        "hybrid-buffer",
        "figure 6.6",
        PAPER,
        "A stream and a relation: MESHJOIN's reads",
        _SEGMENTS,
        [
            Claim("best-buffer", "MESHJOIN needs the least disk time when it reads 1 to 2 MB at once.",
                  "minimal within 1-2 MB", _best_segment),
        ],
        lambda results: [
            Panel("disk", "MB read at once", "disk time, s", {"meshjoin": results.sweep(
                [segment / 1e6 for segment in HYBRID.segments],
                [cell_name("meshjoin", segment=segment / 1e6) for segment in HYBRID.segments], "disk",
            )})
        ],
    ),
    Experiment(
        "hybrid-locality",
        "an addition to figure 6.8",
        PAPER,
        "A stream and a relation: how closely the stream's keys lie together",
        _LOCALITY,
        [
            Claim("falls", "The larger a share of the rows goes to one half of the keys, and of these to one of its "
                  "halves and so on, the more disk time ranges save.", "not said", _falls_with_locality),
            Claim("a-tenth", "With nine tenths, ranges need about a tenth of the disk time of partitions by hash.",
                  "an order of magnitude less, at shares that are not said", _a_tenth),
        ],
        lambda results: [
            Panel("disk", "share of the lower half", "disk time, s", {
                join: results.sweep(HYBRID.lows, [cell_name(join, low=low) for low in HYBRID.lows], "disk")
                for join in JOINS[1:]
            }, log_y=True),
            Panel("from memory", "share of the lower half", "share of the rows", {
                join: results.sweep(HYBRID.lows, [cell_name(join, low=low) for low in HYBRID.lows], "from memory")
                for join in JOINS[1:]
            }),
        ],
        note="The relation's keys are from all over here, and not drawn like the stream's: see hybrid-relation.",
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
                  lambda results: Verdict(_rises(results, _memory_cells("meshjoin")),
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
                  lambda results: Verdict(_rises(results, _bias_cells("meshjoin")),
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
