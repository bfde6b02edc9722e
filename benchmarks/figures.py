"""What was measured, against its target: as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the value, or on its ratio to the peer's.

    >>> str(Target("<=", 0.8, of_ratio=True)), Target(">=", 2.0).holds(value=3.0, ratio=None)
    ('<= 0.8 x', True)
    """

    sign: str
    bound: float
    of_ratio: bool = False

    def holds(self, value: float | None, ratio: float | None) -> bool | None:
        """Whether it is reached; None if there is nothing to compare with."""
        measured = ratio if self.of_ratio else value
        if measured is None:
            return None
        return measured <= self.bound if self.sign == "<=" else measured >= self.bound

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:.4g}" + (" x" if self.of_ratio else "")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; `peer` is the peer's, in the same unit."""

    metric: str
    value: float | None
    unit: str
    peer: float | None = None
    target: Target | None = None

    @property
    def ratio(self) -> float | None:
        """Ours to the peer's."""
        return self.value / self.peer if self.value is not None and self.peer else None

    def judged(self, full: bool) -> bool | None:
        """Whether the target is reached; targets are about inputs of full size, so others are not judged."""
        return self.target.holds(self.value, self.ratio) if self.target is not None and full else None

    def record(self, bench: str, full: bool) -> dict[str, object]:
        """The figure as JSON has it."""
        return {
            "bench": bench,
            "metric": self.metric,
            "value": self.value,
            "unit": self.unit,
            "peer": self.peer,
            "ratio": self.ratio,
            "target": None if self.target is None else str(self.target),
            "holds": self.judged(full),
        }


def exactness(wrong: int, what: str = "wrong results") -> Figure:
    """How many results were missing, surplus or other than they should be: none, or nothing else counts."""
    return Figure(what, wrong, "", target=Target("<=", 0))


HEADING = f"  {'':<30}{'ours':>15}{'peer':>10}{'ratio':>6}  {'target':<10}holds"


def lines(figures: Iterable[Figure], full: bool) -> list[str]:
    """The figures as lines of a table.

    >>> print(*lines([Figure("total", 1.5, "s", 2.0, Target("<=", 0.8, of_ratio=True))], full=True))
      total                                   1.5 s       2 s  0.75  <= 0.8 x  yes
    """
    words = {True: "yes", False: "NO", None: ""}
    return [
        f"  {figure.metric:<30}{_amount(figure.value, figure.unit):>15}{_amount(figure.peer, figure.unit):>10}"
        f"{'' if figure.ratio is None else f'{figure.ratio:.2f}':>6}  {figure.target or ''!s:<10}"
        f"{words[figure.judged(full)]}".rstrip()
        for figure in figures
    ]


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} {unit}".strip() if abs(value) >= 1000 else f"{value:.3g} {unit}".strip()


def write(path: Path, records: list[dict[str, object]]) -> None:
    """All figures as a JSON list."""
    replace_text(path, json.dumps(records, indent=2) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Write a file; one that exists is replaced at once."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)
