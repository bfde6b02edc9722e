"""A window join on several nodes: rates, fine tuning, balance, declustering, epochs (thesis, chapter 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from experiments.cluster import Cluster, Machine, Part, by_group, make_groups, poisson_times, skewed_keys
from experiments.model import Cell, Claim, Experiment, Line, Measured, Panel, Results, Verdict, always
from experiments.papers import PARALLEL
from watersmeet.policies.balancing import Balancer, Declustering, Thresholds

PAPER = "Parallel window joins"
_FITTED = (
    "What a comparison and a row cost is fitted to two points: four nodes without fine tuning are about 48 s late at "
    "4,000 rows a second, and with it have no idle time at 6,000. What it costs to send something is chosen. All else "
    "follows."
)
_IDLE = 0.05
"""Of the time: less is nothing."""


@lru_cache(maxsize=1)
def _streams(scale: float, seed: int, rate: int) -> list[tuple[Part, Part]]:
    """The rows of both streams by group: runs at one rate, which differ in what happens to them, follow each other."""
    times = [poisson_times(rate, PARALLEL.seconds * scale, 2 * seed + side) for side in (0, 1)]
    domain = max(1000, int(PARALLEL.keys * scale))
    keys = [skewed_keys(len(times[side]), PARALLEL.bias, domain, 2 * seed + side) for side in (0, 1)]
    return by_group(times, keys, PARALLEL.groups, PARALLEL.window * scale)


def run(
    scale: float,
    seed: int,
    nodes: int = PARALLEL.tuned_nodes,
    rate: int = PARALLEL.rate,
    tuned: bool = True,
    distribution: float = PARALLEL.distribution,
    sub_groups: int = 1,
    adaptive: str = "",
    slow: float = 1.0,
    balancing: bool = True,
) -> Measured:
    """One run. Windows, run, epochs, buffers and keys are scaled, and a comparison costs more by as much: so rates mean
    what they do in full.

    :param adaptive: `"thesis"` or `"settling"`: the number of nodes, `nodes` at first, changes by the thesis's rule, or
        by ours, which asks whether there is room
    """
    streams = _streams(scale, seed, rate)
    theta = max(4, int(PARALLEL.theta * scale / PARALLEL.row)) if tuned else None
    groups = make_groups(streams, PARALLEL.window * scale, theta)
    machine = Machine(
        comparison=PARALLEL.comparison / scale, row=PARALLEL.place, message=PARALLEL.message * scale,
        byte=1 / PARALLEL.bandwidth, row_bytes=PARALLEL.row, buffer=max(1, int(PARALLEL.buffer * scale / PARALLEL.row)),
    )  # fmt: skip
    balancer = Balancer(
        PARALLEL.groups,
        (1, nodes) if adaptive else (nodes, nodes),
        nodes,
        Thresholds(PARALLEL.consumer, PARALLEL.supplier),
        Declustering(headroom=None) if adaptive == "thesis" else None,
        one_each=adaptive != "settling",
    )
    epochs = distribution * scale, PARALLEL.reorganization * scale
    cluster = Cluster(groups, balancer, machine, *epochs, sub_groups, balancing, slow)
    cluster.run(PARALLEL.seconds * scale, PARALLEL.warm_up * scale)
    measured = (PARALLEL.seconds - PARALLEL.warm_up) * scale
    cpu, sent = (
        np.array([spent[which] - cluster.begun[number][which] for number, spent in cluster.spent().items()])
        for which in (0, 1)
    )
    rows = sum(len(times) for parts in streams for times, _, _ in parts)
    windows = [
        sum(groups[group].rows for group in balancer.groups_of(slot)) * PARALLEL.row / scale for slot in balancer.active
    ]
    active = np.array(cluster.active)
    return Measured(
        {
            "delay": cluster.delay / max(1, cluster.results) / scale,
            "cpu": float(cpu.sum() / active.mean() / measured),
            "communication": float(sent.sum() / active.mean() / measured),
            "all communication": float(sent.sum() / measured),
            "idle": max(0.0, float(1 - (cpu.sum() + sent.sum()) / active.mean() / measured)),
            "waiting": sum(slave.waiting for slave in cluster.slaves.values()) / rows,
            "window": float(np.mean(windows)),
            "largest window": float(np.max(windows)),
            "smallest window": float(np.min(windows)),
            "nodes": float(active.mean()),
            "changes": float(np.count_nonzero(np.diff(active))),
            "moves": float(cluster.moves),
            "buffered": float(np.mean(cluster.buffered)) / scale,
            "results": float(cluster.results),
        }
    )


def _cell(**changed: float | str | bool) -> Cell:
    """A run; what is as usual is not said, so that equal runs are run once."""
    usual = {"nodes": PARALLEL.tuned_nodes, "rate": PARALLEL.rate, "distribution": PARALLEL.distribution}
    return Cell(run, **{name: value for name, value in changed.items() if usual.get(name) != value})


_RATES = {f"{nodes} {rate}": _cell(nodes=nodes, rate=rate) for rate in PARALLEL.rates for nodes in PARALLEL.nodes}
_TUNED = {f"tuned {rate}": _cell(rate=rate) for rate in PARALLEL.rates}
_UNTUNED = {f"untuned {rate}": _cell(rate=rate, tuned=False) for rate in PARALLEL.rates}
_NODES = {f"fixed {nodes}": _cell(nodes=nodes) for nodes in PARALLEL.nodes}
_ADAPTIVE = {
    f"{rule} {nodes}": _cell(nodes=nodes, rate=PARALLEL.adaptive_rate, adaptive=rule)
    for rule in ("thesis", "settling")
    for nodes in PARALLEL.nodes
}
_EPOCHS = {f"{epoch:g}": _cell(nodes=PARALLEL.epoch_nodes, distribution=epoch) for epoch in PARALLEL.distributions}
_GROUPS = {f"{number}": _cell(sub_groups=number) if number > 1 else _cell() for number in PARALLEL.sub_groups}
_BALANCE = {
    **_TUNED,
    "slow, moved": _cell(rate=4000, slow=PARALLEL.slow),
    "slow, fixed": _cell(rate=4000, slow=PARALLEL.slow, balancing=False),
}


def _kept_up(results: Results, nodes: int) -> list[int]:
    return [rate for rate in PARALLEL.rates if results.median(f"{nodes} {rate}", "waiting") < 0.01]


def _saturation(results: Results) -> Verdict:
    most = [max(_kept_up(results, nodes), default=0) for nodes in PARALLEL.nodes]
    text = ", ".join(f"{rate:,}/s on {nodes}" for nodes, rate in zip(PARALLEL.nodes, most, strict=True))
    rises = all(b >= a for a, b in pairwise(most)) and most[-1] >= 3 * most[0]
    return Verdict(rises, f"keeps up with {text}, of {len(PARALLEL.rates)} rates up to {PARALLEL.rates[-1]:,}/s")


def _flat(results: Results) -> Verdict:
    delays = {
        nodes: [results.median(f"{nodes} {rate}", "delay") for rate in _kept_up(results, nodes)]
        for nodes in PARALLEL.nodes
    }
    text = ", ".join(f"{min(each):.1f} to {max(each):.1f} s on {nodes}" for nodes, each in delays.items() if each)
    return Verdict(all(max(each) < PARALLEL.distribution * 2 for each in delays.values() if each), text)


def _later(results: Results) -> Verdict:
    with_, without = (results.spread(f"{how} 4000", "delay") for how in ("tuned", "untuned"))
    holds = with_.median <= 3 and without.median >= 10 * with_.median
    return Verdict(holds, f"{without:.1f} s without, {with_:.1f} s with")


def _idle(results: Results) -> Verdict:
    first = {}
    for how in ("untuned", "tuned"):
        busy = [rate for rate in PARALLEL.rates if results.median(f"{how} {rate}", "idle") < _IDLE]
        first[how] = min(busy, default=0)
    said = {how: f"{rate:,}/s" if rate else "none tried" for how, rate in first.items()}
    idle = ", ".join(f"{results.median(f'tuned {rate}', 'idle'):.0%} at {rate:,}/s" for rate in (4000, 6000, 8000))
    text = f"no idle time from {said['untuned']} without, {said['tuned']} with (where it is {idle})"
    return Verdict(first["untuned"] == 4000 and first["tuned"] == 6000, text)


def _sharply(results: Results) -> Verdict:
    growth = {how: results.ratio(f"{how} 3000", f"{how} 1000", "cpu").median for how in ("untuned", "tuned")}
    text = f"{growth['untuned']:.1f}x without, {growth['tuned']:.1f}x with, 1,000/s to 3,000/s"
    return Verdict(growth["untuned"] > 1.5 * growth["tuned"], text)


def _no_more_messages(results: Results) -> Verdict:
    rates = [rate for rate in PARALLEL.rates if results.median(f"untuned {rate}", "waiting") < 0.01]
    ratios = [results.ratio(f"tuned {rate}", f"untuned {rate}", "communication").median for rate in rates]
    return Verdict(max(ratios) < 1.05, f"{min(ratios):.2f} to {max(ratios):.2f} times, as long as both keep up")


def _spread_of_windows(results: Results) -> Verdict:
    spread = {
        rate: results.median(f"tuned {rate}", "largest window") / results.median(f"tuned {rate}", "smallest window")
        for rate in PARALLEL.rates
    }
    text = ", ".join(f"{ratio:.2f} at {rate:,}/s" for rate, ratio in spread.items())
    return Verdict(max(spread.values()) < 1.25, f"largest to smallest: {text}")


def _moving_helps(results: Results) -> Verdict:
    moved, fixed = (results.spread(f"slow, {how}", "delay") for how in ("moved", "fixed"))
    text = f"{moved:.1f} s, and {fixed:.1f} s where nothing moves; {results.median('slow, moved', 'moves'):.0f} moves"
    return Verdict(moved.median * 2 < fixed.median, text)


def _linear_cpu(results: Results) -> Verdict:
    products = {nodes: results.median(f"fixed {nodes}", "cpu") * nodes for nodes in PARALLEL.nodes}
    text = ", ".join(f"{products[nodes] / nodes:.0%} on {nodes}" for nodes in PARALLEL.nodes)
    return Verdict(max(products.values()) < 1.15 * min(products.values()), f"busy for {text}")


def _communication_grows(results: Results) -> Verdict:
    totals = [results.median(f"fixed {nodes}", "all communication") for nodes in PARALLEL.nodes]
    line = np.polyval(np.polyfit(PARALLEL.nodes, totals, 1), PARALLEL.nodes)
    straight = bool(np.max(np.abs(totals - line)) < 0.1 * (totals[-1] - totals[0]))
    text = ", ".join(f"{total:.3f} on {nodes}" for nodes, total in zip(PARALLEL.nodes, totals, strict=True))
    return Verdict(straight and totals[-1] > 1.5 * totals[0], f"seconds a second: {text}")


def _communication_flat(results: Results, rule: str) -> Verdict:
    least = int(np.ceil(results.median(f"{rule} {PARALLEL.nodes[-1]}", "nodes")))
    asked = [nodes for nodes in PARALLEL.nodes if nodes >= least]
    totals = [results.median(f"{rule} {nodes}", "all communication") for nodes in asked]
    used = [results.median(f"{rule} {nodes}", "nodes") for nodes in asked]
    text = ", ".join(
        f"{total:.3f} with {nodes} allowed ({mean:.1f} used)"
        for nodes, total, mean in zip(asked, totals, used, strict=True)
    )
    return Verdict(max(totals) < 1.25 * min(totals), f"seconds a second: {text}")


def _settles(results: Results) -> Verdict:
    changes = {
        rule: max(results.median(f"{rule} {nodes}", "changes") for nodes in PARALLEL.nodes)
        for rule in ("thesis", "settling")
    }
    late = {
        rule: max(results.median(f"{rule} {nodes}", "delay") for nodes in PARALLEL.nodes[1:])
        for rule in ("thesis", "settling")
    }
    text = "; ".join(f"{rule} rule: {changes[rule]:.0f} changes, {late[rule]:.1f} s late" for rule in changes)
    return Verdict(changes["settling"] < changes["thesis"] and late["settling"] < late["thesis"], text)


def _trade(results: Results) -> Verdict:
    cells = [f"{epoch:g}" for epoch in PARALLEL.distributions]
    delay, sent = ([results.median(cell, value) for cell in cells] for value in ("delay", "communication"))
    text = ", ".join(f"{d:.1f} s and {c:.1%} at {cell} s" for cell, d, c in zip(cells, delay, sent, strict=True))
    return Verdict(bool(np.all(np.diff(delay) > 0) and np.all(np.diff(sent) < 0)), text)


def _formula(results: Results) -> Verdict:
    shares = {}
    for number in PARALLEL.sub_groups:
        # Of both streams.
        expected = 2 * PARALLEL.rate * PARALLEL.distribution / 2 * (1 + 1 / number)
        shares[str(number)] = results.median(str(number), "buffered") / expected
    text = ", ".join(f"{share:.2f} of it with {number}" for number, share in shares.items())
    verdict = always("within a tenth", {number: abs(share - 1) < 0.1 for number, share in shares.items()})
    return Verdict(verdict.holds, text)


def _sweeps(results: Results, cells: Mapping[str, Sequence[str]], xs: Sequence[float], value: str) -> dict[str, Line]:
    return {label: results.sweep(xs, names, value) for label, names in cells.items()}


def _by_nodes() -> dict[str, list[str]]:
    return {f"{nodes} nodes": [f"{nodes} {rate}" for rate in PARALLEL.rates] for nodes in PARALLEL.nodes}


def _by_tuning() -> dict[str, list[str]]:
    return {how: [f"{how} {rate}" for rate in PARALLEL.rates] for how in ("tuned", "untuned")}


def _by_rule(*rules: str) -> dict[str, list[str]]:
    return {rule: [f"{rule} {nodes}" for nodes in PARALLEL.nodes] for rule in rules}


EXPERIMENTS = [
    Experiment(
        "par-rate", "figure 7.7", PAPER, "Several nodes: rates", _RATES,
        [
            Claim("saturation", "The rate that overloads the system rises with the nodes.", "it rises", _saturation),
            Claim("flat-before", "Before that, the delay varies little (it stays below two distribution epochs).",
                  "very little variations", _flat),
        ],
        lambda results: [Panel("delay", "rows per second and stream", "mean delay, s",
                               _sweeps(results, _by_nodes(), PARALLEL.rates, "delay"), log_y=True)],
        key=True, note=_FITTED,
    ),
    Experiment(
        "par-tuning", "figures 7.8, 7.9", PAPER, "Four nodes: fine tuning of partitions",
        {name: cell for both in zip(_TUNED.items(), _UNTUNED.items(), strict=True) for name, cell in both},
        [
            Claim("delay", "At 4,000 rows a second results are far later without fine tuning.",
                  "around 48 s without, around 2 s with", _later),
            Claim("idle", "Idle time reaches zero at 4,000 rows a second without fine tuning, at 6,000 with it.",
                  "4,000 and 6,000", _idle),
            Claim("cpu", "Without fine tuning the CPU time grows far more sharply with the rate.", "sharply", _sharply),
            Claim("communication", "Fine tuning adds no communication.", "none", _no_more_messages),
        ],
        lambda results: [
            Panel("delay", "rows per second and stream", "mean delay, s",
                  _sweeps(results, _by_tuning(), PARALLEL.rates, "delay"), log_y=True),
            Panel("processor", "rows per second and stream", "busy, share of a node's time",
                  _sweeps(results, _by_tuning(), PARALLEL.rates, "cpu")),
            Panel("idle", "rows per second and stream", "idle, share of a node's time",
                  _sweeps(results, _by_tuning(), PARALLEL.rates, "idle")),
        ],
        key=True, note=_FITTED,
    ),
    Experiment(
        "par-balance", "figure 7.11", PAPER, "Four nodes: windows", _BALANCE,
        [
            Claim("spread", "The windows of the nodes differ little.", "not very high", _spread_of_windows),
            Claim("moving", f"If one node has {PARALLEL.slow:.0%} of the others' speed, moving groups more than halves "
                  "the delay.", "(not of the thesis)", _moving_helps),
        ],
        lambda results: [Panel("windows", "rows per second and stream", "bytes", {
            value: results.sweep(PARALLEL.rates, [f"tuned {rate}" for rate in PARALLEL.rates], value)
            for value in ("smallest window", "window", "largest window")
        })],
    ),
    Experiment(
        "par-nodes", "figures 7.12-7.14", PAPER, "How many nodes", {**_NODES, **_ADAPTIVE},
        [
            Claim("cpu", "The CPU time of a node falls almost linearly with the nodes.", "almost linearly",
                  _linear_cpu),
            Claim("grows", "The communication of all nodes grows linearly with their number.", "linearly",
                  _communication_grows),
            Claim("flat", "With adaptive declustering it stays flat, however many nodes there are.", "remains stable",
                  lambda results: _communication_flat(results, "thesis")),
            Claim("flat-settling", "So it does if nodes leave only where the others have room.", "(not of the thesis)",
                  lambda results: _communication_flat(results, "settling")),
            Claim("settles", "Then their number changes less often, and results come sooner.", "(not of the thesis)",
                  _settles),
        ],
        lambda results: [
            Panel("processor", "nodes", "busy, share of a node's time",
                  _sweeps(results, _by_rule("fixed"), PARALLEL.nodes, "cpu")),
            Panel("all nodes' communication", "nodes", "seconds a second",
                  _sweeps(results, _by_rule("fixed", "thesis", "settling"), PARALLEL.nodes, "all communication")),
        ],
        note=_FITTED,
    ),
    Experiment(
        "par-epoch", "figure 7.15", PAPER, "Three nodes: distribution epochs", _EPOCHS,
        [Claim("trade", "A shorter distribution epoch means less delay and more communication.", "a trade-off",
               _trade)],
        lambda results: [
            Panel("delay", "distribution epoch, s", "mean delay, s",
                  {"delay": results.sweep(PARALLEL.distributions, list(_EPOCHS), "delay")}),
            Panel("communication", "distribution epoch, s", "share of a node's time",
                  {"communication": results.sweep(PARALLEL.distributions, list(_EPOCHS), "communication")}),
        ],
    ),
    Experiment(
        "par-subgroup", "section 7.5.2", PAPER, "Sub-groups of nodes, served in turns", _GROUPS,
        [Claim("formula", "Before it sends, the master has r t / 2 (1 + 1/n) rows of each stream for n sub-groups.",
               "by calculation", _formula)],
        lambda results: [Panel("master", "sub-groups", "rows waiting before some are sent",
                               {"measured": results.sweep(PARALLEL.sub_groups, list(_GROUPS), "buffered")})],
    ),
]  # fmt: skip
