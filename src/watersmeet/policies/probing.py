"""In which order the rows of one input are looked up in the others.

The fewer partial combinations a look-up leaves, the less work the following ones have: so of the inputs that are joined
with those looked up already, the one whose rows match least comes next [1]_. How often rows match is counted while
the join runs, by edge and direction; or, for another measure, by edge alone [2]_. What was long ago counts less and
less: inputs change, and endless ones do so without end.

.. [1] S. Viglas, J. Naughton, J. Burger: Maximizing the Output Rate of Multi-Way Join Queries over Streaming
   Information Sources, VLDB 2003, section 2.2.
.. [2] M. A. Bornea, V. Vassalos, Y. Kotidis and A. Deligiannakis: Adaptive join operators for result rate
   optimization on streaming inputs, IEEE Transactions on Knowledge and Data Engineering 22(8), 2010, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.report import Probing
from watersmeet.core.saved import Saved

_REMEMBERED = 1 << 16
"""Look-ups at one end of an edge: whenever they become twice as many, all that was counted counts half."""


@dataclass(frozen=True, slots=True)
class Step:
    """A look-up in one input: by which edge, and which edges must hold besides."""

    input: int
    edge: int
    side: int
    """The end of the edge at which the input is."""
    closing: tuple[tuple[int, int], ...] = ()
    """Edges to other inputs that were looked up before, with the end at which this input is."""


class ProbingOrder(Saved):
    """Counts matches, and derives the order of look-ups for each input.

    >>> import pyarrow as pa
    >>> schema = pa.schema({"a": pa.int64()})
    >>> spec = MultiSpec.of({name: schema for name in "rst"}, ["r.a = s.a", "r.a = t.a"])
    >>> order = ProbingOrder(spec)
    >>> order.count(0, 1, looked_up=10, found=100); order.count(1, 1, looked_up=10, found=2)
    >>> [step.input for step in order.of(0)]
    [2, 1]
    """

    SAVED: ClassVar[tuple[str, ...]] = ("_looked_up", "_found")

    def __init__(self, spec: MultiSpec, fixed: Sequence[Sequence[int]] | None = None) -> None:
        """`fixed` pins the order: for each input, the others as they are to be looked up."""
        self._spec = spec
        self._fixed = fixed
        self._ends = [
            (number, side, edge.input(side), edge.input(1 - side))
            for number, edge in enumerate(spec.edges)
            for side in (0, 1)
        ]
        self._looked_up = [[0, 0] for _ in spec.edges]
        self._found = [[0, 0] for _ in spec.edges]

    def count(self, edge: int, side: int, looked_up: int, found: int) -> None:
        """So many rows were looked up at one end of an edge, and so many matches found there."""
        self._looked_up[edge][side] += int(looked_up)
        self._found[edge][side] += int(found)
        while self._looked_up[edge][side] >= 2 * _REMEMBERED:
            self._looked_up[edge][side] //= 2
            self._found[edge][side] //= 2

    def matches(self, edge: int, side: int) -> float:
        """How many rows at one end of an edge a row of the other end matches, as far as is known."""
        return (self._found[edge][side] + 1) / (self._looked_up[edge][side] + 1)

    def measure(self, edge: int, side: int) -> float:
        """What decides between look-ups: the least comes first."""
        return self.matches(edge, side)

    def of(self, driver: int) -> list[Step]:
        """The look-ups for rows of one input, in their order."""
        bound, order = {driver}, []
        measured = [(self.measure(number, side), number, side, here, there) for number, side, here, there in self._ends]
        while len(bound) < len(self._spec.names):
            edges = [each for each in measured if each[3] not in bound and each[4] in bound]
            if self._fixed is not None:
                wanted = next(i for i in self._fixed[driver] if i in {here for *_, here, _ in edges})
                edges = [each for each in edges if each[3] == wanted]
            best = min(edges)
            _, number, side, target, _ = best
            closing = tuple((e, s) for _, e, s, here, _ in edges if here == target and (e, s) != (number, side))
            order.append(Step(target, number, side, closing))
            bound.add(target)
        return order

    def figures(self) -> Probing:
        """For people."""
        names = self._spec.names
        return Probing(
            tuple(edge.words(names) for edge in self._spec.edges),
            tuple((edge.first, edge.second) for edge in self._spec.edges),
            tuple((self.matches(number, 0), self.matches(number, 1)) for number in range(len(self._spec.edges))),
            tuple(tuple(step.input for step in self.of(driver)) for driver in range(len(names))),
        )


class SteadyOrder(ProbingOrder):
    """Thinks again only when a good part more has been looked up than when it last did, for all inputs alike; or when
    as much as is remembered has.

    >>> import pyarrow as pa
    >>> schema = pa.schema({"a": pa.int64()})
    >>> spec = MultiSpec.of({name: schema for name in "rst"}, ["r.a = s.a", "r.a = t.a"])
    >>> order = SteadyOrder(spec)
    >>> order.count(0, 1, looked_up=1000, found=2000); [step.input for step in order.of(0)]
    [2, 1]
    >>> order.count(1, 1, looked_up=100, found=9000); [step.input for step in order.of(0)]
    [2, 1]
    >>> order.count(1, 1, looked_up=900, found=9000); [step.input for step in order.of(0)]
    [1, 2]
    """

    def __init__(self, spec: MultiSpec) -> None:
        super().__init__(spec)
        self._known: dict[int, list[Step]] = {}
        self._seen = self._due = 0

    def count(self, edge: int, side: int, looked_up: int, found: int) -> None:
        """So many rows were looked up at one end of an edge, and so many matches found there."""
        super().count(edge, side, looked_up, found)
        self._seen += looked_up
        if self._seen >= self._due:
            self._known = {}
            self._due = self._seen + min(self._seen // 4, _REMEMBERED)

    def of(self, driver: int) -> list[Step]:
        """The look-ups for rows of one input, in their order."""
        if driver not in self._known:
            self._known[driver] = super().of(driver)
        return self._known[driver]

    def load(self, state: dict[str, Any]) -> None:
        """Take over a snapshot's counts."""
        super().load(state)
        self._known = {}


