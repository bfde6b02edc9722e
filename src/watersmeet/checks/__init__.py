"""The conformance suite: any join operator is tested by being handed to it.

>>> from watersmeet.checks import conform
>>> from watersmeet.checks.oracle.nested_loops import ReferenceJoin
>>> conform(ReferenceJoin, cases=2).restored >= 0
True

On the command line: ``python -m watersmeet.checks package.module:Class --cases 500``.
"""

from __future__ import annotations

from watersmeet.checks.cases import Case, Move, make_case, make_kind_case, make_near_case
from watersmeet.checks.conformance import (
    Summary,
    check_determinism,
    check_metamorphic,
    check_refusals,
    check_snapshot,
    conform,
)
from watersmeet.checks.multi_cases import MultiCase, make_multi_case
from watersmeet.checks.promised import conform_to_promises, run_promised
from watersmeet.checks.promised_cases import PromisedCase, make_promised_case
from watersmeet.checks.run import CaseReport, ConformanceError, run_case

__all__ = [
    "Case",
    "CaseReport",
    "ConformanceError",
    "Move",
    "MultiCase",
    "PromisedCase",
    "Summary",
    "check_determinism",
    "check_metamorphic",
    "check_refusals",
    "check_snapshot",
    "conform",
    "conform_to_promises",
    "make_case",
    "make_kind_case",
    "make_multi_case",
    "make_near_case",
    "make_promised_case",
    "run_case",
    "run_promised",
]
