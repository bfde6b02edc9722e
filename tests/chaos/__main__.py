"""`make chaos`: kill parts of a running streaming join, at random moments, and check every pair after each kill.

make chaos                                              everything
make chaos ARGS="--kind driver --count 2 --seed 7"      some of it, again
make chaos ARGS="--verb window_join"                    all of it under one verb
make chaos ARGS="--state s3"                            with the state on an S3 server
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.failures import FAILURES, Trial
from chaos.handle import Job
from chaos.standalone import Standalone
from chaos.verbs import STATE_ADDRESS, VERBS
from chaos.work import Work
from servers.s3proxy import S3Proxy

_CLUSTER = "local-cluster[2,1,1024]"
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.task.duration.threshold": "2s",  # where a stage has one task, there are no others to compare
    "spark.executor.memory": "1g",
    "spark.executor.cores": "1",
    "spark.driver.host": "127.0.0.1",
}
_OFTEN = {"worker": 20, "exception": 10, "executor": 20, "driver": 10, "replay": 2, "segment": 3, "speculation": 6}
_SELDOM = {"worker": 6, "exception": 4, "executor": 6, "driver": 4, "replay": 2, "segment": 3, "speculation": 3}
_NOTHING_PUBLISHED = {"worker": 4, "executor": 4, "driver": 4, "replay": 2, "speculation": 2}
_COUNTS = {"join": _OFTEN, "lookup_join": _NOTHING_PUBLISHED}
"""How often each failure meets a verb in a whole run; others are met seldom."""
_START = time.monotonic()


def say(text: str) -> None:
    """A line with the time since the start."""
    print(f"{time.monotonic() - _START:7.1f} s  {text}", flush=True)


@contextmanager
def trial_of(place: Path, seed: int, master: str, conf: dict[str, str], verb: str) -> Iterator[Trial]:
    """A query on a cluster of its own."""
    with Job(place, master, conf=conf, verb=verb) as job:
        trial = Trial(job, Work(place, seed, job.verb), say)
        say(f"starting a query on {master}")
        trial.begin()
        yield trial
        job.quit()


def run(kind: str, trial: Trial, count: int, seed: int, of: str) -> str:
    """A kind of failure, so many times; its line of the summary."""
    failure = FAILURES[kind]
    trial.rng, start, checks = random.Random(f"{kind} {seed}"), time.monotonic(), trial.checks
    trial.steps.clear()
    for number in range(1, count + 1):
        say(f"{of}, {kind} {number}/{count}: {failure(trial)}; {trial.pairs} pairs, each once")
    trial.check_with_spark()
    steps = ", ".join(f"{step} {times}" for step, times in sorted(trial.steps.items()))
    seconds = time.monotonic() - start
    return f"{of + ', ' + kind:26} {count:3} failures, {trial.checks - checks:3} checks, {seconds:5.0f} s   ({steps})"


def _end_inputs(trial: Trial) -> None:
    """Where inputs are to end: end them, and see that what was owed comes."""
    if trial.job.verb.ends:
        owed = trial.end_inputs()
        say(f"the inputs have ended: {owed} pairs were owed until then, {trial.pairs} in all")


def main() -> int:
    """Run what was asked for, and sum up."""
    parser = argparse.ArgumentParser(
        prog="make chaos", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kind", action="append", choices=FAILURES, help="only this kind of failure; may be repeated")
    parser.add_argument("--verb", action="append", choices=VERBS, help="only this verb; may be repeated")
    parser.add_argument("--count", type=int, help="so many failures of each kind")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="draws the rows and the moments")
    parser.add_argument("--place", type=Path, help="where to work; kept")
    parser.add_argument("--state", choices=("disk", "s3"), default="disk", help="where state is (default %(default)s)")
    given = parser.parse_args()
    place = given.place or Path(tempfile.mkdtemp(prefix="watersmeet-chaos-"))
    verbs = given.verb or list(VERBS)
    # What is damaged is a file of this machine's: state elsewhere has none.
    kinds = [kind for kind in FAILURES if kind in (given.kind or FAILURES) and (kind, given.state) != ("segment", "s3")]
    counts = {
        verb: {kind: given.count or count for kind, count in _COUNTS.get(verb, _SELDOM).items() if kind in kinds}
        for verb in verbs
    }
    say(f"seed {given.seed}, in {place}")
    summary = []
    server = S3Proxy(place / "s3") if given.state == "s3" else None
    if server is not None:
        os.environ[STATE_ADDRESS] = server.address("{}")
    try:
        for verb in verbs:
            together = {kind: count for kind, count in counts[verb].items() if kind != "speculation"}
            if together:
                with trial_of(place / verb, given.seed, _CLUSTER, {}, verb) as trial:
                    summary += [run(kind, trial, count, given.seed, verb) for kind, count in together.items()]
                    _end_inputs(trial)
        if any("speculation" in counts[verb] for verb in verbs):
            with Standalone(place / "standalone") as cluster:
                for verb in verbs:
                    conf, at = _SPECULATION, place / f"speculation-{verb}"
                    with trial_of(at, given.seed, cluster.master, conf, verb) as trial:
                        summary.append(run("speculation", trial, counts[verb]["speculation"], given.seed, verb))
                        _end_inputs(trial)
    except BaseException as error:
        say(f"FAILED: {type(error).__name__}: {error}")
        say(f"seed {given.seed}; the files and logs are kept in {place}")
        raise
    finally:
        if server is not None:
            server.close()
    say("all of these failures, and after each of them the sink held every pair that was due exactly once:")
    for line in summary:
        say(line)
    if given.place is None:
        shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
