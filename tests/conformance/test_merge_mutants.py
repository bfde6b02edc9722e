"""The rules by which merging joins tell new pairs from old ones, each broken in turn: the suite must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from watersmeet.checks import ConformanceError, conform
from watersmeet.matching.ledger import FlushLedger, Ledger
from watersmeet.planner import ALGORITHMS
from watersmeet.runs.presence import FOREVER, Stay

CASES = 60


def never(rectangles: Any, left: Stay, right: Stay) -> Any:
    return np.zeros(len(left.arrived), np.bool_)


def whole_rows_of_the_left(rectangles: Any, left: Stay, right: Stay) -> Any:
    """Having been merged with some of the right side counts as having been merged with all of it."""
    wider = rectangles.copy()
    wider[:, 2], wider[:, 3] = 0, FOREVER
    return real_merged(wider, left, right)


def flushed_apart(left: Stay, right: Stay) -> Any:
    return np.zeros(len(left.arrived), np.bool_)


real_merged = Ledger.merged

MUTANTS: dict[str, tuple[str, type[Ledger], str, Callable[..., Any]]] = {
    "never merged": ("rpj", Ledger, "merged", never),
    "merged with all of the right": ("rpj", Ledger, "merged", whole_rows_of_the_left),
    "hmj never merged": ("hmj", Ledger, "merged", never),
    "flushed apart": ("pmj", FlushLedger, "together", flushed_apart),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, ledger, rule, broken = MUTANTS[mutant]
    monkeypatch.setattr(ledger, rule, staticmethod(broken))
    with pytest.raises(ConformanceError, match=r"lost [0-9]+ and invented or repeated [0-9]+|counted [0-9]+ results"):
        conform(ALGORITHMS[name], cases=CASES)
