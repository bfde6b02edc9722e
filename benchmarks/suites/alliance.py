"""Joins inside one window of two streams, as AllianceDB has them: stock trades, Rovio's game events, YSB's clicks [1]_.

.. [1] S. Zhang, Y. Mao, J. He, P. M. Grulich, S. Zeuch, B. He, R. T. B. Ma and V. Markl. Parallelizing intra-window
   join on multicores: an experimental study. SIGMOD 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

import watersmeet as wm
from benchmarks.suites.model import Inputs, Question, Setting, Suite, write_table

MILLISECONDS = 1_000
"""The window."""
CSV = '"key" BIGINT, ts BIGINT, number BIGINT'


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows a millisecond of both streams, how many keys there are, and how unevenly they are drawn."""

    rates: tuple[float, float]
    keys: int
    skew: float

    def rows(self, side: int, scale: float) -> int:
        """Of one window, at a scale; a side that is at rest has one row of each key."""
        return max(1, round(self.rates[side] * MILLISECONDS * scale)) if self.rates[side] else self.keys


WORKLOADS = {
    "stock": Workload((61, 77), 900, 0.1),
    "rovio": Workload((90, 90), 167, 0.04),
    "ysb": Workload((0, 10_000), 1_000, 0.0),
}


def write(place: Path, scale: float) -> None:
    """Both streams of each workload, in the order of their times, as Parquet and as CSV."""
    for number, (name, load) in enumerate(WORKLOADS.items()):
        for side in (0, 1):
            rng = np.random.default_rng([number, side])
            rows = load.rows(side, scale)
            weights = 1 / np.arange(1, load.keys + 1) ** load.skew
            keys = rng.choice(load.keys, rows, p=weights / weights.sum())
            if not load.rates[side]:
                keys = rng.permutation(load.keys)
            ts = np.arange(rows) * MILLISECONDS * 1000 // rows
            table = pa.table({"key": keys, "ts": ts, "number": np.arange(rows)})
            write_table(place, f"{name}_{side}", table)
            csv.write_csv(table, place / f"{name}_{side}.csv")


def _question(name: str) -> Question:
    left, right = f"{name}_0", f"{name}_1"
    window = MILLISECONDS * 1000
    return Question(
        name,
        (left, right),
        f'SELECT a."key" AS "key", a.ts AS ts, a.number AS number, b.ts AS ts_right, b.number AS number_right '
        f'FROM {left} a JOIN {right} b ON a."key" = b."key" AND a.ts >= b.ts - {window} AND a.ts <= b.ts + {window}',
        ("key", "ts", "number", "ts_right", "number_right"),
        _ours(left, right),
        csv=CSV,
    )


def _ours(left: str, right: str) -> Callable[[Inputs, str], Iterable[pa.RecordBatch]]:
    def joined(inputs: Inputs, algorithm: str) -> Iterable[pa.RecordBatch]:
        return wm.join(inputs.source(left), inputs.source(right), on="key", memory=inputs.memory, algorithm=algorithm)

    return joined


SUITE = Suite(
    "alliance",
    "Stock, Rovio and YSB, one window of a second each",
    "In the manner of the study, not of its files: how often keys repeat and how fast rows come are our numbers, "
    "meant to be like its. Windows of a second; stock with about 61 and 77 rows a millisecond and some 70 rows of a "
    "key; Rovio with few keys, each with very many rows, and so few rows (90 a millisecond) that all pairs, which grow "
    "with the square, can be handed out; YSB with a table of 1,000 campaigns at rest and 10,000 rows a millisecond. "
    "Rows have a key, a time and a number. All are there at once: what is told is how fast they can be joined. "
    "DataFusion reads them from CSV.",
    write,
    tuple(map(_question, WORKLOADS)),
    (Setting("in memory", ("ours", "ours symmetric_hash", "ours pmj", "symmetric"), memory=4 << 30, scaled=False),),
    warm_scale=0.01,
    beside={"ours symmetric_hash": "ours", "ours pmj": "ours"},
)
