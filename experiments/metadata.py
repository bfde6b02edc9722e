"""The metadata-aware MJoin: news and their readers, with a punctuation when an item leaves the ten latest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from experiments.model import Cell, Claim, Experiment, Measured, Panel, Results, Verdict, always
from experiments.papers import METADATA
from watersmeet.core.promises import Promises
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End, Event, Punctuate, Status
from watersmeet.core.spec import JoinSpec, Output, parse_on
from watersmeet.drivers.cost_model import CostModel
from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin
from watersmeet.joins.progressive.xjoin import XJoin
from watersmeet.spill.store import MemoryStore

_NEWS = pa.schema({"sno": pa.int64()})
_AMPLE = 1 << 28
_POINTS = 40
_FUEL = 256
_PATTERNS = ("ordered", "random")


def _spec(promising: bool) -> JoinSpec:
    promises = (Promises(unique=("sno",)), Promises(punctuated=True)) if promising else (Promises(), Promises())
    # Rows are asked for, so that punctuations can be handed on; there is one column.
    return JoinSpec(_NEWS, _NEWS, parse_on("sno"), output=Output.ROWS, promises=promises)


def _streams(scale: float, seed: int, pattern: str) -> tuple[np.ndarray, np.ndarray]:
    """The keys of the news as they arrive, and of the accesses: -1 - key is that key's punctuation."""
    random = np.random.default_rng(seed)
    items = max(20, round(METADATA.news * scale))
    news = np.arange(items)
    if pattern == "random":
        news = random.permutation(news)
    reads = []
    for oldest in range(items):
        latest = min(items, oldest + METADATA.latest)
        some = random.integers(oldest, latest, random.poisson(METADATA.accesses))
        reads.append(np.append(some, -1 - oldest))
    return news, np.concatenate(reads)


def _batch(keys: np.ndarray) -> pa.RecordBatch:
    return pa.record_batch({"sno": pa.array(keys)})


def _events(reads: np.ndarray) -> list[Event]:
    """Accesses and punctuations, in order."""
    events: list[Event] = []
    start = 0
    for at in np.flatnonzero(reads < 0):
        if at > start:
            events.append(Arrive(RIGHT, _batch(reads[start:at])))
        events.append(Punctuate(RIGHT, {"sno": int(-1 - reads[at])}))
        start = int(at) + 1
    return events


class _Watch:
    """Time, by the cost model, and rows in memory, as results come."""

    def __init__(self, operator: MetadataMJoin | XJoin) -> None:
        self._operator = operator
        self._model = CostModel()
        self.results, self.seconds, self.rows = [0.0], [0.0], [0.0]

    def work_off(self) -> None:
        """Poll until the operator wants more."""
        while True:
            status = self._operator.poll(0.0, _FUEL).status
            self._note()
            if status is not Status.HAS_OUTPUT:
                return

    def _note(self) -> None:
        cost = self._operator.cost
        self.results.append(float(cost.results))
        self.seconds.append(sum(self._model.seconds(cost)))
        self.rows.append(float(sum(table.rows for table in self._operator.tables)))

    def measured(self) -> Measured:
        """Both along the number of results."""
        results = np.array(self.results)
        at = np.linspace(0, results[-1], _POINTS + 1)[1:]
        place = np.searchsorted(results, at)
        seconds, rows = np.array(self.seconds)[place], np.array(self.rows)[place]
        cost = self._operator.cost
        values = {
            "seconds": seconds[-1],
            "total": results[-1],
            "inserts": float(cost.inserts),
            "comparisons": float(cost.comparisons),
            "written": float(cost.pages_written),
            "most rows": float(max(self.rows)),
            "mean rows": float(np.mean(rows)),
        }
        return Measured(values, {"seconds": (at, seconds), "rows": (at, rows)})


def relying(
    scale: float,
    seed: int,
    pattern: str,
    scheduling: str = "priority",
    every: int = 1,
    search: str = "scan",
    propagate: bool = True,
    memory: int = _AMPLE,
    quotas: tuple[int, int] = METADATA.quotas,
) -> Measured:
    """The join that relies on promises, with all rows of both inputs waiting from the beginning."""
    news, reads = _streams(scale, seed, pattern)
    tuples, turn = ("value", 0) if scheduling == "priority" else ("sequential", 1)
    operator = MetadataMJoin(
        _spec(True), memory, MemoryStore(), purge_every=every, search=search, streams=scheduling, tuples=tuples,
        quotas=quotas, turn=turn, seed=seed, propagate=propagate,
    )  # fmt: skip
    operator.receive(Arrive(LEFT, _batch(news)))
    for event in _events(reads):
        operator.receive(event)
    return _finished(operator)


