"""`--json`: the figures of a run for other programs, and `--json -`: on standard output."""

from __future__ import annotations

import argparse
import json
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


def write(target: str | None, figures: Mapping[str, Any]) -> None:
    """Figures as JSON, where they were asked for."""
    if target is None:
        return
    text = json.dumps(figures, indent=2, default=str) + "\n"
    if target == STANDARD_OUTPUT:
        sys.stdout.write(text)
    else:
        Path(target).write_text(text, encoding="utf-8")
