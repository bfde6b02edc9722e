"""What fails while a query runs, a little of each kind; `make chaos` does all of it, many times and on a cluster."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.failures import Trial, damage, kill_driver, kill_worker, raise_after_publication
from chaos.handle import Job
from chaos.work import Work, difference


@pytest.fixture
def trial(java: None, tmp_path: Path) -> Iterator[Trial]:
    with Job(tmp_path, "local[2,4]") as job:
        trial = Trial(job, Work(tmp_path, 3, job.verb), print)
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


def test_the_comparison_sees_a_pair_that_is_lost_and_one_that_comes_twice() -> None:
    expected = Counter({("a", 1): 2, ("b", 1): 1})
    assert difference(Counter(expected), expected) == ""
    assert difference(Counter({("a", 1): 1, ("b", 1): 1}), expected).startswith(
        "1 pairs are missing (such as ('a', 1))"
    )
    assert "and 1 are too many (such as ('b', 1)) of 3" in difference(expected + Counter([("b", 1)]), expected)
    swapped = Counter({("a", 1): 1, ("b", 1): 2})
    assert "1 pairs are missing" in difference(swapped, expected) and "1 are too many" in difference(swapped, expected)
