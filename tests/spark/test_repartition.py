"""State divided into other numbers of groups: exact, atomic, whatever is killed. No Spark, but for its hashes."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark.divided_streams import Stream, Tables, cut, killed_at
from watersmeet.core.errors import SnapshotError, SpecError
from watersmeet.core.spec import JoinSpec, band, parse_on
from watersmeet.core.windows import NOWHERE, WindowJoinSpec, parse_windows
from watersmeet.joins import division
from watersmeet.spark.offline import dividing
from watersmeet.spark.offline.repartition import repartition

DAY = date(2026, 11, 17)


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def _keys(numbers: Any, type_: pa.DataType) -> pa.Array:
    """Keys of a type, one for each number."""
    values: Callable[[int], Any] = int
    if pa.types.is_string(type_):
        values = lambda n: f"key {n} " * (n % 3)  # noqa: E731
    elif pa.types.is_binary(type_):
        values = lambda n: bytes([n % 256, 200, n // 256])  # noqa: E731
    elif pa.types.is_decimal(type_):
        values = lambda n: Decimal(n) - 20  # noqa: E731
    elif pa.types.is_floating(type_):
        values = lambda n: float(n) - 20.0  # noqa: E731
    elif pa.types.is_date(type_):
        values = lambda n: DAY + timedelta(n)  # noqa: E731
    elif pa.types.is_timestamp(type_):
        values = lambda n: datetime(2026, 11, 17) + timedelta(n)  # noqa: E731
    elif pa.types.is_boolean(type_):
        values = lambda n: n % 2 == 1  # noqa: E731
    return pa.array([values(int(n)) for n in numbers], type_)


def _inputs(rng: np.random.Generator, left: pa.DataType, right: pa.DataType, rows: int, keys: int = 60) -> Tables:
    """Two inputs with keys of these types, and times."""
    tables = []
    for name, type_ in (("a", left), ("b", right)):
        numbers = rng.integers(0, keys, rows)
        times = np.sort(rng.integers(0, 4 * rows, rows)) + rng.integers(0, 30, rows)
        texts = pa.array([None if n % 7 == 0 else f"{name}{n}" for n in range(rows)])
        columns = [_keys(numbers, type_), pa.array(times), texts]
        tables.append(pa.record_batch(columns, names=["id", "t", name]))
    return tables


def _in_one_group(spec: JoinSpec, batches: list[Tables], place: Path, ended: dict[int, tuple[int, ...]]) -> list[Any]:
    """What each batch gives if there is one group for all, for good: what other tests compare with the oracle."""
    stream = Stream(place, spec, 1)
    return [stream.batch(number, tables, ended.get(number, ())) for number, tables in enumerate(batches)]


TYPES = [
    (pa.int64(), pa.int32()),
    (pa.string(), pa.string()),
    (pa.int64(), pa.float64()),
    (pa.decimal128(12, 2), pa.int16()),
    (pa.decimal128(30, 3), pa.decimal128(30, 3)),
    (pa.decimal128(9, 1), pa.decimal128(9, 1)),
    (pa.date32(), pa.timestamp("us")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
    (pa.binary(), pa.binary()),
    (pa.bool_(), pa.bool_()),
]


@pytest.mark.parametrize("seed", range(len(TYPES)))
def test_joins_give_the_same_whenever_they_are_divided_anew(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    how = ["inner", "inner", "semi", "left", "full", "anti", "right", "inner", "left", "semi"][seed]
    tables = _inputs(rng, *TYPES[seed], rows=300, keys=300 if how == "anti" else 40)
    spec = JoinSpec(tables[0].schema, tables[1].schema, parse_on("id"), how)
    batches = [list(each) for each in zip(*(cut(table, 6) for table in tables), strict=True)]
    ended = {4: (1,), 5: (0,)} if how in ("left", "right", "full", "anti") else {}
    if ended:
        batches[5][1] = batches[5][1].slice(0, 0)
    expected = _in_one_group(spec, batches, tmp_path / "one", ended)
    stream = Stream(tmp_path / "state", spec, 3, memory=256 << 10)
    divisions = 0
    for number, of_batch in enumerate(batches):
        found = stream.batch(number, of_batch, ended.get(number, ()))
        if rng.random() < 0.3:  # killed before Spark had noted that the batch was over: it is carried out once more
            stream.run = f"run-{number}"
            if rng.random() < 0.6:
                stream.groups = _divided(stream, rng)
            assert stream.batch(number, of_batch, ended.get(number, ())) == found
        assert found == expected[number], (seed, number)
        if rng.random() < 0.6:
            stream.groups = _divided(stream, rng)
            divisions += 1
            if rng.random() < 0.5:
                stream.run = f"run-{number}-again"
    assert divisions > 1 and sum(map(Counter.total, expected)) > 20


def _divided(stream: Stream, rng: np.random.Generator) -> int:
    groups = int(rng.choice([1, 2, 3, 4, 5]))
    done = repartition(stream.path, groups)
    assert (done.before, done.after) == (stream.groups, groups)
    return groups


@pytest.mark.parametrize("seed", range(6))
def test_window_joins_give_the_same_whenever_they_are_divided_anew(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([seed, 1])
    how = ["inner", "left", "full", "anti", "inner", "semi"][seed]
    types = [(pa.int64(), pa.int64()), (pa.string(), pa.string())][seed % 2]
    tables = _inputs(rng, *types, rows=240, keys=90 if how == "anti" else 15)
    emit = "final" if seed in (2, 4) else "early"
    windows = parse_windows((160, 90), "t", lateness=40, late="drop" if emit == "final" else "keep", emit=emit)
    on = [*parse_on("id"), band("t", 200)] if seed == 5 else parse_on("id")
    spec = WindowJoinSpec(tables[0].schema, tables[1].schema, tuple(on), how, window=windows)
    batches = [list(each) for each in zip(*(cut(table, 7) for table in tables), strict=True)]
    expected = _in_one_group(spec, batches, tmp_path / "one", {})
    stream = Stream(tmp_path / "state", spec, 2)
    divisions = 0
    for number, of_batch in enumerate(batches):
        found = stream.batch(number, of_batch)
        if rng.random() < 0.3:
            stream.run = f"run-{number}"
            if rng.random() < 0.6:
                stream.groups = _divided(stream, rng)
            assert stream.batch(number, of_batch) == found
        assert found == expected[number], (seed, number)
        if rng.random() < 0.6:
            stream.groups = _divided(stream, rng)
            divisions += 1
    assert divisions > 1 and sum(map(Counter.total, expected)) > 20


def test_killed_at_any_step_it_has_happened_or_it_has_not(tmp_path: Path) -> None:
    tables = _inputs(np.random.default_rng(5), pa.int64(), pa.int64(), rows=40, keys=9)
    spec = JoinSpec(tables[0].schema, tables[1].schema, parse_on("id"))
    batches = [list(each) for each in zip(*(cut(table, 4) for table in tables), strict=True)]
    expected = _in_one_group(spec, batches, tmp_path / "one", {})
    stream = Stream(tmp_path / "state", spec, 1)
    for number in (0, 1, 2):
        assert stream.batch(number, batches[number]) == expected[number]
    outcomes: Counter[int] = Counter()
    step = 0
    while True:
        copy = tmp_path / f"copy-{step}"
        shutil.copytree(tmp_path / "state", copy)
        killed = killed_at(step, lambda copy=copy: repartition(copy, 2))
        groups = dividing.OpenedState(copy).groups
        outcomes[groups] += killed
        again = Stream(copy, spec, groups, run=f"run-{step}")
        # Spark goes on with the next batch, or carries out the last one once more.
        if step % 3 == 1:
            assert again.batch(2, batches[2]) == expected[2], step
        assert again.batch(3, batches[3]) == expected[3], step
        if step % 8 == 0:
            assert repartition(copy, 2).after == 2
            again = Stream(copy, spec, 2, run="run-after")
            assert again.batch(3, batches[3]) == expected[3], step
            names = {path.name.rpartition("-")[0] for path in copy.glob("group-*")}
            assert len(names) == 1, "what was left by the attempt that was killed is gone"
        shutil.rmtree(copy)
        if not killed:
            break
        step += 1
    assert outcomes[1] > 30 and outcomes[2] > 5, outcomes


def test_a_query_that_went_on_meanwhile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = _inputs(np.random.default_rng(6), pa.int64(), pa.int64(), rows=90)
    spec = JoinSpec(tables[0].schema, tables[1].schema, parse_on("id"))
    batches = [list(each) for each in zip(*(cut(table, 5) for table in tables), strict=True)]
    stream = Stream(tmp_path / "state", spec, 2)
    stream.batch(0, batches[0])
    real = dividing.Dividing._publish

    def meanwhile(self: Any, group: Any, batch: int) -> int:
        stream.batch(1, batches[1])
        return real(self, group, batch)

    with monkeypatch.context() as patch:
        patch.setattr(dividing.Dividing, "_publish", meanwhile)
        with pytest.raises(SnapshotError, match="went on while it was divided anew; nothing has changed"):
            repartition(stream.path, 3)
    stream.batch(2, batches[2])
    # A batch whose first task began before that moment, and whose others came after it.
    repartition(stream.path, 3)
    (tmp_path / "state" / "batches" / f"{3:012d}").write_text(stream.run)
    stream.groups = 3
    with pytest.raises(SnapshotError, match=r"divided anew as of batch 2, while the query went on to batch 3"):
        stream.batch(4, batches[4])
    with pytest.raises(SnapshotError, match="goes back to batch 1, and the state"):
        Stream(tmp_path / "state", spec, 3, run="another").batch(1, batches[1])


def test_what_cannot_be_divided_is_told(tmp_path: Path) -> None:
    tables = _inputs(np.random.default_rng(7), pa.int64(), pa.int64(), rows=30)
    schemas = [table.schema for table in tables]
    beside = JoinSpec(*schemas, (*parse_on("id"), band("t", 3)))
    Stream(tmp_path / "beside", beside, 2).batch(0, tables)
    with pytest.raises(SnapshotError, match="a band beside its equalities"):
        repartition(tmp_path / "beside", 3)
    with pytest.raises(SpecError, match="is not the state directory of a join"):
        repartition(tmp_path / "nothing", 3)
    plain = Stream(tmp_path / "plain", JoinSpec(*schemas, parse_on("id")), 2)
    plain.batch(0, tables)
    assert repartition(plain.path, 2).rows == 0
    with pytest.raises(SpecError, match="partitions must be a whole number from 1 on, not 0"):
        repartition(plain.path, 0)
    other = Stream(plain.path, JoinSpec(schemas[0].append(pa.field("more", pa.bool_())), schemas[1], parse_on("id")), 2)
    wider = tables[0].append_column("more", pa.nulls(tables[0].num_rows, pa.bool_()))
    with pytest.raises(SnapshotError, match=r"another join: .* \(column 'more' of left is new\); change them back"):
        other.batch(1, [wider, tables[1]])
    plain.groups = 4
    with pytest.raises(SnapshotError, match="repartition --partitions 4"):
        plain.batch(1, tables)


@pytest.mark.parametrize("lost", ["marks", "spans", "rows", "both", "results"])
def test_what_is_lost_on_the_way_is_noticed(lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above fail if a part of what they are about is left out."""
    inherited = division.Inherited.of.__func__  # type: ignore[attr-defined]

    def of(cls: Any, *args: Any) -> Any:
        from dataclasses import replace

        found = inherited(cls, *args)
        if lost == "marks" and found.marks is not None:
            return replace(found, marks=np.zeros_like(found.marks))
        return replace(found, span=NOWHERE) if lost == "spans" else found

    def placed(self: Any, join: Any) -> Any:
        return lambda side, run, numbers: np.full(len(numbers), side % self._partitions, np.int32)

    monkeypatch.setattr(division.Inherited, "of", classmethod(of))
    if lost == "rows":
        monkeypatch.setattr(dividing.Dividing, "_place", placed)
    if lost == "both":
        monkeypatch.setattr(dividing.NewGroup, "new_run", _as_of_the_last_batch(dividing.NewGroup.new_run))
    if lost == "results":
        monkeypatch.setattr(dividing, "hand_over_results", lambda join, others: None)
    window = {"spans": 0, "results": 4}
    test = test_joins_give_the_same_whenever_they_are_divided_anew
    if lost in window:
        test = test_window_joins_give_the_same_whenever_they_are_divided_anew
    with pytest.raises((AssertionError, SnapshotError, KeyError)):
        test(window.get(lost, 4), tmp_path)


def _as_of_the_last_batch(real: Any) -> Any:
    return lambda self, batch, side: real(self, max(self.stores), side)
