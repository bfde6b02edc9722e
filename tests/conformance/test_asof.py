"""As-of joins against nested loops: any chunking, interleaving, fuel, budget, lateness and snapshot.

`HYPOTHESIS_PROFILE=deep` makes it 2,000 cases.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.checks.asof import conform_asof, make_asof_case
from watersmeet.checks.run import run_case
from watersmeet.core.asof import DIRECTIONS, AsofSpec, parse_asof
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End, Status
from watersmeet.core.spec import parse_on
from watersmeet.joins.asof.join import AsofJoin
from watersmeet.records.asof_times import AsofCodec
from watersmeet.spill.file_store import FileStore
from watersmeet.spill.store import MemoryStore

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
CHUNKS = 40 if DEEP else 1
CASES = 50 if DEEP else 40


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_left_row_once_with_its_nearest(chunk: int) -> None:
    summary = conform_asof(AsofJoin, cases=CASES, seed=chunk * CASES, fan_in=3)
    print(summary)
    assert summary.cases == CASES
    assert summary.restored >= CASES // 10
    assert summary.results > 20 * CASES
    assert summary.spilled > CASES / 4, summary
    events = dict(summary.events)
    for path in (*AsofJoin.paths, "merged"):
        assert events.get(path, 0) >= CASES / 20, (path, summary)
    assert {name.split(",")[0] for name, _ in summary.kinds} >= {*DIRECTIONS, "no order", "an order"}


@pytest.mark.parametrize("seed", range(7000, 7000 + (200 if DEEP else 30)))
def test_keys_of_one_hash_are_told_apart(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two bits of a hash, most rows of one hash have different keys."""

    def coarse(self: AsofCodec, side: int, columns: Any) -> Any:
        hashes, valid = real(self, side, columns)
        return hashes & 3, valid

    real = AsofCodec.hash
    monkeypatch.setattr(AsofCodec, "hash", coarse)
    monkeypatch.setattr(
        AsofCodec, "exact", property(lambda self: not self._forms, lambda self, value: None), raising=False
    )
    run_case(AsofJoin, make_asof_case(seed, AsofJoin, fan_in=3), fan_in=3)


def test_the_first_of_equal_times_stays_for_who_waits_to_be_nearest() -> None:
    """Two right rows came at the mark of the last settlement, of which only the last had been kept."""
    run_case(AsofJoin, make_asof_case(901_091, AsofJoin, fan_in=3), fan_in=3)


def test_runs_on_files(tmp_path: Any) -> None:
    for seed in range(8000, 8010):
        with FileStore(tmp_path) as store:
            run_case(AsofJoin, make_asof_case(seed, AsofJoin), store)


SIDE = pa.schema({"k": pa.int64(), "t": pa.int64(), "note": pa.string()})


def drive(join: AsofJoin, rounds: int, keys: int, rows: int, right_first: bool = False) -> tuple[int, int, int]:
    """Feed rows in the order of their times; returns results, and the most rows and segments remembered at once."""
    found = most = segments = 0
    rng = np.random.default_rng(5)
    for number in range(rounds):
        for side in (RIGHT, LEFT) if right_first else (LEFT, RIGHT):
            times = np.sort(rng.integers(number * 100, (number + 1) * 100, rows))
            notes = ["x" * 100] * rows
            batch = pa.record_batch([pa.array(rng.integers(0, keys, rows)), pa.array(times), pa.array(notes)], SIDE)
            join.receive(Arrive(side, batch))
            status = Status.HAS_OUTPUT
            while status is Status.HAS_OUTPUT or join.wake_at() is not None:
                step = join.poll(0.0, 10_000)
                found, status = found + step.cost.results, step.status
            join.check()
        most, segments = max(most, join.window_rows), max(segments, len(join.store.names()))
    return found, most, segments


