"""Claims as a table, as JSON and as a page; panels as CSV and PNG."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from experiments import charges
from experiments.model import Claim, Experiment, Panel, Results, Verdict

_STYLES: dict[str, dict[str, Any]] = {
    "DINER": {"color": "#0072B2"},
    "RPJ": {"color": "#E69F00"},
    "RPJ-md": {"color": "#56B4E9"},
    "RPJ-dd": {"color": "#009E73", "linestyle": "--"},
    "HMJ": {"color": "#009E73"},
    "XJoin": {"color": "#CC79A7"},
    "Confluence": {"color": "black", "marker": "D", "markersize": 3.5, "linewidth": 1.8, "zorder": 3},
}
"""Joins that look the same in all figures, in colours which everybody can tell apart (Okabe and Ito's)."""
_WORDS = {True: "yes", False: "NO"}


@dataclass(frozen=True)
class Outcome:
    """An experiment that was run: its claims with verdicts, and its panels."""

    experiment: Experiment
    scale: float
    seeds: int
    verdicts: Sequence[tuple[Claim, Verdict]]
    panels: Sequence[Panel]

    @classmethod
    def of(cls, experiment: Experiment, results: Results) -> Outcome:
        """Judge what was measured."""
        verdicts = [(claim, claim.check(results)) for claim in experiment.claims]
        return cls(experiment, results.scale, len(results.seeds), verdicts, experiment.panels(results))

    def records(self) -> list[dict[str, Any]]:
        """One record for each claim, as JSON has it."""
        return [
            {
                "id": self.experiment.id,
                "claim": claim.text,
                "paper": claim.paper,
                "measured": verdict.measured,
                "holds": bool(verdict.holds),
            }
            for claim, verdict in self.verdicts
        ]


@cache
def reasons() -> dict[str, dict[str, str]]:
    """Why claims do not hold, by experiment and claim."""
    return tomllib.loads(Path(__file__).with_name("reasons.toml").read_text())


# -- the terminal ------------------------------------------------------------------------------------------------------


def show(outcome: Outcome, width: int | None = None) -> None:
    """The claims as a table that fits the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    experiment = outcome.experiment
    console = Console(width=width, highlight=False)
    title = Text(f"{experiment.id}  {experiment.title}  ({experiment.paper}, {experiment.figure})")
    table = Table(title=title, title_justify="left", title_style="bold", show_lines=True, expand=True)
    for heading, ratio in (("claim", 4), ("paper", 3), ("measured", 4)):
        table.add_column(heading, ratio=ratio, overflow="fold")
    table.add_column("holds?", width=6, no_wrap=True)
    for claim, verdict in outcome.verdicts:
        style = "green" if verdict.holds else "bold red"
        table.add_row(Text(claim.text), Text(claim.paper), Text(verdict.measured), Text(_WORDS[verdict.holds], style))
    console.print(table)
    for name, reason in _failing(outcome):
        console.print(Text(f"  {name}: {reason}", style="dim"))


def show_summary(outcomes: Sequence[Outcome]) -> None:
    """How many claims hold, in one line."""
    from rich.console import Console

    verdicts = [verdict for outcome in outcomes for _, verdict in outcome.verdicts]
    holding = sum(verdict.holds for verdict in verdicts)
    scales = ", ".join(sorted({f"{outcome.scale:g}" for outcome in outcomes}))
    seeds = _seeds(max((outcome.seeds for outcome in outcomes), default=0))
    Console(highlight=False).print(f"{holding} of {len(verdicts)} claims hold, at scale {scales}, with {seeds}")


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def _failing(outcome: Outcome) -> list[tuple[str, str]]:
    known = reasons().get(outcome.experiment.id, {})
    return [
        (claim.name, known.get(claim.name, "not explained yet."))
        for claim, verdict in outcome.verdicts
        if not verdict.holds
    ]


# -- files -------------------------------------------------------------------------------------------------------------


def write_json(path: Path, outcomes: Sequence[Outcome]) -> None:
    """All claims as a JSON list; a file that exists is replaced at once."""
    _replace(path, json.dumps([record for outcome in outcomes for record in outcome.records()], indent=2) + "\n")


def write_files(outcome: Outcome, folder: Path) -> None:
    """The panels' points as CSV, and drawn as PNG."""
    name = outcome.experiment.file_name
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["panel", "line", "x", "median", "low", "high"])
        for panel in outcome.panels:
            for label, line in panel.lines.items():
                for point in zip(line.x, line.y, line.low, line.high, strict=True):
                    writer.writerow([panel.title, label, *(f"{value:.10g}" for value in point)])
    if outcome.panels:
        draw(outcome, folder / f"{name}.png")


