"""Streams whose rows a master sends to their tasks, and look-ups: hot keys are split, groups move, relations change."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simulate.embedded import smaller
from simulate.streams import Stream
from simulate.world import World
from spark.routed_rows import RoutedRows, hashed_keys, numbered_keys
from spark.whims import SplitWhims, Whims
from spark.window_oracle import expected_pairs, micro_batches, spark_cases
from watersmeet.api.relation import Relation
from watersmeet.checks.canonical import canonical_rows
from watersmeet.checks.cases import Case
from watersmeet.checks.lookup_cases import LookupMove, after_change, answers_for
from watersmeet.checks.run import expected_rows
from watersmeet.core.errors import SnapshotError
from watersmeet.core.lookup import HOW, LookupSpec, lookup_conditions
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.spark.plan.recipe import JoinFactory, WindowFactory
from watersmeet.spark.rebalance import master_task
from watersmeet.spark.rebalance.master_task import MasterTask
from watersmeet.spark.rebalance.slot_task import FIGURES, SlotTask
from watersmeet.spark.task.figures import COLUMN, figure_names
from watersmeet.spark.task.lookup_task import FIGURES as LOOKUP_FIGURES
from watersmeet.spark.task.lookup_task import LookupTask
from watersmeet.spark.task.operator_task import SplitTask

_GROUPS = 3
_HOT = 5
"""The first of the keys that have many rows."""


class RoutedPipeline:
    """A master and its tasks. Each attempt asks the master, so that there are several at once; one answer holds."""

    groups = _GROUPS
    """Tasks of a batch; of a parallel join, the most slots."""

    def __init__(self, path: Path | str, spec: JoinSpec, memory: int, algorithm: str = "confluence") -> None:
        self.spec, self.spilled = spec, 0
        if isinstance(spec, WindowJoinSpec):
            groups, windows = 2 * _GROUPS + 1, WindowFactory(spec, algorithm)
            self._rows = RoutedRows(spec, groups, hashed_keys(spec), chances=_chances)
            self.task: Any = SlotTask(windows, self._rows.layout, memory, groups, str(path), retain=4)
            self._master = MasterTask(spec, windows.fingerprint, groups, (1, _GROUPS), 0.0, str(path), retain=4)
            self._names = FIGURES
        else:
            groups, plain = _GROUPS, JoinFactory(spec, algorithm)
            self._rows = RoutedRows(spec, groups, numbered_keys(spec), signed=True, chances=_chances)
            self.task = SplitTask(plain, self._rows.layout, memory, groups, state=str(path), retain=4, signed=True)
            self._master = MasterTask(
                spec, plain.fingerprint, groups, (groups, groups), 0.0, str(path), 4, plain.described(), moves=False
            )
            self._names = figure_names(late=False)
        self.keys = self._rows.keys

    def attempt(self, slot: int, tables: list[pa.RecordBatch], ended: tuple[int, ...] = ()) -> list[pa.RecordBatch]:
        """What a task gives in the batch at hand."""
        [answer] = list(self._master(iter([pa.record_batch({"id": [0]})])))
        routing = answer.column(0)[0].as_py()
        if routing["refused"] is not None:
            raise SnapshotError(routing["refused"])
        found = []
        for out in self.task(self._rows.delivered(slot, tables, routing, ended)):
            told = out.column(COLUMN)
            for each in told.to_pylist():
                self.spilled += 0 if each is None else dict(zip(self._names, each, strict=False)).get("spilled", 0)
            found.append(out.drop_columns([COLUMN]).filter(told.is_null()))
        return [batch for batch in found if batch.num_rows]

    def total(self, name: str) -> int:
        """A figure of all tasks."""
        assert name == "spilled"
        return self.spilled


def _chances(rows: pa.RecordBatch) -> list[int]:
    """Where a row goes is its own matter, in whatever order rows come to an attempt."""
    return [zlib.crc32(repr(content).encode()) for content in canonical_rows(rows)]


def hot_keys(world: World, rng: np.random.Generator, state: Path | str) -> Stream:
    """A plain join of any kind, whose keys are split whenever the master likes."""
    how = str(rng.choice(["inner", "semi", "left", "right", "anti"]))
    left = pa.schema({"id": pa.int32(), "a": pa.int64(), "text": pa.string()})
    spec = JoinSpec(left, pa.schema({"b": pa.int64(), "key": pa.int32()}), parse_on("id = key"), how)
    pipeline = RoutedPipeline(state, spec, int(rng.choice([400 << 10, 2 << 20])))
    count, sooner, first = int(rng.integers(3, 6)), int(rng.integers(2)), 0
    batches: list[tuple[list[pa.RecordBatch], tuple[int, ...]]] = []
    for number in range(count):
        tables = []
        for side in (0, 1):
            rows = int(rng.integers(1, 1 + 40 * world.trial.rows))
            if number == count - 1 and side == sooner:
                rows = 0
            ids = np.where(rng.random(rows) < 0.5, rng.integers(_HOT, _HOT + 2, rows), rng.integers(10, 60, rows))
            keys, numbers = pa.array(ids, pa.int32()), pa.array(np.arange(first, first + rows))
            texts = pa.array([None if n % 3 == 0 else f"text {n}" for n in range(rows)], pa.string())
            columns = [numbers, keys] if side else [keys, numbers, texts]
            tables.append(pa.RecordBatch.from_arrays(columns, schema=spec.input(side)))
            first += rows
        ended = {count - 2: (sooner,), count - 1: (1 - sooner,)}.get(number, ())
        batches.append((tables, ended))
    sample = pa.record_batch({"id": pa.array([_HOT, _HOT + 1, 11], pa.int32())})
    words = [key for key in pipeline.keys(0, sample) if key is not None]
    whole = [pa.Table.from_batches([tables[side] for tables, _ in batches]).combine_chunks() for side in (0, 1)]
    both = [
        (table.to_batches() or [spec.input(side).empty_table().to_batches()])[0] for side, table in enumerate(whole)
    ]
    case = Case(0, spec, both[0], both[1], (), (1,), 1, 1)
    whims = SplitWhims(trial_rng(world), words)
    return Stream(
        "stream join with hot keys", pipeline, batches, lambda: expected_rows(case),
        patches=((master_task, "split_only", whims),),
    )  # fmt: skip


def parallel(world: World, rng: np.random.Generator, state: Path | str) -> Stream:
    """A parallel join: its groups move, its slots come and go, its keys are split, with almost every batch."""
    name = str(rng.choice(["confluence", "ah_ewj"]))
    case: Any = smaller(next(spark_cases(name, 1, int(rng.integers(1 << 20)))), world.trial)
    batches = micro_batches(case, rng, most=4)
    pipeline = RoutedPipeline(state, case.spec, case.memory * 8 // 5 + 64, name)
    keys = {key for side in (0, 1) for key in pipeline.keys(side, case.table(side)) if key is not None}
    whims = Whims(trial_rng(world), sorted(keys) or [0])
    return Stream(
        "stream parallel_join", pipeline, [(tables, ()) for tables in batches],
        lambda: expected_pairs(case.spec, batches), patches=((master_task, "reorganized", whims),),
    )  # fmt: skip


def trial_rng(world: World) -> np.random.Generator:
    """The master's own chance."""
    return world.trial.rng(8)