def spec_of(direction: str = "backward", **more: Any) -> AsofSpec:
    return AsofSpec(SIDE, SIDE, parse_on("k"), "left", times=parse_asof("t", direction, lateness=0, **more))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_nobody_asks_for_is_forgotten(direction: str) -> None:
    """However long it goes on: the newest row of each key, and those that the left input has yet to pass."""
    tolerance = None if direction == "backward" else 50
    spec = spec_of(direction, tolerance=tolerance)
    store = MemoryStore()
    join = AsofJoin(spec, 400_000, store)
    found, most, _ = drive(join, 60, keys=20, rows=200)
    assert found > 60 * 200 * 0.9
    assert most < 60 * 200 / 4, "it remembers a share of all rows"
    assert join.events["right rows stayed"] + join.events["right rows written"] > 0


def test_keys_whose_newest_rows_do_not_fit_go_to_disk() -> None:
    spec = spec_of()
    store = MemoryStore()
    join = AsofJoin(spec, AsofJoin.least_memory(spec), store, fan_in=3)
    found, most, segments = drive(join, 60, keys=1500, rows=200, right_first=True)
    assert join.events["right rows written"] > 10 and join.events["merged"] > 2
    assert most < 6000 and segments < 60, (most, segments)
    for side in (LEFT, RIGHT):
        join.receive(End(side))
    while (step := join.poll(0.0, 10_000)).status is not Status.DONE:
        found += step.cost.results
    assert found + step.cost.results == 60 * 200


def test_rows_that_wait_for_a_key_that_never_comes_may_be_many_times_the_memory() -> None:
    """Each settlement brings them all back, and writes them again; there are never many runs of them."""
    spec = spec_of("forward")
    join = AsofJoin(spec, AsofJoin.least_memory(spec), MemoryStore(), fan_in=3)
    found = most = 0

    def tell(event: Any) -> None:
        nonlocal found, most
        join.receive(event)
        status = Status.HAS_OUTPUT
        while status is Status.HAS_OUTPUT or (status is not Status.DONE and join.wake_at() is not None):
            step = join.poll(0.0, 10_000)
            found, status = found + step.cost.results, step.status
            most = max(most, join.disk.runs)
        join.check()

    for start in range(0, 6000, 200):
        rows = [pa.array([-1] * 200), pa.array(range(start, start + 200)), pa.array(["x" * 200] * 200)]
        tell(Arrive(LEFT, pa.record_batch(rows, schema=SIDE)))
    for time in (10_000, 20_000, 30_000):
        tell(Arrive(RIGHT, pa.record_batch([[1], [time], ["y"]], schema=SIDE)))
    assert found == 0 and join.waiting_rows == 6000
    assert join.events["left rows read back"] > 3 * 20 and join.events["merged"] > 10
    assert most <= 16, "as many as there is always memory to remember"
    for side in (LEFT, RIGHT):
        tell(End(side))
    assert found == 6000


def test_a_left_row_is_answered_as_soon_as_the_right_input_has_passed_it() -> None:
    def answers(direction: str, rights: list[int], **more: Any) -> list[Any]:
        join = AsofJoin(spec_of(direction, **more), 1 << 20, MemoryStore())
        join.receive(Arrive(LEFT, pa.record_batch([[1], [10], ["l"]], schema=SIDE)))
        seen = []
        for time in rights:
            join.receive(Arrive(RIGHT, pa.record_batch([[1], [time], ["r"]], schema=SIDE)))
            out = None
            status = Status.HAS_OUTPUT
            while status is Status.HAS_OUTPUT or join.wake_at() is not None:
                step = join.poll(0.0, 100)
                out, status = step.out or out, step.status
            seen.append(None if out is None else out.column("t_right").to_pylist()[0] or "nobody")
        return seen

    assert answers("backward", [5, 10, 10, 11]) == [None, None, None, 10]
    assert answers("backward", [12]) == ["nobody"]
    assert answers("forward", [5, 10, 10]) == [None, 10, None]
    assert answers("forward", [5, 12, 13]) == [None, 12, None]
    assert answers("forward", [5, 14], tolerance=3) == [None, "nobody"]
    assert answers("nearest", [8, 11]) == [None, 11]
    assert answers("nearest", [8, 12, 13]) == [None, 8, None]
    assert answers("nearest", [5, 12, 13]) == [None, 12, None]
    assert answers("nearest", [5, 14], tolerance=3) == [None, "nobody"]
