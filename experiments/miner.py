"""MINER: several inputs, of which some are joined many to many and some by keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import pyarrow as pa

from experiments import ours
from experiments.diner_streams import new_arrivals
from experiments.miner_streams import SHAPES, arriving, possible
from experiments.model import Cell, Claim, Experiment, Measured, Panel, Results, Verdict
from experiments.ours import OURS
from experiments.papers import DINER, SEEK, TRANSFER, WAIT
from experiments.simulated import PAIRS, STORED_BYTES, measured, scaled_page
from watersmeet.core.errors import BudgetError
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Arrive, Status
from watersmeet.drivers.cost_model import CostModel
from watersmeet.drivers.simulate import simulate
from watersmeet.engine.sizing import Grain
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.joins.multiway.miner import Miner
from watersmeet.joins.multiway.mjoin import MJoin
from watersmeet.kernels.sorted_runs import ENTRY_BYTES
from watersmeet.spill.store import MemoryStore

INPUTS = (2, 3, 4)
MEMORIES = (0.05, 0.10, 0.15, 0.20)
DELAYS = (0.05, 0.10, 0.20, 0.40)
_QUANTA = 1000
_REACTIVE_FUEL = 256
_RECORDS = 10
"""Bytes set aside for each input row, for the records of blocks: no paper counts these."""
_BYTES_A_ROW = 64

Joins = Miner | MJoin | ManyConfluence

# -- runs --------------------------------------------------------------------------------------------------------------


def _make(
    join: str, spec: MultiSpec, memory: int, rows: int, records: int, patience: int, block: int = DINER.block_tuples
) -> Joins:
    """A join whose memory holds about so many rows, and the records of all that it will write besides."""
    page = block * STORED_BYTES
    if join == OURS:
        grain = Grain(page_bytes=page, pairs=PAIRS, records=records)
        options = ours.options(rows, block, block * DINER.block_bytes / DINER.block_tuples)
        return ManyConfluence(spec, memory, MemoryStore(), grain=grain, **options)
    if join == "MJoin":
        partitions = 1 << max(1, min(4, (rows * DINER.block_tuples // block // 600).bit_length() - 1))
        grain = Grain(partitions=partitions, page_bytes=page, pairs=PAIRS, records=records)
        return MJoin(spec, memory, MemoryStore(), grain=grain)
    of_paper = 2 * DINER.tuples * DINER.memory_share / DINER.block_tuples
    blocks = max(1, round(DINER.max_outer_blocks * rows / block / of_paper))
    grain = Grain(block_rows=block, page_bytes=page, pairs=PAIRS, records=records)
    return Miner(spec, memory, MemoryStore(), max_new_arrivals=patience, max_outer_blocks=blocks, grain=grain)


@cache
def memory_for(join: str, shape: str, inputs: int, rows: int, records: int, block: int) -> int:
    """The bytes in which a join keeps so many rows before it first spills, to one in fifty."""
    low, high = records, records + _BYTES_A_ROW * rows
    while _rows_before_spill(join, shape, inputs, high, rows, records, block) < rows:
        low, high = high, 2 * high
    while high - low > (high - records) // 50:
        middle = (low + high) // 2
        if _rows_before_spill(join, shape, inputs, middle, rows, records, block) < rows:
            low = middle
        else:
            high = middle
    return high


def _rows_before_spill(join: str, shape: str, inputs: int, memory: int, most: int, records: int, block: int) -> int:
    spec = SHAPES[shape].spec(inputs)
    held = 0
    try:
        operator = _make(join, spec, memory, most, records, 0, block)
        for number, (start, stop) in enumerate(pairwise(np.linspace(0, most, 25 * inputs + 1).astype(int))):
            at = number % inputs
            keys = np.random.default_rng(number).permutation(4 * most)[: stop - start] + 4 * most * at
            schema = spec.input(at)
            operator.receive(Arrive(at, pa.record_batch([pa.array(keys)] * len(schema), schema=schema)))
            while operator.poll(0.0, 1 << 20).status is Status.HAS_OUTPUT:
                pass
            if operator.cost.pages_written:
                break
            held += int(stop - start)
    except BudgetError:
        return 0
    operator.close()
    return held


def _run(
    join: str,
    shape: str,
    inputs: int,
    memory: float,
    scale: float,
    seed: int,
    delay: float = 0.0,
    whole: bool = False,
) -> Measured:
    small_block, part = scaled_page(DINER.block_tuples, scale)
    tables, spec = SHAPES[shape].tables(part, seed, inputs), SHAPES[shape].spec(inputs)
    schedule = arriving(tables, seed, delay)
    rows = round(memory * schedule.total_rows)
    # MINER writes and reads blocks, of which there are as many for each row at any scale. Smaller will not do: what
    # it knows of a block's rows by the next flush would be chance. The others write a memory-full in a few runs.
    block, part = (DINER.block_tuples, 1.0) if join == "MINER" else (small_block, part)
    # More for the records of smaller blocks.
    records = round(_RECORDS * schedule.total_rows / part)
    if join == OURS:
        records = ours.records(sum(map(len, spec.attributes)))
    size = memory_for(join, shape, inputs, rows, records, block)
    operator = _make(join, spec, size, rows, records, new_arrivals(scale), block)
    transfer = part * DINER.block_bytes * TRANSFER
    trace = simulate(
        operator,
        schedule,
        cost=CostModel(random_page=SEEK * part + transfer, sequential_page=transfer).faster(DINER.faster),
        wait=WAIT,
        quantum=schedule.end_time / _QUANTA,
        reactive_fuel=_REACTIVE_FUEL,
        buffer_rows=rows,
        online_only=not whole,
    )
    found = measured(trace, SHAPES[shape].total(tables))
    attributes = sum(len(each) for each in spec.attributes) / len(spec.names)
    more = {"indexes": attributes * (ENTRY_BYTES // 2) / DINER.tuple_bytes}
    if whole:
        more["found"] = trace.total / found.values["total"]
    if shape == "chain":
        more["possible"] = possible(tables, rows)
    return Measured({**found.values, **more}, found.curves)


def chain(scale: float, seed: int, inputs: int, memory: float, join: str = "MINER", whole: bool = False) -> Measured:
    """The chain; `whole` is with the clean-up."""
    return _run(join, "chain", inputs, memory, scale, seed, whole=whole)


def delayed(scale: float, seed: int, inputs: int, delay: float, join: str = "MINER") -> Measured:
    """The chain, with silences."""
    return _run(join, "chain", inputs, DINER.memory_share, scale, seed, delay)


def star(scale: float, seed: int, join: str, inputs: int, memory: float, whole: bool = False) -> Measured:
    """Inputs on one attribute; `whole` is with the clean-up."""
    return _run(join, "star", inputs, memory, scale, seed, whole=whole)


def snowflake(
    scale: float, seed: int, join: str, inputs: int, memory: float, delay: float = 0.0, whole: bool = False
) -> Measured:
    """The snowflake; `whole` is with the clean-up."""
    return _run(join, "snowflake", inputs, memory, scale, seed, delay, whole)


# -- what is said of them ----------------------------------------------------------------------------------------------


def _label(inputs: int, memory: float) -> str:
    return f"{inputs} inputs, {memory:.0%}"


def _share(results: Results, inputs: int, memory: float) -> float:
    return results.median(_label(inputs, memory), "share")


def _four_inputs(results: Results) -> Verdict:
    little, much = (_share(results, 4, memory) for memory in (MEMORIES[0], MEMORIES[-1]))
    return Verdict(little >= 0.45 and much >= 0.75, f"{little:.0%} at 5% of memory, {much:.0%} at 20%")


def _near_possible(results: Results) -> Verdict:
    shares = {
        (inputs, memory): (_share(results, inputs, memory), results.median(_label(inputs, memory), "possible"))
        for inputs in INPUTS
        for memory in (MEMORIES[0], MEMORIES[-1])
    }
    told = ", ".join(f"{found:.0%} of {most:.0%} ({_label(*point)})" for point, (found, most) in shares.items())
    return Verdict(min(found / most for found, most in shares.values()) >= 0.6, told)


def _modest_drop(results: Results) -> Verdict:
    drops = {memory: 1 - _share(results, 4, memory) / _share(results, 2, memory) for memory in MEMORIES}
    told = ", ".join(f"{drop:.0%} less at {memory:.0%}" for memory, drop in drops.items())
    return Verdict(max(drops.values()) <= 0.25, f"four inputs against two: {told}")


def _small_indexes(results: Results) -> Verdict:
    share = results.median(_label(4, MEMORIES[-1]), "indexes")
    return Verdict(share <= 0.02, f"{share:.0%} of the memory of 200-byte tuples: 12 bytes for each row and attribute")


def _buffers(results: Results) -> Verdict:
    limit = 2 * new_arrivals(results.scale)
    most = {
        inputs: max(float(results.each(f"{inputs} inputs, delay {delay:.0%}", "buffer").max()) for delay in DELAYS)
        for inputs in INPUTS
    }
    told = ", ".join(f"{rows:,.0f} rows with {inputs} inputs" for inputs, rows in most.items())
    return Verdict(max(most.values()) <= limit, f"at most {told}, where twice MaxNewArr is {limit:,}")


def _overflows(results: Results) -> Verdict:
    names = [f"{inputs} inputs, delay {delay:.0%}" for inputs in INPUTS for delay in DELAYS]
    miner, own = (
        [name for name in names if results.median(cell(name), "overflow") < 1]
        for cell in (str, lambda name: _of(OURS, name))
    )
    told = [f"{join} overflows in {len(found)} of {len(names)}" for join, found in (("MINER", miner), (OURS, own))]
    return Verdict(not miner, "; ".join(told))


def _leads(results: Results) -> dict[tuple[int, float], float]:
    return {
        (inputs, memory): results.ratio(
            f"MINER, {_label(inputs, memory)}", f"MJoin, {_label(inputs, memory)}", "online"
        ).median
        for inputs in (3, 4)
        for memory in MEMORIES
    }


def _told(leads: Mapping[tuple[int, float], float]) -> str:
    return ", ".join(f"{lead:.1f}x ({_label(*point)})" for point, lead in leads.items())


def _ahead(results: Results) -> Verdict:
    leads = _leads(results)
    return Verdict(min(leads.values()) >= 1, _told(leads))


def _sixty(results: Results) -> Verdict:
    leads = {point: lead for point, lead in _leads(results).items() if point[0] == 4}
    return Verdict(max(leads.values()) >= 30, f"at most {max(leads.values()):.1f}x with four inputs")


def _less_memory(results: Results) -> Verdict:
    leads = _leads(results)
    pairs = {inputs: (leads[inputs, MEMORIES[0]], leads[inputs, MEMORIES[-1]]) for inputs in (3, 4)}
    told = "; ".join(f"{inputs} inputs: {a:.1f}x at 5%, {b:.1f}x at 20%" for inputs, (a, b) in pairs.items())
    return Verdict(all(a > b for a, b in pairs.values()), told)


def _chain_panels(results: Results) -> Sequence[Panel]:
    xs = [100 * memory for memory in MEMORIES]
    return [
        Panel(
            f"{join} on a chain",
            "memory, % of the input",
            "share of all results online",
            {
                f"{inputs} inputs": results.sweep(
                    xs, [_of(join, _label(inputs, memory)) for memory in MEMORIES], "share"
                )
                for inputs in INPUTS
            },
        )
        for join in ("MINER", OURS)
    ]


def _of(join: str, point: str) -> str:
    """A cell of the chain; the paper's own join goes without saying."""
    return point if join == "MINER" else f"{join}, {point}"


