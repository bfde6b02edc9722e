"""`wm.lookup_join`: a stream enriched from a relation on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from watersmeet.api import Result, check_choice, check_least, run
from watersmeet.core.errors import SpecError
from watersmeet.core.lookup import LookupSpec, lookup_conditions, settle_how
from watersmeet.core.spec import Equal, On, parse_on
from watersmeet.drivers.live import WAIT, LiveOperator
from watersmeet.drivers.progress import Progress
from watersmeet.memory import parse_memory
from watersmeet.relation import Relation
from watersmeet.sources import Source, as_source
from watersmeet.spill import FileStore
from watersmeet.state.relation import THETA


def lookup_join(
    stream: object,
    relation: object,
    on: On | None = None,
    *,
    how: str = "inner",
    on_miss: str | None = None,
    memory: str | int = "64 MiB",
    algorithm: str = "auto",
    suffixes: tuple[str, str] = ("", "_right"),
    partition: str = "range",
    spill: str | os.PathLike[str] | None = None,
    wait: float = WAIT,
    names: tuple[str, str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Result:
    """Join a stream with a relation on disk that is larger than memory: low delay, few and large reads.

    Each row of the stream meets the relation as it is when the join takes the row in: changes of the relation, by this
    process or another, are seen by all rows that come after them and by none that came before.

    :param stream: whatever `wm.join` takes.
    :param relation: a `wm.Relation` or the path of one. Anything else that `wm.join` takes is laid out first, in a
        private directory that is gone when the join is over.
    :param on: the stream's and the relation's key columns, as in `wm.join`; the relation's own key unless given.
    :param how: `"inner"`: all pairs; `"left"`: also the rows that find nothing, with NULLs beside them; `"semi"`: the
        rows that find something; `"anti"`: those that do not.
    :param on_miss: `"keep"` or `"drop"` rows that find nothing: another way to say left or inner.
    :param memory: bytes, or words such as `"64 MiB"`; one eighth is for the input queue, the rest for the join.
    :param algorithm: `"auto"`, or the name of one.
    :param partition: how a relation that is laid out first is cut, `"range"` or `"hash"`.
    :param spill: where that is; the system's temporary directory unless given.
    :param wait: seconds of silence after which rows that wait for the disk are answered.
    :param options: the algorithm's own.

    >>> products = pa.table({"sku": [7, 8], "name": ["cup", "pot"]})
    >>> sold = ({"sku": sku, "n": n} for sku, n in [(8, 2), (9, 1), (7, 5)])
    >>> found = lookup_join(sold, products, on="sku", on_miss="keep").table()
    >>> found.sort_by("sku").to_pylist()[1:]
    [{'sku': 8, 'n': 2, 'name': 'pot'}, {'sku': 9, 'n': 1, 'name': None}]
    """
    settled = settle_how(how, on_miss)
    budget = parse_memory(memory)
    _check_lookup(algorithm, options)
    if names is not None and (isinstance(names, str) or len(names) != 2):
        raise SpecError(f"names must be two strings, not {names!r}")
    target = _Target(relation, on, partition, budget, spill)
    called = names or (_usual_name(stream, "stream"), _usual_name(relation, "relation"))

    def specify(schemas: Sequence[pa.Schema]) -> LookupSpec:
        return LookupSpec(schemas[0], target.schema, target.conditions, settled, suffixes=suffixes, names=called)

    def build(schemas: Sequence[pa.Schema], rest: int) -> LiveOperator:
        from watersmeet import planner

        spec = specify(schemas)
        store = FileStore(None if spill is None else Path(spill))
        try:
            reader = target.laid_out(store).reading()
            kinds = planner.LOOKUPS.values() if algorithm == "auto" else [planner.LOOKUPS[algorithm]]
            check_least(min(kind.least_memory(spec, reader) for kind in kinds), budget)
            operator: LiveOperator = planner.build_lookup(spec, rest, store, reader, algorithm, **options)
        except BaseException:
            store.close()
            raise
        return operator

    try:
        return run([(called[0], stream)], specify, build, budget, wait, on_progress)
    except BaseException:
        target.close()
        raise


class _Target:
    """What is looked up in: a relation that is there, or rows that are laid out when the join begins."""

    def __init__(
        self, data: object, on: On | None, partition: str, budget: int, spill: str | os.PathLike[str] | None
    ) -> None:
        self._relation: Relation | None = None
        self._source: Source | None = None
        self._partition = partition
        self._budget = budget
        if isinstance(data, Relation):
            self._relation = data
        elif isinstance(data, str | os.PathLike) and Relation.is_at(data):
            self._relation = Relation.open(data)
        if self._relation is not None:
            self.schema = self._relation.schema
            self.conditions = lookup_conditions(on, self._relation.on, f"the relation in {self._relation.path}")
            return
        if on is None:
            raise SpecError("say on=..., the columns to join on: only a wm.Relation knows its own")
        self._source = as_source(data, _usual_name(data, "relation"))
        self.schema = self._source.schema()
        found = parse_on(on)
        self.conditions = tuple(each for each in found if isinstance(each, Equal))
        if len(self.conditions) != len(found):
            raise SpecError("a look-up is on equal keys; bands are joined by wm.join")

    def laid_out(self, store: FileStore) -> Relation:
        """The relation; rows that have yet to become one do so in the store's private directory."""
        if self._relation is None:
            assert self._source is not None
            keys = [equal.right for equal in self.conditions]
            self._relation = Relation.build(
                self._source, keys, store.path, partition=self._partition, memory=self._budget,
                segment=max(4096, min(THETA, self._budget // 32)), spill=store.path.parent, durable=False,
            )  # fmt: skip
        return self._relation

    def close(self) -> None:
        """Let go of a source that was never read."""
        if self._source is not None:
            self._source.close()


def _usual_name(data: object, otherwise: str) -> str:
    """What an input is called that was given no name: a file by its path."""
    return str(Path(data).expanduser()) if isinstance(data, str | os.PathLike) else otherwise


def _check_lookup(algorithm: str, options: dict[str, Any]) -> None:
    from watersmeet.planner import LOOKUPS

    check_choice(algorithm, options, LOOKUPS, 4)
