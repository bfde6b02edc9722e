"""What fails while a query runs, a little of each kind; `make chaos` does all of it, many times and on a cluster."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.failures import Trial, damage, kill_driver, kill_worker, raise_after_publication
from chaos.handle import Job
from chaos.work import Work


@pytest.fixture
def trial(java: None, tmp_path: Path) -> Iterator[Trial]:
    with Job(tmp_path, "local[2,4]") as job:
        trial = Trial(job, Work(tmp_path, 3), print)
        trial.rng = random.Random(3)
        trial.begin()
        yield trial
        job.quit()


def test_the_sink_has_every_pair_once_after_any_failure(trial: Trial) -> None:
    for failure in (kill_worker, raise_after_publication, kill_driver, damage, damage):
        print(failure(trial))
    trial.check_with_spark()
    assert trial.checks >= 7
    assert trial.pairs > 10_000
