"""`wm.lookup_join`: a stream enriched from a relation on disk, or from several in one pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from watersmeet.api.explanation import Choice
from watersmeet.api.explanation import conditions as described
from watersmeet.api.relation import Relation
from watersmeet.api.result import Result
from watersmeet.api.run import PageOption, Settings, Told, check_least, open_run, open_sources, two_names, usual_name
from watersmeet.core.choices import check_choice
from watersmeet.core.errors import SpecError
from watersmeet.core.lookup import LookupSpec, lookup_conditions, settle_how
from watersmeet.core.many_lookups import ChainSpec, Link
from watersmeet.core.spec import Equal, On, parse_on
from watersmeet.core.windows import Span
from watersmeet.drivers.live import WAIT, LiveOperator
from watersmeet.drivers.progress import Progress
from watersmeet.relation.relation import THETA
from watersmeet.sources import Source, as_source
from watersmeet.sources.base import names_files
from watersmeet.spill import FileStore

SUFFIXES = ("", "_right")


def lookup_join(
    stream: object,
    relation: object,
    on: On | Mapping[str, On] | None = None,
    *,
    how: str | Mapping[str, str] = "inner",
    on_miss: str | Mapping[str, str] | None = None,
    memory: str | int = "64 MiB",
    algorithm: str = "auto",
    suffixes: tuple[str, str] = SUFFIXES,
    partition: str = "range",
    spill: str | os.PathLike[str] | None = None,
    spool: str | int | None = None,
    wait: Span | float = WAIT,
    names: tuple[str, str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    page: PageOption = None,
    **options: Any,
) -> Result:
    """Join a stream with a relation on disk that is larger than memory: low delay, few and large reads.

    Each row of the stream meets the relation as it is when the join takes the row in: changes of the relation, by this
    process or another, are seen by all rows that come after them and by none that came before.

    With several relations, by name, each row is looked up in one after the other in one pass. What one relation adds to
    a row the next can be asked by. A relation's column that clashes gets `_` and the relation's name appended.

    :param stream: whatever `wm.join` takes.
    :param relation: a `wm.Relation` or the path of one, or a dict of several. Anything else that `wm.join` takes is
        laid out first, in a private directory that is gone when the join is over.
    :param on: the stream's and the relation's key columns, as in `wm.join`; the relation's own key unless given. Of
        several relations, a dict by name.
    :param how: `"inner"`: all pairs; `"left"`: also the rows that find nothing, with NULLs beside them; `"semi"`: the
        rows that find something; `"anti"`: those that do not. Of several relations, one for all or a dict by name.
    :param on_miss: `"keep"` or `"drop"` rows that find nothing: another way to say left or inner.
    :param memory: bytes, or words such as `"64 MiB"`; one eighth is for the input queue, the rest for the join.
    :param algorithm: `"auto"`, or the name of one.
    :param partition: how a relation that is laid out first is cut, `"range"` or `"hash"`.
    :param spill: where that is; the system's temporary directory unless given.
    :param spool: bytes, or words such as `"2 GiB"`, by which a stream that is faster than the join for a while may run
        ahead, onto the disk under `spill`. Without it, it waits.
    :param wait: after so much silence, in seconds or as `"50 ms"`, rows that wait for the disk are answered.
    :param page: True: serve a live page of this join on 127.0.0.1 while it runs; standard error tells the address. Or
        a port, `"HOST:PORT"` or a `wm.Page` that several joins share. Needs `pip install starlette uvicorn`.
    :param options: the algorithm's own.

    >>> products = pa.table({"sku": [7, 8], "name": ["cup", "pot"]})
    >>> sold = ({"sku": sku, "n": n} for sku, n in [(8, 2), (9, 1), (7, 5)])
    >>> found = lookup_join(sold, products, on="sku", on_miss="keep").table()
    >>> found.sort_by("sku").to_pylist()[1:]
    [{'sku': 8, 'n': 2, 'name': 'pot'}, {'sku': 9, 'n': 1, 'name': None}]
    >>> makers = pa.table({"name": ["cup", "pot"], "maker": ["Ada", "Bo"]})
    >>> sold = [{"sku": 8, "n": 2}]
    >>> tables = {"products": products, "makers": makers}
    >>> lookup_join(sold, tables, on={"products": "sku", "makers": "name"}).table().to_pylist()
    [{'sku': 8, 'n': 2, 'name': 'pot', 'maker': 'Bo'}]
    """
    settings = Settings.of(memory, spill, wait, on_progress, page, spool)
    check_lookup(algorithm, options)
    place = Place(partition, settings.memory, spill)
    if isinstance(relation, Mapping):
        if names is not None or suffixes != SUFFIXES:
            raise SpecError("names and suffixes are for one relation; several are told apart by the names of the dict")
        called, targets, kinds, specify = _several(stream, relation, on, how, on_miss, place)
    else:
        if isinstance(how, Mapping) or isinstance(on, Mapping) or isinstance(on_miss, Mapping):
            raise SpecError("on, how and on_miss are dicts where there is a dict of relations; here there is one")
        kinds = settle_how(how, on_miss)
        called, targets, specify = _single(stream, relation, on, kinds, suffixes, names, place)

    def make(spec: LookupSpec | ChainSpec, rest: int, store: FileStore) -> LiveOperator:
        from watersmeet import planner

        assert isinstance(store, PlacedStores)
        readers = [target.laid_out(store).reading() for target in targets]
        check_least(planner.least_for_lookup(spec, readers, algorithm), settings.memory)
        return planner.build_lookup(spec, rest, store, readers, algorithm, **options)

    def chosen(spec: LookupSpec | ChainSpec) -> Choice:
        from watersmeet.planner import choose_lookup

        kind, reason = choose_lookup(algorithm)
        return Choice(kind.name, reason)

    joined = described(on or [each.conditions for each in targets])
    told = Told("lookup_join", joined, kinds, beside={each.name: each.schema for each in targets})
    try:
        sources = open_sources([(called, stream)], beside=[(target.name, target.source) for target in targets])
        return Result(*open_run(sources, specify, make, settings, PlacedStores, told=told, choose=chosen))
    except BaseException:
        for target in targets:
            target.close()
        raise


def _single(
    stream: object,
    relation: object,
    on: On | None,
    how: str,
    suffixes: tuple[str, str],
    names: tuple[str, str] | None,
    place: Place,
) -> tuple[str, list[Target], Callable[[Sequence[pa.Schema]], LookupSpec | ChainSpec]]:
    called = two_names(names, (stream, relation), ("stream", "relation"))
    target = Target(relation, on, place, called[1])

    def specify(schemas: Sequence[pa.Schema]) -> LookupSpec:
        return LookupSpec(schemas[0], target.schema, target.conditions, how, suffixes=suffixes, names=called)

    return called[0], [target], specify


def _several(
    stream: object,
    relations: Mapping[str, object],
    on: On | Mapping[str, On] | None,
    how: str | Mapping[str, str],
    on_miss: str | Mapping[str, str] | None,
    place: Place,
) -> tuple[str, list[Target], str, Callable[[Sequence[pa.Schema]], LookupSpec | ChainSpec]]:
    if not relations:
        raise SpecError("name at least one relation to look rows up in")
    ons, hows, misses = (by_name(what, given, relations, "relation") for what, given in
                         (("on", on), ("how", how), ("on_miss", on_miss)))  # fmt: skip
    settled = {name: settle_how(hows.get(name) or "inner", misses.get(name)) for name in relations}
    targets: list[Target] = []
    try:
        for name, relation in relations.items():
            targets.append(Target(relation, ons.get(name), place, name))
    except BaseException:
        for target in targets:
            target.close()
        raise
    called = usual_name(stream, "stream")

    def specify(schemas: Sequence[pa.Schema]) -> ChainSpec:
        links = [
            Link(name, target.schema, target.conditions, settled[name])
            for name, target in zip(relations, targets, strict=True)
        ]
        return ChainSpec(schemas[0], tuple(links), stream_name=called)

    kinds = ", ".join(f"{name} {kind}" for name, kind in settled.items())
    return called, targets, kinds, specify


def by_name(what: str, given: Any, names: Mapping[str, object], kind: str) -> dict[str, Any]:
    """What was said for each by its name, or once for all."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(names, given)
    for name in given:
        if name not in names:
            raise SpecError(f"{what} names {name!r}, but there is no such {kind}; there are {', '.join(names)}")
    return dict(given)