def forgetting_nothing(
    scale: float,
    seed: int,
    pattern: str,
    memory: int = _AMPLE,
    quotas: tuple[int, int] = METADATA.quotas,
    at_random: bool = False,
) -> Measured:
    """XJoin, given the same rows: in the metadata-aware join's own turns, or in turns of an input that is drawn each
    time (section 4.1: random scheduling treats both inputs alike, and is what most joins do).
    """
    news, reads = _streams(scale, seed, pattern)
    random = np.random.default_rng([seed, 1])
    operator = XJoin(_spec(False), memory, MemoryStore())
    watch = _Watch(operator)
    queues = [news, reads[reads >= 0]]
    side = RIGHT
    while waiting := [each for each in (LEFT, RIGHT) if len(queues[each])]:
        side = int(random.choice(waiting)) if at_random else (1 - side if 1 - side in waiting else side)
        operator.receive(Arrive(side, _batch(queues[side][: quotas[side]])))
        queues[side] = queues[side][quotas[side] :]
        watch.work_off()
    return _finished(operator, watch)


def _finished(operator: MetadataMJoin | XJoin, watch: _Watch | None = None) -> Measured:
    """To the last row, and then, for whoever has spilled, to the end."""
    watch = watch or _Watch(operator)
    watch.work_off()
    if operator.cost.pages_written:
        for side in (LEFT, RIGHT):
            operator.receive(End(side))
        while operator.phase != "done":
            watch.work_off()
    return watch.measured()


# --- claims ---


def _faster(cell: Callable[[str], tuple[str, str]], label: str) -> Callable[[Results], Verdict]:
    def check(results: Results) -> Verdict:
        holds = {}
        for pattern in _PATTERNS:
            first, second = cell(pattern)
            mine, other = (results.curve(each, "seconds").y for each in (first, second))
            holds[pattern] = bool((mine[1:] <= other[1:]).all())
        told = always(label, holds)
        ratios = ", ".join(
            f"{results.ratio(cell(pattern)[1], cell(pattern)[0], 'seconds'):.2f} x {pattern}" for pattern in _PATTERNS
        )
        return Verdict(told.holds, f"{told.measured}; at the end {ratios}")

    return check


def _flat(results: Results) -> Verdict:
    holds, told = {}, []
    for pattern in _PATTERNS:
        mine, other = (results.curve(f"{join} {pattern}", "rows").y for join in ("mjoin", "xjoin"))
        half = len(mine) // 2
        holds[pattern] = bool(mine[half:].max() <= 1.1 * mine[:half].max() and other[-1] > 1.4 * other[half - 1])
        told.append(
            f"{pattern}: {mine[half - 1]:,.0f} and {mine[-1]:,.0f} against {other[half - 1]:,.0f} and {other[-1]:,.0f}"
        )
    return Verdict(all(holds.values()), "rows half-way and at the end " + "; ".join(told))


def _overtakes(results: Results) -> Verdict:
    holds, told = {}, []
    for pattern in _PATTERNS:
        mine, other = (results.curve(f"{join} {pattern}", "seconds").y for join in ("mjoin", "xjoin"))
        holds[pattern] = bool(mine[-1] < other[-1])
        told.append(f"{pattern} {other[-1] / mine[-1]:.2f} x")
    return Verdict(all(holds.values()), "XJoin's time to MJoin's at the end: " + ", ".join(told))


def _slower_at_first(results: Results, rival: str = "xjoin") -> Verdict:
    early = {
        pattern: results.curve(f"mjoin {pattern}", "seconds").y[1] / results.curve(f"{rival} {pattern}", "seconds").y[1]
        for pattern in _PATTERNS
    }
    told = ", ".join(f"{pattern} {ratio:.2f} x" for pattern, ratio in early.items())
    return Verdict(all(ratio > 1 for ratio in early.values()), f"MJoin's time to XJoin's at a twentieth: {told}")


def _by_quotas(results: Results) -> Verdict:
    """For which quotas priority is faster than random turns all along, and at the end."""
    told = []
    for pattern in _PATTERNS:
        random = results.curve(f"random {pattern}", "seconds").y
        for quotas in METADATA.swept_quotas:
            mine = results.curve(f"{quotas[0]}:{quotas[1]} {pattern}", "seconds").y
            always = "always" if (mine[1:] <= random[1:]).all() else "not always"
            told.append(f"{quotas[0]}:{quotas[1]} {pattern} {always}, {random[-1] / mine[-1]:.2f} x at the end")
    return Verdict(any("always," in each and "not" not in each for each in told), "; ".join(told))


def _no_overflow(results: Results) -> Verdict:
    mine, other = (results.median(f"{join} little", "written") for join in ("mjoin", "xjoin"))
    ratio = results.ratio("xjoin little", "mjoin little", "seconds")
    return Verdict(mine == 0 < other, f"pages written: {mine:,.0f} against {other:,.0f}; XJoin takes {ratio:.0f} x")


def _batch_faster(results: Results) -> Verdict:
    ratio = results.ratio("immediate random", "batch random", "seconds")
    one, many = (results.curve(f"{each} random", "seconds").y for each in ("immediate", "batch"))
    by_index = results.ratio("by index random", "batch random", "seconds")
    holds = bool((many[1:] <= one[1:]).all())
    return Verdict(
        holds, f"immediate takes {ratio:.2f} x at the end; where rows are found by their index, {by_index:.2f} x"
    )


