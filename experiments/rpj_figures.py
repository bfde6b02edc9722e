"""RPJ's figures 8 to 12: who delivers most, and at what cost, over a good network and over a bad one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from experiments import ours, rpj_streams
from experiments.model import Cell, Claim, Experiment, Line, Measured, Panel, Results, Verdict, always
from experiments.ours import OURS
from experiments.papers import RPJ
from experiments.simulated import Contestant, Machine, equal_pairs, measured, run
from watersmeet.policies.reactive import AccessCosts

JOINS = ("RPJ", "HMJ", "XJoin")
VARIANTS = ("RPJ", "RPJ-md", "RPJ-dd")
WHOLE_STAGE = "HMJ, whole stage"
"""HMJ that merges all partitions before it looks at arrivals again, as in its own paper; RPJ's does not say."""
PAPERS_ER = "RPJ, the paper's Er"
"""RPJ that takes from an md-task what the paper says: all rows that now lie on the other side's disk."""
_REACTIVE = {"RPJ": "both", PAPERS_ER: "both", "RPJ-md": "md", "RPJ-dd": "dd"}
CASES = tuple((arrival, speed) for speed in RPJ.speeds for arrival in rpj_streams.ARRIVALS)
_EQUALLY_FAST = tuple(case for case in CASES if case[1] == 1)
_EQUAL = 0.995
"""So close to each other is as good as equal."""
_A_LINE = 0.98
"""So close to each other, two curves of a figure are one line."""
_FIRST_OVERFLOW = RPJ.memory_tuples / RPJ.tuples


def contestant(join: str, machine: Machine) -> Contestant:
    """A join as the paper ran it: RPJ and its variants know what the disk costs."""
    if join == OURS:
        return ours.contestant(machine)
    if join == WHOLE_STAGE:
        return Contestant.of(join, "hmj", prompt=False, whole_stage=True)
    if join not in _REACTIVE:
        return Contestant.of(join, join.lower(), prompt=False)
    page = machine.page_bytes * machine.transfer
    costs = AccessCosts(random=machine.seek + page, sequential=page)
    er = "paper" if join == PAPERS_ER else "exact"
    return Contestant.of(join, "rpj", prompt=False, costs=costs, reactive=_REACTIVE[join], er=er)


def measure(
    scale: float,
    seed: int,
    join: str,
    arrival: str,
    speed: int,
    network: str,
    whole: bool = False,
    faster: float = RPJ.faster,
) -> Measured:
    """One join in one of the paper's settings; `whole` is with the clean-up."""
    schedule = rpj_streams.schedule(scale, seed, arrival, speed, network)
    machine = rpj_streams.machine(scale, network, faster)
    trace = run(contestant(join, machine), schedule, machine, online_only=not whole)
    return measured(trace, equal_pairs(schedule))


def _case(arrival: str, speed: int) -> str:
    return f"{arrival} {speed}:1"


def _name(join: str, arrival: str, speed: int, network: str = "reliable") -> str:
    return f"{join}, {_case(arrival, speed)}, {network}"


def _to_the_end(join: str, network: str = "reliable") -> str:
    return f"{join} to the end" if network == "reliable" else f"{join} to the end, {network}"


def _whole(network: str) -> dict[str, Cell]:
    """All joins with their clean-up, in the first of the settings."""
    return {
        _to_the_end(join, network): Cell(measure, join=join, arrival="harmony", speed=1, network=network, whole=True)
        for join in (*JOINS, OURS)
    }


def _ours(network: str) -> ours.Cells:
    def cell_of(arrival: str, speed: int) -> Callable[[str], str]:
        return lambda join: _name(join, arrival, speed, network)

    return {_case(*case): cell_of(*case) for case in CASES}


def _ours_to_the_end(network: str) -> ours.Cells:
    return {_case(*CASES[0]): lambda join: _to_the_end(join, network)}


def _cells(joins: Sequence[str], network: str, cases: Sequence[tuple[str, int]] = CASES) -> dict[str, Cell]:
    return {
        _name(join, arrival, speed, network): Cell(measure, join=join, arrival=arrival, speed=speed, network=network)
        for arrival, speed in cases
        for join in joins
    }


def _panels(curve: str, joins: Sequence[str], network: str, y: str) -> Callable[[Results], Sequence[Panel]]:
    def panels(results: Results) -> Sequence[Panel]:
        return [
            Panel(
                _case(arrival, speed),
                "% of the transmission",
                y,
                {join: _after_start(results.curve(_name(join, arrival, speed, network), curve)) for join in joins},
                log_y=curve == "cost",
            )
            for arrival, speed in CASES
        ]

    return panels


