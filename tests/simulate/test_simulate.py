"""A little of `make simulate`: every kind of step and fault occurs, nothing goes wrong, and what is broken is found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulate import seeds
from simulate.disk import OPERATIONS
from simulate.embedded import VERBS
from simulate.faults import Faults
from simulate.seeds import Outcome, is_of_tasks, play, shrunk
from simulate.world import Trial
from watersmeet.matching.ledger import Ledger
from watersmeet.spark.state.directory import GroupState

PARTS, SEEDS = 1, 240
STEPS = (
    "arrive", "stall", "end", "polls", "snapshots", "restores", "taken up from a snapshot", "clock jumps", "killed",
    "started again", "went on after an error", "runs that spilled", "batches", "batches replayed", "tasks",
    "tasks killed", "tasks retried", "speculative attempts", "results of a second attempt", "two drivers at once",
    "drivers died", "state in a bucket", "names listed late", "puts refused", "damage named", "clear BudgetError",
    "clear SpillError", "spilled files torn", "spilled files altered", "spilled files with another page",
    "spilled damage named", "tasks outlived their driver", "rows looked up", "relations: build", "relations: upsert",
    "stream join with hot keys", "stream parallel_join", "stream lookup_join",
)  # fmt: skip


@pytest.mark.parametrize("part", range(PARTS))
def test_every_kind_of_step_and_fault_occurs_and_nothing_is_lost_or_left(part: int) -> None:
    steps: Counter[str] = Counter()
    injected: Counter[str] = Counter()
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        outcome = play(Trial(seed))
        assert outcome.error is None, f"{outcome}\n{outcome.trial.again}"
        steps += outcome.steps
        injected += outcome.injected
    assert not [name for name in STEPS if not steps[name]]
    assert not [verb.name for verb in VERBS if not steps[verb.name]]
    failed = {name.split()[0] for name in injected}
    assert {*OPERATIONS, "reserve", "put", "get"} <= failed, failed
    ways = {name.partition(" ")[2] for name in injected}
    assert {
        "ENOSPC",
        "EIO",
        "ENOSPC half",
        "EIO after",
        "kill",
        "kill after",
        "blind",
        "slow",
        "ECONNRESET after",
    } <= ways, ways


def test_a_seed_always_means_the_same() -> None:
    for seed in (1, 2, 5, 9, 14):
        one, other = play(Trial(seed)), play(Trial(seed))
        assert (one.steps, one.injected) == (other.steps, other.injected), seed


def goes_on_from_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is run again begins from what an attempt before it has published, not from the batch before."""
    real = GroupState.latest

    def latest(group: GroupState) -> Any:
        held, group._batch = group._batch, replace(group._batch, number=group._batch.number + 1)
        try:
            return real(group)
        finally:
            group._batch = held

    monkeypatch.setattr(GroupState, "latest", latest)


def never_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """That two rows met in memory is forgotten."""
    monkeypatch.setattr(Ledger, "together", staticmethod(lambda left, right: np.zeros(len(left.arrived), np.bool_)))


def found_within(most: int, tasks: bool) -> Outcome | None:
    """What the first seed that fails came to, of so many of a sort."""
    wanted = (seed for seed in range(100_000) if is_of_tasks(seed) is tasks)
    outcomes = (play(Trial(seed)) for _, seed in zip(range(most), wanted, strict=False))
    return next((outcome for outcome in outcomes if outcome.error is not None), None)


@pytest.mark.parametrize(
    ("mutant", "most", "tasks"),
    [(goes_on_from_itself, 30, True), (never_together, 30, False)],
)
def test_what_is_broken_is_found_and_shrunk(
    mutant: Any, most: int, tasks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    outcome = found_within(most, tasks)
    assert outcome is not None
    monkeypatch.setattr(seeds, "_MOST_TRIALS", 12)
    least = shrunk(outcome)
    assert type(least.error) is type(outcome.error)
    told = least.trial
    assert told.spared or told.rows < 1 or told.dropped or told.fuel > 1
    assert told.again.startswith(f'make simulate ARGS="--seed {told.seed} ')
    assert type(play(told).error) is type(least.error)


def test_garbage_that_is_collected_while_an_operation_is_counted_is_let_go() -> None:
    """Its finalizer removes a file in the same thread, which neither waits for itself nor changes over."""
    changed_over: list[str] = []
    faults = Faults(before=changed_over.append)

    class Collecting(Counter[str]):
        def total(self) -> int:
            faults.perform("unlink", lambda: None)
            return super().total()

    faults.calls = Collecting()
    assert faults.perform("write", lambda: "written") == "written"
    assert changed_over == ["write"]
    assert dict(faults.calls) == {"write": 1}


def test_rows_that_waited_for_a_disk_which_has_expired_leave_memory() -> None:
    """They owe nothing any more, and make room for others: a join of two kilobytes a row had none left."""
    outcome = play(Trial(900_881, stream="windows of the papers"))
    assert outcome.error is None
    assert outcome.steps["dumps"] and outcome.steps["expired segments"]
