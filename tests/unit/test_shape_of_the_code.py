"""What keeps the code easy to find one's way in: files that say one thing, and are not cut finer than that."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
MOST_LONELY = 78
"""Modules of which one other knows. There may be fewer; a new one is better put together with whoever needs it."""
FACES = {"watersmeet.planner", "watersmeet.cli.main"}
"""What lists others, as packages do, is no reason to be put together with it."""


def importers() -> dict[str, set[str]]:
    """Who imports each module, whatever for."""
    names = {module_name(path): path for path in SOURCE.rglob("*.py")}
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in names.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                wholes = {f"{node.module}.{each.name}" for each in node.names}
                wanted = (wholes & set(names)) or {node.module}
            elif isinstance(node, ast.Import):
                wanted = {each.name for each in node.names}
            else:
                continue
            for each in wanted & set(names) - {name}:
                found[each].add(name)
    return found


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_a_face(name: str) -> bool:
    return name in FACES or (SOURCE / Path(*name.split(".")) / "__init__.py").exists()


def test_few_modules_are_there_for_one_other_alone() -> None:
    known = importers()
    assert len(known) > 300, "imports are understood"
    lonely = {
        name: next(iter(by)) for name, by in known.items() if len(by) == 1 and not any(map(is_a_face, {name, *by}))
    }
    assert len(lonely) <= MOST_LONELY, "\n".join(f"{name} is there for {by}" for name, by in sorted(lonely.items()))
