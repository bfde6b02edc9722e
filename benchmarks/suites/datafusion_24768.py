"""Two tables of 20M rows, each several times the memory: the join for which DataFusion's issue #24768 asks to spill."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

import watersmeet as wm
from benchmarks.inputs import table
from benchmarks.suites.model import Inputs, Question, Setting, Suite, write_parts
from watersmeet.sources import generators

ROWS = 20_000_000
MEMORY = 300_000_000
TEXT_WIDTH = 32
"""With key, integer and float 56 bytes a row, 1.1 GB a table."""
_PART = 2_000_000


def write(place: Path, scale: float) -> None:
    """Two tables with keys that are drawn uniformly, as many as there are rows."""
    rows = max(1, round(ROWS * scale))
    for seed, name in enumerate(("l", "r")):
        write_parts(place, name, _parts(rows, seed))


def _parts(rows: int, seed: int) -> Iterator[pa.Table]:
    for number, start in enumerate(range(0, rows, _PART)):
        yield table(
            generators.uniform(min(_PART, rows - start), rows, 2 * number + seed), 2 * number + seed, TEXT_WIDTH
        )


def joined(inputs: Inputs, algorithm: str) -> Iterable[pa.RecordBatch]:
    """The join as a user has it."""
    return wm.join(
        inputs.source("l"), inputs.source("r"), on="key", memory=inputs.memory, threads=inputs.threads,
        algorithm=algorithm,
    )  # fmt: skip


JOIN = Question(
    "join",
    ("l", "r"),
    "SELECT l.key, l.number, l.measure, l.text, r.number AS number_right, r.measure AS measure_right, "
    "r.text AS text_right FROM l JOIN r ON l.key = r.key",
    ("key", "number", "measure", "text", "number_right", "measure_right", "text_right"),
    joined,
)

SUITE = Suite(
    "datafusion-24768",
    "Two tables of 20M rows in 300 MB",
    "Taken from the issue: two Parquet tables of 20M rows, 1.1 GB each before they are encoded, and a pool of 300 MB. "
    "Ours: rows of a key, two numbers and a text, keys uniform over as many values as there are rows.",
    write,
    (JOIN,),
    (Setting("300 MB", ("ours", "duckdb", "datafusion", "datafusion merge", "polars"), memory=MEMORY),),
)
