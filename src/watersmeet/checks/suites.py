"""Which suites there are, and which of them apply to an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

from watersmeet import planner
from watersmeet.checks.asof import conform_asof
from watersmeet.checks.cases import Case, make_case, make_kind_case, make_near_case
from watersmeet.checks.conformance import conform
from watersmeet.checks.lookups import conform_lookup
from watersmeet.checks.many_lookup_cases import make_chain_case, make_shared_case
from watersmeet.checks.multi_cases import make_multi_case, make_preserving_case
from watersmeet.checks.multi_windows import conform_multi_windows
from watersmeet.checks.promised import conform_to_promises
from watersmeet.checks.promised_cases import make_promised_kind_case
from watersmeet.checks.queries import conform_queries
from watersmeet.checks.windows import WindowSummary, conform_timed, conform_windows


class Suite(NamedTuple):
    """What an operator is put through: ``conform(operator_class, cases, seed, **given, **options)``."""

    name: str
    conform: Callable[..., Any]
    given: dict[str, Any]


def make_equality(seed: int, operator_class: type[Any], **options: Any) -> Case:
    """A case without a band."""
    return make_case(seed, type(operator_class.__name__, (operator_class,), {"joins_ranges": False}), **options)


def make_band(seed: int, operator_class: type[Any], **options: Any) -> Case:
    """The first case with a band from some seed on, far from those of other seeds."""
    cases = (make_case(each, operator_class, **options) for each in count(1_000 * seed))
    return next(case for case in cases if case.spec.band is not None)


def conform_to_foretold(operator_class: type[Any], cases: int = 500, seed: int = 0, **options: Any) -> WindowSummary:
    """Put a join that is not inner through cases in which promises tell who is without a partner."""
    return conform_timed(operator_class, range(seed, seed + cases), make_promised_kind_case, None, **options)


def suites_of(operator_class: type[Any]) -> Iterator[Suite]:
    """The suites that are about what an operator joins.

    >>> [suite.name for suite in suites_of(planner.MULTIWAY["confluence"])]
    ['several inputs', 'preserving', 'windows of several inputs']
    >>> [suite.name for suite in suites_of(planner.ALGORITHMS["pmj"])]
    ['equality', 'bands']
    """
    from watersmeet.joins.lookup.chain import LookupChain
    from watersmeet.joins.lookup.shared import SharedLookup

    def one_of(listed: Mapping[str, type[Any]]) -> bool:
        return issubclass(operator_class, tuple(listed.values()))

    if one_of(planner.WINDOW_ALGORITHMS):
        yield Suite("windows", conform_windows, {})
        if issubclass(operator_class, planner.WINDOW_ALGORITHMS["confluence"]):
            yield Suite("queries", conform_queries, {})
    elif one_of(planner.MULTIWAY):
        yield Suite("several inputs", conform, {"make": make_multi_case})
        if getattr(operator_class, "preserves", False):
            yield Suite("preserving", conform, {"make": make_preserving_case})
        if one_of(planner.WINDOWED_MULTIWAY):
            yield Suite("windows of several inputs", conform_multi_windows, {})
    elif one_of(planner.WINDOWED_MULTIWAY):
        yield Suite("windows of several inputs", conform_multi_windows, {})
    elif one_of(planner.ASOF):
        yield Suite("as-of", conform_asof, {})
    elif issubclass(operator_class, LookupChain):
        yield Suite("chains", conform_lookup, {"make": make_chain_case})
    elif issubclass(operator_class, SharedLookup):
        yield Suite("shared look-ups", conform_lookup, {"make": make_shared_case})
    elif one_of(planner.LOOKUPS):
        yield Suite("look-ups", conform_lookup, {})
    else:
        yield from _suites_of_two_inputs(operator_class)


def _suites_of_two_inputs(operator_class: type[Any]) -> Iterator[Suite]:
    yield Suite("equality", conform, {"make": make_equality})
    if getattr(operator_class, "joins_ranges", False):
        yield Suite("bands", conform, {"make": make_band})
    if len(getattr(operator_class, "kinds", ())) > 1:
        yield Suite("kinds", conform, {"make": make_kind_case})
    if getattr(operator_class, "joins_points", False):
        yield Suite("near", conform, {"make": make_near_case})
    if getattr(operator_class, "takes_punctuations", False):
        yield Suite("promises", conform_to_promises, {})
    elif issubclass(operator_class, planner.ALGORITHMS["confluence"]):
        yield Suite("promises", conform_to_foretold, {})
