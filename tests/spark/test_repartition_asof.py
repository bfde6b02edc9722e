"""The state of as-of joins, divided into other numbers of groups: every left row is answered once, by the right one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark.window_oracle import Killed, expected_asof, killed_after, rows_in_all
from watersmeet.core.asof import AsofSpec, parse_asof
from watersmeet.core.errors import SnapshotError
from watersmeet.core.spec import parse_on
from watersmeet.joins.asof.left_rows import LeftRun
from watersmeet.joins.asof.sides import Known
from watersmeet.spark.offline import repartition as repartition_asof
from watersmeet.spark.offline.opened import OpenedState, verify
from watersmeet.spark.offline.repartition import repartition
from watersmeet.spark.plan.recipe import AsofFactory
from watersmeet.spark.plan.row_layout import RowLayout
from watersmeet.spark.state.directory import Batch
from watersmeet.spark.task import operator_cache as kept_operators
from watersmeet.spark.task import window_task
from watersmeet.spark.task.figures import COLUMN
from watersmeet.spark.task.operator_cache import KeptOperators
from watersmeet.spark.task.placement import Placement
from watersmeet.spark.task.window_task import AsofTask

Tables = list[pa.RecordBatch]
BATCHES = 8


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@dataclass
class Stream:
    """The tasks of all groups, as Spark would run them; `groups` may be set anew after a repartition."""

    path: Path
    spec: AsofSpec
    groups: int
    memory: int = 1 << 20
    run: str = "run-0"

    def batch(self, number: int, tables: Tables) -> list[pa.RecordBatch]:
        """What all tasks of a batch give."""
        layout = RowLayout.of(*([each.type for each in self.spec.input(side)] for side in (0, 1)), wakes=True)
        task = AsofTask(AsofFactory(self.spec), layout, self.memory, self.groups, str(self.path), 4, numbered=True)
        found = []
        for group in range(self.groups):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(window_task, "current_batch", lambda: (Batch(number, self.run), "query"))
                patch.setattr(kept_operators, "WORKER", KeptOperators())
                found += [
                    out.filter(out.column(COLUMN).is_null()).drop_columns([COLUMN])
                    for out in task(self._delivered(layout, group, tables))
                ]
        return [out for out in found if out.num_rows]

    def _delivered(self, layout: RowLayout, group: int, tables: Tables) -> Iterator[pa.RecordBatch]:
        placement = Placement(self.spec, by_id=True)
        wake = [pa.record_batch([pa.array([0])], ["none"])]
        for kind, table in enumerate([*tables, *wake]):
            if kind < 2:
                keys = [table.column(name) for name in self.spec.keys(kind)]
                table = table.filter(pa.array(placement.groups(keys, kind, self.groups) == group))
            arrays = [pa.array([group * layout.kinds + kind] * table.num_rows, pa.int32())]
            for slot in range(layout.count):
                column = layout.column_in(kind, slot) if kind < 2 else None
                arrays.append(table.column(column) if column is not None else pa.nulls(table.num_rows))
            yield pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])


def _spec(type_: pa.DataType, direction: str, how: str) -> AsofSpec:
    left = pa.schema({"id": type_, "t": pa.int64(), "a": pa.string()})
    right = pa.schema({"id": type_, "t": pa.int64(), "b": pa.int64()})
    tolerance = None if direction == "backward" else 30
    times = parse_asof("t", direction, tolerance, lateness=12)
    return AsofSpec(left, right, parse_on("id"), how, times=times)


def _batches(spec: AsofSpec, rng: np.random.Generator, rows: int = 60) -> list[Tables]:
    """Times that tie, rows out of order; the right input is behind the left one, so that left rows wait."""
    found = []
    for number in range(BATCHES):
        tables = []
        for side, behind in enumerate((0, 25)):
            ids = rng.integers(0, 12, rows)
            type_ = spec.input(side).field("id").type
            keys = pa.array([f"key {n}" if pa.types.is_string(type_) else int(n) for n in ids.tolist()]).cast(type_)
            times = pa.array(10 * number - behind + rng.integers(0, 10 + 8 * side, rows) + 100)
            values = [f"a{number}-{n}" for n in range(rows)] if side == 0 else [1000 * number + n for n in range(rows)]
            tables.append(pa.RecordBatch.from_arrays([keys, times, pa.array(values)], schema=spec.input(side)))
        found.append(tables)
    far = [found[-1][side].slice(0, 1).set_column(1, "t", pa.array([100_000])) for side in (0, 1)]
    return [*found, [far[0].slice(0, 0), far[1]], [far[0].slice(0, 0), far[1].slice(0, 0)]]


def _play(place: Path, spec: AsofSpec, seed: int, killed: bool = False) -> tuple[Counter[Any], Counter[Any]]:
    """All batches, with the state divided anew twice between them."""
    rng = np.random.default_rng(seed)
    batches = _batches(spec, rng)
    stream = Stream(place, spec, 3)
    found: list[pa.RecordBatch] = []
    last: list[pa.RecordBatch] = []
    again = int(rng.integers(2))
    for number, tables in enumerate(batches):
        if number in (3, 6):
            groups = 5 if number == 3 else 2
            if killed:
                with killed_after(int(rng.integers(0, 30))), suppress(Killed):
                    repartition(place, groups)
            repartition(place, groups)
            assert not verify(OpenedState(place)).damaged
            stream.groups = groups
            stream.run = f"run-{number}"
            if again:  # the last batch was not over: it is carried out once more, from the state before it
                repeated = stream.batch(number - 1, batches[number - 1])
                assert rows_in_all(repeated) == rows_in_all(last), (seed, number)
        last = stream.batch(number, tables)
        found += last
    return rows_in_all(found), expected_asof(spec, batches)


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
@pytest.mark.parametrize("how", ["inner", "left"])
def test_every_left_row_is_answered_once_whatever_the_number_of_groups(
    direction: str, how: str, tmp_path: Path
) -> None:
    for seed, type_ in enumerate((pa.int64(), pa.string(), pa.int32())):
        spec = _spec(type_, direction, how)
        found, wanted = _play(tmp_path / str(seed), spec, seed, killed=True)
        assert found == wanted, (direction, how, seed)
        assert sum(found.values()) > 300


@pytest.mark.parametrize("mutant", ["answered rows come back", "the order of runs", "times of other rows", "settled"])
def test_what_is_lost_on_the_way_is_found_out(mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant == "answered rows come back":
        real = repartition_asof._left
        monkeypatch.setattr(repartition_asof, "_left", lambda each, part: real(LeftRun(each.run, each.level, 0), part))
        monkeypatch.setattr(Stream, "memory", 90_000)
    elif mutant == "the order of runs":
        monkeypatch.setattr(
            repartition_asof.AsofJoin, "adopt",
            lambda self, left, right, *rest, own=repartition_asof.AsofJoin.adopt: own(
                self, left, sorted(right, key=lambda each: -int(each[0].split("-")[2])), *rest
            ),
        )  # fmt: skip
    elif mutant == "times of other rows":
        real_times = repartition_asof.write_times
        monkeypatch.setattr(
            repartition_asof, "write_times", lambda store, name, times: real_times(store, name, times[::-1].copy())
        )
    else:
        monkeypatch.setattr(Known, "and_also", lambda self, other: Known(other.newest, 10**9, 10**9, other.widest))
    wrong = 0
    for seed in range(3):
        found, wanted = _play(tmp_path / str(seed), _spec(pa.int64(), "backward", "left"), seed)
        wrong += found != wanted
    assert wrong


def test_without_an_equality_all_rows_are_one_group(tmp_path: Path) -> None:
    spec = AsofSpec(_spec(pa.int64(), "backward", "inner").left, _spec(pa.int64(), "backward", "inner").right, (),
                    suffixes=("", "_right"), times=parse_asof("t", "backward", None, lateness=12))  # fmt: skip
    stream = Stream(tmp_path, spec, 1)
    task_tables = _batches(_spec(pa.int64(), "backward", "inner"), np.random.default_rng(1))[0]
    stream._delivered = lambda layout, group, tables: iter(())  # type: ignore[method-assign]
    stream.batch(0, task_tables)
    with pytest.raises(SnapshotError, match="has no equality"):
        repartition(tmp_path, 2)
