"""Hot keys of plain joins and of window joins, batch by batch: whenever they are split, whatever dies or is repeated,
the results are those of the oracle. No Spark, but for its hashes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark.divided_streams import Stream
from spark.routed_rows import RoutedRows, numbered_keys
from spark.whims import SplitWhims
from spark.window_oracle import Killed, expected_pairs, killed_after, rows_in_all
from watersmeet.checks.canonical import canonical_rows
from watersmeet.checks.oracle.kinds import results_of
from watersmeet.core.errors import SnapshotError
from watersmeet.core.kinds import KINDS as KINDS_OF_JOINS
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.spark.offline.opened import OpenedState, figures
from watersmeet.spark.offline.reading import StateRows
from watersmeet.spark.offline.repartition import repartition
from watersmeet.spark.plan.recipe import JoinFactory, WindowFactory
from watersmeet.spark.rebalance import master_task, reorganizing, slot_task
from watersmeet.spark.rebalance.master_task import MasterTask, RoutingFiles
from watersmeet.spark.rebalance.reorganizing import SlotLoad
from watersmeet.spark.rebalance.routing import KINDS, HotKey, Place, Routing
from watersmeet.spark.rebalance.slot_task import SlotTask
from watersmeet.spark.state.directory import Batch
from watersmeet.spark.state.files import read_json
from watersmeet.spark.task import operator_cache as kept_operators
from watersmeet.spark.task import operator_task
from watersmeet.spark.task.figures import COLUMN, figure_names
from watersmeet.spark.task.operator_cache import KeptOperators
from watersmeet.spark.task.operator_task import OperatorTask, SplitTask

GROUPS = 4
HOT = 5
"""The key that has many rows."""


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@dataclass
class Split:
    """The tasks of a batch, as Spark would run them: the master, then all others."""

    path: Path
    spec: JoinSpec
    memory: int = 2 << 20
    signed: bool = False
    run: str = "run-1"
    figures: list[dict[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.windowed = isinstance(self.spec, WindowJoinSpec)
        factory: Any = WindowFactory if self.windowed else JoinFactory
        self._factory = factory(self.spec, "confluence")
        self._keys = numbered_keys(self.spec)
        self.rows = RoutedRows(self.spec, GROUPS, self._keys, self.signed)

    def batch(
        self, number: int, tables: list[pa.RecordBatch], ended: Sequence[int] = (), only: int | None = None
    ) -> list[pa.RecordBatch]:
        """What all tasks give in a batch, or one of them."""
        found = []
        with pytest.MonkeyPatch.context() as patch:
            for module in (master_task, slot_task, operator_task):
                patch.setattr(module, "current_batch", lambda: (Batch(number, self.run), "query"))
            master = MasterTask(
                self.spec, self._factory.fingerprint, GROUPS, (GROUPS, GROUPS), 0.0, str(self.path), 4,
                self._factory.described(), moves=False,
            )  # fmt: skip
            [answer] = list(master(iter([pa.record_batch({"id": [0]})])))
            routing = answer.column(0)[0].as_py()
            if routing["refused"] is not None:  # the first task that has a row fails with this
                raise SnapshotError(routing["refused"])
            names = figure_names(late=self.windowed)
            for slot in range(GROUPS) if only is None else [only]:
                patch.setattr(slot_task, "current_partition", lambda slot=slot: slot)
                for out in self._task()(self._delivered(slot, tables, routing, ended)):
                    told = out.column(COLUMN)
                    self.figures += [
                        dict(zip(names, each, strict=False)) for each in told.to_pylist() if each is not None
                    ]
                    found.append(out.drop_columns([COLUMN]).filter(told.is_null()))
        return [batch for batch in found if batch.num_rows]

    def _task(self) -> Any:
        given = {"state": str(self.path), "retain": 4}
        if self.windowed:
            return SlotTask(self._factory, self.rows.layout, self.memory, GROUPS, numbered=True, moves=False, **given)
        return SplitTask(self._factory, self.rows.layout, self.memory, GROUPS, signed=self.signed, **given)

    def _delivered(
        self, slot: int, tables: list[pa.RecordBatch], routing: Any, ended: Sequence[int]
    ) -> Iterator[pa.RecordBatch]:
        for piece in self.rows.delivered(slot, tables, routing, ended):
            assert {tag // KINDS % GROUPS for tag in piece.column(0).to_pylist()} == {slot}, "nothing moves"
            yield piece

    def key(self, value: Any) -> int:
        """The hash of a key, as Spark has it."""
        name = self.spec.keys(0)[0]
        [key] = self._keys(0, pa.record_batch({name: pa.array([value], self.spec.input(0).field(name).type)}))
        assert key is not None
        return key

    def routing(self) -> Routing:
        """The last one."""
        files = (self.path / "routing").glob("routing-*")
        last = max(files, key=lambda file: int(file.name.split("-")[1]))
        return Routing.from_json(read_json(last))


TYPES = [pa.int32(), pa.string(), pa.decimal128(30, 2)]


def _spec(how: str, type_: pa.DataType) -> JoinSpec:
    left = pa.schema({"id": type_, "a": pa.int64(), "text": pa.string()})
    right = pa.schema({"b": pa.int64(), "key": type_})
    return JoinSpec(left, right, parse_on("id = key"), how)


def _tables(spec: JoinSpec, rng: np.random.Generator, rows: int, first: int, hot: float = 0.5) -> list[pa.RecordBatch]:
    """A batch: many rows of some keys, few of the others; rows are numbered."""
    tables = []
    for side, count in enumerate((rows, max(1, rows // 2))):
        ids = np.where(rng.random(count) < hot, rng.integers(HOT, HOT + 2, count), rng.integers(10, 90, count))
        type_ = spec.input(side).field(spec.keys(side)[0]).type
        keys = pa.array([f"key {n}" if pa.types.is_string(type_) else int(n) for n in ids.tolist()]).cast(type_)
        numbers = pa.array(np.arange(first, first + count))
        texts = pa.array([None if n % 3 == 0 else f"text {n}" for n in range(count)])
        columns = [keys, numbers, texts] if side == 0 else [numbers, keys]
        tables.append(pa.RecordBatch.from_arrays(columns, schema=spec.input(side)))
    return tables


def _expected(how: str, batches: list[list[pa.RecordBatch]]) -> Counter[Any]:
    left, right = (pa.Table.from_batches([tables[side] for tables in batches]) for side in (0, 1))
    keys = [[str(key) for key in left["id"].to_pylist()], [str(key) for key in right["key"].to_pylist()]]
    rows = [left["a"].to_pylist(), right["b"].to_pylist()]
    pairs = [(i, j) for i, one in enumerate(keys[0]) for j, other in enumerate(keys[1]) if one == other]
    found: Counter[Any] = Counter()
    for result in results_of(KINDS_OF_JOINS[how], pairs, left.num_rows, right.num_rows):
        found[tuple(None if row is None else rows[side][row] for side, row in enumerate(result))] += 1
    return found


def _found(batches: list[pa.RecordBatch]) -> Counter[Any]:
    names = [name for name in ("a", "b") if batches and name in batches[0].schema.names]
    return Counter(tuple(row[name] for name in names) for batch in batches for row in batch.to_pylist())


def _play(
    path: Path, how: str, seed: int, monkeypatch: pytest.MonkeyPatch, ends: bool, shaken: bool = True
) -> tuple[Counter[Any], Counter[Any], SplitWhims, Split]:
    """Batches through a master that splits as it likes, and tasks that are killed and repeated."""
    rng = np.random.default_rng([seed, 20])
    spec = _spec(how, TYPES[seed % len(TYPES)])
    split = Split(path, spec, memory=int(rng.choice([400 << 10, 2 << 20])), signed=ends)
    count = 7
    batches = [_tables(spec, rng, int(rng.integers(1, 70)), 1_000 * number) for number in range(count)]
    word = (lambda n: f"key {n}") if pa.types.is_string(spec.left.field("id").type) else (lambda n: n)
    whims = SplitWhims(rng, [split.key(word(n)) for n in (HOT, HOT + 1, 11)])
    monkeypatch.setattr(master_task, "split_only", whims)
    sooner = int(rng.integers(2))
    found: list[pa.RecordBatch] = []
    again = 0
    for number, tables in enumerate(batches):
        ended: list[int] = []
        if ends and number >= count - 2:  # one input ends a batch before the other
            ended = [sooner] if number == count - 2 else [1 - sooner]
            if number == count - 1:
                tables[sooner] = tables[sooner].slice(0, 0)
        if shaken and rng.random() < 0.4:
            with killed_after(int(rng.integers(0, 14))):
                with suppress(Killed):
                    split.batch(number, tables, ended)
        results = split.batch(number, tables, ended)
        while shaken and rng.random() < 0.35:
            again += 1
            if rng.random() < 0.5:  # the query is started again
                split.run = f"run-{number}-{again}"
                assert rows_in_all(split.batch(number, tables, ended)) == rows_in_all(results), (seed, number)
            else:
                slot = int(rng.integers(GROUPS))
                own, once_more = (split.batch(number, tables, ended, slot) for _ in range(2))
                assert rows_in_all(own) == rows_in_all(once_more), (seed, number)
        found += results
    return _found(found), _expected(how, batches), whims, split


@pytest.mark.parametrize("how", ["inner", "semi", "left", "right", "anti"])
def test_whenever_a_key_is_split_every_result_of_a_join_comes_once(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = results = homes = 0
    for seed in range(5):
        ends = how not in ("inner", "semi") or seed % 2 == 0
        found, expected, whims, split = _play(tmp_path / str(seed), how, seed, monkeypatch, ends)
        assert found == expected, (how, seed)
        splits, results = splits + whims.splits, results + sum(found.values())
        homes += (split.path / f"group-{GROUPS:04d}").exists()
    assert splits > 6
    assert homes > 2
    assert results > 180


def _only_home(key: HotKey, side: int) -> list[list[Place]]:
    """A copied row does not reach the key's own group, where older rows of the other side are."""
    own = {*key.homes[0].groups}
    return [[place for place in choice if place[0] not in own] for choice in _PLACES(key, side)]


