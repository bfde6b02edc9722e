"""Left, full and semi joins beside the inner join of the same rows: what do marks and rows without a partner cost?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from benchmarks.figures import Figure, Target, exactness
from benchmarks.inputs import BATCH_ROWS, TEXT_WIDTH, lazy, spec_of
from benchmarks.ours import Run, arrivals, drive
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.core.kinds import KINDS

ROWS = 2_000_000
TARGETS = {"left": 1.25, "full": 1.25, "semi": 0.8}
_MOST = 2 << 30
_LEAST = 4 << 20


def results(left: pa.Table, right: pa.Table) -> dict[str, int]:
    """How many results each kind has."""
    keys = [table["key"].to_numpy() for table in (left, right)]
    size = 1 + int(max(each.max(initial=0) for each in keys))
    counts = [np.bincount(each, minlength=size) for each in keys]
    pairs = int(counts[0] @ counts[1])
    alone = [int(counts[side][counts[1 - side] == 0].sum()) for side in (0, 1)]
    matched = left.num_rows - alone[0]
    outer = {"left": pairs + alone[0], "right": pairs + alone[1], "full": pairs + sum(alone)}
    return {"inner": pairs, **outer, "semi": matched, "anti": alone[0]}


def kinds(settings: Settings) -> Iterator[Figure]:
    """2M+2M rows, uniform keys, a third of them without a partner; in memory, and in a tenth of it."""
    rows = settings.rows(ROWS)
    left, right = (pa.Table.from_batches(lazy(side, rows, rows, TEXT_WIDTH)) for side in (0, 1))
    batches = [side.to_batches(max_chunksize=BATCH_ROWS) for side in (left, right)]
    memories = {"in memory": _MOST, "at a tenth": max(_LEAST, (left.nbytes + right.nbytes) // 10)}
    spec = spec_of(left.schema, right.schema)

    def contestant(how: str, memory: int) -> Callable[[], Run]:
        return lambda: drive(replace(spec, how=how), arrivals(*batches), memory)

    for how in KINDS:  # compile
        drive(replace(spec, how=how), arrivals(*(each[:8] for each in batches)), _LEAST)
    expected, wrong = results(left, right), 0
    for name, memory in memories.items():
        runs = take_turns({how: contestant(how, memory) for how in KINDS}, settings.repeat)
        inner = middle(runs["inner"], lambda run: run.total)
        for how in KINDS:
            target = Target("<=", TARGETS[how], of_ratio=True) if how in TARGETS else None
            if how != "inner":
                yield Figure(f"{how}, {name}", middle(runs[how], lambda run: run.total), "s", inner, target)
            wrong += sum(run.result[0] != expected[how] for run in runs[how])
    yield exactness(wrong, "wrong runs, by number of results")
