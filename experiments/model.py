"""What an experiment is: cells to run, claims about what they gave, panels to draw."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from watersmeet.core.arrays import Float64


@dataclass(frozen=True)
class Measured:
    """What one cell gave with one seed: numbers, and curves as (x, y)."""

    values: Mapping[str, float]
    curves: Mapping[str, tuple[Float64, Float64]] = field(default_factory=dict)


class Measure(Protocol):
    """Runs one cell; a function of a module, so that other processes can call it."""

    def __call__(self, scale: float, seed: int, **arguments: Any) -> Measured:
        """The same scale, seed and arguments give the same numbers, on any machine."""
        ...


class Cell:
    """One thing to run: a function and its arguments, apart from scale and seed."""

    def __init__(self, measure: Callable[..., Measured], **arguments: Hashable) -> None:
        self.measure = measure
        self.arguments = arguments

    @property
    def key(self) -> Hashable:
        """Equal for cells that would give the same."""
        return self.measure.__module__, self.measure.__qualname__, tuple(sorted(self.arguments.items()))

    def run(self, scale: float, seed: int) -> Measured:
        """Measure."""
        return self.measure(scale, seed, **self.arguments)


@dataclass(frozen=True)
class Spread:
    """The median of the seeds, the lowest and the highest.

    >>> str(Spread.of([2.0, 1.0, 4.0])), f"{Spread.of([0.5]):.0%}", f"{Spread.of([0.5, 0.25, 0.75]):.0%}"
    ('2 (1..4)', '50%', '50% (25%..75%)')
    """

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of one value for each seed."""
        each = np.array(list(values), np.float64)
        return cls(float(each.min()), float(np.median(each)), float(each.max()))

    def __format__(self, form: str) -> str:
        low, median, high = (format(value, form or ".3g") for value in (self.low, self.median, self.high))
        return median if low == high else f"{median} ({low}..{high})"

    def __str__(self) -> str:
        return format(self)


@dataclass(frozen=True)
class Line:
    """Points to be drawn as one line, with the range over the seeds."""

    x: Float64
    y: Float64
    low: Float64
    high: Float64


class Results:
    """What all cells of an experiment gave, for all seeds."""

    def __init__(self, scale: float, seeds: Sequence[int], measured: Mapping[str, Sequence[Measured]]) -> None:
        self.scale = scale
        self.seeds = tuple(seeds)
        self._measured = measured

    @property
    def cells(self) -> set[str]:
        """What was run."""
        return set(self._measured)

    def each(self, cell: str, value: str) -> Float64:
        """A value of a cell, for each seed."""
        return np.array([one.values[value] for one in self._measured[cell]], np.float64)

    def median(self, cell: str, value: str) -> float:
        """The median of a value over the seeds."""
        return float(np.median(self.each(cell, value)))

    def spread(self, cell: str, value: str) -> Spread:
        """Median and range of a value over the seeds."""
        return Spread.of(self.each(cell, value))

    def ratio(self, cell: str, other: str, value: str) -> Spread:
        """How many times as much one cell has as another: the ratio for each seed, then median and range."""
        below = self.each(other, value)
        above = self.each(cell, value)
        return Spread.of(np.divide(above, below, out=np.full_like(above, np.inf), where=below != 0))

    def curve(self, cell: str, name: str) -> Line:
        """A curve of a cell, point by point the median over the seeds; x is the median, too."""
        pairs = [one.curves[name] for one in self._measured[cell]]
        x = np.median([x for x, _ in pairs], axis=0)
        return _line(x, np.array([y for _, y in pairs]))

    def sweep(self, xs: Sequence[float], cells: Sequence[str], value: str, over: Sequence[str] | None = None) -> Line:
        """One value along several cells; with `over`, as a share of other cells' value."""
        each = np.array([self.each(cell, value) for cell in cells])
        if over is not None:
            each = each / np.array([self.each(cell, value) for cell in over])
        return _line(np.array(xs, np.float64), each.T)


def _line(x: Float64, ys: Float64) -> Line:
    return Line(x, np.median(ys, axis=0), ys.min(axis=0), ys.max(axis=0))


@dataclass(frozen=True)
class Panel:
    """One set of axes: labelled lines."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Line]
    log_y: bool = False


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and what was measured, in a few words."""

    holds: bool
    measured: str


@dataclass(frozen=True)
class Claim:
    """What a paper says, as something that can be checked."""

    name: str
    """Short, lower case, with hyphens: what `reasons.toml` calls it."""
    text: str
    """The claim in our words."""
    paper: str
    """What the paper reports, in a few words."""
    check: Callable[[Results], Verdict]


@dataclass(frozen=True)
class Experiment:
    """A figure or a few of them: what to run, what is claimed, what to draw."""

    id: str
    figure: str
    paper: str
    title: str
    cells: Mapping[str, Cell]
    claims: Sequence[Claim]
    panels: Callable[[Results], Sequence[Panel]]
    key: bool = False
    """Whether its picture belongs into the page of results."""
    fixed: bool = False
    """Whether nothing is random in it, so that one seed tells all."""
    note: str = ""
    """What a reader should know about its scale or its data, in a sentence or two."""

    @property
    def names(self) -> list[str]:
        """Every way to ask for it: `diner-7/8` is also `diner-7`, `diner-8` and `diner-7-8`."""
        group, _, numbers = self.id.partition("-")
        parts = [f"{group}-{number}" for number in numbers.split("/")] if "/" in numbers else []
        return [self.id, *parts, self.file_name]

    @property
    def file_name(self) -> str:
        """Its id as the name of a file."""
        return self.id.replace("/", "-")


def always(label: str, holds: Mapping[str, bool]) -> Verdict:
    """A claim about several cases: it holds if it does in each, and otherwise says where it does not.

    >>> always("RPJ first", {"harmony 1:1": True, "reverse 1:1": False})
    Verdict(holds=False, measured='RPJ first in 1 of 2; not in reverse 1:1')
    """
    failing = [case for case, fine in holds.items() if not fine]
    counted = f"{label} in {len(holds) - len(failing)} of {len(holds)}"
    return Verdict(not failing, counted + (f"; not in {', '.join(failing)}" if failing else ""))