class LookupPipeline:
    """The tasks of a look-up: any of them can answer any row, and none keeps any."""

    groups = 2

    def __init__(self, task: LookupTask) -> None:
        self.task: Any = task
        self.read = 0

    def attempt(self, group: int, tables: list[pa.RecordBatch], ended: tuple[int, ...] = ()) -> list[pa.RecordBatch]:
        """What a task answers to its share of the rows."""
        own = [zlib.crc32(repr(row).encode()) % self.groups == group for row in canonical_rows(tables[0])]
        rows, found = tables[0].filter(pa.array(own, pa.bool_())), []
        half = rows.num_rows // 2
        for out in self.task(iter([rows.slice(0, half), rows.slice(half)])):
            told = out.column(COLUMN)
            for each in told.to_pylist():
                self.read += 0 if each is None else dict(zip(LOOKUP_FIGURES, each, strict=True))["read"]
            found.append(out.drop_columns([COLUMN]).filter(told.is_null()))
        return [batch for batch in found if batch.num_rows]

    def total(self, name: str) -> int:
        """A look-up spills nothing."""
        return 0


def lookup(world: World, rng: np.random.Generator, state: Path | str) -> Stream:
    """A look-up in a relation that changes before each batch: all attempts at a batch meet the version of its first."""
    schema = pa.schema({"sku": pa.int32(), "name": pa.string()})
    stream = pa.schema({"sku": pa.int32(), "n": pa.int64()})

    def named(count: int, word: str) -> pa.RecordBatch:
        skus = rng.choice(60, count, replace=False)
        return pa.record_batch([pa.array(skus, pa.int32()), pa.array([f"{word} {sku}" for sku in skus])], schema=schema)

    now = pa.Table.from_batches([named(40, "cup")])
    relation = Relation.build(now, on="sku", path=world.root / "names.rel", segment="1 KiB", durable=False)
    spec = LookupSpec(stream, schema, lookup_conditions(None, ("sku",)), str(rng.choice(HOW)))
    task = LookupTask(spec, spec.schema, str(relation.path), 1 << 20, "auto", state=str(state), retain=4)
    batches, expected, changes = [], Counter[Any](), []
    for number in range(int(rng.integers(2, 5))):
        if number:
            changes.append(LookupMove("upsert", named(int(rng.integers(1, 20)), f"pot {number}"), 0))
            now = after_change(now, ("sku",), changes[-1])
        rows = int(rng.integers(0, 1 + 40 * world.trial.rows))
        skus = pa.array(rng.integers(-5, 70, rows), pa.int32(), mask=rng.random(rows) < 0.05)
        table = pa.record_batch([skus, pa.array(np.arange(rows) + 1_000 * number)], schema=stream)
        batches.append(([table], ()))
        expected.update(answers_for(spec, table, now.combine_chunks()))

    def begin(number: int) -> None:
        if number:
            relation.upsert(changes[number - 1].batch)

    return Stream("stream lookup_join", LookupPipeline(replace(task)), batches, lambda: expected, begin=begin)
