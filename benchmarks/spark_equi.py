"""Two streams joined on Spark, whole state kept: ours, Spark's own join, and what Spark needs to deliver the rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure, Target, exactness
from benchmarks.rounds import Settings, middle, take_turns
from benchmarks.spark_inputs import Keys, write_files
from benchmarks.spark_query import Account, Step, measure

ROWS = 2_000_000
FILES = 20
FILES_PER_BATCH = 4
MOST_REPEATS = 3
"""A run takes minutes."""


def spark_equi(settings: Settings) -> Iterator[Figure]:
    """2M+2M rows on Spark, local[2], 800k rows a batch, keys uniform over 2M."""
    runs, expected = _runs(settings, ["ours", *(["heap", "rocksdb"] if settings.peers else [])])
    for name, bound in {"heap": 3.0, "rocksdb": 12.0}.items():
        yield _rate(runs, name, bound)
        yield _cpu(runs, name)
    most = {name: middle(each, lambda run: run.memory / 1e6) for name, each in runs.items()}
    half = Target("<=", 0.5, of_ratio=True)
    yield Figure("memory, against heap", most["ours"], "MB", most.get("heap"), half)
    joins = [run.results for each in runs.values() for run in each]
    yield exactness(sum(found != expected for found in joins), "wrong runs, by row count")


def spark_drain(settings: Settings) -> Iterator[Figure]:
    """The same rows through the same plan, against an operator that drops everything."""
    runs, expected = _runs(settings, ["ours", "drain"])
    yield _rate(runs, "drain", 0.6)
    yield _cpu(runs, "drain")
    yield exactness(sum(run.results != expected for run in runs["ours"]), "wrong runs, by row count")


def _runs(settings: Settings, names: Sequence[str]) -> tuple[dict[str, list[Account]], int]:
    """What each contestant did in each round, and how many results there are."""
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place = Path(directory)
        rows = settings.rows(ROWS)
        keys = Keys(rows)
        sizes = [rows // FILES] * FILES
        expected = write_files(place / "all", keys, sizes)
        contestants = {name: partial(_measure, name, place) for name in names}
        return take_turns(contestants, min(MOST_REPEATS, settings.repeat)), expected


def _measure(contestant: str, place: Path) -> Account:
    """The second of two queries over all rows: Java goes on compiling for some million rows."""
    with tempfile.TemporaryDirectory(dir=place) as directory:
        steps = [Step(str(place / "all"), f"{directory}/{name}", FILES_PER_BATCH) for name in ("warm-up", "measured")]
        return measure(contestant, *steps)[1]


def _rate(runs: dict[str, list[Account]], peer: str, bound: float) -> Figure:
    """Rows a second without the first batch, in which Spark compiles its plan."""
    rates = {name: middle(each, lambda run: run.rate(skipped=1)) for name, each in runs.items()}
    target = Target(">=", bound, of_ratio=True)
    return Figure(f"rows a second, against {peer}", rates["ours"], "/s", rates.get(peer), target)


def _cpu(runs: dict[str, list[Account]], peer: str) -> Figure:
    """Processor time of JVM and workers, which other work on the machine touches less than it does the rate."""
    times = {name: middle(each, lambda run: 1e6 * run.cpu / sum(run.rows)) for name, each in runs.items()}
    return Figure(f"CPU a row, against {peer}", times["ours"], "us", times.get(peer))
