"""MJoin by windows of rows, beside trees of binary joins that find the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from experiments.model import Cell, Claim, Experiment, Measured, Panel, Results, Verdict
from experiments.papers import MJOIN
from watersmeet.core.cost import Cost
from watersmeet.core.many_windows import ManyWindows
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Arrive, Status
from watersmeet.core.spec import Output
from watersmeet.core.windows import rows as last_rows
from watersmeet.drivers.cost_model import CostModel
from watersmeet.joins.window.windowed_mjoin import WindowedMJoin
from watersmeet.matching.multi_windows import MomentPlan, Moments, WindowClock
from watersmeet.records.plan import RowPlan
from watersmeet.sources.schedules import poisson
from watersmeet.spill.store import MemoryStore

_NAMES = ("s1", "s2", "s3")
_MEMORY = 1 << 28
_POINTS = 60
_SECONDS_AT_ONCE = 1.0


class Plan(Protocol):
    """Something that takes rows of three inputs and counts results."""

    @property
    def cost(self) -> Cost:
        """All work so far."""
        ...

    def feed(self, number: int, values: np.ndarray) -> None:
        """Work off the next rows of an input."""
        ...


class Single:
    """One MJoin of all inputs."""

    def __init__(self, window: int) -> None:
        schema = pa.schema({"v": pa.int64()})
        on = ["s1.v = s2.v", "s2.v = s3.v", "s1.v = s3.v"]
        spec = MultiSpec.of(dict.fromkeys(_NAMES, schema), on, Output.COUNTS, _windows(window, 3))
        self._join = WindowedMJoin(spec, _MEMORY, MemoryStore())

    @property
    def cost(self) -> Cost:
        """All work so far."""
        return self._join.cost

    def feed(self, number: int, values: np.ndarray) -> None:
        """Work off the next rows of an input."""
        self._join.receive(Arrive(number, pa.record_batch({"v": values})))
        _drain(self._join)


class NodeClock(WindowClock):
    """The clock of a whole tree, as one of its joins sees it: moments come with the rows."""

    def __init__(self, spec: MultiSpec, tree: WindowClock, parts: Sequence[Sequence[int]]) -> None:
        super().__init__(spec)
        self.spans, self.rows, self.newest, self.closed = tree.spans, tree.rows, tree.newest, tree.closed
        self._parts = parts

    def read(self, number: int, batch: pa.RecordBatch, numbers: np.ndarray, newest: int) -> Moments:
        """The rows' moments are columns."""
        columns = tuple(batch.column(f"m{leaf}").to_numpy() for leaf in self._parts[number])
        return Moments(columns, None, None, None, numbers, newest)

    def reach(self, number: int, newest: int, rows: int) -> None:
        """The tree knows."""

    def close(self, closed: Sequence[bool]) -> None:
        """The tree knows."""


class Node(WindowedMJoin):
    """A join of two inputs, each of which may be the result of another join."""

    @classmethod
    def _make_plan(cls, spec: MultiSpec, number: int, exact_hash: bool) -> RowPlan:
        return MomentPlan(spec, number, exact_hash, len(spec.input(number)) - 1)


class WindowTree:
    """Two binary joins, the one's results an input of the other; an intermediate result expires with any of its rows.

    Intermediate results carry the numbers of the rows that they are made of, so that the tree finds what MJoin finds.
    """

    def __init__(self, window: int, below: tuple[int, int]) -> None:
        (above,) = {0, 1, 2} - set(below)
        self._below, self._above = below, above
        spec = MultiSpec.of(
            dict.fromkeys(_NAMES, pa.schema({"v": pa.int64()})), ["s1.v = s2.v", "s2.v = s3.v"], Output.COUNTS,
            _windows(window, 3),
        )  # fmt: skip
        self._clock = WindowClock(spec)
        self._lower = self._node([(leaf,) for leaf in below], Output.ROWS, window)
        self._upper = self._node([below, (above,)], Output.COUNTS, window)

    def _node(self, parts: Sequence[tuple[int, ...]], output: Output, window: int) -> Node:
        schemas = {
            name: pa.schema({"v": pa.int64(), **{f"m{leaf}": pa.int64() for leaf in leaves}})
            for name, leaves in zip("xy", parts, strict=True)
        }
        spec = MultiSpec.of(schemas, "x.v = y.v", output, _windows(window, 2))
        node = Node(spec, _MEMORY, MemoryStore())
        node.timed.parts = parts
        node.timed.clock = NodeClock(spec, self._clock, parts)
        return node

    @property
    def cost(self) -> Cost:
        """All work so far; results are those of the top."""
        lower = self._lower.cost
        return lower - Cost(results=lower.results) + self._upper.cost

    def feed(self, number: int, values: np.ndarray) -> None:
        """Work off the next rows of an input."""
        first = self._clock.rows[number]
        self._clock.rows[number] += len(values)
        batch = pa.record_batch({"v": values, f"m{number}": np.arange(first, first + len(values))})
        if number == self._above:
            self._upper.receive(Arrive(1, batch))
        else:
            self._lower.receive(Arrive(self._below.index(number), batch))
            for found in _drain(self._lower):
                self._upper.receive(Arrive(0, found))
        _drain(self._upper)