def _ours_on_chains(points: Sequence[str]) -> list[Claim]:
    return ours.claims({point: _cell_of(point) for point in points}, ("MINER",))


def _cell_of(point: str) -> Callable[[str], str]:
    return lambda join: _of(join, point)


def _star_cell(point: str) -> Callable[[str], str]:
    return lambda join: f"{join}, {point}"


def _delay_panels(results: Results) -> Sequence[Panel]:
    xs = [100 * delay for delay in DELAYS]
    cells = {inputs: [f"{inputs} inputs, delay {delay:.0%}" for delay in DELAYS] for inputs in INPUTS}
    x = "delay, % of a fragment's time"
    buffers = {f"{inputs} inputs": results.sweep(xs, cells[inputs], "buffer") for inputs in INPUTS}
    shares = {
        join: {
            f"{inputs} inputs": results.sweep(xs, [_of(join, cell) for cell in cells[inputs]], "share")
            for inputs in INPUTS
        }
        for join in ("MINER", OURS)
    }
    return [
        Panel("input buffer", x, "rows that waited, at most", buffers),
        Panel("results", x, "share of all results online", shares["MINER"]),
        Panel(f"results of {OURS}", x, "share of all results online", shares[OURS]),
    ]


def _star_panels(results: Results) -> Sequence[Panel]:
    xs = [100 * memory for memory in MEMORIES]
    lines = {
        f"{join}, {inputs} inputs": results.sweep(
            xs, [f"{join}, {_label(inputs, memory)}" for memory in MEMORIES], "share"
        )
        for join in ("MINER", "MJoin", OURS)
        for inputs in (3, 4)
    }
    return [Panel("Inputs on one attribute", "memory, % of the input", "share of all results online", lines)]


