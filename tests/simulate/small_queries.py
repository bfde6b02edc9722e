"""Small streaming joins of every verb on Spark, without Spark: the same rows each time, batch by batch, group by group.

Each attempt is made by a worker that has kept nothing, so that all state is read from its files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from simulate.routed_streams import LookupPipeline, RoutedPipeline
from spark.divided_streams import ManyStream, Stream, cut
from spark.pipelines import TASKS, JoinPipeline, ManyPipeline
from spark.whims import SplitWhims, Whims
from watersmeet.api.relation import Relation
from watersmeet.checks.canonical import canonical_rows
from watersmeet.core.asof import AsofSpec, parse_asof
from watersmeet.core.lookup import LookupSpec, lookup_conditions
from watersmeet.core.many_windows import parse_many_windows
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import JoinSpec, band, parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.spark.rebalance import master_task, slot_task
from watersmeet.spark.state import open_runs
from watersmeet.spark.state.directory import Batch
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.task import lookup_task, operator_cache
from watersmeet.spark.task.lookup_task import KeptLookups, LookupTask
from watersmeet.spark.task.operator_cache import KeptOperators

BATCHES = 4
"""Of each query; with the last one, inputs end that can."""
STATE = "state"
"""The folder of the state, below a query's place."""
ROWS = 60
MEMORY = 1 << 20
Found = Counter[Any]


def tables() -> list[pa.RecordBatch]:
    """Three inputs: some keys of each are in no other, and some have many rows."""
    keys = [[i % 11 for i in range(ROWS)], [3 + i % 9 for i in range(ROWS)], [i * i % 13 for i in range(ROWS)]]
    schema = pa.schema({"id": pa.int64(), "b": pa.int64(), "at": pa.int64()})
    return [
        pa.RecordBatch.from_arrays(
            [pa.array(own), pa.array([i % 5 for i in range(ROWS)]), pa.array(range(ROWS)), pa.array(range(ROWS))],
            schema=schema.append(pa.field(name, pa.int64())),
        )
        for name, own in zip("rst", keys, strict=True)
    ]  # fmt: skip


@dataclass
class Query:
    """One of them, with its state below a place."""

    place: Path
    groups: int
    attempt: Callable[[int, int], Found]
    """What the task of a group gives in a batch."""
    begin: Callable[[int], None] = lambda number: None
    """What happens elsewhere before a batch."""
    patches: Callable[[int], Sequence[tuple[Any, str, Any]]] = lambda number: ()
    """What stands in the place of what, in a batch."""
    scratch: Path | None = None
    """Where tasks put what does not outlive them, if not where the system has it."""
    stream: Any = None
    """Of joins whose state can be divided anew: what knows the number of groups."""

    @property
    def state(self) -> Path:
        """Its folder."""
        return self.place / STATE

    def run(self, number: int, group: int) -> Found:
        """An attempt of a worker that knows nothing of those before."""
        with pytest.MonkeyPatch.context() as patch:
            for module in (*TASKS, master_task, slot_task, lookup_task):
                patch.setattr(module, "current_batch", lambda: (Batch(number, "run-0"), "query"))
                if self.scratch is not None and hasattr(module, "scratch_directory"):
                    patch.setattr(module, "scratch_directory", lambda: self.scratch)
            patch.setattr(open_runs, "WORKER", OpenRuns())
            patch.setattr(operator_cache, "WORKER", KeptOperators(OpenRuns()))
            patch.setattr(lookup_task, "WORKER", KeptLookups())
            for module, name, value in self.patches(number):
                patch.setattr(module, name, value)
            return self.attempt(number, group)

    def batch(self, number: int) -> Found:
        """All tasks of a batch."""
        self.begin(number)
        return sum((self.run(number, group) for group in range(self.groups)), Counter())


def _ended(number: int, inputs: int) -> tuple[int, ...]:
    return tuple(range(inputs)) if number == BATCHES - 1 else ()


def _given(number: int, inputs: int) -> list[pa.RecordBatch]:
    return [cut(table, BATCHES)[number] for table in tables()[:inputs]]


def _streamed(place: Path, spec: Any, kind: type[Stream] = Stream, ends: bool = True, **options: Any) -> Query:
    """By tasks of the number of groups, which can change."""
    inputs = len(spec.names)
    stream = kind(place / STATE, spec, 2, **options)

    def attempt(number: int, group: int) -> Found:
        return stream.batch(number, _given(number, inputs), _ended(number, inputs) if ends else (), group)

    return Query(place, stream.groups, attempt, stream=stream)


def _piped(place: Path, pipeline: Any, inputs: int = 2, ends: bool = True, **options: Any) -> Query:
    """By the tasks themselves."""

    def attempt(number: int, group: int) -> Found:
        out = pipeline.attempt(group, _given(number, inputs), _ended(number, inputs) if ends else ())
        return Counter(row for batch in out for row in canonical_rows(batch))

    return Query(place, pipeline.groups, attempt, **options)


def _schemas(inputs: int = 2) -> list[pa.Schema]:
    return [table.schema for table in tables()[:inputs]]


