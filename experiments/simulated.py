"""One join over one schedule in the simulator, and the numbers that the papers compare."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from experiments.model import Measured
from watersmeet.core.arrays import Float64
from watersmeet.core.errors import BudgetError
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, Status
from watersmeet.core.spec import Band, JoinSpec, Output, parse_on
from watersmeet.drivers.cost_model import CostModel
from watersmeet.drivers.simulate import simulate
from watersmeet.drivers.trace import Trace
from watersmeet.engine.sizing import Grain
from watersmeet.planner import build
from watersmeet.sources.schedules import Schedule
from watersmeet.spill.store import MemoryStore

GRID = 240
"""Points of a curve over the transmission: so many that a surge of a hundredth of it is seen."""
PAIRS = 2048
"""Pairs found at once: the more, the fewer steps the simulator takes."""
STORED_BYTES = 16
"""Of a row on a page, when pairs are only counted: its hash and its tick."""
ROWS_OF_A_PARTITION = 200
"""In memory, both sides together, at least: not of the papers. With fewer, flushing a few of them writes next to
nothing and costs a seek each; in little memory, more make RPJ a little better, and HMJ and XJoin worse."""
_MERGING = ("rpj", "hmj", "pmj")
_MERGED_INTO = 2
"""Pages of each side beside those of the runs: what is written, and what is looked up."""
_RECORDS = 8
"""Bytes set aside for each input row, for the records of what was spilled and visited: no paper counts these."""
_PAGE_RECORDS = 160
"""The same for each page of them."""
_BYTES_A_ROW = 48
"""Where the search for the memory begins."""


@dataclass(frozen=True)
class Contestant:
    """A join with its options; papers and figures call it by its label."""

    label: str
    join: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, label: str, join: str, **options: Any) -> Contestant:
        """With options by name."""
        return cls(label, join, tuple(sorted(options.items())))


@dataclass(frozen=True)
class Machine:
    """Memory and pages in rows, and what work costs."""

    memory_rows: int
    page_rows: int
    page_bytes: float
    """Of a page of the paper's rows, by which a transfer is charged."""
    seek: float
    transfer: float
    """Seconds for a byte."""
    wait: float
    quantum: float
    """Seconds of arrivals that are handed over together; a stall and its end are told at once, whatever it is."""
    partitions: int
    fan_in: int
    nested: float = 0.0
    """Seconds for each row of the other side's partition in memory, whenever a row is looked up there."""
    faster: float = 1.0
    """How many times as fast the processor is as that of the MJoin paper."""
    reactive_fuel: int = 4096
    buffer_rows: int | None = None
    """Rows that may wait before the input buffer overflows."""

    def grain(self, input_rows: int) -> Grain:
        """The operators' units: their rows are narrower than the paper's, as pairs are only counted."""
        page = self.page_rows * STORED_BYTES
        return Grain(
            partitions=self.partitions,
            page_bytes=page,
            fan_in=self.fan_in,
            block_rows=self.page_rows,
            pairs=PAIRS,
            records=round((_RECORDS + _PAGE_RECORDS / self.page_rows) * input_rows),
        )

    def rows_for(self, join: str) -> int:
        """Rows that a join has memory for: the pages through which runs are merged are a part of the memory, as the
        outer blocks of DINER's loop are; an eighth of it at most.
        """
        pages = 2 * (self.fan_in + _MERGED_INTO) if join in _MERGING else 0
        return self.memory_rows - min(pages * self.page_rows, self.memory_rows // 8)

    def cost(self, join: str) -> CostModel:
        """What a join's work costs. A partition has its own place on the disk: to flush several is a seek for each.

        Our own join has no partitions in memory, and is charged as if the half of it that belongs to the other side
        were divided into as many, and always full.
        """
        transfer = self.page_bytes * self.transfer
        model = CostModel(random_page=self.seek + transfer, sequential_page=transfer, run=self.seek, nested=self.nested)
        if join == "confluence":
            model = replace(model, probe=self.memory_rows / 2 / self.partitions * self.nested)
        return model.faster(self.faster)


def run(
    contestant: Contestant,
    schedule: Schedule,
    machine: Machine,
    on: str | Band = "key",
    online_only: bool = True,
    **options: Any,
) -> Trace:
    """Simulate."""
    grain = machine.grain(schedule.total_rows)
    key = schedule.inputs[0].schema.field("key").type
    memory = memory_for(contestant, grain, machine.rows_for(contestant.join), on, key)
    return simulate(
        contestant.join,
        schedule,
        memory=memory,
        on=on,
        cost=machine.cost(contestant.join),
        wait=machine.wait,
        quantum=machine.quantum,
        reactive_fuel=machine.reactive_fuel,
        buffer_rows=machine.buffer_rows,
        online_only=online_only,
        grain=grain,
        **dict(contestant.options),
        **options,
    )


@cache
def memory_for(contestant: Contestant, grain: Grain, rows: int, on: str | Band, key: pa.DataType) -> int:
    """The bytes in which a join keeps this many rows before it first spills, to one in a hundred.

    The papers give memory in tuples. Our joins count everything (indexes, buffers, what merging needs), each in its own
    measure, so that equal budgets would compare how the joins use them and not what the papers compare.
    """
    schema = pa.schema([("key", key)])
    spec = JoinSpec(schema, schema, parse_on(on), output=Output.COUNTS)
    low, high = 0, _BYTES_A_ROW * rows
    while _rows_before_spill(contestant, spec, high, grain, rows) < rows:
        low, high = high, 2 * high
    while high - low > high // 100:
        middle = (low + high) // 2
        if _rows_before_spill(contestant, spec, middle, grain, rows) < rows:
            low = middle
        else:
            high = middle
    return high


def _rows_before_spill(contestant: Contestant, spec: JoinSpec, memory: int, grain: Grain, most: int) -> int:
    """How many rows a join holds before it first writes a page, `most` at the most; none if it cannot even begin."""
    keys = pa.array(np.random.default_rng(0).permutation(2 * most) + 1).cast(spec.input(LEFT).field("key").type)
    held = 0
    try:
        operator = build(
            spec, memory, MemoryStore(), algorithm=contestant.join, grain=grain, **dict(contestant.options)
        )
        for number, (start, stop) in enumerate(pairwise(np.linspace(0, most, 51).astype(int))):
            operator.receive(Arrive((LEFT, RIGHT)[number % 2], pa.record_batch([keys[start:stop]], ["key"])))
            while operator.poll(0.0, 1 << 20).status is Status.HAS_OUTPUT:
                pass
            if operator.cost.pages_written:
                break
            held += int(stop - start)
    except BudgetError:
        return 0
    operator.close()
    return held


def scaled_page(rows: int, scale: float) -> tuple[int, float]:
    """Rows of a page at about this scale, where it has so many in full, and the scale that is exactly.

    With a tenth of the data and of the memory everything takes a tenth of the time, but for the disk: runs are as many
    as in full, and a seek for each takes as long. And where runs are merged there is a seek for each page, of which
    there are a tenth as many. So pages and seeks are scaled, too: then each has the part in all time that it has then.
    That is so only if the page has as many rows as the scale says, and of these there is a whole number, one at least.
    So data, memory, pages and seeks all go by the scale that this returns: a smaller one would charge seeks by another
    measure than rows.

    >>> scaled_page(100, 1), scaled_page(100, 0.1), scaled_page(100, 0.011), scaled_page(100, 0.001)
    ((100, 1.0), (10, 0.1), (1, 0.01), (1, 0.01))
    """
    page = min(rows, max(1, round(scale * rows)))
    return page, page / rows


def partitions_for(memory_rows: int, most: int, scale: float = 1.0) -> int:
    """A power of two: as many partitions as have some hundred rows of each side in memory, since each leaves a run."""
    whole = max(2, int(memory_rows / (scale * ROWS_OF_A_PARTITION)))
    return min(most, 1 << (whole.bit_length() - 1))


def measured(trace: Trace, total: int) -> Measured:
    """The numbers of a run: results online, their share of all, the fullest input buffer of the reactive phase and of
    all phases, when it overflowed as a part of the transmission, how long the clean-up took; and curves.
    """
    grid = np.linspace(0.0, trace.last_arrival, GRID + 1)
    at = np.searchsorted(trace.time, grid, side="right") - 1
    results = trace.results[at].astype(np.float64)
    work = (trace.cpu + trace.disk)[at]
    per_result: Float64 = np.divide(work, results, out=np.full_like(work, np.nan), where=results > 0)
    values = {
        "online": float(trace.online),
        "share": trace.online / total if total else 1.0,
        "total": float(total),
        "buffer": float(max(trace.input_buffer[trace.phase == "reactive"], default=0)),
        "waited": float(trace.peak_input_buffer),
        "overflow": 1.0 if trace.overflow is None else min(1.0, trace.overflow / trace.last_arrival),
        "after": trace.end - trace.last_arrival,
        "last arrival": trace.last_arrival,
    }
    time = 100 * grid / trace.last_arrival
    return Measured(values, {"results": (time, results), "cost": (time, per_result)})


def equal_pairs(schedule: Schedule) -> int:
    """All pairs of the two inputs with equal keys."""
    (left, many), (right, much) = (np.unique(table["key"].to_numpy(), return_counts=True) for table in schedule.inputs)
    _, here, there = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    return int(many[here] @ much[there])


def close_pairs(schedule: Schedule, width: float) -> int:
    """All pairs of the two inputs whose keys differ by at most the width."""
    left, right = (np.sort(table["key"].to_numpy()) for table in schedule.inputs)
    beyond = np.searchsorted(right, left + width, side="right")
    return int((beyond - np.searchsorted(right, left - width, side="left")).sum())