def _everywhere(key: HotKey, side: int) -> list[list[Place]]:
    """A spread row is in every group of the home."""
    choices = _PLACES(key, side)
    return [[place for choice in choices for place in choice]]


def _both_spread(key: HotKey, side: int) -> list[list[Place]]:
    """Rows of both sides are in one group each."""
    return [[(group, side)] for group in key.home.groups]


def _in_both_homes(key: HotKey, side: int) -> list[list[Place]]:
    """A spread row goes to the key's own group, too, which has all rows of the other side."""
    more = [(key.homes[0].first, side)] if side == key.tracked else []
    return [[*choice, *more] for choice in _PLACES(key, side)]


_PLACES = HotKey.places


@pytest.mark.parametrize("rule", [_only_home, _everywhere, _both_spread, _in_both_homes])
def test_another_rule_for_where_rows_go_is_found_out(
    rule: Callable[[HotKey, int], list[list[Place]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HotKey, "places", rule)
    wrong = 0
    for seed in range(4):
        found, expected, _, _ = _play(tmp_path / str(seed), "inner", seed, monkeypatch, False, shaken=False)
        wrong += found != expected
    assert wrong


@pytest.mark.parametrize("mutant", ["nothing is copied", "both sides are copied", "also later"])
def test_other_rows_to_begin_with_are_found_out(mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = operator_task._copies

    def copies(factory: Any, key: HotKey, operator: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
        if mutant != "nothing is copied":
            yield from real(factory, key, operator)
        if mutant == "both sides are copied":
            for _, rows in real(factory, replace(key, tracked=1 - key.tracked), operator):
                yield key.tracked, rows

    monkeypatch.setattr(operator_task, "_copies", copies)
    if mutant == "also later":
        monkeypatch.setattr(operator_task.SettledGroup, "is_new", property(lambda self: True))
        monkeypatch.setattr(
            operator_task.SettledGroup, "results",
            lambda self, pieces, ended, promises=None, inherited=None, own=operator_task.SettledGroup.results: own(
                self, iter([*(inherited() if inherited else ()), *pieces]), ended, promises
            ),
        )  # fmt: skip
    wrong = 0
    for seed in range(4):
        found, expected, _, _ = _play(tmp_path / str(seed), "inner", seed, monkeypatch, False, shaken=False)
        wrong += found != expected
    assert wrong


@pytest.mark.parametrize("windowed", [False, True], ids=["join", "window join"])
def test_a_key_with_a_third_of_all_rows_is_split_and_its_work_shared(
    windowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reorganizing, "LEAST_WORK", 60)
    schema = pa.schema({"id": pa.int64(), "t": pa.int64(), "v": pa.int64()})
    spec = JoinSpec(schema, schema, parse_on("id"))
    if windowed:
        spec = WindowJoinSpec(schema, schema, parse_on("id"), window=parse_windows(10, "t", lateness=3))
    rng = np.random.default_rng(4)
    split = Split(tmp_path, spec)
    batches, found, largest = [], [], []
    for number in range(8):
        tables = []
        for rows in (400, 120):
            ids = np.where(rng.random(rows) < 0.3, HOT, rng.integers(100, 400, rows))
            times = number * 5 + rng.integers(0, 5, rows)
            columns = [pa.array(ids), pa.array(times), pa.array(np.arange(rows))]
            tables.append(pa.record_batch(columns, schema=schema))
        batches.append(tables)
        split.figures.clear()
        found += split.batch(number, tables)
        assert sum(each["left_rows"] for each in split.figures) == 400
        assert sum(each["right_rows"] for each in split.figures) == 120
        largest.append(max(each["results"] for each in split.figures) / sum(each["results"] for each in split.figures))
    if windowed:
        assert isinstance(spec, WindowJoinSpec)
        assert rows_in_all(found) == expected_pairs(spec, batches)
    else:
        left, right = (pa.Table.from_batches([tables[side] for tables in batches]) for side in (0, 1))
        counts = [Counter(table["id"].to_pylist()) for table in (left, right)]
        assert sum(batch.num_rows for batch in found) == sum(n * counts[1][key] for key, n in counts[0].items())
    assert [(key.key, key.home.ways) for key in split.routing().hot] == [(split.key(HOT), GROUPS)]
    assert split.routing().hot[0].home.spread == 0, "the side with more rows"
    assert largest[0] > 0.9, "one task finds nearly all"
    assert largest[-1] < 0.6, largest
    told = figures(OpenedState(tmp_path))["hot keys"]
    assert [(each["ways"], len(each["groups"])) for each in told] == [(GROUPS, GROUPS)]


def test_a_join_without_hot_keys_tells_nothing_and_has_no_homes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reorganizing, "LEAST_WORK", 60)
    spec = _spec("inner", pa.int32())
    split = Split(tmp_path, spec)
    rng = np.random.default_rng(3)
    for number in range(4):
        split.batch(number, _tables(spec, rng, 300, 0, hot=0.0))
    assert split.routing().hot == ()
    assert not list((tmp_path / "routing").glob("load-*"))
    assert len(list(tmp_path.glob("group-*"))) == GROUPS


def test_a_state_with_homes_is_refused_without_splitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected, _, split = _play(tmp_path / "state", "inner", 1, monkeypatch, False, shaken=False)
    assert found == expected
    assert split.routing().hot
    plain = OperatorTask(
        split._factory, split.rows.layout, split.memory, GROUPS, state=str(split.path), retain=4, signed=False
    )
    monkeypatch.setattr(operator_task, "current_batch", lambda: (Batch(7, split.run), "query"))
    tables = _tables(split.spec, np.random.default_rng(0), 5, 0)
    rows = split.rows.delivered(0, tables, {"hot": [], "wakes": [], "slots": list(range(GROUPS))})
    with pytest.raises(SnapshotError, match="hot keys that are split over several groups, and without split=True"):
        list(plain(rows))
    for path in (tmp_path / "state" / "routing").iterdir():
        path.unlink()
    with pytest.raises(SnapshotError, match=r"is that of a hot key, and the file in .* that says of which is missing"):
        split.batch(7, tables)


def test_workers_keep_nothing_that_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, split by whims, with workers that come and go."""
    schema = pa.schema({"id": pa.int64(), "t": pa.int64(), "v": pa.int64()})
    for how in ("inner", "left"):
        spec = WindowJoinSpec(schema, schema, parse_on("id"), how, window=parse_windows(10, "t", lateness=3))
        rng = np.random.default_rng(7)
        split = Split(tmp_path / how, spec)
        monkeypatch.setattr(master_task, "split_only", SplitWhims(rng, [split.key(n) for n in (HOT, HOT + 1)]))
        monkeypatch.setattr(RoutingFiles, "loads", lambda self, since: [SlotLoad(0, 0.0, {})])
        batches, found = [], []
        for number in range(12):
            tables = []
            for _ in (0, 1):
                ids = np.where(rng.random(25) < 0.5, rng.integers(HOT, HOT + 2, 25), rng.integers(10, 40, 25))
                columns = [pa.array(ids), pa.array(number * 5 + rng.integers(0, 5, 25)), pa.array(np.arange(25))]
                tables.append(pa.record_batch(columns, schema=schema))
            batches.append(tables)
        # Time goes on for all, so that every row without a partner comes out.
        for number in (12, 13, 14):
            late = [pa.array([1000 + number]), pa.array([number * 100]), pa.array([0])]
            batches.append([pa.record_batch(late, schema=schema) for _ in (0, 1)])
        for number, tables in enumerate(batches):
            if rng.random() < 0.4:
                monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
            found += split.batch(number, tables)
        pairs = expected_pairs(replace(spec, how="inner"), batches)
        met = {row[:3] for row in pairs}
        lefts = Counter(row for tables in batches for row in canonical_rows(tables[0]))
        alone = Counter({(*row, None, None): count for row, count in lefts.items() if row not in met})
        assert rows_in_all(found) == (pairs if how == "inner" else pairs + alone)
        assert len(pairs) > 100
        assert alone


def test_state_with_hot_keys_is_read_and_divided_without_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, how in enumerate(("inner", "left")):
        place = tmp_path / how
        spec, rng = _spec(how, pa.int32()), np.random.default_rng(seed)
        batches = [_tables(spec, rng, 60, 1_000 * number) for number in range(8)]
        split = Split(place, spec)
        monkeypatch.setattr(master_task, "split_only", SplitWhims(rng, [split.key(HOT), split.key(HOT + 1)]))
        found = [out for number in range(5) for out in split.batch(number, batches[number])]
        assert split.routing().hot
        state = OpenedState(place)
        for side, name, column in ((0, "left", "a"), (1, "right", "b")):
            rows = [row for out in StateRows(state, name).read() for row in out.column(column).to_pylist()]
            assert Counter(rows) == Counter(
                row for each in batches[:5] for row in each[side].column(column).to_pylist()
            )
            key = "id" if side == 0 else "key"
            hot = StateRows(state, name, f"{key} = {HOT}")
            count = sum(each[side].column(key).to_pylist().count(HOT) for each in batches[:5])
            assert sum(out.num_rows for out in hot.read()) == count
        assert figures(state)["rows"] == [sum(each[side].num_rows for each in batches[:5]) for side in (0, 1)]
        assert repartition(place, GROUPS if how == "left" else 3).rows == sum(figures(OpenedState(place))["rows"])
        assert not list(place.glob("routing*"))
        assert len(list(place.glob("group-*"))) == (GROUPS if how == "left" else 3)
        rest = Stream(place, spec, GROUPS if how == "left" else 3, run=split.run)
        outcome = _found(found)
        for number in (5, 6, 7):
            for row, count in rest.batch(number, batches[number], (0, 1) if number == 7 else ()).items():
                outcome[_numbers_of(spec, row)] += count
        assert outcome == _expected(how, batches)


def _numbers_of(spec: JoinSpec, row: Any) -> tuple[Any, ...]:
    return tuple(row[spec.schema.names.index(name)] for name in ("a", "b"))
