"""How long until something happens: imports, and a whole small join on the command line."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.figures import Figure, Target
from benchmarks.inputs import table
from benchmarks.memory import environment
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.core.errors import WatersmeetError
from watersmeet.sources import generators


def start(settings: Settings) -> Iterator[Figure]:
    """Importing the package; joining two small files by command line."""
    with tempfile.TemporaryDirectory() as folder:
        rows = settings.rows(10_000)
        left, right, out = (str(Path(folder) / name) for name in ("left.csv", "right.parquet", "out.parquet"))
        pyarrow.csv.write_csv(table(generators.unique(rows, 1), 1), left)
        pq.write_table(table(generators.unique(rows, 2), 2), right)
        contestants = {
            "pyarrow": python("-c", "import pyarrow"),
            "watersmeet": python("-c", "import watersmeet"),
            "watersmeet.join": python("-c", "from watersmeet import join"),
            "cli": python("-m", "watersmeet.cli.main", "join", left, right, "--on", "key", "-o", out),
        }
        take_turns(contestants, 1)
        runs = take_turns(contestants, settings.repeat)
    seconds = {name: middle(each, float) or 0.0 for name, each in runs.items()}
    more = seconds["watersmeet"] - seconds["pyarrow"]
    yield Figure("import watersmeet", seconds["watersmeet"], "s", seconds["pyarrow"])
    yield Figure("more than importing pyarrow", more, "s", target=Target("<=", 0.8))
    yield Figure("from watersmeet import join", seconds["watersmeet.join"], "s", seconds["pyarrow"])
    yield Figure(f"join of {rows:,}+{rows:,} rows", seconds["cli"], "s", target=Target("<=", 3))


def python(*arguments: str) -> Callable[[], float]:
    """Times a fresh interpreter."""

    def run() -> float:
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *arguments], env=environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise WatersmeetError(f"python {' '.join(arguments)} failed: {done.stderr.strip()}")
        return time.perf_counter() - began

    return run
