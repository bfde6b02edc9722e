"""The inputs of RPJ's experiments: partitions that arrive with different probabilities, over good and bad networks."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

from experiments.papers import COMPARISON, RPJ, SEEK, TRANSFER, WAIT
from experiments.simulated import Machine, partitions_for, scaled_page
from watersmeet.core.arrays import Int64
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.kernels import hash_index
from watersmeet.records.keys import KeyCodec
from watersmeet.sources.generators import zipf
from watersmeet.sources.schedules import Schedule

ARRIVALS = ("harmony", "reverse")
NETWORKS = ("reliable", "unreliable")
_QUANTUM = 0.25
"""Seconds of arrivals that are handed over together, in full."""
_LEAST_QUANTUM = 10 * RPJ.gap


def part_of(scale: float, network: str) -> float:
    """The part of the paper's data, memory, pages and seeks that a run has: about the scale, see `scaled_page`."""
    scale *= RPJ.unreliable_part if network == "unreliable" else 1.0
    return scaled_page(RPJ.page_tuples, scale)[1]


def machine(scale: float, network: str, faster: float = RPJ.faster) -> Machine:
    """The paper's memory, pages and seeks by the scale; so many partitions that each has some rows.

    A row that comes is compared with a fifth of its partition on the other side (section 6: "approximately 1/5 of
    R_2^mem is inspected"), however many rows that has; at a smaller scale it has fewer, and each counts for more.
    """
    part = part_of(scale, network)
    memory = round(part * RPJ.memory_tuples)
    partitions = partitions_for(memory, RPJ.partitions, part)
    in_full = partitions / RPJ.partitions / part
    return Machine(
        memory_rows=memory,
        page_rows=round(part * RPJ.page_tuples),
        page_bytes=part * RPJ.page_bytes,
        seek=SEEK * part,
        transfer=TRANSFER,
        wait=WAIT,
        quantum=max(_LEAST_QUANTUM, part * _QUANTUM),
        partitions=partitions,
        fan_in=RPJ.fan_in,
        nested=COMPARISON / RPJ.sub_buckets * in_full,
        faster=faster,
        buffer_rows=memory,
    )


def schedule(scale: float, seed: int, arrival: str, speed: int, network: str) -> Schedule:
    """Two inputs, of which the left one is `speed` times as fast."""
    random = np.random.default_rng([seed, ARRIVALS.index(arrival), speed, NETWORKS.index(network)])
    n = round(part_of(scale, network) * RPJ.tuples)
    if network == "reliable":
        gaps = np.full(n, RPJ.gap)
    else:
        levels = round(RPJ.longest_gap / RPJ.gap)
        gaps = RPJ.gap * zipf(n, levels, RPJ.gap_exponent, int(random.integers(1 << 31)))
    times = np.cumsum(gaps)
    left = random.random(n) < speed / (speed + 1)
    keys = keys_by_partition(RPJ.keys)
    rising = np.linspace(RPJ.least_share, RPJ.most_share, RPJ.partitions)
    shares = (rising, rising if arrival == "harmony" else rising[::-1])
    tables, due = [], []
    for side, mine in enumerate((left, ~left)):
        count = int(mine.sum())
        part = random.choice(RPJ.partitions, count, p=shares[side] / shares[side].sum())
        which = random.integers(0, keys.shape[1], count)
        tables.append(pa.table({"key": keys[part, which]}))
        due.append(times[mine])
    return Schedule(tables, due)


@cache
def keys_by_partition(count: int) -> Int64:
    """`count` keys, as many for each of our partitions."""
    each = count // RPJ.partitions
    candidates = np.arange(1, 2 * count + 1)
    schema = pa.schema([("key", pa.int64())])
    hashes, _ = KeyCodec(JoinSpec(schema, schema, parse_on("key"))).hash(0, [pa.array(candidates)])
    parts = np.zeros(len(candidates), np.int32)
    hash_index.partitions_of(hashes, RPJ.partitions.bit_length() - 1, parts)
    return np.array([candidates[parts == part][:each] for part in range(RPJ.partitions)])
