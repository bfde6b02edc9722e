"""All sentences that an error of ours may say, read off the source."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import watersmeet as wm
from watersmeet.core import errors
from website.markdown import first_sentence

SOURCE = Path(wm.__file__).parent
PLACEHOLDER = re.compile(r"‹[^›]*›")


@dataclass(frozen=True)
class Sentence:
    """What an error says; what differs from case to case stands in ‹pointed brackets›."""

    kind: str
    text: str
    module: str

    def matches(self, said: str) -> bool:
        """Whether this sentence could have been said."""
        return self._pattern.fullmatch(said) is not None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = [re.escape(part) for part in PLACEHOLDER.split(self.text)]
        return re.compile(".*?".join(parts), re.DOTALL)


@cache
def kinds() -> dict[str, type[errors.WatersmeetError]]:
    """Our errors by name, the root first."""
    found = [
        each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.WatersmeetError)
    ]
    return {each.__name__: each for each in found}


@cache
def sentences(source: Path = SOURCE) -> tuple[Sentence, ...]:
    """Every sentence that stands in the source as one, in the order of modules and lines."""
    found = []
    for path in sorted(source.rglob("*.py")):
        module = ".".join(path.relative_to(source).with_suffix("").parts)
        if module.startswith("checks"):  # its sentences are for those who write joins
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and _name(node.func) in kinds():
                text = " ".join(_template(node.args[0], module).split())
                if len(PLACEHOLDER.sub("", text)) > 10:  # else another place has the sentence
                    found.append(Sentence(_name(node.func), text, module))
    return tuple(found)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _template(node: ast.expr, module: str) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(each, module) for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left, module) + _template(node.right, module)
    value = node.value if isinstance(node, ast.FormattedValue) else node
    if isinstance(value, ast.Name) and value.id.isupper():
        constant = getattr(importlib.import_module(f"watersmeet.{module}".removesuffix(".__init__")), value.id, None)
        if isinstance(constant, str):
            return constant
    return f"‹{_short(value)}›"


def _short(node: ast.expr) -> str:
    """What a value is about: the last name in it that says something."""
    empty = (
        "self",
        "str",
        "repr",
        "len",
        "join",
        "sorted",
        "map",
        "format",
        "format_bytes",
        "type",
        "isinstance",
        "name",
    )
    names = [each for each in _names(node) if each not in empty]
    return names[-1].strip("_").replace("_", " ").lower() if names else "name"


def _names(node: ast.expr) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and not each.attr.startswith("__"):
            yield each.attr


def quoted(page: str) -> list[str]:
    """The sentences that a page quotes: its block quotations, without marks of code."""
    return [" ".join(line[2:].replace("`", "").split()) for line in page.splitlines() if line.startswith("> ")]


def listing() -> str:
    """The part of the page that is generated: all sentences by kind and by where they are said."""
    out = [
        "## All sentences",
        "",
        "Read off the source. What differs from case to case stands in ‹pointed brackets›.",
        "",
    ]
    found = sentences()
    for name, kind in kinds().items():
        own = [each for each in found if each.kind == name]
        if not own:
            continue
        out += [f"### {name}", "", first_sentence(kind.__doc__), ""]
        areas: dict[str, list[str]] = {}
        for each in own:
            areas.setdefault(AREAS.get(each.module.split(".")[0], "inside a join"), []).append(each.text)
        for area in sorted(areas):
            out += [f"**{area[0].upper()}{area[1:]}**", ""]
            out += [f"- {_escaped(text)}" for text in sorted(set(areas[area]))]
            out.append("")
    return "\n".join(out)


AREAS = {
    "api": "in the library's verbs",
    "cli": "on the command line",
    "core": "in what is asked for",
    "demo": "in the demo",
    "drivers": "while a join runs",
    "live": "on the live page",
    "memory": "in sizes of memory",
    "planner": "in the choice of a join",
    "relation": "in relations",
    "runs": "on disk",
    "sources": "in inputs",
    "spark": "on Spark",
    "spill": "on disk",
}


def _escaped(text: str) -> str:
    return re.sub(r"([\\*_<>\[\]|{}#])", r"\\\1", text)
