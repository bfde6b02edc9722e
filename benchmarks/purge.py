"""A long stream of accesses to news, each ended by a punctuation: does the join stay as fast, and as small?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.figures import Figure, Target, exactness
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.core.promises import Promises
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End, Event, Punctuate, Status
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin
from watersmeet.spill import FileStore

ROWS = 20_000_000
"""Accesses in all: a day of 231 a second."""
READS = 100
"""Accesses of an item, on average."""
LATEST = 10
"""So many items are read at a time."""
MEMORY = 16 << 20
FUEL = 1 << 17
_ITEMS_AT_ONCE = 1_000
_TENTHS = 10

NEWS = pa.schema({"sno": pa.int64(), "keyword": pa.string()})
HITS = pa.schema({"sno": pa.int64(), "reader": pa.int64(), "at": pa.timestamp("ms")})


@dataclass(frozen=True, slots=True)
class Day:
    """One run: the seconds of each tenth of the stream, and what was in memory."""

    seconds: list[float]
    """Of processor time."""
    rows: list[int]
    """The most rows in memory in each tenth."""
    peak: int
    spilled: int
    results: int
    expected: int
    handed_on: int
    """Punctuations of the result."""


def events(items: int) -> Iterator[list[Event]]:
    """The whole stream, in portions: some news, the accesses to them, and a punctuation as each item gets old."""
    random = np.random.default_rng(7)
    portion = max(1, min(_ITEMS_AT_ONCE, items // (2 * _TENTHS)))
    told = 0
    for first in range(0, items, portion):
        last = min(items, first + portion)
        ahead = min(items, last + LATEST)
        made: list[Event] = [Arrive(LEFT, _news(np.arange(told, ahead)))] if ahead > told else []
        told = ahead
        oldest = np.repeat(np.arange(first, last), READS)
        newest = np.minimum(items, oldest + LATEST)
        reads = oldest + (random.random(len(oldest)) * (newest - oldest)).astype(np.int64)
        batch = pa.RecordBatch.from_arrays(
            [pa.array(reads), pa.array(reads * 31), pa.array(oldest * 400, pa.timestamp("ms"))], schema=HITS
        )
        for i, item in enumerate(range(first, last)):
            made.append(Arrive(RIGHT, batch.slice(i * READS, READS)))
            made.append(Punctuate(RIGHT, {"sno": item}))
        yield made


def _news(keys: np.ndarray) -> pa.RecordBatch:
    words = pa.array([f"keyword {key % 977}" for key in keys.tolist()])
    return pa.RecordBatch.from_arrays([pa.array(keys), words], schema=NEWS)


def run(rows: int, **options: object) -> Day:
    """Join the stream, and look at it tenth by tenth."""
    items = max(_TENTHS, rows // READS)
    spec = JoinSpec(NEWS, HITS, parse_on("sno"), promises=(Promises(unique=("sno",)), Promises(punctuated=True)))
    with FileStore() as store:
        join = MetadataMJoin(spec, MEMORY, store, **options)  # type: ignore[arg-type]
        seconds, most = [0.0] * _TENTHS, [0] * _TENTHS
        results = handed_on = done = 0
        for portion in events(items):
            tenth = min(_TENTHS - 1, done * _TENTHS // (items * READS))
            began = time.process_time()
            for event in portion:
                join.receive(event)
            while True:
                step = join.poll(0.0, FUEL)
                results += step.out.num_rows if step.out is not None else 0
                handed_on += len(step.punctuations)
                if step.status is not Status.HAS_OUTPUT:
                    break
            seconds[tenth] += time.process_time() - began
            most[tenth] = max(most[tenth], sum(join.state_rows))
            done += sum(event.batch.num_rows for event in portion if isinstance(event, Arrive) and event.input == RIGHT)
        for side in (LEFT, RIGHT):
            join.receive(End(side))
        while join.phase != "done":
            step = join.poll(0.0, FUEL)
            results += step.out.num_rows if step.out is not None else 0
        return Day(seconds, most, join.budget.peak, store.bytes_written, results, done, handed_on)


def purge(settings: Settings) -> Iterator[Figure]:
    """A day of accesses to news, each ended by a punctuation: speed and state."""
    rows = settings.rows(ROWS)
    run(50_000)
    # Purging at every punctuation is shown on a tenth of the day.
    contestants = {"rate": lambda: run(rows), "memory": lambda: run(rows // 10, optimize="memory")}
    for name, days in take_turns(contestants, 1 if settings.scale >= 1 else settings.repeat).items():
        yield exactness(sum(abs(day.results - day.expected) for day in days), f"wrong results, {name}")
        yield Figure(f"rows a second, {name}", middle(days, lambda day: day.expected / sum(day.seconds)), "/s")
        slower = middle(days, lambda day: day.seconds[-1] / day.seconds[0])
        yield Figure(f"last tenth to first, {name}", slower, "", target=Target("<=", 1.25))
        grown = middle(days, lambda day: day.rows[-1] / max(1, day.rows[1]))
        yield Figure(f"its state to second's, {name}", grown, "", target=Target("<=", 1.1))
        yield Figure(f"most rows kept, {name}", middle(days, lambda day: max(day.rows)), "")
        yield Figure(f"peak memory, {name}", middle(days, lambda day: day.peak / 2**20), "MiB")
        yield Figure(f"spilled, {name}", middle(days, lambda day: day.spilled), "B", target=Target("<=", 0))
        yield Figure(f"handed on, {name}", middle(days, lambda day: day.handed_on), "")
