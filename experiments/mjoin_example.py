"""The worked example of the MJoin paper, section 2.7: arrivals, overflow, a stall, and clean-up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from experiments.model import Cell, Claim, Experiment, Line, Measured, Panel, Results, Verdict
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Arrive, End, Stall, Status
from watersmeet.core.spec import Output
from watersmeet.joins.multiway.mjoin import MJoin
from watersmeet.policies.flush import Victims
from watersmeet.spill.store import MemoryStore

_KEY = pa.schema({"v": pa.string()})
_MEMORY = 1 << 20

Found = list[tuple[str, str, str]]
"""Results as the tuples of the three inputs, each a value with its arrival."""


class Example:
    """Three inputs of one attribute, with one partition each, whose tuples leave memory when the example says so."""

    def __init__(self) -> None:
        names = ("s1", "s2", "s3")
        spec = MultiSpec.of(dict.fromkeys(names, _KEY), ["s1.v = s2.v", "s2.v = s3.v"], Output.PAIRS)
        order = {"s1": ("s2", "s3"), "s2": ("s1", "s3"), "s3": ("s2", "s1")}
        self.join = MJoin(spec, _MEMORY, MemoryStore(), probing=order)
        self._victim = 0
        self.join.overflow.policy = self._victims
        self._labels: list[list[str]] = [[], [], []]

    def arrive(self, number: int, *tuples: str) -> Found:
        """Tuples such as d10 arrive on an input."""
        self._labels[number] += tuples
        self.join.receive(Arrive(number, pa.record_batch({"v": [each[0] for each in tuples]}, _KEY)))
        return self._work(Status.NEED_INPUT)

    def overflow(self, number: int) -> None:
        """What an input has in memory goes to disk."""
        self._victim = number
        assert self.join._make_room()

    def _victims(self, in_memory: np.ndarray, on_disk: np.ndarray, tick: int) -> Victims:
        return {self._victim: np.flatnonzero(in_memory[self._victim]).tolist()}

    def block(self) -> Found:
        """All inputs block."""
        self.join.receive(Stall())
        return self._work(Status.NEED_INPUT)

    def end(self) -> Found:
        """All inputs end."""
        for number in range(3):
            self.join.receive(End(number))
        return self._work(Status.DONE)

    def _work(self, until: Status) -> Found:
        found: Found = []
        while True:
            step = self.join.poll(0.0, 100)
            if step.out is not None:
                for row in step.out.to_pylist():
                    first, second, third = (self._labels[i][number] for i, number in enumerate(row.values()))
                    found.append((first, second, third))
            if step.status is until:
                return found


def figures() -> dict[str, Found]:
    """What comes out in figures 6 to 9, and in the end; a tuple is a value and its arrival.

    The tuples that the figures have beside those of the text match nothing, and are left out.
    """
    example = Example()
    found = {"before": example.arrive(1, "d3")}
    found["before"] += example.arrive(0, "d5")
    example.overflow(1)  # d3-7
    example.overflow(0)  # d5-9
    found["before"] += example.arrive(0, "d10", "b12") + example.arrive(1, "b13", "f14")
    found["f"] = example.arrive(2, "f15")
    found["b"] = example.arrive(2, "b16")
    example.overflow(2)  # as in figure 8
    found["d"] = example.arrive(2, "d17")
    found["blocked"] = example.block()
    found["end"] = example.end()
    return found


EXPECTED: dict[str, Found] = {
    "before": [],
    "f": [],
    "b": [("b12", "b13", "b16")],
    "d": [],
    "blocked": [("d10", "d3", "d17")],
    "end": [("d5", "d3", "d17")],
}


def example(scale: float, seed: int) -> Measured:
    """How often each moment of the example gave just what the paper says."""
    found = figures()
    counts = np.cumsum([float(len(each)) for each in found.values()])
    values = {moment: float(sorted(found[moment]) == sorted(expected)) for moment, expected in EXPECTED.items()}
    return Measured(values, {"results": (np.arange(len(counts), dtype=np.float64), counts)})


def _exactly(*moments: str) -> object:
    def check(results: Results) -> Verdict:
        told = figures()
        shown = "; ".join(
            f"{moment}: {', '.join('{' + ', '.join(each) + '}' for each in told[moment]) or 'nothing'}"
            for moment in moments
        )
        return Verdict(all(results.median("example", moment) == 1 for moment in moments), shown)

    return check


def _panels(results: Results) -> Sequence[Panel]:
    line: Line = results.curve("example", "results")
    return [Panel("Results of the example", "moment", "results so far", {"MJoin": line})]


EXPERIMENTS = [
    Experiment(
        "mjoin-example",
        "section 2.7, figures 6-9",
        "MJoin",
        "The worked example",
        {"example": Cell(example)},
        [
            Claim(
                "arrivals",
                "Of f, b and d, which arrive on the third input, b makes a result.",
                "one result, of b",
                _exactly("f", "b", "d"),  # type: ignore[arg-type]
            ),
            Claim(
                "blocked",
                "While the inputs block, the second input's disk brings one result.",
                "{d10, d3-7, d17}",
                _exactly("blocked"),  # type: ignore[arg-type]
            ),
            Claim(
                "clean-up",
                "Clean-up brings the other result of d, and not the one that came before.",
                "{d5-9, d3-7, d17}",
                _exactly("end"),  # type: ignore[arg-type]
            ),
        ],
        _panels,
        fixed=True,
    )
]
