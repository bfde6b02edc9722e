"""`make soak`: a window join and a multijoin that run for long, with kills every minute; exact, and nothing grows.

make soak ARGS="--minutes 120"                     rows come out of Kafka, state is on an S3 server
make soak ARGS="--minutes 10 --verb window_join"   one of them

The verbs follow each other, each for its part of the time, on a cluster of two executors. Every minute a worker, an
executor or the driver is killed, in turns; then the sink must hold what the plainest of joins makes of all rows, each
result once. In between, the memory of all processes and the numbers of files are noted; that they are flat is told by
the middle of the last third of these notes, against that of the third before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from chaos.__main__ import _CLUSTER, say
from chaos.failures import FAILURES, Trial
from chaos.handle import Job
from chaos.verbs import STATE_ADDRESS, Verb
from chaos.work import Work
from servers.kafka import Broker
from servers.process import spark_jars
from servers.s3proxy import BUCKET, S3Proxy

_VERBS = ("window_join", "window_multijoin")
_KILLS = ("worker", "executor", "driver")
_EVERY = 60.0
_RETAIN = "10"
"""Batches that Spark may go back: older ones are dropped, so that what is kept is soon as much as it will ever be."""
_MOST_GROWTH = 1.25


@dataclass(frozen=True)
class Sample:
    """What there was at a moment, after all rows were taken in."""

    seconds: float
    batches: int
    results: int
    jvm_mb: float
    """Of the driver's Java process and of all executors."""
    workers_mb: float
    """Of all Python processes below them."""
    state_files: int
    checkpoint_files: int
    kill: str


class TopicWork(Work):
    """The same rows, as messages of a topic for each input, too: these are what is joined."""

    def __init__(self, place: Path, seed: int, verb: Verb, broker: Broker) -> None:
        super().__init__(place, seed, verb)
        self._broker = broker

    def _written(self, side: str, rows: Any) -> None:
        super()._written(side, rows)
        messages = (json.dumps(row, ensure_ascii=False).encode() for row in rows.to_pylist())
        self._broker.send(side, messages, range(1))


def _soak(place: Path, verb: str, minutes: float, seed: int, broker: Broker, buckets: Path) -> list[Sample]:
    conf = {"spark.jars": spark_jars("connector"), "spark.sql.streaming.minBatchesToRetain": _RETAIN}
    samples: list[Sample] = []
    with Job(place, _CLUSTER, conf=conf, verb=verb) as job:
        job.settings["kafka"] = broker.address
        for side in job.verb.inputs:
            broker.make_topic(side, 1)
        trial = Trial(job, TopicWork(place, seed, job.verb, broker), say)
        trial.begin()
        trial.rng = random.Random(f"soak {seed}")
        began = time.monotonic()
        while time.monotonic() - began < 60 * minutes:
            due = time.monotonic() + _EVERY
            kill = _KILLS[len(samples) % len(_KILLS)]
            told = FAILURES[kill](trial)
            while time.monotonic() < due:
                trial.work.offer(files=1)
                job.drain()
                time.sleep(1.0)
            trial.check()
            samples.append(_sample(job, place, buckets, time.monotonic() - began, trial.pairs, kill))
            last = samples[-1]
            say(f"{verb}: {told}; batch {last.batches}, {last.results} results, each once; JVMs {last.jvm_mb:.0f} MB, "
                f"workers {last.workers_mb:.0f} MB, {last.state_files} + {last.checkpoint_files} files")  # fmt: skip
        trial.check_with_spark()
        job.quit()
    return samples


def _sample(job: Job, place: Path, buckets: Path, seconds: float, results: int, kill: str) -> Sample:
    sizes = {"java": 0, "python": 0}
    for process in psutil.Process(job.pid).children(recursive=True):
        try:
            found, kind = process.memory_full_info(), "java" if "java" in process.name() else "python"
        except psutil.Error:
            continue
        sizes[kind] += getattr(found, "pss", found.rss)
    committed = [int(path.name) for path in (place / "checkpoint" / "commits").iterdir() if path.name.isdigit()]
    state = sum(len(files) for _, _, files in os.walk(buckets / BUCKET / place.name))
    checkpoint = sum(len(files) for _, _, files in os.walk(place / "checkpoint"))
    return Sample(
        round(seconds, 1), max(committed, default=-1), results, sizes["java"] / 1e6, sizes["python"] / 1e6, state,
        checkpoint, kill,
    )  # fmt: skip


def growth(values: list[float]) -> float:
    """The middle of the last third against that of the third before; 1 if there are too few to tell.

    >>> growth([1, 9, 10, 10, 10, 10, 10, 11, 11]), growth([5.0])
    (1.1, 1.0)
    """
    third = len(values) // 3
    if not third:
        return 1.0
    before, last = (statistics.median(each) for each in (values[-2 * third : -third], values[-third:]))
    return last / max(before, 1e-9)


def _table(samples: list[Sample]) -> dict[str, float]:
    """A line for each figure: what it was in the first, the middle and the last note, and how it has grown."""
    found = {}
    for name in ("jvm_mb", "workers_mb", "state_files", "checkpoint_files"):
        values = [float(getattr(sample, name)) for sample in samples]
        found[name] = growth(values)
        say(f"  {name:18} {values[0]:10.0f} {values[len(values) // 2]:10.0f} {values[-1]:10.0f}   x {found[name]:.2f}")
    return found


def main() -> int:
    """Run it, print the tables, and write all notes."""
    parser = argparse.ArgumentParser(
        prog="make soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=120.0, help="of all verbs together (default %(default)s)")
    parser.add_argument("--verb", action="append", choices=_VERBS, help="only this verb; may be repeated")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="draws the rows and the moments")
    parser.add_argument("--json", type=Path, help="where to write all that was noted")
    parser.add_argument("--place", type=Path, help="where to work; kept")
    given = parser.parse_args()
    place = given.place or Path(tempfile.mkdtemp(prefix="watersmeet-soak-"))
    verbs = given.verb or list(_VERBS)
    say(f"seed {given.seed}, in {place}")
    server = S3Proxy(place / "s3")
    os.environ[STATE_ADDRESS] = server.address("{}")
    notes: dict[str, Any] = {"seed": given.seed, "minutes": given.minutes, "verbs": {}}
    flat = True
    try:
        for verb in verbs:
            (place / f"broker-{verb}").mkdir(parents=True)
            with Broker(place / f"broker-{verb}") as broker:
                buckets = place / "s3" / "buckets"
                samples = _soak(place / verb, verb, given.minutes / len(verbs), given.seed, broker, buckets)
            say(f"{verb}: {len(samples)} kills, {samples[-1].batches + 1} batches, {samples[-1].results} results; "
                f"first, middle, last, growth:")  # fmt: skip
            grown = _table(samples)
            flat &= max(grown.values()) <= _MOST_GROWTH
            notes["verbs"][verb] = {"growth": grown, "samples": [asdict(sample) for sample in samples]}
    except BaseException as error:
        say(f"FAILED: {type(error).__name__}: {error}; seed {given.seed}; the files and logs are kept in {place}")
        raise
    finally:
        server.close()
        if given.json is not None:
            given.json.write_text(json.dumps(notes, indent=1))
    if given.place is None:
        shutil.rmtree(place)
    say(
        "exact after every kill; "
        + ("nothing has grown" if flat else f"something has grown by more than {_MOST_GROWTH}")
    )
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