class PlacedStores(FileStore):
    """A private directory for a join, and others for relations that are laid out for it alone; all end together."""

    def __init__(self, parent: Path | None) -> None:
        super().__init__(parent)
        self._parent = parent
        self._others: list[FileStore] = []

    def another(self) -> FileStore:
        """One more private directory."""
        self._others.append(FileStore(self._parent))
        return self._others[-1]

    def close(self) -> None:
        """Remove them all."""
        for other in self._others:
            other.close()
        super().close()


class Place:
    """How rows that are no relation yet become one."""

    def __init__(self, partition: str, budget: int, spill: str | os.PathLike[str] | None) -> None:
        self.partition = partition
        self.budget = budget
        self.spill = spill


class Target:
    """What is looked up in: a relation that is there, or rows that are laid out when the join begins."""

    def __init__(self, data: object, on: On | None, place: Place, name: str = "relation") -> None:
        self._relation: Relation | None = None
        self.source: Source | None = None
        """Of rows that are no relation yet."""
        self._place = place
        self.name = name
        if isinstance(data, Relation):
            self._relation = data
        elif isinstance(data, str | os.PathLike) and Relation.is_at(data):
            self._relation = Relation.open(data)
        if self._relation is not None:
            self.schema = self._relation.schema
            self.conditions = self.conditions_for(on)
            return
        if on is None:
            told = usual_name(data, name)
            if isinstance(data, str | os.PathLike) and not names_files(data):
                raise SpecError(
                    f"{told} is neither a relation nor a file; correct the path, or make a relation there with "
                    f"wm.Relation.build"
                )
            raise SpecError(f"say on=..., the columns to join {told} on: only a wm.Relation knows its own")
        self.source = as_source(data, usual_name(data, name))
        self.schema = self.source.schema()
        self.conditions = self.conditions_for(on)

    def conditions_for(self, on: On | None) -> tuple[Equal, ...]:
        """The conditions of a stream, in the order of the relation's key columns."""
        if self._relation is not None:
            return lookup_conditions(on, self._relation.on, f"the relation in {self._relation.path}")
        found = parse_on(on) if on is not None else ()
        conditions = tuple(each for each in found if isinstance(each, Equal))
        if len(conditions) != len(found):
            raise SpecError("a look-up is on equal keys; bands and points are joined by wm.join")
        return conditions

    def laid_out(self, stores: PlacedStores) -> Relation:
        """The relation; rows that have yet to become one do so in a private directory."""
        if self._relation is None:
            assert self.source is not None
            keys, store = [equal.right for equal in self.conditions], stores.another()
            self._relation = Relation.build(
                self.source, keys, store.path, partition=self._place.partition, memory=self._place.budget,
                segment=max(4096, min(THETA, self._place.budget // 32)), spill=store.path.parent, durable=False,
            )  # fmt: skip
        return self._relation

    def close(self) -> None:
        """Let go of a source that was never read."""
        if self.source is not None:
            self.source.close()


def check_lookup(algorithm: str, options: dict[str, Any]) -> None:
    """Refuse an algorithm that is not known, or options it does not take."""
    from watersmeet.planner import LOOKUPS

    check_choice(algorithm, options, LOOKUPS, 4)
