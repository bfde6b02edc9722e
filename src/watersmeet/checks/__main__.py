"""``python -m watersmeet.checks package.module:Class --cases 500``: does this operator conform?"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from watersmeet.checks.run import ConformanceError
from watersmeet.checks.suites import suites_of


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
    for suite in suites_of(operator_class):
        try:
            summary = suite.conform(operator_class, chosen.cases, chosen.seed, **suite.given)
        except ConformanceError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        sys.stdout.write(f"{operator_class.__name__} conforms, {suite.name}: {summary}\n")
    return 0


def _find(path: str) -> type[Any]:
    module, _, name = path.partition(":")
    found = getattr(importlib.import_module(module), name)
    if not isinstance(found, type):
        raise ValueError(f"{name} is not a class")
    return found


if __name__ == "__main__":
    sys.exit(main())
