"""One join of all inputs, or a tree of smaller ones? A model of what either costs.

A single operator keeps no intermediate results: what it found on the way to nothing it finds again the next time. A
tree keeps them: what it stores costs a hash and a move each. So a split into two groups of inputs pays if their
intermediate results cost less to store than to find and throw away [1]_.

The model counts operations and weighs them by their measured costs. Its formula for what is thrown away grows with the
product of a group's rows, so that it says yes to most splits of large inputs and cannot tell the better ones among
them. Therefore it only decides whether a split pays; of those that do, the one is taken that stores least, and of equal
ones the most even. Groups of up to three inputs are left whole.

.. [1] S. Viglas, J. Naughton, J. Burger: Maximizing the Output Rate of Multi-Way Join Queries over Streaming
   Information Sources, VLDB 2003, appendix A.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, prod
from numbers import Real

from watersmeet.core import html
from watersmeet.core.errors import SpecError
from watersmeet.core.join_tree import Branch, touching
from watersmeet.core.multi_spec import MultiSpec

_LEFT_WHOLE = 3


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds for an operation; the defaults were measured on a 1 GHz processor (table 3 of the paper)."""

    hash: float = 1.75e-7
    move: float = 4.27e-7
    comparison: float = 4.91e-8


@dataclass(frozen=True)
class Estimates:
    """Rows of each input, and by condition the share of all row pairs that match."""

    rows: tuple[float, ...]
    selectivities: tuple[float, ...]

    @classmethod
    def of(cls, spec: MultiSpec, rows: Mapping[str, float], selectivities: Sequence[float] | None = None) -> Estimates:
        """With no selectivities given, every condition is taken for one of a key and its references."""
        check_rows(rows)
        missing = [name for name in spec.names if name not in rows]
        if missing:
            raise SpecError(f"an estimate needs the rows of every input; there are none of {', '.join(missing)}")
        counts = tuple(float(rows[name]) for name in spec.names)
        if selectivities is None:
            selectivities = [1 / max(1.0, counts[edge.first], counts[edge.second]) for edge in spec.edges]
        shares = _shares(selectivities)
        if len(shares) != len(spec.edges):
            raise SpecError(f"there are {len(spec.edges)} conditions and {len(shares)} selectivities")
        return cls(counts, shares)

    def results(self, spec: MultiSpec, inputs: set[int]) -> float:
        """How many combinations of some inputs the conditions among them leave."""
        return prod(self._within(spec, inputs)) * prod(self.rows[i] for i in inputs)

    def _within(self, spec: MultiSpec, inputs: set[int]) -> list[float]:
        return [
            share
            for edge, share in zip(spec.edges, self.selectivities, strict=True)
            if edge.first in inputs and edge.second in inputs
        ]

    def split_cost(self, spec: MultiSpec, some: set[int], others: set[int], costs: Costs) -> float:
        """What storing the intermediate results of two groups costs (equation 3)."""
        stored = self.results(spec, some) + self.results(spec, others)
        return stored * (costs.hash + costs.move + costs.comparison)

    def discard_cost(self, spec: MultiSpec, some: set[int], others: set[int], costs: Costs) -> float:
        """What finding and throwing them away costs a single operator (equation 4)."""
        thrown = sum(
            sum(1 - share for share in self._within(spec, group)) * prod(self.rows[i] for i in group)
            for group in (some, others)
        )
        return thrown * costs.comparison


def check_rows(rows: Mapping[str, float]) -> None:
    """An error if numbers of rows are none, whether they turn out to be needed or not.

    >>> check_rows({"a": -1})
    Traceback (most recent call last):
    watersmeet.core.errors.SpecError: rows={'a': -1} is no number of rows; write about how many there are, 0 or more
    """
    if not isinstance(rows, Mapping):
        raise SpecError(f"rows={rows!r} does not say of which inputs; write rows={{'orders': 1000, ...}}")
    for name, count in rows.items():
        if not isinstance(count, Real) or not 0 <= count < inf:
            raise SpecError(
                f"rows={{{name!r}: {count!r}}} is no number of rows; write about how many there are, 0 or more"
            )


