"""How long until something happens: imports, a first join of a process, and a whole small join on the command line."""

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

FIRST = """
import time
import pyarrow as pa
import watersmeet as wm
frames = [pa.table({"key": list(range(1000)), name: list(range(1000))}) for name in "ab"]
began = time.process_time()
wm.join
told = [time.process_time() - began]
for _ in range(2):
    began = time.process_time()
    with wm.join(*frames, on="key") as result:
        rows = sum(batch.num_rows for batch in result)
    told.append(time.process_time() - began)
    assert rows == 1000, rows
print(*told)
"""
"""What the name loads when it is asked for, a join of two frames that are there, and the same again."""


def start(settings: Settings) -> Iterator[Figure]:
    """Importing the package; a process's first join; joining two small files by command line."""
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
        joins = take_turns({"first": first_join}, settings.repeat)["first"]
    seconds = {name: middle(each, float) or 0.0 for name, each in runs.items()}
    more = seconds["watersmeet"] - seconds["pyarrow"]
    yield Figure("import watersmeet", seconds["watersmeet"], "s", seconds["pyarrow"])
    yield Figure("more than importing pyarrow", more, "s", target=Target("<=", 0.8))
    yield Figure("from watersmeet import join", seconds["watersmeet.join"], "s", seconds["pyarrow"])
    first = middle(joins, lambda run: run[0] + run[1])
    yield Figure("first wm.join, processor time", first, "s", target=Target("<=", 0.4))
    yield Figure("of it, loading the package", middle(joins, lambda run: run[0]), "s")
    yield Figure("second wm.join, processor time", middle(joins, lambda run: run[2]), "s")
    yield Figure(f"join of {rows:,}+{rows:,} rows", seconds["cli"], "s", target=Target("<=", 3))


def first_join() -> list[float]:
    """Of a fresh interpreter: processor time to load the package, of the first join, and of the second."""
    return [float(each) for each in _told("-c", FIRST).split()]


def python(*arguments: str) -> Callable[[], float]:
    """Times a fresh interpreter."""

    def run() -> float:
        began = time.perf_counter()
        _told(*arguments)
        return time.perf_counter() - began

    return run


def _told(*arguments: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, *arguments], env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise WatersmeetError(f"python {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout
