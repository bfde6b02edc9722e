"""The state of a join of several inputs, divided anew in mid-stream: the same results, whatever is copied. No Spark."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark.divided_streams import ManyStream, Tables, cut, killed_at
from spark.window_oracle import expected_in_windows
from watersmeet.core.errors import SnapshotError
from watersmeet.core.many_windows import parse_many_windows
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.windows import NOWHERE
from watersmeet.joins import division
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.runs.run_set import RunSet
from watersmeet.spark.offline import dividing_many
from watersmeet.spark.offline.opened import OpenedState, verify
from watersmeet.spark.offline.repartition import repartition
from watersmeet.spark.plan.grid import Grid, grid_for
from watersmeet.spark.plan.multi_recipe import MultiFactory
from watersmeet.spark.state.described import described, many_spec_of
from watersmeet.spark.state.directory import Batch, Owner, StateDirectory

ONE = ["r.id = s.id", "s.id = t.id"]
CHAIN = ["r.id = s.id", "s.b = t.b"]
STAR = ["r.id = s.id", "r.id = t.ref", "r.b = s.b"]


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def _inputs(rng: np.random.Generator, types: list[pa.DataType], rows: int = 150) -> Tables:
    tables = []
    for name, type_ in zip("rst", types, strict=True):
        numbers = rng.integers(0, 40, rows)
        if pa.types.is_string(type_):
            keys = pa.array([f"k{each}" for each in numbers])
        else:
            keys = pa.array(numbers.astype(np.int16)).cast(type_)
        keys = pa.array([None if i % 13 == 0 else value for i, value in enumerate(keys)], type_)
        columns = {
            "ref" if name == "t" else "id": keys,
            "b": rng.integers(0, 25, rows),
            name: [f"{i}" for i in range(rows)],
        }
        if name == "t":
            columns["id"] = keys
        tables.append(pa.record_batch(columns))
    return tables


CASES = [
    (ONE, [pa.int64(), pa.int32(), pa.int64()]),
    (ONE, [pa.string(), pa.string(), pa.string()]),
    (CHAIN, [pa.int64(), pa.int64(), pa.int64()]),
    (CHAIN, [pa.decimal128(9, 1), pa.int16(), pa.int64()]),
    (STAR, [pa.int64(), pa.float64(), pa.int64()]),
    (STAR, [pa.string(), pa.string(), pa.string()]),
]


@pytest.mark.parametrize("seed", range(2 * len(CASES)))
def test_joins_of_several_inputs_give_the_same_whenever_they_are_divided_anew(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng([seed, 9])
    on, types = CASES[seed % len(CASES)]
    monkeypatch.setattr(division, "AT_ONCE", int(rng.choice([3, 20, 1 << 20])))
    monkeypatch.setattr(division, "_BLOCK_BYTES", int(rng.choice([64, 1 << 16])))
    tables = _inputs(rng, types)
    spec = MultiSpec.of({name: table.schema for name, table in zip("rst", tables, strict=True)}, on)
    batches = [list(each) for each in zip(*(cut(table, 6) for table in tables), strict=True)]
    ended = {4: (2,), 5: (0, 1)} if seed % 2 else {}
    if ended:
        batches[5][2] = batches[5][2].slice(0, 0)
    one = ManyStream(tmp_path / "one", spec, 1)
    expected = [one.batch(number, each, ended.get(number, ())) for number, each in enumerate(batches)]
    stream, divisions = ManyStream(tmp_path / "state", spec, 3, memory=4 << 20), 0
    for number, of_batch in enumerate(batches):
        found = stream.batch(number, of_batch, ended.get(number, ()))
        if rng.random() < 0.3:  # killed before Spark had noted that the batch was over: it is carried out once more
            stream.run = f"run-{number}"
            if rng.random() < 0.6:
                stream.groups = _divided(stream, rng)
            assert stream.batch(number, of_batch, ended.get(number, ())) == found
        assert found == expected[number], (seed, number)
        if rng.random() < 0.8:
            stream.groups = _divided(stream, rng)
            divisions += 1
            if rng.random() < 0.5:
                stream.run = f"run-{number}-again"
    assert divisions > 1 and sum(map(Counter.total, expected)) > 20
    assert not verify(OpenedState(tmp_path / "state")).damaged


def _divided(stream: ManyStream, rng: np.random.Generator) -> int:
    groups = int(rng.choice([1, 2, 3, 4, 5, 6]))
    done = repartition(stream.path, groups)
    assert (done.before, done.after) == (stream.groups, grid_for(stream.spec, groups).groups)
    return done.after


def test_what_cannot_be_divided_is_told(tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.int64(), "b": pa.int64()})
    inputs = dict.fromkeys("rst", schema)
    row = pa.record_batch({"id": [1], "b": [1]}, schema)
    windows = parse_many_windows(10, "rst", "b")
    ending = MultiSpec.of(inputs, ONE, how={"s": "left"})
    for number, (spec, algorithm, told) in enumerate([
        (MultiSpec.of(inputs, ONE, window=windows), "mjoin", "a wms.multijoin by 'mjoin', which keeps rows in memory"),
        (ending, "auto", "rows of s come out in any case, and each group counts them by itself"),
    ]):  # fmt: skip
        factory = MultiFactory.of(spec, algorithm)
        owner = Owner(factory.fingerprint, 2, "query", describe=factory.described)
        state = StateDirectory(tmp_path / str(number), owner, Batch(0, "run"), retain=4)
        assert state.group(0).latest() is None
        with pytest.raises(SnapshotError, match=told):
            repartition(tmp_path / str(number), 3)
        assert many_spec_of(described("multijoin", spec, "any")) == spec
    stream = ManyStream(tmp_path / "old", MultiSpec.of(inputs, ONE), 2)
    stream.batch(0, [row, row, row])
    assert repartition(stream.path, 4).rows == 3


@pytest.mark.parametrize("groups", [3, 4], ids=["a line", "a grid"])
@pytest.mark.parametrize("taken", [True, False], ids=["from all groups", "from none"])
def test_copies_are_taken_from_one_group(
    taken: bool, groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    tables = _inputs(rng, [pa.int64()] * 3)
    spec = MultiSpec.of({name: table.schema for name, table in zip("rst", tables, strict=True)}, CHAIN)
    batches = [list(each) for each in zip(*(cut(table, 2) for table in tables), strict=True)]
    assert grid_for(spec, groups).groups == groups
    one, stream = ManyStream(tmp_path / "one", spec, 1), ManyStream(tmp_path / "state", spec, groups, memory=4 << 20)
    assert one.batch(0, batches[0]) == stream.batch(0, batches[0])
    monkeypatch.setattr(Grid, "is_first", lambda grid, number, group: taken or not grid.copies(number)[1:])
    assert repartition(stream.path, 2).after == 2
    stream.groups = 2
    assert one.batch(1, batches[1]) != stream.batch(1, batches[1])


def _timed(rng: np.random.Generator, types: list[pa.DataType], rows: int = 150, late: int = 60) -> Tables:
    """The same with times that rise, but for some rows that come late."""
    tables = []
    for table in _inputs(rng, types, rows):
        times = 5 * np.arange(rows) - rng.integers(0, late, rows) * (rng.random(rows) < 0.4)
        tables.append(table.append_column("at", pa.array(times, mask=rng.random(rows) < 0.02)))
    return tables


def _windowed(tables: Tables, on: list[str], late: str, windows: Any = None) -> MultiSpec:
    spans = parse_many_windows(windows or {"r": 160, "s": 60, "t": 230}, "rst", "at", 20, late)
    return MultiSpec.of({name: table.schema for name, table in zip("rst", tables, strict=True)}, on, window=spans)


@pytest.mark.parametrize("seed", range(2 * len(CASES)))
def test_joins_by_windows_give_the_same_whenever_they_are_divided_anew(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng([seed, 12])
    on, types = CASES[seed % len(CASES)]
    monkeypatch.setattr(division, "AT_ONCE", int(rng.choice([3, 20, 1 << 20])))
    tables = _timed(rng, types)
    wide = {"r": 500, "s": 300, "t": 600}  # where few rows match
    spec = _windowed(tables, on, "drop" if seed % 3 == 2 else "keep", wide if on == STAR else None)
    batches = [list(each) for each in zip(*(cut(table, 8) for table in tables), strict=True)]
    stream, found, divisions = ManyStream(tmp_path / "state", spec, 3), Counter[Any](), 0
    stream.memory = int(rng.choice([MultiFactory.of(spec, "auto").least_memory() * 8 // 5 + 64, 4 << 20]))
    for number, of_batch in enumerate(batches):
        last = stream.batch(number, of_batch)
        if rng.random() < 0.3:  # killed before Spark had noted that the batch was over: it is carried out once more
            stream.run = f"run-{number}"
            if rng.random() < 0.6:
                stream.groups = _divided(stream, rng)
            assert stream.batch(number, of_batch) == last
        found += last
        if rng.random() < 0.7:
            stream.groups = _divided(stream, rng)
            divisions += 1
            if rng.random() < 0.5:
                stream.run = f"run-{number}-again"
    assert found == expected_in_windows(spec, batches), seed
    assert divisions > 1 and found.total() > 3
    assert not verify(OpenedState(tmp_path / "state")).damaged


def _one_by_one(place: Path, spec: MultiSpec, batches: list[Tables], groups: list[int]) -> Counter[Any]:
    """What all batches give, with the state divided anew before each."""
    stream, found = ManyStream(place, spec, groups[0], memory=4 << 20), Counter[Any]()
    for number, tables in enumerate(batches):
        if number:
            stream.groups = repartition(place, groups[number % len(groups)]).after
        found += stream.batch(number, tables)
    return found


@pytest.mark.parametrize("mutant", ["none", "spans", "counts of rows", "how far inputs have come", "sets"])
def test_what_windows_lose_on_the_way_is_found_out(
    mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ManyConfluence.know_times
    if mutant == "spans":
        monkeypatch.setattr(
            dividing_many, "RunSet", lambda runs, epoch, level, span: RunSet(runs, epoch, level, NOWHERE)
        )
    elif mutant == "counts of rows":
        none = lambda at: replace(at, rows=(0,) * len(at.rows))  # noqa: E731
        monkeypatch.setattr(ManyConfluence, "know_times", lambda join, at, late: real(join, none(at), late))
    elif mutant == "how far inputs have come":
        far = lambda at: replace(at, newest=tuple(each + 200 for each in at.newest))  # noqa: E731
        monkeypatch.setattr(ManyConfluence, "know_times", lambda join, at, late: real(join, far(at), late))
    elif mutant == "sets":
        first = ManyConfluence.adopt
        monkeypatch.setattr(
            ManyConfluence, "adopt", lambda join, number, sets, named: first(join, number, sets[1:], named)
        )
    differ = 0
    for seed in range(4):
        rng = np.random.default_rng([seed, 13])
        tables = _timed(rng, [pa.int64()] * 3, late=500)
        spec = _windowed(tables, [ONE, CHAIN][seed % 2], "keep")
        batches = [list(each) for each in zip(*(cut(table, 6) for table in tables), strict=True)]
        differ += _one_by_one(tmp_path / str(seed), spec, batches, [3, 1, 4]) != expected_in_windows(spec, batches)
    assert (differ > 0) == (mutant != "none")


def test_windows_that_are_killed_at_any_step_are_divided_or_not(tmp_path: Path) -> None:
    tables = _timed(np.random.default_rng(5), [pa.int64()] * 3, rows=60)
    spec = _windowed(tables, ONE, "keep")
    batches = [list(each) for each in zip(*(cut(table, 3) for table in tables), strict=True)]
    one = ManyStream(tmp_path / "one", spec, 1, memory=4 << 20)
    expected = [one.batch(number, each) for number, each in enumerate(batches)]
    stream = ManyStream(tmp_path / "state", spec, 1, memory=4 << 20)
    assert [stream.batch(number, each) for number, each in enumerate(batches[:2])] == expected[:2]
    assert expected[1] and expected[2]
    outcomes: Counter[int] = Counter()
    step, killed = 0, True
    while killed:
        copy = tmp_path / f"copy-{step}"
        shutil.copytree(tmp_path / "state", copy)
        killed = killed_at(step, lambda copy=copy: repartition(copy, 2))
        groups = OpenedState(copy).groups
        outcomes[groups] += killed
        again = ManyStream(copy, spec, groups, run=f"run-{step}", memory=4 << 20)
        # Spark goes on with the next batch, or carries out the last one once more.
        if step % 3 == 1:
            assert again.batch(1, batches[1]) == expected[1], step
        assert again.batch(2, batches[2]) == expected[2], step
        shutil.rmtree(copy)
        step += 1
    assert outcomes[1] > 30 and outcomes[2] > 5, outcomes


def test_a_state_all_of_whose_rows_have_expired_can_be_divided(tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.int64(), "t": pa.int64()})
    spec = MultiSpec.of(dict.fromkeys("rst", schema), ONE, window=parse_many_windows(10, "rst", "t"))
    stream = ManyStream(tmp_path, spec, 3, memory=4 << 20)
    rows = lambda keys, time: pa.record_batch({"id": keys, "t": [time] * len(keys)}, schema)  # noqa: E731
    assert stream.batch(0, [rows([1, 2, 3, 4, 5], 0)] * 3).total() == 5
    stream.batch(1, [rows([1], 100)] * 3)
    stream.batch(2, [rows([], 0)] * 3)  # wakes groups, whose rows have expired
    stream.groups = repartition(tmp_path, 2).after
    assert stream.batch(3, [rows([1, 2], 101), rows([1], 101), rows([1], 101)]).total() == 2 * 2 * 2 - 1
