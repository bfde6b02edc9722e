"""What runs in a Spark task of a look-up: rows of a stream in, what a relation has for them out.

No rows are kept from batch to batch, and none are shuffled: any task can answer any row. What a worker process keeps is
the operator with the parts of the relation that were asked for most, for its next task.

All tasks of a micro-batch, and those that repeat it, meet one version of the relation. The first that looks takes the
newest and notes it in the state directory::

    versions/version-12-77a1c2d3        batch 12 of this run: {"version": 5}

Before that, it asks the relation to keep the version for this query, so that a later change does not remove it as long
as the batch may have to be repeated.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from watersmeet import planner
from watersmeet.core.errors import RelationError
from watersmeet.core.lookup import LookupSpec
from watersmeet.core.protocol import Arrive, Event, Stall, Status
from watersmeet.engine.lookup_operator import LookupJoin
from watersmeet.engine.lookup_shell import PAGE_BYTES
from watersmeet.relation.relation import Pinned, RelationReader, Version
from watersmeet.spark.state.directory import Owner, StateDirectory, batch_of
from watersmeet.spark.state.files import checked_json, make_directory, names_in, publish, read_json, remove
from watersmeet.spark.state.lineage import token
from watersmeet.spark.state.remote import CACHE_BYTES, Place
from watersmeet.spark.task.context import current_batch, state_place
from watersmeet.spark.task.figures import figures_row, with_figures
from watersmeet.spark.task.operator_group import POLL_FUEL
from watersmeet.spill.file_store import FileStore
from watersmeet.spill.pins import FilePins
from watersmeet.spill.store import MemoryStore


class ReaderAsOf(RelationReader):
    """A reader for whom one version is the newest."""

    def __init__(self, path: Path, number: int) -> None:
        super().__init__(FileStore.at(path), FilePins(path), str(path))
        self._version = self._found(number)

    def latest(self, pinned: bool = False) -> Version:
        """The version that counts."""
        return self._version

    def pin(self, number: int | None = None) -> Pinned:
        """Hold a version."""
        return super().pin(self._version.number if number is None else number)

    def go_to(self, number: int) -> None:
        """Let a later version count from now on."""
        assert number >= self._version.number, "rows that were taken in have met a later version"
        if number > self._version.number:
            self._version = self._found(number)

    def _found(self, number: int) -> Version:
        try:
            pinned = RelationReader(self.store, self.pins, self.where).pin(number)
        except RelationError as error:
            raise RelationError(f"these rows are to meet the relation as it was before: {error}") from None
        pinned.release()
        return pinned.version


class BatchVersions:
    """The versions that the batches of a query meet."""

    def __init__(self, directory: StateDirectory, relation: Path, query: str) -> None:
        self._path = directory.path / "versions"
        self._batch = directory.batch
        self._lineage = directory.lineage
        self._retain = directory.retain
        self._relation = relation
        self._query = query

    def current(self) -> int:
        """The version that this batch meets."""
        make_directory(self._path)
        number = self._batch.number
        own = self._path / self._name(self._batch.run)
        if not own.exists():
            told = [self._path / self._name(run) for run in self._lineage.repeated(number)]
            version = next((self._known(path) for path in told if path.exists()), None)
            publish(own, checked_json({"version": self._newest() if version is None else version}), first_wins=True)
            self._clean()
        return self._known(own)

    def _name(self, run: str) -> str:
        return f"version-{self._batch.number}-{token(run)}"

    def _known(self, path: Place) -> int:
        return int(read_json(path)["version"])

    def _newest(self) -> int:
        pins = FilePins(self._relation)
        reader = RelationReader(FileStore.at(self._relation), pins, str(self._relation))
        while True:
            version = reader.latest().number
            pins.hold(version, self._query)
            if reader.latest().number <= version + 1:  # else it may be gone: see `spill.pins`
                return version

    def _clean(self) -> None:
        """Drop what tells of batches that nobody can go back to, and let go of versions that only older ones met."""
        needed = []
        for name in names_in(self._path):
            batch = batch_of(name)
            if 0 <= batch < self._batch.number - self._retain:
                remove(self._path / name)
            elif batch >= self._batch.number - 1 and not name.startswith("."):
                needed.append(self._known(self._path / name))
        if needed:
            FilePins(self._relation).let_go(self._query, min(needed))


FIGURES = ("stream_rows", "results", "memory", "hits", "misses", "read", "task_ms")
"""Of a task: rows in and out, the most bytes that were reserved, rows that found their part of the relation in memory,
rows without a partner, bytes of the relation that were looked at on disk, and milliseconds."""


@dataclass(frozen=True)
class LookupTask:
    """The function of `mapInArrow`: a streaming look-up's if it has a state directory, else a batch one's."""

    spec: LookupSpec
    output: pa.Schema
    """The results in Spark's types."""
    relation: str
    memory: int
    algorithm: str
    version: int = -1
    """Of a batch DataFrame: which version of the relation it meets."""
    state: str | None = None
    retain: int = 100
    cache_bytes: int = CACHE_BYTES
    made: int = field(default_factory=time.time_ns, compare=False)
    """When the query was put together: see `state.lineage`."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Answer the rows of one partition."""
        began = time.monotonic()
        rows = (batch for batch in batches if batch.num_rows)
        directory = self._directory()  # a batch takes note of itself, if none of its tasks has rows, too
        first = next(rows, None)
        if first is None:
            return
        join = WORKER.take(self, self._version(directory))
        before = _counts(join)
        stream_rows = results = 0
        for event in self._events(first, rows):
            stream_rows += event.batch.num_rows if isinstance(event, Arrive) else 0
            for out in _work_off(join, event):
                results += out.num_rows
                answers = self._in_spark_types(out)
                yield answers if self.state is None else next(with_figures([answers]))
        assert join.empty, "a silence has answered all rows"
        hits, misses, read = (now - then for now, then in zip(_counts(join), before, strict=True))
        if self.state is not None:
            spent = round((time.monotonic() - began) * 1000)
            yield figures_row(self.output, [stream_rows, results, join.budget.peak, hits, misses, read, spent])
        WORKER.keep(self, join)

    def _directory(self) -> StateDirectory | None:
        if self.state is None:
            return None
        batch, query = current_batch()
        owner = Owner(f"{self.spec.fingerprint}-lookup", 1, query, made=self.made)
        return StateDirectory(state_place(self.state), owner, batch, self.retain, self.cache_bytes)

    def _version(self, directory: StateDirectory | None) -> int:
        if directory is None:
            return self.version
        return BatchVersions(directory, Path(self.relation), current_batch()[1]).current()

    def _events(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[Event]:
        yield Arrive(0, self._as_announced(first))
        for batch in rest:
            yield Arrive(0, self._as_announced(batch))
        yield Stall()

    def _as_announced(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return _cast(batch, self.spec.stream)

    def _in_spark_types(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return _cast(batch, self.output)


class KeptLookups:
    """What a worker process keeps for its next task: the operator that was used last, within that task's memory."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, str, int], LookupJoin] = OrderedDict()

    def take(self, task: LookupTask, version: int) -> LookupJoin:
        """The operator of a task, at this version of its relation; a new one if none was kept."""
        found = self._kept.pop(_key(task), None)
        if found is not None and found.version.number > version:  # a batch is repeated
            found.close()
            found = None
        # The one that is to work may hold all of the task's memory: whatever was kept beside it would come on top.
        while self._kept:
            self._kept.popitem(last=False)[1].close()
        if found is None:
            reader = ReaderAsOf(Path(task.relation), version)
            made = planner.build_lookup(task.spec, task.memory, MemoryStore(), [reader], task.algorithm)
            assert isinstance(made, LookupJoin)
            return made
        assert isinstance(found.reader, ReaderAsOf)
        found.reader.go_to(version)
        return found

    def keep(self, task: LookupTask, join: LookupJoin) -> None:
        """Keep an operator that has answered all rows for the next task."""
        self._kept[_key(task)] = join


WORKER = KeptLookups()
"""This process's own."""


def _key(task: LookupTask) -> tuple[str, str, str, int]:
    return task.relation, task.spec.fingerprint, task.algorithm, task.memory


def _work_off(join: LookupJoin, event: Event) -> Iterator[pa.RecordBatch]:
    join.receive(event)
    while True:
        step = join.poll(time.monotonic(), POLL_FUEL)
        if step.out is not None and step.out.num_rows:
            yield step.out
        if not (step.status is Status.HAS_OUTPUT or (isinstance(event, Stall) and step.status is Status.HAS_WORK)):
            return


def _counts(join: LookupJoin) -> tuple[int, int, int]:
    return join.hits, join.answers.misses, join.answers.meter.pages_read * PAGE_BYTES


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
