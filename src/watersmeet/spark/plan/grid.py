"""A grid of groups for joins of several inputs that are not all joined on one value.

Each value that inputs share is an axis with a number of shares. A row goes to the share of each value that it has, and
to every share of those it has not: a chain `r.a = s.a, s.b = t.b, t.c = u.c` in 2 x 2 groups by `a` and `c`::

            c in share 0    c in share 1
    a in 0  ┌─────────────┬─────────────┐      r and s know a: their rows go along a row of the grid
            │   group 0   │   group 1   │      t and u know c: theirs go down a column
    a in 1  ├─────────────┼─────────────┤      a result has one a and one c: it is found in one group
            │   group 2   │   group 3   │
            └─────────────┴─────────────┘

With 64 groups in one row, each would have a 64th of r and s and all of t and u; with 8 x 8 it has an eighth of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from watersmeet.core.multi_spec import MultiSpec

MOST_COPIES = 1.5
"""How often a row is kept, on average over inputs of one size, where nobody says how many groups there are to be."""


@dataclass(frozen=True)
class Axis:
    """A value by which rows are sent, and into how many shares it is divided."""

    columns: tuple[tuple[int, ...], ...]
    """Of each input, those that hold the value (a key may be several); none: its rows go to all shares."""
    shares: int


@dataclass(frozen=True)
class Grid:
    """To which groups the rows of each input go."""

    axes: tuple[Axis, ...]

    @property
    def groups(self) -> int:
        """How many there are."""
        return prod(axis.shares for axis in self.axes)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """By how much the number of a group grows with its share of each value."""
        return tuple(prod(axis.shares for axis in self.axes[place + 1 :]) for place in range(len(self.axes)))

    def known(self, number: int) -> list[int]:
        """The axes whose value an input has."""
        return [place for place, axis in enumerate(self.axes) if axis.columns[number]]

    def copies(self, number: int) -> list[int]:
        """What is added to the first of an input's groups for each of them: 0 alone if its rows are not copied.

        >>> grid = Grid((Axis(((0,), (0,), ()), 2), Axis(((), (1,), (0,)), 3)))
        >>> grid.copies(0), grid.copies(1), grid.copies(2)
        ([0, 1, 2], [0], [0, 3])
        """
        others = [place for place, axis in enumerate(self.axes) if not axis.columns[number]]
        shares = product(*(range(self.axes[place].shares) for place in others))
        return [sum(i * self.strides[place] for i, place in zip(each, others, strict=True)) for each in shares]

    def is_first(self, number: int, group: int) -> bool:
        """Whether a group is the first of those that have a copy of an input's rows."""
        others = (place for place, axis in enumerate(self.axes) if not axis.columns[number])
        return all(group // self.strides[place] % self.axes[place].shares == 0 for place in others)


def values_of(spec: MultiSpec) -> list[tuple[tuple[int, ...], ...]]:
    """The values that rows may be sent by: of each input, the column that holds it.

    Columns that conditions make equal, directly or through others, are of one value. The preserved input is never
    copied: only values count that it has. Those that most inputs have come first.

    >>> import pyarrow as pa
    >>> schema = pa.schema({"a": pa.int64(), "b": pa.int64()})
    >>> inputs = {name: schema for name in "rst"}
    >>> values_of(MultiSpec.of(inputs, ["r.a = s.a", "s.a = t.b"]))
    [((0,), (0,), (1,))]
    >>> values_of(MultiSpec.of(inputs, ["r.a = s.a", "s.b = t.b"]))
    [((0,), (0,), ()), ((), (1,), (1,))]
    >>> values_of(MultiSpec.of(inputs, ["r.a = s.a", "s.b = t.b"], how={"t": "left"}))
    [((), (1,), (1,))]
    """
    classes: list[set[tuple[int, str]]] = []
    for edge in spec.edges:
        if edge.width is None:
            ends = {(edge.first, edge.first_column), (edge.second, edge.second_column)}
            touched = [each for each in classes if each & ends]
            classes = [each for each in classes if not each & ends]
            classes.append(ends.union(*touched))
    if spec.preserved is not None:
        classes = [each for each in classes if any(number == spec.preserved for number, _ in each)]
    order = [(edge.first, edge.first_column) for edge in spec.edges]
    classes.sort(key=lambda each: min(order.index(end) for end in each if end in order))
    classes.sort(key=lambda each: -len({number for number, _ in each}))
    return [tuple(_column_of(spec, number, each) for number in range(len(spec.names))) for each in classes]


def _column_of(spec: MultiSpec, number: int, ends: set[tuple[int, str]]) -> tuple[int, ...]:
    names = sorted(column for of, column in ends if of == number)
    return (spec.input(number).get_field_index(names[0]),) if names else ()


def grid_for(spec: MultiSpec, most: int, copies: float | None = None) -> Grid:
    """The grid of at most so many groups whose tasks have the fewest rows if all inputs are equally large.

    :param copies: how often a row may be kept, on average; as often as need be unless given

    >>> import pyarrow as pa
    >>> schema = pa.schema({"a": pa.int64(), "b": pa.int64()})
    >>> chain = MultiSpec.of({name: schema for name in "rstu"}, ["r.a = s.a", "s.b = t.a", "t.b = u.a"])
    >>> [axis.shares for axis in grid_for(chain, 16).axes]
    [4, 4]
    >>> [axis.shares for axis in grid_for(chain, 200, MOST_COPIES).axes]
    [2]
    """
    values = values_of(spec)
    best, least = (1,) * len(values), float(len(spec.names))
    for shares in _divisions(len(values), most):
        rows = sum(
            1 / prod(share for share, value in zip(shares, values, strict=True) if value[number])
            for number in range(len(spec.names))
        )
        kept = rows * prod(shares) / len(spec.names)
        if rows < least - 1e-9 and (copies is None or kept <= copies + 1e-9):
            best, least = shares, rows
    axes = [Axis(value, share) for share, value in zip(best, values, strict=True) if share > 1]
    nothing: tuple[tuple[int, ...], ...] = ((),) * len(spec.names)
    return Grid(tuple(axes) or (Axis(values[0] if values else nothing, 1),))


def _divisions(values: int, most: int) -> Iterator[tuple[int, ...]]:
    """Shares of so many values, at most so many groups: any number of the last one's, and round ones of the others'.

    >>> sorted(_divisions(2, 4))
    [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1)]
    """
    if not values:
        return
    if values == 1:
        yield from ((share,) for share in _round(most))
        return
    for share in _round(most):
        for others in _divisions(values - 1, most // share):
            yield (share, *others)


def _round(most: int) -> Sequence[int]:
    """Powers of two and half more, and the most."""
    found = {1 << k for k in range(most.bit_length())} | {3 << k for k in range(most.bit_length())}
    return sorted({each for each in found if each <= most} | {most})
