"""``python -m watersmeet.checks package.module:Class --cases 500``: does this operator conform?"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from watersmeet.checks.cases import make_kind_case
from watersmeet.checks.conformance import conform
from watersmeet.checks.promised import conform_to_promises
from watersmeet.checks.run import ConformanceError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; 0 if the operator conforms, 1 if it does not, 2 if it cannot be found."""
    parser = argparse.ArgumentParser(prog="python -m watersmeet.checks", description=__doc__)
    parser.add_argument("operator", help="the class, as package.module:Class")
    parser.add_argument("--cases", type=int, default=500, help="how many cases to generate (default 500)")
    parser.add_argument("--seed", type=int, default=0, help="the first case's seed (default 0)")
    chosen = parser.parse_args(arguments)
    try:
        operator_class = _find(chosen.operator)
    except (ImportError, AttributeError, ValueError) as error:
        sys.stderr.write(f"cannot find operator {chosen.operator!r}: {error}; write package.module:Class\n")
        return 2
    try:
        summary = conform(operator_class, chosen.cases, chosen.seed)
        if len(getattr(operator_class, "kinds", ())) > 1:
            others = conform(operator_class, chosen.cases, chosen.seed, make_kind_case)
            sys.stdout.write(f"{operator_class.__name__} conforms in joins that are not inner: {others}\n")
        if getattr(operator_class, "takes_punctuations", False):
            promised = conform_to_promises(operator_class, chosen.cases, chosen.seed)
            sys.stdout.write(f"{operator_class.__name__} conforms to promises: {promised}\n")
    except ConformanceError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{operator_class.__name__} conforms: {summary}\n")
    return 0


def _find(path: str) -> type[Any]:
    module, _, name = path.partition(":")
    found = getattr(importlib.import_module(module), name)
    if not isinstance(found, type):
        raise ValueError(f"{name} is not a class")
    return found


if __name__ == "__main__":
    sys.exit(main())