def _smallest_state(results: Results) -> Verdict:
    one, many = (results.median(f"{each} random", "mean rows") for each in ("immediate", "batch"))
    return Verdict(one < many, f"{one:,.0f} rows on average against {many:,.0f}")


# --- panels ---


def _panels(curve: str, y: str, labels: dict[str, str], title: str) -> Callable[[Results], Sequence[Panel]]:
    def draw(results: Results) -> Sequence[Panel]:
        return [
            Panel(
                f"{title}, {pattern} arrival",
                "results",
                y,
                {label: results.curve(f"{cell} {pattern}", curve) for cell, label in labels.items()},
            )
            for pattern in _PATTERNS
            if all(f"{cell} {pattern}" in results.cells for cell in labels)
        ]

    return draw


def _both(*draw: Callable[[Results], Sequence[Panel]]) -> Callable[[Results], Sequence[Panel]]:
    return lambda results: [panel for each in draw for panel in each(results)]


def _cells(name: str, measure: Any, patterns: Sequence[str] = _PATTERNS, **arguments: Any) -> dict[str, Cell]:
    return {f"{name} {pattern}": Cell(measure, pattern=pattern, **arguments) for pattern in patterns}


_PAPER = "metadata-aware MJoin"
_LITTLE = {"pattern": "ordered", "memory": METADATA.little_memory}

EXPERIMENTS = [
    Experiment(
        "meta-8",
        "figure 8",
        _PAPER,
        "Which rows come next",
        {
            **_cells("priority", relying, quotas=METADATA.equal_quotas),
            **_cells("by rates", relying),
            **_cells("random", relying, scheduling="random"),
            **{
                name: cell
                for quotas in METADATA.swept_quotas
                for name, cell in _cells(f"{quotas[0]}:{quotas[1]}", relying, quotas=quotas).items()
            },
        },
        [
            Claim(
                "always-faster",
                "Priority and value-oriented scheduling is always faster than random and sequential scheduling.",
                "always outperforms",
                _faster(lambda pattern: (f"priority {pattern}", f"random {pattern}"), "faster"),
            ),
            Claim(
                "by-rates",
                "So it is with quotas in the proportion of the rates, which keep the state small.",
                "no quotas given",
                _faster(lambda pattern: (f"by rates {pattern}", f"random {pattern}"), "faster"),
            ),
            Claim("by-quotas", "There are quotas with which it is.", "no quotas given", _by_quotas),
        ],
        _panels(
            "seconds",
            "seconds",
            {
                "priority": "priority, value-oriented",
                "by rates": "priority, quotas by rates",
                "random": "random, sequential",
            },
            "Time",
        ),
    ),
    Experiment(
        "meta-9/10",
        "figures 9 and 10",
        _PAPER,
        "Time and state beside a join that forgets nothing",
        {
            **_cells("mjoin", relying, every=METADATA.batch, propagate=False),
            **_cells("xjoin", forgetting_nothing),
            **_cells("xjoin at random", forgetting_nothing, quotas=METADATA.equal_quotas, at_random=True),
            "mjoin little": Cell(relying, every=METADATA.batch, propagate=False, **_LITTLE),
            "xjoin little": Cell(forgetting_nothing, **_LITTLE),
        },
        [
            Claim("flat", "MJoin's state stays flat while XJoin's grows.", "flat against growing", _flat),
            Claim("overtakes", "With enough results MJoin takes less time.", "from 7,500 results on", _overtakes),
            Claim("slower-at-first", "At first, MJoin takes more time.", "up to 7,500 results", _slower_at_first),
            Claim("slower-than-random", "So it does beside XJoin in random turns.", "up to 7,500 results",
                  lambda results: _slower_at_first(results, "xjoin at random")),
            Claim(
                "overflow",
                "Where XJoin's state overflows memory, MJoin's does not, and it gains more.",
                "disk is far slower than memory",
                _no_overflow,
            ),
        ],
        _both(
            _panels("seconds", "seconds", {"mjoin": "MJoin, purge every 100", "xjoin": "XJoin"}, "Time"),
            _panels("rows", "rows in memory", {"mjoin": "MJoin, purge every 100", "xjoin": "XJoin"}, "State"),
        ),
        key=True,
    ),
    Experiment(
        "meta-11",
        "figure 11",
        _PAPER,
        "Purging at once, or for many punctuations together",
        {
            **_cells("immediate", relying, ("random",), every=1, propagate=False),
            **_cells("batch", relying, ("random",), every=METADATA.batch, propagate=False),
            **_cells("by index", relying, ("random",), every=1, propagate=False, search="index"),
        },
        [
            Claim("batch-faster", "Batch purging takes less time.", "immediate purging takes more", _batch_faster),
            Claim("smallest", "Immediate purging has the smallest state.", "minimal memory overhead", _smallest_state),
        ],
        _both(
            _panels(
                "seconds", "seconds",
                {"immediate": "every 1", "batch": "every 100", "by index": "every 1, found by index"}, "Time",
            ),
            _panels("rows", "rows in memory", {"immediate": "every 1", "batch": "every 100"}, "State"),
        ),
    ),
]  # fmt: skip
