"""The public names of the package, their signatures, and the commands with their options, as lines of text.

`tests/public_api.txt` has them as they were promised, and a test compares. To change the public API on purpose, run
`python tests/public_api.py`, look at what `git diff` says, and tell users in CHANGELOG.md: what is new in a minor
version, what is gone or needs other arguments in the next major one.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

FILE = Path(__file__).with_suffix(".txt")
MODULES = ("watersmeet", "watersmeet.spark", "watersmeet.errors")
GIVEN = {"Progress", "QueriesResult", "Result", "SharedResult", "Trace"}
"""Classes whose objects users are given and do not make: how they are made is not promised."""


def listing() -> str:
    """All of it."""
    return "\n".join([*library(), *commands()]) + "\n"


def library() -> Iterator[str]:
    """Names of the modules that users import, each with what it takes."""
    for name in MODULES:
        module = _module(name)
        classes = [each for each, value in vars(module).items() if isinstance(value, type)]
        names = getattr(module, "__all__", classes)
        for each in sorted(names):
            if not each.startswith("_") or each == "__version__":
                yield from _described(f"{name}.{each}", getattr(module, each))


def _module(name: str) -> ModuleType:
    package, _, last = name.rpartition(".")
    found = getattr(importlib.import_module(package), last) if package else importlib.import_module(name)
    assert isinstance(found, ModuleType)
    return found


def _described(name: str, value: object) -> Iterator[str]:
    if isinstance(value, type):
        yield f"class {name}{'' if value.__name__ in GIVEN else _signature(value)}"
        for attribute in sorted(each for each in dir(value) if not each.startswith("_")):
            own = inspect.getattr_static(value, attribute)
            if any(attribute in vars(base) for base in value.__mro__ if base.__module__.startswith("watersmeet")):
                yield f"  {attribute}{_signature(getattr(value, attribute)) if _callable(own) else ''}"
    else:
        yield f"{name}{_signature(value) if callable(value) else ''}"


def _callable(own: object) -> bool:
    return callable(own) or isinstance(own, classmethod | staticmethod)


def _signature(value: object) -> str:
    try:
        return str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"


def commands() -> Iterator[str]:
    """Commands of the command line, and what each takes."""
    from watersmeet.cli.main import build_parser

    yield from _parser("watersmeet", build_parser())


def _parser(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"command {name}"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, own in sorted(action.choices.items()):
                yield from _parser(f"{name} {command}", own)
        else:
            yield f"  {_option(action)}"


def _option(action: argparse.Action) -> str:
    words = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    takes = "" if action.nargs == 0 else f" {action.metavar or action.dest}" if action.option_strings else ""
    return words + takes + (f" of {', '.join(map(str, action.choices))}" if action.choices else "")


if __name__ == "__main__":
    FILE.write_text(listing(), encoding="utf-8")
