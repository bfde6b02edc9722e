"""More and more rows in the same little memory: how do time and memory grow?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import watersmeet as wm
from benchmarks.suites.model import Inputs, Question, Setting, Suite, write_parts

SIZES = {"1M": 1_000_000, "3M": 3_000_000, "10M": 10_000_000, "30M": 30_000_000, "100M": 100_000_000}
"""Rows of both inputs together."""
MEMORY = 64 << 20
_PART = 2_000_000


def write(place: Path, scale: float) -> None:
    """Two tables of each size, keys uniform over as many values as a table has rows."""
    for name, size in SIZES.items():
        rows = max(1, round(size * scale / 2))
        for side in "lr":
            write_parts(place, f"{side}{name}", _parts(rows, ord(side)))


def _parts(rows: int, seed: int) -> Iterator[pa.Table]:
    rng = np.random.default_rng([rows, seed])
    for start in range(0, rows, _PART):
        count = min(_PART, rows - start)
        numbers = np.arange(start, start + count)
        yield pa.table({"key": rng.integers(0, rows, count), "number": numbers, "measure": numbers * 0.5})


def _question(name: str) -> Question:
    left, right = f"l{name}", f"r{name}"
    return Question(
        name,
        (left, right),
        f"SELECT a.key, a.number, a.measure, b.number AS number_right, b.measure AS measure_right "
        f"FROM {left} a JOIN {right} b ON a.key = b.key",
        ("key", "number", "measure", "number_right", "measure_right"),
        _ours(left, right),
    )


def _ours(left: str, right: str) -> Callable[[Inputs, str], Iterable[pa.RecordBatch]]:
    def joined(inputs: Inputs, algorithm: str) -> Iterable[pa.RecordBatch]:
        return wm.join(
            inputs.source(left), inputs.source(right), on="key", memory=inputs.memory, threads=inputs.threads,
            algorithm=algorithm,
        )  # fmt: skip

    return joined


SUITE = Suite(
    "growth",
    "1M to 100M rows in 64 MiB",
    "Our own: rows of a key and two numbers, 24 bytes, half of them in each input, keys uniform.",
    write,
    tuple(_question(name) for name in SIZES),
    (Setting("64 MiB", ("ours", "duckdb"), memory=MEMORY),),
    warm_scale=0.002,
    lines=True,
)
