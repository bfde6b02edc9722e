"""One case of one suite, by its seed: what happened in it, counted the same for all suites."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from conformance.drivers import shed_case, spool_case
from conformance.premature import premature_case
from conformance.ways import WAYS, Way, operators, way
from watersmeet.checks.run import ConformanceError
from watersmeet.checks.suites import Suite, suites_of

BLOCK = 20
"""So many seeds in a row go one way: which checks a case goes through is told by its seed, twenty in turn."""
PROVEN_BY = 3 * BLOCK
"""After so many cases of a way all that it is to prove must have happened."""
_FIRST_LINES = 12


@dataclass(frozen=True)
class Trials:
    """The cases of an operator in a suite, spread over its ways."""

    operator: str
    suite: str
    ways: Mapping[str, Way]
    run: Callable[[int, Way], Counter[str]]
    """The case of a seed, in a way; what happened in it."""

    @property
    def name(self) -> str:
        """For the command line."""
        return f"{self.operator}/{self.suite}"

    def way_of(self, seed: int) -> str:
        """Which way the case of a seed goes, unless one is chosen."""
        return list(self.ways)[seed // BLOCK % len(self.ways)]


@dataclass
class Tally:
    """What happened in some cases."""

    happened: dict[str, Counter[str]] = field(default_factory=dict)
    """By way: what happened in how many cases, and how many results there were."""
    failed: list[tuple[str, int, str]] = field(default_factory=list)
    """Way, seed, and what was said."""
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        """Those of other cases, too."""
        for name, counts in other.happened.items():
            self.happened.setdefault(name, Counter()).update(counts)
        self.failed += other.failed
        self.seconds += other.seconds

    @property
    def total(self) -> Counter[str]:
        """Of all ways."""
        return sum(self.happened.values(), Counter())

    def unproven(self, trials: Trials) -> Iterator[str]:
        """Ways that were gone often enough, and what never happened on them."""
        for name, counts in self.happened.items():
            missing = sorted(trials.ways[name].proofs - set(+counts))
            if missing and counts["cases"] >= PROVEN_BY:
                yield f"{trials.name}/{name}: in {counts['cases']} cases never {', never '.join(missing)}"


def play(trials: Trials, seeds: Iterable[int], chosen: str | None = None, *, stop: bool = True) -> Tally:
    """Run the cases of these seeds, all in one way if it is chosen; with `stop`, none after the first that fails."""
    tally, began = Tally(), time.perf_counter()
    for seed in seeds:
        name = chosen or trials.way_of(seed)
        counts = tally.happened.setdefault(name, Counter())
        counts["cases"] += 1
        try:
            with trials.ways[name].taken():
                counts.update(trials.run(seed, trials.ways[name]))
        except Exception as error:
            tally.failed.append((name, seed, _said(error)))
            if stop:
                break
    tally.seconds = time.perf_counter() - began
    return tally


def _said(error: Exception) -> str:
    if isinstance(error, ConformanceError):
        lines = str(error).splitlines()
    else:
        lines = "".join(traceback.format_exception(error)).splitlines()[-_FIRST_LINES:]
    return "\n".join(lines[:_FIRST_LINES])


def again(trials: Trials, way_name: str, seed: int) -> str:
    """The line that runs a case again."""
    return f"make conformance ARGS=\"--only '{trials.name}/{way_name}' --seed {seed} --cases 1\""


# --- which trials there are ---


def _of_operator(operator_class: type[Any], suite: Suite) -> Callable[[int, Way], Counter[str]]:
    def run(seed: int, taken: Way) -> Counter[str]:
        chosen = taken.changed or operator_class
        return counted(suite.conform(chosen, 1, seed, **suite.given, **taken.options_of(seed)))

    return run


def counted(summary: Any) -> Counter[str]:
    """What the summary of one case tells, by name.

    >>> from watersmeet.checks import Summary
    >>> summary = Summary(1, 1, 0, 0, 0, 7, 30, (("int64", 1),), 0.1, events=(("flushed", 1),))
    >>> sorted(counted(summary).items())
    [('flushed', 1), ('results', 7), ('spilled', 1)]
    """
    told = {each.name: getattr(summary, each.name) for each in fields(summary)}
    events = dict(told.get("events", ()))
    numbers = {name: int(value) for name, value in told.items() if isinstance(value, int) and name not in _LEFT_OUT}
    return +Counter({**events, **numbers})


_LEFT_OUT = ("cases", "rows")


def _on_spark(stream: str) -> Callable[[int, Way], Counter[str]]:
    def run(seed: int, taken: Way) -> Counter[str]:
        from simulate.seeds import play as simulated
        from simulate.world import Trial

        trial = Trial(seed, stream=stream)
        outcome = simulated(trial)
        if outcome.error is not None:
            raise ConformanceError(f"{outcome}\n  again: {trial.again}") from outcome.error
        happened = Counter(dict.fromkeys(+outcome.steps, 1))
        happened["results"] = outcome.steps["results"]
        happened["spilled"] = happened.pop("runs that spilled", 0)
        happened["restored"] = int(outcome.steps["batches"] > 1 or outcome.steps["batches replayed"] > 0)
        return +happened

    return run


_SPARK_PROOFS = ("settled at the end of a batch", "flushed", "tasks retried", "batches replayed", "drivers died")
_SPARK: Mapping[str, tuple[str, ...]] = {
    "equality": _SPARK_PROOFS,
    "bands": _SPARK_PROOFS,
    "kinds": (*_SPARK_PROOFS, "rows without a partner settled"),
    "several inputs": _SPARK_PROOFS,
    "preserving": (*_SPARK_PROOFS, "rows without a partner settled"),
    "windows": ("flushed", "tasks retried", "batches replayed", "drivers died"),
    "windows of several inputs": ("flushed", "tasks retried", "batches replayed", "drivers died"),
    "windows of the papers": ("tasks retried", "batches replayed", "drivers died"),
    "as-of": ("tasks retried", "batches replayed", "drivers died"),
    "of the papers": ("tasks retried", "batches replayed", "drivers died"),
}
"""Queries on Spark, and what must happen in some of their cases."""


_AT_ONCE = way({}, "rows shed", "pairs lost", patches={"watersmeet.drivers.inbox.SHED_AFTER": 0.0})
"""Rows are let go as soon as a queue is full."""


def all_trials() -> list[Trials]:
    """Those of every operator and suite, of tasks on Spark, and of what drivers do."""
    found = [
        Trials(name, suite.name, WAYS[name, suite.name], _of_operator(operator_class, suite))
        for name, operator_class in operators()
        for suite in suites_of(operator_class)
    ]
    found += [Trials("on Spark", name, {"usual": way({}, *proofs)}, _on_spark(name)) for name, proofs in _SPARK.items()]
    return [
        *found,
        Trials("driver", "shed", {"usual": _AT_ONCE}, lambda seed, _: shed_case(seed)),
        Trials(
            "driver", "spool", {"usual": way({}, "rows on disk", "disk full", "killed")},
            lambda seed, _: spool_case(seed),
        ),
        Trials(
            "driver", "premature dumps",
            {name: way({"algorithm": name}, "premature dumps", "mature dumps") for name in ("ewj", "ah_ewj")},
            lambda seed, taken: premature_case(seed, **taken.options),
        ),
    ]  # fmt: skip


@cache
def by_name() -> dict[str, Trials]:
    """All of them."""
    return {trials.name: trials for trials in all_trials()}


def play_named(name: str, way_name: str | None, seeds: range, stop: bool) -> Tally:
    """The same as `play`, for another process."""
    return play(by_name()[name], seeds, way_name, stop=stop)
