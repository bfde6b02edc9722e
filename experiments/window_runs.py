"""One run of a window join over bursty streams in virtual time, with the thesis' measures."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa

from experiments import ours
from experiments.model import Measured
from experiments.ours import OURS
from experiments.papers import WINDOWS, WindowRun
from watersmeet.core.errors import BudgetError
from watersmeet.core.protocol import Arrive, Status
from watersmeet.core.spec import Output, parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.drivers.cost_model import CostModel
from watersmeet.drivers.simulate import simulate
from watersmeet.engine.sizing import Grain
from watersmeet.joins.window.ah_ewj import AHEWJ, Shares
from watersmeet.joins.window.confluence import WindowConfluence
from watersmeet.joins.window.ewj import EWJ
from watersmeet.joins.window.rpwj import RPWJ, Stages
from watersmeet.records.times import WindowCodec, WindowPlan
from watersmeet.sources.schedules import Schedule
from watersmeet.sources.traces import bursty
from watersmeet.spill.store import MemoryStore
from watersmeet.tables.window_table import window_row_bytes

_QUANTUM = 1.0
"""Seconds: rows of an input that come within them come as one batch."""
_PER_SECOND = 1_000_000
_NEVER = 1e9
_BUFFERS = 20_000
_RECENT = {"ewj": 0.85, "ah_ewj": 0.85, "rpwj": 0.9}
"""Of the memory, what is for rows as they come: the rest is for copies of frequent ones, or for runs that are read back
(0.15 and M_read, 0.1). Buffers, indexes and books are not counted: the thesis takes them to be little."""
_INDEX_BYTES = 24
_ENTRY_BYTES = {"ewj": 0, "ah_ewj": 176, "rpwj": 600}
"""What is remembered of a block on disk, or of a run."""
_LEAST_ROWS = 60
"""Of a partition of one side in memory: a smaller scale has fewer partitions."""


def run(
    scale: float,
    seed: int,
    join: str,
    rate: int,
    bias: float = WINDOWS.bias,
    memory: int = 0,
    slide: float = WINDOWS.slide,
    flush: float = WINDOWS.flush,
    partitions: int = WINDOWS.partitions,
    block: int = WINDOWS.block,
    reread: bool = False,
    faster: float = WINDOWS.faster,
) -> Measured:
    """One run; with `reread`, RPWJ's dd-tasks read all of both partitions, as in the thesis.

    The lengths of window and run, memory, keys and seeks are scaled: so rates mean what they do in full.
    """
    paper = WINDOWS.ewj if join == "ewj" else WINDOWS.ah_ewj
    seconds, keys = paper.seconds * scale, max(1000, int(WINDOWS.keys * scale))
    streams = [_stream(rate, seconds, bias, keys, paper.row, scale, 2 * seed + side) for side in (0, 1)]
    tables = [table for table, _ in streams]
    window = timedelta(seconds=paper.window * scale)
    spec = WindowJoinSpec(
        tables[0].schema, tables[1].schema, parse_on("key"), output=Output.PAIRS, window=parse_windows(window, "ts")
    )
    # Memory for as many rows as the thesis' memory holds: what an index, row numbers and books take comes on top.
    row_bytes = window_row_bytes(WindowPlan(spec, 0, WindowCodec(spec)).types)
    rows_in_memory = (memory or paper.memory) / paper.row * scale
    parts = 1 if join == "ewj" else _parts(partitions, rows_in_memory)
    block_rows = block // paper.row
    together = rows_in_memory / 2 / parts if join == "rpwj" else block_rows
    operator: EWJ | AHEWJ | RPWJ | WindowConfluence
    if join == OURS:
        size = int(rows_in_memory * (row_bytes + _INDEX_BYTES)) + _BUFFERS
        grain = Grain(page_bytes=block_rows * row_bytes, records=ours.records(2))
        options = ours.options(int(rows_in_memory), block_rows, block)
        operator = WindowConfluence(spec, size + ours.records(2), MemoryStore(), grain=grain, **options)
    else:
        books = int(_ENTRY_BYTES[join] * 2 * rate * paper.window * scale / together)
        size = _memory_for(join, paper, int(rows_in_memory), parts, block_rows) + books
        operator = _operator(join, spec, size, scale, parts, block_rows, slide / paper.window, flush, reread)
        operator.waits.came_at = lambda times: times / _PER_SECOND
    if join == OURS:
        cost = _cost_of_ours(paper, scale, rows_in_memory / scale, partitions, operator.sizing.page_bytes / row_bytes)
    else:
        cost = _cost(paper, scale, parts / (1 if join == "ewj" else partitions))
    cost = cost.faster(faster)
    schedule = Schedule(tables, [times for _, times in streams])
    # EWJ looks at the disk when its memory is full of fresh rows, and never in a silence.
    wait = _NEVER if join == "ewj" else WINDOWS.idle * scale
    trace = simulate(operator, schedule, cost=cost, wait=wait, quantum=_QUANTUM * scale, delays=True)
    assert trace.delays is not None
    rows = sum(table.num_rows for table in tables)
    at_end = int(trace.input_buffer[np.searchsorted(trace.time, trace.last_arrival, side="right") - 1])
    cpu, disk = float(trace.cpu[-1]) / scale, float(trace.disk[-1]) / scale
    return Measured(
        {
            "delay": trace.delays.mean / scale,
            "delayed": operator.timed.delayed / rows,
            "backlog": at_end / rows,
            "cpu": cpu,
            "disk": disk,
            "total": cpu + disk,
            "waited": trace.peak_input_buffer / scale,
            "window": 2 * rate * paper.window * paper.row / (memory or paper.memory),
            "pairs": float(trace.total),
        },
        {"buffered": _sampled(trace.time / scale, trace.input_buffer / scale, paper.seconds)},
    )


@lru_cache
def _memory_for(join: str, paper: WindowRun, rows: int, parts: int, block_rows: int) -> int:
    """The bytes in which a join keeps the recent part of so many rows before it first writes some, to one in fifty."""
    low, high = 0, 2 * rows * (paper.row + _INDEX_BYTES)
    while _rows_before_dump(join, paper, high, parts, block_rows, rows) < _RECENT[join] * rows:
        low, high = high, 2 * high
    while high - low > high // 50:
        middle = (low + high) // 2
        if _rows_before_dump(join, paper, middle, parts, block_rows, rows) < _RECENT[join] * rows:
            low = middle
        else:
            high = middle
    return high


def _rows_before_dump(join: str, paper: WindowRun, memory: int, parts: int, block_rows: int, most: int) -> int:
    """How many rows of both sides a join holds before it writes a page, `most` at the most; none if it cannot begin."""
    steps = np.linspace(0, most, 101).astype(int)
    keys = np.random.default_rng(0).permutation(2 * most)
    carried = bytes(paper.row - 16)
    held = 0
    try:
        operator: EWJ | AHEWJ | RPWJ | None = None
        for number, (start, stop) in enumerate(pairwise(steps)):
            rows = stop - start
            stamps = pa.array(np.full(rows, number, np.int64)).cast(pa.timestamp("us"))
            batch = pa.record_batch(
                {
                    "key": keys[start:stop],
                    "ts": stamps,
                    "carried": pa.array([carried] * rows, pa.binary(paper.row - 16)),
                }
            )
            if operator is None:
                window = parse_windows(timedelta(seconds=1), "ts")
                spec = WindowJoinSpec(batch.schema, batch.schema, parse_on("key"), output=Output.PAIRS, window=window)
                operator = _operator(join, spec, memory, 1.0, parts, block_rows, 1.0, WINDOWS.flush)
            operator.receive(Arrive(number % 2, batch))
            while operator.poll(0.0, 1 << 20).status is Status.HAS_OUTPUT:
                pass
            if operator.cost.pages_written:
                break
            held += int(rows)
    except BudgetError:
        return 0
    return held


def _parts(wanted: int, rows_in_memory: float) -> int:
    """A power of two: the thesis' 60 are 64, and fewer where a partition would be next to nothing."""
    fitting = int(rows_in_memory / 2 / _LEAST_ROWS)
    return 1 << max(1, min(round(math.log2(wanted)), fitting.bit_length() - 1))


