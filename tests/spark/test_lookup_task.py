"""Tasks of a look-up, batch by batch: which version rows meet, what is kept, what is let go. No Spark."""

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

from watersmeet import Relation
from watersmeet.core.errors import RelationError
from watersmeet.core.lookup import HOW, LookupSpec, lookup_conditions
from watersmeet.spark.state.directory import Batch
from watersmeet.spark.task import lookup_task
from watersmeet.spark.task.figures import COLUMN
from watersmeet.spark.task.lookup_task import FIGURES, KeptLookups, LookupTask

STREAM = pa.schema({"sku": pa.int32(), "n": pa.int64()})


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> KeptLookups:
    found = KeptLookups()
    monkeypatch.setattr(lookup_task, "WORKER", found)
    return found


class Query:
    """Tasks of a query, as Spark would run them."""

    def __init__(self, place: Path, relation: Relation, how: str = "inner", memory: int = 1 << 20) -> None:
        self.place, self.relation = place, relation
        spec = LookupSpec(STREAM, relation.schema, lookup_conditions(None, relation.on), how)
        self.task = LookupTask(
            spec, spec.schema, str(relation.path), memory, "auto", state=str(place / "state"), retain=4
        )
        self.run = "run-1"
        self.figures: list[dict[str, int]] = []

    def answers(self, batch: int, skus: list[int | None]) -> Counter[Any]:
        """What one task of a batch answers."""
        rows = pa.record_batch([pa.array(skus, pa.int32()), pa.array(range(len(skus)))], schema=STREAM)
        found: Counter[Any] = Counter()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lookup_task, "current_batch", lambda: (Batch(batch, self.run), "query-1"))
            half = len(skus) // 2
            for out in self.task(iter([rows.slice(0, half), rows.slice(half)])):
                for row in out.to_pylist():
                    told = row.pop(COLUMN)
                    if told is None:
                        found[tuple(row.values())] += 1
                    else:
                        self.figures.append(dict(zip(FIGURES, told, strict=True)))
        return found


def _names(first: int, count: int, word: str) -> Iterator[dict[str, Any]]:
    return ({"sku": sku, "name": f"{word} {sku}"} for sku in range(first, first + count))


def _relation(tmp_path: Path, count: int = 10) -> Relation:
    return Relation.build(_names(0, count, "cup"), on="sku", path=tmp_path / "names.rel", segment="16 KiB")


def test_every_way_to_join_against_a_dict(tmp_path: Path) -> None:
    relation = _relation(tmp_path, 20_000)
    rng = np.random.default_rng(3)
    skus: list[int | None] = rng.integers(-500, 21_000, 3_000).tolist()
    skus[7] = None
    for how in HOW:
        query = Query(tmp_path / how, relation, how, 256 << 10)
        expected: Counter[Any] = Counter()
        for n, sku in enumerate(skus):
            known = sku is not None and 0 <= sku < 20_000
            if how == "semi" and known or how == "anti" and not known:
                expected[sku, n] += 1
            elif how == "inner" and known or how == "left":
                expected[sku, n, f"cup {sku}" if known else None] += 1
        assert query.answers(0, skus) == expected
        told = query.figures[0]
        assert (told["stream_rows"], told["results"]) == (3_000, expected.total())
        assert told["misses"] == sum(not (sku is not None and 0 <= sku < 20_000) for sku in skus)
        assert 0 < told["memory"] <= 256 << 10
        assert told["read"] > 0


def test_batches_without_rows_are_batches_like_any_other(tmp_path: Path) -> None:
    query = Query(tmp_path, _relation(tmp_path))
    answers = [query.answers(batch, skus) for batch, skus in enumerate(([], [1], [], [], [2, 3]))]
    assert [each.total() for each in answers] == [0, 1, 0, 0, 2]


def test_all_tasks_of_a_batch_and_those_that_repeat_it_meet_one_version(tmp_path: Path) -> None:
    relation = _relation(tmp_path)
    query = Query(tmp_path, relation)
    first = query.answers(0, [1, 2])
    relation.upsert(_names(0, 5, "pot"))
    assert query.answers(0, [1, 2]) == first == Counter({(1, 0, "cup 1"): 1, (2, 1, "cup 2"): 1})
    second = query.answers(1, [1, 9])
    assert second == Counter({(1, 0, "pot 1"): 1, (9, 1, "cup 9"): 1})
    for number in range(20):
        relation.upsert(_names(0, 5, f"pan {number}"))
    query.run = "run-2"  # the driver was killed before it had noted that batch 1 was done
    assert query.answers(1, [1, 9]) == second
    assert query.answers(2, [1, 9]) == Counter({(1, 0, "pan 19 1"): 1, (9, 1, "cup 9"): 1})
    # The versions of earlier batches are let go of once they cannot be asked for any more.
    assert query.answers(3, [1]).total() == 1
    holds = [path.name for path in relation.path.glob(".hold-*")]
    assert holds == [f".hold-{relation.latest.number}-query-1"]
    relation.upsert(_names(0, 1, "x"))
    relation.upsert(_names(0, 1, "y"))
    query.run = "run-3"
    with pytest.raises(RelationError, match=r"are to meet the relation as it was before: version 2 of .* is gone"):
        query.answers(1, [1])


def test_what_is_asked_for_stays_in_the_worker(tmp_path: Path, kept: KeptLookups) -> None:
    query = Query(tmp_path, _relation(tmp_path, 20_000), memory=4 << 20)
    skus: list[int | None] = list(range(0, 2_000, 3))
    query.answers(0, skus)
    query.answers(1, skus)
    assert query.figures[0]["read"] > 0 == query.figures[1]["read"]
    assert query.figures[1]["hits"] == len(skus)
    other = Query(tmp_path / "other", query.relation, "left", memory=4 << 20)
    third = Query(tmp_path / "third", query.relation, "anti", memory=4 << 20)
    for each in (other, third, query, third):
        made: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lookup_task.planner, "build_lookup", _noting(made, kept, lookup_task.planner.build_lookup))
            each.answers(2 if each is query else len(each.figures), skus)
        assert made == [each.task.memory], "the new operator and all that are kept, together"
        assert sum(join.budget.total for join in kept._kept.values()) == each.task.memory


def _noting(made: list[int], kept: KeptLookups, build: Any) -> Any:
    """Makes an operator, and notes what a worker may hold from then on."""

    def noted(*args: Any) -> Any:
        join = build(*args)
        made.append(join.budget.total + sum(each.budget.total for each in kept._kept.values()))
        return join

    return noted


def test_a_task_that_fails_leaves_no_operator_behind(tmp_path: Path, kept: KeptLookups) -> None:
    query = Query(tmp_path, _relation(tmp_path, 20_000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup_task, "current_batch", lambda: (Batch(0, "run-1"), "query-1"))
        rows = pa.record_batch([pa.array([1] * 500, pa.int32()), pa.array(range(500))], schema=STREAM)
        answers = query.task(iter([rows]))
        next(answers)
        answers.close()
    assert not kept._kept
    assert query.answers(0, [1]).total() == 1


def test_a_batch_dataframe_meets_the_version_of_its_plan(tmp_path: Path) -> None:
    relation = _relation(tmp_path)
    query = Query(tmp_path, relation)
    query.task = replace(query.task, state=None, version=relation.latest.number)
    relation.upsert(_names(0, 5, "pot"))
    rows = pa.record_batch([pa.array([3], pa.int32()), pa.array([0])], schema=STREAM)
    assert [out.to_pylist() for out in query.task(iter([rows]))] == [[{"sku": 3, "n": 0, "name": "cup 3"}]]