def _shares(selectivities: object) -> tuple[float, ...]:
    """The selectivities of all conditions, or an error.

    >>> _shares([0.5, 2])
    Traceback (most recent call last):
    watersmeet.core.errors.SpecError: selectivities has 2, which is no share of all row pairs; write one from 0 to 1
    """
    if isinstance(selectivities, str) or not isinstance(selectivities, Iterable):
        raise SpecError(f"selectivities={selectivities!r} must be a list with the share of each condition")
    shares = tuple(selectivities)
    for share in shares:
        if not isinstance(share, Real) or not 0 <= float(share) <= 1:
            raise SpecError(f"selectivities has {share!r}, which is no share of all row pairs; write one from 0 to 1")
    return tuple(map(float, shares))


@dataclass(frozen=True)
class Plan:
    """A tree, and what the model says of it; `print` it."""

    spec: MultiSpec
    tree: Branch
    estimates: Estimates

    @property
    def single(self) -> bool:
        """Whether one operator joins all inputs."""
        return all(isinstance(child, int) for child in self.tree.children)

    def __str__(self) -> str:
        return "\n".join(self._lines(self.tree, 0))

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        return html.block(str(self))

    def _lines(self, branch: int | Branch, depth: int) -> Iterator[str]:
        indent = "  " * depth
        if isinstance(branch, int):
            yield f"{indent}{self.spec.names[branch]}: {self.estimates.rows[branch]:,.0f} rows"
            return
        kind = "mjoin" if len(branch.children) > 2 or self.single else "xjoin"
        results = self.estimates.results(self.spec, set(branch.inputs))
        yield f"{indent}{kind} of {len(branch.children)}: about {results:,.0f} results"
        for child in branch.children:
            yield from self._lines(child, depth + 1)


def plan(spec: MultiSpec, estimates: Estimates, costs: Costs | None = None) -> Plan:
    """One operator, split wherever the model says that storing intermediate results costs less than losing them.

    >>> import pyarrow as pa
    >>> spec = MultiSpec.of(dict.fromkeys("rst", pa.schema({"a": pa.int64()})), ["r.a = s.a", "s.a = t.a"])
    >>> print(plan(spec, Estimates.of(spec, {"r": 10, "s": 10, "t": 10}, [0.9, 0.9])))
    mjoin of 3: about 810 results
      r: 10 rows
      s: 10 rows
      t: 10 rows
    """
    tree = _best(spec, estimates, frozenset(range(len(spec.names))), costs or Costs())
    assert isinstance(tree, Branch)
    return Plan(spec, tree, estimates)


def _best(spec: MultiSpec, estimates: Estimates, inputs: frozenset[int], costs: Costs) -> int | Branch:
    if len(inputs) == 1:
        return next(iter(inputs))
    paying = []
    for some, others in _splits(spec, inputs):
        stored = estimates.split_cost(spec, some, others, costs)
        if stored < estimates.discard_cost(spec, some, others, costs):
            paying.append((stored, max(len(some), len(others)), sorted(some), sorted(others)))
    if not paying or len(inputs) <= (_LEFT_WHOLE if inputs != frozenset(range(len(spec.names))) else 2):
        return Branch(tuple(sorted(inputs)))
    _, _, some_inputs, other_inputs = min(paying)
    first, second = (_best(spec, estimates, frozenset(group), costs) for group in (some_inputs, other_inputs))
    return Branch((first, second))


def _splits(spec: MultiSpec, inputs: frozenset[int]) -> Iterator[tuple[set[int], set[int]]]:
    """All ways to part inputs into two groups, each held together by conditions."""
    first, *rest = sorted(inputs)
    for size in range(len(rest)):
        for chosen in combinations(rest, size):
            some = {first, *chosen}
            others = set(inputs) - some
            if _connected(spec, some) and _connected(spec, others) and touching(some, others, spec):
                yield some, others


def _connected(spec: MultiSpec, inputs: set[int]) -> bool:
    reached = {min(inputs)}
    while True:
        more = {i for i in inputs - reached if touching(reached, {i}, spec)}
        if not more:
            return reached == inputs
        reached |= more
