"""Our own join beside the papers' operators: how it is run in their settings, and what we claim of it.

Confluence is of no paper. It runs in the papers' cost models, with memory for as many rows as everybody has, and what
it writes is charged in the papers' pages: a tuple takes its place on a page as anybody's does, and its hash takes 8
bytes more on a page of hashes. A page of tuples is read if one of them matches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.model import Claim, Results, Verdict, always
from experiments.simulated import Contestant, Machine
from watersmeet.core.arrays import Float64
from watersmeet.matching.reading import Pages
from watersmeet.policies.settling import Settling

OURS = "Confluence"
_HASH_BYTES = 8
_BUFFER_SHARE = 16
"""Of the memory, one part is for what is read or written at once."""
_FAN_IN = 32
"""Runs that become one. A merge of runs takes a seek for nearly every page if memory is small; in the papers' settings
there are fewer runs of a side than this, so that none takes place."""
_RUN_BYTES = 512
"""What is remembered of a run; no paper counts it."""
_SETTLING = Settling(passes_saved=1 << 40)
"""As usual, but that no row is written before it has settled. On disks that take 10 ms for a seek, runs that owe cost
much more than their rows do in memory: several are read at once, a seek for nearly every page. With them 58% of
diner-7's results are online, without 97%."""
_EQUAL = 0.995
_MOST_ONLINE = 0.95
NOT_OF_THE_PAPER = "(ours, not the paper's)"

Cells = Mapping[str, Callable[[str], str]]
"""The cases that a claim is about: for each, the name of a join's cell."""


def contestant(machine: Machine) -> Contestant:
    """Confluence on a machine."""
    return Contestant.of(OURS, "confluence", **options(machine.memory_rows, machine.page_rows, machine.page_bytes))


def options(memory_rows: int, page_rows: int, page_bytes: float) -> dict[str, Any]:
    """How it is set up with memory for so many rows, on a disk with such pages; of any number of inputs."""
    at_once = max(1, memory_rows // page_rows // _BUFFER_SHARE)
    pages = Pages(max(1, round(page_bytes / _HASH_BYTES)), page_rows, at_once)
    return {"pages": pages, "fan_in": _FAN_IN, "settling": _SETTLING}


def records(orders: int) -> int:
    """Bytes to be set aside for what is remembered of runs, where so many are written at each flush."""
    return 2 * _FAN_IN * orders * _RUN_BYTES


def claims(cases: Cells, rivals: Sequence[str], to_the_end: Cells | None = None) -> list[Claim]:
    """What we claim wherever results are counted; clean-ups are compared where joins ran to the end."""
    found = [
        Claim(
            "confluence-most",
            f"{OURS} has the most results at every time.",
            NOT_OF_THE_PAPER,
            lambda results: _most_at_every_time(results, cases, rivals),
        ),
        Claim(
            "confluence-online",
            f"{OURS} has at least {_MOST_ONLINE:.0%} of all results when the last row arrives.",
            NOT_OF_THE_PAPER,
            lambda results: _nearly_all_online(results, cases, rivals),
        ),
    ]
    if to_the_end is not None:
        found.append(
            Claim(
                "confluence-clean-up",
                f"{OURS}'s clean-up is the shortest.",
                NOT_OF_THE_PAPER,
                lambda results: _shortest_clean_up(results, to_the_end, rivals),
            )
        )
    return found


def cheapest(cases: Cells, rivals: Sequence[str]) -> Claim:
    """What we claim where the cost of results is compared."""
    return Claim(
        "confluence-cheapest",
        f"{OURS} has the lowest cost per result in the end.",
        NOT_OF_THE_PAPER,
        lambda results: _cheapest_in_the_end(results, cases, rivals),
    )


def _most_at_every_time(results: Results, cases: Cells, rivals: Sequence[str]) -> Verdict:
    holds, told = {}, []
    for case, cell in cases.items():
        own = results.curve(cell(OURS), "results")
        times = 100 * own.x / own.x[-1]
        best = np.max([results.curve(cell(join), "results").y for join in rivals], axis=0)
        leads = np.divide(own.y, best, out=np.full_like(best, np.inf), where=best > 0)
        at = int(leads.argmin())
        holds[case] = bool(leads[at] >= _EQUAL)
        behind = np.flatnonzero(leads < _EQUAL)
        if not len(behind):
            told.append(f"{case} {leads[at]:.2f}x at least, {leads[-1]:.2f}x in the end")
            continue
        share = len(behind) / len(leads)
        worst = f"{case} {leads[at]:.2f}x at {times[at]:.0f}% of the time, behind for {share:.0%} of it"
        if behind[-1] == len(leads) - 1:
            told.append(f"{worst}, {leads[-1]:.2f}x in the end")
        else:
            first = f"first from {times[behind[-1] + 1]:.0f}% on, {leads[-1]:.2f}x in the end"
            late = f"{_most_late(times, own.y, best):.1f}% of the time late at most"
            told.append(f"{worst}, {late}, {first}")
    verdict = always(f"{OURS} first at all times", holds)
    return Verdict(verdict.holds, f"{verdict.measured}; to the best rival: {'; '.join(told)}")


def _most_late(times: Float64, own: Float64, best: Float64) -> float:
    """How long after the best rival it has as many results, at most.

    >>> _most_late(np.array([0.0, 1, 2, 3]), np.array([0.0, 1, 2, 9]), np.array([0.0, 2, 2, 4]))
    1.0
    """
    reached = np.minimum(np.searchsorted(own, best), len(times) - 1)
    return float((times[reached] - times).max())


def _nearly_all_online(results: Results, cases: Cells, rivals: Sequence[str]) -> Verdict:
    shares = {case: results.median(cell(OURS), "share") for case, cell in cases.items()}
    verdict = always(f"{_MOST_ONLINE:.0%} and more", {case: share >= _MOST_ONLINE for case, share in shares.items()})
    told = []
    for case, cell in cases.items():
        best = max(rivals, key=lambda join: results.median(cell(join), "share"))
        told.append(f"{shares[case]:.1%} {case} (next is {best}: {results.median(cell(best), 'share'):.1%})")
    return Verdict(verdict.holds, f"{verdict.measured}; {', '.join(told)}")


def _shortest_clean_up(results: Results, cases: Cells, rivals: Sequence[str]) -> Verdict:
    holds, told = {}, []
    for case, cell in cases.items():
        after = {join: results.median(cell(join), "after") for join in (OURS, *rivals)}
        holds[case] = after[OURS] <= min(after.values())
        told.append(f"{case}: " + ", ".join(f"{join} {seconds:.2f} s" for join, seconds in after.items()))
    verdict = always("shortest", holds)
    return Verdict(verdict.holds, f"{verdict.measured}; {'; '.join(told)}")


def _cheapest_in_the_end(results: Results, cases: Cells, rivals: Sequence[str]) -> Verdict:
    leads = {}
    for case, cell in cases.items():
        costs = {join: float(results.curve(cell(join), "cost").y[-1]) for join in (OURS, *rivals)}
        leads[case] = min(costs[join] for join in rivals) / costs[OURS]
    verdict = always("cheapest", {case: lead >= _EQUAL for case, lead in leads.items()})
    told = ", ".join(f"{lead:.2f}x {case}" for case, lead in leads.items())
    return Verdict(verdict.holds, f"{verdict.measured}; the cheapest rival costs {told} as much")