def draw(outcome: Outcome, path: Path, dpi: int = 110) -> None:
    """The panels side by side, at most two in a row; the range over the seeds is shaded."""
    from matplotlib.figure import Figure

    panels = outcome.panels
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns + 0.6, 3.1 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    labels = [list(panel.lines) for panel in panels]
    alike = len(labels[0]) > 1 and all(each == labels[0] for each in labels)
    for ax, panel in zip(axes.flat, panels, strict=False):
        for label, line in panel.lines.items():
            few = len(line.x) <= 16
            style = {"linewidth": 1.3, "marker": "o" if few else None, "markersize": 3} | _STYLES.get(label, {})
            (drawn,) = ax.plot(line.x, line.y, label=label, markevery=1 if few else len(line.x) // 10, **style)
            ax.fill_between(line.x, line.low, line.high, color=drawn.get_color(), alpha=0.18, linewidth=0)
        ax.set_title(panel.title, fontsize="medium")
        ax.set_xlabel(panel.x)
        ax.set_ylabel(panel.y)
        if panel.log_y:
            ax.set_yscale("log")
        else:
            ax.set_ylim(bottom=0)
        if len(panel.lines) > 1 and not alike:
            ax.legend(frameon=False, fontsize="small")
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    if alike:  # one legend for all panels, where it hides no line
        handles, _ = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels[0], loc="outside lower center", ncols=6, frameon=False, fontsize="small")
    experiment = outcome.experiment
    figure.suptitle(
        f"{experiment.id}: {experiment.title} ({experiment.paper}, {experiment.figure})", fontsize="medium", wrap=True
    )
    figure.savefig(path, dpi=dpi)


# -- the page ----------------------------------------------------------------------------------------------------------

_INTRODUCTION = """\
# The papers' experiments, run again

Each table below is one figure, or a few, of the papers that Watersmeet's joins come from: what the paper claims, and
what our operators did in the simulator, in virtual time. The page is generated, experiment by experiment, and each
says its scale (1 is the paper's data) and its number of seeds:

```
watersmeet reproduce all --scale 1 --keep measured --markdown docs/reproduction.md
```

"Online" results are those delivered before the last input row arrived. Numbers are medians over the seeds, with the
range in parentheses. Work is charged by the papers' own constants (`experiments/papers.py`), never by a clock, so the
same command gives the same page on any machine. A claim that does not hold is followed by the reason.
"""
_OURS = {
    "confluence-most": ("most at every time", "has the most results at every time."),
    "confluence-online": ("95% online", "of all results when the last row arrives."),
    "confluence-clean-up": ("shortest clean-up", "clean-up is the shortest."),
}
"""Claims about our own join that are told for all experiments together: of each, a heading, and how it ends."""
_OURS_INTRODUCTION = """\
## Our own join, at a glance

In how many cases of each experiment Confluence has the most results at every time, has at least 95% of all when the
last row arrives, and has the shortest clean-up. Where that is not so in each, the reason is with the experiment.

"""
_SCALE = re.compile(r"Scale ([0-9.]*[0-9])")
_COUNTED = re.compile(r"\d+ of \d+")
_SECTION = re.compile(r"^<!-- experiment (\S+), charges (\d+) -->\n(.*?)^<!-- end -->\n", re.MULTILINE | re.DOTALL)
_EARLIER = re.compile(r"^\*Measured with the charges of an earlier version.*\*\n\n", re.MULTILINE)
"""What the page says by itself of a section's charges, right above the section's table."""
_TABLE = "| claim | paper | measured | holds? |\n"