def _windows(window: int, inputs: int) -> ManyWindows:
    return ManyWindows((last_rows(window),) * inputs)


def _drain(join: WindowedMJoin) -> list[pa.RecordBatch]:
    found = []
    while True:
        step = join.poll(0.0, 1 << 20)
        if step.out is not None:
            found.append(step.out)
        if step.status is not Status.HAS_OUTPUT:
            return found


def windowed(scale: float, seed: int, plan: str, attribute: str) -> Measured:
    """Three inputs on a key, or on an attribute of which a window holds each value about once."""
    random = np.random.default_rng(seed)
    rows = max(30, round(MJOIN.window_tuples * scale))
    window = max(3, round(MJOIN.window * scale))
    values = rows if attribute == "key" else window
    tables = [random.permutation(np.arange(rows) % values) for _ in _NAMES]
    times = [poisson(rows, 1 / gap, seed * 10 + i) for i, gap in enumerate(MJOIN.window_gaps)]
    below = {"high": (0, 1), "low": (1, 2)}
    operator: Plan = Single(window) if plan == "mjoin" else WindowTree(window, below[plan])
    # At any scale there are as many batches.
    ends = np.arange(_SECONDS_AT_ONCE * scale, float(max(each[-1] for each in times)) + 1, _SECONDS_AT_ONCE * scale)
    taken = [0] * len(_NAMES)
    cpu, found = [], []
    for end in ends:
        for number, column in enumerate(tables):
            stop = int(np.searchsorted(times[number], end, "right"))
            if stop > taken[number]:
                operator.feed(number, column[taken[number] : stop])
                taken[number] = stop
        cpu.append(CostModel().seconds(operator.cost)[0])
        found.append(float(operator.cost.results))
    points = np.linspace(0, len(ends) - 1, _POINTS).astype(np.int64)
    return Measured(
        {
            "cpu": cpu[-1], "total": found[-1], "moves": float(operator.cost.inserts),
            "comparisons": float(operator.cost.comparisons),
        },
        {"results": (np.array(cpu)[points], np.array(found)[points])},
    )  # fmt: skip


_ATTRIBUTES = ("tenk", "key")
_PLANS = {"mjoin": "MJoin", "high": "tree, fast input at the top", "low": "tree, fast input below"}


def _mjoin_first(attribute: str) -> Callable[[Results], Verdict]:
    def check(results: Results) -> Verdict:
        cpu = {plan: results.median(f"{plan}, {attribute}", "cpu") for plan in _PLANS}
        told = ", ".join(f"{plan} {seconds:.3f} s" for plan, seconds in cpu.items())
        lead = min(cpu["high"], cpu["low"]) / cpu["mjoin"]
        return Verdict(lead > 1, f"{told} of CPU; the better tree takes {lead:.2f}x MJoin's")

    return check


def _same_results(results: Results) -> Verdict:
    same, told = [], []
    for attribute in _ATTRIBUTES:
        totals = {results.median(f"{plan}, {attribute}", "total") for plan in _PLANS}
        moves = ", ".join(f"{plan} {results.median(f'{plan}, {attribute}', 'moves'):,.0f}" for plan in _PLANS)
        same.append(len(totals) == 1 and min(totals) > 0)
        told.append(f"{attribute}: {totals.pop():,.0f} results; rows moved: {moves}")
    return Verdict(all(same), "; ".join(told))


def _panels(results: Results) -> Sequence[Panel]:
    return [
        Panel(
            f"On the {attribute} attribute",
            "CPU seconds",
            "results",
            {label: results.curve(f"{plan}, {attribute}", "results") for plan, label in _PLANS.items()},
        )
        for attribute in _ATTRIBUTES
    ]


EXPERIMENTS = [
    Experiment(
        "mjoin-13",
        "figure 13",
        "MJoin",
        "Windows of 10,000 tuples over three inputs",
        {
            f"{plan}, {attribute}": Cell(windowed, plan=plan, attribute=attribute)
            for attribute in _ATTRIBUTES
            for plan in _PLANS
        },
        [
            Claim(
                "mjoin-first",
                "MJoin is the fastest plan, on an attribute of 10,000 values.",
                "the MJoin plan is faster",
                _mjoin_first("tenk"),
            ),
            Claim("on-keys", "So it is on keys.", "the attribute is not told", _mjoin_first("key")),
            Claim("same-results", "All plans find the same.", "the same query", _same_results),
        ],
        _panels,
        note=(
            "All windows fit into memory, and each plan gets the same rows in batches of a second; what differs is the "
            "counted CPU time. Intermediate results of the trees expire with any of their rows."
        ),
    )
]
