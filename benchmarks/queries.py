"""Many window joins of the same two streams in one: what 10, 100 and 1,000 queries cost beside a single one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.figures import Figure, Target, exactness
from benchmarks.inputs import BATCH_ROWS
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet import planner
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End, Status
from watersmeet.core.queries import QueriesSpec, WindowQuery
from watersmeet.core.spec import parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.spill import FileStore

ROWS = 1_000_000
"""Of each input."""
WINDOW = 100_000
KEYS = 50_000
NUMBERS = (1, 10, 100, 1_000)
MEMORY = 512 << 20
FUEL = 1 << 17
_PLACES = 50
_ALONE = (0, 1, 7)
"""Queries whose results are counted by a join of their own."""


def queries_of(number: int, window: int) -> list[WindowQuery]:
    """So many: the first wants every pair of the largest window, the others have filters and windows of their own."""
    made = [WindowQuery("all", window)]
    for i in range(1, number):
        left = f"place = 'place {i % _PLACES}' and amount >= {17 * i % 1000}"
        right = None if i % 3 else f"amount < {900 - i % 100}"
        made.append(WindowQuery(f"query {i}", window * (1 + i % 10) // 10, left, right))
    return made


def streams(rows: int, keys: int) -> list[list[pa.RecordBatch]]:
    """Both inputs in batches; times count the rows."""
    made: list[list[pa.RecordBatch]] = [[], []]
    for side in (LEFT, RIGHT):
        random = np.random.default_rng([side, 11])
        places = pa.array([f"place {i}" for i in range(_PLACES)])
        for start in range(0, rows, BATCH_ROWS):
            count = min(BATCH_ROWS, rows - start)
            columns = {
                "key": pa.array(random.integers(0, keys, count)),
                "ts": pa.array(np.arange(start, start + count)),
                "amount": pa.array(random.integers(0, 1000, count)),
                "place": places.take(pa.array(random.integers(0, _PLACES, count))),
            }
            made[side].append(pa.record_batch(columns))
    return made


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    seconds: float
    """Of processor time."""
    pairs: int
    tags: Counter[str]
    """How many results each query has."""


def run(inputs: list[list[pa.RecordBatch]], window: int, number: int) -> Run:
    """Join for so many queries."""
    schema = inputs[0][0].schema
    spec = QueriesSpec(
        schema, schema, parse_on("key"), window=parse_windows(window, "ts"), queries=tuple(queries_of(number, window))
    )
    began = time.process_time()
    found = _joined(spec, inputs)
    seconds = time.process_time() - began
    tags: Counter[str] = Counter()
    for batch in found:
        counts = pc.value_counts(batch["queries"].flatten())
        tags.update(dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True)))
    return Run(seconds, sum(batch.num_rows for batch in found), tags)


def alone(inputs: list[list[pa.RecordBatch]], window: int, number: int) -> int:
    """How many results a query has whose rows are picked before, in a join of its own."""
    query = queries_of(number + 1, window)[number]
    schema = inputs[0][0].schema
    spec = WindowJoinSpec(schema, schema, parse_on("key"), window=parse_windows(query.window, "ts"))
    left = pc.scalar(True)
    right = pc.scalar(True)
    if number:
        left = (pc.field("place") == f"place {number % _PLACES}") & (pc.field("amount") >= 17 * number % 1000)
    if number % 3 == 0 and number:
        right = pc.field("amount") < 900 - number % 100
    picked = [[batch.filter(passes) for batch in side] for side, passes in zip(inputs, (left, right), strict=True)]
    return sum(batch.num_rows for batch in _joined(spec, picked))


def _joined(spec: WindowJoinSpec, inputs: Sequence[Sequence[pa.RecordBatch]]) -> list[pa.RecordBatch]:
    with FileStore() as store:
        operator = planner.build_window(spec, MEMORY, store, "confluence")
        found: list[pa.RecordBatch] = []
        for batches in zip(*inputs, strict=True):
            for side, batch in enumerate(batches):
                operator.receive(Arrive(side, batch))
                found += _worked_off(operator)
        for side in (LEFT, RIGHT):
            operator.receive(End(side))
        found += _worked_off(operator)
        operator.close()
    return found


def _worked_off(operator: planner.Operator) -> Iterator[pa.RecordBatch]:
    while True:
        step = operator.poll(0.0, FUEL)
        if step.out is not None:
            yield step.out
        if step.status is not Status.HAS_OUTPUT:
            return


def queries(settings: Settings) -> Iterator[Figure]:
    """1M+1M rows, windows of up to 100k rows, 1 to 1,000 queries that find the same pairs: CPU time beside one."""
    inputs, window = streams(settings.rows(ROWS), settings.rows(KEYS)), settings.rows(WINDOW)
    run(streams(20_000, 2_000), 2_000, 10)  # compile
    runs = take_turns({str(number): lambda n=number: run(inputs, window, n) for number in NUMBERS}, settings.repeat)
    seconds = {name: middle(each, lambda one: one.seconds) for name, each in runs.items()}
    yield Figure("one query", seconds["1"], "s")
    for number in NUMBERS[1:]:
        target = Target("<=", 5.0, of_ratio=True) if number == NUMBERS[-1] else None
        yield Figure(f"{number:,} queries", seconds[str(number)], "s", seconds["1"], target)
    most = runs[str(NUMBERS[-1])][0]
    yield Figure("names a pair, of 1,000", sum(most.tags.values()) / max(1, most.pairs), "")
    wrong = len({one.pairs for each in runs.values() for one in each}) - 1
    names = [query.name for query in queries_of(NUMBERS[-1], window)]
    wrong += sum(alone(inputs, window, number) != most.tags[names[number]] for number in _ALONE)
    yield exactness(wrong, "wrong runs, or queries beside a join of their own")
