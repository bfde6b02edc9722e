"""Two checkouts in turns: `python -m benchmarks.versus OLD NEW NAME... [--repeat 5] [--scale F] [--json FILE]`.

Each turn is a fresh process of this interpreter with a checkout's own sources and benchmarks, and measures once; who
goes first alternates. What is told are medians, and whether the new one's is within 5% of the old one's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures import replace_text
from watersmeet.core.errors import SpecError, WatersmeetError

CLOSE = 0.05
WARMING = 0.01
"""The scale of a first turn, which compiles and does not count."""
WHERE = "import benchmarks, watersmeet; print(benchmarks.__file__, watersmeet.__file__, sep='\\n')"


class Checkout:
    """A tree with `src` and `benchmarks`."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).resolve()
        if not all((self.path / part).is_dir() for part in ("src", "benchmarks")):
            raise SpecError(f"{self.path} is no checkout: it has no src and benchmarks")
        strange = [each for each in self._python("-c", WHERE).split() if not Path(each).is_relative_to(self.path)]
        if strange:
            raise SpecError(f"a process in {self.path} would import {', '.join(strange)}; look at what is installed")
        listed = self._python("-m", "benchmarks", "--list").splitlines()
        self.names = [line.split()[0] for line in listed if not line.startswith("suite ")]

    def figures(self, name: str, scale: float) -> list[dict[str, Any]]:
        """What a fresh process measures once."""
        with tempfile.TemporaryDirectory() as place:
            target = Path(place) / "figures.json"
            self._python("-m", "benchmarks", name, "--repeat", "1", "--scale", str(scale), "--json", str(target))
            found: list[dict[str, Any]] = json.loads(target.read_text())
            return found

    def _python(self, *arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (self.path / "src", self.path)))}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.path, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or ["results were wrong"]
            raise WatersmeetError(f"python {' '.join(arguments)} in {self.path} failed: {said[0]}")
        return done.stdout


@dataclass
class Pair:
    """One figure, as measured by both."""

    bench: str
    metric: str
    unit: str
    runs: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    @property
    def medians(self) -> list[float]:
        """The old one's, and the new one's."""
        return [median(each) for each in self.runs]

    @property
    def ratio(self) -> float | None:
        """New to old."""
        old, new = self.medians
        return new / old if old else None

    @property
    def close(self) -> bool:
        """Within 5%."""
        return abs(self.ratio - 1) <= CLOSE if self.ratio is not None else self.medians[1] == 0

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        told = {"bench": self.bench, "metric": self.metric, "unit": self.unit, "ratio": self.ratio, "close": self.close}
        return told | dict(zip(("old", "new"), self.medians, strict=True)) | {"runs": list(self.runs)}

    def line(self) -> str:
        """As people read it."""
        old, new = (f"{each:,.4g}" if abs(each) < 1000 else f"{each:,.0f}" for each in self.medians)
        ratio = "" if self.ratio is None else f"{self.ratio:.3f}"
        return f"  {self.metric:<42}{old:>12}{new:>12} {self.unit:<9}{ratio:>7}  {'yes' if self.close else 'NO'}"


def compare(trees: Sequence[Checkout], name: str, repeat: int, scale: float) -> tuple[list[Pair], list[str]]:
    """The figures that both have, and the names of those that one of them lacks."""
    pairs: dict[str, Pair] = {}
    for tree in trees:
        tree.figures(name, min(scale, WARMING))
    for turn in range(repeat):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            for each in trees[which].figures(name, scale):
                if each["value"] is not None:
                    pair = pairs.setdefault(each["metric"], Pair(name, each["metric"], each["unit"]))
                    pair.runs[which].append(each["value"])
    return [each for each in pairs.values() if all(each.runs)], [
        key for key, each in pairs.items() if not all(each.runs)
    ]


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versus", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trees", nargs=2, metavar="TREE", help="the old checkout, and the new one")
    parser.add_argument("names", nargs="+", metavar="NAME", help="which benchmarks")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="turns of each (default %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, metavar="F", help="size of the inputs, 1 being full")
    parser.add_argument("--json", metavar="FILE", help="write the figures here, too")
    args = parser.parse_args(arguments)
    if args.repeat < 1:
        raise SpecError("a benchmark is repeated at least once")
    trees = [Checkout(path) for path in args.trees]
    records: list[dict[str, Any]] = []
    print(f"  {f'medians of {args.repeat}':<42}{'old':>12}{'new':>12} {'':<9}{'ratio':>7}  within 5%")
    for name in args.names:
        lacking = [str(tree.path) for tree in trees if name not in tree.names]
        if lacking:
            print(f"{name}: left out, {' and '.join(lacking)} has no such benchmark", flush=True)
            continue
        pairs, alone = compare(trees, name, args.repeat, args.scale)
        print(f"{name}:", *(pair.line() for pair in pairs), sep="\n", flush=True)
        if alone:
            print(f"  only one has: {'; '.join(alone)}", flush=True)
        records += [pair.record() for pair in pairs]
        if args.json is not None:
            replace_text(Path(args.json).absolute(), json.dumps(records, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except WatersmeetError as error:
        sys.exit(f"versus: {error}")
