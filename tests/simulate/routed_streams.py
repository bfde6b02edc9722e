"""Streams whose rows a master sends to their tasks, and look-ups: hot keys are split, groups move, relations change."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simulate.embedded import smaller
from simulate.streams import Stream
from simulate.world import World
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
from watersmeet.records.times import WindowCodec, WindowPlan
from watersmeet.spark.io.source import END
from watersmeet.spark.plan.control_rows import SIGN_CODES
from watersmeet.spark.plan.recipe import JoinFactory, WindowFactory
from watersmeet.spark.plan.row_layout import RowLayout
from watersmeet.spark.rebalance import master_task
from watersmeet.spark.rebalance.master_task import MasterTask
from watersmeet.spark.rebalance.routing import KINDS
from watersmeet.spark.rebalance.slot_task import FIGURES, SlotTask
from watersmeet.spark.task.figures import COLUMN, figure_names
from watersmeet.spark.task.lookup_task import FIGURES as LOOKUP_FIGURES
from watersmeet.spark.task.lookup_task import LookupTask
from watersmeet.spark.task.operator_task import SplitTask
from watersmeet.spark.task.placement import Placement

_GROUPS = 3
_HOT = 5
"""The first of the keys that have many rows."""


class RoutedPipeline:
    """A master and its tasks. Each attempt asks the master, so that there are several at once; one answer holds."""

    groups = _GROUPS
    """Tasks of a batch; of a parallel join, the most slots."""

    def __init__(self, path: Path | str, spec: JoinSpec, memory: int, algorithm: str = "confluence") -> None:
        self.spec, self._signed = spec, not isinstance(spec, WindowJoinSpec)
        self.spilled = 0
        self._layout = RowLayout.of(*([each.type for each in spec.input(side)] for side in (0, 1)), wakes=True, roles=3)
        if isinstance(spec, WindowJoinSpec):
            self._codec = WindowCodec(spec)
            self._plans = [WindowPlan(spec, side, self._codec) for side in (0, 1)]
            windows = WindowFactory(spec, algorithm)
            self.task: Any = SlotTask(windows, self._layout, memory, 2 * _GROUPS + 1, str(path), retain=4)
            self._master = MasterTask(
                spec, windows.fingerprint, 2 * _GROUPS + 1, (1, _GROUPS), 0.0, str(path), retain=4
            )
            self._names, self._modulus = FIGURES, 2 * _GROUPS + 1
        else:
            plain = JoinFactory(spec, algorithm)
            self._placement = Placement(spec, by_id=True)
            self.task = SplitTask(plain, self._layout, memory, _GROUPS, state=str(path), retain=4, signed=True)
            self._master = MasterTask(
                spec, plain.fingerprint, _GROUPS, (_GROUPS, _GROUPS), 0.0, str(path), 4, plain.described(), moves=False
            )
            self._names, self._modulus = figure_names(late=False), _GROUPS

    def attempt(self, slot: int, tables: list[pa.RecordBatch], ended: tuple[int, ...] = ()) -> list[pa.RecordBatch]:
        """What a task gives in the batch at hand."""
        [answer] = list(self._master(iter([pa.record_batch({"id": [0]})])))
        routing = answer.column(0)[0].as_py()
        if routing["refused"] is not None:
            raise SnapshotError(routing["refused"])
        found = []
        for out in self.task(self._delivered(slot, tables, routing, ended)):
            told = out.column(COLUMN)
            for each in told.to_pylist():
                self.spilled += 0 if each is None else dict(zip(self._names, each, strict=False)).get("spilled", 0)
            found.append(out.drop_columns([COLUMN]).filter(told.is_null()))
        return [batch for batch in found if batch.num_rows]

    def total(self, name: str) -> int:
        """A figure of all tasks."""
        assert name == "spilled"
        return self.spilled

    def keys(self, side: int, rows: pa.RecordBatch) -> list[int | None]:
        """The hash of each row's key; None for rows that meet nothing."""
        if not isinstance(self.spec, WindowJoinSpec):
            return list(self._placement.hashes([rows.column(name) for name in self.spec.keys(side)]).tolist())
        hashes, valid = self._codec.hash(side, self._plans[side].key_arrays(rows))
        assert self.spec.window.time is not None
        known = rows.column(self.spec.window.time[side]).is_valid().to_numpy(zero_copy_only=False)
        known = known if valid is None else known & valid
        words = hashes.view(np.uint64).astype(np.uint32).view(np.int32).tolist()
        return [word if fine else None for word, fine in zip(words, known.tolist(), strict=True)]

    def _delivered(
        self, slot: int, tables: list[pa.RecordBatch], routing: Any, ended: tuple[int, ...]
    ) -> Iterator[pa.RecordBatch]:
        hot, slots = dict(routing["hot"]), routing["slots"]
        wakes = [] if self._signed else routing["wakes"]
        for side, table in enumerate(tables):
            rows, tags, hashes = [], [], []
            for row, (key, content) in enumerate(zip(self.keys(side, table), canonical_rows(table), strict=True)):
                if key is None:
                    continue
                # Where a row goes is its own matter, in whatever order rows come to an attempt.
                chance = zlib.crc32(repr(content).encode())
                places = [{"place": key % self._modulus, "kind": side}]
                if key in hot:
                    places = hot[key][side][chance % len(hot[key][side])]
                for place in [*places, *(wakes if chance % 5 == 0 else [])]:
                    if slots[place["place"]] == slot:
                        rows.append(row)
                        tags.append(place["place"] * KINDS + place["kind"])
                        hashes.append(key)
            yield from self._pieces(table.take(pa.array(rows, pa.int64())), side, tags, hashes, 0)
            if side in ended:
                own = [each for each in routing["signs"][side] if slots[each["place"]] == slot]
                nothing = pa.RecordBatch.from_arrays(
                    [pa.nulls(len(own), each.type) for each in table.schema], schema=table.schema
                )
                tags = [each["place"] * KINDS + each["kind"] for each in own]
                yield from self._pieces(nothing, side, tags, [42] * len(own), SIGN_CODES[END])

    def _pieces(
        self, own: pa.RecordBatch, side: int, tags: list[int], hashes: list[int], sign: int
    ) -> Iterator[pa.RecordBatch]:
        arrays = [pa.array(tags, pa.int32())]
        for number in range(self._layout.count):
            column = self._layout.column_in(side, number)
            arrays.append(own.column(column) if column is not None else pa.nulls(own.num_rows, self._type(number)))
        arrays.append(pa.array(hashes, pa.int32()))
        if self._signed:
            arrays.append(pa.array([sign] * own.num_rows, pa.int8()))
        whole = pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])
        for start in range(0, whole.num_rows, 60):
            yield whole.slice(start, 60)

    def _type(self, number: int) -> pa.DataType:
        side = next(side for side in (0, 1) if self._layout.column_in(side, number) is not None)
        column = self._layout.column_in(side, number)
        assert column is not None
        return self.spec.input(side).field(column).type


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