class SelectivityOrder(ProbingOrder):
    """Orders look-ups by the share of all pairs of rows in memory that match: the selectivity factor of an edge.

    The pairs found since the last flush are counted, and divided by how many there could be: as many as rows were
    looked up, for each row that is there. A row of many partial combinations is looked up once for each, so that the
    pairs alone would tell how late an edge comes, and not how rarely it matches. A flush begins to count anew; until
    the next one, look-ups go by what had been counted by then.

    >>> import pyarrow as pa
    >>> schema = pa.schema({"a": pa.int64()})
    >>> spec = MultiSpec.of({name: schema for name in "rstu"}, ["r.a = s.a", "s.a = t.a", "t.a = u.a"])
    >>> order = SelectivityOrder(spec)
    >>> order.count(0, 0, looked_up=10, found=40); order.count(1, 1, looked_up=10, found=9)
    >>> order.count(2, 0, looked_up=10, found=80); order.flushed([10, 10, 10, 10])
    >>> [round(factor, 2) for factor in order.factors], [spec.names[step.input] for step in order.of(1)]
    ([0.4, 0.09, 0.8], ['t', 'r', 'u'])
    """

    SAVED: ClassVar[tuple[str, ...]] = ("factors",)

    def __init__(self, spec: MultiSpec) -> None:
        super().__init__(spec)
        self.factors: list[float] = []
        """By edge, as of the last flush."""

    def flushed(self, rows: Sequence[int]) -> None:
        """Rows of some inputs leave memory, where each has had so many."""
        if not any(map(any, self._looked_up)):
            return
        self.factors = self.factors or [0.0 for _ in self._spec.edges]
        for number, edge in enumerate(self._spec.edges):
            possible = sum(self._looked_up[number][side] * rows[edge.input(side)] for side in (0, 1))
            if possible:
                self.factors[number] = sum(self._found[number]) / possible
        self._found = [[0, 0] for _ in self._spec.edges]
        self._looked_up = [[0, 0] for _ in self._spec.edges]

    def measure(self, edge: int, side: int) -> float:
        """The selectivity factor; before the first flush, how often rows match."""
        return self.factors[edge] if self.factors else self.matches(edge, side)


def join_sequences(spec: MultiSpec, outer: int) -> list[set[int]]:
    """The inputs that hang together without the outer one: each such group is a sequence of joins of its own.

    >>> import pyarrow as pa
    >>> schema = pa.schema({"a": pa.int64()})
    >>> spec = MultiSpec.of({name: schema for name in "rstu"}, ["r.a = s.a", "s.a = t.a", "t.a = u.a"])
    >>> join_sequences(spec, 1), join_sequences(spec, 0)
    ([{0}, {2, 3}], [{1, 2, 3}])
    """
    found: list[set[int]] = []
    for start in range(len(spec.names)):
        if start == outer or any(start in group for group in found):
            continue
        group, waiting = {start}, [start]
        while waiting:
            for other in spec.neighbours(waiting.pop()):
                if other != outer and other not in group:
                    group.add(other)
                    waiting.append(other)
        found.append(group)
    return found


def nesting(spec: MultiSpec, outer: int, order: ProbingOrder) -> list[Step]:
    """The look-ups of a nested loop from an outer input: one sequence of joins within the other.

    The sequence that matches least is gone through least often, the others within it: they have the priority.
    """
    steps = order.of(outer)
    groups = join_sequences(spec, outer)
    rank = {step.input: i for i, step in enumerate(steps)}
    groups.sort(key=lambda group: min(rank[number] for number in group))
    place = {number: i for i, group in enumerate(groups) for number in group}
    return sorted(steps, key=lambda step: place[step.input])
