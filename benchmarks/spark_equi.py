"""Two streams joined on Spark, whole state kept: ours, Spark's own join, and what Spark needs to deliver the rows."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import Figure, Target, exactness
from benchmarks.memory import environment
from benchmarks.rounds import Settings, middle, take_turns
from benchmarks.spark_query import FILES_PER_BATCH
from watersmeet.core.errors import WatersmeetError

ROWS = 2_000_000
FILES = 20
MOST_REPEATS = 3
"""A run takes minutes."""


def spark_equi(settings: Settings) -> Iterator[Figure]:
    """2M+2M rows on Spark, local[2], 800k rows a batch, keys uniform over 2M."""
    names = ["ours", "drain", *(["heap", "rocksdb"] if settings.peers else [])]
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place = Path(directory)
        expected = write_inputs(place, settings.rows(ROWS))
        runs = take_turns({name: partial(measure, name, place) for name in names}, min(MOST_REPEATS, settings.repeat))
    rates = {name: middle(each, lambda run: run["rate"]) for name, each in runs.items()}
    bounds = {"heap": 3.0, "rocksdb": 12.0, "drain": 0.6}
    for name, bound in bounds.items():
        target = Target(">=", bound, of_ratio=True)
        yield Figure(f"rows a second, against {name}", rates["ours"], "/s", rates.get(name), target)
    most = {name: middle(each, lambda run: run["memory"] / 1e6) for name, each in runs.items()}
    half = Target("<=", 0.5, of_ratio=True)
    yield Figure("memory, against heap", most["ours"], "MB", most.get("heap"), half)
    joins = [run["results"] for name, each in runs.items() if name != "drain" for run in each]
    yield exactness(sum(found != expected for found in joins), "wrong runs, by row count")


def write_inputs(place: Path, rows: int) -> int:
    """Twenty files for each side; how many pairs their rows make."""
    rng = np.random.default_rng(1)
    keys = [rng.integers(0, rows, rows) for _ in range(2)]
    for side, name in enumerate(("left", "right")):
        (place / name).mkdir()
        (place / "warm-up" / name).mkdir(parents=True)
        for i, part in enumerate(np.array_split(np.arange(rows), FILES)):
            at = pa.array(part * 1_000).cast(pa.timestamp("us", "UTC"))
            table = pa.table({"id": keys[side][part], "at": at, "number": part})
            pq.write_table(table, place / name / f"{i:03d}.parquet")
            if i < 2 * FILES_PER_BATCH:
                pq.write_table(table, place / "warm-up" / name / f"{i:03d}.parquet")
    counts = [np.bincount(each, minlength=rows) for each in keys]
    return int(counts[0] @ counts[1])


def measure(contestant: str, place: Path) -> dict[str, float]:
    """One process's account of one contestant."""
    command = [sys.executable, "-m", "benchmarks.spark_query", contestant, str(place)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise WatersmeetError(f"{' '.join(command[1:4])} failed: {done.stderr.strip().splitlines()[-1:]}")
    account: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return account
