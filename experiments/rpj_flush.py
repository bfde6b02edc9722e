"""RPJ's choice of what leaves memory, beside the policies it was compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.model import Cell, Claim, Experiment, Measured, Panel, Results, Verdict
from watersmeet.policies.flush import OptimalFlush


def worked_example(scale: float, seed: int) -> Measured:
    """The example of section 4.1: what the optimal policy flushes, of 15 rows."""
    rows = np.array([[10, 10], [10, 10]])
    plan = OptimalFlush().plan(rows, np.array([[0.35, 0.25], [0.10, 0.30]]), 15)
    return Measured({f"side {victim.side} value {victim.part + 1}": float(victim.rows) for victim in plan})


def _gives_ten_and_five(results: Results) -> Verdict:
    first, second = results.median("example", "side 0 value 1"), results.median("example", "side 1 value 2")
    return Verdict((first, second) == (10, 5), f"{first:g} of R1 with value 1, {second:g} of R2 with value 2")


def _panels(results: Results) -> Sequence[Panel]:
    return []


EXPERIMENTS = [
    Experiment(
        "rpj-flush",
        "section 4.3",
        "RPJ",
        "What leaves memory",
        {"example": Cell(worked_example)},
        [
            Claim(
                "worked-example",
                "The worked example flushes exactly 10 and 5 rows.",
                "10 rows of R1 with value 1, 5 of R2 with value 2",
                _gives_ten_and_five,
            )
        ],
        _panels,
    )
]