def _after_start(line: Line) -> Line:
    """Without the first point, where nothing has been delivered."""
    return Line(line.x[1:], line.y[1:], line.low[1:], line.high[1:])


def _least_lead(results: Results, case: tuple[str, int], network: str, curve: str, rivals: Sequence[str]) -> float:
    """The smallest ratio, over the transmission from the first overflow on, of RPJ's results to the best rival's; or
    of the cheapest rival's cost to RPJ's.
    """
    own = results.curve(_name("RPJ", *case, network), curve)
    after = own.x > 100 * _FIRST_OVERFLOW
    others = np.array([results.curve(_name(join, *case, network), curve).y[after] for join in rivals])
    if curve == "results":
        return float((own.y[after] / others.max(axis=0)).min())
    return float((others.min(axis=0) / own.y[after]).min())


def _first_at_all_times(network: str, curve: str, rivals: Sequence[str]) -> Callable[[Results], Verdict]:
    def check(results: Results) -> Verdict:
        leads = {_case(*case): _least_lead(results, case, network, curve, rivals) for case in CASES}
        verdict = always("RPJ first throughout", {case: lead >= _A_LINE for case, lead in leads.items()})
        ends = {_case(*case): _last_lead(results, case, network, curve, rivals) for case in CASES}
        return Verdict(
            verdict.holds, f"{verdict.measured}; its smallest lead: {_list(leads)}; in the end: {_list(ends)}"
        )

    return check


def _last_lead(results: Results, case: tuple[str, int], network: str, curve: str, rivals: Sequence[str]) -> float:
    own = results.curve(_name("RPJ", *case, network), curve).y[-1]
    others = [results.curve(_name(join, *case, network), curve).y[-1] for join in rivals]
    return float(own / max(others)) if curve == "results" else float(min(others) / own)


def _list(ratios: dict[str, float]) -> str:
    return ", ".join(f"{ratio:.2f}x {case}" for case, ratio in ratios.items())


def _clean_up_alike(results: Results) -> Verdict:
    after = {join: results.median(f"{join} to the end", "after") for join in JOINS}
    ratio = max(after.values()) / min(after.values())
    return Verdict(ratio <= 2, ", ".join(f"{join} {seconds:.0f} s" for join, seconds in after.items()))


def _surge_of(line: Line) -> float:
    """The highest cost of a result soon after the first overflow, to that right before."""
    before = line.y[line.x < 100 * _FIRST_OVERFLOW][-1]
    soon = (line.x >= 100 * _FIRST_OVERFLOW) & (line.x <= 400 * _FIRST_OVERFLOW)
    return float(line.y[soon].max() / before)


def _surge(results: Results) -> Verdict:
    found = {join: _surge_of(results.curve(_name(join, *CASES[0]), "cost")) for join in JOINS}
    return Verdict(min(found.values()) > 1.2, f"{_list(found)}, right after to right before")


def _surge_by_processor(results: Results) -> Verdict:
    found = {
        faster: _surge_of(results.curve(f"RPJ, processor {faster:g}", "cost"))
        if faster != RPJ.faster
        else _surge_of(results.curve(_name("RPJ", *CASES[0]), "cost"))
        for faster in RPJ.processors
    }
    told = ", ".join(f"{ratio:.2f}x with {faster:g}" for faster, ratio in found.items())
    return Verdict(max(found.values()) > 1.2, f"RPJ's, {told} times the speed of 1 GHz")


def _lead(results: Results, case: tuple[str, int], network: str) -> float:
    """RPJ's results at the end of the transmission to the best rival's."""
    ratios = [results.ratio(_name("RPJ", *case, network), _name(join, *case, network), "online") for join in JOINS[1:]]
    return min(ratio.median for ratio in ratios)


def _lead_grows(results: Results) -> Verdict:
    holds, told = {}, []
    for case in CASES:
        good, bad = (_lead(results, case, network) for network in rpj_streams.NETWORKS)
        holds[_case(*case)] = bad > good
        told.append(f"{good:.2f}x to {bad:.2f}x {_case(*case)}")
    return Verdict(all(holds.values()), f"from the good network to the bad one: {', '.join(told)}")


def _shares(results: Results) -> Verdict:
    told, holds = [], True
    for join in JOINS:
        shares = [results.median(_name(join, *case, "unreliable"), "share") for case in CASES]
        told.append(f"{join} {min(shares):.0%} to {max(shares):.0%}")
        holds &= min(shares) > 0.5 if join == "RPJ" else max(shares) < 0.35
    return Verdict(holds, ", ".join(told))


