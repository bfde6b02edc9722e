"""From a spec to an operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from watersmeet.core.asof import AsofSpec
from watersmeet.core.errors import SpecError
from watersmeet.core.kinds import KINDS, refuse_kind
from watersmeet.core.lookup import LookupSpec
from watersmeet.core.many_lookups import ChainSpec
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.spill.store import Store

if TYPE_CHECKING:
    from watersmeet.engine.lookup_operator import LookupJoin
    from watersmeet.engine.shell import Operator
    from watersmeet.joins.asof.join import AsofJoin
    from watersmeet.joins.lookup.chain import LookupChain
    from watersmeet.joins.multiway.confluence import ManyConfluence
    from watersmeet.joins.multiway.miner import Miner
    from watersmeet.joins.multiway.mjoin import MJoin
    from watersmeet.joins.multiway.tree import JoinTree
    from watersmeet.joins.sharded import Sharded
    from watersmeet.joins.window.windowed_mjoin import WindowedMJoin
    from watersmeet.policies.splitting import Plan
    from watersmeet.relation.relation import RelationReader

Join = TypeVar("Join")


class Registry(Mapping[str, type[Join]], Generic[Join]):
    """Operators by their names; each is imported when it is asked for.

    Most of the time that a first join takes goes to imports, and one operator is all that it needs.

    >>> joins = Registry({"rpj": "progressive.rpj:RPJ", "xjoin": "progressive.xjoin:XJoin"})
    >>> sorted(joins), joins["rpj"].__name__
    (['rpj', 'xjoin'], 'RPJ')
    """

    def __init__(self, homes: Mapping[str, str]) -> None:
        """`homes`: the modules below `watersmeet.joins`, and the classes there."""
        self._homes = homes

    def __getitem__(self, name: str) -> type[Join]:
        module, _, kind = self._homes[name].partition(":")
        found: type[Join] = getattr(import_module(f"watersmeet.joins.{module}"), kind)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)

    def __contains__(self, name: object) -> bool:
        return name in self._homes


OPERATORS: Mapping[str, Registry[Any]] = {
    "join": Registry({
        "confluence": "confluence:Confluence",
        "diner": "progressive.diner:Diner",
        "hmj": "progressive.hmj:HMJ",
        "metadata_mjoin": "progressive.metadata_mjoin:MetadataMJoin",
        "pmj": "progressive.pmj:PMJ",
        "rpj": "progressive.rpj:RPJ",
        "symmetric_hash": "progressive.symmetric_hash:SymmetricHash",
        "xjoin": "progressive.xjoin:XJoin",
    }),
    "window_join": Registry({
        "ah_ewj": "window.ah_ewj:AHEWJ",
        "ewj": "window.ewj:EWJ",
        "rpwj": "window.rpwj:RPWJ",
        "symmetric_window": "window.symmetric_window:SymmetricWindow",
        "confluence": "window.confluence:WindowConfluence",
    }),
    "multijoin": Registry({
        "confluence": "multiway.confluence:ManyConfluence",
        "miner": "multiway.miner:Miner",
        "mjoin": "multiway.mjoin:MJoin",
        "tree": "multiway.tree:JoinTree",
    }),
    "multijoin by windows": Registry({
        "confluence": "multiway.confluence:ManyConfluence",
        "mjoin": "window.windowed_mjoin:WindowedMJoin",
    }),
    "lookup_join": Registry({
        "index_nested_loop": "lookup.index_nested_loop:IndexNestedLoop",
        "meshjoin": "lookup.meshjoin:MeshJoin",
        "partitioned": "lookup.partitioned:Partitioned",
    }),
    "asof_join": Registry({"asof": "asof.join:AsofJoin"}),
}  # fmt: skip
"""Every operator, by what it does and by its name; being listed here puts it through the conformance suite for that."""
ALGORITHMS: Mapping[str, type[Operator]] = OPERATORS["join"]
WINDOW_ALGORITHMS: Mapping[str, type[Operator]] = OPERATORS["window_join"]
MULTIWAY: Mapping[str, type[ManyConfluence] | type[MJoin] | type[JoinTree] | type[Miner]] = OPERATORS["multijoin"]
WINDOWED_MULTIWAY: Mapping[str, type[ManyConfluence] | type[WindowedMJoin]] = OPERATORS["multijoin by windows"]
LOOKUPS: Mapping[str, type[LookupJoin]] = OPERATORS["lookup_join"]
ASOF: Mapping[str, type[AsofJoin]] = OPERATORS["asof_join"]


def _refuse_unlisted(algorithm: str, kinds: Mapping[str, type[Any]]) -> None:
    """An error if there is none of this name."""
    if algorithm not in ("auto", *kinds):
        raise SpecError(f"there is no algorithm {algorithm!r}; there are auto, {', '.join(sorted(kinds))}")


def choose(spec: JoinSpec, algorithm: str = "auto") -> tuple[type[Operator], str]:
    """The class of the operator for a spec, and why it is that one.

    `auto` is `confluence`, our own, for equalities, bands and points: it joins in memory as long as everything fits,
    and what does not fit is met again while rows still arrive. With equalities alone, where an input promises something
    of its keys, or has punctuations, it is `metadata_mjoin`.
    """
    reason = "asked for by name"
    if algorithm == "auto" and spec.kind.is_inner and not spec.asks_for_close and _promising(spec):
        algorithm, reason = "metadata_mjoin", "what the inputs promise lets it forget rows that find no more partners"
    elif algorithm == "auto":
        algorithm, reason = "confluence", "rows that have left memory are met while others still arrive"
        if spec.foretells:
            reason = "what the inputs promise tells when rows without a partner can come"
    _refuse_unlisted(algorithm, ALGORITHMS)
    return ALGORITHMS[algorithm], reason


def _promising(spec: JoinSpec) -> bool:
    return any(promises.help(spec.keys(side)) for side, promises in enumerate(spec.promises))


def build(spec: JoinSpec, memory: int, store: Store, algorithm: str = "auto", **options: Any) -> Operator:
    """The operator for a spec; see `choose`."""
    chosen, reason = choose(spec, algorithm)
    try:
        operator = chosen(spec, memory, store, **options)
    except TypeError as problem:
        if options and "unexpected keyword" in str(problem):
            raise SpecError(f"{chosen.name} does not take the options {', '.join(map(repr, options))}") from None
        raise
    operator.reason = reason
    return operator


_SHARD_MEMORY = 8 << 20
"""With less memory a shard, what every shard has for itself would take too much of it."""


def build_for_threads(
    spec: JoinSpec,
    memory: int,
    store: Store,
    algorithm: str = "auto",
    threads: int = 1,
    stays: tuple[bool, bool] = (False, False),
    **options: Any,
) -> Operator | Sharded:
    """The operator for a spec, in a shard for each of so many threads, where it can be so and memory is enough.

    Only `confluence` has shards, and values that are close may have any hashes: they are joined in one, as are inputs
    whose promises settle rows. See `choose`, and `joins.sharded` for inputs that stay in memory anyway: their rows are
    not copied.
    """
    chosen, reason = choose(spec, algorithm)
    alone = chosen.name != "confluence" or spec.asks_for_close or spec.foretells
    shards = 1 if alone else min(threads, memory // _SHARD_MEMORY)
    if shards < 2:
        return build(spec, memory, store, algorithm, **options)
    from watersmeet.joins.sharded import Sharded

    operator = Sharded(spec, memory, store, shards=shards, stays=stays, **options)
    operator.reason = reason
    return operator


ManyJoin: TypeAlias = "ManyConfluence | MJoin | JoinTree | Miner | WindowedMJoin"


def build_multiway(spec: MultiSpec, memory: int, store: Store, algorithm: str = "auto", **options: Any) -> ManyJoin:
    """The operator for a join of several inputs.

    `auto` is `confluence`, with windows, too, and `miner` if there is a band; if estimates are given (`rows`, by name,
    and perhaps `selectivities`, by condition), it is what the cost model of `policies.splitting` makes of them: one
    operator, or a tree.
    """
    rows, selectivities = options.pop("rows", None), options.pop("selectivities", None)
    kinds = MULTIWAY if spec.window is None else WINDOWED_MULTIWAY
    algorithm, reason, chosen = choose_multiway(spec, algorithm, rows, selectivities, "delay" in options)
    if chosen is not None:
        options["tree"] = chosen.tree.shape(spec.names)
    operator = kinds[algorithm](spec, memory, store, **options)
    operator.reason = reason
    return operator


def choose_multiway(
    spec: MultiSpec,
    algorithm: str = "auto",
    rows: Mapping[str, float] | None = None,
    selectivities: Sequence[float] | None = None,
    bounded: bool = False,
) -> tuple[str, str, Plan | None]:
    """The algorithm for a join of several inputs, why it is that one, and the plan of a tree if one was drawn up.

    `bounded`: results may wait for so long only, which `confluence` alone can promise.
    """
    reason, chosen = "asked for by name", None
    if rows is not None:
        from watersmeet.policies.splitting import check_rows

        check_rows(rows)
    if algorithm == "auto" and spec.window is not None:
        algorithm, reason = "confluence", "it joins in memory as long as the windows fit, and merges what does not"
    elif algorithm == "auto":
        algorithm, reason = (
            "confluence",
            "rows that have left memory are met while others still arrive",
        )
        if spec.has_bands and bounded:
            raise SpecError("a join of several inputs by a band bounds no delay; leave delay= out")
        if spec.has_bands:
            algorithm, reason = "miner", "it joins by ranges of values, in memory and on disk"
        elif rows is not None and spec.preserved is None and not bounded:
            from watersmeet.policies.splitting import Estimates, plan

            drawn = plan(spec, Estimates.of(spec, rows, selectivities))
            if not drawn.single:
                algorithm, reason = "tree", "storing intermediate results costs less than finding them again"
                chosen = drawn
    _check_multiway(spec, algorithm)
    return algorithm, reason, chosen


def least_for_multiway(spec: MultiSpec, algorithm: str = "auto") -> int:
    """The smallest budget of what `build_multiway` would build."""
    _check_multiway(spec, algorithm)
    if spec.preserved is not None:
        return MULTIWAY["confluence"].least_memory(spec)
    if spec.window is not None:
        return WINDOWED_MULTIWAY["confluence" if algorithm == "auto" else algorithm].least_memory(spec)
    kinds = [algorithm] if algorithm != "auto" else ["miner"] if spec.has_bands else ["confluence", "tree"]
    return min(MULTIWAY[kind].least_memory(spec) for kind in kinds)


def _check_multiway(spec: MultiSpec, algorithm: str) -> None:
    _refuse_unlisted(algorithm, MULTIWAY)
    if spec.window is not None and algorithm not in ("auto", *WINDOWED_MULTIWAY):
        raise SpecError(f"{algorithm} knows no windows; choose algorithm='confluence' or 'mjoin', or leave window out")
    if spec.preserved is None:
        return
    if spec.window is not None or spec.has_bands:
        what = "windows" if spec.window is not None else "bands"
        raise SpecError(
            f"a join of several inputs by {what} finds results, and cannot preserve {spec.names[spec.preserved]}; "
            f"leave how= out, or join two inputs at a time"
        )
    if algorithm not in ("auto", "confluence"):
        refuse_kind(KINDS["left"], algorithm, ("inner",))


def build_lookup(
    spec: LookupSpec | ChainSpec,
    memory: int,
    store: Store,
    relations: Sequence[RelationReader],
    algorithm: str = "auto",
    **options: Any,
) -> LookupJoin | LookupChain:
    """The operator for a look-up in a relation, or in several; `auto` is `partitioned`."""
    kind, reason = choose_lookup(algorithm)
    operator: LookupJoin | LookupChain
    if isinstance(spec, ChainSpec):
        from watersmeet.joins.lookup.chain import LookupChain

        operator = LookupChain(spec, memory, store, relations, kind=kind, **options)
    else:
        operator = kind(spec, memory, store, relations[0], **options)
    operator.reason = reason
    return operator


def choose_lookup(algorithm: str = "auto") -> tuple[type[LookupJoin], str]:
    """The class of the operator for look-ups, and why it is that one."""
    if algorithm == "auto":
        reason = "partitions in memory answer most rows at once, and the rows of the others share their disk reads"
    else:
        reason = "asked for by name"
    return _lookup_kind(algorithm), reason


def least_for_lookup(spec: LookupSpec | ChainSpec, relations: Sequence[RelationReader], algorithm: str = "auto") -> int:
    """The smallest budget of what `build_lookup` would build."""
    kind = _lookup_kind(algorithm)
    if isinstance(spec, ChainSpec):
        from watersmeet.joins.lookup.chain import LookupChain

        return LookupChain.least_memory(spec, relations, kind=kind)
    return kind.least_memory(spec, relations[0])


def _lookup_kind(algorithm: str) -> type[LookupJoin]:
    _refuse_unlisted(algorithm, LOOKUPS)
    return LOOKUPS["partitioned" if algorithm == "auto" else algorithm]


def build_asof(spec: AsofSpec, memory: int, store: Store, **options: Any) -> AsofJoin:
    """The operator for an as-of join."""
    operator = ASOF["asof"](spec, memory, store, **options)
    operator.reason = ASOF_REASON
    return operator


ASOF_REASON = "right rows are kept in the order of key and time, and each left row waits until they have passed it"


def choose_window(spec: WindowJoinSpec, memory: int, algorithm: str = "auto") -> tuple[type[Operator], str]:
    """The class of the operator for a window join, and why it is that one.

    `auto` is `confluence`, our own: it joins in memory as long as the windows fit, and what does not fit is met again
    while rows still arrive.
    """
    reason = "asked for by name"
    if algorithm == "auto":
        algorithm, reason = "confluence", "it joins in memory as long as the windows fit, and merges what does not"
    _refuse_unlisted(algorithm, WINDOW_ALGORITHMS)
    WINDOW_ALGORITHMS[algorithm].refuse_unfit(spec)
    return WINDOW_ALGORITHMS[algorithm], reason


def build_window(spec: WindowJoinSpec, memory: int, store: Store, algorithm: str = "auto", **options: Any) -> Operator:
    """The operator for a window join; see `choose_window`."""
    chosen, reason = choose_window(spec, memory, algorithm)
    operator = chosen(spec, memory, store, **options)
    operator.reason = reason
    return operator
