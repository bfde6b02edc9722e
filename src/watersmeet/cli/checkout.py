"""What is part of a source checkout and not of an installation: benchmarks and experiments."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from watersmeet.core.errors import WatersmeetError


def find(name: str, asking: str) -> Path:
    """The folder of this name: beside the sources that the asking module's file belongs to, or where we are."""
    places = [Path(asking).resolve().parents[3], Path.cwd()]  # ROOT/src/watersmeet/cli/ is where those ask who do
    for place in places:
        if (place / name / "catalogue.py").is_file():
            return place / name
    looked = " or ".join(dict.fromkeys(map(str, places)))
    raise WatersmeetError(
        f"the {name} are part of the source code and not of an installation, and there are none in {looked}; "
        f"run this in a checkout of the project"
    )


def catalogue(folder: Path) -> ModuleType:
    """The module that knows all that is in such a folder."""
    root = str(folder.parent)
    if root not in sys.path:
        sys.path.insert(0, root)
    return importlib.import_module(f"{folder.name}.catalogue")
