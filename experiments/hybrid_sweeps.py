"""What the thesis does not give of its hybrid joins, swept: the processor's speed, where the relation's keys lie."""

from __future__ import annotations

from experiments.hybrid import JOINS, PAPER, cell, cell_name
from experiments.model import Claim, Experiment, Panel, Results, Verdict
from experiments.papers import HYBRID

_RATES = (1000, 1200, 1500, 2000, 2500)
_KEEPS_UP = 0.02
_PROCESSORS = {
    cell_name(join, rate=rate, faster=faster): cell(join, rate=rate, faster=faster)
    for join in JOINS
    for rate in _RATES
    for faster in HYBRID.processors
}
_DRAWN = {
    cell_name(join, low=low, drawn=drawn): cell(join, low=low, drawn=drawn)
    for join in JOINS[1:]
    for low in HYBRID.lows
    for drawn in (0.0, low)
}


def _limits(results: Results, join: str) -> dict[float, int]:
    """The first of the rates that a join does not keep up with, by processor; 0 if there is none."""
    found = {}
    for faster in HYBRID.processors:
        late = [
            rate for rate in _RATES if results.median(cell_name(join, rate=rate, faster=faster), "backlog") >= _KEEPS_UP
        ]
        found[faster] = min(late, default=0)
    return found


def _falls_behind(results: Results) -> Verdict:
    told, holds = [], []
    limits = {join: _limits(results, join) for join in JOINS}
    for faster in HYBRID.processors:
        holds.append(
            1000 < limits["meshjoin"][faster] <= 1500 and not (limits["range"][faster] or limits["hash"][faster])
        )
        said = ", ".join(
            f"{join} from {limits[join][faster]}/s" if limits[join][faster] else f"{join} never" for join in JOINS
        )
        told.append(f"with {faster:g}: {said}")
    return Verdict(any(holds), "falls behind " + "; ".join(told))


def _least_cpu(results: Results) -> Verdict:
    told, holds = [], []
    for faster in HYBRID.processors:
        cpu = {join: results.median(cell_name(join, rate=1000, faster=faster), "cpu") for join in JOINS}
        holds.append(cpu["range"] <= min(cpu.values()))
        told.append(f"with {faster:g}: " + ", ".join(f"{join} {seconds:,.0f} s" for join, seconds in cpu.items()))
    return Verdict(all(holds), "; ".join(told))


def _saved(results: Results, drawn: bool) -> dict[float, float]:
    """The disk time of ranges, of that of hash partitions, by the share of rows that go to one half of the keys."""
    return {
        low: results.ratio(
            cell_name("range", low=low, drawn=low if drawn else 0.0),
            cell_name("hash", low=low, drawn=low if drawn else 0.0),
            "disk",
        ).median
        for low in HYBRID.lows
    }


def _ranges_save(results: Results) -> Verdict:
    like, all_over = _saved(results, True), _saved(results, False)
    told = ", ".join(f"{like[low]:.2f} ({all_over[low]:.2f} from all over) with {low:.0%}" for low in HYBRID.lows)
    return Verdict(min(like.values()) <= 0.2, f"of the disk time of hash partitions: {told}")


EXPERIMENTS = [
    Experiment(
        "hybrid-cpu",
        "an addition to figures 6.5, 6.10",
        PAPER,
        "A stream and a relation: how fast the processor is",
        _PROCESSORS,
        [
            Claim("falls-behind", "With some processor MESHJOIN alone falls behind, from 1,200 to 1,500/s on.",
                  "3.4 GHz and Java, no costs given", _falls_behind),
            Claim("range-cpu", "Partitions by range need the least CPU time, at 1,000/s, with any of them.", "least",
                  _least_cpu),
        ],
        lambda results: [
            Panel("CPU at 1,000/s", "times the speed of 1 GHz", "CPU time, s", {
                join: results.sweep(
                    HYBRID.processors,
                    [cell_name(join, rate=1000, faster=faster) for faster in HYBRID.processors], "cpu",
                )
                for join in JOINS
            }, log_y=True)
        ],
    ),
    Experiment(
        "hybrid-relation",
        "an addition to figure 6.8",
        PAPER,
        "A stream and a relation: where the relation's keys lie",
        _DRAWN,
        [
            Claim("ranges-save", "Where the relation is drawn like the stream, ranges need a fifth of the disk time of "
                  "hash partitions or less, at some shares.", "an order of magnitude less", _ranges_save),
        ],
        lambda results: [
            Panel(title, "share of the lower half", "disk time, s", {
                join: results.sweep(
                    HYBRID.lows, [cell_name(join, low=low, drawn=low if drawn else 0.0) for low in HYBRID.lows], "disk"
                )
                for join in JOINS[1:]
            }, log_y=True)
            for title, drawn in (("keys from all over", False), ("drawn like the stream", True))
        ],
        note=(
            "The thesis draws the relation by the same technique as the stream (6.4.1). Ranges that follow its keys "
            "then have as many rows each, and the stream asks for all of them alike."
        ),
    ),
]  # fmt: skip
