"""What cells have given, kept in a folder: a run that was stopped goes on, and seeds are added to seeds.

What is kept counts only for the very code that gave it: the sources of the library and of the experiments are part of
each file's name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from experiments.model import Cell, Measured
from watersmeet.core.errors import SpecError


class Kept:
    """A folder of measurements, a file for each."""

    def __init__(self, folder: Path, sources: Iterable[Path]) -> None:
        """:param sources: folders whose Python files must be as they were"""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError(
                f"measurements cannot be kept in {folder}: {error.strerror}; choose another folder"
            ) from error
        self._folder = folder
        self._code = fingerprint(sources)

    def get(self, cell: Cell, scale: float, seed: int) -> Measured | None:
        """What a cell gave; None if it is not known."""
        try:
            found = json.loads(self._path(cell, scale, seed).read_text())
        except (FileNotFoundError, ValueError):  # cut short: it is measured again
            return None
        curves = {name: (np.array(x, np.float64), np.array(y, np.float64)) for name, (x, y) in found["curves"].items()}
        return Measured(found["values"], curves)

    def put(self, cell: Cell, scale: float, seed: int, measured: Measured) -> None:
        """Keep what a cell gave."""
        curves = {name: [np.asarray(x).tolist(), np.asarray(y).tolist()] for name, (x, y) in measured.curves.items()}
        values = {name: float(value) for name, value in measured.values.items()}
        target = self._path(cell, scale, seed)
        hidden = target.with_name(f".{target.name}")
        hidden.write_text(json.dumps({"cell": repr(cell.key), "seed": seed, "values": values, "curves": curves}))
        hidden.replace(target)

    def _path(self, cell: Cell, scale: float, seed: int) -> Path:
        name = hashlib.sha256(repr((self._code, cell.key, scale, seed)).encode()).hexdigest()[:24]
        return self._folder / f"{name}.json"


def fingerprint(sources: Iterable[Path]) -> str:
    """Equal for equal Python files under equal names."""
    found = hashlib.sha256()
    for folder in sources:
        for path in sorted(folder.rglob("*.py")):
            found.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()