EXPERIMENTS = [
    Experiment(
        "miner-20",
        "figure 20",
        "MINER",
        "Results on a chain of two, three and four inputs, by memory",
        {_label(inputs, memory): Cell(chain, inputs=inputs, memory=memory) for inputs in INPUTS for memory in MEMORIES}
        | {
            _of(OURS, _label(inputs, memory)): Cell(chain, inputs=inputs, memory=memory, join=OURS)
            for inputs in INPUTS
            for memory in MEMORIES
        },
        [
            Claim("four-inputs", "Four inputs give most of their results online (within a tenth of the paper's share).",
                  "55% at 5% of memory, more than 80% at 20%", _four_inputs),
            Claim("modest-drop", "More inputs lose little: four give at most a quarter less than two.",
                  "a modest decrease", _modest_drop),
            Claim("near-possible", "MINER finds most (60%) of what the best choice of rows would, by an estimate.",
                  "(not of the paper)", _near_possible),
            Claim("indexes", "The six indexes take less than 2% of the memory.", "120 KB of 8.8 MB", _small_indexes),
            *_ours_on_chains([_label(inputs, memory) for inputs in INPUTS for memory in MEMORIES]),
        ],
        _chain_panels,
        key=True,
    ),
    Experiment(
        "miner-21",
        "table 21",
        "MINER",
        "Input buffers when inputs fall silent",
        {
            f"{inputs} inputs, delay {delay:.0%}": Cell(delayed, inputs=inputs, delay=delay)
            for inputs in INPUTS
            for delay in DELAYS
        }
        | {
            _of(OURS, f"{inputs} inputs, delay {delay:.0%}"): Cell(delayed, inputs=inputs, delay=delay, join=OURS)
            for inputs in INPUTS
            for delay in DELAYS
        },
        [
            Claim("small-buffer", "The input buffer stays near MaxNewArr: within twice that.", "near 1,000", _buffers),
            Claim("fits", "MINER never lets more rows wait than memory holds.", "near 1,000", _overflows),
            *_ours_on_chains([f"{inputs} inputs, delay {delay:.0%}" for inputs in INPUTS for delay in DELAYS]),
        ],
        _delay_panels,
    ),
    Experiment(
        "miner-22",
        "figure 22",
        "MINER",
        "Inputs on one attribute: MINER and MJoin",
        {
            f"{join}, {_label(inputs, memory)}": Cell(star, join=join, inputs=inputs, memory=memory)
            for join in ("MINER", "MJoin", OURS)
            for inputs in (3, 4)
            for memory in MEMORIES
        },
        [
            Claim("ahead", "MINER has more results online than MJoin everywhere.", "more", _ahead),
            Claim("sixty", "With four inputs and little memory the lead is large (half of the paper's will do).",
                  "60x", _sixty),
            Claim("less-memory", "The less memory, the larger the lead.", "largest in little memory", _less_memory),
            *ours.claims(
                {point: _star_cell(point) for point in (_label(i, memory) for i in (3, 4) for memory in MEMORIES)},
                ("MINER", "MJoin"),
            ),
        ],
        _star_panels,
        key=True,
    ),
]  # fmt: skip
