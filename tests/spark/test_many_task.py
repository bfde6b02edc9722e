"""Tasks of a join of several endless inputs, with windows and without, batch by batch: killed, repeated, restored or
kept, all groups give what the oracle gives. No Spark."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings

from spark.pipelines import GROUPS, place_of
from spark.pipelines import ManyPipeline as Pipeline
from spark.window_oracle import (
    Killed,
    expected_in_windows,
    is_sparks_multi,
    killed_after,
    many_micro_batches,
    rows_in_all,
    without_silences,
)
from watersmeet.checks.multi_cases import MultiCase, make_multi_case, make_preserving_case
from watersmeet.checks.multi_windows import make_multi_window_case
from watersmeet.checks.run import expected_rows
from watersmeet.core.errors import BudgetError, LateRowError, SpecError
from watersmeet.core.many_windows import parse_many_windows
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.windows import rows
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.joins.window.windowed_mjoin import WindowedMJoin
from watersmeet.spark.io.source import END
from watersmeet.spark.plan.control_rows import SIGN_CODES
from watersmeet.spark.plan.multi_recipe import MultiFactory
from watersmeet.spark.state import open_runs
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.task import operator_cache as kept_operators
from watersmeet.spark.task.figures import SCALARS
from watersmeet.spark.task.operator_cache import KeptOperators
from watersmeet.spark.task.settled_group import check_memory

LEAST = settings().max_examples // 10
MOST = 4 * LEAST
"""Cases; there are more than the least only until all has been seen that is to happen in some."""
_ENDS = SIGN_CODES[END]


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


WANTED = ("killed", "replayed", "spilled", "late", "divided", "copied", "grid")
JOINS = {"auto": ManyConfluence, "mjoin": WindowedMJoin}


def _cases(make: Any, count: int, algorithm: str = "auto", first: int = 0) -> Iterator[MultiCase]:
    seed = first
    join = ManyConfluence if make is not make_multi_window_case else JOINS[algorithm]
    while count:
        case = make(seed, join)
        if is_sparks_multi(case.spec) and not (case.spec.window is not None and case.spec.window.counted):
            count -= 1
            yield without_silences(case)
        seed += 1


def _shuffled(tables: list[pa.RecordBatch], rng: np.random.Generator) -> list[pa.RecordBatch]:
    return [table.take(pa.array(rng.permutation(table.num_rows))) for table in tables]


def _another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has kept nothing."""
    monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
    monkeypatch.setattr(open_runs, "WORKER", OpenRuns())


@pytest.mark.parametrize(
    ("make", "algorithm"),
    [
        (make_multi_case, "auto"), (make_preserving_case, "auto"), (make_multi_window_case, "auto"),
        (make_multi_window_case, "mjoin"),
    ],
)  # fmt: skip
def test_killed_repeated_and_restarted_batches_give_every_result_once(
    make: Any, algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[str] = Counter()
    for done, case in enumerate(_cases(make, MOST, algorithm)):
        if done >= LEAST and all(seen[each] for each in WANTED) and seen["found"] > 100:
            break
        rng = np.random.default_rng([case.seed, 78])
        windowed, ends = case.spec.window is not None, make is make_preserving_case
        memory = case.memory * 8 // 5 + 64 if windowed else case.memory
        groups = 3 + case.seed % 2
        pipeline = Pipeline(tmp_path / str(case.seed), case.spec, memory, ends=ends, algorithm=algorithm, groups=groups)
        _another_worker(monkeypatch)
        found: list[pa.RecordBatch] = []
        batches = many_micro_batches(case, rng)
        last = [int(rng.integers(len(batches) - 1, len(batches) + 1)) for _ in case.tables] if ends else []
        for number, tables in enumerate([*batches, *([[t.slice(0, 0) for t in case.tables]] if ends else [])]):
            ended = tuple(i for i, at in enumerate(last) if at == number)
            if rng.random() < 0.3:
                _another_worker(monkeypatch)
            if rng.random() < 0.4:
                with killed_after(int(rng.integers(0, 8))):
                    try:
                        pipeline.batch(number, tables, ended=ended)
                    except Killed:
                        seen["killed"] += 1
                        _another_worker(monkeypatch)
            pipeline.wakes = rng.random() < 0.7
            results = pipeline.batch(number, tables, ended=ended)
            while rng.random() < 0.4:  # repeated, by this run or by the next one, in another order
                seen["replayed"] += 1
                group = None
                if rng.random() < 0.5:
                    pipeline.run = f"run-{number}-{seen['replayed']}"
                else:
                    group = int(rng.integers(pipeline.groups))
                again = pipeline.batch(number, _shuffled(tables, rng), group, ended)
                own = results if group is None else pipeline.batch(number, tables, group, ended)
                assert rows_in_all(again) == rows_in_all(own), case
            found += results
        expected = expected_in_windows(case.spec, batches) if windowed else expected_rows(case)
        assert rows_in_all(found) == expected, case
        seen["found"] += expected.total()
        seen["spilled"] += pipeline.total("spilled") > 0
        seen["late"] += pipeline.total("late") if windowed else 1
        seen["divided"] += pipeline.groups > 1
        seen["copied"] += any(len(pipeline.grid.copies(number)) > 1 for number in range(len(pipeline.spec.names)))
        seen["grid"] += len(pipeline.grid.axes) > 1
    assert all(seen[each] for each in WANTED), seen
    assert seen["found"] > 100, seen


SCHEMA = pa.schema({"id": pa.int64(), "at": pa.int64()})
ON = ["r.id = s.id", "s.id = t.id"]


def _spec(**window: Any) -> MultiSpec:
    windows = parse_many_windows({"r": 10, "s": 2, "t": 10}, "rst", time="at", **window)
    return MultiSpec.of(dict.fromkeys("rst", SCHEMA), ON, window=windows)


def _tables(*rows: list[tuple[int, int]]) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array([k for k, _ in each], pa.int64()), pa.array([t for _, t in each], pa.int64())],
                            schema=SCHEMA) for each in rows]  # fmt: skip


