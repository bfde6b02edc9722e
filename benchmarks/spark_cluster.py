"""A window join on a small cluster whose load is uneven and changes: with and without moves, with and without tuning.

Four of 16 groups have most of the rows. In the first half all four belong to one of two slots as it begins, in the
second half four others, of the other slot. Each runs on an executor of its own. A join that is not tuned inside its
groups compares each row with all rows of its group, as the nested loops of the thesis do without fine tuning.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Figure, exactness
from benchmarks.rounds import Settings, middle, take_turns
from benchmarks.spark_inputs import pairs_within, write_by_time
from benchmarks.spark_query import Account, Step, measure
from benchmarks.spark_verbs import CLUSTER_GROUPS, CLUSTER_WINDOW, PARTITIONS
from watersmeet.core.arrays import Int64

ROWS = 400_000
SECONDS = 400
FILES = 20
HOT_GROUPS = 4
HOT = 0.8
"""The share of rows whose keys are in them."""
PARTNERS = 120
"""Of a row in a hot group, about."""
COLD_KEYS = 100_000
SKIPPED = 4
"""Batches that are left out: in them Java compiles."""
MOST_REPEATS = 3


def spark_cluster(settings: Settings) -> Iterator[Figure]:
    """400k+400k rows on Spark, local-cluster[2,1,1024], by windows, uneven groups: moved or not, tuned or not."""
    rows, seconds = settings.rows(ROWS), max(1, round(SECONDS * settings.scale))
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place = Path(directory)
        ids = uneven_keys(rows, rows / seconds)
        at = write_by_time(place / "all", ids, seconds, FILES)
        expected = pairs_within(ids, at, CLUSTER_WINDOW * 1_000_000)
        names = [f"{moves} {tuned}" for tuned in ("tuned", "untuned") for moves in ("moving", "fixed")]
        contestants = {name: partial(_measure, f"cluster {name}", place) for name in names}
        runs = take_turns(contestants, min(MOST_REPEATS, settings.repeat))
    rates = {name: middle(each, lambda run: run.rate(skipped=SKIPPED)) for name, each in runs.items()}
    tasks = {name: middle(each, lambda run: sum(run.longest_tasks[SKIPPED:])) for name, each in runs.items()}
    times = {name: middle(each, lambda run: 1e6 * run.cpu / sum(run.rows)) for name, each in runs.items()}
    for tuned in ("tuned", "untuned"):
        yield Figure(f"rows a second, {tuned}", rates[f"moving {tuned}"], "/s", rates[f"fixed {tuned}"])
        yield Figure(f"longest tasks, {tuned}", tasks[f"moving {tuned}"], "s", tasks[f"fixed {tuned}"])
        yield Figure(f"groups moved, {tuned}", middle(runs[f"moving {tuned}"], lambda run: run.moved), "")
    for moves in ("moving", "fixed"):
        yield Figure(f"rows a second, {moves}", rates[f"{moves} tuned"], "/s", rates[f"{moves} untuned"])
        yield Figure(f"CPU a row, {moves}", times[f"{moves} tuned"], "us", times[f"{moves} untuned"])
    yield exactness(sum(run.results != expected for each in runs.values() for run in each), "wrong runs, by row count")


def uneven_keys(rows: int, rate: float) -> list[Int64]:
    """Keys of both sides, most of them in a few groups, of one slot at first and of the other from the middle on."""
    rng = np.random.default_rng(1)
    # Slots take groups in turns, as the join begins.
    places = [[slot + PARTITIONS * number for number in range(HOT_GROUPS)] for slot in range(PARTITIONS)]
    candidates = np.arange(COLD_KEYS * 64)
    groups = spark_hashes(candidates) % CLUSTER_GROUPS
    # A row meets those of its key from a window before it to a window after it.
    distinct = max(HOT_GROUPS, round(HOT * rate * 2 * CLUSTER_WINDOW / PARTNERS))
    hot = [candidates[np.isin(groups, own)][:distinct] for own in places]
    sides = []
    for _ in range(2):
        ids = rng.integers(len(candidates), len(candidates) + COLD_KEYS, rows)
        for number, part in enumerate(np.array_split(np.arange(rows), PARTITIONS)):
            own = part[rng.random(len(part)) < HOT]
            ids[own] = rng.choice(hot[number], len(own))
        sides.append(ids)
    return sides


def spark_hashes(numbers: Int64) -> Int64:
    """Spark's `hash` of longs below 2 to the power of 31: Murmur3 in 32 bits with seed 42.

    >>> spark_hashes(np.array([0, 1])).tolist()
    [-1670924195, -1712319331]
    """
    words = numbers.astype(np.uint32)

    def rotated(word: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
        return word << np.uint32(bits) | word >> np.uint32(32 - bits)

    state = np.uint32(42) ^ rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    for _ in range(2):  # the upper word is 0, and changes nothing before this
        state = rotated(state, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    state ^= np.uint32(8)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> np.uint32(shift)) * np.uint32(factor)
    state ^= state >> np.uint32(16)
    return state.view(np.int32).astype(np.int64)


def _measure(contestant: str, place: Path) -> Account:
    """One query over all rows."""
    with tempfile.TemporaryDirectory(dir=place) as directory:
        return measure(contestant, Step(str(place / "all"), f"{directory}/measured", 1))[0]
