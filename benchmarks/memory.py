"""What the operating system sees: by how much does a process grow beyond one that idles, compiled code and all?

Each budget has its own process (`python -m benchmarks.resident`), which makes its rows as they are asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import bounded, short
from benchmarks.figures import Figure, Target, exactness
from benchmarks.resident import expected
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.core.errors import WatersmeetError

DRIVERS = ("operator", "wm.join")


def memory(settings: Settings) -> Iterator[Figure]:
    """Growth of the process while it joins what `bounded` and `short` join."""
    tasks = {name: ("bounded", size, settings.rows(bounded.ROWS)) for name, size in bounded.budgets(settings).items()}
    for workload, (full, _) in short.WORKLOADS.items():
        rows = settings.rows(full)
        tasks |= {f"{workload} {share}": (workload, size, rows) for share, size in short.budgets(rows).items()}
    contestants = {
        f"{name}, {driver}": partial(measure, workload, driver, size, rows)
        for name, (workload, size, rows) in tasks.items()
        for driver in DRIVERS
    }
    runs = take_turns(contestants, settings.repeat)
    for name, each in runs.items():
        allowed = Target("<=", 1.15 * each[0]["budget"] / 1e6 + 16)
        yield Figure(f"growth at {name}", middle(each, lambda run: run["growth"] / 1e6), "MB", target=allowed)
        yield Figure(f"counted at {name}", middle(each, lambda run: run["peak"] / 1e6), "MB")
    due = {name: expected(workload, rows) for name, (workload, _, rows) in tasks.items()}
    wrong = sum(run["rows"] != due[name.rpartition(", ")[0]] for name, each in runs.items() for run in each)
    yield exactness(wrong, "wrong runs, by row count")


def measure(workload: str, driver: str, size: int, rows: int) -> dict[str, float]:
    """One process's account of itself."""
    command = [sys.executable, "-m", "benchmarks.resident", workload, driver, str(size), str(rows)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise WatersmeetError(f"{' '.join(command[1:])} failed: {done.stderr.strip().splitlines()[-1:]}")
    account: dict[str, float] = json.loads(done.stdout)
    return {"budget": size, **account}


def environment() -> dict[str, str]:
    """For another process that imports what this one does."""
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, str(Path(root) / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
