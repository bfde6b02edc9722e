"""RPJ's choice of what leaves memory, beside the policies it was compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from experiments import ours, rpj_figures, rpj_streams
from experiments.model import Cell, Claim, Experiment, Measured, Panel, Results, Verdict
from experiments.ours import OURS
from experiments.simulated import Contestant, equal_pairs, measured, run
from watersmeet.policies.flush import OptimalFlush

POLICIES = ("optimal", "smallest", "largest", "adaptive", "all")
_FEW_AT_A_TIME = "smallest"
"""Equation 4 is about a fixed number of flushed rows, a tenth of the memory here. This one flushes far fewer at a time,
some seventy times as often, and is not in the claim; its results are told."""


def measure(scale: float, seed: int, policy: str, arrival: str) -> Measured:
    """RPJ with a policy, over a reliable network, both inputs equally fast."""
    schedule = rpj_streams.schedule(scale, seed, arrival, 1, "reliable")
    contestant = Contestant.of(policy, "rpj", flush=policy, prompt=False)
    return measured(run(contestant, schedule, rpj_streams.machine(scale, "reliable")), equal_pairs(schedule))


def worked_example(scale: float, seed: int) -> Measured:
    """The example of section 4.1: what the optimal policy flushes, of 15 rows."""
    rows = np.array([[10, 10], [10, 10]])
    plan = OptimalFlush().plan(rows, np.array([[0.35, 0.25], [0.10, 0.30]]), 15)
    return Measured({f"side {victim.side} value {victim.part + 1}": float(victim.rows) for victim in plan})


def _gives_ten_and_five(results: Results) -> Verdict:
    first, second = results.median("example", "side 0 value 1"), results.median("example", "side 1 value 2")
    return Verdict((first, second) == (10, 5), f"{first:g} of R1 with value 1, {second:g} of R2 with value 2")


def _to_optimal(results: Results, policy: str, arrival: str) -> float:
    """A policy's results as a part of the optimal one's."""
    return results.ratio(f"{policy}, {arrival}", f"optimal, {arrival}", "online").median


def _optimal_first(results: Results) -> Verdict:
    told = []
    best = 0.0
    for arrival in rpj_streams.ARRIVALS:
        ratios = {policy: _to_optimal(results, policy, arrival) for policy in POLICIES[1:]}
        best = max(best, *(ratio for policy, ratio in ratios.items() if policy != _FEW_AT_A_TIME))
        told.append(f"{arrival}: " + ", ".join(f"{policy} {ratio:.0%}" for policy, ratio in ratios.items()))
    return Verdict(best <= 1.005, f"of optimal's results; {'; '.join(told)}")


def _smallest_on_harmony(results: Results) -> Verdict:
    return _compare(results, "smallest", "harmony", "reverse")


def _largest_on_reverse(results: Results) -> Verdict:
    return _compare(results, "largest", "reverse", "harmony")


def _compare(results: Results, policy: str, good: str, bad: str) -> Verdict:
    well, badly = _to_optimal(results, policy, good), _to_optimal(results, policy, bad)
    return Verdict(well > badly, f"{well:.0%} of optimal's results on {good}, {badly:.0%} on {bad}")


def _all_is_worst(results: Results) -> Verdict:
    told, holds = [], True
    for arrival in rpj_streams.ARRIVALS:
        ratios = {policy: _to_optimal(results, policy, arrival) for policy in POLICIES[1:]}
        worst = min(ratios, key=lambda policy: ratios[policy])
        holds &= worst == "all"
        told.append(f"{arrival}: {worst} ({ratios[worst]:.0%} of optimal's)")
    return Verdict(holds, f"worst on {', on '.join(told)}")


def _panels(results: Results) -> Sequence[Panel]:
    return [
        Panel(
            arrival,
            "% of the transmission",
            "results",
            {policy: results.curve(f"{policy}, {arrival}", "results") for policy in (*POLICIES, OURS)},
        )
        for arrival in rpj_streams.ARRIVALS
    ]


def _cell_of(arrival: str) -> Callable[[str], str]:
    return lambda policy: f"{policy}, {arrival}"


EXPERIMENTS = [
    Experiment(
        "rpj-flush",
        "section 4.3",
        "RPJ",
        "What leaves memory",
        {
            f"{policy}, {arrival}": Cell(measure, policy=policy, arrival=arrival)
            for arrival in rpj_streams.ARRIVALS
            for policy in POLICIES
        }
        | {
            f"{OURS}, {arrival}": Cell(
                rpj_figures.measure, join=OURS, arrival=arrival, speed=1, network="reliable"
            )
            for arrival in rpj_streams.ARRIVALS
        }
        | {"example": Cell(worked_example)},
        [
            Claim("optimal-first", "Of the policies that flush as many rows at a time, which is all but smallest, the "
                  "optimal one gives the most results.", "optimal for a fixed number of flushed rows (equation 4)",
                  _optimal_first),
            Claim("smallest-on-harmony", "Smallest does well on harmony, badly on reverse.", "good, bad",
                  _smallest_on_harmony),
            Claim("largest-on-reverse", "Largest does well on reverse, badly on harmony.", "good, bad",
                  _largest_on_reverse),
            Claim("all-is-worst", "Flushing everything is worst.", "minimizes the efficiency", _all_is_worst),
            Claim("worked-example", "The worked example flushes exactly 10 and 5 rows.",
                  "10 rows of R1 with value 1, 5 of R2 with value 2", _gives_ten_and_five),
            *ours.claims({arrival: _cell_of(arrival) for arrival in rpj_streams.ARRIVALS}, POLICIES),
        ],
        _panels,
    )
]  # fmt: skip