def _files(pipeline: Pipeline, start: str = "operator") -> list[str]:
    return sorted(path.name for path in pipeline.path.glob(f"group-*/{start}*"))


def test_rows_expire_by_what_other_groups_have_seen(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, _spec(), 4 << 20)
    ids = {place_of((value,), GROUPS): value for value in range(40)}
    apart = [ids[group] for group in range(GROUPS)]
    pipeline.batch(0, _tables(*[[(key, 0) for key in apart]] * 3))
    assert pipeline.figures[-1][6 + SCALARS.index("state_rows")] == 3
    # Only one group has rows, whose times the others learn of with the next batch; a group that nobody wakes waits.
    pipeline.batch(1, _tables(*[[(apart[0], 100)]] * 3))
    pipeline.figures.clear()
    found = pipeline.batch(2, _tables([(apart[0], 101)], [], []))
    assert sum(batch.num_rows for batch in found) == 1
    told = [each[6 + SCALARS.index("state_rows")] for each in pipeline.figures]
    assert sorted(told)[:2] == [0, 0]


@pytest.mark.parametrize(
    ("algorithm", "memory"), [("mjoin", 160 << 10), ("mjoin", 4 << 20), ("auto", 144 << 10), ("auto", 4 << 20)]
)
def test_state_stays_as_large_as_windows(
    algorithm: str, memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(tmp_path, _spec(), memory, algorithm=algorithm)
    most, rng = [], np.random.default_rng(5)
    for number in range(24):
        keys = rng.integers(0, 2_000, (3, 600))
        rows = [[(int(key), 5 * number + i % 5) for i, key in enumerate(own)] for own in keys]
        pipeline.batch(number, _tables(*rows))
        most.append(sum(each[6 + SCALARS.index("state_rows")] for each in pipeline.figures[-GROUPS:]))
        if number % 5 == 0:
            _another_worker(monkeypatch)
    assert max(most[12:]) <= 1.2 * max(most[:12])
    assert max(most) < 24 * 1800 // 2
    files = len(_files(pipeline)) / len(most)
    assert files < 20, "of rows in memory, and of runs that have not expired"
    if algorithm == "mjoin":
        assert (pipeline.total("spilled") > 0) == (memory < 1 << 20)
    else:
        assert pipeline.total("written") > 0, "every batch ends with runs"


def test_a_row_that_is_late_in_all_groups_is_late_in_each(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, _spec(late="drop"), 4 << 20)
    pipeline.batch(0, _tables([(1, 50)], [(1, 50)], [(1, 50)]))
    found = pipeline.batch(1, _tables([(2, 49)], [(2, 50)], [(2, 50)]))
    assert not found
    assert pipeline.total("late") == 1
    pipeline = Pipeline(tmp_path / "error", _spec(late="error"), 4 << 20)
    pipeline.batch(0, _tables([(1, 50)], [], []))
    with pytest.raises(LateRowError, match="batch 1 has a row of r that comes later than lateness=0 allows"):
        pipeline.batch(1, _tables([(2, 49)], [], []))


def test_what_endless_inputs_keep_is_in_runs_and_few_of_them(tmp_path: Path) -> None:
    spec = replace(_spec(), window=None)
    pipeline = Pipeline(tmp_path, spec, 4 << 20, groups=1)
    counts, rng = [], np.random.default_rng(3)
    for number in range(40):
        keys = rng.integers(0, 50, (3, 4))
        pipeline.batch(number, _tables(*[[(int(key), number) for key in own] for own in keys]), 0)
        counts.append(len(_files(pipeline)))
    assert max(counts) < 3 * 40, "runs are merged"
    assert [each[6 + SCALARS.index("state_rows")] for each in pipeline.figures] == [12 * (n + 1) for n in range(40)]
    assert not pipeline.total("work_left")


def test_an_input_without_partners_to_come_is_forgotten(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, replace(_spec(), window=None), 4 << 20, ends=True, groups=1)
    pipeline.batch(0, _tables([(1, 0)], [(1, 0)], [(1, 0)]), 0)
    pipeline.batch(1, _tables([], [], []), 0, ended=(0, 1))
    # Rows of t meet those of r and s, which stay; those of t wait for nobody.
    assert pipeline.figures[-1][6 + SCALARS.index("state_rows")] == 2
    found = pipeline.batch(2, _tables([], [], [(1, 5), (2, 5)]), 0)
    assert sum(batch.num_rows for batch in found) == 1
    assert pipeline.figures[-1][6 + SCALARS.index("state_rows")] == 2
    pipeline.batch(3, _tables([], [], []), 0, ended=(2,))
    assert pipeline.figures[-1][6 + SCALARS.index("state_rows")] == 0


def test_words_that_do_not_fit() -> None:
    counted = parse_many_windows(rows(10), "rst")
    with pytest.raises(SpecError, match="neither is known to the tasks of a batch; give windows of time"):
        MultiFactory.of(replace(_spec(), window=counted), "auto")
    with pytest.raises(SpecError, match="miner knows no windows; choose algorithm='confluence' or 'mjoin'"):
        MultiFactory.of(_spec(), "miner")
    with pytest.raises(BudgetError, match="too little for a task of this join; allow at least"):
        check_memory(1000, MultiFactory.of(replace(_spec(), window=None), "auto"))
