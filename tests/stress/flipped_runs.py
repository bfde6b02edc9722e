"""Flips in what whole runs spill: each verb as a user calls it, with queues on disk and relations laid out first."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simulate.small_runs import RUNS, Found
from stress.flips import Flip, flipped, judged, kind_of, part_at, place
from watersmeet.spill import file_store

NAMES = tuple(name for name in RUNS if not name.startswith(("tasks", "state")))
"""State on Spark has a source of its own: its tasks repeat what fails."""


class Altered:
    """While this is entered, a bit is flipped of the so many-th file that any store publishes; 0: of none."""

    def __init__(self, at: int = 0, draw: random.Random | None = None) -> None:
        self.at, self._draw = at, draw or random.Random(0)
        self.names: list[str] = []
        self.content, self.bit, self.name = b"", 0, ""
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Altered:
        real = file_store._FileWriter.commit

        def commit(writer: Any) -> None:
            path = writer._store.path / writer._name
            real(writer)
            self.names.append(writer._name)
            if len(self.names) == self.at:
                self.name, self.content = path.name, path.read_bytes()
                self.bit = place(self._draw, self.content)
                path.unlink()
                path.write_bytes(flipped(self.content, self.bit))

        self._patch.setattr(file_store._FileWriter, "commit", commit)
        self._patch.setattr("os.fsync", lambda descriptor: None)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


@cache
def _clean(name: str) -> tuple[int, Found]:
    """How many files a run writes, and what it gives."""
    with tempfile.TemporaryDirectory() as directory, Altered() as seen:
        found = RUNS[name](Path(directory))
        return len(seen.names), found


def runs(draw: random.Random) -> Iterator[Flip]:
    """Flips in one run after the other."""
    while True:
        name = draw.choice(NAMES)
        files, right = _clean(name)
        with tempfile.TemporaryDirectory() as directory, Altered(1 + draw.randrange(files), draw) as altered:
            error: BaseException | None = None
            try:
                same = RUNS[name](Path(directory)) == right
            except Exception as raised:
                error, same = raised, True
        if altered.content:
            outcome, told = judged(error, repr(altered.name)) if same else ("BAD", f"{altered.name}: other results")
            kind, part = kind_of(altered.name, altered.content), part_at(altered.content, altered.bit)
            yield Flip(f"run, {name}: {kind}", part, outcome, f"bit {altered.bit}: {told}")