def _operator(
    join: str,
    spec: WindowJoinSpec,
    size: int,
    scale: float,
    parts: int,
    block_rows: int,
    slide: float,
    flush: float,
    reread: bool = False,
) -> EWJ | AHEWJ | RPWJ:
    if join == "ewj":
        return EWJ(spec, size, MemoryStore())
    grain = Grain(partitions=parts, table_rows=block_rows)
    if join == "rpwj":
        # Batches are a quantum long, and so shorter at a smaller scale: any but the smallest is looked up as a block.
        marks = {"high": 2, "low": 1}
        stages = Stages(
            flush=flush,
            decay=WINDOWS.alpha,
            invalidate=slide,
            pause=WINDOWS.pause * scale,
            reread=reread,
            **marks,
        )
        return RPWJ(spec, size, MemoryStore(), stages=stages, grain=grain)
    shares = Shares(decay=WINDOWS.alpha, threshold=WINDOWS.rho, fresh=WINDOWS.fresh)
    operator = AHEWJ(spec, size, MemoryStore(), shares=shares, grain=grain)
    operator.pause = WINDOWS.pause * scale
    return operator


def _cost(paper: WindowRun, scale: float, parts: float) -> CostModel:
    """What work costs a join of the thesis, with so many of its partitions.

    The disk is charged for the bytes that are read and written, and for an access where they do not lie side by side
    (sections 3.5.1 and 5.4.1: "estimated only by the disk bandwidth"). Rows are compared one by one, those that arrive
    with all of their partition in memory, those that are read from disk with the fresh ones of it, for the rows that
    are stale have met them (4.4, 5.3). At a smaller scale a partition has fewer rows, and each counts for more.
    The processor is that of the MJoin paper.
    """
    access = (WINDOWS.seek + WINDOWS.latency) * scale
    cost = CostModel().by_bytes(access=access, bandwidth=WINDOWS.bandwidth, row=paper.row)
    return replace(cost, nested=cost.comparison * parts / scale)


