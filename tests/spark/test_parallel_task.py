"""The master and the slots of a parallel join, batch by batch: whatever moves, splits, dies or is lost, the results are
those of the oracle. No Spark."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings

from spark.routed_rows import RoutedRows, hashed_keys
from spark.whims import Whims
from spark.window_oracle import Killed, expected_pairs, killed_after, micro_batches, rows_in_all, spark_cases
from watersmeet.checks.oracle.kinds import results_of
from watersmeet.core.errors import SnapshotError
from watersmeet.core.kinds import KINDS as KINDS_OF_JOINS
from watersmeet.core.spec import parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.spark.plan.recipe import WindowFactory
from watersmeet.spark.rebalance import master_task, slot_task
from watersmeet.spark.rebalance.master_task import MasterTask, RoutingFiles
from watersmeet.spark.rebalance.reorganizing import SlotLoad
from watersmeet.spark.rebalance.routing import NEITHER, Home, HotKey, Routing
from watersmeet.spark.rebalance.slot_task import FIGURES, SlotTask
from watersmeet.spark.state.directory import Batch
from watersmeet.spark.state.files import read_json
from watersmeet.spark.task import operator_cache as kept_operators
from watersmeet.spark.task.figures import COLUMN
from watersmeet.spark.task.operator_cache import KeptOperators

GROUPS = 7
SLOTS = (1, 3)


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@dataclass
class Parallel:
    """The tasks of a batch, as Spark would run them: the master, then all slots."""

    path: Path
    spec: WindowJoinSpec
    memory: int
    algorithm: str = "ah_ewj"
    run: str = "run-1"
    epoch: float = 0.0
    scheme: str = ""
    """Of the address under which the tasks reach the path."""
    slots: tuple[int, int] = SLOTS
    hides_routing: bool = False
    """Whether the slots do not find the routing of their batch."""
    figures: list[dict[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keys = hashed_keys(self.spec)
        self._rows = RoutedRows(self.spec, GROUPS, self.keys)
        self._factory = WindowFactory(self.spec, self.algorithm)

    def batch(self, number: int, tables: list[pa.RecordBatch], only: int | None = None) -> list[pa.RecordBatch]:
        """What all slots give in a batch, or one of them."""
        found = []
        with pytest.MonkeyPatch.context() as patch:
            for module in (master_task, slot_task):
                patch.setattr(module, "current_batch", lambda: (Batch(number, self.run), "query"))
            state = f"{self.scheme}{self.path}"
            task = SlotTask(self._factory, self._rows.layout, self.memory, GROUPS, state, retain=4)
            master = MasterTask(self.spec, self._factory.fingerprint, GROUPS, self.slots, self.epoch, state, retain=4)
            [answer] = list(master(iter([pa.record_batch({"id": [0]})])))
            routing = answer.column(0)[0].as_py()
            if routing["refused"] is not None:  # the first task that has a row fails with this
                raise SnapshotError(routing["refused"])
            if self.hides_routing:
                patch.setattr(slot_task.RoutingFiles, "current", lambda files: None)
            for slot in range(self.slots[1]) if only is None else [only]:
                for out in task(self._rows.delivered(slot, tables, routing)):
                    told = out.column(COLUMN)
                    for each in told.to_pylist():
                        if each is not None:
                            self.figures.append(dict(zip(FIGURES, each, strict=False)))
                    found.append(out.drop_columns([COLUMN]).filter(told.is_null()))
        return [batch for batch in found if batch.num_rows]


@pytest.mark.parametrize("name", ["ah_ewj", "confluence", "symmetric_window"])
def test_whatever_moves_splits_or_dies_every_pair_comes_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spilled = late = splits = visits = found_rows = again = 0
    for case in spark_cases(name, settings().max_examples // 12):
        assert isinstance(case.spec, WindowJoinSpec)
        rng = np.random.default_rng([case.seed, 78])
        parallel = Parallel(tmp_path / str(case.seed), case.spec, case.memory * 8 // 5 + 64, name)
        known = [key for side in (0, 1) for key in parallel.keys(side, case.table(side)) if key is not None]
        whims = Whims(rng, sorted(set(known)) or [0])
        monkeypatch.setattr(master_task, "reorganized", whims)
        monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
        found: list[pa.RecordBatch] = []
        batches = micro_batches(case, rng, most=8)
        for number, tables in enumerate(batches):
            parallel.epoch = 1000.0 if rng.random() < 0.3 else 0.0
            parallel.hides_routing = rng.random() < 0.2
            if rng.random() < 0.3:  # another worker, which has kept nothing
                monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
            if rng.random() < 0.3:
                with killed_after(int(rng.integers(0, 12))):
                    try:
                        parallel.batch(number, tables)
                    except Killed:
                        monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
            results = parallel.batch(number, tables)
            while rng.random() < 0.3:  # repeated, by this run or by the next one
                again += 1
                if rng.random() < 0.5:
                    parallel.run = f"run-{number}-{again}"
                    assert rows_in_all(parallel.batch(number, tables)) == rows_in_all(results), case
                else:
                    slot = int(rng.integers(SLOTS[1]))
                    own, once_more = (parallel.batch(number, tables, slot) for _ in range(2))
                    assert rows_in_all(own) == rows_in_all(once_more), case
            _lose(parallel.path, rng)
            found += results
        assert rows_in_all(found) == expected_pairs(case.spec, batches), case
        spilled += sum(figures["spilled"] for figures in parallel.figures)
        late += sum(figures["left_late"] + figures["right_late"] for figures in parallel.figures)
        splits, visits = splits + whims.splits, visits + whims.visits
        found_rows += sum(batch.num_rows for batch in found)
    assert again
    assert splits > 15
    assert visits > 15
    assert found_rows > 300
    assert late
    assert name == "symmetric_window" or spilled


def _lose(path: Path, rng: np.random.Generator) -> None:
    """What the slots have told may be lost, or damaged, and routings that are not the last one, too."""
    files = sorted((path / "routing").iterdir())
    last = max(int(file.name.split("-")[1]) for file in files if file.name.startswith("routing"))
    for file in files:
        if f"routing-{last}-" not in file.name and rng.random() < 0.3:
            if file.name.startswith("load") and rng.random() < 0.5:
                file.write_text("{")
            else:
                file.unlink()


SCHEMA = pa.schema({"id": pa.int64(), "t": pa.int64(), "v": pa.int64()})
SPEC = WindowJoinSpec(SCHEMA, SCHEMA, parse_on("id"), window=parse_windows(10, "t", lateness=3))


def _table(ids: list[int], times: list[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids), pa.array(times), pa.array(range(len(ids)))], schema=SCHEMA)


def _steady(rng: np.random.Generator, number: int, hot: float = 0.0, rows: int = 150) -> list[pa.RecordBatch]:
    """A batch of rows whose times go on; a share of them has key 5."""
    tables = []
    for _ in (0, 1):
        ids = rng.integers(100, 160, rows)
        ids[rng.random(rows) < hot] = 5
        tables.append(_table(ids.tolist(), (number * 5 + rng.integers(0, 5, rows)).tolist()))
    return tables


def _key(parallel: Parallel, value: int) -> int:
    [key] = parallel.keys(0, _table([value], [0]))
    assert key is not None
    return key


def _routing(parallel: Parallel) -> Routing:
    """The last one."""
    files = (parallel.path / "routing").glob("routing-*")
    last = max(files, key=lambda file: int(file.name.split("-")[1]))
    return Routing.from_json(read_json(last))


class Clock:
    """The master's: it goes on by so much whenever it is looked at, which is once in a batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: float) -> None:
        self.step, self._now = step, time.time()
        monkeypatch.setattr(master_task, "_now", self)

    def __call__(self) -> float:
        self._now += self.step
        return self._now


