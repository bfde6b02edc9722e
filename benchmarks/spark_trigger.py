"""Small batches on a large state: what a trigger takes, whether that grows with the state, and what a restart costs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import quantiles

from benchmarks.figures import Figure, Target, exactness
from benchmarks.rounds import Settings, middle, take_turns
from benchmarks.spark_inputs import Keys, write_files
from benchmarks.spark_query import Account, Step, measure

STATE_ROWS = 10_000_000
SMALL = 500
"""Rows of each side in a small batch."""
LARGE = 200_000
"""Rows of each side in a batch that fills the state."""
TRIGGERS = 220
SKIPPED = 20
RESTARTS = 3


def spark_trigger(settings: Settings) -> Iterator[Figure]:
    """1,000 rows a batch on 10M rows of state: ours, Spark's join with RocksDB, and ours on a tenth of the state."""
    names = {"ours": STATE_ROWS, "small": STATE_ROWS // 10, **({"rocksdb": STATE_ROWS} if settings.peers else {})}
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place = Path(directory)
        expected = {name: _write(place / name, settings.rows(rows), TRIGGERS) for name, rows in names.items()}
        contestants = {name: partial(_triggers, name, place / name) for name in names}
        runs = take_turns(contestants, 1)  # one takes minutes, and has two hundred triggers
    for other, bound in (("rocksdb", 0.4), ("small", 1.1)):
        against = {"rocksdb": "RocksDB", "small": "a tenth"}[other]
        target = Target("<=", bound, of_ratio=True)
        for name, of in {"median": 0.5, "p99": 0.99}.items():
            own, peer = (middle(runs.get(each), lambda run, q=of: _quantile(run, q)) for each in ("ours", other))
            yield Figure(f"{name} trigger, against {against}", own, "ms", peer, target if of == 0.5 else None)
        own, peer = (middle(runs.get(each), lambda run: 1e3 * run.cpu / TRIGGERS) for each in ("ours", other))
        yield Figure(f"CPU a trigger, against {against}", own, "ms", peer)
    wrong = sum(run.results != expected[name] for name, each in runs.items() for run in each)
    yield exactness(wrong, "wrong runs, by row count")


def spark_restart(settings: Settings) -> Iterator[Figure]:
    """10M rows of state: the first batch of 1,000 rows after a restart, against that of a new query."""
    rounds = min(RESTARTS, settings.repeat)
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place = Path(directory)
        _write(place, settings.rows(STATE_ROWS), 0)
        keys = Keys(settings.rows(STATE_ROWS) // 2)
        for i in range(rounds):
            write_files(place / f"more-{i}", keys, [SMALL], first=1_000_000 + i)
        measure("ours", _step(place, "fill", "live"))
        runs = [_restart(place, i) for i in range(rounds)]
    target = Target("<=", 2.0, of_ratio=True)
    own, peer = (middle(runs, lambda run, of=of: 1e3 * run[of]) for of in ("again", "new"))
    yield Figure("first batch after a restart", own, "ms", peer, target)


def _write(place: Path, rows: int, triggers: int) -> int:
    """Files that fill a state, files of small batches, a few of both to warm up; how many pairs the small ones make."""
    keys = Keys(max(1, rows // 2))
    batches = max(1, round(rows / 2 / LARGE))
    write_files(place / "fill", keys, [rows // 2 // batches] * batches)
    expected = write_files(place / "small", keys, [SMALL] * triggers, first=batches) if triggers else 0
    write_files(place / "warm-up", Keys(LARGE), [LARGE // 4, LARGE // 4, *[SMALL] * 20])
    return expected


def _step(place: Path, inputs: str, live: str) -> Step:
    return Step(str(place / inputs), str(place / live))


def _triggers(contestant: str, place: Path) -> Account:
    steps = [_step(place, "warm-up", "first"), _step(place, "fill", "live"), _step(place, "small", "live")]
    return measure("ours" if contestant == "small" else contestant, *steps)[2]


def _quantile(run: Account, quantile: float) -> float:
    return 1e3 * quantiles(run.seconds[SKIPPED:], n=100, method="inclusive")[round(100 * quantile) - 1]


def _restart(place: Path, number: int) -> dict[str, float]:
    """Seconds of the first batch, in a process that has not seen the state; before and after it, those of a new one."""
    more = f"more-{number}"
    lives = [f"first-{number}", f"before-{number}", "live", f"after-{number}"]
    _, before, again, after = measure(
        "ours", *(_step(place, inputs, live) for inputs, live in zip(["warm-up", *[more] * 3], lives, strict=True))
    )
    return {"again": again.seconds[0], "new": (before.seconds[0] + after.seconds[0]) / 2}
