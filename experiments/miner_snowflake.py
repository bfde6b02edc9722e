"""MINER over snowflakes, which its paper left for later: an input that is joined on more than two attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments import ours
from experiments.diner_streams import new_arrivals
from experiments.miner import DELAYS, MEMORIES, snowflake
from experiments.model import Cell, Claim, Experiment, Panel, Results, Verdict, always
from experiments.ours import OURS
from experiments.papers import DINER

JOINS = ("MINER", "MJoin", OURS)
INPUTS = (4, 5)
"""The chain, whose third input has two attributes, and the snowflake, where it has three."""


def _name(join: str, memory: float, inputs: int = 5) -> str:
    return f"{join}, {inputs} inputs, {memory:.0%}"


def _silent(delay: float) -> str:
    return f"MINER, delay {delay:.0%}"


_ONLINE = {
    _name(join, memory, inputs): Cell(snowflake, join=join, inputs=inputs, memory=memory)
    for join in JOINS
    for inputs in INPUTS
    for memory in MEMORIES
    if join == "MINER" or inputs == 5
}
_SILENT = {
    _silent(delay): Cell(snowflake, join="MINER", inputs=5, memory=DINER.memory_share, delay=delay) for delay in DELAYS
}
_WHOLE = {
    f"{join} to the end": Cell(snowflake, join=join, inputs=5, memory=MEMORIES[-1], whole=True)
    for join in ("MINER", OURS)
}


def _all_found(results: Results) -> Verdict:
    shares = {join: results.spread(f"{join} to the end", "found") for join in ("MINER", OURS)}
    told = ", ".join(f"{join} {share:.0%}" for join, share in shares.items())
    return Verdict(all(share.low == share.high == 1 for share in shares.values()), f"{told} of all results in the end")


def _modest_drop(results: Results) -> Verdict:
    drops = {
        memory: 1 - results.ratio(_name("MINER", memory), _name("MINER", memory, 4), "share").median
        for memory in MEMORIES
    }
    told = ", ".join(f"{drop:.0%} less at {memory:.0%}" for memory, drop in drops.items())
    return Verdict(max(drops.values()) <= 0.25, f"against the chain: {told}")


def _ahead(results: Results) -> Verdict:
    leads = {
        memory: results.ratio(_name("MINER", memory), _name("MJoin", memory), "online").median for memory in MEMORIES
    }
    verdict = always("MINER ahead", {f"{memory:.0%}": lead >= 1 for memory, lead in leads.items()})
    return Verdict(verdict.holds, f"{verdict.measured}: {', '.join(f'{lead:.1f}x' for lead in leads.values())}")


def _small_buffer(results: Results) -> Verdict:
    limit = 2 * new_arrivals(results.scale)
    most = max(float(results.each(_silent(delay), "buffer").max()) for delay in DELAYS)
    return Verdict(most <= limit, f"at most {most:,.0f} rows, where twice MaxNewArr is {limit:,}")


def _cell_of(memory: float) -> Callable[[str], str]:
    return lambda join: _name(join, memory)


def _panels(results: Results) -> Sequence[Panel]:
    lines = {
        f"{join}, {inputs} inputs": results.sweep(
            MEMORIES, [_name(join, memory, inputs) for memory in MEMORIES], "share"
        )
        for join in JOINS
        for inputs in INPUTS
        if join == "MINER" or inputs == 5
    }
    return [Panel("Results online", "memory, share of the input", "share of all results", lines)]


EXPERIMENTS = [
    Experiment(
        "miner-snowflake",
        "section 4.2",
        "MINER",
        "A snowflake",
        _ONLINE | _SILENT | _WHOLE,
        [
            Claim("all-found", "MINER takes snowflakes: it finds each result once.", "can be extended", _all_found),
            Claim("small-buffer", "It hands over to arrivals soon: the input buffer stays within twice MaxNewArr.",
                  "efficiently, after each innermost block", _small_buffer),
            Claim("modest-drop", "One more input on a third attribute costs a quarter of the results online at most.",
                  "left as future work", _modest_drop),
            Claim("ahead", "MINER has at least as many results online as MJoin.", "left as future work", _ahead),
            *ours.claims({f"{memory:.0%}": _cell_of(memory) for memory in MEMORIES}, ("MINER", "MJoin")),
        ],
        _panels,
        note="The paper describes the join sequences of a snowflake (figure 6) and runs none. Here its chain of four "
        "has a fifth input of keys, to which the third refers as it does to the fourth.",
    )
]  # fmt: skip