def _overflows(network: str, joins: Sequence[str]) -> Claim:
    """The paper's input buffer is of any size; whoever lets more rows wait than memory holds is told, as for DINER."""

    def check(results: Results) -> Verdict:
        told, fits = [], True
        for join in joins:
            names = {_case(*case): _name(join, *case, network) for case in CASES}
            found = [case for case, name in names.items() if results.median(name, "overflow") < 1]
            most = max(results.median(name, "waited") for name in names.values())
            said = f"overflows in {', '.join(found)}" if found else "never overflows"
            told.append(f"{join} {said} ({most:,.0f} rows wait at most)")
            fits &= not found
        return Verdict(fits, "; ".join(told))

    return Claim("fits", "No join lets more rows wait than memory holds.", "(not of the paper)", check)


def _whole_stage(results: Results) -> Verdict:
    told = {
        _case(*case): [results.spread(_name(join, *case, "unreliable"), "share") for join in (WHOLE_STAGE, "HMJ")]
        for case in _EQUALLY_FAST
    }
    holds = all(whole.median < 0.35 for whole, _ in told.values())
    return Verdict(holds, ", ".join(f"{whole:.0%} and not {one:.0%} {case}" for case, (whole, one) in told.items()))


def _er_of_the_paper(results: Results) -> Verdict:
    ratios = {
        _case(*case): results.ratio(
            _name(PAPERS_ER, *case, "unreliable"), _name("RPJ", *case, "unreliable"), "online"
        ).median
        for case in _EQUALLY_FAST
    }
    return Verdict(max(ratios.values()) <= 1 / _EQUAL, f"{_list(ratios)} what ours has")


def _most_in_the_end(results: Results) -> Verdict:
    leads = {_case(*case): _lead(results, case, "unreliable") for case in CASES}
    verdict = always("RPJ first", {case: lead >= _EQUAL for case, lead in leads.items()})
    return Verdict(verdict.holds, f"{verdict.measured}: {_list(leads)} the best rival")


def _best_of_variants(results: Results) -> Verdict:
    leads = {}
    for case in CASES:
        mine = _name("RPJ", *case, "unreliable")
        rivals = [results.ratio(mine, _name(join, *case, "unreliable"), "online") for join in VARIANTS[1:]]
        leads[_case(*case)] = min(ratio.median for ratio in rivals)
    verdict = always("RPJ first", {case: lead >= _EQUAL for case, lead in leads.items()})
    return Verdict(verdict.holds, f"{verdict.measured}: {_list(leads)} the better variant")


def _dd_above_md(results: Results) -> Verdict:
    ratios = {
        _case(*case): results.ratio(
            _name("RPJ-dd", *case, "unreliable"), _name("RPJ-md", *case, "unreliable"), "online"
        ).median
        for case in CASES
    }
    return Verdict(min(ratios.values()) > 1, f"RPJ-dd has {_list(ratios)} what RPJ-md has")


def _cheapest_in_the_end(results: Results) -> Verdict:
    leads = {}
    for case in CASES:
        costs = {join: results.curve(_name(join, *case, "unreliable"), "cost").y[-1] for join in VARIANTS}
        leads[_case(*case)] = float(min(costs["RPJ-md"], costs["RPJ-dd"]) / costs["RPJ"])
    verdict = always("RPJ cheapest", {case: lead >= _EQUAL for case, lead in leads.items()})
    return Verdict(verdict.holds, f"{verdict.measured}; the cheaper variant costs {_list(leads)} as much")


def _dd_falls_below_md(results: Results) -> Verdict:
    holds, told = {}, []
    for case in CASES:
        md, dd = (results.curve(_name(join, *case, "unreliable"), "cost") for join in VARIANTS[1:])
        early = (md.x > 100 * _FIRST_OVERFLOW) & (md.x < 25)
        first, last = float((dd.y[early] / md.y[early]).max()), float(dd.y[-1] / md.y[-1])
        holds[_case(*case)] = first > 1 > last
        told.append(f"{first:.2f}x, then {last:.2f}x {_case(*case)}")
    return Verdict(all(holds.values()), f"RPJ-dd's cost to RPJ-md's: {'; '.join(told)}")


_RESULTS, _COST = "results", "seconds of work per result"
_UNRELIABLE = (
    "Over the unreliable network, where the joins work seven times as long, scale 1 is "
    f"{RPJ.unreliable_part:.0%} of the paper's data and memory. Pages and seeks shrink with both, down to one row a "
    f"page, which is 1/{RPJ.page_tuples} of the paper; no scale makes a run smaller than that."
)

