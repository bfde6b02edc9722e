"""What keeps the code easy to find one's way in: files that say one thing, and are not cut finer than that."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
BESIDE = ("benchmarks", "experiments", "website")
"""Who uses modules from outside of `src` has as good a reason to find them as those inside. Tests have not."""
MOST_LONELY = 33
"""Modules of which one other knows. There may be fewer; a new one is better put together with whoever needs it.

What is listed is no reason to be put together with the list, so these do not count: what only a package's `__init__`
knows, which is a face for users; and what only the planner knows, or the list of suites, or the command line, if it is
a join, a suite or a command.
"""


def users() -> dict[str, set[str]]:
    """Who imports each module, whatever for, or names it where joins are listed."""
    modules = {module_name(path): path for path in SOURCE.rglob("*.py")}
    beside = {str(path.relative_to(ROOT)): path for folder in BESIDE for path in (ROOT / folder).rglob("*.py")}
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in {**modules, **beside}.items():
        for node in ast.walk(ast.parse(path.read_text())):
            for each in wanted(node, set(modules)) & set(modules) - {name}:
                found[each].add(name)
    return found


def wanted(node: ast.AST, modules: set[str]) -> set[str]:
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        return ({f"{node.module}.{each.name}" for each in node.names} & modules) or {node.module}
    if isinstance(node, ast.Import):
        return {each.name for each in node.names}
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[a-z_.]+:\w+", node.value):
        return {"watersmeet.joins." + node.value.partition(":")[0]}
    return set()


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_a_package(name: str) -> bool:
    return (SOURCE / Path(*name.split(".")) / "__init__.py").exists()


def is_listed(name: str, by: str) -> bool:
    if is_a_package(by):
        return True
    if by == "watersmeet.cli.main":
        first = ast.get_docstring(ast.parse((SOURCE / Path(*name.split("."))).with_suffix(".py").read_text()))
        return first is not None and first.startswith("`watersmeet ")
    return by in ("watersmeet.planner", "watersmeet.checks.suites")


def test_few_modules_are_there_for_one_other_alone() -> None:
    known = users()
    assert len(known) > 300, "imports are understood"
    assert "watersmeet.planner" in known["watersmeet.joins.progressive.diner"], "so is the list of joins"
    alone = {name: next(iter(by)) for name, by in known.items() if len(by) == 1 and not is_a_package(name)}
    lonely = {name: by for name, by in alone.items() if not is_listed(name, by)}
    assert len(lonely) <= MOST_LONELY, "\n".join(f"{name} is there for {by}" for name, by in sorted(lonely.items()))
