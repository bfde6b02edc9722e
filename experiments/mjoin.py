"""MJoin: one operator of all inputs beside trees of binary joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from experiments import ours
from experiments.model import Cell, Claim, Experiment, Measured, Panel, Results, Verdict
from experiments.ours import OURS
from experiments.papers import MJOIN
from watersmeet.core.cost import Cost
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Arrive, Status
from watersmeet.core.spec import Output
from watersmeet.drivers.cost_model import CostModel
from watersmeet.drivers.simulate import simulate
from watersmeet.drivers.trace import Trace
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.joins.multiway.mjoin import MJoin
from watersmeet.joins.multiway.tree import JoinTree
from watersmeet.sources.schedules import Schedule, poisson
from watersmeet.spill.store import MemoryStore

_KEY = pa.schema({"v": pa.int64()})
_ON = ["s1.v = s2.v", "s2.v = s3.v", "s1.v = s3.v"]
POINTS = 60
AMPLE = 1 << 30
_PAGE_BYTES, _PAGE_ROWS = 1024, 64
"""Pages of the cost model, of rows of which only the key is kept."""


ALONE: ours.Cells = {"all inputs": lambda join: join}
"""The one case of an experiment whose cells are named by their joins."""


def _spec(names: Sequence[str], on: Sequence[str], schema: pa.Schema = _KEY) -> MultiSpec:
    return MultiSpec.of(dict.fromkeys(names, schema), on, Output.COUNTS)


def confluence(spec: MultiSpec, memory: int, rows: int) -> ManyConfluence:
    """Our own join, in memory for about so many rows."""
    return ManyConfluence(spec, memory, MemoryStore(), **ours.options(rows, _PAGE_ROWS, _PAGE_BYTES))


def run(operator: MJoin | JoinTree | ManyConfluence, schedule: Schedule) -> Trace:
    """Simulate, a quarter of a second of arrivals at a time."""
    return simulate(operator, schedule, quantum=0.25)


def curve(trace: Trace, until: float) -> tuple[np.ndarray, np.ndarray]:
    """Results over time."""
    times = np.linspace(0, until, POINTS + 1)[1:]
    return times, np.array([float(trace.results_at(time)) for time in times])


# --- the number of operations ---


def inflating(scale: float, seed: int, plan: str, swapped: bool = False) -> Measured:
    """Three inputs on an attribute of few values, so that every row meets many; or with the gaps of the second and the
    third exchanged.
    """
    random = np.random.default_rng(seed)
    rows = [max(1, round(n * scale)) for n in MJOIN.inflating]
    values = max(1, round(MJOIN.values * scale))
    tables = [pa.table({"v": random.permutation(np.arange(n) % values)}) for n in rows]
    first, second, third = MJOIN.inflating_gaps
    gaps = (first, third, second) if swapped else (first, second, third)
    times = [poisson(n, 1 / gap, seed * 10 + i) for i, (n, gap) in enumerate(zip(rows, gaps, strict=True))]
    schedule = Schedule(tables, times)
    # The tree has no use for the third condition: the first two imply it.
    spec = _spec(("s1", "s2", "s3"), _ON if plan != "tree" else _ON[:2])
    operator: MJoin | JoinTree
    if plan == "tree":
        operator = JoinTree(spec, AMPLE, MemoryStore(), tree=(("s1", "s2"), "s3"))
    else:
        right = {"s1": ("s3", "s2"), "s2": ("s1", "s3"), "s3": ("s1", "s2")}
        wrong = {"s1": ("s2", "s3"), "s2": ("s1", "s3"), "s3": ("s2", "s1")}
        pinned = {"right": right, "wrong": wrong, "measured": None}[plan]
        operator = MJoin(spec, AMPLE, MemoryStore(), probing=pinned)
    results = work_off(operator, schedule)
    cpu, _ = CostModel().seconds(operator.cost)
    counts = {"hashes": operator.cost.hashes, "moves": operator.cost.inserts, "comparisons": operator.cost.comparisons}
    return Measured(
        {**counts, "cpu": cpu, "total": results[-1]}, {"results": (np.linspace(0, 1, len(results)), results)}
    )


def work_off(operator: MJoin | JoinTree, schedule: Schedule) -> np.ndarray:
    """Hand over all rows in the order of their times, and only then the ends: every row is kept, as in the paper."""
    times = np.concatenate(schedule.times)
    owners = np.repeat(np.arange(len(schedule.times)), [len(each) for each in schedule.times])
    order = np.argsort(times, kind="stable")
    taken = [0] * len(schedule.inputs)
    results = []
    for some in np.array_split(order, POINTS):
        for number in range(len(schedule.inputs)):
            count = int(np.count_nonzero(owners[some] == number))
            table = schedule.inputs[number].slice(taken[number], count).combine_chunks()
            taken[number] += count
            for batch in table.to_batches():
                operator.receive(Arrive(number, batch))
            while operator.poll(0.0, 1 << 20).status is Status.HAS_OUTPUT:
                pass
        results.append(float(operator.cost.results))
    return np.array(results)


def _same_counts(results: Results) -> Verdict:
    expected = {
        plan: round(hashes * results.scale)
        for plan, (hashes, _) in zip(("tree", "right", "wrong"), MJOIN.table_1, strict=True)
    }
    found = {plan: (results.median(plan, "hashes"), results.median(plan, "moves")) for plan in expected}
    holds = all(found[plan] == (count, count) for plan, count in expected.items())
    told = ", ".join(f"{plan} {hashes:,.0f}/{moves:,.0f}" for plan, (hashes, moves) in found.items())
    return Verdict(holds, f"hashes/moves {told}")


def _comparisons(results: Results, swapped: str = "") -> Verdict:
    found = [results.median(plan + swapped, "comparisons") / results.scale for plan in ("tree", "right", "wrong")]
    paper = [comparisons for _, comparisons in MJOIN.table_1]
    holds = found[0] < found[1] < found[2] and all(0.6 < a / b < 1.4 for a, b in zip(found, paper, strict=True))
    return Verdict(holds, " / ".join(f"{count / 1e6:.2f}M" for count in found))


def _right_order_first(results: Results, swapped: str = "") -> Verdict:
    cpu = {plan: results.median(plan + swapped, "cpu") for plan in ("right", "wrong", "tree", "measured")}
    holds = cpu["right"] < min(cpu["wrong"], cpu["tree"])
    return Verdict(holds, ", ".join(f"{plan} {seconds:.4f} s" for plan, seconds in cpu.items()) + " of CPU")


# --- inputs whose rates change ---


def fluctuating(scale: float, seed: int, plan: str) -> Measured:
    """A key join of three inputs; the third is fast, slow in its middle third, and fast again."""
    random = np.random.default_rng(seed)
    rows = [max(3, round(n * scale)) for n in MJOIN.fluctuating]
    tables = [pa.table({"v": random.permutation(max(rows))[:n]}) for n in rows]
    gaps = np.repeat([MJOIN.fast_gap, MJOIN.slow_gap, MJOIN.fast_gap], -(-rows[2] // 3))[: rows[2]]
    times = [np.cumsum(random.exponential(MJOIN.steady_gap, n)) for n in rows[:2]]
    times.append(np.cumsum(random.exponential(1.0, rows[2]) * gaps))
    schedule = Schedule(tables, times)
    spec = _spec(("s1", "s2", "s3"), _ON[:2])
    memory = round(sum(rows) * 24)
    operator: MJoin | JoinTree | ManyConfluence
    if plan == OURS:
        operator = confluence(spec, memory, sum(rows) // 3)
    elif plan == "mjoin":
        operator = MJoin(spec, memory, MemoryStore())
    else:
        high = (("s1", "s2"), "s3")
        low = ("s1", ("s2", "s3"))
        operator = JoinTree(spec, memory, MemoryStore(), tree=high if plan == "high" else low)
    trace = run(operator, schedule)
    return Measured(
        {
            "spilled": float(trace.cost.pages_written),
            "online": trace.online_share,
            "share": trace.online_share,
            "after": trace.end - trace.last_arrival,
        },
        {"results": curve(trace, schedule.end_time)},
    )


def _first_throughout(results: Results) -> Verdict:
    lines = {plan: results.curve(plan, "results").y for plan in ("mjoin", "high", "low")}
    best = np.maximum(lines["high"], lines["low"])
    ahead = float(np.mean(lines["mjoin"] >= best))
    end = lines["mjoin"][-1] / max(1.0, best[-1])
    return Verdict(ahead >= 0.95, f"ahead at {ahead:.0%} of the times; {end:.2f} x the better tree in the end")


def _trees_swap(results: Results) -> Verdict:
    high, low = (results.curve(plan, "results").y for plan in ("high", "low"))
    leads = np.sign(high - low)
    changes = int(np.count_nonzero(np.diff(leads[leads != 0])))
    return Verdict(changes >= 1, f"the lead changes {changes} times")


# --- coordinated flushing ---


def flushed(scale: float, seed: int, inputs: int, policy: str, share: float) -> Measured:
    """A star of some inputs; a share of their rows stays in memory; then new rows of one input arrive."""
    random = np.random.default_rng(seed)
    rows = max(2_000, round(40_000 * scale))
    names = [f"s{i}" for i in range(inputs)]
    spec = _spec(names, [f"{a}.v = {b}.v" for a, b in pairwise(names)])
    domain = rows // 4
    tables = [random.integers(0, domain, rows) for _ in names]
    probes = random.integers(0, domain, 2_000)
    found = []
    for stays in (1.0, share):
        join = MJoin(spec, AMPLE, MemoryStore(), flush=policy)
        for number, values in enumerate(tables):
            _feed(join, number, values)
        total = sum(table.rows for table in join.tables)
        while sum(table.rows for table in join.tables) > stays * total:
            join._make_room()
        kept = [table.rows / rows for table in join.tables]
        found.append(_feed(join, 0, probes).results)
    # Flushed without regard to each other, inputs keep different shares; those that are looked up count.
    expected = float(np.mean(kept)) if policy == "coordinated" else float(np.prod(kept[1:]))
    return Measured({"share": found[1] / found[0], "kept": float(np.mean(kept)), "expected": expected})


def _feed(join: MJoin, number: int, values: np.ndarray) -> Cost:
    before = join.cost
    join.receive(Arrive(number, pa.record_batch({"v": values}, _KEY)))
    while join.poll(0.0, 1 << 20).status is Status.HAS_OUTPUT:
        pass
    return join.cost - before


_STARS = (2, 3, 4, 6)


def _flush_shares(results: Results) -> Verdict:
    holds, told = {}, []
    for inputs in _STARS:
        for policy in ("coordinated", "random"):
            cell = f"{policy} {inputs}"
            expected, share = results.each(cell, "expected"), results.each(cell, "share")
            holds[cell] = bool(np.median(np.abs(share - expected) - 0.1 * expected) <= 0.06)
            told.append(f"{cell}: {np.median(share):.2f} (expected {np.median(expected):.2f})")
    return Verdict(all(holds.values()), "; ".join(told))


def _equal_for_two(results: Results) -> Verdict:
    shares = {policy: results.median(f"{policy} 2", "share") for policy in ("coordinated", "random")}
    return Verdict(
        abs(shares["coordinated"] - shares["random"]) < 0.1, f"{shares['coordinated']:.2f}, {shares['random']:.2f}"
    )


def _curves(title: str, labels: Mapping[str, str]) -> object:
    def panels(results: Results) -> Sequence[Panel]:
        lines = {label: results.curve(cell, "results") for cell, label in labels.items()}
        return [Panel(title, "seconds", "results", lines)]

    return panels


def _flush_panels(results: Results) -> Sequence[Panel]:
    lines = {
        policy: results.sweep(_STARS, [f"{policy} {inputs}" for inputs in _STARS], "share")
        for policy in ("coordinated", "random")
    }
    return [Panel("Half of the rows in memory", "inputs", "share of results found at once", lines)]


_PAPER = "MJoin"
_SWAPPED = ", swapped"

EXPERIMENTS = [
    Experiment(
        "mjoin-11",
        "figure 11",
        _PAPER,
        "Three inputs, one of which is fast, slow and fast again",
        {plan: Cell(fluctuating, plan=plan) for plan in ("mjoin", "high", "low", OURS)},
        [
            Claim(
                "first-throughout",
                "MJoin has the most results throughout.",
                "MJoin dominates throughout",
                _first_throughout,
            ),
            Claim(
                "trees-swap",
                "The two trees swap places with the third input's speed.",
                "the trees' order follows the rate of S3",
                _trees_swap,
            ),
            *ours.claims(ALONE, ("mjoin", "high", "low"), ALONE),
        ],
        _curves(  # type: ignore[arg-type]
            "Results over time",
            {"mjoin": "MJoin", "high": "tree, S3 at the top", "low": "tree, S3 below", OURS: OURS},
        ),
        key=True,
    ),
    Experiment(
        "mjoin-12",
        "figure 12, table 1",
        _PAPER,
        "The order of look-ups, and the number of operations",
        {plan: Cell(inflating, plan=plan) for plan in ("right", "wrong", "tree", "measured")}
        | {
            plan + _SWAPPED: Cell(inflating, plan=plan, swapped=True) for plan in ("right", "wrong", "tree", "measured")
        },
        [
            Claim("counts", "Hashes and moves are exactly the table's.", "35,000 against 185,000", _same_counts),
            Claim(
                "comparisons",
                "Fewest comparisons by the tree, most in the wrong order.",
                "1.50M / 1.66M / 2.00M",
                _comparisons,
            ),
            Claim(
                "right-order",
                "The right order beats the wrong one and the tree.",
                "fastest of the three",
                _right_order_first,
            ),
            Claim(
                "comparisons-swapped",
                "The same counts, if the fast input is the second and not the third.",
                "1.50M / 1.66M / 2.00M",
                lambda results: _comparisons(results, _SWAPPED),
            ),
            Claim(
                "right-order-swapped",
                "Then the right order beats the wrong one and the tree.",
                "fastest of the three",
                lambda results: _right_order_first(results, _SWAPPED),
            ),
        ],
        _curves("Results over time", {"right": "right order", "wrong": "wrong order", "tree": "tree"}),  # type: ignore[arg-type]
    ),
    Experiment(
        "mjoin-flush",
        "section 2.5",
        _PAPER,
        "Flushing the same partitions of all inputs",
        {
            f"{policy} {inputs}": Cell(flushed, inputs=inputs, policy=policy, share=0.5)
            for policy in ("coordinated", "random")
            for inputs in _STARS
        },
        [
            Claim(
                "shares",
                "Of k inputs with a share f in memory, f of the results come at once, or f^(k-1).",
                "f; f^(k-1)",
                _flush_shares,
            ),
            Claim("two-inputs", "For two inputs both are equal.", "equal for k = 2", _equal_for_two),
        ],
        _flush_panels,
    ),
]
