"""`wm.shared_lookup_join`: several streams enriched from one relation, whose reads they share."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from watersmeet.api.explanation import Choice, Explanation
from watersmeet.api.explanation import conditions as described
from watersmeet.api.lookup_join import SUFFIXES, Place, PlacedStores, Target, by_name, check_lookup
from watersmeet.api.result import RunResult
from watersmeet.api.run import PageOption, Settings, Told, check_least, open_run, open_sources
from watersmeet.core.errors import SpecError
from watersmeet.core.lookup import LookupSpec, settle_how
from watersmeet.core.many_lookups import SharedSpec
from watersmeet.core.spec import On
from watersmeet.core.windows import Span
from watersmeet.drivers.live import WAIT, LiveOperator, LiveRun
from watersmeet.drivers.progress import Progress
from watersmeet.spill import FileStore


def shared_lookup_join(
    streams: Mapping[str, object],
    relation: object,
    on: On | Mapping[str, On] | None = None,
    *,
    how: str | Mapping[str, str] = "inner",
    on_miss: str | Mapping[str, str] | None = None,
    memory: str | int = "64 MiB",
    suffixes: tuple[str, str] = SUFFIXES,
    partition: str = "range",
    spill: str | os.PathLike[str] | None = None,
    wait: Span | float = WAIT,
    on_progress: Callable[[Progress], None] | None = None,
    page: PageOption = None,
    **options: Any,
) -> SharedResult:
    """Join several streams with one relation on disk, each for itself, with one read of the disk for all of them.

    Every stream is joined as by `lookup_join(..., algorithm="partitioned")`, but a partition that is read for one
    stream answers the rows of all streams that wait for it, and all share the partitions that are in memory.

    :param streams: by name, whatever `wm.join` takes.
    :param relation: a `wm.Relation` or the path of one; anything else is laid out first, as in `lookup_join`.
    :param on: key columns as in `lookup_join`: the same for all streams, or a dict by name.
    :param how: as in `lookup_join`: the same for all streams, or a dict by name; so is `on_miss`.
    :param memory: bytes, or words such as `"64 MiB"`, for all streams together.
    :param page: True: serve a live page of this join on 127.0.0.1 while it runs; standard error tells the address. Or
        a port, `"HOST:PORT"` or a `wm.Page` that several joins share. Needs `pip install starlette uvicorn`.
    :param options: those of `partitioned`.

    >>> products = pa.table({"sku": [7, 8], "name": ["cup", "pot"]})
    >>> sold, returned = [{"sku": 8, "n": 2}], [{"sku": 7, "why": "too blue"}]
    >>> found = shared_lookup_join({"sold": sold, "returned": returned}, products, on="sku").tables()
    >>> found["sold"].to_pylist(), found["returned"].to_pylist()
    ([{'sku': 8, 'n': 2, 'name': 'pot'}], [{'sku': 7, 'why': 'too blue', 'name': 'cup'}])
    """
    if not isinstance(streams, Mapping) or not streams:
        raise SpecError("give the streams by name: {'orders': ..., 'returns': ...}")
    check_lookup("partitioned", options)
    settings = Settings.of(memory, spill, wait, on_progress, page)
    ons, hows, misses = (by_name(what, given, streams, "stream") for what, given in
                         (("on", on), ("how", how), ("on_miss", on_miss)))  # fmt: skip
    settled = [settle_how(hows.get(name) or "inner", misses.get(name)) for name in streams]
    names = tuple(streams)
    target = Target(relation, ons.get(names[0]), Place(partition, settings.memory, spill))
    conditions = [target.conditions_for(ons.get(name)) for name in names]
    if len({tuple(sorted(equal.right for equal in each)) for each in conditions}) > 1:
        raise SpecError("all streams must be joined on the same columns of the relation")

    def specify(schemas: Sequence[pa.Schema]) -> SharedSpec:
        specs = [
            LookupSpec(schema, target.schema, each, how, suffixes=suffixes, names=(name, "relation"))
            for name, schema, each, how in zip(names, schemas, conditions, settled, strict=True)
        ]
        return SharedSpec(names, tuple(specs))

    def make(spec: SharedSpec, rest: int, store: FileStore) -> LiveOperator:
        from watersmeet.joins.lookup.shared import SharedLookup

        assert isinstance(store, PlacedStores)
        reader = target.laid_out(store).reading()
        check_least(SharedLookup.least_memory(spec, reader), settings.memory)
        return SharedLookup(spec, rest, store, reader, **options)

    def chosen(spec: SharedSpec) -> Choice:
        from watersmeet.joins.lookup.shared import SharedLookup

        return Choice(SharedLookup.name, "what is read for one stream answers the waiting rows of all")

    kinds = ", ".join(f"{name} {kind}" for name, kind in zip(names, settled, strict=True))
    told = Told("shared_lookup_join", described(conditions[0]), kinds, beside={"relation": target.schema})
    try:
        sources = open_sources(streams.items(), beside=[(target.name, target.source)])
        run, _, explain = open_run(sources, specify, make, settings, PlacedStores, told=told, choose=chosen)
        return SharedResult(run, names, explain)
    except BaseException:
        target.close()
        raise


class SharedResult(RunResult[tuple[str, pa.RecordBatch]]):
    """The results of several streams, as they are found: an iterable of stream names and batches, to be read once.

    >>> products = pa.table({"sku": [7, 8], "name": ["cup", "pot"]})
    >>> streams = {"sold": pa.table({"sku": [8]}), "lost": pa.table({"sku": [9]})}
    >>> result = shared_lookup_join(streams, products, on="sku")
    >>> [(name, batch.to_pylist()) for name, batch in result], result.progress.rows_in
    ([('sold', [{'sku': 8, 'name': 'pot'}])], (1, 1))
    """

    def __init__(self, run: LiveRun, names: tuple[str, ...], explain: Callable[[], Explanation]) -> None:
        super().__init__(run, explain)
        self._schemas: dict[str, pa.Schema] | None = None
        self.names = names
        """What the streams are called."""

    def _items(self) -> Generator[tuple[str, pa.RecordBatch], None, None]:
        operator: Any = self._run.operator()
        _ = self.schemas  # to be asked for when the join is over, too
        with closing(self._run.batches()) as batches:
            for batch in batches:
                yield self.names[operator.answered], batch

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """Each stream's columns, enriched; waits for the first rows of streams that tell their columns only then."""
        if self._schemas is None:
            operator: Any = self._run.operator()
            self._schemas = dict(zip(self.names, operator.spec.schemas, strict=True))
        return self._schemas

    def tables(self) -> dict[str, pa.Table]:
        """All results, by stream. An error if the join is closed before."""
        found: dict[str, list[pa.RecordBatch]] = {name: [] for name in self.names}
        for name, batch in self._all(iter(self)):
            found[name].append(batch)
        return {name: pa.Table.from_batches(batches, self.schemas[name]) for name, batches in found.items()}
