"""Rows that come in dribs and drabs: what does a batch cost?

An operator is handed what there is and polled then, as a driver does that has fallen behind: after every 8,192 rows.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow as pa

from benchmarks.figures import Figure, Target, exactness
from benchmarks.in_memory import AMPLE, warm_up
from benchmarks.inputs import BATCH_ROWS, matches, spec_of, table
from benchmarks.ours import Run, arrivals, drive, live
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.core.spec import JoinSpec
from watersmeet.sources import generators

_CASES = ((64, 1_000_000, 2.0), (1, 200_000, 0.3))
"""Rows of a batch, rows of an input, million rows a second to reach."""


def small_batches(settings: Settings) -> Iterator[Figure]:
    """Batches of 64 rows (1M+1M) and of 1 (200k+200k), uniform keys."""
    wrong = 0
    for size, full, goal in _CASES:
        rows = settings.rows(full)
        left, right = (table(generators.uniform(rows, rows, seed), seed) for seed in (1, 2))
        warm_up(left, right, Settings())
        spec = spec_of(left.schema, right.schema)
        runs = take_turns(
            {
                "confluence": partial(_by_hand, spec, left, right, size),
                "wm.join": partial(_as_a_user, left, right, size),
            },
            settings.repeat,
        )
        named = f"of {size} row" + "s" * (size > 1)
        for name, each in runs.items():
            speed = middle(each, lambda run: 2 * rows / run.total / 1e6)  # noqa: B023
            target = Target(">=", goal) if name == "confluence" else None
            yield Figure(f"{named}, {name}", speed, "M rows/s", target=target)
        expected = matches(left, right)
        wrong += max(abs(run.result[0] - expected) for each in runs.values() for run in each)
    yield exactness(wrong)


def _by_hand(spec: JoinSpec, left: pa.Table, right: pa.Table, size: int) -> Run:
    with _cut(left, right, size) as batches:
        return drive(spec, arrivals(*batches), AMPLE, rows_a_poll=BATCH_ROWS)


def _as_a_user(left: pa.Table, right: pa.Table, size: int) -> Run:
    with _cut(left, right, size) as batches:
        streams = [pa.RecordBatchReader.from_batches(left.schema, each) for each in batches]
        return live(streams[0], streams[1], AMPLE)


@contextmanager
def _cut(left: pa.Table, right: pa.Table, size: int) -> Iterator[list[list[pa.RecordBatch]]]:
    """Slices of equal size, made beforehand, because that is the source's work, and anew for each run, because a batch
    remembers what it was asked. In a stream they would not all be there at once: the garbage collector leaves them out.
    """
    wholes = [side.combine_chunks().to_batches()[0] for side in (left, right)]
    batches = [[whole.slice(start, size) for start in range(0, whole.num_rows, size)] for whole in wholes]
    gc.collect()
    gc.freeze()
    try:
        yield batches
    finally:
        gc.unfreeze()
