"""In which order the rows of one input are looked up in the others.

The fewer partial combinations a look-up leaves, the less work the following ones have: so of the inputs that are joined
with those looked up already, the one whose rows match least comes next [1]_. How often rows match is counted while
the join runs, by edge and direction.

.. [1] S. Viglas, J. Naughton, J. Burger: Maximizing the Output Rate of Multi-Way Join Queries over Streaming
   Information Sources, VLDB 2003, section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from watersmeet.core.multi_spec import MultiSpec


@dataclass(frozen=True, slots=True)
class Step:
    """A look-up in one input: by which edge, and which edges must hold besides."""

    input: int
    edge: int
    side: int
    """The end of the edge at which the input is."""
    closing: tuple[tuple[int, int], ...] = ()
    """Edges to other inputs that were looked up before, with the end at which this input is."""


class ProbingOrder:
    """Counts matches, and derives the order of look-ups for each input.

    >>> import pyarrow as pa
    >>> schema = pa.schema({"a": pa.int64()})
    >>> spec = MultiSpec.of({name: schema for name in "rst"}, ["r.a = s.a", "r.a = t.a"])
    >>> order = ProbingOrder(spec)
    >>> order.count(0, 1, looked_up=10, found=100); order.count(1, 1, looked_up=10, found=2)
    >>> [step.input for step in order.of(0)]
    [2, 1]
    """

    def __init__(self, spec: MultiSpec, fixed: Sequence[Sequence[int]] | None = None) -> None:
        """`fixed` pins the order: for each input, the others as they are to be looked up."""
        self._spec = spec
        self._fixed = fixed
        self._looked_up = np.zeros((len(spec.edges), 2), np.int64)
        self._found = np.zeros((len(spec.edges), 2), np.int64)

    def count(self, edge: int, side: int, looked_up: int, found: int) -> None:
        """So many rows were looked up at one end of an edge, and so many matches found there."""
        self._looked_up[edge, side] += looked_up
        self._found[edge, side] += found

    def matches(self, edge: int, side: int) -> float:
        """How many rows at one end of an edge a row of the other end matches, as far as is known."""
        return float((self._found[edge, side] + 1) / (self._looked_up[edge, side] + 1))

    def of(self, driver: int) -> list[Step]:
        """The look-ups for rows of one input, in their order."""
        bound, order = {driver}, []
        while len(bound) < len(self._spec.names):
            edges = [
                (number, side)
                for number, edge in enumerate(self._spec.edges)
                for side in (0, 1)
                if edge.input(side) not in bound and edge.input(1 - side) in bound
            ]
            if self._fixed is not None:
                wanted = next(i for i in self._fixed[driver] if i in {self._spec.edges[e].input(s) for e, s in edges})
                edges = [(e, s) for e, s in edges if self._spec.edges[e].input(s) == wanted]
            best = min(edges, key=lambda end: (self.matches(*end), end))
            target = self._spec.edges[best[0]].input(best[1])
            closing = tuple(end for end in edges if end != best and self._spec.edges[end[0]].input(end[1]) == target)
            order.append(Step(target, *best, closing))
            bound.add(target)
        return order

    def to_state(self) -> dict[str, Any]:
        """The counts for a snapshot."""
        return {"looked_up": self._looked_up.tolist(), "found": self._found.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """Take over a snapshot's counts."""
        self._looked_up = np.array(state["looked_up"], np.int64)
        self._found = np.array(state["found"], np.int64)