def _work_for_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows and results stand for the time that slots take: a second for a thousand."""
    real = RoutingFiles.loads

    def loads(self: RoutingFiles, since: int) -> list[SlotLoad]:
        found = []
        for load in real(self, since):
            groups = {
                number: replace(done, seconds=(done.rows + done.results) / 1000) for number, done in load.groups.items()
            }
            seconds = sum(done.seconds for done in groups.values())
            found.append(replace(load, seconds=seconds, groups=groups, lag=0.0))
        return found

    monkeypatch.setattr(RoutingFiles, "loads", loads)


def test_a_hot_key_is_split_and_put_together_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parallel = Parallel(tmp_path / "state", SPEC, 4 << 20, slots=(2, 2))
    rng = np.random.default_rng(3)
    batches = [_steady(rng, number, hot=0.6 if number < 6 else 0.0) for number in range(16)]
    found = []
    split, visited = [], []
    _work_for_time(monkeypatch)
    Clock(monkeypatch, 1e-4)  # so short that a slot is busy all the time
    for number, tables in enumerate(batches):
        parallel.figures.clear()
        found += parallel.batch(number, tables)
        assert sum(each["left_rows"] for each in parallel.figures) == 150
        assert sum(each["right_rows"] for each in parallel.figures) == 150
        routing = _routing(parallel)
        split.append([key.home.ways for key in routing.hot if key.key == _key(parallel, 5)])
        visited.append(sum(len(key.homes) > 1 for key in routing.hot))
        assert sum(each["hot_keys"] for each in parallel.figures) == len(
            [key for key in routing.hot if key.home.ways > 1]
        )
    assert rows_in_all(found) == expected_pairs(SPEC, batches)
    assert [2] in split[1:4], split
    assert split[-1] != [2], split
    assert any(visited)
    assert visited[-1] == 0
    last = _routing(parallel)
    assert last.owner[:GROUPS] and set(last.owner[GROUPS:]) <= {-1}


def _of_kind(how: str) -> WindowJoinSpec:
    return WindowJoinSpec(SCHEMA, SCHEMA, parse_on("id"), how, window=parse_windows(10, "t", lateness=3))


def _expected(how: str, batches: list[list[pa.RecordBatch]]) -> Counter[Any]:
    """By loops over the rows: times of both, or of the one there is."""
    left, right = (pa.Table.from_batches([tables[side] for tables in batches]) for side in (0, 1))
    ids, times = ([np.array(table[name]) for table in (left, right)] for name in ("id", "t"))
    meet = (ids[0][:, None] == ids[1]) & (np.abs(times[0][:, None] - times[1]) <= 10)
    pairs = [(int(i), int(j)) for i, j in zip(*np.nonzero(meet), strict=True)]
    own = [list(zip(ids[side].tolist(), times[side].tolist(), strict=True)) for side in (0, 1)]
    found: Counter[Any] = Counter()
    for result in results_of(KINDS_OF_JOINS[how], pairs, left.num_rows, right.num_rows):
        found[tuple(None if row is None else own[side][row] for side, row in enumerate(result))] += 1
    return found


def _found(how: str, batches: list[pa.RecordBatch]) -> Counter[Any]:
    """The same of what was found."""
    found: Counter[Any] = Counter()
    for batch in batches:
        for row in batch.to_pylist():
            sides = [(row["id"], row["t"]) if row["t"] is not None else None]
            if "t_right" in row:
                sides.append((row["id"], row["t_right"]) if row["t_right"] is not None else None)
            found[tuple(sides)] += 1
    return found


def _play_kinds(path: Path, how: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Whims]:
    """Batches with few partners through a master that moves and splits as it likes; then time goes on for all."""
    rng = np.random.default_rng([seed, 5])
    parallel = Parallel(path, _of_kind(how), 4 << 20, "confluence")
    batches = []
    for number in range(12):
        tables = []
        for _ in (0, 1):
            ids = np.where(rng.random(30) < 0.5, rng.integers(0, 3, 30), rng.integers(3, 90, 30))
            tables.append(_table(ids.tolist(), (number * 6 + rng.integers(0, 6, 30)).tolist()))
        batches.append(tables)
    whims = Whims(rng, [_key(parallel, value) for value in range(3)])
    monkeypatch.setattr(master_task, "reorganized", whims)
    monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
    far = [[_table([500 + i for i in range(40)], [time] * 40)] * 2 for time in (1000, 2000, 3000)]
    found: list[pa.RecordBatch] = []
    for number, tables in enumerate([*batches, *far]):
        if rng.random() < 0.3:
            monkeypatch.setattr(kept_operators, "WORKER", KeptOperators())
        results = parallel.batch(number, tables)
        if rng.random() < 0.3:
            parallel.run = f"run-{number}"
            assert _found(how, parallel.batch(number, tables)) == _found(how, results), "a batch that is repeated"
        found += results
    early = {row: count for row, count in _found(how, found).items() if all(x is None or x[1] < 900 for x in row)}
    return Counter(early), _expected(how, batches), whims


@pytest.mark.parametrize("how", ["left", "right", "full", "semi", "anti"])
def test_kinds_are_exact_whatever_moves_and_splits(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ripe = 0
    real = HotKey._tracked_places

    def watched(key: HotKey, side: int) -> Any:
        nonlocal ripe
        found = real(key, side)
        ripe += len(found) > 1
        return found

    monkeypatch.setattr(HotKey, "_tracked_places", watched)
    found, expected, whims = _play_kinds(tmp_path, how, len(how), monkeypatch)
    assert found == expected, (found - expected, expected - found)
    assert whims.splits > 5
    assert ripe > 5 or how == "full"


def _visits(key: HotKey, side: int) -> Any:
    """Rows look for those of before where these are, and are kept elsewhere: what they find there is not noted."""
    return replace(key, homes=tuple(replace(home, since=None) for home in key.homes), tracked=NEITHER).places(side)


def _at_once(home: Home, newest: Any, timing: Any) -> Home:
    """A new home counts as ripe though rows of before never came there."""
    return replace(home, since=None)


def _given_up(home: Home, newest: Any, timing: Any) -> bool:
    """A home is given up with rows that may still find partners."""
    return home.until is not None


@pytest.mark.parametrize(
    ("owner", "rule", "broken"),
    [(HotKey, "_tracked_places", _visits), (Home, "ripened", _at_once), (Home, "is_left", _given_up)],
    ids=["a bit lost in a split of a key", "a home that is not ripe", "a home given up too early"],
)
def test_a_bit_lost_in_a_split_of_a_key_is_missed(
    owner: Any, rule: str, broken: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, rule, broken)
    plays = (_play_kinds(tmp_path / str(seed), "left", seed, monkeypatch) for seed in range(4))
    assert any(found != expected for found, expected, _ in plays)


def test_slots_come_with_work_and_go_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parallel = Parallel(tmp_path / "state", SPEC, 4 << 20)
    rng = np.random.default_rng(4)
    batches = [_steady(rng, number) for number in range(14)]
    found, active = [], []
    _work_for_time(monkeypatch)
    clock = Clock(monkeypatch, 1000.0)  # the slots have almost nothing to do
    for number, tables in enumerate(batches):
        if number == 5:
            clock.step = 1e-4  # and now they are busy all the time
        found += parallel.batch(number, tables)
        active.append(len(_routing(parallel).active))
    assert active[:4] == [3, 2, 1, 1]
    assert active[-1] == 3
    assert rows_in_all(found) == expected_pairs(SPEC, batches)
    assert sum(each["moved"] for each in parallel.figures) > GROUPS
    names = sorted(path.name for path in (tmp_path / "state" / "routing").iterdir())
    assert len(names) <= 4 + 1 + 2 * SLOTS[1], names


def test_slots_may_change_with_a_restart_and_groups_may_not(tmp_path: Path) -> None:
    parallel = Parallel(tmp_path / "state", SPEC, 4 << 20)
    rng = np.random.default_rng(5)
    batches = [_steady(rng, number) for number in range(4)]
    found = parallel.batch(0, batches[0])
    for number, slots in ((1, (1, 1)), (2, (5, 6)), (3, (1, 3))):
        parallel.run, parallel.slots = f"run {slots}", slots
        found += parallel.batch(number, batches[number])
        assert slots[0] <= len(_routing(parallel).active) <= slots[1]
    assert rows_in_all(found) == expected_pairs(SPEC, batches)
    path = tmp_path / "state" / "state.json"
    with pytest.raises(SnapshotError, match=r"has 7 groups, not 8; join with groups=7"):
        slot_task.StateDirectory(
            path.parent,
            slot_task.Owner(parallel._factory.fingerprint, 8, "query", "groups"),
            Batch(4, "run"),
            4,
        )


def test_the_home_of_a_hot_key_that_is_lost_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parallel = Parallel(tmp_path / "state", SPEC, 4 << 20)
    rng = np.random.default_rng(6)
    parallel.batch(0, _steady(rng, 0, hot=0.5))
    monkeypatch.setattr(master_task, "reorganized", Whims(rng, [_key(parallel, 5)]))
    parallel.batch(1, _steady(rng, 1, hot=0.5))
    [file] = (tmp_path / "state" / "routing").glob("routing-1-*")
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(SnapshotError, match=r"is that of a hot key, and the file in .* that says of which is missing"):
        parallel.batch(2, _steady(rng, 2))
    file.write_bytes(content)
    parallel.batch(2, _steady(rng, 2))
    file.unlink()  # told again since
    parallel.batch(3, _steady(rng, 3))


def test_quiet_groups_let_their_rows_go(tmp_path: Path) -> None:
    parallel = Parallel(tmp_path / "state", SPEC, 4 << 20, epoch=3600.0)
    rng = np.random.default_rng(7)
    parallel.batch(0, _steady(rng, 0))
    for number in range(1, 24):
        times = list(range(number * 5, number * 5 + 5))
        parallel.batch(number, [_table([5] * 5, times)] * 2)
    held = [max(path.glob("manifest-*")) for path in (tmp_path / "state").glob("group-*")]
    assert sum('"snapshot":null' in path.read_text() for path in held) == GROUPS - 1
    assert all(each["memory"] <= 4 << 20 for each in parallel.figures)


def test_state_at_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    parallel = Parallel(tmp_path / "state", SPEC, 4 << 20, scheme="fetch+file://")
    rng = np.random.default_rng(8)
    whims = Whims(rng, [_key(parallel, 5)])
    monkeypatch.setattr(master_task, "reorganized", whims)
    batches = [_steady(rng, number, hot=0.3) for number in range(4)]
    found = [out for number, tables in enumerate(batches) for out in parallel.batch(number, tables)]
    assert rows_in_all(found) == expected_pairs(SPEC, batches)
    assert whims.splits
