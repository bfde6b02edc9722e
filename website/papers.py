"""A page for each join: its idea and picture, from its docstring; a run of it; what became of its paper's claims."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import watersmeet as wm
from watersmeet import planner
from watersmeet.core import html
from watersmeet.core.windows import parse_windows
from watersmeet.drivers.trace import Trace
from watersmeet.sources.schedules import Schedule, bursts
from website.markdown import first_sentence, of_docstring, slug

REGISTRIES: tuple[tuple[str, Mapping[str, type]], ...] = (
    ("join", planner.ALGORITHMS),
    ("multijoin", planner.MULTIWAY),
    ("window_join", planner.WINDOW_ALGORITHMS),
    ("asof_join", planner.ASOF),
    ("lookup_join", planner.LOOKUPS),
)
"""The verbs, and the joins that each can be told to use."""
TITLES = {
    "ah_ewj": "AH-EWJ", "asof": "The as-of join", "confluence": "Confluence", "diner": "DINER", "ewj": "EWJ",
    "hmj": "HMJ", "index_nested_loop": "Index nested loop",
    "meshjoin": "MESHJOIN", "metadata_mjoin": "The metadata-aware MJoin",
    "miner": "MINER", "mjoin": "MJoin", "partitioned": "The partitioned hybrid join", "pmj": "PMJ", "rpj": "RPJ",
    "rpwj": "RPWJ", "symmetric_hash": "The symmetric hash join", "symmetric_window": "The symmetric window join",
    "tree": "A tree of joins", "xjoin": "XJoin",
}  # fmt: skip
EXPERIMENTS: Mapping[str, tuple[str, ...]] = {
    "ah_ewj": ("ahewj-",),
    "diner": ("diner-",),
    "ewj": ("ewj-",),
    "hmj": ("rpj-8", "rpj-10", "rpj-flush", "diner-7/8"),
    "meshjoin": ("hybrid-",),
    "metadata_mjoin": ("meta-",),
    "miner": ("miner-",),
    "mjoin": ("mjoin-", "miner-22"),
    "partitioned": ("hybrid-",),
    "rpj": ("rpj-",),
    "rpwj": ("ahewj-slide", "ahewj-flush", "ahewj-rate", "ahewj-parts", "ahewj-bias", "ahewj-block"),
    "tree": ("mjoin-17", "mjoin-example"),
    "xjoin": ("rpj-8", "rpj-10", "diner-7/8"),
}
"""Which of the experiments are about a join, by what their ids begin with."""
PARALLEL = "par-"
"""The experiments of several nodes, which `wms.parallel_join` is from."""


@dataclass(frozen=True)
class Experiment:
    """A section of the page of reproductions."""

    id: str
    heading: str
    where: str
    """Paper, figure, scale and seeds."""
    claims: tuple[tuple[str, str, str], ...]
    """Each claim, what was measured, and whether it holds."""
    image: str | None


def experiments(page: Path) -> list[Experiment]:
    """What the page of reproductions tells, section by section."""
    found = []
    section = re.compile(r"<!-- experiment (\S+), charges \d+ -->\n(.*?)<!-- end -->", re.DOTALL)
    for id_, body in section.findall(page.read_text()):
        heading, where = re.match(r"## ([^\n]*)\n\n([^\n]*)", body).groups()  # type: ignore[union-attr]
        rows = re.findall(r"^\| (.*?) \| .*? \| (.*?) \| (\**(?:yes|no|partly|not run)[^|]*) \|$", body, re.MULTILINE)
        image = re.search(r"!\[[^\]]*\]\(([^)]*)\)", body)
        found.append(Experiment(id_, heading, where, tuple(rows), image[1] if image else None))
    return found


def joins() -> dict[str, list[type]]:
    """Every join of every registry, by its name; one name may stand for several, of different verbs."""
    found: dict[str, list[type]] = {}
    for _, registry in REGISTRIES:
        for name, kind in registry.items():
            found.setdefault(name, []).append(kind)
    return found


def pages(docs: Path) -> dict[str, str]:
    """Path and text of each page."""
    told = experiments(docs / "reproduction.md")
    found = {f"joins/{name}.md": _page(name, kinds, told) for name, kinds in sorted(joins().items())}
    found["joins/parallel_join.md"] = _parallel(told)
    return found


def _page(name: str, kinds: list[type], told: list[Experiment]) -> str:
    out = [f"# {TITLES.get(name, name)}", ""]
    out += [f'`algorithm="{name}"`{_where(name)}', ""]
    if name == "confluence":
        out += [
            "Our own join. [A page explains it](../confluence.md), with [what it was measured to do](../confluence.md"
            "#beside-the-papers-joins) and [where it is not ahead](../confluence.md#where-it-is-not-ahead).",
            "",
        ]
    out += [of_docstring(kinds[0].__doc__), ""]
    for another in kinds[1:]:
        out += [f"## {_of_verb(another)}", "", of_docstring(another.__doc__), ""]
    out += [*_run(name), *_found(name, told)]
    return "\n".join(out) + "\n"


def _where(name: str) -> str:
    verbs = [verb for verb, registry in REGISTRIES if name in registry]
    return " of " + " and ".join(f"[`wm.{verb}`](../verbs/{verb}.md)" for verb in verbs)


def _of_verb(kind: type) -> str:
    return next(f"For wm.{verb}" for verb, registry in REGISTRIES if kind in registry.values())


def _run(name: str) -> list[str]:
    """A run in virtual time, drawn: two inputs in bursts, memory for a small part of them."""
    trace = _trace(name)
    if trace is None:
        return []
    shades = [(begin, begin + length, phase) for phase in html.SHADES for begin, length in trace._spans(phase)]
    picture = html.curve(
        trace.time.tolist(),
        trace.results.tolist(),
        "results",
        unit="virtual seconds",
        shades=shades,
        marks={trace.last_arrival: "the last row arrived"},
    )
    return [
        "## A run of it",
        "",
        f'<figure markdown="0">{picture}</figure>',
        "",
        "Two inputs of 6,000 rows that come in bursts and fall silent in between, with memory for a small part of them,"
        " in virtual time. Silences that the join used are shaded yellow, the clean-up after the last row blue."
        f" {trace.online_share:.0%} of the {trace.total:,} results were there before the last row.",
        "",
    ]


def _trace(name: str) -> Trace | None:
    if name not in planner.ALGORITHMS and name not in planner.WINDOW_ALGORITHMS:
        return None
    random = np.random.default_rng(5)
    times = [bursts(6000, 1000, 0.002, 3.0) + shift for shift in (0.0, 0.001)]
    tables = [pa.table({"id": random.integers(0, 600, 6000), "t": (each * 1000).astype(np.int64)}) for each in times]
    schedule = Schedule(tables, times)
    if name not in planner.ALGORITHMS:
        memory = "96 KiB" if name != "symmetric_window" else "1 MiB"
        return wm.simulate(name, schedule, on="id", memory=memory, windows=parse_windows(12_000, "t"))
    memory = {"symmetric_hash": "2 MiB"}.get(name, "128 KiB")
    return wm.simulate(name, schedule, on="id", memory=memory)


def _found(name: str, told: list[Experiment]) -> list[str]:
    about = [each for each in told if each.id.startswith(EXPERIMENTS.get(name, ("-",)))]
    return _claims(about)


def _claims(about: list[Experiment]) -> list[str]:
    if not about:
        return []
    claims = [claim for each in about for claim in each.claims]
    holding = sum("yes" in holds for _, _, holds in claims)
    out = [
        "## What we found",
        "",
        f"{holding} of {len(claims)} claims hold in the experiments that this join takes part in. Each links to its"
        " figures, and to the reason where a claim does not hold.",
        "",
        "| experiment | claim | holds? |",
        "|---|---|---|",
    ]
    for each in about:
        link = f"[{each.id}](../reproduction.md#{slug(each.heading)})"
        for i, (claim, _, holds) in enumerate(each.claims):
            out.append(f"| {link if not i else ''} | {claim} | {holds} |")
    out.append("")
    pictures = [each for each in about if each.image][:2]
    for each in pictures:
        out += [f"![{each.heading}](../{each.image})", "", f"*{each.heading}. {each.where}*", ""]
    return out


def _parallel(told: list[Experiment]) -> str:
    from watersmeet.spark.plan.parallel_join import parallel_join

    about = [each for each in told if each.id.startswith(PARALLEL)]
    out = [
        "# Work that moves",
        "",
        "`wms.parallel_join`; [its page](../spark.md#work-that-moves) shows it at work.",
        "",
    ]
    out += [of_docstring(inspect.getdoc(parallel_join)), "", *_claims(about)]
    return "\n".join(out) + "\n"


def overview() -> str:
    """All joins with a sentence each, by verb."""
    out = [
        "# All joins",
        "",
        "Read off the registry and the joins' own docstrings; [which to choose](../choosing.md).",
        "",
    ]
    for verb, names in REGISTRIES:
        out += [f"## For wm.{verb}", "", "| `algorithm` | idea |", "|---|---|"]
        out += [f"| [`{name}`]({name}.md) | {first_sentence(kind.__doc__)} |" for name, kind in sorted(names.items())]
        out.append("")
    out += ["On Spark, [`wms.parallel_join`](parallel_join.md) moves the work of a window join between tasks.", ""]
    return "\n".join(out)