EXPERIMENTS = [
    Experiment(
        "rpj-8",
        "figure 8",
        "RPJ",
        "Results over a reliable network",
        _cells((*JOINS, OURS), "reliable") | _whole("reliable"),
        [
            Claim(
                "most-results",
                "RPJ has the most results at all times of the transmission.",
                "most in all four settings",
                _first_at_all_times("reliable", "results", JOINS[1:]),
            ),
            Claim(
                "clean-up-alike",
                "The clean-up takes all joins about as long (harmony, 1:1).",
                "similar",
                _clean_up_alike,
            ),
            _overflows("reliable", (*JOINS, OURS)),
            *ours.claims(_ours("reliable"), JOINS, _ours_to_the_end("reliable")),
        ],
        _panels("results", (*JOINS, OURS), "reliable", _RESULTS),
        key=True,
    ),
    Experiment(
        "rpj-9",
        "figure 9",
        "RPJ",
        "Cost of a result over a reliable network",
        _cells((*JOINS, OURS), "reliable")
        | {
            f"RPJ, processor {faster:g}": Cell(
                measure, join="RPJ", arrival="harmony", speed=1, network="reliable", faster=faster
            )
            for faster in RPJ.processors
            if faster != RPJ.faster
        },
        [
            Claim(
                "lowest-cost",
                "RPJ has the lowest cost per result at all times.",
                "lowest in all four settings",
                _first_at_all_times("reliable", "cost", JOINS[1:]),
            ),
            Claim("surge", "The cost surges when memory first overflows (harmony, 1:1).", "a surge", _surge),
            Claim(
                "surge-by-processor",
                "There are processors with which it does.",
                "2.4 GHz, no costs of operations given",
                _surge_by_processor,
            ),
            ours.cheapest(_ours("reliable"), JOINS),
        ],
        _panels("cost", (*JOINS, OURS), "reliable", _COST),
    ),
    Experiment(
        "rpj-10",
        "figure 10",
        "RPJ",
        "Results over an unreliable network",
        _cells(JOINS, "reliable")
        | _cells((*JOINS, OURS), "unreliable")
        | _cells((WHOLE_STAGE,), "unreliable", _EQUALLY_FAST)
        | _whole("unreliable"),
        [
            Claim("most-results", "RPJ has the most results when the last row arrives.", "most", _most_in_the_end),
            Claim("larger-lead", "RPJ's lead is larger than over a reliable network.", "more significant", _lead_grows),
            Claim(
                "most-before-clean-up",
                "Before the clean-up RPJ has delivered most of the results, the others few.",
                "RPJ most, the others about 20%",
                _shares,
            ),
            Claim(
                "whole-stage",
                "HMJ that merges all partitions before it looks at arrivals has few results by then.",
                "about 20%; not said how long HMJ merges",
                _whole_stage,
            ),
            _overflows("unreliable", (*JOINS, OURS)),
            *ours.claims(_ours("unreliable"), JOINS, _ours_to_the_end("unreliable")),
        ],
        _panels("results", (*JOINS, OURS), "unreliable", _RESULTS),
        key=True,
        note=_UNRELIABLE,
    ),
    Experiment(
        "rpj-11",
        "figure 11",
        "RPJ",
        "What RPJ does in silences",
        _cells((*VARIANTS, OURS), "unreliable") | _cells((PAPERS_ER,), "unreliable", _EQUALLY_FAST),
        [
            Claim("most-results", "RPJ has more results than with one kind of task alone.", "most", _best_of_variants),
            Claim("dd-above-md", "RPJ-dd has more results than RPJ-md.", "a faster output rate", _dd_above_md),
            Claim(
                "er-of-the-paper",
                "What the paper takes from the expectation of a visit when rows are flushed gives no more results than "
                "what was added for them.",
                "all rows on the other side's disk by then",
                _er_of_the_paper,
            ),
            _overflows("unreliable", (*VARIANTS, OURS)),
            *ours.claims(_ours("unreliable"), VARIANTS),
        ],
        _panels("results", (*VARIANTS, OURS), "unreliable", _RESULTS),
        note=_UNRELIABLE,
    ),
    Experiment(
        "rpj-12",
        "figure 12",
        "RPJ",
        "Cost of what RPJ does in silences",
        _cells((*VARIANTS, OURS), "unreliable"),
        [
            Claim("lowest-cost", "RPJ has the lowest cost per result in the end.", "smallest", _cheapest_in_the_end),
            Claim(
                "dd-surges",
                "RPJ-dd costs more than RPJ-md early on, and less in the end.",
                "surges early, then falls below",
                _dd_falls_below_md,
            ),
            ours.cheapest(_ours("unreliable"), VARIANTS),
        ],
        _panels("cost", (*VARIANTS, OURS), "unreliable", _COST),
        note=_UNRELIABLE,
    ),
]
