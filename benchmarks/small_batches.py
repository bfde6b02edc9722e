"""Rows that come in dribs and drabs: what does a batch cost?

An operator is handed what there is and polled then, as a driver does that has fallen behind: after every 8,192 rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from benchmarks.figures import Figure, Target, exactness
from benchmarks.in_memory import AMPLE, warm_up
from benchmarks.inputs import BATCH_ROWS, matches, spec_of, table
from benchmarks.ours import arrivals, drive, live
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.sources import generators

_CASES = ((64, 1_000_000, 1.0), (1, 200_000, 0.3))
"""Rows of a batch, rows of an input, million rows a second to reach."""


def small_batches(settings: Settings) -> Iterator[Figure]:
    """Batches of 64 and of 1 row; 1M+1M and 200k+200k rows, uniform keys."""
    wrong = 0
    for size, full, goal in _CASES:
        rows = settings.rows(full)
        left, right = (table(generators.uniform(rows, rows, seed), seed) for seed in (1, 2))
        warm_up(left, right, Settings())
        spec = spec_of(left.schema, right.schema)
        batches = [_cut(side, size) for side in (left, right)]
        runs = take_turns(
            {
                "xjoin": lambda: drive(spec, arrivals(*batches), AMPLE, rows_a_poll=BATCH_ROWS),  # noqa: B023
                "wm.join": lambda: live(*map(_reader, batches), AMPLE),  # noqa: B023
            },
            settings.repeat,
        )
        named = f"of {size} row" + "s" * (size > 1)
        for name, each in runs.items():
            speed = middle(each, lambda run: 2 * rows / run.total / 1e6)  # noqa: B023
            yield Figure(f"{named}, {name}", speed, "M rows/s", target=Target(">=", goal) if name == "xjoin" else None)
        expected = matches(left, right)
        wrong += max(abs(run.result[0] - expected) for each in runs.values() for run in each)
    yield exactness(wrong)


def _cut(side: pa.Table, size: int) -> list[pa.RecordBatch]:
    """Slices of equal size; beforehand, because that is the source's work."""
    whole = side.combine_chunks().to_batches()[0]
    return [whole.slice(start, size) for start in range(0, whole.num_rows, size)]


def _reader(batches: list[pa.RecordBatch]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(batches[0].schema, batches)
