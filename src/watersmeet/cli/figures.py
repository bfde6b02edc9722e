"""`--json`: the figures of a run for other programs, and `--json -`: on standard output."""

from __future__ import annotations

import argparse
import glob
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from watersmeet.core.errors import SpecError

STANDARD_OUTPUT = "-"


def add_argument(parser: argparse.ArgumentParser) -> None:
    """What every command takes that has figures to tell."""
    parser.add_argument("--json", metavar="FILE", help="write the figures here, too; - is standard output")


def check_target(target: str | None) -> None:
    """Refuse, before anything is done, a file that could not be written."""
    if target not in (None, STANDARD_OUTPUT) and not Path(str(target)).absolute().parent.is_dir():
        raise SpecError(f"{Path(str(target)).absolute().parent} is not a directory; {target} cannot be written")


def check_apart(args: argparse.Namespace) -> None:
    """Refuse, before anything is done, a file that is written twice, or read and written: its content would be gone."""
    taken = {file: "is an input" for text in _inputs(args) for file in _files(text)}
    for option in ("output", "json", "report"):
        target = getattr(args, option, None)
        if target in (None, STANDARD_OUTPUT):
            continue
        file = _file(target)
        if file in taken:
            told = "-o" if option == "output" else f"--{option}"
            raise SpecError(f"{told} {target} {taken[file]}, too, and would replace it; name another file")
        taken[file] = f"is what {'-o' if option == 'output' else f'--{option}'} writes"


def _inputs(args: argparse.Namespace) -> list[str]:
    """What may be paths of inputs among the arguments of a join; an input may have a name before its path."""
    given = [getattr(args, name, None) for name in ("left", "right", "stream")]
    several = [*getattr(args, "inputs", []), *getattr(args, "relations", [])]
    return [each for each in (*given, *several, *(text.partition("=")[2] for text in several)) if each]


def _files(text: str) -> list[str]:
    path = _file(text)
    found = glob.iglob(path, recursive=True) if glob.has_magic(path) else [path]  # noqa: PTH207, as inputs are found
    return [_file(each) for each in found]


def _file(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))  # noqa: PTH111, as Path's fails where there is no such user


def write(target: str | None, figures: Mapping[str, Any]) -> None:
    """Figures as JSON, where they were asked for."""
    if target is None:
        return
    text = json.dumps(figures, indent=2, default=str) + "\n"
    if target == STANDARD_OUTPUT:
        sys.stdout.write(text)
    else:
        Path(target).write_text(text, encoding="utf-8")