def _cost_of_ours(paper: WindowRun, scale: float, rows: float, partitions: int, page_rows: float) -> CostModel:
    """Our own join finds rows by hashes, and is charged for a whole partition of a memory that is always full; its disk
    by the page, which is a block of the thesis.
    """
    cost = CostModel().with_disk(
        seek=WINDOWS.seek * scale, latency=WINDOWS.latency * scale, bandwidth=WINDOWS.bandwidth,
        page=int(page_rows * paper.row),
    )  # fmt: skip
    return replace(cost, probe=rows / 2 / partitions * cost.comparison)


@lru_cache(maxsize=2)  # many cells of an experiment have the same two streams
def _stream(
    rate: int, seconds: float, bias: float, keys: int, width: int, scale: float, seed: int
) -> tuple[pa.Table, np.ndarray]:
    times, key = bursty(rate, seconds, bias, keys, most=max(64, int(WINDOWS.longest_interval * scale)), seed=seed)
    carried = pa.Array.from_buffers(
        pa.binary(width - 16), len(key), [None, pa.py_buffer(bytes(len(key) * (width - 16)))]
    )
    stamps = pa.array((times * _PER_SECOND).astype(np.int64)).cast(pa.timestamp("us"))
    return pa.table({"key": key, "ts": stamps, "carried": carried}), times


def _sampled(time: np.ndarray, values: np.ndarray, end: float) -> tuple[np.ndarray, np.ndarray]:
    grid = np.linspace(0, end, 100)
    return grid, values[np.maximum(0, np.searchsorted(time, grid, side="right") - 1)].astype(np.float64)
