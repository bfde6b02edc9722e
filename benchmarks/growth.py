"""Ten times the rows, and again: does each still cost the same, in a fixed memory, and in a fixed share of them?

Rows are made as they are asked for, and the time that takes is left out. The operator joins them, in one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.figures import Figure, Target, exactness
from benchmarks.inputs import BATCH_ROWS, TEXT_WIDTH, lazy, lazy_matches, row_bytes, spec_of
from benchmarks.ours import Made, arrivals, drive
from benchmarks.rounds import Settings, middle, take_turns

SIZES = {"0.3M": 300_000, "3M": 3_000_000, "30M": 30_000_000}
"""Rows of both inputs together."""
FIXED, SHARE = 64 << 20, 0.05
LEAST = 1 << 20
"""Bytes that no scale makes fewer."""
KEPT = {"64 MiB": 0.7, "5%": 0.9}
"""What part of its rows a second each memory must keep with ten times the rows."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One join; seconds without those in which its rows were made."""

    processor: float
    elapsed: float
    pairs: int
    spilled: int


def growth(settings: Settings) -> Iterator[Figure]:
    """0.3M, 3M and 30M rows of 80 bytes in 64 MiB, and in 5% of their bytes."""
    rows = {size: 2 * settings.rows(full // 2) for size, full in SIZES.items()}
    joined(2 * BATCH_ROWS, LEAST)  # compiles, or loads what was compiled
    contestants = {
        (memory, size): partial(joined, count, budget(memory, count, settings))
        for memory in KEPT
        for size, count in rows.items()
    }
    runs = take_turns({f"{memory}, {size}": run for (memory, size), run in contestants.items()}, settings.repeat)
    for memory, kept in KEPT.items():
        before: tuple[float | None, float | None] = (None, None)
        for size, count in rows.items():
            each = runs[f"{memory}, {size}"]
            rates = (
                middle(each, lambda run, count=count: count / run.processor / 1e3),
                middle(each, lambda run, count=count: count / run.elapsed / 1e3),
            )
            for rate, least, by in zip(rates, before, ("processor", "clock"), strict=True):
                target = Target(">=", kept, of_ratio=True) if least is not None else None
                yield Figure(f"{memory}: {size} rows, {by}", rate, "k/s", least, target)
            yield Figure(f"{memory}: {size} rows, spilled", middle(each, lambda run: run.spilled / 1e6), "MB")
            before = rates
    expected = {size: lazy_matches(count // 2, count // 2) for size, count in rows.items()}
    wrong = sum(run.pairs != expected[name.split(", ")[1]] for name, each in runs.items() for run in each)
    yield exactness(wrong, "wrong runs, by row count")


def budget(memory: str, rows: int, settings: Settings) -> int:
    """Bytes for so many rows; those of a fixed memory follow the scale, so that a small one spills as well."""
    return max(LEAST, settings.rows(FIXED) if memory == "64 MiB" else int(SHARE * rows * row_bytes(TEXT_WIDTH)))


def joined(rows: int, memory: int) -> Pass:
    """Half of the rows with the other half, in so much memory."""
    made = Made()
    sides = [made.counted(lazy(side, rows // 2, rows // 2, TEXT_WIDTH)) for side in (0, 1)]
    schema = next(lazy(0, 1, 1, TEXT_WIDTH)).schema
    with Made().counting() as all_of_it:
        run = drive(spec_of(schema, schema), arrivals(*sides), memory)
    processor, elapsed = all_of_it.processor - made.processor, all_of_it.elapsed - made.elapsed
    return Pass(processor, elapsed, run.result[0], run.spilled)
