"""State of a streaming join, divided into another number of groups: rows a second, and whether all are there."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.figures import Figure, Target, exactness
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.spark.offline.opened import OpenedState
from watersmeet.spark.offline.reading import StateRows
from watersmeet.spark.offline.repartition import repartition
from watersmeet.spark.plan.recipe import JoinFactory
from watersmeet.spark.state.directory import Batch, Owner, StateDirectory
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.task.placement import Placement
from watersmeet.spark.task.settled_group import SettledGroup

ROWS = 10_000_000
"""Of both sides together."""
BATCHES = 5
BEFORE, AFTER = 8, 16
MEMORY = 512 << 20


@dataclass(frozen=True, slots=True)
class Divided:
    """One repartition."""

    elapsed: float
    processor: float
    """Seconds of processor time."""
    rows: int


def spark_repartition(settings: Settings) -> Iterator[Figure]:
    """10M rows of state, narrow, with a key and with a string: from 8 groups to 16, and to 5."""
    rows = settings.rows(ROWS)
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place = Path(directory)
        _fill(place / "state", rows // 2)
        _divide(place, AFTER)  # kernels are compiled
        contestants = {"more": partial(_divide, place, AFTER), "fewer": partial(_divide, place, 5)}
        runs = take_turns(contestants, settings.repeat)
        found = sum(batch.num_rows for batch in StateRows(OpenedState(place / "divided"), "left").read())
    for name, told in (("more", "8 to 16"), ("fewer", "8 to 5")):
        rate = middle(runs[name], lambda run: run.rows / run.elapsed)
        yield Figure(f"rows of state, {told} groups", rate, "rows/s", None, Target(">=", 2e6))
        rate = middle(runs[name], lambda run: run.rows / run.processor)
        yield Figure(f"by processor time, {told}", rate, "rows/s")
    wrong = sum(run.rows != rows // 2 * 2 for each in runs.values() for run in each) + (found != rows // 2)
    yield exactness(wrong, "wrong runs, by row count")


def _divide(place: Path, groups: int) -> Divided:
    shutil.rmtree(place / "divided", ignore_errors=True)
    shutil.copytree(place / "state", place / "divided")
    began, before = time.perf_counter(), time.process_time()
    done = repartition(place / "divided", groups)
    return Divided(time.perf_counter() - began, time.process_time() - before, done.rows)


def _fill(place: Path, rows: int) -> None:
    """State of so many rows of each side, as the tasks of a query leave it."""
    rng = np.random.default_rng(1)
    schemas = [pa.schema({"id": pa.int64(), "at": pa.int64(), name: pa.string()}) for name in ("item", "carrier")]
    spec = JoinSpec(schemas[0], schemas[1], parse_on("id"))
    factory, placement = JoinFactory.of(spec, "auto"), Placement(spec, by_id=True)
    owner = Owner(factory.fingerprint, BEFORE, "query", describe=factory.described)
    for number in range(BATCHES):
        count = rows // BATCHES + (rows % BATCHES if number == BATCHES - 1 else 0)
        tables = []
        for side in (0, 1):
            ids = pa.array(rng.integers(0, 1 << 40, count))
            words = pa.array([f"word {n:03d}" for n in range(1000)]).take(pa.array(rng.integers(0, 1000, count)))
            tables.append(pa.RecordBatch.from_arrays([ids, pa.array(np.arange(count)), words], schema=schemas[side]))
        groups = [placement.groups([table.column(0)], side, BEFORE) for side, table in enumerate(tables)]
        for group in range(BEFORE):
            own = [(side, tables[side].filter(pa.array(groups[side] == group))) for side in (0, 1)]
            state = StateDirectory(place, owner, Batch(number, "run"), retain=2).group(group)
            for _ in SettledGroup(factory, MEMORY, state, OpenRuns()).results(iter(own), set):
                pass
