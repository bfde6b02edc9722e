"""``python -m watersmeet.checks package.module:Class --cases 500``: does this operator conform?"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from watersmeet import planner
from watersmeet.checks.asof import conform_asof
from watersmeet.checks.cases import make_kind_case, make_near_case
from watersmeet.checks.conformance import conform
from watersmeet.checks.lookups import conform_lookup
from watersmeet.checks.many_lookup_cases import make_chain_case, make_shared_case
from watersmeet.checks.multi_cases import make_multi_case, make_preserving_case
from watersmeet.checks.multi_windows import conform_multi_windows
from watersmeet.checks.promised import conform_to_promises
from watersmeet.checks.queries import conform_queries
from watersmeet.checks.run import ConformanceError
from watersmeet.checks.windows import conform_windows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites; 0 if the operator conforms, 1 if it does not, 2 if it cannot be found."""
    parser = argparse.ArgumentParser(prog="python -m watersmeet.checks", description=__doc__)
    parser.add_argument("operator", help="the class, as package.module:Class")
    parser.add_argument("--cases", type=int, default=500, help="how many cases of each suite (default 500)")
    parser.add_argument("--seed", type=int, default=0, help="the first case's seed (default 0)")
    chosen = parser.parse_args(arguments)
    try:
        operator_class = _find(chosen.operator)
    except (ImportError, AttributeError, ValueError) as error:
        sys.stderr.write(f"cannot find operator {chosen.operator!r}: {error}; write package.module:Class\n")
        return 2
    for what, suite, given in suites_of(operator_class):
        try:
            summary = suite(operator_class, chosen.cases, chosen.seed, **given)
        except ConformanceError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        sys.stdout.write(f"{operator_class.__name__} conforms{what}: {summary}\n")
    return 0


def _find(path: str) -> type[Any]:
    module, _, name = path.partition(":")
    found = getattr(importlib.import_module(module), name)
    if not isinstance(found, type):
        raise ValueError(f"{name} is not a class")
    return found


Suite = tuple[str, Callable[..., object], dict[str, Any]]


def suites_of(operator_class: type[Any]) -> Iterator[Suite]:
    """The suites that are about what an operator joins: how they are called, and what is asked for.

    >>> [what for what, *_ in suites_of(planner.MULTIWAY["confluence"])]
    ['', ' with one input preserved', ' by windows']
    """
    from watersmeet.joins.lookup.chain import LookupChain
    from watersmeet.joins.lookup.shared import SharedLookup

    def one_of(listed: Mapping[str, type[Any]]) -> bool:
        return issubclass(operator_class, tuple(listed.values()))

    if one_of(planner.WINDOW_ALGORITHMS):
        yield "", conform_windows, {}
        if issubclass(operator_class, planner.WINDOW_ALGORITHMS["confluence"]):
            yield " with many queries", conform_queries, {}
    elif one_of(planner.MULTIWAY):
        yield "", conform, {"make": make_multi_case}
        if getattr(operator_class, "preserves", False):
            yield " with one input preserved", conform, {"make": make_preserving_case}
        if one_of(planner.WINDOWED_MULTIWAY):
            yield " by windows", conform_multi_windows, {}
    elif one_of(planner.WINDOWED_MULTIWAY):
        yield "", conform_multi_windows, {}
    elif one_of(planner.ASOF):
        yield "", conform_asof, {}
    elif issubclass(operator_class, LookupChain | SharedLookup):
        yield "", conform_lookup, {"make": make_chain_case if operator_class is LookupChain else make_shared_case}
    elif one_of(planner.LOOKUPS):
        yield "", conform_lookup, {}
    else:
        yield "", conform, {}
        if len(getattr(operator_class, "kinds", ())) > 1:
            yield " in joins that are not inner", conform, {"make": make_kind_case}
        if getattr(operator_class, "joins_points", False):
            yield " in joins of points", conform, {"make": make_near_case}
        if getattr(operator_class, "takes_punctuations", False):
            yield " to promises", conform_to_promises, {}


if __name__ == "__main__":
    sys.exit(main())