Sections = dict[str, tuple[int, str]]
"""By experiment: the charges that it was measured with, and what the page has of it."""


def write_page(path: Path, outcome: Outcome, order: Sequence[str]) -> None:
    """Bring an experiment's section of the page up to date; what was measured for the other sections stays."""
    sections = sections_of(path.read_text()) if path.is_file() else {}
    sections[outcome.experiment.id] = charges.NOW, _section(outcome, path)
    _replace(path, page(sections, order))


def sections_of(text: str) -> Sections:
    """The sections of a page, without what the page says of their charges."""
    return {name: (int(number), _EARLIER.sub("", body)) for name, number, body in _SECTION.findall(text)}


def page(sections: Sections, order: Sequence[str]) -> str:
    """The whole page: nothing of it is written by hand."""
    known = [each for each in order if each in sections]
    parts = []
    for each in known:
        number, body = sections[each]
        scale = _SCALE.search(body)
        earlier = charges.told(each, number, float(scale[1]) if scale else 1.0)
        if earlier:
            body = body.replace(_TABLE, f"*{earlier}*\n\n{_TABLE}", 1)
        parts.append(f"<!-- experiment {each}, charges {number} -->\n{body}<!-- end -->\n")
    missing = [each for each in order if each not in sections]
    absent = f"Not run for this page: {', '.join(missing)}.\n\n" if missing else ""
    glance = at_a_glance({each: sections[each][1] for each in known})
    return f"{_INTRODUCTION}\n{absent}{glance}{chr(10).join(parts)}"


def at_a_glance(sections: Mapping[str, str]) -> str:
    """What sections of the page say of our own join, in one table; nothing if none does.

    >>> line = "| Confluence has the most results at every time. | ours | first in 1 of 2; not in x | **no** |"
    >>> print(at_a_glance({"rpj-8": f"RPJ. Scale 0.1, one seed. {chr(10)}{line}"}).splitlines()[-2])
    | rpj-8 | 0.1 | **1 of 2** |  |  |
    """
    rows = []
    for name, section in sections.items():
        cells = [_told(section, ending) for _, ending in _OURS.values()]
        if any(cells):
            scale = _SCALE.search(section)
            rows.append([name, scale[1] if scale else "", *cells])
    if not rows:
        return ""
    head = ["experiment", "scale", *(heading for heading, _ in _OURS.values())]
    lines = [head, ["---"] * len(head), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{_OURS_INTRODUCTION}{table}\n\n"


def _told(section: str, ending: str) -> str:
    """In how many cases a claim of this ending holds, as the section's table says."""
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) == 4 and cells[0].startswith("Confluence") and cells[0].endswith(ending):
            counted = _COUNTED.search(cells[2])
            told = counted[0] if counted else cells[3].strip("*")
            return told if cells[3] == "yes" else f"**{told}**"
    return ""


def _section(outcome: Outcome, path: Path) -> str:
    experiment = outcome.experiment
    said = f"{experiment.paper}, {experiment.figure}. Scale {outcome.scale:g}, {_seeds(outcome.seeds)}."
    lines = [
        f"## {experiment.id}: {experiment.title}",
        "",
        " ".join([said, experiment.note]).strip(),
        "",
        "| claim | paper | measured | holds? |",
        "|---|---|---|---|",
    ]
    for claim, verdict in outcome.verdicts:
        cells = (claim.text, claim.paper, verdict.measured, "yes" if verdict.holds else "**no**")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    for name, reason in _failing(outcome):
        lines += ["", f"*{name}*: {reason}"]
    if experiment.key and outcome.panels:
        images = path.absolute().parent / "images"
        images.mkdir(exist_ok=True)
        draw(outcome, images / f"{experiment.file_name}.png", dpi=80)
        lines += ["", f"![{experiment.title}](images/{experiment.file_name}.png)"]
    return "\n".join(lines) + "\n"


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)
