"""Batch DataFrames joined on Spark in one pass: ours, and Spark's shuffled hash join."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, Target, exactness
from benchmarks.rounds import Settings, middle, take_turns
from benchmarks.spark_inputs import Keys, write_files
from benchmarks.spark_query import Account, Step, measure

ROWS = 3_000_000
FILES = 8
MOST_ROUNDS = 2
WARM_UPS = 2
TIMES = 5
"""Of the join in one process."""


def spark_batch(settings: Settings) -> Iterator[Figure]:
    """3M+3M rows of batch DataFrames, keys uniform over 3M, against Spark's shuffled hash join, and against no join."""
    names = ["ours", *(["own", "drain"] if settings.peers else [])]
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place = Path(directory)
        rows = settings.rows(ROWS)
        expected = write_files(place / "all", Keys(rows), [rows // FILES] * FILES)
        contestants = {name: partial(_measure, name, place) for name in names}
        runs = take_turns(contestants, min(MOST_ROUNDS, settings.repeat))
    seconds, cpu = (
        {name: middle(each, lambda run, of=of: median(of(one) for one in run)) for name, each in runs.items()}
        for of in (_seconds, _cpu)
    )
    yield Figure("total", seconds["ours"], "s", seconds.get("own"), Target("<=", 1.1, of_ratio=True))
    yield Figure("CPU", cpu["ours"], "s", cpu.get("own"))
    yield Figure("CPU, against rows that are dropped", cpu["ours"], "s", cpu.get("drain"))
    joins = [run for name in ("ours", "own") for accounts in runs.get(name, []) for run in accounts]
    wrong = sum(run.results != expected for run in joins)
    yield exactness(wrong, "wrong runs, by row count")


def _measure(contestant: str, place: Path) -> list[Account]:
    with tempfile.TemporaryDirectory(dir=place) as directory:
        steps = [Step(str(place / "all"), f"{directory}/{i}", files=0) for i in range(WARM_UPS + TIMES)]
        return measure(contestant, *steps)[WARM_UPS:]


def _seconds(run: Account) -> float:
    return run.seconds[0]


def _cpu(run: Account) -> float:
    return run.cpu
