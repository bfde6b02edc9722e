"""The state of a join of several inputs, divided anew in mid-stream: the same results, whatever is copied. No Spark."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark.divided_streams import Stream, Tables, cut
from watersmeet.core.errors import SnapshotError
from watersmeet.core.many_windows import parse_many_windows
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.joins import division
from watersmeet.spark.offline.opened import OpenedState, verify
from watersmeet.spark.offline.repartition import repartition
from watersmeet.spark.plan.grid import Grid, grid_for
from watersmeet.spark.plan.multi_recipe import MultiFactory
from watersmeet.spark.state.described import described, many_spec_of
from watersmeet.spark.state.directory import Batch, Owner, StateDirectory
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.task.placement import Placement
from watersmeet.spark.task.settled_group import SettledGroup

ONE = ["r.id = s.id", "s.id = t.id"]
CHAIN = ["r.id = s.id", "s.b = t.b"]
STAR = ["r.id = s.id", "r.id = t.ref", "r.b = s.b"]


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class ManyStream(Stream):
    """A join of several inputs on Spark without Spark."""

    spec: Any

    def rows_of(self, group: int, side: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        grid = grid_for(self.spec, self.groups)
        known = rows
        for place in grid.known(side):
            known = known.filter(known.column(grid.axes[place].columns[side][0]).is_valid())
        groups = np.zeros(known.num_rows, np.int64)
        for place in grid.known(side):
            axis = grid.axes[place]
            types = [self.spec.input(i).field(each[0]).type for i, each in enumerate(axis.columns) if each]
            values = known.column(axis.columns[side][0])
            groups += grid.strides[place] * Placement.of_types(types, by_id=True).groups([values], side, axis.shares)
        return known.filter(pa.array(np.isin(group - groups, grid.copies(side))))

    def _join_task(self, number: int, group: int, tables: Tables) -> Iterator[pa.RecordBatch]:
        factory = MultiFactory.of(self.spec, "auto")
        owner = Owner(factory.fingerprint, self.groups, "query", describe=factory.described)
        state = StateDirectory(Path(self.path), owner, Batch(number, self.run), retain=4).group(group)
        pieces = [(side, table) for side, table in enumerate(tables) if table.num_rows]
        yield from SettledGroup(factory, self.memory, state, OpenRuns()).results(iter(pieces), lambda: self.ended)


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
    for number, (spec, told) in enumerate([
        (MultiSpec.of(inputs, ONE, window=windows), "a wms.multijoin in windows, whose rows are not all in runs"),
        (ending, "rows of s come out in any case, and each group counts them by itself"),
    ]):  # fmt: skip
        factory = MultiFactory.of(spec, "auto")
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