def _join(place: Path) -> Query:
    return _streamed(place, JoinSpec(*_schemas(), parse_on("id"), "left"))


def _full(place: Path) -> Query:
    return _piped(place, JoinPipeline(place / STATE, JoinSpec(*_schemas(), parse_on("id"), "full"), MEMORY, ends=True))


def _bands(place: Path) -> Query:
    spec = JoinSpec(*_schemas(), parse_on(["id", band("b", 1)]))
    return _piped(place, JoinPipeline(place / STATE, spec, MEMORY, ends=True, groups=2))


def _progressive(place: Path, algorithm: str) -> Query:
    spec = JoinSpec(*_schemas(), parse_on("id"))
    return _piped(place, JoinPipeline(place / STATE, spec, MEMORY, algorithm, ends=True, groups=2, fuel=20))


def _window_spec(how: str) -> WindowJoinSpec:
    return WindowJoinSpec(*_schemas(), parse_on("id"), how, window=parse_windows(20, "at", lateness=5, late="drop"))


def _windows(place: Path) -> Query:
    return _streamed(place, _window_spec("left"), ends=False)


def _asof(place: Path) -> Query:
    spec = AsofSpec(*_schemas(), parse_on("id"), "left", times=parse_asof("at", lateness=5, late="drop"))
    return _streamed(place, spec, ends=False)


def _many_spec(on: list[str], how: object = None, windowed: bool = False) -> MultiSpec:
    window = parse_many_windows(20, "rst", "at", 5, "drop") if windowed else None
    return MultiSpec.of(dict(zip("rst", _schemas(3), strict=True)), on, window=window, how=how)


def _many(place: Path) -> Query:
    return _streamed(place, _many_spec(["r.id = s.id", "s.id = t.id"]), ManyStream)


def _grid(place: Path) -> Query:
    pipeline = ManyPipeline(place / STATE, _many_spec(["r.id = s.id", "s.b = t.b"]), MEMORY, ends=True, groups=4)
    assert len(pipeline.grid.axes) > 1
    return _piped(place, pipeline, 3)


def _preserving(place: Path) -> Query:
    spec = _many_spec(["r.id = s.id", "s.id = t.id"], {"r": "left"})
    return _piped(place, ManyPipeline(place / STATE, spec, MEMORY, ends=True, groups=2), 3)


def _many_windows(place: Path) -> Query:
    spec = _many_spec(["r.id = s.id", "s.id = t.id"], windowed=True)
    return _streamed(place, spec, ManyStream, ends=False)


def _routed(place: Path, spec: JoinSpec, name: str, whims: Callable[..., Any], ends: bool) -> Query:
    """Keys are split, and where groups can move, they do: the same ones each time."""
    pipeline = RoutedPipeline(place / STATE, spec, MEMORY)
    keys = sorted({key for side in (0, 1) for key in pipeline.keys(side, tables()[side]) if key is not None})

    def patches(number: int) -> list[tuple[Any, str, Any]]:
        return [(master_task, name, whims(np.random.default_rng([number, 5]), keys))]

    return _piped(place, pipeline, ends=ends, patches=patches)


def _hot_keys(place: Path) -> Query:
    return _routed(place, JoinSpec(*_schemas(), parse_on("id"), "left"), "split_only", SplitWhims, True)


def _parallel(place: Path) -> Query:
    return _routed(place, _window_spec("inner"), "reorganized", Whims, False)


def _lookup(place: Path) -> Query:
    """The relation changes before each batch but the first."""
    stream, rows = tables()[:2]
    named = pa.Table.from_batches([rows]).select(["id", "s"])
    path = place / "relation"
    if not Relation.is_at(path):
        place.mkdir(parents=True, exist_ok=True)
        Relation.build(named.slice(0, 8), on="id", path=path, segment="1 KiB", durable=False)
    spec = LookupSpec(stream.schema, named.schema, lookup_conditions(None, ("id",)), "left")
    task = LookupTask(spec, spec.schema, str(path), MEMORY, "auto", state=str(place / STATE), retain=BATCHES)

    def begin(number: int) -> None:
        if number and Relation.open(path).version == number:
            Relation.open(path).upsert(named.slice(8 * number, 8))

    return _piped(place, LookupPipeline(task), 1, False, begin=begin)


QUERIES: Mapping[str, Callable[[Path], Query]] = {
    "join": _join, "full join": _full, "bands": _bands,
    **{f"join by {name}": partial(_progressive, algorithm=name) for name in ("xjoin", "pmj", "diner")},
    "window_join": _windows, "asof_join": _asof, "multijoin": _many, "multijoin on a grid": _grid,
    "multijoin, left": _preserving, "multijoin in windows": _many_windows, "join with hot keys": _hot_keys,
    "parallel_join": _parallel, "lookup_join": _lookup,
}  # fmt: skip
"""Made anew with the place of one that has come some way, a query goes on from there."""


@contextmanager
def without_syncs() -> Iterator[None]:
    """Nothing waits for the disk, which takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield
