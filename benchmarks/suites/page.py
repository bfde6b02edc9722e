"""`python -m benchmarks.suites.page`: docs/benchmarks.md and its pictures, of the figures in benchmarks/results/.

On top stands, for each rival, the geometric mean of our figures to its, over the questions that both answered. Where
one of these means is above 1 we lose, and benchmarks/reasons.toml says why: by suite, setting and rival.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.figures import replace_text
from benchmarks.suites.catalogue import SUITES
from benchmarks.suites.contestant import DONE
from benchmarks.suites.model import OURS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
REASONS = ROOT / "benchmarks" / "reasons.toml"
PAGE = ROOT / "docs" / "benchmarks.md"
METRICS = {"seconds": "time", "growth": "memory", "first": "first row"}
LEAST = {"seconds": 1e-3, "growth": 1e6, "first": 1e-3}
"""What is less is not told apart."""
LEVEL = 1.0
_COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Ours, and those of the others, which everybody can tell apart (Okabe and Ito's)."""

_INTRODUCTION = """\
# Benchmarks

Made by `python -m benchmarks.suites.page` of the figures in `benchmarks/results/`, which
`watersmeet bench suite NAME --peers --json FILE` has written; [each benchmark by itself](measurements.md) is about
single properties, with targets. Every contestant of a question runs in a process of its own, in turns, on as many
threads as ours, after going through a few rows; its result is compared with ours, by the number of rows and by a sum
over all of them. *Time* is that to the last row, *memory* by how much the process grew beyond its idle state, *first
row* the time to the first result. A rival that ran out of memory or failed is in the tables as such.
"""
_NOTHING = """\
## Where we win, where we lose

No figures have been taken yet. `watersmeet bench suite all --peers --scale 0.1 --json benchmarks/results` takes them.
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours beside one rival in one setting of a suite."""

    suite: str
    setting: str
    rival: str
    answered: int
    asked: int
    ratios: Mapping[str, float]
    """Ours to the rival's, by metric, over what both answered."""
    ended: str
    """How the rival ended elsewhere."""

    @property
    def lost(self) -> list[str]:
        """The metrics in which ours needs more."""
        return [name for name, ratio in self.ratios.items() if ratio > LEVEL]


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The figures of suites, in the order of the catalogue."""
    return {
        name: json.loads((folder / f"{name}.json").read_text())
        for name in SUITES
        if (folder / f"{name}.json").is_file()
    }


def comparisons(told: Mapping[str, Any]) -> list[Comparison]:
    """Ours beside every rival of a suite, setting by setting."""
    suite = SUITES[told["suite"]]
    runs = {(each["question"], each["setting"], each["contestant"]): each for each in told["runs"]}
    found = []
    for setting in dict.fromkeys(each["setting"] for each in told["runs"]):
        names = dict.fromkeys(each["contestant"] for each in told["runs"] if each["setting"] == setting)
        for rival in names:
            if rival.startswith(OURS) and rival not in suite.beside:
                continue
            own = suite.beside.get(rival, OURS)
            pairs = [
                (runs[question, setting, own], each)
                for (question, where, name), each in runs.items()
                if (where, name) == (setting, rival)
            ]
            both = [pair for pair in pairs if all(each["outcome"] == DONE for each in pair)]
            ratios = {
                metric: geometric_mean([_at_least(ours, metric) / _at_least(theirs, metric) for ours, theirs in both])
                for metric in METRICS
                if both
            }
            ended = sorted({theirs["outcome"] for _, theirs in pairs if theirs["outcome"] != DONE})
            found.append(Comparison(suite.name, setting, rival, len(both), len(pairs), ratios, " or ".join(ended)))
    return found


def _at_least(run: Mapping[str, Any], metric: str) -> float:
    return max(LEAST[metric], float(run[metric]))


# -- the page ----------------------------------------------------------------------------------------------------------


def text(results: Mapping[str, Mapping[str, Any]], reasons: Mapping[str, Any]) -> str:
    """The whole page."""
    if not results:
        return f"{_INTRODUCTION}\n{_NOTHING}"
    every = [each for told in results.values() for each in comparisons(told)]
    parts = [_INTRODUCTION, _summary(every, reasons), *(_section(told) for told in results.values())]
    return "\n".join(parts)


def _summary(every: Sequence[Comparison], reasons: Mapping[str, Any]) -> str:
    lines = [
        "## Where we win, where we lose",
        "",
        "Ours to the rival's, geometric means: below 1 we need less.",
        "",
        "| suite | setting | rival | time | memory | first row | answered |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in every:
        cells = [_ratio(each.ratios.get(metric)) for metric in METRICS]
        answered = f"{each.answered} of {each.asked}" + (f", else {each.ended}" if each.ended else "")
        lines.append(
            f"| [{each.suite}](#{each.suite}) | {each.setting} | {each.rival} | {' | '.join(cells)} | {answered} |"
        )
    losses = [each for each in every if each.lost]
    lines += ["", "We lose:" if losses else "There is no row in which we need more."]
    for each in losses:
        what = ", ".join(f"{_ratio(each.ratios[name], False)} the {METRICS[name]}" for name in each.lost)
        why = reasons.get(each.suite, {}).get(each.setting, {}).get(each.rival, "Not explained yet.")
        lines.append(f"- {each.suite}, {each.setting}, {each.rival}: {what}. {why}")
    return "\n".join(lines) + "\n"


def _ratio(ratio: float | None, bold: bool = True) -> str:
    if ratio is None:
        return ""
    words = f"{ratio:.2f} x" if ratio < 10 else f"{ratio:.0f} x"
    return f"**{words}**" if bold and ratio > LEVEL else words


def _section(told: Mapping[str, Any]) -> str:
    suite = SUITES[told["suite"]]
    machine, versions = told["machine"], told["versions"]
    lines = [
        f"## {suite.name}",
        "",
        f"{suite.title}. {suite.taken}",
        "",
        f"Scale {told['scale']:g}, {told['turns']} {'turn' if told['turns'] == 1 else 'turns, medians'}, "
        f"{told['taken']}, load {told['load'][0]:g} before and {told['load'][1]:g} after, which the suite is part of. "
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory'] / 2**30:.0f} GiB, {machine['system']}, "
        f"Python {machine['python']}, {', '.join(f'{name} {number}' for name, number in versions.items())}.",
        "",
        f"![Time and memory of all contestants, {suite.name}](images/suite-{suite.name}.png)",
        "",
        "| question | setting | contestant | allowed | time | processor time | first row | memory | rows | agrees |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(_cells(each))} |" for each in told["runs"]]
    return "\n".join(lines) + "\n"


def _cells(run: Mapping[str, Any]) -> list[str]:
    head = [run["question"], run["setting"], run["contestant"], "" if run["limit"] is None else _bytes(run["limit"])]
    if run["outcome"] != DONE:
        return [*head, f"**{run['outcome']}**", "", "", "", "", ""]
    times = [f"{run[name]:.2f} s" for name in ("seconds", "cpu", "first")]
    agrees = {True: "yes", False: "**no**", None: ""}[run["agrees"]]
    return [*head, *times, _bytes(run["growth"]), f"{run['rows']:,}", agrees]


def _bytes(count: float) -> str:
    return f"{count / 1e6:,.0f} MB"


# -- pictures ----------------------------------------------------------------------------------------------------------


def draw(told: Mapping[str, Any], path: Path) -> None:
    """Time and memory of every contestant: as lines where questions are sizes, else as bars."""
    from matplotlib.figure import Figure

    suite = SUITES[told["suite"]]
    asked = list(dict.fromkeys((each["question"], each["setting"]) for each in told["runs"]))
    names = list(dict.fromkeys(each["contestant"] for each in told["runs"]))
    runs = {(each["question"], each["setting"], each["contestant"]): each for each in told["runs"]}
    figure = Figure(figsize=(10, 1.2 + 0.16 * len(asked) * (len(names) + 1)), layout="constrained")
    if suite.lines:
        figure.set_size_inches(10, 3.4)
    for ax, metric, scale, unit in zip(
        figure.subplots(1, 2, sharey=not suite.lines), ("seconds", "growth"), (1, 1e6), ("s", "MB"), strict=True
    ):
        for place, name in enumerate(names):
            measured = [runs.get((*each, name)) for each in asked]
            values = [
                max(LEAST[metric], each[metric]) / scale
                if each is not None and each["outcome"] == DONE
                else float("nan")
                for each in measured
            ]
            colour = _COLOURS[place % len(_COLOURS)]
            if suite.lines:
                ax.plot([question for question, _ in asked], values, label=name, color=colour, marker="o", markersize=4)
            else:
                spots = [number + (place + 0.5) / (len(names) + 1) for number in range(len(asked))]
                ax.barh(spots, values, 0.9 / (len(names) + 1), label=name, color=colour)
        ax.set_title(f"{METRICS[metric]} ({unit})", fontsize="medium")
        (ax.set_yscale if suite.lines else ax.set_xscale)("log")
        if not suite.lines:
            one = len({setting for _, setting in asked}) == 1
            labels = [question if one else f"{question}\n{setting}" for question, setting in asked]
            ax.set_yticks([number + 0.5 for number in range(len(asked))], labels, fontsize="small")
            ax.set_ylim(len(asked), 0)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize="small")
    figure.savefig(path, dpi=90)


def reasons() -> dict[str, Any]:
    """Why we lose where we do, by suite, setting and rival."""
    return tomllib.loads(REASONS.read_text())


def main() -> None:
    """Bring the page and its pictures up to date."""
    results = read(RESULTS)
    images = PAGE.parent / "images"
    for name, told in results.items():
        draw(told, images / f"suite-{name}.png")
    replace_text(PAGE, text(results, reasons()))
    print(f"{PAGE}: {', '.join(results) or 'no figures in ' + str(RESULTS)}")


if __name__ == "__main__":
    main()
