"""What a batch of results costs beyond its rows.

One arriving batch meets many rows in memory, and its pairs are handed out in batches of few rows, and of many: they are
the same pairs, so that what the first takes longer is the cost of the batches that it has more. The buffer of pairs is
made smaller than any budget makes it: that is what cuts batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks.figures import Figure, Target, exactness
from benchmarks.inputs import BATCH_ROWS, matches, spec_of, table
from benchmarks.ours import FUEL
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, Status
from watersmeet.engine.sizing import Grain
from watersmeet.joins.confluence.operator import Confluence
from watersmeet.spill import FileStore

KEYS, KEPT_ROWS, ARRIVING_ROWS = 64, 1 << 17, 1024
MEMORY = 256 << 20
FEW, MANY = 256, 8192
"""Pairs of a batch."""
MOST = 50.0
"""Microseconds a batch."""


@dataclass(frozen=True, slots=True)
class HandedOut:
    """The results of one arriving batch."""

    processor: float
    batches: int
    rows: int


def batches(settings: Settings) -> Iterator[Figure]:
    """2M pairs handed out in batches of few rows and of many: what a batch costs."""
    left = table(np.arange(settings.rows(KEPT_ROWS)) % KEYS, 1)
    right = table(np.arange(ARRIVING_ROWS) % KEYS, 2)
    contestants = {"few": partial(handed_out, left, right, FEW), "many": partial(handed_out, left, right, MANY)}
    take_turns(contestants, 1)
    runs = take_turns(contestants, settings.repeat)
    for name, each in runs.items():
        yield Figure(f"rows a batch, {name}", middle(each, lambda run: run.rows / max(1, run.batches)), "")
        yield Figure(f"processor time, {name}", middle(each, lambda run: 1e3 * run.processor), "ms")
    yield Figure("a batch of results", median(map(_more, runs["few"], runs["many"])), "us", target=Target("<=", MOST))
    expected = matches(left, right)
    yield exactness(sum(run.rows != expected for each in runs.values() for run in each), "wrong runs, by row count")


def _more(few: HandedOut, many: HandedOut) -> float:
    """Microseconds for each batch that one has more than its neighbour."""
    return 1e6 * (few.processor - many.processor) / max(1, few.batches - many.batches)


def handed_out(left: pa.Table, right: pa.Table, pairs: int) -> HandedOut:
    """Keep the left rows, then let the right ones arrive at once; so many pairs may wait to be handed out."""
    with FileStore() as store:
        operator = Confluence(spec_of(left.schema, right.schema), MEMORY, store, grain=Grain(pairs=pairs))
        for batch in left.to_batches(max_chunksize=BATCH_ROWS):
            operator.receive(Arrive(LEFT, batch))
            while operator.poll(0.0, FUEL).status is Status.HAS_OUTPUT:
                pass
        operator.receive(Arrive(RIGHT, right.combine_chunks().to_batches()[0]))
        count = rows = 0
        began = time.process_time()
        status = Status.HAS_OUTPUT
        while status is Status.HAS_OUTPUT:
            step = operator.poll(0.0, FUEL)
            status = step.status
            if step.out is not None:
                count += 1
                rows += step.out.num_rows
        processor = time.process_time() - began
        operator.close()
        return HandedOut(processor, count, rows)
